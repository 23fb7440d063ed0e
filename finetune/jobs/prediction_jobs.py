"""Files of pairs that a model shall judge, each in a process of its own.

    <store>/batches/<id>/
        asked.json     which model, file, columns and options; whose it is
        input.csv      the file as it was brought (or .tsv, .jsonl, .json, .parquet, also .gz)
        result.csv     the same with the predictions, while it grows and when it is done
        head.json      its first 100 rows, for the page
        report.json    rows, errors, and the scores where there are labels; until it ends only how
                   many of the rows so far the model was trained on, where there are any
        events.jsonl, console.log, job.json, STOP   as a run's

Free of torch, for the page; how the file is judged is `batch`'s business.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from finetune import disk, uploads
from finetune.disk import write_atomically
from finetune.errors import DataError, FinetuneError, JobError, StoreError
from finetune.inference.file_request import PredictionRequest, check_columns
from finetune.jobs import background, workers
from finetune.owners import NOBODY, Limits
from finetune.runs.store import Run, RunStore
from finetune.runs.summary import fold_events

MOST = 2  # at a time, for all visitors
KEPT = 5  # of each visitor; older ones make room
_ASIDE = ".new-"  # before the id of a batch whose file is still being copied
_ID = re.compile(r"[A-Za-z0-9_-]{16,24}")


@dataclass(frozen=True)
class PredictionState:
    """How far a batch is.

    Args:
        status: `running`, `finished`, `stopped` or `failed`.
        done, total: rows; `total` 0 while unknown.
        head: the first rows of the result.
        report: what it came to; until it ends how many rows the model was trained on, or nothing.
        error, remedy: why it failed.
    """

    status: str
    done: int = 0
    total: int = 0
    head: list[dict[str, Any]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    remedy: str = ""


class PredictionJob(Run):
    """One batch's folder."""

    def asked(self) -> PredictionRequest:
        """What was asked for.

        Raises:
            DataError: when the folder is gone or damaged.
        """
        try:
            return PredictionRequest(**self.read_json(self.folder / "asked.json"))
        except TypeError as error:
            raise _none() from error

    @property
    def when(self) -> float:
        """When it was asked for, in seconds since the epoch; 0 where that is not known."""
        try:
            return (self.folder / "asked.json").stat().st_mtime
        except OSError:
            return 0.0

    @property
    def input(self) -> Path:
        """The file to be judged.

        Raises:
            DataError: when it is gone.
        """
        found = next(iter(self.folder.glob("input.*")), None)
        if found is None:
            raise _none()
        return found

    @property
    def result(self) -> Path | None:
        """The judged file; None while there is none."""
        return next(iter(self.folder.glob("result.*")), None)


def start_prediction(store: RunStore, asked: PredictionRequest, path: Path) -> PredictionJob:
    """Judge a file in a process of its own.

    Args:
        path: where the file lies now; it is copied.

    Raises:
        DataError: when the file or its columns cannot be used, or is larger than may be with what
            the visitor's runs are of.
        JobError: when the run has no model, too many batches are going on, or no process can be
            started.
        StoreError: when it cannot be kept.
    """
    run = store.get(asked.run)
    if not run.has_model():
        raise JobError("This run has no model.", "Choose a run that was evaluated at least once.")
    named = check_columns(asked, path, fold_events(run.tail()[0]).paired)
    if not store.visitor.may_start:
        raise DataError(*NOBODY)
    size, most = path.stat().st_size, Limits.of_environment().upload_bytes
    if not store.visitor.alone and size > most:
        raise DataError(
            f"{asked.file} has {size / 2**20:.0f} MB; a visitor may bring {most / 2**20:.0f} MB.",
            "Bring a part of the rows.",
        )
    aside, lock = _reserve(store, named, size)
    batch = PredictionJob(store.root / "batches" / aside.id.removeprefix(_ASIDE))
    try:
        shutil.copyfile(path, aside.folder / f"input{uploads.file_suffix(asked.file)}")
        with workers.store_lock(store):
            os.replace(aside.folder, batch.folder)
            os.close(lock)  # the process takes it
            lock = -1
            workers.spawn_worker(batch, "finetune.jobs.predict_file", "--folder")
    except (OSError, FinetuneError) as error:
        for folder in (aside.folder, batch.folder):
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise disk.failure("The file", error, StoreError) from error
        raise
    finally:
        if lock >= 0:
            os.close(lock)
    return batch


