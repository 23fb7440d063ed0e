"""The runs as a table: rows, sorted and filtered, the runs of one group together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune import config
from finetune.config import is_upload
from finetune.errors import StoreError
from finetune.jobs import service
from finetune.jobs.queue import Queue
from finetune.runs import grids
from finetune.runs.grids import SeedSpread
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary


@dataclass(frozen=True)
class RunRow:
    """One run.

    Args:
        f1, accuracy, best_epoch: of the model kept; None while nothing was scored.
        seconds: of training so far; None before it began.
        place: in the queue, from 1; 0 when it does not wait.
        created: seconds since the epoch.
        damaged: whether its configuration cannot be read.
    """

    id: str
    name: str
    status: str
    dataset: str = ""
    checkpoint: str = ""
    f1: float | None = None
    accuracy: float | None = None
    best_epoch: float | None = None
    seconds: float | None = None
    samples_per_second: float | None = None
    created: float = 0.0
    tags: tuple[str, ...] = ()
    note: str = ""
    group: str = ""
    place: int = 0
    damaged: bool = False


@dataclass(frozen=True)
class RunGroup:
    """The runs that differ by the seed alone.

    Args:
        rows: those that are shown, at least one.
        count, finished: how many there are, shown or not, and of them have finished.
        f1, accuracy: over all that were scored; None where none was.
    """

    rows: list[RunRow]
    count: int
    finished: int
    f1: SeedSpread | None
    accuracy: SeedSpread | None


# What a person may sort by -> whether the greatest comes first when it is chosen.
COLUMNS = {
    "name": False,
    "status": False,
    "dataset": False,
    "checkpoint": False,
    "f1": True,
    "accuracy": True,
    "best_epoch": False,
    "seconds": True,
    "samples_per_second": True,
    "created": True,
}


_ended_rows: dict[Path, tuple[list[int], RunRow]] = {}  # run folder -> its files' versions, row


def run_rows(store: RunStore) -> list[RunRow]:
    """The row of every run, the newest first.

    A page asks for them every second: the row of a run that has ended and does not wait is made
    once for as long as no file of it changes.
    """
    waiting = Queue(store.root).waiting()
    rows = []
    for run in store.runs():
        version = [_modified(run.folder / name) for name in _FILES]
        cached = _ended_rows.get(run.folder)
        if cached is not None and cached[0] == version and run.id not in waiting:
            rows.append(cached[1])
            continue
        row = run_row(store, run)
        rows.append(row)
        # What a process or the queue says beside the events may change without a file of the run.
        if row.status in ENDED and row.status == store.summary(run).status:
            _ended_rows[run.folder] = version, row
    return rows


_FILES = ("events.jsonl", "about.json", "config.json")


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def run_row(store: RunStore, run: Run) -> RunRow:
    """The row of one run."""
    summary, about = service.run_summary(store, run), run.about()
    values: dict[str, Any] = {"damaged": True}
    with contextlib.suppress(StoreError):
        chosen = run.config()
        own = is_upload(chosen.dataset)
        values = {
            "dataset": (about.pairs or "own files") if own else chosen.dataset,
            "checkpoint": chosen.checkpoint.rstrip("/").rsplit("/", maxsplit=1)[-1],
        }
    best = summary.best if not summary.discarded else None
    return RunRow(
        id=run.id,
        name=run.title(),
        status=summary.status,
        f1=best.metrics.get("f1") if best else None,
        accuracy=best.metrics.get("accuracy") if best else None,
        best_epoch=best.epoch if best else None,
        seconds=training_seconds(summary),
        samples_per_second=summary.samples_per_second or None,
        created=about.created,
        tags=about.tags,
        note=about.note,
        group=about.group,
        place=service.queue_place(store, run)[0] if summary.status == "waiting" else 0,
        **values,
    )


def training_seconds(summary: RunSummary) -> float | None:
    """How long a run was worked on; from its own clock where it has ended by itself."""
    if not summary.began:
        return None
    return summary.worked_by(time.time()) if summary.status == "running" else summary.worked


def filter_rows(rows: Sequence[RunRow], text: str) -> list[RunRow]:
    """The rows in which every word of `text` stands: in name, status, data, checkpoint or tags."""
    words = text.casefold().split()
    return [row for row in rows if all(word in _searchable(row) for word in words)]


def _searchable(row: RunRow) -> str:
    parts = (row.name, row.status, row.dataset, row.checkpoint, *row.tags, row.note, row.id)
    return " ".join(parts).casefold()


def sort_rows(
    rows: Sequence[RunRow],
    by: str = "created",
    descending: bool = True,
    of: Sequence[RunRow] | None = None,
) -> list[RunRow | RunGroup]:
    """The rows in order, the unknown last; the members of a group stand together, where the
    foremost of them would.

    Args:
        by: one of `COLUMNS`; anything else sorts by when.
        of: all the rows there are, where these are some of them: what a group says is of all its
            members.
    """
    name = by if by in COLUMNS else "created"

    def sort_key(row: RunRow) -> Any:
        value = getattr(row, name)
        return value.casefold() if isinstance(value, str) else value

    ordered = [row for row in rows if getattr(row, name) is not None]
    ordered.sort(key=sort_key, reverse=descending)
    ordered += [row for row in rows if getattr(row, name) is None]
    members, shown = _by_group(rows if of is None else of), _by_group(ordered)
    result: list[RunRow | RunGroup] = []
    for row in ordered:
        if len(members.get(row.group, [])) < 2:
            result.append(row)
        elif shown[row.group][0] is row:
            result.append(_group(members[row.group], shown[row.group]))
    return result


def _by_group(rows: Sequence[RunRow]) -> dict[str, list[RunRow]]:
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        if row.group:
            groups.setdefault(row.group, []).append(row)
    return groups


def _group(rows: Sequence[RunRow], shown: list[RunRow]) -> RunGroup:
    finished = [row for row in rows if row.status == "finished"]
    f1, accuracy = (
        grids.seed_spread(getattr(row, name) for row in finished) for name in ("f1", "accuracy")
    )
    return RunGroup(shown, len(rows), len(finished), f1, accuracy)


def differing_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Hyperparameter -> its value in each run, for those that are not the same in all.

    Raises:
        StoreError: when a configuration cannot be read.
    """
    settings = [run.config().to_dict() for run in runs]
    names = (name for name in config.knobs() if name != "name")
    table = {name: [values[name] for values in settings] for name in names}
    return {name: values for name, values in table.items() if len(set(map(repr, values))) > 1}
