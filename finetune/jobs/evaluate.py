"""Evaluation jobs: score a finished run's model in both orders, or on the sealed test set.
Comparison jobs ask several runs' models: how fast they are here, what they answer to a golden file.

The folder `<run id>/comparisons/<id>` has the golden file as it was brought, and gets the judgement
in `judgement.json`; speeds are kept in the folders of their runs.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from finetune import disk, owners, uploads
from finetune.config import BUNDLED_CHECKPOINT
from finetune.errors import DataError, JobError
from finetune.evaluation import abstention, ranking, release
from finetune.evaluation.gate import Judgement, Limits
from finetune.inference import decision_rule
from finetune.inference.file_request import PredictionRequest
from finetune.jobs.background import BackgroundJob, Report, choose_offline
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.tasks.base import SureRule


class EvaluationJob(BackgroundJob):
    """Scores a run's model, in both orders (its id is `orders`) or on its test set (`test`)."""

    name, folders, limit = "evaluate", "*/evaluations/*", 2
    phase = Phase.EVALUATE

    def start(self, store: RunStore) -> None:
        """Score the model. Raises a `JobError` unless the run has ended with a model."""
        check_has_ended(self.run)
        self.begin(store)

    def work(self, report: Report) -> None:
        score(self.run, self.id == "test")


def check_has_ended(run: Run) -> None:
    """Raise a `JobError` unless a run has ended with a model."""
    if run.is_alive():
        raise JobError("This run is still training.", "Wait for its end, or stop it.")
    if not run.has_model():
        raise JobError("This run has no model.", "Resume it, or choose another run.")


def save_decision(run: Run, summary: RunSummary, **choice: Any) -> None:
    """Save a `threshold`, a `temperature`, the `thresholds` of labels or what it is `sure` of with
    the model of a run that has ended; None or () removes it."""
    if summary.prepared is None or summary.status not in ENDED:
        raise JobError("This run is still training.", "Save it when the run has ended.")
    positive = summary.prepared.labels[summary.prepared.target.positive]
    names = {"positive": positive if choice["threshold"] else ""} if "threshold" in choice else {}
    decision_rule.write_rule(run.best, **choice, **names)


def keep_when_sure(run: Run, **bound: Any) -> SureRule:
    """Save with a run's model from which confidence on it gives an answer, and the bound on the
    error that this keeps; `bound` has the arguments of `answer_when_sure`. DataError if no
    threshold keeps it."""
    found = abstention.answer_when_sure(run, **bound)
    if found.rule is None:
        raise found.refusal
    save_decision(run, run.state(), sure=found.rule)
    return found.rule


def score(run: Run, test: bool) -> None:
    """Score a run's model on the sealed test set, or on validation in both orders."""
    choose_offline(run.config().dataset, BUNDLED_CHECKPOINT)
    from finetune.evaluation import test_set

    if test:
        test_set.open_test_set(run)
    elif not run.state().paired:
        raise DataError("These are single sentences: they have no order.")
    elif scored := test_set.score_kept_model(run):
        run.append(scored)


class ComparisonJob(BackgroundJob):
    """The measuring of runs' speeds (its id is `speed`), in the folder of the best of a ranking, or
    a release check by a golden file (`release`), in that of the new run."""

    name, folders, limit = "compare", "*/comparisons/*", 2
    phase = Phase.EVALUATE

    @property
    def judgement(self) -> Judgement | None:
        """The result of a release check; None until it has ended."""
        return disk.read_as(Judgement, self.folder / "judgement.json")

    def work(self, report: Report) -> None:
        root = self.run.folder.parent
        choose_offline(self.run.config().dataset, BUNDLED_CHECKPOINT)
        if self.id == "speed":
            runs = self.request["runs"]
            for done, run_id in enumerate(runs, 1):
                ranking.measure_speed(Run(root / run_id))
                report(Phase.EVALUATE, "", done, len(runs))
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
    """Measure, one by one, the models ranked with a run's whose speed here is not known."""
    ranked = ranking.rank_runs(ranking.beside(store, run))
    unknown = [each.id for each in ranked.runs if each.milliseconds is None]
    if unknown:
        ComparisonJob.of(run, "speed").begin(store, {"runs": unknown})


def start_release_check(
    store: RunStore, new: Run, old: Run, limits: Limits, golden: Path, name: str
) -> ComparisonJob:
    """Judge a new run by a copy of a golden file, whose hash is kept. `name` is the person's of the
    file. Raises a JobError or DataError if a run has not ended or the file cannot be used."""
    for run in (new, old):
        check_has_ended(run)
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
