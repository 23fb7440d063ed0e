"""Advances a study: reports scores, prunes trials, records ended ones and draws new ones.

`advance` does the work that is due and returns. The app's scheduler and `python -m finetune search`
call it repeatedly. A lock keeps two of them from drawing for one place.
"""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
from typing import TYPE_CHECKING

from filelock import Timeout

from finetune.config import RunConfig
from finetune.data import catalog
from finetune.engines import registry, spending
from finetune.engines.base import HERE, EngineSpec, read_spec
from finetune.errors import ConfigError, FinetuneError, JobError, PublishError, StoreError
from finetune.hyperparameter import Range
from finetune.jobs import cost, service
from finetune.messages import encode
from finetune.messages import message as _
from finetune.owners import LOCAL_USER, NOBODY, Visitor
from finetune.runs.grids import BETWEEN
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.studies.space import Budget, Space, around, check_space, number_problem
from finetune.studies.study import PARTS, Noted, Study, create_study, studies, trial_run

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


_log = logging.getLogger("finetune.studies")
_logged: set[str] = set()  # ids of the studies whose error is in the log
_FAILURES = 5  # consecutive failed trials after which the study ends
_FOLLOWED = 5  # reattachments to a trial's job before the trial counts as failed
_MOST_PARALLEL = 100


def begin_search(
    store: RunStore,
    config: RunConfig,
    space: Space,
    budget: Budget,
    spec: EngineSpec | None = None,
    token: str = "",
    parallel: int = 1,
    **options: object,
) -> Study:
    """Create a study whose first trial is the configuration; `advance` starts it. `spec`, with a
    `token` of the Hub for an engine that asks it, carries out the trials; this machine if None.
    `options` are further values of `study.Settings`."""
    spec = spec or EngineSpec()
    if problem := number_problem(parallel, 1, _MOST_PARALLEL, whole=True):
        raise ConfigError({"parallel": problem})
    if config.folds:
        problem = _(
            "is {folds}, and a search compares its trials on one validation split; search with 0, "
            "then cross-validate the best", folds=config.folds,
        )  # fmt: skip
        raise ConfigError({"folds": problem})
    check_space(space, config)
    check_price(budget, spec)
    if registry.find_engine(spec.engine).needs_token:
        registry.open_engine(spec, token)
    if not store.visitor.may_start:
        raise JobError(*NOBODY)
    if not store.visitor.policy.owner_asks and any(map(_goes_on, studies(store))):
        raise JobError("Your last search still goes on.", "Wait for its end, or stop it.")
    config = catalog.with_absolute_paths(config)
    service.check_start(store, [config], spec)
    options |= {"spec": spec, "parallel": parallel}
    first = first_trial(store, config, space)
    return create_study(store, first, around(space, first), budget, token, **options)


def first_trial(store: RunStore, config: RunConfig, space: Space) -> RunConfig:
    """Return the first trial's configuration, with numbers for searched automatic values."""
    resolved = cost.resolve(store, config)
    return config.changed(**{name: getattr(resolved, name) for name in space})


def lacks_token(study: Study) -> bool:
    """True if the trials need a Hub token that is gone: a restart of the app loses those kept."""
    spec = study.settings.spec
    if registry.find_engine(spec.engine).needs_token:
        try:
            registry.open_engine(spec, registry.kept_token(study.id))
        except PublishError:
            return True
    return False


def go_on(store: RunStore, study: Study, token: str) -> None:
    """Resume a search that lacks its token, and its running trials."""
    for trial in study.trials():
        run = None if trial.state.is_finished() else trial_run(store, trial)
        if run is not None and run.state().status == "interrupted":
            service.resume_run(store, run, token=token, agreed=True)
    # Last: with the token the search draws instead of the others.
    registry.keep_token(study.id, token)


def advance_all(store: RunStore) -> None:
    """Advance every study that is not over. An error in one is logged once and delays no other."""
    for study in studies(store):
        if study.is_over:
            continue
        try:
            advance(store, study)
        except Exception:
            if study.id not in _logged:
                _log.exception("the search %s cannot go on", study.id)
            _logged.add(study.id)


def _goes_on(study: Study) -> bool:
    """True if the study may draw more trials; False if it is damaged."""
    with contextlib.suppress(FinetuneError):
        study.trials()
        return not study.is_stopped
    return False


