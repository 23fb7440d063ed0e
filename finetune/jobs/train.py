"""Training runs as jobs: carries one out to its end, for the page, a terminal, or as one of several
processes (`accelerate launch -m finetune train`)."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from finetune import config, uploads
from finetune.arguments import add_arguments, arguments_given
from finetune.config import RunConfig
from finetune.data import catalog, check_report
from finetune.engines import arguments as engine_arguments
from finetune.engines import attempt, registry
from finetune.engines.base import Ticket, read_ticket, resume
from finetune.engines.options import check_config
from finetune.engines.registry import LOCAL
from finetune.environment import logs
from finetune.errors import FinetuneError, JobError, StoreError
from finetune.jobs import check, cost, pipeline, service, workers
from finetune.jobs.pipeline import StopSwitch, Terminated
from finetune.jobs.scheduler import Queue
from finetune.messages import message as _
from finetune.metrics.catalog import metric_name
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder
from finetune.runs.run import Run
from finetune.runs.store import RunStore, default_root, named_run
from finetune.runs.summary import ENDED
from finetune.training import distributed

if TYPE_CHECKING:
    from tqdm import tqdm

_LOST = events.Failed(
    error=_("A process of this run has ended without a word, perhaps for want of memory."),
    remedy=_("The log may say more; Resume goes on from the last checkpoint."),
)


def train_job(job: JobFolder) -> int:
    """Carry out a run in its worker, or let Accelerate start several; the exit status."""
    run = Run(job.folder)
    Queue(run.folder.parent).begin(run.id)
    if registry.is_remote(run):
        return registry.carry_out(run, sys.stdin.readline().strip())
    if _needs_several_processes(run):
        distributed.exec_launcher(run)
    return carry_out_run(run, EventLog())


def main(arguments: list[str] | None = None) -> int:
    """Train from a terminal; the exit status: 0 ended, 1 failed."""
    about = "Fine-tune a checkpoint on sentence pairs. The run appears in the page."
    parser = argparse.ArgumentParser("python -m finetune train", description=about)
    parser.add_argument("--run", type=Path, help="a run to carry out: its id, or its folder")
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
    parser.add_argument("--config", type=Path, help="a config.json; options given win over it")
    parser.add_argument("--preset", choices=config.PRESETS, help="values to begin with")
    uploads.add_arguments(parser)
    engine_arguments.add_arguments(parser)
    add_arguments(parser)
    args = parser.parse_args(arguments)
    run = _open_run(args, engine_arguments.ticket_from_arguments(args))
    distributed.check_accelerate_config(run.config())
    show = TerminalBar() if sys.stderr.isatty() or not args.run else EventLog()
    if attempt.is_attempt():
        return _leave(_carry_out_attempt(run, show))
    if not distributed.is_main_process():
        return _leave(carry_out_run(run, show))
    single = distributed.is_single_process()
    with workers.worker_lock(run, rank=not single) as only:
        if not only:
            print(f"Run {run.id} is being carried out by another process.", file=sys.stderr)
            return 0 if single else 1  # or the other ranks would wait for this one
        if registry.is_remote(run):
            return _follow_elsewhere(run, show)
        if single and _needs_several_processes(run):
            distributed.exec_launcher(run)
        return _leave(carry_out_run(run, show))


def _needs_several_processes(run: Run) -> bool:
    return run.config().num_processes > 1 or bool(run.config().accelerate_config)


def _leave(status: int) -> int:
    """End one of several processes at once: torch's threads can abort one that winds up."""
    if not distributed.is_single_process():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _carry_out_attempt(run: Run, show: Callable[[events.Event], None]) -> int:
    """Carry out an attempt here, for the engine that has started this process; the exit status. The
    run's lock is held by the worker that follows the attempt."""
    attempt.end_with_parent()
    try:
        return carry_out_run(run, show)
    except attempt.Superseded:
        print("a later attempt has this run", flush=True)
        return attempt.LOST


def _follow_elsewhere(run: Run, show: Callable[[events.Event], None]) -> int:
    """Let another engine carry the run out, and follow it; the exit status. Ctrl-C stops the run,
    keeping its best model."""

    def stop(number: int, frame: FrameType | None) -> None:
        run.request_stop()

    signal.signal(signal.SIGINT, stop)
    return registry.carry_out(run, show=show, describe=describe_event)


