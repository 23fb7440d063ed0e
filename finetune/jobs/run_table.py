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
from finetune.errors import StoreError
from finetune.jobs import service
from finetune.jobs.scheduler import Queue
from finetune.runs import grids
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


class RunGroup:
    """The runs that differ by the seed alone; `rows` are those of them that are shown."""

    def __init__(self, members: Sequence[RunRow]) -> None:
        self.rows: list[RunRow] = []
        self.count = len(members)
        finished = [row for row in members if row.status == "finished"]
        self.finished = len(finished)
        self.f1 = grids.seed_spread(row.f1 for row in finished)  # None where none was scored
        self.accuracy = grids.seed_spread(row.accuracy for row in finished)


def run_rows(store: RunStore) -> list[RunRow]:
    """The row of every run, the newest first. A page asks for them every second: that of a run
    that has ended and does not wait is made once for as long as no file of it changes."""
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
        uploaded = config.is_upload(settings.dataset)
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
    """How long a run was worked on; None before it began."""
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
    rows: Sequence[RunRow], by: str, descending: bool, all_rows: Sequence[RunRow]
) -> list[RunRow | RunGroup]:
    """The rows in order, the unknown last, those of a group together where the first would be; what
    a group says is of all its members in `all_rows`."""
    name = by if by in COLUMNS else "created"

    def sort_key(row: RunRow) -> Any:
        value = getattr(row, name)
        return value.casefold() if isinstance(value, str) else value

    ordered = [row for row in rows if getattr(row, name) is not None]
    ordered.sort(key=sort_key, reverse=descending)
    ordered += [row for row in rows if getattr(row, name) is None]
    members: dict[str, list[RunRow]] = defaultdict(list)
    for row in all_rows:
        members[row.group].append(row)
    result: list[RunRow | RunGroup] = []
    groups: dict[str, RunGroup] = {}
    for row in ordered:
        if not row.group or len(members[row.group]) < 2:
            result.append(row)
            continue
        if row.group not in groups:
            groups[row.group] = RunGroup(members[row.group])
            result.append(groups[row.group])
        groups[row.group].rows.append(row)
    return result


def differing_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Hyperparameter -> its value in each run, for those that are not the same in all."""
    settings = [run.config().to_dict() for run in runs]
    names = (name for name in config.knobs() if name != "name")
    table = {name: [values[name] for values in settings] for name in names}
    return {name: values for name, values in table.items() if len(set(map(repr, values))) > 1}
