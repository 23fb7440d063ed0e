"""What a search may take and cost."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from finetune.config import Range, RunConfig
from finetune.engines.base import HERE, Ticket
from finetune.engines.registry import billed_options
from finetune.errors import ConfigError
from finetune.jobs import cost
from finetune.messages import message as _
from finetune.runs.store import RunStore
from finetune.search.space import Budget, Space
from finetune.search.study import SECONDS, trial_run

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


def trial_price(ticket: Ticket) -> float:
    """US dollars that a trial costs at most; 0 where nothing is billed."""
    options = billed_options(ticket)
    return options.most if options is not None else 0.0


def check_price(budget: Budget, ticket: Ticket) -> None:
    """Raise ConfigError if the trials are billed and their number is not limited: the search costs
    at most the number of its trials times the price of one."""
    if trial_price(ticket) and not budget.trials:
        problem = _("is 0, and each trial is billed: give a number of trials")
        raise ConfigError({"trials": problem})


def expected_seconds(
    store: RunStore, config: RunConfig, space: Space, budget: Budget, place: str = HERE
) -> float | None:
    """Seconds of training that a search takes where no trial ends early, by the speed of an earlier
    run; None where there is none like it, or no number of trials.

    Args:
        place: where trials are carried out, as `Ticket.place` names it.
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
    """How long a trial was worked on; also of one whose run was deleted after its end."""
    if SECONDS in trial.user_attrs:
        return float(trial.user_attrs[SECONDS])
    run = trial_run(store, trial)
    return run.state().worked if run is not None else 0.0
