"""Comparison jobs, which ask the models of several runs: how fast they are on this machine, and
what they answer to a golden file.

The folder `<run id>/comparisons/<id>` has the golden file as it was brought, and gets the judgement
in `judgement.json`; speeds are kept in the folders of their runs.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from finetune import disk, owners, uploads
from finetune.config import BUNDLED_CHECKPOINT
from finetune.errors import DataError, JobError
from finetune.evaluation import ranking, release
from finetune.evaluation.gate import Judgement, Limits
from finetune.inference.file_request import PredictionRequest
from finetune.jobs import background, evaluate
from finetune.jobs.background import BackgroundJob
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.runs.store import RunStore


class ComparisonJob(BackgroundJob):
    """The measuring of runs' speeds (its id is `speed`), in the folder of the best of a ranking, or
    a release check by a golden file (`release`), in that of the new run."""

    name, folders, limit = "compare", "*/comparisons/*", 2
    phase = Phase.EVALUATE

    @property
    def judgement(self) -> Judgement | None:
        """The result of a release check; None until it has ended."""
        return disk.read_as(Judgement, self.folder / "judgement.json")

    def work(self) -> None:
        root = self.run.folder.parent
        background.choose_offline(self.run.config().dataset, BUNDLED_CHECKPOINT)
        if self.id == "speed":
            from finetune.evaluation import ranking

            progress = background.EventProgress(self, Phase.EVALUATE)
            for done, run_id in enumerate(self.request["runs"]):
                ranking.measure_speed(Run(root / run_id))
                progress(Phase.EVALUATE, "", done + 1, len(self.request["runs"]))
            return
        golden = next(self.folder.glob("golden.*"))
        request = PredictionRequest(**self.request["golden"])
        limits, old = Limits(**self.request["limits"]), Run(root / self.request["old"])
        judged = release.check_release(self.run, old, limits, golden, request)
        text = TypeAdapter(Judgement).dump_json(judged).decode()
        disk.write_atomically(self.folder / "judgement.json", text)


def tidy_golden(store: RunStore, job: ComparisonJob) -> None:
    """Allow training on a file that a check made golden, if one of its models was trained on it."""
    judged = job.judgement
    if judged is not None and judged.seen and job.request.get("is_new"):
        store.uploads.forget_golden(judged.golden)


def start_measuring(store: RunStore, run: Run) -> None:
    """Measure the models that are ranked with a run's and whose speed on this machine is not known,
    one after the other."""
    ranked = ranking.rank_runs(ranking.beside(store, run))
    unknown = [each.id for each in ranked.runs if each.milliseconds is None]
    if unknown:
        ComparisonJob.of(run, "speed").begin(store, {"runs": unknown})


def start_check(
    store: RunStore, new: Run, old: Run, limits: Limits, golden: Path, name: str
) -> ComparisonJob:
    """Judge a new run by a copy of a golden file, whose hash is kept. `name` is the person's of the
    file. Raises a JobError or DataError if a run has not ended or the file cannot be used."""
    for run in (new, old):
        evaluate.check_has_ended(run)
    if not store.visitor.may_start:
        raise DataError(*owners.NOBODY)
    request = release.golden_request(new, golden, PredictionRequest(new.id, name, ""))
    store.uploads.make_room(golden.stat().st_size, store.batch_input_bytes())
    job = ComparisonJob.of(new, "release")
    if job.state().running:
        raise JobError("A release check of this run is being made.", "Wait for its end.")
    values = {
        "old": old.id, "limits": asdict(limits), "golden": asdict(request),
        "is_new": store.uploads.keep_golden(golden),
    }  # fmt: skip
    job.begin(store, values, {f"golden{uploads.file_suffix(name)}": golden})
    return job
