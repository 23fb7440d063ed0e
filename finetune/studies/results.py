"""Results of a search: its trials, the best so far, what new pairs will show of it, and the
importance of hyperparameters."""

from __future__ import annotations

import contextlib
import functools
import math
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from finetune.data import csv_cells
from finetune.engines.registry import kept_token
from finetune.errors import JobError, StoreError
from finetune.evaluation import picking, report, saved_predictions
from finetune.evaluation.picking import Picking
from finetune.hyperparameter import Choices, Range
from finetune.jobs import service
from finetune.messages import decode
from finetune.metrics import catalog, selection
from finetune.metrics.intervals import Interval
from finetune.runs import grids
from finetune.runs.grids import SEED, PlannedRun, SeedSpread
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.studies import driver
from finetune.studies.study import PARTS, Noted, Study, trial_run

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

ENOUGH = 20  # fewest scored trials for which importance is reported
_PATIENCE = 60.0  # seconds within which a trial being drawn has begun


@dataclass(frozen=True)
class TrialRow:
    """A trial as a table shows it."""

    number: int
    run_id: str  # empty if the run was deleted
    state: str  # waiting, running, finished, pruned or failed
    values: dict[str, Any]  # values of the searched fields
    score: float | None  # its best score so far, even if it was pruned
    curve: dict[int, float]  # after each part of the trial, from 1
    seconds: float = 0.0  # of training
    reason: Sequence[str] = ()  # why it failed or waits: problem and remedy


def list_trials(store: RunStore, study: Study) -> list[TrialRow]:
    """Return all trials, in the order in which they were drawn."""
    return [_trial_row(store, study, trial) for trial in study.trials()]


def _trial_row(store: RunStore, study: Study, trial: FrozenTrial) -> TrialRow:
    run, curve = trial_run(store, trial), dict(trial.intermediate_values)
    if run is not None:
        curve |= driver.parts(run.state(), study.metric)
    score = trial.value if trial.state == study.states.COMPLETE else None
    if score is None and curve:
        score = (min if study.minimize else max)(curve.values())
    state = {"COMPLETE": "finished", "FAIL": "failed"}.get(trial.state.name)
    state = state or trial.state.name.lower()
    queued = state == "running" and run is not None and run.state().status == "waiting"
    if queued or study.is_without_run(trial):
        state = "waiting"
    return TrialRow(
        number=trial.number,
        run_id=run.id if run is not None else "",
        state=state,
        values=study.values(trial),
        score=score,
        curve=curve,
        seconds=driver.trial_seconds(store, trial),
        reason=decode(trial.user_attrs.get(Noted.ERROR, [])),
    )


def best_trial(rows: list[TrialRow], minimize: bool = False) -> TrialRow | None:
    """Return the finished trial with the best score; None if none has finished."""
    finished = [row for row in rows if row.state == "finished" and row.score is not None]
    choose = min if minimize else max
    return choose(finished, key=lambda row: row.score or 0.0, default=None)


def class_count(store: RunStore, rows: Sequence[TrialRow]) -> int:
    """Return the number of classes in a search's pairs; 0 before its first run has read them."""
    summaries = (store.get(row.run_id).state() for row in rows if row.run_id)
    return next((summary.classes for summary in summaries if summary.classes), 0)


def importance(study: Study) -> dict[str, float] | None:
    """Return the share of each field in the variance of the scores, largest first, by Optuna's
    fANOVA (Hutter, Hoos and Leyton-Brown, ICML 2014). None if too few trials have finished, empty
    if all scores are equal."""
    fields = [*study.settings.space]
    finished = [
        trial
        for trial in study.trials()
        if trial.state == study.states.COMPLETE and trial.params  # see `Study.outside`
    ]
    if len(finished) < ENOUGH or len(fields) < 2:
        return None
    if len({trial.value for trial in finished}) < 2:
        return {}
    return _importance(study, len(finished))


@functools.lru_cache(maxsize=32)
def _importance(study: Study, _finished: int) -> dict[str, float]:
    """Cached by the number of finished trials, because it takes up to a second."""
    import optuna

    return optuna.importance.get_param_importances(
        study.optuna_study,
        evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0),
        params=[*study.settings.space],
    )


class Progress(NamedTuple):
    """Progress of a search."""

    over: bool
    repeating: bool  # True if its best trial is or was repeated
    lacks_token: bool  # see `driver.lacks_token`
    seconds: float | None = None  # of training that are left, by the trials so far; None if unknown


