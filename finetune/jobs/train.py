"""Training runs as jobs: carry one out to its end, in a worker, a terminal or a rank."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from finetune.config import RunConfig
from finetune.engines import registry, supervisor
from finetune.engines.base import LOST, Superseded, as_attempt, end_with_parent, is_attempt
from finetune.environment import logs, project
from finetune.errors import FinetuneError, StoreError
from finetune.jobs import pipeline
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
        return supervisor.carry_out(run, sys.stdin.readline().strip())
    launch_if_several(run)
    return carry_out_run(run, EventLog())


def carry_out_run(run: Run, show: Callable[[events.Event], None]) -> int:
    """Carry out a run to its end, writing and showing every event. Returns the exit status."""
    stop = pipeline.StopSwitch(run)
    stop.install()
    main_process = is_main_process()
    try:
        if main_process:
            _note_killed_worker(run)
        with contextlib.closing(pipeline.train_events(run, stop)) as stream:
            for event in stream:
                if isinstance(event, events.Stopped):
                    # Its machine is taken away, and its engine may begin another attempt.
                    if is_attempt() and main_process and not run.stop_requested():
                        return LOST
                    event = _as_requested(run, event)
                run.append(event)
                if main_process:
                    show(event)
                    _clean_up(run, event)
        return 0
    except pipeline.Terminated:
        seconds = run.state().worked_until_now
        ended: events.Event = _as_requested(run, events.Stopped(step=0, seconds=seconds))
        if (is_attempt() or not is_single_process()) and not run.stop_requested():
            ended = _LOST  # the launcher ends the others when one has died
    except Exception as error:
        deleted = events.Stopped(step=0, seconds=0.0)
        ended = failure_event(error, run) if run.exists() else deleted
    finally:
        if not run.exists():
            shutil.rmtree(run.folder, ignore_errors=True)
    if ended is _LOST and is_attempt():
        return LOST  # its engine may begin another attempt
    if main_process:
        show(ended)
        _clean_up(run, ended)
    with contextlib.suppress(StoreError):  # a full disk or a deleted folder: it has been shown
        _append_end(run, ended)
    return 0 if isinstance(ended, events.Stopped) else 1


def carry_out_attempt(run: Run, show: Callable[[events.Event], None]) -> int:
    """Carry out an attempt here, for the engine that started this process. Returns the exit status.
    The worker that follows the attempt holds the run's lock."""
    end_with_parent()
    try:
        return carry_out_run(run, show)
    except Superseded:
        print("a later attempt has this run", flush=True)
        return LOST


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
        run = as_attempt(Run(run.folder))
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
        batch = run.state().resolved(run.config()).per_device_train_batch_size
        remedy = _(
            "per_device_train_batch_size is {per_device_train_batch_size}: halve it and double "
            "gradient_accumulation_steps, which learns the same; or lower max_length.",
            per_device_train_batch_size=batch,
        )
        reason = text.splitlines()[0][:200]
        fact = _("The device ran out of memory: {reason}", reason=reason)
        return events.Failed(error=fact, remedy=remedy)
    files, remedy = _("A file of the run"), _("The log has the details.")
    return events.failure_event(error, files, remedy, pipeline.RESUME)


def launch_if_several(run: Run) -> None:
    """Replace this process by the launcher if the run needs several. The worker's pid stays."""
    config = run.config()
    if config.num_processes == 1 and not config.accelerate_config:
        return
    words = [sys.executable, "-m", "accelerate.commands.launch"]
    if config.num_processes > 1:
        words += ["--num_processes", str(config.num_processes)]
    if config.accelerate_config:
        words += ["--config_file", config.accelerate_config]
    else:
        # --multi_gpu is Accelerate's word for torch's own launcher, with or without a GPU.
        words += ["--multi_gpu", "--num_machines", "1"]
        words += ["--mixed_precision", "no", "--dynamo_backend", "no"]  # RunConfig decides
    words += ["--main_process_port", "0"]  # any free port
    words += ["--module", "finetune", "train", "--run", str(run.folder.resolve())]
    threads = max(1, (os.cpu_count() or 1) // config.num_processes)
    variables = {"OMP_NUM_THREADS": str(threads), **os.environ}
    os.execve(words[0], words, variables | {"PYTHONPATH": project.python_path()})


def leave(status: int) -> int:
    """End one of several processes at once: torch's threads can abort a process that winds up."""
    if not is_single_process():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


class RankView(Run):
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
