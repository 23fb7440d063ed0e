"""Lets a study go on: reports scores, prunes what is behind, tells what has ended, draws anew.

`advance` does what is due and returns; the app's scheduler and `python -m finetune search` call it
again and again. A lock keeps two of them from drawing for one place.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from finetune.config import Range, RunConfig
from finetune.data import catalog
from finetune.errors import FinetuneError, JobError
from finetune.jobs import cost, scheduler, service
from finetune.jobs.engines import LOCAL, spending
from finetune.jobs.search.space import Budget, Space
from finetune.jobs.search.study import PARTS, RUN, Study, create_study, studies, trial_run
from finetune.messages import message as _
from finetune.owners import LOCAL_USER, NOBODY, Visitor
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary

if TYPE_CHECKING:
    import optuna

_FAILURES = 5  # trials that fail one after the other, after which the study ends


def begin_search(
    store: RunStore, config: RunConfig, space: Space, budget: Budget, **options: object
) -> Study:
    """Make a study whose first trial is the configuration; `advance` lets it begin.

    Args:
        options: further values of `study.Settings`.
    """
    if not store.visitor.may_start:
        raise JobError(*NOBODY)
    if not store.visitor.alone and any(_goes_on(store, study) for study in studies(store)):
        raise JobError("Your last search still goes on.", "Wait for its end, or stop it.")
    config = catalog.with_absolute_paths(config)
    if "num_train_epochs" in space and not config.num_train_epochs:  # chosen by the pairs
        steps = cost.estimate_cost(store, config).steps
        config = config.changed(num_train_epochs=max(1, round(steps.epochs)) if steps else 3)
    return create_study(store, config, space, budget, **options)


def expected_seconds(
    store: RunStore, config: RunConfig, space: Space, budget: Budget, place: str = LOCAL
) -> float | None:
    """Seconds of training that a search takes where no trial ends early, by the speed of an earlier
    run; None where there is none like it, and no limit of time.

    Args:
        place: where trials are carried out, as `Ticket.place` names it.
    """
    estimate = cost.estimate_cost(store, config, place)
    limits = [60 * budget.minutes] if budget.minutes else []
    if budget.trials and estimate.time and estimate.steps:
        seconds, epochs = estimate.time.seconds, space.get("num_train_epochs")
        if epochs and config.max_steps <= 0:
            values = (epochs.low, epochs.high) if isinstance(epochs, Range) else epochs
            seconds *= statistics.fmean(map(float, values)) / estimate.steps.epochs
        limits.append(budget.trials * seconds)
    return min(limits, default=None)


def advance_all(store: RunStore) -> None:
    """Advance every study that is not over."""
    for study in studies(store):
        if not study.is_stopped or _has_trials_at_work(study):
            with contextlib.suppress(FinetuneError):  # it is damaged, which its page says
                advance(store, study)


def _goes_on(store: RunStore, study: Study) -> bool:
    """Whether it has trials at work, or draws more; not where it is damaged."""
    with contextlib.suppress(FinetuneError):
        return _has_trials_at_work(study) or may_draw(store, study)
    return False


def _has_trials_at_work(study: Study) -> bool:
    from optuna.trial import TrialState

    return any(trial.state == TrialState.RUNNING for trial in study.trials())


def advance(store: RunStore, study: Study) -> bool:
    """Do what is due of a study; whether it goes on."""
    owner = study.settings.owner  # whose runs the trials are, with their limits
    visitor = store.for_visitor(Visitor((owner,)) if owner else LOCAL_USER)
    try:
        with FileLock(study.folder / ".lock", timeout=0):
            working = sum(_follow(visitor, study, trial) for trial in study.trials())
            while working < study.settings.parallel and may_draw(visitor, study):
                _begin(visitor, study)
                working += 1
    except Timeout:  # another process does it just now
        return True
    return working > 0


def _follow(store: RunStore, study: Study, trial: optuna.trial.FrozenTrial) -> bool:
    """Report a trial's scores, prune it, or tell how it has ended; whether it is at work."""
    import optuna

    if trial.state != optuna.trial.TrialState.RUNNING:
        return False
    run = trial_run(store, trial)
    if run is None:  # it was deleted, or never made
        study.optuna_study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        return False
    summary = service.run_summary(store, run)
    for part, score in parts(summary, study.metric).items():
        if part not in trial.intermediate_values:
            optuna.trial.Trial(study.optuna_study, trial._trial_id).report(score, part)
    if summary.status in ENDED:
        _tell(study, trial, run, summary)
        return False
    at_work = summary.status == "running" and not run.stop_requested()
    if at_work and optuna.trial.Trial(study.optuna_study, trial._trial_id).should_prune():
        _prune(store, study, run)
    return True