def progress(store: RunStore, study: Study, rows: list[TrialRow]) -> Progress:
    """Return the progress of a search and its remaining time."""
    repeating = bool(_repeating(store, study))
    if study.is_stopped:  # running trials go on, for an unknown time
        return Progress(study.is_over, repeating, lacks_token=False)
    ended = [row.seconds for row in rows if row.state in ("finished", "pruned")]
    settings, budget = study.settings, study.settings.budget
    left: list[float | None] = []
    if typical := statistics.fmean(ended) if ended else 0.0:
        left += [typical * (budget.trials - len(ended))] if budget.trials else []
    else:
        space, place = dict(settings.space), settings.spec.place
        left.append(driver.expected_seconds(store, study.config, space, budget, place))
    if budget.minutes:
        left.append(60 * budget.minutes - sum(row.seconds for row in rows))
    least = min((seconds for seconds in left if seconds is not None), default=None)
    seconds = least if least is None else max(0.0, least)
    return Progress(False, repeating, driver.lacks_token(study), seconds)


def _repeating(store: RunStore, study: Study) -> list[Run]:
    """Return the runs that repeat the best trial with other seeds."""
    return [run for run in store.runs() if run.about().group == study.id]


def repeats(store: RunStore, study: Study) -> SeedSpread | None:
    """Return the scores of the best trial with other seeds; None before the first has finished."""
    finished = [run for run in _repeating(store, study) if run.state().status == "finished"]
    return grids.seed_spread((run.metrics.get(study.metric) for run in finished), study.metric)


def alike(rows: list[TrialRow], best: TrialRow | None, spread: SeedSpread | None) -> int:
    """Count the other finished trials that cannot be told from the best one. Their scores are
    where another seed of the best one may be: in the prediction interval (95%) of the `repeats`. 0
    while that is unknown."""
    from scipy.special import stdtrit  # loads in half of the time of scipy.stats

    if spread is None or spread.count < 2 or best is None:
        return 0
    reach = stdtrit(spread.count - 1, 0.975) * math.sqrt(1 + 1 / spread.count) * spread.deviation
    return sum(
        row.state == "finished" and row.number != best.number and row.score is not None
        and abs(row.score - spread.mean) <= reach
        for row in rows
    )  # fmt: skip


def repeat_best(store: RunStore, study: Study, seeds: int = 3, token: str = "") -> list[Run]:
    """Queue the best trial again with other seeds. They show its expected score on new pairs; its
    own is biased because it was picked among many. `token` is of the Hub, if the search's own is no
    longer known. JobError if no trial has finished, or the best one is already repeated."""
    best, spec = best_trial(list_trials(store, study), study.minimize), study.settings.spec
    if best is None:
        raise JobError("No trial of the search has finished.", "Wait for the first one.")
    if not best.run_id:
        raise JobError("The run of the best trial was deleted.", "Search again.")
    if _repeating(store, study):
        raise JobError("The best trial is repeated already.", "Its runs are among the others.")
    trial = store.get(best.run_id)
    config = trial.config()
    planned = [
        PlannedRun(config.changed(seed=seed, name=f"{trial.title()}{SEED}{seed}"[:300]), study.id)
        for seed in range(config.seed + 1, config.seed + 1 + seeds)
    ]
    runs = service.start_runs(store, planned, spec, kept_token(study.id) or token)
    searched = store.get(best.run_id).about().searched
    for run in runs:
        run.describe(searched=searched)
    return runs


def all_runs(store: RunStore, study: Study) -> list[Run]:
    """Return the runs of all trials, and those that repeat the best one."""
    return [run for run in store.runs() if study.id in (run.about().study, run.about().group)]


def delete_search(store: RunStore, study: Study, token: str = "") -> None:
    """Remove a search and its runs, ending those that train. `token` is of the Hub."""
    study.end()  # nothing more begins
    with study.lock().acquire(timeout=_PATIENCE):
        for run in all_runs(store, study):
            service.delete_run(store, run, token)
    shutil.rmtree(study.folder)


def trials_csv(store: RunStore, study: Study) -> str:
    """Return the trials as CSV: number, run, state, score, values, scores after each tenth."""
    fields, parts_done = list(study.settings.space), range(1, PARTS + 1)
    after = [f"{study.metric} after {part}/{PARTS}" for part in parts_done]
    table: list[list[Any]] = [["trial", "run", "state", study.metric, *fields, *after]]
    for row in list_trials(store, study):
        values = [row.values.get(name, "") for name in fields]
        curve = [row.curve.get(part, "") for part in parts_done]
        table.append([row.number, row.run_id, row.state, row.score, *values, *curve])
    return csv_cells.to_csv(table)


