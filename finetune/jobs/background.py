"""Background jobs: the code shared by all kinds."""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from filelock import FileLock, Timeout

from finetune import disk, owners
from finetune.data import catalog
from finetune.environment import hub_connection
from finetune.errors import DataError, FinetuneError, JobError, StoreError
from finetune.jobs import workers
from finetune.messages import message as _
from finetune.runs import events
from finetune.runs.events import Event, Phase
from finetune.runs.job_folder import JobFolder
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState


@contextlib.contextmanager
def store_lock(store: RunStore) -> Iterator[None]:
    """Allow one change at a time of what runs and what waits, across processes."""
    try:
        store.root.mkdir(parents=True, exist_ok=True)
        with FileLock(store.root / ".starting.lock", timeout=10):
            yield
    except Timeout:
        raise JobError("Another run is just being started.", "Try again in a moment.") from None
    except OSError as error:
        raise disk.failure(store.root, error, StoreError) from error


class BackgroundJob(JobFolder):
    """A job's folder, how to start it, and its work. Each kind of job is a subclass."""

    name: ClassVar[str]  # name of the kind in `job.json`
    folders: ClassVar[str]  # glob pattern of such jobs' folders below the store
    limit: ClassVar[int]  # most jobs running at a time, for all visitors; others wait
    minutes: ClassVar[float] = math.inf  # most time of its work
    has_limit: ClassVar[bool] = True  # False if nothing but its own end may end it
    phase: ClassVar[Phase]  # phase in which its work begins
    id_in_run: ClassVar[str] = "latest"  # of a kind that a run has one job of
    remedy: ClassVar[str] = ""  # for an unexpected error
    missing: ClassVar[tuple[str, str]] = "", ""  # what to say of a wrong id

    @classmethod
    def of(cls, run: Run, id: str = "") -> Self:
        """Return the job that lies in a run's folder."""
        return cls(run.folder / cls.folders.split("/")[1] / (id or cls.id_in_run))

    @classmethod
    def find(cls, store: RunStore, id: object) -> Self:
        """Return the visitor's job of an id. Raises a `DataError` for any other id."""
        if isinstance(id, str) and _ID.fullmatch(id):
            job = cls(store.root / cls.folders.split("/")[0] / id)
            if job.folder.is_dir() and store.visitor.owns(job.owner):
                return job
        raise DataError(*cls.missing)

    @classmethod
    def newest(cls, store: RunStore) -> list[Self]:
        """Return the visitor's jobs of a kind that lies in no run, the newest first."""
        jobs = [cls(path.parent) for path in store.root.glob(f"{cls.folders}/job.json")]
        owned = [job for job in jobs if store.visitor.owns(job.owner)]
        return sorted(owned, key=lambda job: job.created, reverse=True)

    @property
    def created(self) -> float:
        """Time of the request, in seconds since the epoch."""
        return (self.folder / "job.json").stat().st_mtime

    @property
    def run(self) -> Run:
        """The run in whose folder the job lies."""
        return Run(self.folder.parent.parent)

    def state(self) -> JobState:
        state = super().state()
        if state.status == "interrupted" and self.folder in _waiting:
            return JobState("waiting", phase=Phase.WAIT)
        return state

    def work(self, report: Report) -> Event | None:
        """Do the job in this process. Return its last event, or None for `Finished`."""
        raise NotImplementedError

    def carry_out(self) -> int:
        """Do the job in its own process and record how it ended. Return the exit status."""
        try:
            self.append(events.PhaseStarted(phase=self.phase))
            ended = self.work(EventProgress(self, self.phase))
            self.append(ended or events.Finished(step=0, seconds=0.0))
            return 0
        except Exception as error:
            self.append(events.failure_event(error, _("A file of the job"), self.remedy))
            return 1

    def stopped(self, seconds: float = 0.0) -> Event:
        """Return the last event of a job that ends because it was asked to."""
        return events.Stopped(step=0, seconds=seconds, reason=self.stop_reason())

    def end_in_time(self) -> None:
        """Request a stop when the job has reached its time limit, and end this process soon after,
        because a hanging download must not hold a place for ever."""
        minutes = min(self.minutes, owners.policy().limits.job_minutes)
        if minutes == math.inf or not self.has_limit:
            return
        reason = _("It was worked on for {n} minutes, as long as a job may be.", n=minutes)
        stop = threading.Timer(60 * minutes, self.request_stop, kwargs={"reason": reason})
        stop.daemon = True
        stop.start()
        signal.alarm(math.ceil(60 * minutes) + _PATIENCE)

    def begin(
        self,
        store: RunStore,
        request: dict[str, Any] | None = None,
        files: Mapping[str, Path] | None = None,
        admit: Callable[[], None] = lambda: None,
        stdin: bytes = b"",
    ) -> None:
        """Start the job in an empty folder, or let it wait for a place, unless it has been begun.

        Args:
            request: what is asked for, as `work` reads it.
            files: name in the folder -> a file to copy there.
            admit: called before the job gets its folder; raises if it may not.
            stdin: what the worker can read once; a secret.

        Raises:
            DataError: if nothing that the visitor starts could be theirs.
            JobError: if the visitor has too many jobs that wait.
        """
        if not store.visitor.may_start:
            raise DataError(*owners.NOBODY)
        new = JobFolder(store.root / f".new-{secrets.token_hex(8)}")
        owner = store.visitor.name
        try:
            with disk.writing(self.folder):  # outside the lock: a large file may be copied
                new.folder.mkdir(parents=True)
                new.describe_job(self.name, owner, request)
                for name, path in (files or {}).items():
                    shutil.copyfile(path, new.folder / name)
            with store_lock(store):
                if self.state().running:
                    return
                workers.kill_worker(self)  # it has written its last event and is ending
                _check_share(store)
                admit()
                with disk.writing(self.folder):
                    self.folder.parent.mkdir(parents=True, exist_ok=True)
                    disk.remove_folder(self.folder)  # by renaming: its worker's parent may write
                    new.folder.rename(self.folder)
                    others = self.folder.parent.glob("*/job.json")
                    disk.make_newest(self.folder / "job.json", others)
                _waiting[self.folder] = _Waiting(self, owner, request or {}, stdin)
                _start_waiting(store)
        finally:
            shutil.rmtree(new.folder, ignore_errors=True)


