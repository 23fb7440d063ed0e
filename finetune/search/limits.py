"""Limits on the time and cost of a search."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from finetune.config import Range, RunConfig
from finetune.engines.base import HERE, EngineSpec
from finetune.engines.registry import billed_options
from finetune.errors import ConfigError
from finetune.jobs import cost
from finetune.messages import message as _
from finetune.runs.store import RunStore
from finetune.search.space import Budget, Space
from finetune.search.study import SECONDS, trial_run

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


def trial_price(spec: EngineSpec) -> float:
    """Return the maximum cost of a trial in US dollars; 0 if nothing is billed."""
    options = billed_options(spec)
    return options.most if options is not None else 0.0


def check_price(budget: Budget, spec: EngineSpec) -> None:
    """Raise ConfigError if the trials are billed and their number is not limited. The maximum cost
    of a search is the number of trials times the price of one."""
    if trial_price(spec) and not budget.trials:
        problem = _("is 0, and each trial is billed: give a number of trials")
        raise ConfigError({"trials": problem})


def expected_seconds(
    store: RunStore, config: RunConfig, space: Space, budget: Budget, place: str = HERE
) -> float | None:
    """Estimate a search's training seconds if no trial ends early, by the speed of an earlier run.
    None without a comparable run or a number of trials.

    Args:
        place: the trials' place, as named by `EngineSpec.place`.
    """
    estimate = cost.estimate_cost(store, config, place)
    if not (budget.trials and estimate.time and estimate.steps):
        return None
    seconds, epochs = estimate.time.seconds, space.get("num_train_epochs")
    if epochs and config.max_steps <= 0:
        values = (epochs.low, epochs.high) if isinstance(epochs, Range) else epochs
        seconds *= statistics.fmean(map(float, values)) / estimate.steps.epochs
    seconds *= budget.trials
    return min(seconds, 60 * budget.minutes) if budget.minutes else seconds


def trial_seconds(store: RunStore, trial: FrozenTrial) -> float:
    """Return the seconds worked on a trial, even if its run was deleted after its end."""
    if SECONDS in trial.user_attrs:
        return float(trial.user_attrs[SECONDS])
    run = trial_run(store, trial)
    return run.state().worked if run is not None else 0.0
