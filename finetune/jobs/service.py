"""Training runs: start, resume, stop and delete them, and tell their state."""

import contextlib
from collections.abc import Sequence

from finetune import owners
from finetune.config import RunConfig
from finetune.data import catalog, checkpoints
from finetune.engines import registry, spending
from finetune.engines.base import EngineSpec, read_spec, write_spec
from finetune.engines.hub_jobs import HubJobOptions
from finetune.environment import devices
from finetune.errors import ConfigError, DataError, FinetuneError, JobError, NoSuchRun
from finetune.jobs import check, cost, scheduler, workers
from finetune.jobs.background import store_lock
from finetune.messages import message as _
from finetune.metrics.catalog import OPTIONAL
from finetune.runs import events
from finetune.runs.grids import BETWEEN, PlannedRun, plan_runs
from finetune.runs.job_folder import JobFolder
from finetune.runs.queue import Queue
from finetune.runs.run import Run
from finetune.runs.store import RunStore, new_id
from finetune.training.accelerator import check_accelerate_config

RESUMABLE = frozenset({"stopped", "failed", "interrupted"})


def start_run(
    store: RunStore, config: RunConfig, spec: EngineSpec | None = None, token: str = ""
) -> Run:
    """Create a run and start its worker, or queue it if another is training; see `start_runs`. Of a
    cross-validation, create all runs; returns the one on all rows."""
    return start_runs(store, plan_runs(config), spec, token)[-1]


def start_runs(
    store: RunStore, planned: Sequence[PlannedRun], spec: EngineSpec | None = None, token: str = ""
) -> list[Run]:
    """Create several runs, to be carried out one after the other on the engine of `spec`, or on
    this machine if None. `token` is of the Hub, for an engine that asks it."""
    configs = [one.config for one in planned]
    if spec is not None and registry.find_engine(spec.engine).is_remote:
        configs = [cost.with_checkpoints(store, config) for config in configs]
    configs = [catalog.with_absolute_paths(config) for config in configs]
    check_start(store, configs, spec)
    with store_lock(store):
        _check_share(store, len(configs), len(configs))
        runs, shared = [], ""
        for config, one in zip(configs, planned, strict=True):
            run_id = new_id(store.root)
            if not (shared and one.member):
                shared = store.new_name(config, one.stem)
            # Before the folder exists, or a reader would see a run that nothing will start.
            Queue(store.root).add(run_id, store.visitor.name)
            # With its engine spec; otherwise an app killed here would leave it to this machine.
            text = spec.to_json() if spec is not None else ""
            title = BETWEEN.join((shared, *one.member))
            runs.append(store.create(config, run_id, one.group, text, title))
            registry.keep_token(run_id, token if spec is not None else "")
    scheduler.dispatch_queue(store)
    return runs


def check_start(
    store: RunStore, configs: Sequence[RunConfig], spec: EngineSpec | None = None
) -> None:
    """Check that `start_runs` would accept these; raises the same errors."""
    spec = spec or EngineSpec()
    registry.check_options(spec, store.visitor.policy)
    for config in configs:
        registry.find_engine(spec.engine).check_config(config)
        _check(store, config)
    _check_share(store, len(configs), len(configs))


def _check(store: RunStore, config: RunConfig) -> None:
    check_accelerate_config(config)
    check.check_source_access(store, config)
    checkpoints.check_kind(config.checkpoint)
    checkpoints.check_length(config.checkpoint, config.max_length)
    if config.foreign_metrics and not owners.policy().owner_asks:
        problem = _(
            "names {name}, which is code, and this app is shared; choose names out of {names}",
            name=config.foreign_metrics[0],
            names=", ".join(metric.name for metric in OPTIONAL),
        )
        raise ConfigError({"metrics": problem})
    if not store.visitor.policy.owner_asks:
        problems, most = {}, max(1, len(devices.list_accelerators()))
        if (tool := config.report_to) not in ("none", "tensorboard"):
            problems["report_to"] = _(
                "is {report_to}, and the account here is not its visitors'; choose none or "
                "tensorboard", report_to=tool,
            )  # fmt: skip
        if (n := config.num_processes) > most:
            problems["num_processes"] = _(
                "is {num_processes}; this machine has {most} to give", num_processes=n, most=most
            )
        if problems:
            raise ConfigError(problems)
    report = check.check_folder(store, config).state().report
    if report is not None and report.blocked:
        finding = report.blocked[0]
        raise DataError(finding.title, "{action} See Data.", action=finding.action)


def _check_share(store: RunStore, more: int, places: int) -> None:
    """Check that a visitor may have this many more runs and places in the queue."""
    if not store.visitor.may_start:
        raise JobError(
            "This browser keeps no cookies, so a run could not be yours.", "Allow them, or sign in."
        )
    limits, queue = store.visitor.policy.limits, Queue(store.root).waiting()
    runs = store.runs()
    waiting = sum(run.id in queue for run in runs)
    if len(runs) + more > limits.runs:
        raise JobError(
            "You have {runs} runs here, and a visitor may keep {limit}.",
            "Delete one under Runs, or use a copy of this app of your own.",
            limit=limits.runs,
            runs=len(runs),
        )
    if len(queue) + places > limits.queue:
        raise JobError(
            "{queue} runs wait already, and the queue has {limit} places.",
            "Try again later, or use a copy of this app of your own.",
            limit=limits.queue,
            queue=len(queue),
        )
    if waiting + places > limits.waiting:
        raise JobError(
            "{waiting} of your runs wait already, and a visitor may have {limit} places in "
            "the queue.",
            "Wait for one to begin, or cancel one under Runs.",
            waiting=waiting,
            limit=limits.waiting,
        )


