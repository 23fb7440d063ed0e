"""The kinds of background jobs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from finetune.messages import message as _
from finetune.runs.job_folder import JobFolder


@dataclass(frozen=True)
class JobKind:
    """One kind of job; its module has a function `<name>_job`, which the worker calls."""

    name: str  # as `job.json` has it, and of its module
    folders: str  # where such jobs lie below the store, as a pattern
    limit: int = 0  # at work at a time, for all visitors; 0 where the queue decides
    busy: str = ""  # the message when `n` of them are at work and no more may be

    def carry_out(self, job: JobFolder) -> int:
        """Do the job in this process; its exit status."""
        module = import_module(f"finetune.jobs.{self.name}")
        status: int = getattr(module, f"{self.name}_job")(job)
        return status


KINDS = {
    kind.name: kind
    for kind in (
        JobKind("train", "*"),
        JobKind("check", "checks/*", 3, _("{n} data checks are running.")),
        JobKind("evaluate", "*/evaluations/*", 2, _("{n} models are being scored.")),
        JobKind("predict", "batches/*", 2, _("{n} files are being predicted.")),
        JobKind("export", "*/exports/*", 2, _("{n} models are being exported.")),
        JobKind("push", "*/pushes/*", 4, _("{n} pushes are running.")),
    )
}