def parts(summary: RunSummary, metric: str) -> dict[int, float]:
    """The score of a run after each of its parts, from 1."""
    total = summary.total_steps or 1
    scored = [scored for scored in summary.validation if metric in scored.metrics]
    return {math.ceil(PARTS * one.step / total): one.metrics[metric] for one in scored}


def _prune(store: RunStore, study: Study, run: Run) -> None:
    """End a trial that is behind the others."""
    reason = _(
        "Pruned by the search: it was among the worst quarter of the trials at this point.",
    )
    service.stop_run(store, run, discard=not study.settings.keep_pruned, reason=reason)


def _tell(study: Study, trial: optuna.trial.FrozenTrial, run: Run, summary: RunSummary) -> None:
    """Tell how a trial has ended: at its end, pruned, or for nothing."""
    from optuna.trial import TrialState

    best = summary.best
    if summary.status == "finished" and best is not None and study.metric in best.metrics:
        study.optuna_study.tell(trial.number, best.metrics[study.metric])
    elif summary.status == "stopped" and run.stop_reason():
        study.optuna_study.tell(trial.number, state=TrialState.PRUNED)
    else:  # it failed, was killed, or a person stopped it: its place is drawn again
        study.optuna_study.tell(trial.number, state=TrialState.FAIL)


def may_draw(store: RunStore, study: Study) -> bool:
    """Whether there is budget for one more trial."""
    from optuna.trial import TrialState

    trials, budget = study.trials(), study.settings.budget
    counted = [t for t in trials if t.state not in (TrialState.FAIL, TrialState.WAITING)]
    failed = [t.state == TrialState.FAIL for t in trials if t.state != TrialState.WAITING]
    if study.is_stopped or (len(failed) >= _FAILURES and all(failed[-_FAILURES:])):
        return False
    runs = [run for trial in trials if (run := trial_run(store, trial)) is not None]
    minutes = sum(service.run_summary(store, run).worked for run in runs) / 60
    dollars = sum(map(spending.spent_on, runs))
    used = (
        (len(counted), budget.trials), (minutes, budget.minutes), (dollars, budget.dollars),
    )  # fmt: skip
    return all(amount < limit for amount, limit in used if limit)


def _begin(store: RunStore, study: Study) -> None:
    """Draw a trial, and queue its run."""
    from optuna.trial import TrialState

    trial = study.draw()
    try:
        config = trial_config(store, study.config, dict(trial.params), trial.number)
        token = scheduler.kept_token(study.id)
        run = service.start_run(store, config, study.settings.ticket, token)
    except FinetuneError:
        study.optuna_study.tell(trial, state=TrialState.FAIL)
        raise
    trial.set_user_attr(RUN, run.id)
    run.describe(study=study.id)


def trial_config(
    store: RunStore, config: RunConfig, values: dict[str, object], number: int
) -> RunConfig:
    """The configuration of a trial, scored after each of its `PARTS`."""
    name = f"Trial {number}: {describe_values(values)}"[:300]
    config = config.changed(**values, name=name)
    steps = cost.estimate_cost(store, config).steps
    interval = math.ceil(steps.total / PARTS) if steps else 0
    return config.changed(eval_steps=interval)


def describe_values(values: Mapping[str, object]) -> str:
    """The values of a trial in a line."""
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )
