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

from finetune import child_process, disk, errands, uploads, workers
from finetune.errors import DataError, FinetuneError, JobError, StoreError
from finetune.store import Run, RunStore, write_atomically
from finetune.summary import fold
from finetune.visitors import NOBODY, Limits

MOST = 2  # at a time, for all visitors
KEPT = 5  # of each visitor; older ones make room
NONE = "(none)"
_ASIDE = ".new-"  # before the id of a batch whose file is still being copied
COLUMNS = ("sentence1", "sentence2", "label")
_ID = re.compile(r"[A-Za-z0-9_-]{16,24}")


@dataclass(frozen=True)
class Asked:
    """What shall be judged, and how.

    Args:
        run: id of the run whose kept model judges.
        file: what the person calls the file.
        sentence1, sentence2, label: its columns; `sentence2` empty for single sentences, `label`
            empty where there is none.
        both_orders: average both orders of the sentences.
        threshold, calibrated: use what was saved with the model.
        owner: who asked.
    """

    run: str
    file: str
    sentence1: str
    sentence2: str = ""
    label: str = ""
    both_orders: bool = False
    threshold: bool = False
    calibrated: bool = False
    owner: str = ""


@dataclass(frozen=True)
class State:
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


class Batch(Run):
    """One batch's folder."""

    def asked(self) -> Asked:
        """What was asked for.

        Raises:
            DataError: when the folder is gone or damaged.
        """
        try:
            return Asked(**self.read_json(self.folder / "asked.json"))
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


def columns(path: Path, name: str) -> tuple[list[str], tuple[str, str, str]]:
    """The columns of a file that can be used, and the guess which are sentence1, sentence2 and
    label; "" for what is not clear.

    Raises:
        DataError: when it is no table.
    """
    from finetune import sources

    read = "finetune.files:usable_columns"
    usable: list[str] = child_process.call(read, str(path), name, about=name)
    return usable, sources.guess(usable)


def start(store: RunStore, asked: Asked, path: Path) -> Batch:
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
    named = checked(asked, path, fold(run.tail()[0]).paired)
    if not store.visitor.may_start:
        raise DataError(*NOBODY)
    size, most = path.stat().st_size, Limits.of_environment().upload_bytes
    if not store.visitor.alone and size > most:
        raise DataError(
            f"{asked.file} has {size / 2**20:.0f} MB; a visitor may bring {most / 2**20:.0f} MB.",
            "Bring a part of the rows.",
        )
    aside, lock = _reserve(store, named, size)
    batch = Batch(store.root / "batches" / aside.id.removeprefix(_ASIDE))
    try:
        shutil.copyfile(path, aside.folder / f"input{uploads.ending(asked.file)}")
        with workers.changing(store):
            os.replace(aside.folder, batch.folder)
            os.close(lock)  # the process takes it
            lock = -1
            workers.spawn(batch, "finetune.batch", "--folder")
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


def _reserve(store: RunStore, asked: Asked, size: int) -> tuple[Batch, int]:
    """A folder to copy the file into while others change the store, and its lock: as long as this
    process holds that, the batch is going on.

    Raises:
        JobError: when too many are.
        DataError: when the visitor has as much as they may.
        StoreError: when the folder cannot be made.
    """
    with workers.changing(store):
        copies = [Batch(path) for path in (store.root / "batches").glob(f"{_ASIDE}*/")]
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
        _make_room(store, newest(store)[::-1], size)
        aside = Batch(store.root / "batches" / f"{_ASIDE}{secrets.token_urlsafe(15)}")
        try:
            aside.folder.mkdir(parents=True)
            made = replace(asked, owner=store.visitor.name)
            write_atomically(aside.folder / "asked.json", json.dumps(asdict(made)) + "\n")
            lock = workers.hold(aside.lock_file)
        except OSError as error:
            raise disk.failure("The file", error, StoreError) from error
    assert lock is not None, "nobody else knows the name"
    return aside, lock


def _make_room(store: RunStore, mine: list[Batch], size: int) -> None:
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


def checked(asked: Asked, path: Path, paired: bool = True) -> Asked:
    """The same with its columns guessed where they were left open.

    Args:
        path: where the file lies.
        paired: whether the model reads two sentences; of one that reads single ones
            `sentence2` is left out.

    Raises:
        DataError: naming a column that the file does not have, or the second of a pair's.
    """
    known, guessed = columns(path, asked.file)
    first, second, label = (
        given or guess
        for given, guess in zip(
            (asked.sentence1, asked.sentence2, asked.label), guessed, strict=True
        )
    )
    if not first:
        raise DataError(
            f"No column of {asked.file} is clearly the first sentence: it has "
            f"{', '.join(known[:20])}.",
            "Choose it.",
        )
    second, label = ("" if one == NONE else one for one in (second, label))
    second = second if paired else ""
    for column in filter(None, (first, second, label)):
        if column not in known:
            raise DataError(
                f"{asked.file} has no column {column!r}; it has {', '.join(known[:20])}.",
                "Choose another.",
            )
    if paired and not second:
        raise DataError(
            f"This model compares two sentences, and no column of {asked.file} is chosen as "
            f"sentence2: it has {', '.join(known[:20])}.",
            "Choose the column of the second sentences, or a model of single sentences.",
        )
    return replace(asked, sentence1=first, sentence2=second, label=label)


def get(store: RunStore, batch_id: object) -> Batch:
    """The visitor's batch of that id.

    Raises:
        DataError: for anything else, and for another's.
    """
    if not isinstance(batch_id, str) or not _ID.fullmatch(batch_id):
        raise _none()
    batch = Batch(store.root / "batches" / batch_id)
    if not batch.folder.is_dir():
        raise _none()
    if not store.visitor.owns(batch.asked().owner):
        raise _none()
    return batch


def newest(store: RunStore) -> list[Batch]:
    """The visitor's batches, the newest first."""
    mine = [one for one in _all(store) if store.visitor.owns(_owner(one))]
    return sorted(mine, key=lambda one: one.when, reverse=True)


def state(batch: Batch) -> State:
    """How far a batch is, from its folder."""
    found = errands.progress(batch)
    head = batch.read_json(batch.folder / "head.json").get("rows", [])
    report = batch.read_json(batch.folder / "report.json")
    return State(
        found.status or "failed", found.done, found.total, head, report, found.error, found.remedy
    )


def cancel(batch: Batch) -> None:
    """Ask a batch to end; what is judged by then is kept."""
    batch.request_stop()
    workers.end(batch, 10, 20)


def _all(store: RunStore) -> list[Batch]:
    """All batches; whatever else lies there is none."""
    return [Batch(path) for path in (store.root / "batches").glob("*/") if _ID.fullmatch(path.name)]


def _owner(batch: Batch) -> str:
    found: Mapping[str, Any] = batch.read_json(batch.folder / "asked.json")
    return str(found.get("owner", ""))


def _none() -> DataError:
    return DataError("There is no such batch.", "Start one.")
