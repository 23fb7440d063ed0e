"""Measuring a finished run's model anew, in a process of its own: both orders, or the test set.

    <run folder>/assessments/orders/   the process' folder, as a run's: events, log, job
    <run folder>/assessments/test/

Free of torch, for the page; what is measured is `assess`' business.
"""

from __future__ import annotations

from typing import Literal

from finetune.errors import JobError
from finetune.jobs import background, workers
from finetune.jobs.background import JobKind, JobProgress
from finetune.runs.store import Run, RunStore

EvaluationKind = Literal["orders", "test"]
_KIND = JobKind("finetune.jobs.evaluate", "*/assessments/*", 2, "models are being measured")


def evaluation_folder(run: Run, what: EvaluationKind) -> Run:
    """Where the process keeps its events and log."""
    return Run(run.folder / "assessments" / what)


def start_evaluation(store: RunStore, run: Run, what: EvaluationKind) -> None:
    """Measure, unless that is being done already.

    Raises:
        JobError: when the run has no model or has not ended, when too many are being measured, or
            no process can be started.
        StoreError: when the folder cannot be made.
    """
    if workers.alive(run):
        raise JobError("This run is still training.", "Wait for its end, or stop it.")
    if not run.has_model():
        raise JobError("This run has no model.", "Resume it, or choose another run.")
    background.start_job(store, evaluation_folder(run, what), _KIND)


def evaluation_state(run: Run, what: EvaluationKind) -> JobProgress:
    """How far it is, from its folder."""
    return background.job_progress(evaluation_folder(run, what))
