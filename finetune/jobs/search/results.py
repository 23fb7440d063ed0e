"""What came of a search: its trials, the best so far, and how much its hyperparameters matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finetune.jobs import service
from finetune.jobs.search.driver import parts
from finetune.jobs.search.study import Study, trial_run
from finetune.runs.store import RunStore

_ENOUGH = 20  # trials with a score, below which nothing is said of importance


@dataclass(frozen=True)
class TrialRow:
    """A trial as a table shows it."""

    number: int
    run_id: str  # empty where the run was deleted
    state: str  # waiting, running, finished, pruned or failed
    values: dict[str, Any]  # of the fields that are searched
    score: float | None  # the best so far, also of one that was pruned
    curve: dict[int, float]  # after each part of the trial, from 1


def list_trials(store: RunStore, study: Study) -> list[TrialRow]:
    """All trials, in the order in which they were drawn."""
    from optuna.trial import TrialState

    states = {
        TrialState.RUNNING: "running", TrialState.COMPLETE: "finished",
        TrialState.PRUNED: "pruned", TrialState.FAIL: "failed", TrialState.WAITING: "waiting",
    }  # fmt: skip
    rows = []
    for trial in study.trials():
        run = trial_run(store, trial)
        curve = dict(trial.intermediate_values)
        if run is not None:
            curve |= parts(service.run_summary(store, run), study.metric)
        choose = min if study.metric == "loss" else max
        score = trial.value if trial.state == TrialState.COMPLETE else None
        if score is None and curve:
            score = choose(curve.values())
        run_id = run.id if run is not None else ""
        values = dict(trial.params)
        rows.append(TrialRow(trial.number, run_id, states[trial.state], values, score, curve))
    return rows


def best_trial(rows: list[TrialRow], minimize: bool = False) -> TrialRow | None:
    """The finished trial with the best score; None where none has finished."""
    finished = [row for row in rows if row.state == "finished" and row.score is not None]
    choose = min if minimize else max
    return choose(finished, key=lambda row: row.score or 0.0, default=None)


def describe(row: TrialRow) -> str:
    """The values of a trial in a line."""
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.values.items()
    )


def importance(study: Study) -> dict[str, float] | None:
    """The share of each field in the scores' variance (fANOVA: Hutter, Hoos and Leyton-Brown, ICML
    2014), the largest first; None where too few trials have ended to say."""
    import optuna
    from optuna.importance import FanovaImportanceEvaluator
    from optuna.trial import TrialState

    done = [trial for trial in study.trials() if trial.state == TrialState.COMPLETE]
    if len(done) < _ENOUGH or len(study.settings.space) < 2:
        return None
    evaluator = FanovaImportanceEvaluator(seed=0)
    return optuna.importance.get_param_importances(study.optuna_study, evaluator=evaluator)
