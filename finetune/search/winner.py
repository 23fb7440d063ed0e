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
        measured = [row for row in rows if row.run_id and row.curve]
        if best not in measured:
            return None
        runs = [store.get(row.run_id) for row in measured]
        trials = [(run, run.state()) for run in runs]
        run, summary = next(trial for trial in trials if trial[0].id == best.run_id)
        picked, scored = picking.run_picking(run, summary, trials), summary.best
        if picked is not None and scored is not None:
            scores = report.evaluate_run(run, summary).analysis.scores
            value = picked.expected(scored.metrics).get(study.metric)
            interval = picked.expected_intervals(scores).get(study.metric)
            return Expectation(picked.candidates, value, interval)
    return None


@dataclass(frozen=True)
class Chance:
    """The other finished trials that may be worse than the best one by chance alone."""

    interval: Interval  # of the best trial's score, on the validation split
    examples: int  # of that split
    trials: list[int]  # their numbers, the best first


def within_chance(
    store: RunStore, study: Study, rows: Sequence[TrialRow], best: TrialRow | None
) -> Chance | None:
    """Return the trials whose score lies in the interval of the best one's; None for a loss, which
    has none, or if its evaluation cannot be read."""
    if best is None or not best.run_id:
        return None
    with contextlib.suppress(StoreError):
        run = store.get(best.run_id)
        analysis = report.evaluate_run(run, run.state()).analysis
        interval = analysis.scores.get(study.metric)
        if interval is None:
            return None
        others = [
            row for row in rows
            if row.state == "finished" and row.number != best.number and row.score is not None
            and interval.low <= row.score <= interval.high
        ]  # fmt: skip
        others.sort(key=lambda row: row.score or 0.0, reverse=not study.minimize)
        return Chance(interval, analysis.examples, [row.number for row in others])
    return None
