"""A background job's folder: the part that training runs and all other jobs share.

<folder>/
    job.json        format, kind, owner and request; written once
    process.json    pid and accelerators of the worker, needed to send it a signal
    events.jsonl    append-only; the job's state is a fold over it
    console.log     the worker's output
    .lock           held by the worker while it lives; the kernel releases it when it dies
    .rank-lock      the same, held by the first of several processes of a training run
    STOP            asks the worker to stop
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from finetune import disk
from finetune.environment import logs
from finetune.errors import StoreError
from finetune.messages import decode, encode
from finetune.messages import message as _
from finetune.runs import events
from finetune.runs.events import Event
from finetune.runs.summary import ENDED, JobState

State = TypeVar("State", bound=JobState)

FORMAT = 2  # of a job's folder; version 0.1 of the app wrote folders without a number
_CHUNK = 4 * 2**20  # bytes of events folded at a time
_HEAD = 200  # bytes by which a file of events is known: the first has its time


class PathInside:
    """A path within a job's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, job: JobFolder, owner: type) -> Path:
        return job.folder / self._name


class JobFolder:
    """A job's folder. Cheap to create: it holds only the path."""

    events_file = PathInside("events.jsonl")
    log_file = PathInside("console.log")
    process_file = PathInside("process.json")
    lock_file = PathInside(".lock")
    rank_lock_file = PathInside(".rank-lock")
    stop_file = PathInside("STOP")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def id(self) -> str:
        return self.folder.name

    def describe_job(self, kind: str, owner: str, request: dict[str, Any] | None = None) -> None:
        """Record the job's kind (one of `jobs.worker.JOBS`), owner and request."""
        record = {"format": FORMAT, "kind": kind, "owner": owner, "request": request or {}}
        disk.write_atomically(self.folder / "job.json", json.dumps(record, indent=2) + "\n")

    @property
    def description(self) -> dict[str, Any]:
        """What `describe_job` recorded; empty if it cannot be read."""
        return disk.read_cached_or({}, self.folder / "job.json", disk.parse_object)

    @property
    def owner(self) -> str:
        """The owner of the job; "" outside a shared app."""
        return str(self.description.get("owner", ""))

    @property
    def request(self) -> dict[str, Any]:
        request = self.description.get("request")
        return request if isinstance(request, dict) else {}

    def is_alive(self) -> bool:
        """True from just before the start of the job's worker until its last process ends."""
        return _is_held(self.lock_file) or _is_held(self.rank_lock_file)

    def check_writable(self) -> None:
        """Hook before important writes; raises if this process may no longer write."""

    def append(self, event: Event) -> None:
        self.append_line(event.model_dump_json().encode())

    def append_line(self, line: bytes) -> None:
        """Append the JSON line of an event."""
        self.check_writable()
        otherwise = _("the model saved last is kept")
        with disk.writing(self.events_file, StoreError, otherwise):
            disk.append_line(self.events_file, line)

    def tail(self, offset: int = 0, limit: int = -1) -> tuple[list[Event], int]:
        """Return the events in `limit` bytes after `offset`, and the offset for the next call.

        A last line without its newline is still being written and is left for the next call.
        """
        text = disk.read_part(self.events_file, offset, limit)
        whole = text[: text.rfind(b"\n") + 1]
        parsed = map(events.from_json, whole.split(b"\n"))
        return [event for event in parsed if event is not None], offset + len(whole)

    def state(self) -> JobState:
        """The progress of the job; its status is `none` if nobody asked for it."""
        if not self.folder.is_dir():
            return JobState("none")
        state = self._state_as(JobState)
        if state.status == "interrupted":
            state.error = _("It ended unexpectedly.")
            state.remedy = _("Its log may say why. Try again.")
        return state

    def _state_as(self, kind: type[State]) -> State:
        """Combine the fold of the job's events with its lock. A dead worker without a last event
        was stopped if that was requested, or interrupted."""
        alive = self.is_alive()  # asked first: the worker may write its last event and end now
        fold: _Fold[State] = _folds.setdefault((self.folder, kind), _Fold(kind))
        state = fold.read(self)
        if state.end_recorded:
            return state
        if alive:
            return replace(state, status="running")
        ended = self.events_file.stat().st_mtime if self.events_file.exists() else 0.0
        if self.stop_requested():
            return replace(state, status="stopped", ended=ended, error=self.stop_reason())
        return replace(state, status="interrupted", ended=ended)

    def request_stop(self, discard: bool = False, reason: str = "") -> None:
        """Ask the worker to stop at its next step; `reason` is the app's if no person asked."""
        disk.write_atomically(
            self.stop_file, json.dumps({"discard": discard, "reason": encode(reason)})
        )

    def stop_requested(self) -> bool:
        """True if someone asked this job to stop, or has removed it."""
        return self.stop_file.exists() or not self.folder.is_dir()

    def discard_requested(self) -> bool:
        return disk.read_json(self.stop_file).get("discard") is True

    def stop_reason(self) -> str:
        """Why the app asked the job to stop; "" if a person did."""
        reason: str = decode(disk.read_json(self.stop_file).get("reason", ""))
        return reason

    def log_tail(self, size: int = 20_000) -> str:
        """The last `size` bytes of the worker's output, without codes for a terminal."""
        text = disk.read_part(self.log_file, max(0, self.log_size() - size))
        return logs.without_codes(text.decode("utf-8", errors="replace"))

    def log_size(self) -> int:
        return self.log_file.stat().st_size if self.log_file.exists() else 0


class _Fold(Generic[State]):
    """The fold of a job's events, as far as they were read."""

    def __init__(self, kind: type[State]) -> None:
        self._kind = kind
        self._lock = threading.Lock()  # one for each job, so that a long fold does not delay others
        self._head, self._offset, self._state = b"", 0, kind()

    def read(self, job: JobFolder) -> State:
        """Fold the new events and return a copy of the state."""
        with self._lock:
            head = disk.read_part(job.events_file, 0, len(self._head))
            if head != self._head:  # another job's by now
                self._head, self._offset, self._state = b"", 0, self._kind()
            fresh, end = job.tail(self._offset, _CHUNK)
            while end > self._offset:
                self._head = self._head or disk.read_part(job.events_file, 0, min(end, _HEAD))
                self._state.fold(fresh)
                self._offset = end
                fresh, end = job.tail(self._offset, _CHUNK)
            return replace(self._state, end_recorded=self._state.status in ENDED)


_folds: dict[tuple[Path, type[JobState]], _Fold[Any]] = {}


def forget_state(job: JobFolder) -> None:
    """Drop the fold of a job that is removed."""
    for key in [key for key in list(_folds) if key[0] == job.folder]:
        _folds.pop(key, None)


def hold_lock(path: Path) -> int | None:
    """Return a descriptor that holds a lock until every process with it ends; None if taken."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + 1  # `is_alive` holds it too, for an instant
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        time.sleep(0.01)
    os.close(handle)
    return None


def _is_held(path: Path) -> bool:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two readers do not collide
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