def resume_price(run: Run) -> HubJobOptions | None:
    """Return the options and price of the job that would resume a run; None if none is billed."""
    spec = read_spec(run)
    if spec.job or registry.may_be_under_way(run):
        return None
    return registry.billed_options(spec)


def move_run(store: RunStore, run: Run, spec: EngineSpec, token: str = "") -> None:
    """Let a run that is not running go on with another spec."""
    config, former = run.config(), read_spec(run)
    engine = registry.find_engine(spec.engine)
    engine.check_config(config)
    if former.missing or registry.may_be_under_way(run):
        registry.open_engine(former, token).remove(run, former)
    if engine.is_remote:
        run.replace_config(cost.with_checkpoints(store, config))
    write_spec(run, spec.after(read_spec(run)))


def resume_run(
    store: RunStore, run: Run, spec: EngineSpec | None = None, token: str = "", agreed: bool = False
) -> None:
    """Resume a run that ended early from its last checkpoint, in its turn.

    Args:
        spec: the engine it goes on with, at an accepted price; the former one if None.
        token: of the Hub, for an engine that asks it.
        agreed: True if the former one's price was accepted, see `resume_price`.
    """
    with store_lock(store):
        run = store.get(run.id)
        summary = run.state()
        if summary.status not in RESUMABLE:
            raise JobError(
                "The run is {status}.",
                "Only one that ended too early can go on.",
                status=_(summary.status),
            )
        run.config()
        if read_spec(run).job:  # it is only followed to its end
            run.stop_file.unlink(missing_ok=True)
        else:
            _check_share(store, 0, 1)
            most = store.visitor.policy.limits.run_minutes
            if summary.worked >= 60 * most:
                raise JobError(
                    "This run was worked on for {most} minutes, as long as a run may be.",
                    "Start one of fewer steps, or use a copy of this app of your own.",
                    most=most,
                )
            registry.check_options(spec or EngineSpec(), store.visitor.policy)
            if spec is not None:
                move_run(store, run, spec, token or registry.kept_token(run.id))
            elif not agreed and (price := resume_price(run)):
                raise JobError(
                    "It goes on as a job on {flavor}: ${price:.2f} an hour, at most ${most:.2f}.",
                    "Send agreed as True to pay that.",
                    flavor=price.flavor,
                    price=price.price,
                    most=spending.rounded_up(price.most),
                )
        registry.keep_token(run.id, token)
        Queue(store.root).add(run.id, run.owner)
    scheduler.dispatch_queue(store)


def stop_run(store: RunStore, run: Run, discard: bool = False, reason: str = "") -> None:
    """Ask a run to end, or take it out of the queue. Keeps its best model unless `discard`.
    `reason` explains a stop that no person requested."""
    with store_lock(store):
        Queue(store.root).remove(run.id)
        state = run.state()
        if run.is_alive() and not state.end_recorded:
            run.request_stop(discard, reason)
            if not registry.is_remote(run):  # its follower passes it on, and fetches the model
                workers.end_worker(run)
        elif not state.end_recorded and read_spec(run).job:  # no worker follows it now
            run.request_stop(discard, reason)
            Queue(store.root).add(run.id, run.owner)
        elif not state.count:  # it never began
            run.append(events.Stopped(step=0, seconds=0.0))
        elif discard:  # the click came just after the end, and must not undo it
            raise JobError(
                "The run has ended: it is {status}.",
                "Delete it if you do not want its model.",
                status=run.state().status,
            )


def delete_run(store: RunStore, run: Run, token: str = "") -> None:
    """Remove a run, its model, its events and its log, ending it first if it trains. Its data on
    other engines is removed with the token kept for it, or else with `token`."""
    if registry.is_remote(run) or registry.that_keep(run):
        followed = run.is_alive()
        workers.kill_worker(run)
        try:
            registry.remove(run, registry.kept_token(run.id) or token)
        except FinetuneError:
            if followed:
                Queue(store.root).add(run.id, run.owner)
            raise
    with store_lock(store):
        run = store.get(run.id)
        Queue(store.root).remove(run.id)
        workers.kill_worker(run)
        for job_file in run.folder.glob("*/*/job.json"):  # evaluations, exports, pushes
            workers.kill_worker(JobFolder(job_file.parent))
        store.delete(run)
    scheduler.dispatch_queue(store)


def active_run(store: RunStore) -> Run | None:
    """Return the visitor's run that is training, or else their next one in the queue, or None."""
    for run in store.runs():
        if run.is_alive() and not run.state().end_recorded:
            return run
    return next(iter(waiting_runs(store)), None)


def waiting_runs(store: RunStore) -> list[Run]:
    """Return the visitor's runs in the queue, the next first."""
    runs = []
    for run_id in Queue(store.root).waiting():
        with contextlib.suppress(NoSuchRun):  # another visitor's
            runs.append(store.get(run_id))
    return runs


def queue_place(store: RunStore, run: Run) -> tuple[int, int]:
    """Return a run's place in the queue, from 1 (0 if not queued), and the queue's length."""
    waiting = Queue(store.root).waiting()
    return (waiting.index(run.id) + 1 if run.id in waiting else 0), len(waiting)
