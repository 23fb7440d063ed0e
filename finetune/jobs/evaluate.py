"""Evaluation jobs: score a finished run's model in both orders, or on the sealed test set."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Literal

from finetune.config import BUNDLED_CHECKPOINT
from finetune.errors import JobError
from finetune.inference import decision_rule
from finetune.jobs import background
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder
from finetune.runs.run import Run
from finetune.runs.store import RunStore, default_root, named_run
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
    positive = summary.prepared.labels[summary.prepared.target.positive]
    names = {"positive": positive if choice["threshold"] else ""} if "threshold" in choice else {}
    decision_rule.write_rule(run.best, **choice, **names)


def evaluation_state(run: Run, evaluation: EvaluationKind) -> JobState:
    """How far it is."""
    return background.job_state(_folder(run, evaluation))


def _folder(run: Run, evaluation: EvaluationKind) -> JobFolder:
    return JobFolder(run.folder / "evaluations" / evaluation)


def evaluate_job(job: JobFolder) -> int:
    """Score in the job's own process; the exit status."""
    run = Run(job.folder.parent.parent)
    return background.carry_out(job, Phase.EVALUATE, lambda: _evaluate(run, job.id == "test"))


def _evaluate(run: Run, test: bool) -> None:
    background.choose_offline(run.config().dataset, BUNDLED_CHECKPOINT)
    from finetune.evaluation.test_set import open_test_set, score_both_orders

    (open_test_set if test else score_both_orders)(run)


def main(arguments: list[str] | None = None) -> int:
    """Score a run's model from a terminal."""
    about = "Score a run's model with the sentences swapped, or on the sealed test set."
    parser = argparse.ArgumentParser("python -m finetune evaluate", description=about)
    parser.add_argument("--run", type=Path, required=True, help="a run's id, or its folder")
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
    parser.add_argument("--open_test", action="store_true", help="open the test set")
    args = parser.parse_args(arguments)
    run = named_run(args.run, args.runs)
    _evaluate(run, args.open_test)
    if args.open_test:
        opened = run.events_summary().opened[-1]
        print(json.dumps({"step": opened.step, **opened.metrics}))
    else:
        from finetune.evaluation import report

        analysis = report.evaluate_run(run, run.summary()).analysis
        assert analysis.order is not None, "it was just measured"
        print(json.dumps({"pairs": analysis.order.pairs, "changed answers": analysis.order.flips}))
    return 0
