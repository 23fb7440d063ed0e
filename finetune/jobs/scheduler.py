"""Who starts what waits: the queue's next run, as soon as an accelerator is free for it.

Every change is made under one lock, so it does not matter which app, terminal or process asks; of
several apps on one store the one that holds the scheduler's lock starts the workers. Stays free of
torch; knows no page.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from finetune import owners
from finetune.environment import devices
from finetune.errors import FinetuneError, JobError, NoSuchRun, StoreError
from finetune.jobs import workers
from finetune.jobs.queue import Queue
from finetune.jobs.workers import alive
from finetune.owners import Limits
from finetune.runs import events
from finetune.runs.store import Run, RunStore
from finetune.runs.summary import ENDED

_log = logging.getLogger("finetune.jobs.scheduler")


def dispatch_queue(store: RunStore) -> None:
    """Start what waits and finds a free accelerator, in order; nothing where another app does.

    Never raises for a run's sake: one that cannot be started has failed, and the next is tried.
    """
    store = store.everyone
    here = _here.get(store.root)
    if here is not None and here.poke():
        return
    with scheduler_lock(store) as mine:
        if mine:
            _dispatch(store)


def _dispatch(store: RunStore) -> None:
    if not (Queue(store.root).waiting() or Queue(store.root).begun()):
        return
    try:
        with workers.store_lock(store):
            sweep(store)
            _start_waiting(store)
    except StoreError as error:  # a full disk: what waits, waits on
        _log.warning("the queue stands still: %s", error)
    except JobError as error:
        _log.info("the queue is busy: %s", error)


def sweep(store: RunStore) -> None:
    """Forget begun runs that have ended; put back those for which no process came to be."""
    queue = Queue(store.root)
    for run_id in queue.begun():
        run = Run(store.root / run_id)
        if alive(run):
            continue
        if lost(store, run):
            queue.add(run_id, run.about().owner, first=True)
        queue.end(run_id)


def lost(store: RunStore, run: Run) -> bool:
    """Whether a run was begun and its worker came to nothing before it was known: it waits on."""
    if run.id not in Queue(store.root).begun() or not (run.folder / "config.json").is_file():
        return False
    told = run.job_file.exists() or run.stop_requested()
    return not (alive(run) or told or store.summary(run).status in ENDED)


def _start_waiting(store: RunStore) -> None:
    queue = Queue(store.root)
    for run_id in queue.waiting():
        try:
            run = store.get(run_id)
        except NoSuchRun:  # deleted by hand
            queue.remove(run_id)
            continue
        if alive(run):
            if store.summary(run).status not in ENDED:  # a terminal was faster
                queue.begin(run_id)
            continue  # else its former worker has said its last word and is just leaving
        given = _devices(store, run)
        if given is None:
            return
        try:
            _begin(store, run, given)
        except StoreError:
            if run.folder.is_dir() and _readable(run):
                raise
            _fail(queue, run, StoreError(f"config.json of run {run.id} cannot be read."))
        except FinetuneError as error:
            _fail(queue, run, error)


def _readable(run: Run) -> bool:
    with contextlib.suppress(StoreError):
        run.config()
        return True
    return False


def _fail(queue: Queue, run: Run, error: FinetuneError) -> None:
    with contextlib.suppress(StoreError):
        run.append(events.Failed(error=error.fact, remedy=error.remedy))
    queue.remove(run.id)
    queue.end(run.id)


def _devices(store: RunStore, run: Run) -> tuple[str, ...] | None:
    """The accelerators a run would get now: none by name where all are its; None while busy."""
    known = devices.list_accelerators()
    others = running_runs(store)
    if len(known) < 2:
        return None if others else ()
    taken: set[str] = set()
    for other in others:
        taken |= set(workers.worker_devices(other) or known)
    free = [one for one in known if one not in taken]
    with contextlib.suppress(StoreError):
        config = run.config()
        wanted = len(known) if config.accelerate_config else min(config.num_processes, len(known))
        return tuple(free[:wanted]) if len(free) >= wanted else None
    return ()


def _begin(store: RunStore, run: Run, given: tuple[str, ...]) -> None:
    """Give the run to the waiting worker if it can do it, else to one of its own.

    Raises:
        FinetuneError: when its folder cannot be read or written, or no process can be started;
            then it waits on.
    """
    queue = Queue(store.root)
    # Accelerate's file may name others beside it; visitors cannot name one.
    cwd = Path.cwd() if run.config().accelerate_config else None
    again = store.summary(run).count > 0
    run.job_file.unlink(missing_ok=True)
    if again:
        run.resume()
    if not given and workers.give_to_warm_worker(store, run) is not None:
        queue.begin(run.id)
        return
    try:
        workers.spawn_worker(run, devices=given, cwd=cwd, about_to=lambda: queue.begin(run.id))
    except FinetuneError:
        queue.add(run.id, run.about().owner, first=True)
        queue.end(run.id)
        raise


def adopt_terminal_run(store: RunStore, run: Run) -> None:
    """Note the calling process, which holds the run's lock, as its worker."""
    given = devices.list_accelerators()[: run.config().num_processes]
    workers.record_worker(run, os.getpid(), given)
    Queue(store.root).begin(run.id)