def _open_run(args: argparse.Namespace, ticket: Ticket | None) -> Run:
    """The run to carry out; on the ranks that do not write it, a view of its configuration."""
    main_process = distributed.is_main_process()
    if args.run:
        named = named_run(args.run, args.runs)
        store = RunStore(named.folder.parent)
        run = attempt.as_attempt(store.get(named.id))
        run.config()
        if main_process and not attempt.is_attempt():
            _take_up(store, run, ticket, args)
        return run if main_process else _RankView(run.folder.parent, run.config())
    values: dict[str, Any] = {}
    if args.config:
        values = RunConfig.from_json(args.config.read_bytes()).to_dict()
    values |= config.preset(args.preset) if args.preset else {}
    values |= arguments_given(args) | uploads.upload_from_arguments(args, args.runs)
    run_config = catalog.with_absolute_paths(RunConfig(**values))
    store = RunStore(args.runs)
    distributed.check_accelerate_config(run_config)
    check.check_source_access(store, run_config)
    if not main_process:
        return _RankView(args.runs, run_config)
    if ticket is not None and ticket.engine != LOCAL:
        run_config = cost.with_checkpoints(store, run_config)
        check_config(run_config, ticket)
        engine_arguments.agree(args, ticket)
    return store.create(run_config, ticket=ticket.to_json() if ticket is not None else "")


def _take_up(store: RunStore, run: Run, ticket: Ticket | None, args: argparse.Namespace) -> None:
    """Let a run go on, with another engine where one is named."""
    former, status = read_ticket(run), store.summary(run).status
    if former.job and ticket is not None and ticket.engine != former.engine:
        raise JobError(
            "A job of this run is under way on {engine}.",
            "Follow it with --engine {engine}; once it has ended or is stopped, move it.",
            engine=former.engine,
        )
    if former.job:
        return
    if status in ENDED - service.RESUMABLE:
        raise JobError(
            "The run is {status}.", "Only one that ended too early can go on.", status=_(status)
        )
    engine_arguments.agree(args, ticket or former)
    if ticket is not None:
        if run.is_alive():
            raise StoreError("{id} is being worked on.", "Try again in a moment.", id=run.id)
        service.move_run(store, run, ticket)
    if status in ENDED or (run.stop_requested() and not run.is_alive()):
        resume(run)


class _RankView(Run):
    """A rank's view of a run whose folder belongs to the main process: it writes nothing."""

    def __init__(self, root: Path, config: RunConfig) -> None:
        super().__init__(root / "unwritten")
        self._config = config

    def config(self) -> RunConfig:
        return self._config

    def append(self, event: events.Event) -> None:
        pass

    def exists(self) -> bool:
        return True

    def stop_requested(self) -> bool:
        return False


def carry_out_run(run: Run, show: Callable[[events.Event], None]) -> int:
    """Carry out a run to its end, writing and showing every event; the exit status."""
    stop = StopSwitch(run)
    stop.install()
    main_process = distributed.is_main_process()
    try:
        if main_process:
            _note_killed_worker(run)
        with contextlib.closing(pipeline.train_events(run, stop)) as stream:
            for event in stream:
                if isinstance(event, events.Stopped):
                    if _is_taken_away(run):
                        return attempt.LOST
                    event = _as_requested(run, event)
                run.append(event)
                if main_process:
                    show(event)
                    _clean_up(run, event)
        return 0
    except Terminated:
        seconds = run.events_summary().worked_by(time.time())
        ended: events.Event = _as_requested(run, events.Stopped(step=0, seconds=seconds))
        several = attempt.is_attempt() or not distributed.is_single_process()
        if several and not run.stop_requested():
            ended = _LOST  # the launcher ends the others when one has died
    except Exception as error:
        deleted = events.Stopped(step=0, seconds=0.0)
        ended = failure_event(error, run) if run.exists() else deleted
    finally:
        if not run.exists():
            shutil.rmtree(run.folder, ignore_errors=True)
    if ended is _LOST and attempt.is_attempt():
        return attempt.LOST  # its engine may begin another attempt
    if main_process:
        show(ended)
        _clean_up(run, ended)
    with contextlib.suppress(StoreError):  # a full disk or a deleted folder: it has been shown
        _append_end(run, ended)
    return 0 if isinstance(ended, events.Stopped) else 1


def _is_taken_away(run: Run) -> bool:
    """Whether an attempt ends, with a checkpoint, though nobody has stopped the run: its machine is
    taken away, and its engine may begin another attempt."""
    return attempt.is_attempt() and distributed.is_main_process() and not run.stop_requested()


def _note_killed_worker(run: Run) -> None:
    """Say from where the run goes on, where its last worker was killed and nobody has said it."""
    step = run.checkpoint_step()
    if run.events_summary().step > step:
        run.append(events.Resumed(step=step))


def _as_requested(run: Run, event: events.Stopped) -> events.Stopped:
    """The event with what was asked of the run, and why."""
    asked = {"discarded": run.discard_requested(), "reason": run.stop_reason()}
    return event.model_copy(update=asked)


def _clean_up(run: Run, event: events.Event) -> None:
    if isinstance(event, events.Finished):
        shutil.rmtree(run.checkpoints_folder, ignore_errors=True)
    if isinstance(event, events.Stopped) and event.discarded:
        run.discard()


