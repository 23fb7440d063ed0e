"""What a search may take and cost, and what is left of its budget."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from finetune.config import Range, RunConfig
from finetune.engines import spending
from finetune.engines.base import Ticket
from finetune.engines.options import HubJobOptions
from finetune.engines.registry import LOCAL
from finetune.errors import ConfigError
from finetune.jobs import cost
from finetune.messages import message as _
from finetune.runs.store import RunStore
from finetune.search.space import Budget, Space
from finetune.search.study import REPEATS, RUN, SECONDS, Study, trial_run

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


def trial_price(ticket: Ticket) -> float:
    """US dollars that a trial costs at most; 0 where nothing is billed."""
    return HubJobOptions(**ticket.options).most if ticket.options.get("price") else 0.0


def check_dollars(budget: Budget, ticket: Ticket) -> None:
    """See that a search on an engine that is billed says what all of it may cost."""
    price, problem = trial_price(ticket), ""
    if price and not budget.dollars:
        problem = _(
            "is 0, and each trial is billed: give what the whole search may cost (Dollars at "
            "most, --search_dollars)"
        )
    elif price > budget.dollars:
        problem = _(
            "is {dollars:g}, and a trial may cost {price:.2f}: give more, or choose fewer minutes "
            "or a cheaper machine", dollars=budget.dollars,
            price=spending.rounded_up(price),
        )  # fmt: skip
    elif not (price or budget.trials or budget.minutes):
        problem = _("limits nothing, for nothing is billed: give a number of trials or minutes")
    if problem:
        raise ConfigError({"dollars": problem})


def expected_seconds(
    store: RunStore, config: RunConfig, space: Space, budget: Budget, place: str = LOCAL
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


def has_dollars(store: RunStore, study: Study, runs: int) -> bool:
    """Whether the budget has room for so many runs more at their most."""
    left = dollars_left(store, study)
    return left > 0 and runs * trial_price(study.settings.ticket) <= left + 1e-9


def dollars_left(store: RunStore, study: Study) -> float:
    """What is left of the budget of dollars; also runs that were deleted have cost theirs, and
    those at work count with their most."""
    from optuna.trial import TrialState

    price, costs = trial_price(study.settings.ticket), spending.spent_by_run(store.root)
    spent = 0.0
    for trial in study.trials():
        at_least = price if trial.state == TrialState.RUNNING else 0.0
        spent += max(costs.get(trial.user_attrs.get(RUN, ""), 0.0), at_least)
    repeats = study.optuna_study.user_attrs.get(REPEATS, [])
    spent += sum(costs.get(run_id, price) for run_id in repeats)
    return study.settings.budget.dollars - spent
