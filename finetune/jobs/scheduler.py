"""Starts queued runs when a device is free, and announces runs that have ended."""

from __future__ import annotations

import contextlib
import html
import http.client
import json
import logging
import math
import os
import shutil
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from finetune import disk, owners
from finetune.engines.base import read_spec, resume
from finetune.engines.registry import engine_of, is_remote, kept_token
from finetune.environment import devices
from finetune.errors import FinetuneError, JobError, NoSuchRun, StoreError
from finetune.evaluation import cross_validation, report
from finetune.jobs import background, workers
from finetune.jobs.background import store_lock
from finetune.messages import message
from finetune.metrics.catalog import metric_name
from finetune.runs import events
from finetune.runs.queue import Queue
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary

# The variable with the address of the owner's chat or service, to which runs are announced.
WEBHOOK = "FINETUNE_WEBHOOK"
_ANSWER_LIMIT = 5.0  # seconds for it to answer
_HOUR, _DAY, _WEEK = 3600.0, 24 * 3600.0, 7 * 24 * 3600.0
_log = logging.getLogger("finetune.jobs.scheduler")
_schedulers: dict[Path, Scheduler] = {}  # of this process, by store


def dispatch_queue(store: RunStore) -> None:
    """Start waiting runs that find a free device, in order. A run that cannot be started fails."""
    scheduler = _schedulers.get(store.root)
    own = scheduler is threading.current_thread()  # a search's trial: it cannot wait for itself
    if scheduler is not None and scheduler.is_alive() and not own:
        scheduler.tick_now()
    else:
        _dispatch(store.everyone)


def _dispatch(store: RunStore) -> None:
    if not Queue(store.root).waiting():
        return
    try:
        with store_lock(store):
            _start_waiting(store)
    except (StoreError, JobError) as error:  # a full disk, or another change: wait on
        _log.warning("the queue stands still: %s", error)


def _start_waiting(store: RunStore) -> None:
    queue, running, busy = Queue(store.root), running_runs(store), False
    for run_id in queue.waiting():
        try:
            run = store.get(run_id)
        except NoSuchRun:  # the run was deleted by hand
            queue.remove(run_id)
            continue
        if run.is_alive():
            if not run.state().end_recorded:  # a terminal was faster
                queue.remove(run_id)
            continue  # otherwise its former worker is just ending
        if busy and not is_remote(run):
            continue  # no run overtakes on this machine
        try:
            if run.config().trains_on_all and not _folds_have_ended(store, run):
                continue
            accelerators = _free_place(run, running)
        except FinetuneError as error:  # its configuration is damaged
            _fail(run, error)
            continue
        if accelerators is None:
            busy = busy or not is_remote(run)
            continue
        try:
            _start(store, run, accelerators)
            running.append(run)
        except JobError as error:  # no process can be started
            _fail(run, error)


def _folds_have_ended(store: RunStore, run: Run) -> bool:
    """Give a run on all rows the answers of its folds. Returns False while some of them are at work
    or wait. DataError if one has ended too early."""
    waiting, group = Queue(store.root).waiting(), run.about().group
    others = [other for other in store.runs() if group and other.about().group == group]
    if any(other.is_alive() or other.id in waiting for other in others if other.id != run.id):
        return False
    cross_validation.gather(run, others)
    return True


def _fail(run: Run, error: FinetuneError) -> None:
    with contextlib.suppress(StoreError):
        run.append(events.Failed(error=error.fact, remedy=error.remedy))
    Queue(run.folder.parent).remove(run.id)


def _free_place(run: Run, running: Sequence[Run]) -> tuple[str, ...] | None:
    """Return the accelerators that a run gets; empty: all, or another engine. None: no place."""
    accelerators, config, name = devices.list_accelerators(), run.config(), read_spec(run).engine
    others = [other for other in running if read_spec(other).engine == name]
    if (places := engine_of(run).places) is not None:
        return () if len(others) < places else None
    if len(accelerators) < 2:
        return None if others else ()
    taken: set[str] = set()
    for other in others:
        taken |= set(workers.worker_devices(other) or accelerators)
    free = [name for name in accelerators if name not in taken]
    most = len(accelerators)
    needed = most if config.accelerate_config else min(config.num_processes, most)
    return tuple(free[:needed]) if len(free) >= needed else None


