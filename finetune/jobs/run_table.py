"""The runs as a table: a row each, sorted, filtered, those of one group together; and what differs.

Plain values; how they look is the page's business.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
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


_KEPT = 4096  # rows
_rows: dict[str, tuple[Any, RunRow]] = {}  # run folder -> its files' versions, and its row by them


def run_rows(store: RunStore) -> list[RunRow]:
    """The row of every run, the newest first.

    A page asks for them every second: that of a run which has ended by its own word, and does not
    wait to go on, is made once for as long as no file of it changes.
    """
    waiting = set(Queue(store.root).waiting())
    return [
        run_row(store, run) if run.id in waiting else _still(store, run) for run in store.runs()
    ]


def _still(store: RunStore, run: Run) -> RunRow:
    folder = str(run.folder)
    version = _version(folder)
    known = _rows.get(folder)
    if known is not None and known[0] == version:
        return known[1]
    made = run_row(store, run)
    # What a process or the queue says beside the events may change without a file of the run.
    if made.status in ENDED and made.status == store.summary(run).status:
        if len(_rows) >= _KEPT:
            _rows.clear()
        _rows[folder] = version, made
    return made


def _version(folder: str) -> list[tuple[int, int, int]]:
    found = []
    for name in ("events.jsonl", "about.json", "config.json"):
        try:
            one = os.stat(f"{folder}/{name}")
            found.append((one.st_ino, one.st_mtime_ns, one.st_size))
        except OSError:
            found.append((0, 0, 0))
    return found


def run_row(store: RunStore, run: Run) -> RunRow:
    """The row of one run."""
    summary, about = service.run_summary(store, run), run.about()
    values: dict[str, Any] = {"damaged": True}
    try:
        chosen = run.config()
        own = is_upload(chosen.dataset)
        values = {
            "dataset": (about.pairs or "own files") if own else chosen.dataset,
            "checkpoint": chosen.checkpoint.rstrip("/").rsplit("/", maxsplit=1)[-1],
        }
    except StoreError:
        pass
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
        created=about.created or _made(run),
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


def _made(run: Run) -> float:
    """When a run without `about.json` was made: its id says it."""
    try:
        return time.mktime(time.strptime(run.id[:15], "%Y%m%d-%H%M%S"))
    except (ValueError, OverflowError):
        return 0.0


def filter_rows(rows: Sequence[RunRow], text: str) -> list[RunRow]:
    """The rows in which every word of `text` stands: in name, status, data, checkpoint or tags."""
    words = text.casefold().split()
    return [one for one in rows if all(word in _words(one) for word in words)]


def _words(one: RunRow) -> str:
    parts = (one.name, one.status, one.dataset, one.checkpoint, *one.tags, one.note, one.id)
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
    known = [one for one in rows if getattr(one, name) is not None]
    known.sort(key=lambda one: _key(getattr(one, name)), reverse=descending)
    ordered = known + [one for one in rows if getattr(one, name) is None]
    members, shown = _by_group(rows if of is None else of), _by_group(ordered)
    found: list[RunRow | RunGroup] = []
    for one in ordered:
        if len(members.get(one.group, [])) < 2:
            found.append(one)
        elif shown[one.group][0] is one:
            found.append(group_rows(members[one.group], shown[one.group]))
    return found


def _by_group(rows: Sequence[RunRow]) -> dict[str, list[RunRow]]:
    found: dict[str, list[RunRow]] = {}
    for one in rows:
        if one.group:
            found.setdefault(one.group, []).append(one)
    return found


def _key(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def group_rows(rows: Sequence[RunRow], shown: list[RunRow]) -> RunGroup:
    """Rows of one group, with what they say together.

    Args:
        shown: those of them that are shown, in their order.
    """
    finished = [one for one in rows if one.status == "finished"]
    return RunGroup(
        shown,
        len(rows),
        len(finished),
        grids.seed_spread(one.f1 for one in finished),
        grids.seed_spread(one.accuracy for one in finished),
    )


def differing_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Hyperparameter -> its value in each run, for those that are not the same in all.

    Raises:
        StoreError: when a configuration cannot be read.
    """
    found = [run.config().to_dict() for run in runs]
    names = (name for name in config.knobs() if name != "name")
    table = {name: [one[name] for one in found] for name in names}
    return {name: values for name, values in table.items() if len(set(map(repr, values))) > 1}
