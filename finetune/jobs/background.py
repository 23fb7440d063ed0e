"""Background jobs: their kinds; how to start one, say its state and carry it out."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from finetune import disk
from finetune.data import catalog
from finetune.environment import hub_connection
from finetune.errors import JobError, StoreError
from finetune.jobs import worker_files, workers
from finetune.messages import message as _
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder
from finetune.runs.store import RunStore


@dataclass(frozen=True)
class JobKind:
    """One kind of job; its module has a function `<name>_job`, which the worker calls."""

    name: str  # as `job.json` has it, and of its module
    folders: str  # where such jobs lie below the store, as a pattern
    limit: int = 0  # at work at a time, for all visitors; 0 where the queue decides
    busy: str = ""  # the message when `n` of them are at work and no more may be

    def carry_out(self, job: JobFolder) -> int:
        """Do the job in this process; its exit status."""
        module = import_module(f"finetune.jobs.{self.name}")
        status: int = getattr(module, f"{self.name}_job")(job)
        return status


KINDS = {
    kind.name: kind
    for kind in (
        JobKind("train", "*"),
        JobKind("check", "checks/*", 3, _("{n} data checks are running.")),
        JobKind("evaluate", "*/evaluations/*", 2, _("{n} models are being scored.")),
        JobKind("predict", "batches/*", 2, _("{n} files are being predicted.")),
        JobKind("export", "*/exports/*", 2, _("{n} models are being exported.")),
        JobKind("push", "*/pushes/*", 4, _("{n} pushes are running.")),
    )
}


@contextlib.contextmanager
def store_lock(store: RunStore) -> Iterator[None]:
    """One change at a time of what runs and what waits, whichever process makes it."""
    try:
        store.root.mkdir(parents=True, exist_ok=True)
        with FileLock(store.root / ".starting.lock", timeout=10):
            yield
    except Timeout:
        raise JobError("Another run is just being started.", "Try again in a moment.") from None
    except OSError as error:
        raise disk.failure(store.root, error, StoreError) from error


def start_job(
    store: RunStore,
    job: JobFolder,
    kind: str,
    request: dict[str, Any] | None = None,
    files: Mapping[str, Path] | None = None,
    admit: Callable[[list[JobFolder]], None] = lambda running: None,
    stdin: bytes = b"",
) -> None:
    """Start a job in an empty folder, unless it is at work already.

    Args:
        kind: a name in `KINDS`.
        request: what is asked for, as its function reads it.
        files: name in the folder -> a file to copy there.
        admit: called with the jobs of this kind that are at work; raises where no more may.
        stdin: what the worker can read once; a secret.
    """
    new = JobFolder(store.root / f".new-{secrets.token_hex(8)}")
    try:
        with disk.writing(job.folder):  # outside the lock: a large file may be copied
            new.folder.mkdir(parents=True)
            new.describe_job(kind, store.visitor.name, request)
            for name, path in (files or {}).items():
                shutil.copyfile(path, new.folder / name)
        with store_lock(store):
            if job.state().running:
                return
            workers.kill_worker(job)  # it has said its last word, and is just leaving
            jobs = map(JobFolder, store.root.glob(f"{KINDS[kind].folders}/"))
            running = [job for job in jobs if job.is_alive()]
            if len(running) >= KINDS[kind].limit:
                raise JobError(KINDS[kind].busy, "Try again in a minute.", n=len(running))
            admit(running)
            with disk.writing(job.folder):
                job.folder.parent.mkdir(parents=True, exist_ok=True)
                disk.remove_folder(job.folder)  # by renaming: who reaps its worker may write there
                new.folder.rename(job.folder)
            confinement = worker_files.of_job(kind, store.root, job, request or {})
            workers.spawn_worker(job, stdin=stdin, confinement=confinement)
    finally:
        shutil.rmtree(new.folder, ignore_errors=True)


def carry_out(
    job: JobFolder, phase: Phase, work: Callable[[], events.Event | None], remedy: str = ""
) -> int:
    """Do a job's work in its own process; the exit status. `work` returns the last event where that
    is not `Finished`, and `remedy` is for an error that nobody foresaw."""
    try:
        job.append(events.PhaseStarted(phase=phase))
        job.append(work() or events.Finished(step=0, seconds=0.0))
        return 0
    except Exception as error:
        job.append(events.failure_event(error, _("A file of the job"), remedy))
        return 1


def choose_offline(dataset: str, checkpoint: str) -> None:
    """Let the Hugging Face libraries work from the disk where the Hub is not needed or silent; call
    it before they are imported. Without the Hub's answer they would try for up to 46 seconds."""
    if not catalog.needs_hub(dataset, checkpoint) or not hub_connection.hub_is_reachable():
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"


class EventProgress:
    """Progress as events, a few a second at most; `phase` is the one that the job is in."""

    def __init__(self, job: JobFolder, phase: Phase) -> None:
        self._job, self._current, self._last = job, (phase, ""), 0.0

    def __call__(self, phase: Phase, detail: str, done: int, total: int) -> None:
        if (phase, detail) != self._current:
            self._current = phase, detail
            self._job.append(events.PhaseStarted(phase=phase, detail=detail))
        elif done != total and time.monotonic() - self._last < 0.3:
            return
        if done:
            self._job.append(events.Progressed(done=done, total=total))
        self._last = time.monotonic()