def running_runs(store: RunStore) -> list[Run]:
    """The runs whose worker lives, everybody's."""
    begun = (Run(store.root / run_id) for run_id in Queue(store.root).begun())
    return [run for run in begun if alive(run)]


def _end_overdue(store: RunStore) -> None:
    """Stop visitors' runs that were worked on as long as one may be; their best models stay."""
    most = Limits.of_environment().run_minutes
    for run in running_runs(store) if owners.is_shared() else ():
        known = store.summary(run)
        limited = run.about().owner and not run.stop_requested() and known.status not in ENDED
        if limited and known.worked_by(time.time()) > 60 * most:
            run.request_stop(
                reason=f"It was worked on for {most} minutes, as long as a run may be."
            )
            workers.end_worker(run, workers.PATIENCE, workers.LIMIT)


_one_thread = threading.RLock()


@contextlib.contextmanager
def scheduler_lock(store: RunStore) -> Iterator[bool]:
    """Whether this process may start what waits: yes, unless another app on this store does."""
    with _one_thread:
        lock = _scheduler_lock(store.root)
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            yield False
            return
        try:
            yield True
        finally:
            lock.release()


def _scheduler_lock(root: Path) -> FileLock:
    with contextlib.suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)
    # One object a process, which counts: a thread that schedules holds it all the time.
    return FileLock(root / ".scheduler.lock", is_singleton=True, thread_local=False)


_here: dict[Path, Scheduler] = {}  # this process's threads that schedule, by store


class Scheduler:
    """A thread that lets the queue go on as long as its app lives.

    Of two apps on one store, one schedules; when it ends the other does. Where there is such a
    thread it starts all workers of its app: they have its priority, not a request's.

    Args:
        store: whose queue it is.
        spare: keep a worker waiting that has imported already, half a gigabyte, while nothing
            trains; for an app that people look at.
        every: seconds between two looks at the queue.
        release: called before a run is started while none is, to give device memory back.
    """

    def __init__(
        self,
        store: RunStore,
        spare: bool = False,
        every: float = 0.5,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store.everyone
        self._release = release
        self._spare = spare
        self._every = every
        self._ended = threading.Event()
        self._poked = threading.Event()
        self._done = threading.Condition()
        self._ticks = 0
        self._schedules = False
        self._thread = threading.Thread(target=self._go, name="scheduler", daemon=True)

    def start(self) -> None:
        """Begin."""
        _here[self._store.root] = self
        self._thread.start()

    def close(self) -> None:
        """End; what runs goes on."""
        _here.pop(self._store.root, None)
        self._ended.set()
        self._poked.set()
        self._thread.join(5)

    def poke(self, patience: float = 3.0) -> bool:
        """Look at the queue now, and wait until that is done; whether there is a thread for it."""
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            return False
        if not self._schedules:
            return True  # another app does, and looks twice a second
        with self._done:
            # The tick under way may have looked already: the one after it surely has not.
            wanted = self._ticks + 2
            self._poked.set()
            self._done.wait_for(lambda: self._ticks >= wanted or self._ended.is_set(), patience)
        return True

    def _go(self) -> None:
        for run in self._store.runs():  # what is read now, nobody waits for when the page opens
            self._store.summary(run)
        while not self._ended.is_set():
            lock = _scheduler_lock(self._store.root)
            try:
                lock.acquire(timeout=0)
            except (Timeout, OSError):  # another app schedules
                self._ended.wait(1)
                continue
            try:
                self._schedules = True
                self._hold()
            finally:
                self._schedules = False
                lock.release()

    def _hold(self) -> None:
        again = True
        while not self._ended.is_set():
            self._tick()
            self._told()
            # After a poke once more at once: see `poke`.
            again = self._poked.wait(0 if again else self._every)
            self._poked.clear()

    def _told(self) -> None:
        with self._done:
            self._ticks += 1
            self._done.notify_all()

    def _tick(self) -> None:
        try:
            if Queue(self._store.root).waiting() and not running_runs(self._store):
                self._release()
            _end_overdue(self._store)
            _dispatch(self._store)
            going_on = running_runs(self._store)
            for run in going_on:
                self._store.summary(run)
            if self._spare and not going_on:
                with workers.store_lock(self._store):
                    if not running_runs(self._store):
                        workers.start_warm_worker(self._store)
        except Exception:  # a bug must not stop the queue for ever; the log has it
            _log.exception("the scheduler stumbled")
            time.sleep(1)