def advance(store: RunStore, study: Study) -> bool:
    """Do the work that is due for a study. Returns True if it goes on."""
    if study.is_over:
        return False
    owner = study.settings.owner  # the owner of the trials' runs, with their limits
    visitor = store.for_visitor(Visitor((owner,)) if owner else LOCAL_USER)
    if not study.is_stopped and lacks_token(study):
        return True
    try:
        with study.lock():
            working = sum(_follow(visitor, study, trial) for trial in study.trials())
            while working < study.settings.parallel and may_draw(visitor, study):
                number = study.draw().number
                working += _start(visitor, study, study.trials()[number])
            if not working:
                _note_search(visitor, study)
                study.end()
    except Timeout:  # another process is doing it
        return True
    return working > 0


def _note_search(store: RunStore, study: Study) -> None:
    """Record in the runs how many trials they were picked among: others may be deleted."""
    trials, states = study.trials(), study.states
    count = sum(trial.state in (states.COMPLETE, states.PRUNED) for trial in trials)
    for trial in trials:
        if trial.state == states.COMPLETE and (run := trial_run(store, trial)) is not None:
            run.describe(searched=count)


def _follow(store: RunStore, study: Study, trial: FrozenTrial) -> bool:
    """Report a trial's scores, prune it, or record how it ended. Returns True if it is running."""
    if trial.state != study.states.RUNNING:
        return False
    if study.is_without_run(trial) and trial.params.keys() != study.settings.space.keys():
        _fail(study, trial)  # the process that drew it was killed before it had all values
        return False
    if Noted.RUN not in trial.user_attrs:
        return _start(store, study, trial)
    run = trial_run(store, trial)
    if run is None:  # it was deleted
        _fail(study, trial)
        return False
    summary = run.state()
    study.learn_task(summary)
    writable, scores = study.writable(trial), parts(summary, study.metric)
    for part, score in scores.items():
        if part not in trial.intermediate_values:
            writable.report(score, part)
    if summary.status in ENDED and not _take_up(store, study, trial, run, summary):
        _tell(study, trial, run, summary)
        return False
    at_work = summary.status == "running" and not run.stop_requested()
    if at_work and max(scores, default=PARTS) < PARTS and writable.should_prune():
        writable.set_user_attr(Noted.PRUNED, True)
        reason = _(
            "Pruned by the search: it was among the worst quarter of the trials at this point."
        )
        with contextlib.suppress(JobError):  # it has just ended on its own
            discard = not study.settings.keep_pruned
            service.stop_run(store, run, discard=discard, reason=reason)
    return True


def _take_up(
    store: RunStore, study: Study, trial: FrozenTrial, run: Run, summary: RunSummary
) -> bool:
    """Reattach to a trial's job, which may still run and be billed. Returns True if it did. If it
    is not known whether the job began, the run's worker looks for the job first."""
    times, spec = trial.user_attrs.get(Noted.TAKEN_UP, 0), read_spec(run)
    may_cost = spec.job or (spec.is_unheard and spending.spent_in(run, spec.attempt))
    if summary.status not in ("failed", "interrupted") or not may_cost or times >= _FOLLOWED:
        return False
    study.writable(trial).set_user_attr(Noted.TAKEN_UP, times + 1)
    service.resume_run(store, run, token=registry.kept_token(study.id))
    return True


