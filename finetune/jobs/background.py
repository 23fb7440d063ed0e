"""Background jobs: the code shared by all kinds."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock, Timeout

from finetune import disk
from finetune.data import catalog
from finetune.environment import hub_connection
from finetune.errors import JobError, StoreError
from finetune.jobs import worker_files, workers
from finetune.messages import message as _
from finetune.runs import events
from finetune.runs.events import Event, Phase
from finetune.runs.job_folder import JobFolder
from finetune.runs.run import Run
from finetune.runs.store import RunStore


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
    limit: ClassVar[int]  # most jobs running at a time, for all visitors
    busy: ClassVar[str]  # message if `n` of them run and no more may
    phase: ClassVar[Phase]  # phase in which its work begins
    remedy: ClassVar[str] = ""  # for an unexpected error

    @property
    def run(self) -> Run:
        """The run in whose folder the job lies."""
        return Run(self.folder.parent.parent)

    def work(self) -> Event | None:
        """Do the job in this process. Return its last event, or None for `Finished`."""
        raise NotImplementedError

    def carry_out(self) -> int:
        """Do the job in its own process and record how it ended. Return the exit status."""
        try:
            self.append(events.PhaseStarted(phase=self.phase))
            self.append(self.work() or events.Finished(step=0, seconds=0.0))
            return 0
        except Exception as error:
            self.append(events.failure_event(error, _("A file of the job"), self.remedy))
            return 1

    def begin(
        self,
        store: RunStore,
        request: dict[str, Any] | None = None,
        files: Mapping[str, Path] | None = None,
        admit: Callable[[list[JobFolder]], None] = lambda running: None,
        stdin: bytes = b"",
    ) -> None:
        """Start the job in an empty folder, unless it is already running.

        Args:
            request: what is asked for, as `work` reads it.
            files: name in the folder -> a file to copy there.
            admit: called with the jobs of this kind that are at work; raises if no more may be.
            stdin: what the worker can read once; a secret.
        """
        new = JobFolder(store.root / f".new-{secrets.token_hex(8)}")
        try:
            with disk.writing(self.folder):  # outside the lock: a large file may be copied
                new.folder.mkdir(parents=True)
                new.describe_job(self.name, store.visitor.name, request)
                for name, path in (files or {}).items():
                    shutil.copyfile(path, new.folder / name)
            with store_lock(store):
                if self.state().running:
                    return
                workers.kill_worker(self)  # it has written its last event and is ending
                jobs = map(JobFolder, store.root.glob(f"{self.folders}/"))
                running = [job for job in jobs if job.is_alive()]
                if len(running) >= self.limit:
                    raise JobError(self.busy, "Try again in a minute.", n=len(running))
                admit(running)
                with disk.writing(self.folder):
                    self.folder.parent.mkdir(parents=True, exist_ok=True)
                    disk.remove_folder(self.folder)  # by renaming: its worker's parent may write
                    new.folder.rename(self.folder)
                    others = self.folder.parent.glob("*/job.json")
                    disk.make_newest(self.folder / "job.json", others)
                confinement = worker_files.of_job(self.name, store.root, self, request or {})
                workers.spawn_worker(self, stdin=stdin, confinement=confinement)
        finally:
            shutil.rmtree(new.folder, ignore_errors=True)


def keep_newest(folder: Path, count: int) -> None:
    """Remove the oldest jobs of a folder beyond a count, except those at work."""
    begun: dict[Path, float] = {}
    for path in folder.glob("*/job.json"):
        with contextlib.suppress(OSError):  # another one has just been removed
            begun[path.parent] = path.stat().st_mtime
    for old in sorted(begun, key=begun.__getitem__)[:-count]:
        if not JobFolder(old).is_alive():
            shutil.rmtree(old, ignore_errors=True)


def choose_offline(dataset: str, checkpoint: str, metrics: Sequence[str] = ()) -> None:
    """Let the Hugging Face libraries work offline if the Hub is not needed or silent. Call it
    before they are imported; without an answer they would try for up to 46 seconds."""
    if not catalog.needs_hub(dataset, checkpoint, metrics) or not hub_connection.hub_is_reachable():
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"


class EventProgress:
    """Progress as events, a few a second at most. `phase` and `detail` are the job's current
    ones."""

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