def _start(store: RunStore, run: Run, accelerators: tuple[str, ...]) -> None:
    """Give the run to a worker and take it out of the queue, as the worker itself also does."""
    # Accelerate's file may name others beside it; visitors cannot name one.
    cwd = Path.cwd() if run.config().accelerate_config else None
    run.process_file.unlink(missing_ok=True)
    if not read_spec(run).job and run.state().count > 0:  # otherwise it is followed again
        resume(run)
    confinement = workers.run_files(run)
    if is_remote(run):
        token = f"{kept_token(run.id)}\n".encode()
        workers.spawn_worker(run, stdin=token, confinement=confinement)
    elif accelerators or not workers.give_to_warm_worker(store, run, confinement):
        workers.spawn_worker(run, accelerators, cwd, confinement=confinement)
    Queue(store.root).begin(run.id)


def running_runs(store: RunStore) -> list[Run]:
    """Return everybody's runs with a live worker, on all engines."""
    return [run for run in store.everyone.runs() if run.is_alive()]


def is_training_here(store: RunStore) -> bool:
    """True if a run is being carried out on this machine."""
    return not all(map(is_remote, running_runs(store)))


def _stop_overdue(store: RunStore) -> None:
    """Stop visitors' runs that have reached the time limit of a run."""
    limit = owners.policy().limits.run_minutes
    reason = message("It was worked on for {n} minutes, as long as a run may be.", n=limit)
    for run in running_runs(store) if limit < math.inf else ():
        summary = run.state()
        if not run.owner or run.stop_requested() or summary.end_recorded:
            continue
        if not engine_of(run).is_billed and summary.worked_until_now > 60 * limit:
            run.request_stop(reason=reason)
            if not is_remote(run):  # otherwise its worker passes it on
                workers.end_worker(run)


def remove_leftovers(store: RunStore) -> None:
    """Remove leftovers of a crash: deletions and folders that were being made. On a shared app also
    read pairs not requested for a day, and temporary folders of workers that outlived their app."""
    ages = {(store.root, ".deleted-*"): 0.0, (store.root, ".new-*"): _DAY}
    if owners.policy().several_people:
        temporary = Path(tempfile.gettempdir())
        ages |= {(store.root, "data/*"): _DAY, (temporary, f"{workers.TEMPORARY}*"): _WEEK}
    for (root, pattern), age in ages.items():
        for folder in root.glob(pattern):
            with contextlib.suppress(OSError):  # it has just gone
                if folder.is_dir() and (not age or folder.stat().st_mtime < time.time() - age):
                    shutil.rmtree(folder, ignore_errors=True)