def parts(summary: RunSummary, metric: str) -> dict[int, float]:
    """Return the score of a run after each of its parts, from 1."""
    total = summary.total_steps or 1
    scored = [scored for scored in summary.validation if metric in scored.metrics]
    return {max(1, PARTS * one.step // total): one.metrics[metric] for one in scored}


def _tell(study: Study, trial: FrozenTrial, run: Run, summary: RunSummary) -> None:
    """Record how a trial ended: complete, pruned, or without a result."""
    study.writable(trial).set_user_attr(Noted.SECONDS, summary.worked)
    best = summary.best
    if summary.status == "finished" and best is not None and study.metric in best.metrics:
        study.optuna_study.tell(trial.number, best.metrics[study.metric])
    elif summary.status == "stopped" and Noted.PRUNED in trial.user_attrs:
        if not study.settings.keep_pruned:  # its worker may have been killed before it did so
            run.discard()
        study.optuna_study.tell(trial.number, state=study.states.PRUNED)
    elif summary.status == "stopped":  # by a person or a limit
        _fail(study, trial, run.stop_reason())
    elif summary.status == "finished":
        _fail(study, trial, _("It ended without a score on the validation split."))
    else:  # its place is drawn again, as for those
        silent = _(
            "The worker process ended without a word: the machine restarted, or it ran out of "
            "memory."
        )
        _fail(study, trial, summary.error or silent, summary.remedy)


def _fail(study: Study, trial: FrozenTrial, error: str = "", remedy: str = "") -> None:
    """Record that a trial had no result, and why."""
    _note_error(study, trial, error, remedy)
    study.optuna_study.tell(trial.number, state=study.states.FAIL)


def _note_error(study: Study, trial: FrozenTrial, error: str, remedy: str) -> None:
    texts = encode([error, remedy])
    if error and trial.user_attrs.get(Noted.ERROR) != texts:
        study.writable(trial).set_user_attr(Noted.ERROR, texts)


def may_draw(store: RunStore, study: Study) -> bool:
    """True if the budget allows one more trial and none is waiting for room."""
    states = study.states
    if study.is_stopped:
        return False
    trials, budget = study.trials(), study.settings.budget
    if any(map(study.is_without_run, trials)):
        return False
    drawn = [t for t in trials if t.state != states.WAITING]
    failed = [t.state == states.FAIL for t in drawn]
    if len(failed) >= _FAILURES and all(failed[-_FAILURES:]):
        return False
    billed = trial_price(study.settings.spec) > 0  # a failed trial may have cost its price
    counted = [t for t in drawn if billed or t.state != states.FAIL]
    minutes = sum(trial_seconds(store, trial) for trial in trials) / 60
    used = ((len(counted), budget.trials), (minutes, budget.minutes))
    return all(amount < limit for amount, limit in used if limit)


def _start(store: RunStore, study: Study, trial: FrozenTrial) -> bool:
    """Queue the run of a trial. Returns True if it is running, or waits for room in the queue."""
    try:
        config = trial_config(store, study, study.values(trial), trial.number)
        run = _lost_run(store, study, config.name)
        if run is None and study.is_stopped:
            _fail(study, trial)
            return False
        if run is None:
            token = registry.kept_token(study.id)
            run = service.start_run(store, config, study.settings.spec, token)
    except JobError as error:  # there is no room just now
        _note_error(study, trial, error.fact, error.remedy)
        return True
    except FinetuneError as error:
        _fail(study, trial, error.fact, error.remedy)
        return False
    run.describe(study=study.id)
    study.writable(trial).set_user_attr(Noted.RUN, run.id)
    return True


def _lost_run(store: RunStore, study: Study, name: str) -> Run | None:
    """Return the run of a trial whose process ended before the journal named the run."""
    known = {trial.user_attrs.get(Noted.RUN) for trial in study.trials()}
    for run in store.runs():
        with contextlib.suppress(StoreError):  # another, damaged run
            ours = run.id not in known and run.about().study in ("", study.id)
            if ours and run.config().name == name:
                return run
    return None


def trial_config(
    store: RunStore, study: Study, values: dict[str, object], number: int
) -> RunConfig:
    """Return the configuration of a trial, scored after each of its `PARTS`."""
    config = study.config.changed(**values, name=f"{study.title}{BETWEEN}trial {number}")
    steps = cost.estimate_cost(store, config).steps
    interval = math.ceil(steps.total / PARTS) if steps else 0
    batch = cost.resolve(store, config).per_device_train_batch_size  # which the steps depend on
    return config.changed(eval_steps=interval, per_device_train_batch_size=batch)


def trial_price(spec: EngineSpec) -> float:
    """Return the maximum cost of a trial in US dollars; 0 if nothing is billed."""
    options = registry.billed_options(spec)
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
    """Estimate a search's training seconds if no trial ends early, by the speed of an earlier run
    in the same `place` (see `EngineSpec`): the first trial takes as long as a run of the form, the
    others by the passes in their `space`. None without a comparable run or a limit of trials."""
    estimate = cost.estimate_cost(store, config, place)
    if not (budget.trials and estimate.time and estimate.steps):
        return None
    seconds, epochs = estimate.time.seconds, space.get("num_train_epochs")
    times = 1.0  # as long as the first
    if epochs and config.max_steps <= 0:
        values = (epochs.low, epochs.high) if isinstance(epochs, Range) else epochs
        times = statistics.fmean(map(float, values)) / estimate.steps.epochs
    seconds *= 1 + (budget.trials - 1) * times
    return min(seconds, 60 * budget.minutes) if budget.minutes else seconds


def trial_seconds(store: RunStore, trial: FrozenTrial) -> float:
    """Return the seconds worked on a trial, even if its run was deleted after its end."""
    if Noted.SECONDS in trial.user_attrs:
        return float(trial.user_attrs[Noted.SECONDS])
    run = trial_run(store, trial)
    return run.state().worked if run is not None else 0.0
