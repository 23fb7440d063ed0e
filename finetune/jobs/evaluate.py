"""Evaluation jobs: score a finished run's model in both orders, or on the sealed test set."""

from __future__ import annotations

from typing import Any

from finetune.config import BUNDLED_CHECKPOINT
from finetune.errors import DataError, JobError
from finetune.evaluation import abstention
from finetune.inference import decision_rule
from finetune.jobs.background import BackgroundJob, choose_offline
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.tasks.base import SureRule


class EvaluationJob(BackgroundJob):
    """The scoring of a run's model, in both orders (its id is `orders`) or on its test set
    (`test`)."""

    name, folders, limit = "evaluate", "*/evaluations/*", 2
    phase = Phase.EVALUATE

    def start(self, store: RunStore) -> None:
        """Score the model. Raises a `JobError` unless the run has ended with a model."""
        check_has_ended(self.run)
        self.begin(store)

    def work(self) -> None:
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
