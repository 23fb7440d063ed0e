"""Background jobs: start one in a process of its own, say its state, carry it out."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from finetune import disk, logs
from finetune.errors import FinetuneError, JobError, StoreError
from finetune.jobs import workers
from finetune.jobs.kinds import KINDS
from finetune.phases import Phase
from finetune.runs import events
from finetune.runs.events import Event
from finetune.runs.job_folder import JobFolder, hold_lock
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, JobState, fold_job

State = TypeVar("State", bound=JobState)
_NEW = ".new-"  # before the name of a job's folder while it is being filled
_FREE = 2**20  # bytes left on a disk, below which no event more can be relied on


@contextlib.contextmanager
def store_lock(store: RunStore) -> Iterator[None]:
    """One change at a time of what runs and what waits, whichever process makes it.

    Raises:
        JobError: when another change takes too long.
    """
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
    kind: str,
    job: JobFolder,
    request: dict[str, Any] | None = None,
    prepare: Callable[[Path], None] = lambda folder: None,
    admit: Callable[[list[JobFolder]], None] = lambda running: None,
    stdin: bytes = b"",
) -> None:
    """Start a job, unless it is at work already; what a former one left in its folder is gone.

    Args:
        kind: a name in `KINDS`.
        request: what is asked for, as its function reads it.
        prepare: puts into the folder what the job needs.
        admit: called with the jobs of this kind that are at work; raises where no more may.
        stdin: what the worker can read once; a secret.

    Raises:
        JobError: when too many are at work, or no process can be started.
        StoreError: when the folder cannot be made.
    """
    new = JobFolder(job.folder.with_name(f"{_NEW}{secrets.token_hex(8)}-{job.id}"))
    try:
        with store_lock(store):
            if job.is_alive():
                if job_state(job).running:
                    return
                workers.kill_worker(job)  # it has said its last word, and is just leaving
            running = _running(store, kind)
            if len(running) >= KINDS[kind].limit:
                raise JobError(f"{len(running)} {KINDS[kind].busy}.", "Try again in a minute.")
            admit(running)
            with disk.writing(job.folder):
                new.folder.mkdir(parents=True)
                lock = hold_lock(new.lock_file)
        # Outside the lock: a large file may be copied. The job counts as at work already.
        try:
            with disk.writing(job.folder):
                new.describe_job(kind, store.visitor.name, request)
                prepare(new.folder)
            with store_lock(store):
                _replace(job.folder, new.folder)
                passed_on, lock = lock, None
                workers.spawn_worker(job, lock=passed_on, stdin=stdin)
        finally:
            if lock is not None:
                os.close(lock)
    except FinetuneError:
        if not job.is_alive():
            shutil.rmtree(job.folder, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(new.folder, ignore_errors=True)


def _running(store: RunStore, kind: str) -> list[JobFolder]:
    """The jobs of a kind that are at work; folders that a killed app left half filled are
    removed."""
    jobs = [JobFolder(path) for path in store.root.glob(f"{KINDS[kind].folders}/")]
    running = [job for job in jobs if job.is_alive()]
    for job in jobs:
        if job.id.startswith(_NEW) and job not in running:
            shutil.rmtree(job.folder, ignore_errors=True)
    return running


def _replace(folder: Path, new: Path) -> None:
    """Put a filled folder in the place of a former job's."""
    former = folder.with_name(f".old-{secrets.token_hex(8)}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(former)  # at once: whoever reaps its worker may still write there
    new.rename(folder)
    shutil.rmtree(former, ignore_errors=True)


def job_state(job: JobFolder) -> JobState:
    """How far a job is; `none` where nobody asked for it."""
    if not job.folder.is_dir():
        return JobState("none")
    return current_state(job, lambda: fold_job(job.tail()[0]))


def current_state(job: JobFolder, fold: Callable[[], State]) -> State:
    """What a job's events tell, and whether its worker still lives.

    Args:
        fold: the state as the events tell it.
    """
    state = fold()
    if state.status in ENDED:
        return state
    if job.is_alive():
        return replace(state, status="running")
    state = fold()  # it may have written its last event just before it ended
    if state.status in ENDED:
        return state
    ended = _last_change(job)
    if job.stop_requested():
        return replace(state, status="stopped", ended=ended, error=job.stop_reason())
    error, remedy = _cause_of_death(job)
    return replace(state, status="interrupted", ended=ended, error=error, remedy=remedy)


def _last_change(job: JobFolder) -> float:
    paths = (job.events_file, job.folder / "job.json")
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def _cause_of_death(job: JobFolder) -> tuple[str, str]:
    """Why a worker ended without a last event, and the remedy; empty where nothing is known."""
    training = job.kind == "train"
    with contextlib.suppress(OSError):
        if shutil.disk_usage(job.folder).free < _FREE:
            return "The disk is full.", "Free some space and press Resume: nothing saved is lost."
    if workers.killed_by(job) == signal.SIGKILL:
        error = "The worker was killed, as the system does when memory runs out."
        return error, _SMALLER_BATCH if training else "Free some memory and try again."
    return ("", "") if training else ("It ended unexpectedly.", "Its log may say why. Try again.")


_SMALLER_BATCH = (
    "Free some memory and press Resume, or start anew with a smaller per_device_train_batch_size "
    "and more gradient_accumulation_steps, which learns the same."
)


def carry_out(job: JobFolder, phase: Phase, work: Callable[[], Event], remedy: str = "") -> int:
    """Do a job's work in its own process, its end as an event; the exit status.

    Args:
        phase: the first.
        work: does it, and returns the last event.
        remedy: what to do after an error nobody foresaw; the log has its traceback.
    """
    try:
        job.append(events.PhaseStarted(phase=phase))
        job.append(work())
        return 0
    except FinetuneError as error:
        job.append(events.Failed(error=error.fact, remedy=error.remedy))
    except Exception as error:
        if disk.is_full(error):
            full = disk.failure("A file of the job", error, StoreError)
            job.append(events.Failed(error=full.fact, remedy=full.remedy))
            return 1
        logs.print_traceback()
        text = (logs.unsigned(str(error)).strip().splitlines() or [""])[0][:300]
        job.append(events.Failed(error=f"{type(error).__name__}: {text}", remedy=remedy))
    return 1