def axis(study: Study, name: str) -> Range | Choices:
    """Return what a field's axis shows: the drawn values, and the first trial's if outside."""
    drawn = study.settings.space[name]
    if name not in study.outside:
        return drawn
    value = study.outside[name]
    if isinstance(drawn, Range):
        low, high = min(drawn.low, value), max(drawn.high, value)
        return Range(low, high, drawn.log and low > 0)
    return (value, *drawn)


def position(study: Study, name: str, value: object) -> float:
    """Return a value's position on the axis of its field, from 0 to 100."""
    drawn = axis(study, name)
    if isinstance(drawn, Range) and isinstance(value, int | float):
        low, high, at = drawn.low, drawn.high, float(value)
        if drawn.log:
            low, high, at = map(math.log, (low, high, at))
        return 100 * (at - low) / ((high - low) or 1.0)
    values = [*drawn] if isinstance(drawn, tuple) else []
    return 100 * values.index(value) / max(1, len(values) - 1) if value in values else 0.0


class Expectation(NamedTuple):
    """Expected score of the best trial."""

    candidates: int  # evaluations that it was picked among
    value: float | None  # of the metric, on new pairs; None if picking changes nothing
    interval: Interval | None  # the same with its interval; None also for a loss


def expected_score(
    store: RunStore, study: Study, rows: Sequence[TrialRow], best: TrialRow | None
) -> Expectation | None:
    """Return the best trial's expected score on new pairs; None if its evaluations are gone."""
    if best is None or not best.run_id:
        return None
    with contextlib.suppress(StoreError):
        run = store.get(best.run_id)
        summary, picked = run.state(), _picked(store, rows, best)
        if picked is not None and summary.best is not None:
            scores = report.evaluate_run(run, summary).analysis.scores
            value = picked.expected(summary.best.metrics).get(study.metric)
            interval = picked.expected_intervals(scores).get(study.metric)
            return Expectation(picked.candidates, value, interval)
    return None


def _picked(store: RunStore, rows: Sequence[TrialRow], best: TrialRow) -> Picking | None:
    """Return the selection bias of the best trial, picked among all evaluations of all trials."""
    measured = [row for row in rows if row.run_id and row.curve]
    if best not in measured:
        return None
    return picking.run_picking(store.get(best.run_id), (store.get(row.run_id) for row in measured))


class Chance(NamedTuple):
    """The other finished trials that may be worse than the best one by chance alone."""

    interval: Interval  # of the best trial's score, on the validation split
    examples: int  # of that split
    trials: list[int]  # their numbers, the best first


def within_chance(
    store: RunStore, study: Study, rows: Sequence[TrialRow], best: TrialRow | None
) -> Chance | None:
    """Return the trials that cannot be told from the best one: all were scored on the same pairs,
    so the interval of the paired difference decides, without selection bias. A trial whose
    predictions are gone counts if its score lies in the best one's interval. None for a loss, which
    has no interval, if the best trial's evaluation cannot be read, or if no other has finished."""
    others = [
        row for row in rows if row.state == "finished" and row is not best and row.score is not None
    ]
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
            gain = None
            if row.run_id:
                other = store.get(row.run_id)
                versions = tuple(map(saved_predictions.files_version, (run, other)))
                gain = _gain(run.folder, other.folder, metric, versions)
            if gain is not None:
                is_alike = least(selection.lowered(gain, added)) <= 0
            else:
                is_alike = least(interval) <= rank(row.score or 0.0)
            alike += [row] if is_alike else []
        alike.sort(key=lambda row: -rank(row.score or 0.0))
        return Chance(interval, analysis.examples, [row.number for row in alike])
    return None


@functools.lru_cache(maxsize=512)
def _gain(first: Path, second: Path, metric: str, versions: object) -> Interval | None:
    """Return by how much the first run's kept model scores more than the second's on the same
    pairs. None if their predictions are gone or of other pairs. Cached, because an open page asks
    every second; `versions` change with the files."""
    with contextlib.suppress(StoreError):
        one, other = (report.kept_answers(Run(folder)) for folder in (first, second))
        if compared := report.compare_runs(one, other, [catalog.find(metric)], {}):
            return compared.difference.get(metric)
    return None
