"""Training runs as jobs: carry one out to its end, in a worker, a terminal or a rank."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from finetune.engines import attempt, registry
from finetune.environment import logs
from finetune.errors import FinetuneError, StoreError
from finetune.jobs import pipeline, ranks
from finetune.jobs.pipeline import StopSwitch, Terminated
from finetune.jobs.terminal import EventLog
from finetune.messages import message as _
from finetune.runs import events
from finetune.runs.queue import Queue
from finetune.runs.run import Run
from finetune.training.accelerator import is_lost_rank_error, is_main_process, is_single_process

_LOST = events.Failed(
    error=_("A process of this run has ended without a word, perhaps for want of memory."),
    remedy=_("The log may say more; Resume goes on from the last checkpoint."),
)


def train_job(folder: Path) -> int:
    """Carry out a run in its worker, or let Accelerate start several. Returns the exit status."""
    run = Run(folder)
    Queue(run.folder.parent).begin(run.id)
    if registry.is_remote(run):
        return registry.carry_out(run, sys.stdin.readline().strip())
    ranks.launch_if_several(run)
    return carry_out_run(run, EventLog())


def carry_out_run(run: Run, show: Callable[[events.Event], None]) -> int:
    """Carry out a run to its end, writing and showing every event. Returns the exit status."""
    stop = StopSwitch(run)
    stop.install()
    main_process = is_main_process()
    try:
        if main_process:
            _note_killed_worker(run)
        with contextlib.closing(pipeline.train_events(run, stop)) as stream:
            for event in stream:
                if isinstance(event, events.Stopped):
                    # Its machine is taken away, and its engine may begin another attempt.
                    if attempt.is_attempt() and main_process and not run.stop_requested():
                        return attempt.LOST
                    event = _as_requested(run, event)
                run.append(event)
                if main_process:
                    show(event)
                    _clean_up(run, event)
        return 0
    except Terminated:
        seconds = run.state().worked_until_now
        ended: events.Event = _as_requested(run, events.Stopped(step=0, seconds=seconds))
        several = attempt.is_attempt() or not is_single_process()
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


def carry_out_attempt(run: Run, show: Callable[[events.Event], None]) -> int:
    """Carry out an attempt here, for the engine that started this process. Returns the exit status.
    The worker that follows the attempt holds the run's lock."""
    attempt.end_with_parent()
    try:
        return carry_out_run(run, show)
    except attempt.Superseded:
        print("a later attempt has this run", flush=True)
        return attempt.LOST


def _note_killed_worker(run: Run) -> None:
    """Record where the run resumes, if its last worker was killed without recording it."""
    step = run.checkpoint_step()
    if run.state().step > step:
        run.append(events.Resumed(step=step))


def _as_requested(run: Run, event: events.Stopped) -> events.Stopped:
    """Return the event with the request made of the run, and its reason."""
    asked = {"discarded": run.discard_requested(), "reason": run.stop_reason()}
    return event.model_copy(update=asked)


def _clean_up(run: Run, event: events.Event) -> None:
    if isinstance(event, events.Finished):
        shutil.rmtree(run.checkpoints_folder, ignore_errors=True)
    if isinstance(event, events.Stopped) and event.discarded:
        run.discard()


def _append_end(run: Run, ended: events.Event) -> None:
    """Write how the run ended, once: every rank calls this, and the first to know writes."""
    if not is_single_process():
        run = attempt.as_attempt(Run(run.folder))
        # Seconds for a rank that knows the cause to write it.
        patience = 3.0 if ended is _LOST else not is_main_process()
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and not run.state().end_recorded:
            time.sleep(0.1)
        if not run.folder.is_dir() or run.state().end_recorded:
            return
    run.append(ended)


def failure_event(error: Exception, run: Run) -> events.Failed:
    """Return the event of an error that ends a run."""
    if isinstance(error, FinetuneError):
        return events.Failed(error=error.fact, remedy=error.remedy)
    if is_lost_rank_error(error):
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
                per_device_train_batch_size=run.state()
                .resolved(run.config())
                .per_device_train_batch_size,
            ),
        )
    files, remedy = _("A file of the run"), _("The log has the details.")
    return events.failure_event(error, files, remedy, pipeline.RESUME)
