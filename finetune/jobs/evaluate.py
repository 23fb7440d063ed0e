"""Evaluation jobs: score a finished run's model in both orders, or on the sealed test set."""

from __future__ import annotations

from typing import Literal

from finetune.config import BUNDLED_CHECKPOINT
from finetune.errors import JobError
from finetune.inference import decision_rule
from finetune.jobs import background
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, JobState, RunSummary

EvaluationKind = Literal["orders", "test"]


def start_evaluation(store: RunStore, run: Run, evaluation: EvaluationKind) -> None:
    """Score the run's model."""
    check_has_ended(run)
    background.start_job(store, _folder(run, evaluation), "evaluate")


def check_has_ended(run: Run) -> None:
    """Raise a `JobError` unless a run has ended with a model."""
    if run.is_alive():
        raise JobError("This run is still training.", "Wait for its end, or stop it.")
    if not run.has_model():
        raise JobError("This run has no model.", "Resume it, or choose another run.")


def save_decision(run: Run, summary: RunSummary, **choice: float | None) -> None:
    """Keep a `threshold` or a `temperature` with the model of a run that has ended; forget it where
    it is None."""
    if summary.prepared is None or summary.status not in ENDED:
        raise JobError("This run is still training.", "Save it when the run has ended.")
    positive = summary.prepared.labels[summary.prepared.positive]
    names = {"positive": positive if choice["threshold"] else ""} if "threshold" in choice else {}
    decision_rule.write_rule(run.best, **choice, **names)


def evaluation_state(run: Run, evaluation: EvaluationKind) -> JobState:
    """How far it is."""
    return _folder(run, evaluation).state()


def _folder(run: Run, evaluation: EvaluationKind) -> JobFolder:
    return JobFolder(run.folder / "evaluations" / evaluation)


def evaluate_job(job: JobFolder) -> int:
    """Score in the job's own process; the exit status."""
    run = Run(job.folder.parent.parent)
    return background.carry_out(job, Phase.EVALUATE, lambda: score(run, job.id == "test"))


def score(run: Run, test: bool) -> None:
    """Score a run's model on the sealed test set, or else on validation in both orders."""
    background.choose_offline(run.config().dataset, BUNDLED_CHECKPOINT)
    from finetune.evaluation.test_set import open_test_set, score_both_orders

    (open_test_set if test else score_both_orders)(run)
