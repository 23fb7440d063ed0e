"""Expected score on new pairs of a search's best trial, picked among all evaluations of all
trials."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from finetune.errors import StoreError
from finetune.evaluation import picking, report
from finetune.metrics.intervals import Interval
from finetune.runs.store import RunStore
from finetune.search.results import TrialRow
from finetune.search.study import Study


@dataclass(frozen=True)
class Expectation:
    """Expected score of the best trial."""

    candidates: int  # evaluations that it was picked among
    value: float | None  # of the metric, on new pairs; None if picking changes nothing
    interval: Interval | None  # the same with its interval; None also for a loss


def expected_score(
    store: RunStore, study: Study, rows: Sequence[TrialRow], best: TrialRow | None
) -> Expectation | None:
    """Return the best trial's expected score on new pairs; None if its evaluations cannot be
    read."""
    if best is None or not best.run_id:
        return None
    with contextlib.suppress(StoreError):
        runs = [store.get(row.run_id) for row in rows if row.run_id and row.curve]
        trials = [(run, run.state()) for run in runs]
        run, summary = next(trial for trial in trials if trial[0].id == best.run_id)
        picked, scored = picking.run_picking(run, summary, trials), summary.best
        if picked is not None and scored is not None:
            measured = report.evaluate_run(run, summary).analysis.scores
            value = picked.expected(scored.metrics).get(study.metric)
            interval = picked.expected_intervals(measured).get(study.metric)
            return Expectation(picked.candidates, value, interval)
    return None