def _append_end(run: Run, ended: events.Event) -> None:
    """Write how the run ended; once, though every rank comes here, the one that knows first."""
    if not distributed.is_single_process():
        run = attempt.as_attempt(Run(run.folder))
        # Seconds in which a rank that knows the cause can write it down.
        patience = 3.0 if ended is _LOST else not distributed.is_main_process()
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and run.events_summary().status not in ENDED:
            time.sleep(0.1)
        if not run.folder.is_dir() or run.events_summary().status in ENDED:
            return
    run.append(ended)


def failure_event(error: Exception, run: Run) -> events.Failed:
    """The event of an error that ends a run."""
    if isinstance(error, FinetuneError):
        return events.Failed(error=error.fact, remedy=error.remedy)
    if distributed.is_lost_rank_error(error):
        logs.print_traceback()
        return _LOST
    text = str(error).strip()
    if any(words in text.lower() for words in ("out of memory", "can't allocate memory")):
        logs.print_traceback()
        return events.Failed(
            error=_("The device ran out of memory: {reason}", reason=text.splitlines()[0][:200]),
            remedy=_(
                "per_device_train_batch_size is {per_device_train_batch_size}: halve it and "
                "double gradient_accumulation_steps, which learns the same; or lower "
                "max_length.",
                per_device_train_batch_size=run.config().per_device_train_batch_size,
            ),
        )
    files, remedy = _("A file of the run"), _("The log has the details.")
    return events.failure_event(error, files, remedy, pipeline.RESUME)


class TerminalBar:
    """A tqdm bar of steps, with the evaluations printed above it."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._classes = 0

    def __call__(self, event: events.Event) -> None:
        from tqdm import tqdm

        if isinstance(event, events.Stepped) and self._bar is not None:
            self._bar.set_postfix(loss=f"{event.loss:.4f}", refresh=False)
            self._bar.update(event.step - self._bar.n)
        elif text := describe_event(event, self._classes):
            tqdm.write(text, file=sys.stderr)
        if isinstance(event, events.Prepared):
            self._classes = len(event.labels)
            self._bar = tqdm(total=event.total_steps, unit="step")
        ended = isinstance(event, (events.Finished, events.Stopped, events.Failed))
        if ended and self._bar is not None:
            self._bar.close()


class EventLog:
    """Prints one line an event, for the log that a page shows."""

    def __init__(self) -> None:
        self._classes = 0

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Prepared):
            self._classes = len(event.labels)
        if text := describe_event(event, self._classes):
            print(text, flush=True)


def describe_event(event: events.Event, classes: int = 0) -> str:
    """Lines for a person; empty for what is not worth a line.

    Args:
        classes: how many classes the run has, by which F1 is named; 0 while unknown.
    """
    match event:
        case events.Started():
            return f"on {event.device}, {event.processes} process(es)"
        case events.PhaseStarted() if event.phase != Phase.TRAIN:
            return f"{event.phase.replace('_', ' ')} {event.detail}".strip()
        case events.Prepared():
            counts = (
                f"{event.train_examples} training and {event.validation_examples} validation "
                f"pairs, {event.total_steps} steps, {event.parameters:,} parameters"
            )
            unreadable = [
                f"warning: {count:,} rows of {split} could not be read and are left out"
                for split, count in event.data.get("unreadable", {}).items()
            ]
            leaks = [
                f"warning: {count:,} training pairs stand in {split} too, and its score will "
                "flatter the model; --drop_leaked leaves them out"
                for split, count in event.data.get("leaked", {}).items()
            ]
            read = [f"reads: {check_report.describe_columns(event.data.get('columns', {}))}"]
            read += event.data.get("reading", [])
            head = [event.head.text] if event.head.text else []
            warnings = [*read, counts, *head, *unreadable, *leaks]
            if event.data.get("positive_assumed"):
                warnings.append(
                    f"warning: F1 is of {event.data['positive_label']!r}, for nothing says which "
                    "class is the positive one; --positive_label does"
                )
            return "\n".join(warnings)
        case events.Stepped():
            return f"step {event.step}: loss {event.loss:.4f}, lr {event.learning_rate:.3g}"
        case events.Evaluated():
            best = " (best so far)" if event.best else " (before training)" * (not event.step)
            return f"step {event.step}: validation {_scores(event.metrics, classes)}{best}"
        case events.BaselinesMeasured():
            baselines = event.baselines.items()
            return "\n".join(
                f"baseline {name}: {_scores(scores, classes)}" for name, scores in baselines
            )
        case events.Resumed():
            return f"going on from step {event.step}"
        case events.Stopped():
            text = f"stopped at step {event.step}" + ", model discarded" * event.discarded
            return f"{text} {event.reason}".strip()
        case events.Failed():
            return f"failed: {event.error} {event.remedy}".strip()
        case events.Finished():
            early = ", early: the score had stopped rising," if event.early else ""
            return f"finished {event.step} steps{early} in {event.seconds:.1f} s"
    return ""


def _scores(scores: dict[str, float], classes: int) -> str:
    return ", ".join(
        f"{metric_name(name, classes)} {value:.4f}"
        for name, value in scores.items()
        if name != "examples"
    )
