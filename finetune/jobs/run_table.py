"""The runs as a table: rows, sorted and filtered, the runs of one group together."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
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

_FILES = ("events.jsonl", "about.json", "config.json")
_ended_rows: dict[Path, tuple[list[int], RunRow]] = {}  # run folder -> its files' versions, row

# What a person may sort by -> whether the greatest comes first when it is chosen.
COLUMNS = {
    "name": False, "status": False, "dataset": False, "checkpoint": False, "f1": True,
    "accuracy": True, "best_epoch": False, "seconds": True, "samples_per_second": True,
    "created": True,
}  # fmt: skip


@dataclass(frozen=True)
class RunRow:
    """One run."""

    id: str
    name: str
    status: str
    dataset: str = ""
    checkpoint: str = ""
    f1: float | None = None  # of the model kept; None while nothing was scored
    accuracy: float | None = None
    best_epoch: float | None = None
    seconds: float | None = None  # of training so far; None before it began
    samples_per_second: float | None = None
    created: float = 0.0  # seconds since the epoch
    tags: tuple[str, ...] = ()
    note: str = ""
    group: str = ""
    place: int = 0  # in the queue, from 1; 0 when it does not wait
    damaged: bool = False  # whether its configuration cannot be read


@dataclass(frozen=True)
class RunGroup:
    """The runs that differ by the seed alone."""

    rows: list[RunRow]  # those that are shown, at least one
    count: int  # how many there are, shown or not
    finished: int
    f1: SeedSpread | None  # over those that have finished; None where none was scored
    accuracy: SeedSpread | None


def run_rows(store: RunStore) -> list[RunRow]:
    """The row of every run, the newest first.

    A page asks for them every second: the row of a run that has ended and does not wait is made
    once for as long as no file of it changes.
    """
    waiting, rows = Queue(store.root).waiting(), []
    for run in store.runs():
        paths = [run.folder / name for name in _FILES]
        version = [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]
        cached_version, row = _ended_rows.get(run.folder, (None, None))
        if row is None or cached_version != version or run.id in waiting:
            row = run_row(store, run)
            # What a process or the queue says may change without a file of the run.
            if row.status in ENDED and row.status == store.summary(run).status:
                _ended_rows[run.folder] = version, row
        rows.append(row)
    return rows


def run_row(store: RunStore, run: Run) -> RunRow:
    """The row of one run."""
    summary, about = service.run_summary(store, run), run.about()
    values: dict[str, Any] = {"damaged": True}
    with contextlib.suppress(StoreError):
        settings = run.config()
        uploaded = is_upload(settings.dataset)
        values = {
            "dataset": (about.pairs or "own files") if uploaded else settings.dataset,
            "checkpoint": settings.checkpoint.rstrip("/").rsplit("/", maxsplit=1)[-1],
        }
    if (best := summary.best) and not summary.discarded:
        scores = {name: best.metrics.get(name) for name in ("f1", "accuracy")}
        values |= {**scores, "best_epoch": best.epoch}
    return RunRow(
        id=run.id,
        name=run.title(),
        status=summary.status,
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

    def searchable(row: RunRow) -> str:
        parts = (row.name, row.status, row.dataset, row.checkpoint, *row.tags, row.note, row.id)
        return " ".join(parts).casefold()

    words = text.casefold().split()
    return [row for row in rows if all(word in searchable(row) for word in words)]


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
        if not row.group or len(members[row.group]) < 2:
            result.append(row)
        elif shown[row.group][0] is row:
            result.append(_group(members[row.group], shown[row.group]))
    return result


def _by_group(rows: Sequence[RunRow]) -> dict[str, list[RunRow]]:
    groups: dict[str, list[RunRow]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    return groups


def _group(rows: Sequence[RunRow], shown: list[RunRow]) -> RunGroup:
    finished = [row for row in rows if row.status == "finished"]
    f1, accuracy = (
        grids.seed_spread(getattr(row, name) for row in finished) for name in ("f1", "accuracy")
    )
    return RunGroup(shown, len(rows), len(finished), f1, accuracy)


def differing_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Hyperparameter -> its value in each run, for those that are not the same in all."""
    settings = [run.config().to_dict() for run in runs]
    names = (name for name in config.knobs() if name != "name")
    table = {name: [values[name] for values in settings] for name in names}
    return {name: values for name, values in table.items() if len(set(map(repr, values))) > 1}