def _reserve(store: RunStore, asked: PredictionRequest, size: int) -> tuple[PredictionJob, int]:
    """A folder to copy the file into while others change the store, and its lock: as long as this
    process holds that, the batch is going on.

    Raises:
        JobError: when too many are.
        DataError: when the visitor has as much as they may.
        StoreError: when the folder cannot be made.
    """
    with workers.store_lock(store):
        copies = [PredictionJob(path) for path in (store.root / "batches").glob(f"{_ASIDE}*/")]
        going = [one for one in (*_all(store), *copies) if workers.alive(one)]
        mine = any(store.visitor.owns(_owner(one)) for one in going)
        if len(going) >= MOST or (not store.visitor.alone and mine):
            raise JobError(
                f"{len(going)} batch is going on." if len(going) == 1 else
                f"{len(going)} batches are going on.", "Wait for its end, or cancel it.",
            )  # fmt: skip
        for left in copies:  # by an app that was killed
            if not workers.alive(left):
                shutil.rmtree(left.folder, ignore_errors=True)
        _make_room(store, newest_predictions(store)[::-1], size)
        aside = PredictionJob(store.root / "batches" / f"{_ASIDE}{secrets.token_urlsafe(15)}")
        try:
            aside.folder.mkdir(parents=True)
            made = replace(asked, owner=store.visitor.name)
            write_atomically(aside.folder / "asked.json", json.dumps(asdict(made)) + "\n")
            lock = workers.hold(aside.lock_file)
        except OSError as error:
            raise disk.failure("The file", error, StoreError) from error
    assert lock is not None, "nobody else knows the name"
    return aside, lock


def _make_room(store: RunStore, mine: list[PredictionJob], size: int) -> None:
    """See that another file may be kept; the visitor's oldest batches make room for it.

    Raises:
        DataError: when that would not be enough.
    """
    most = Limits.of_environment().upload_bytes
    had = store.uploads.make_room(size)
    for place, old in enumerate(mine):
        full = not store.visitor.alone and had + store.judged_bytes() + size > most
        if (full or len(mine) - place >= KEPT) and not workers.alive(old):
            shutil.rmtree(old.folder, ignore_errors=True)


def get_prediction(store: RunStore, batch_id: object) -> PredictionJob:
    """The visitor's batch of that id.

    Raises:
        DataError: for anything else, and for another's.
    """
    if not isinstance(batch_id, str) or not _ID.fullmatch(batch_id):
        raise _none()
    batch = PredictionJob(store.root / "batches" / batch_id)
    if not batch.folder.is_dir():
        raise _none()
    if not store.visitor.owns(batch.asked().owner):
        raise _none()
    return batch


def newest_predictions(store: RunStore) -> list[PredictionJob]:
    """The visitor's batches, the newest first."""
    mine = [one for one in _all(store) if store.visitor.owns(_owner(one))]
    return sorted(mine, key=lambda one: one.when, reverse=True)


def prediction_state(batch: PredictionJob) -> PredictionState:
    """How far a batch is, from its folder."""
    found = background.job_progress(batch)
    head = batch.read_json(batch.folder / "head.json").get("rows", [])
    report = batch.read_json(batch.folder / "report.json")
    return PredictionState(
        found.status or "failed", found.done, found.total, head, report, found.error, found.remedy
    )


def cancel_prediction(batch: PredictionJob) -> None:
    """Ask a batch to end; what is judged by then is kept."""
    batch.request_stop()
    workers.end_worker(batch, 10, 20)


def _all(store: RunStore) -> list[PredictionJob]:
    """All batches; whatever else lies there is none."""
    return [
        PredictionJob(path)
        for path in (store.root / "batches").glob("*/")
        if _ID.fullmatch(path.name)
    ]


def _owner(batch: PredictionJob) -> str:
    found: Mapping[str, Any] = batch.read_json(batch.folder / "asked.json")
    return str(found.get("owner", ""))


def _none() -> DataError:
    return DataError("There is no such batch.", "Start one.")
