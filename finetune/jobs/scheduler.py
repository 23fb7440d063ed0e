"""Starts queued runs when a device is free, under the store's lock: any process may ask."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from finetune import owners
from finetune.environment import devices
from finetune.errors import FinetuneError, JobError, NoSuchRun, StoreError
from finetune.jobs import warm_worker, workers
from finetune.jobs.background import store_lock
from finetune.jobs.queue import Queue
from finetune.messages import message
from finetune.owners import Limits
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED

_log = logging.getLogger("finetune.jobs.scheduler")
_schedulers: dict[Path, Scheduler] = {}  # of this process, by store


def dispatch_queue(store: RunStore) -> None:
    """Start what waits and finds a free device, in order.

    Never raises for a run's sake: one that cannot be started has failed, and the next is tried.
    """
    store = store.everyone
    scheduler = _schedulers.get(store.root)
    if scheduler is None or not scheduler.tick_now():
        _dispatch(store)


def _dispatch(store: RunStore) -> None:
    if not Queue(store.root).waiting():
        return
    try:
        with store_lock(store):
            _start_waiting(store)
    except (StoreError, JobError) as error:  # a full disk, or another change: what waits, waits on
        _log.warning("the queue stands still: %s", error)


def _start_waiting(store: RunStore) -> None:
    queue, running = Queue(store.root), running_runs(store)
    for run_id in queue.waiting():
        try:
            run = store.get(run_id)
        except NoSuchRun:  # deleted by hand
            queue.remove(run_id)
            continue
        if run.is_alive():
            if store.summary(run).status not in ENDED:  # a terminal was faster
                queue.remove(run_id)
            continue  # else its former worker is just leaving
        try:
            accelerators = _free_accelerators(run, running)
        except FinetuneError as error:  # its configuration is damaged
            _fail(store, run, error)
            continue
        if accelerators is None:
            return
        try:
            _start(store, run, accelerators)
            running.append(run)
        except JobError as error:  # no process can be started
            _fail(store, run, error)


def _fail(store: RunStore, run: Run, error: FinetuneError) -> None:
    with contextlib.suppress(StoreError):
        run.append(events.Failed(error=error.fact, remedy=error.remedy))
    Queue(store.root).remove(run.id)


def _free_accelerators(run: Run, running: Sequence[Run]) -> tuple[str, ...] | None:
    """The accelerators a run would get now: none by name where all are its; None while busy."""
    accelerators, config = devices.list_accelerators(), run.config()
    if len(accelerators) < 2:
        return None if running else ()
    taken: set[str] = set()
    for other in running:
        taken |= set(workers.worker_devices(other) or accelerators)
    free = [name for name in accelerators if name not in taken]
    most = len(accelerators)
    needed = most if config.accelerate_config else min(config.num_processes, most)
    return tuple(free[:needed]) if len(free) >= needed else None


def _start(store: RunStore, run: Run, accelerators: tuple[str, ...]) -> None:
    """Give the run to the warm worker if it can do it, else to one of its own; then it leaves the
    queue. The worker, too, takes it out: this process may be killed in between."""
    # Accelerate's file may name others beside it; visitors cannot name one.
    cwd = Path.cwd() if run.config().accelerate_config else None
    run.process_file.unlink(missing_ok=True)
    if store.summary(run).count > 0:
        run.resume()
    if accelerators or not warm_worker.give_to_warm_worker(store, run):
        workers.spawn_worker(run, devices=accelerators, cwd=cwd)
    Queue(store.root).begin(run.id)


def adopt_terminal_run(run: Run) -> None:
    """Record the calling process, which holds the run's lock, as its worker."""
    accelerators = devices.list_accelerators()[: run.config().num_processes]
    workers.record_worker(run, os.getpid(), accelerators)


def running_runs(store: RunStore) -> list[Run]:
    """The runs whose worker lives, everybody's."""
    return [run for run in store.everyone.runs() if run.is_alive()]


def _stop_overdue(store: RunStore) -> None:
    """Stop visitors' runs that were worked on as long as one may be; their best models stay."""
    limit = Limits().run_minutes
    for run in running_runs(store):
        summary = store.summary(run)
        if not run.owner or run.stop_requested() or summary.status in ENDED:
            continue
        if summary.worked_by(time.time()) > 60 * limit:
            run.request_stop(
                reason=message(
                    "It was worked on for {n} minutes, as long as a run may be.", n=limit
                )
            )
            workers.end_worker(run)


class Scheduler:
    """A thread that starts queued runs as long as its app lives, with its own priority.

    Args:
        warm: keep a worker waiting that has imported already, half a gigabyte, while nothing
            trains; for an app that people look at.
        every: seconds between two looks at the queue.
        release: called before a run is started while none is at work, to free device memory.
    """

    def __init__(
        self,
        store: RunStore,
        warm: bool = False,
        every: float = 0.5,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store.everyone
        self._warm = warm
        self._every = every
        self._release = release
        self._requests: SimpleQueue[threading.Event | None] = SimpleQueue()  # None to end
        self._thread = threading.Thread(target=self._loop, name="scheduler", daemon=True)

    def start(self) -> None:
        """Begin."""
        _schedulers[self._store.root] = self
        self._thread.start()

    def close(self) -> None:
        """End; what runs goes on."""
        _schedulers.pop(self._store.root, None)
        self._requests.put(None)
        self._thread.join(5)

    def tick_now(self, patience: float = 3.0) -> bool:
        """Look at the queue now and wait until that is done; False where no thread can."""
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            return False
        done = threading.Event()
        self._requests.put(done)
        done.wait(patience)
        return True

    def _loop(self) -> None:
        for run in self._store.runs():  # so that nobody waits for it when the page opens
            self._store.summary(run)
        while True:
            done: threading.Event | None = threading.Event()
            with contextlib.suppress(Empty):
                done = self._requests.get(timeout=self._every)
            if done is None:
                return
            try:
                self._tick()
            except Exception:  # a bug must not stop the queue for ever; the log has it
                _log.exception("the scheduler stumbled")
            done.set()

    def _tick(self) -> None:
        if Queue(self._store.root).waiting() and not running_runs(self._store):
            self._release()
        if owners.is_shared():
            _stop_overdue(self._store)
        _dispatch(self._store)
        if self._warm and not running_runs(self._store):
            with store_lock(self._store):
                if not running_runs(self._store):
                    warm_worker.start_warm_worker(self._store)