class _Waiting(NamedTuple):
    """A job that waits for a place. Its folder's request may be changed by a worker of its run."""

    job: BackgroundJob
    owner: str
    request: dict[str, Any]
    stdin: bytes


_ID = re.compile(r"[A-Za-z0-9_-]{16,24}")  # of a job that lies in no run
_PATIENCE = 30  # seconds from the time limit of a job to the end of its process
_waiting: dict[Path, _Waiting] = {}  # by folder, in the order of their requests
_served: dict[tuple[str, str], float] = {}  # kind and owner -> when their latest job began


def start_waiting(store: RunStore) -> None:
    """Start jobs that wait and have a place by now."""
    if _waiting:
        with store_lock(store):
            _start_waiting(store)


def _start_waiting(store: RunStore) -> None:
    while (chosen := _next(store)) is not None:
        job = chosen.job
        _served[job.name, chosen.owner] = time.monotonic()
        try:
            confinement = workers.job_files(job.name, store.root, job, chosen.request)
            workers.spawn_worker(job, stdin=chosen.stdin, confinement=confinement)
        except FinetuneError as error:
            with contextlib.suppress(StoreError):
                job.append(events.Failed(error=error.fact, remedy=error.remedy))
        finally:
            _waiting.pop(job.folder, None)


def _next(store: RunStore) -> _Waiting | None:
    """Return the job to start now: that of the owner who was served least recently. In a shared app
    an owner has one place of a kind."""
    waiting = [one for one in list(_waiting.values()) if one.job.folder.is_relative_to(store.root)]
    for one in sorted(waiting, key=lambda one: _served.get((one.job.name, one.owner), 0.0)):
        if one.job.stop_requested():
            _waiting.pop(one.job.folder)
            continue
        jobs = map(JobFolder, store.root.glob(f"{one.job.folders}/"))
        at_work = [job.owner for job in jobs if job.is_alive()]
        at_most = owners.policy().limits.at_once
        if len(at_work) < one.job.limit and at_work.count(one.owner) < at_most:
            return one
    return None


def _check_share(store: RunStore) -> None:
    """Check that the visitor may have one more job that waits."""
    limits, waiting = store.visitor.policy.limits, [one.owner for one in list(_waiting.values())]
    own = waiting.count(store.visitor.name)
    if own >= limits.waiting or len(waiting) >= limits.queue:
        raise JobError(
            "{n} jobs wait already, {own} of them yours.",
            "Try again when one has ended.",
            n=len(waiting),
            own=own,
        )


def keep_newest(folder: Path, count: int) -> None:
    """Remove the oldest jobs of a folder beyond a count, except those at work."""
    begun: dict[Path, float] = {}
    for path in folder.glob("*/job.json"):
        with contextlib.suppress(OSError):  # another one has just been removed
            begun[path.parent] = path.stat().st_mtime
    for old in sorted(begun, key=begun.__getitem__)[:-count]:
        if not JobFolder(old).is_alive() and old not in _waiting:
            shutil.rmtree(old, ignore_errors=True)


def choose_offline(dataset: str, checkpoint: str, metrics: Sequence[str] = ()) -> None:
    """Let the Hugging Face libraries work offline if the Hub is not needed or silent. Call it
    before they are imported; without an answer they would try for up to 46 seconds."""
    if not catalog.needs_hub(dataset, checkpoint, metrics) or not hub_connection.hub_is_reachable():
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"


Report = Callable[[Phase, str, int, int], None]  # gets phase, detail, done and total


class EventProgress:
    """Progress as events, a few a second at most. `phase` and `detail` are the present ones."""

    def __init__(self, job: JobFolder, phase: Phase, detail: str = "") -> None:
        self._job, self._current, self._last = job, (phase, detail), 0.0

    def __call__(self, phase: Phase, detail: str, done: int, total: int) -> None:
        if (phase, detail) != self._current:
            self._current = phase, detail
            self._job.append(events.PhaseStarted(phase=phase, detail=detail))
        elif done != total and time.monotonic() - self._last < 0.3:
            return
        if done:
            self._job.append(events.Progressed(done=done, total=total))
        self._last = time.monotonic()
