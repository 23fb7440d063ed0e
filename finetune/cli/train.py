"""`python -m finetune train`: train here, or follow a run on another engine."""

import argparse
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from finetune import api, config
from finetune.arguments import add_arguments, arguments_given, option
from finetune.cli import options
from finetune.config import RunConfig, retired_in
from finetune.data import catalog
from finetune.engines import registry, supervisor
from finetune.engines.base import EngineSpec, as_attempt, is_attempt, read_spec, resume
from finetune.errors import JobError, NoSuchRun, StoreError
from finetune.evaluation import cross_validation
from finetune.jobs import check, cost, service, workers
from finetune.jobs.terminal import EventLog, TerminalBar, describe_event
from finetune.jobs.train import RankView, carry_out_attempt, carry_out_run, launch_if_several, leave
from finetune.messages import message as _
from finetune.runs.run import Run
from finetune.runs.store import RunStore, named_run
from finetune.runs.summary import ENDED
from finetune.training.accelerator import (
    check_accelerate_config,
    is_main_process,
    is_single_process,
)


def train(words: list[str] | None = None) -> int:
    """Fine-tune a checkpoint on your texts. The run appears in the page."""
    parser = options.parser_of("train", train.__doc__)  # exit status: 0 it ended, 1 it failed
    parser.add_argument("--run", type=Path, help="a run to resume: its name, id or folder")
    parser.add_argument("--config", type=Path, help="a config.json; options given win over it")
    parser.add_argument("--preset", choices=config.PRESETS, help="values to begin with")
    options.add_files(parser)
    of_engine = options.add_engine(parser)
    add_arguments(parser)
    args = parser.parse_args(words)
    options.check_alone(parser, args, "run", of_engine)
    chosen = None if args.run else _config(args)
    spec = options.engine_spec(args)
    if chosen is not None and chosen.trains_on_all:
        return _cross_validate(args, chosen, spec)
    run = _open_run(args, spec, chosen)
    check_accelerate_config(run.config())
    if is_main_process():
        print(f"run {run.title()} ({run.id})", file=sys.stderr)
    show = TerminalBar() if sys.stderr.isatty() or not args.run else EventLog()
    if is_attempt():
        return leave(carry_out_attempt(run, show))
    if not is_main_process():
        return leave(carry_out_run(run, show))
    single = is_single_process()
    with workers.worker_lock(run, rank=not single) as only:
        if not only:
            print(f"Run {run.id} is being carried out by another process.", file=sys.stderr)
            return 0 if single else 1  # otherwise the other ranks would wait for this one
        if registry.is_remote(run):
            # Ctrl-C stops the run, keeping its best model.
            signal.signal(signal.SIGINT, lambda *_: run.request_stop())
            return supervisor.carry_out(run, show=show, describe=describe_event)
        if single:
            launch_if_several(run)
        return leave(carry_out_run(run, show))


main = train  # for `accelerate.notebook_launcher`


def _open_run(
    args: argparse.Namespace, spec: EngineSpec | None, run_config: RunConfig | None
) -> Run:
    """Return the run to carry out; on ranks that do not write it, a view of its configuration."""
    main_process = is_main_process()
    if run_config is None:
        named = _named(args)
        store = RunStore(named.folder.parent)
        run = as_attempt(store.get(named.id))
        run.config()
        if main_process and not is_attempt():
            _take_up(store, run, spec, args)
            if run.config().trains_on_all:
                cross_validation.gather(run, store.runs())
        return run if main_process else RankView(run.folder.parent, run.config())
    store = RunStore(args.root)
    check_accelerate_config(run_config)
    check.check_source_access(store, run_config)
    if not main_process:
        return RankView(args.root, run_config)
    if spec is not None and registry.find_engine(spec.engine).is_remote:
        run_config = cost.with_checkpoints(store, run_config)
        registry.find_engine(spec.engine).check_config(run_config)
        options.agree(args, spec)
    return store.create(run_config, spec=spec.to_json() if spec is not None else "")


def _named(args: argparse.Namespace) -> Run:
    try:
        return named_run(args.run, args.root)
    except NoSuchRun as error:
        raise StoreError(
            "There is no run {name!r} to go on with: --run resumes one.",
            "Leave it out to begin a new run, which gets its name by {option}",
            name=str(args.run),
            option=shlex.join(option("name", str(args.run))),
        ) from error


def _config(args: argparse.Namespace) -> RunConfig:
    """Return the configuration of a new run. Files that are given become an upload, once."""
    values: dict[str, Any] = {}
    if args.config:
        text = args.config.read_bytes()
        values = RunConfig.from_json(text).to_dict()
        if retired := retired_in(text):
            print(f"note: {retired}", file=sys.stderr)
    values |= config.preset(args.preset) if args.preset else {}
    values |= arguments_given(args) | options.upload_of(args, args.root)
    return catalog.with_absolute_paths(RunConfig(**values))


def _cross_validate(args: argparse.Namespace, chosen: RunConfig, spec: EngineSpec | None) -> int:
    """Train a run for each fold and one on all rows, by the queue. Returns the exit status."""
    if not is_single_process():
        raise JobError(
            "A cross-validation starts its own processes.",
            "Leave `accelerate launch` out, and set num_processes.",
        )
    spec = spec or EngineSpec()
    most = registry.billed_options(spec)
    options.agree(args, spec, most.most * (1 + chosen.folds) if most else 0.0)
    store = RunStore(args.root)
    run = api.cross_validate(chosen, store=store, engine=spec.engine, **spec.options)
    print(f"run {run.title()} ({run.id})", file=sys.stderr)
    for name, score in api.evaluate(run).analysis.scores.items():
        print(f"cross-validated {name} {score.value:.4f} ({score.low:.4f} to {score.high:.4f})")
    return 0


def _take_up(store: RunStore, run: Run, spec: EngineSpec | None, args: argparse.Namespace) -> None:
    """Resume a run, on another engine if one is named."""
    former, state = read_spec(run), run.state()
    if former.job and spec is not None and spec.engine != former.engine:
        raise JobError(
            "A job of this run is under way on {engine}.",
            "Follow it with --engine {engine}; once it has ended or is stopped, move it.",
            engine=former.engine,
        )
    if former.job:
        return
    if state.status in ENDED - service.RESUMABLE:
        raise JobError(
            "The run is {status}.",
            "Only one that ended too early can go on.",
            status=_(state.status),
        )
    options.agree(args, spec or former)
    if spec is not None:
        if run.is_alive():
            raise StoreError("{id} is being worked on.", "Try again in a moment.", id=run.id)
        service.move_run(store, run, spec)
    if state.end_recorded or (run.stop_requested() and not run.is_alive()):
        resume(run)
