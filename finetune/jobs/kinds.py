"""The kinds of background jobs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from finetune.runs.job_folder import JobFolder


@dataclass(frozen=True)
class JobKind:
    """One kind of job.

    Args:
        name: as `job.json` has it.
        function: `module:function`, which the worker calls with the job's folder; it returns the
            process's exit status.
        folders: where such jobs lie below the store, as a pattern.
        limit: how many may be at work at a time, for all visitors; 0 where the queue decides.
        busy: what is said when no more may.
    """

    name: str
    function: str
    folders: str
    limit: int = 0
    busy: str = ""

    def carry_out(self, job: JobFolder) -> int:
        """Do the job in this process; its exit status."""
        module, _, name = self.function.partition(":")
        status: int = getattr(import_module(module), name)(job)
        return status


KINDS = {
    kind.name: kind
    for kind in (
        JobKind("train", "finetune.jobs.train:train_job", "*"),
        JobKind("check", "finetune.jobs.check:check_job", "checks/*", 3, "data checks are running"),
        JobKind(
            "evaluate", "finetune.jobs.evaluate:evaluate_job", "*/evaluations/*", 2,
            "models are being scored",
        ),
        JobKind(
            "predict", "finetune.jobs.predict:predict_job", "batches/*", 2,
            "files are being predicted",
        ),
        JobKind(
            "export", "finetune.jobs.export:export_job", "*/exports/*", 2,
            "models are being exported",
        ),
        JobKind("push", "finetune.jobs.push:push_job", "*/pushes/*", 4, "pushes are running"),
    )
}  # fmt: skip
