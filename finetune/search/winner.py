"""Expected score on new pairs of a search's best trial, picked among all evaluations of all
trials."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from finetune.errors import StoreError
from finetune.evaluation import picking, report, saved_predictions
from finetune.evaluation.picking import Picking
from finetune.metrics import catalog
from finetune.metrics.intervals import Interval
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.search.results import TrialRow
from finetune.search.study import Study
from finetune.tasks.registry import task_of


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
        picked, kept, alike = _picked(store, rows, best), _Kept.of(run), []
        for row in others:
            other = _Kept.of(store.get(row.run_id)) if row.run_id else None
            gains = _gains(kept, other, metric) if kept and other else {}
            gain = picking.difference(gains, picked, None).get(metric)
            if least(gain) <= 0 if gain else least(interval) <= rank(row.score or 0.0):
                alike.append(row)
        alike.sort(key=lambda row: -rank(row.score or 0.0))
        return Chance(interval, analysis.examples, [row.number for row in alike])
    return None


class _Kept(NamedTuple):
    """A trial's kept model."""

    folder: Path  # of its run
    step: int
    version: object  # of its predictions, for the cache

    @classmethod
    def of(cls, run: Run) -> _Kept | None:
        best = run.state().best
        return cls(run.folder, best.step, saved_predictions.files_version(run)) if best else None


@lru_cache(maxsize=512)
def _gains(first: _Kept, second: _Kept, metric: str) -> dict[str, Interval]:
    """Return by how much the first model scores more than the second on the same pairs. Empty if
    their predictions are gone or of other pairs. Cached: an open page asks every second."""
    prepared = Run(second.folder).state().prepared
    if prepared is None:
        return {}
    target, task = prepared.target, task_of(prepared.target)
    with contextlib.suppress(StoreError):
        one, other = (
            saved_predictions.read_logits(Run(kept.folder), kept.step, target)
            for kept in (first, second)
        )
        if np.array_equal(one.labels, other.labels):
            first_answers, answers = map(task.plain_answers, (one.logits, other.logits))
            metrics = [catalog.find(metric)]
            return task.difference(first_answers, answers, one.labels, target, metrics)
    return {}
