"""Expected score on new pairs of a search's best trial, picked among all evaluations of all
trials."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from finetune.errors import StoreError
from finetune.evaluation import picking, ranking, report, saved_predictions
from finetune.evaluation.picking import Picking
from finetune.metrics import catalog, selection
from finetune.metrics.intervals import Interval
from finetune.runs.run import Run
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
        run = store.get(best.run_id)
        summary = run.state()
        picked, scored = _picked(store, rows, best), summary.best
        if picked is not None and scored is not None:
            scores = report.evaluate_run(run, summary).analysis.scores
            value = picked.expected(scored.metrics).get(study.metric)
            interval = picked.expected_intervals(scores).get(study.metric)
            return Expectation(picked.candidates, value, interval)
    return None


def _picked(store: RunStore, rows: Sequence[TrialRow], best: TrialRow) -> Picking | None:
    """Return the selection bias of the best trial, picked among all evaluations of all trials."""
    measured = [row for row in rows if row.run_id and row.curve]
    if best not in measured:
        return None
    trials = [(run, run.state()) for run in (store.get(row.run_id) for row in measured)]
    return picking.run_picking(*trials[measured.index(best)], trials)


@dataclass(frozen=True)
class Chance:
    """The other finished trials that may be worse than the best one by chance alone."""

    interval: Interval  # of the best trial's score, on the validation split
    examples: int  # of that split
    trials: list[int]  # their numbers, the best first


def within_chance(
    store: RunStore, study: Study, rows: Sequence[TrialRow], best: TrialRow | None
) -> Chance | None:
    """Return the trials that cannot be told from the best one: all were scored on the same pairs,
    so the interval of the paired difference decides, without selection bias. A trial whose
    predictions are gone counts if its score lies in the best one's interval.

    None for a loss, which has no interval, if the best trial's evaluation cannot be read, or if no
    other trial has finished.
    """
    others = [
        row for row in rows
        if row.state == "finished" and row is not best and row.score is not None
    ]  # fmt: skip
    if best is None or not best.run_id or not others:
        return None
    metric, rank = study.metric, catalog.find(study.metric).rank  # more is better

    def least(span: Interval) -> float:
        return min(rank(span.low), rank(span.high))

    with contextlib.suppress(StoreError):
        run = store.get(best.run_id)
        analysis = report.evaluate_run(run, run.state()).analysis
        interval = analysis.scores.get(metric)
        if interval is None:
            return None
        picked, alike = _picked(store, rows, best), []
        added = picking.difference(picked, None).get(metric, 0.0)
        for row in others:
            gain = _gain(run, store.get(row.run_id), metric) if row.run_id else None
            if gain is not None:
                gain = selection.lowered(gain, added)
            if least(gain) <= 0 if gain else least(interval) <= rank(row.score or 0.0):
                alike.append(row)
        alike.sort(key=lambda row: -rank(row.score or 0.0))
        return Chance(interval, analysis.examples, [row.number for row in alike])
    return None


def _gain(first: Run, second: Run, metric: str) -> Interval | None:
    """Return by how much the first run's kept model scores more than the second's on the same
    pairs. None if their predictions are gone or of other pairs."""
    versions = tuple(saved_predictions.files_version(run) for run in (first, second))
    return _kept_gain(first.folder, second.folder, metric, versions)


@lru_cache(maxsize=512)
def _kept_gain(first: Path, second: Path, metric: str, versions: object) -> Interval | None:
    """The same. Cached, because an open page asks every second; `versions` change with files."""
    with contextlib.suppress(StoreError):
        one, other = (ranking.kept_answers(Run(folder)) for folder in (first, second))
        if compared := report.compare_runs(one, other, [catalog.find(metric)], {}):
            return compared.difference.get(metric)
    return None