class Scheduler(threading.Thread):
    """A thread that starts queued runs as long as its app lives, with its own priority.

    Args:
        warm: keep a warm worker (half a gigabyte) while nothing trains.
        every: seconds between two checks of the queue.
        release: called before a run is started while none is at work, to free device memory.
        periodic: called with the store at each check of the queue.
    """

    _told = ""  # the last error that was logged in one line

    def __init__(
        self,
        store: RunStore,
        warm: bool = False,
        every: float = 0.5,
        release: Callable[[], None] = lambda: None,
        periodic: Sequence[Callable[[RunStore], None]] = (),
    ) -> None:
        super().__init__(name="scheduler", daemon=True)
        self._store, self._warm, self._every, self._release = store.everyone, warm, every, release
        self._periodic = periodic
        self._cleaned = -_HOUR  # time of the last removal of leftovers
        self._at_work: list[Run] = []  # running at the last check; kept if their end is announced
        self._requests: SimpleQueue[threading.Event | None] = SimpleQueue()  # None to end

    def close(self) -> None:
        """Stop the thread; runs go on."""
        self._requests.put(None)
        self.join(5)

    def tick_now(self) -> None:
        """Check the queue now, and wait until that is done."""
        done = threading.Event()
        self._requests.put(done)
        done.wait(3)

    def run(self) -> None:
        _schedulers[self._store.root] = self
        for run in self._store.runs():
            with self._logged():
                self._take_up(run)
        while True:
            done: threading.Event | None = threading.Event()
            with contextlib.suppress(Empty):
                done = self._requests.get(timeout=self._every)
            if done is None:
                return
            with self._logged():
                self._tick()
            done.set()

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        """Log errors, because a bug must not stop the queue for ever. An error that people can fix,
        such as a full disk, takes one line, and another only when it changes."""
        told: FinetuneError | None = None
        try:
            yield
        except Exception as error:
            told = disk.explained(error)
            if told is None:
                _log.exception("the scheduler stumbled")
        text = str(told or "")
        if text and text != self._told:
            _log.error("the scheduler waits: %s", text)
        self._told = text

    def _take_up(self, run: Run) -> None:
        """Clean up a run, or queue it again, when the app starts."""
        # Read now, so that opening the page is fast.
        finished = run.state().status == "finished"
        if finished and not run.is_alive():  # its worker may have been killed before it did so
            shutil.rmtree(run.checkpoints_folder, ignore_errors=True)
        if read_spec(run).job and not (run.is_alive() or owners.policy().several_people):
            with store_lock(self._store):  # its job may go on elsewhere
                Queue(self._store.root).add(run.id, run.owner)

    def _tick(self) -> None:
        store = self._store
        if time.monotonic() > self._cleaned + _HOUR:
            self._cleaned = time.monotonic()
            remove_leftovers(store)
        if Queue(store.root).waiting() and not is_training_here(store):
            self._release()
        _stop_overdue(store)
        _dispatch(store)
        background.start_waiting(store)
        for look in self._periodic:
            look(store)
        if os.environ.get(WEBHOOK):
            running = running_runs(store)
            ids = {run.id for run in running}
            for run in self._at_work:
                ended = run.id not in ids and run.folder.is_dir()
                if ended and (state := run.state()).status in ENDED:
                    announce(run, state)
            self._at_work = running
        if self._warm and not is_training_here(store):
            with store_lock(store):
                workers.start_warm_worker(store)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into an error: a POST that is redirected arrives without its body."""

    def redirect_request(self, *_: object) -> None:
        return None


def announce(run: Run, summary: RunSummary) -> threading.Thread:
    """Announce in the thread that is returned that a run has ended. A failure is only logged."""
    address = os.environ.get(WEBHOOK, "")

    def work() -> None:
        try:
            send(address, run, summary)
        except (OSError, ValueError, http.client.HTTPException) as error:
            # Without the address: anyone who knows it can write to the owner's chat.
            said = (
                error if isinstance(error, OSError) else "it is no address of https:// or http://"
            )
            _log.warning("%s: %s of %s was not sent: %s", WEBHOOK, summary.status, run.id, said)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def send(address: str, run: Run, summary: RunSummary) -> None:
    """Post the news of a run to an http or https address, which may be in the owner's network.
    OSError if the address does not take it, ValueError or HTTPException if it is none."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        raise ValueError("the address has to begin with https:// or http://")
    body = json.dumps(news(parts.hostname or "", run, summary)).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    urllib.request.build_opener(_NoRedirects).open(request, timeout=_ANSWER_LIMIT).close()


def news(host: str, run: Run, summary: RunSummary) -> dict[str, Any]:
    """Return the news as Slack, Discord or another service reads it: the run's name, status and
    scores; no sentence, file name or token."""
    scores = report.kept_metrics(run, summary)
    name = run.title(public=True)
    text = f"{name}: {summary.status}"
    for metric in dict.fromkeys((summary.task.headline, *summary.task.metrics)):
        if metric.name in scores:
            text += f", {metric_name(metric.name, summary.classes)} {scores[metric.name]:.3f}"
    if host == "hooks.slack.com":
        return {"text": html.escape(text, quote=False)}
    if host in ("discord.com", "discordapp.com"):
        return {"content": text, "allowed_mentions": {"parse": []}}
    return {
        "run": run.id, "name": name, "status": summary.status, "text": text,
        **{metric.name: scores.get(metric.name) for metric in summary.task.metrics},
    }  # fmt: skip
