"""The runs as a table: rows, the differences between them, sorting, filtering and groups."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from finetune import config
from finetune.config import RunConfig
from finetune.data import csv_cells
from finetune.errors import StoreError
from finetune.evaluation import report
from finetune.inference import decision_rule
from finetune.jobs import service
from finetune.runs import grids
from finetune.runs.grids import BETWEEN, SEED
from finetune.runs.queue import Queue
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.tasks.registry import score_metrics

CURVE = 30  # points of a run's curve in the table
_FILES = ("events.jsonl", "about.json", "config.json", "best/config.json")
_ended_rows: dict[Path, tuple[list[int], RunRow]] = {}  # run folder -> its files' versions, row


@cache
def columns() -> dict[str, bool]:
    """Return the columns to sort by; True for those whose greatest value comes first."""
    scores = {metric.name: metric.greater_is_better for metric in score_metrics()}
    return {
        "name": False, "status": False, "dataset": False, "checkpoint": False, **scores,
        "best_epoch": False, "seconds": True, "created": True,
    }  # fmt: skip


@cache
def score_columns() -> list[str]:
    """Return the columns that are scores."""
    return [metric.name for metric in score_metrics()]


@dataclass(frozen=True)
class RunRow:
    """One run."""

    id: str
    name: str
    status: str
    dataset: str = ""  # in `run_rows` each name is of other data
    # What tells its data from others: the source, how it is read, and once known the fingerprint.
    data_keys: frozenset[str] = frozenset()
    checkpoint: str = ""
    # Of the kept model, at its saved threshold; empty until scored.
    scores: dict[str, float] = field(default_factory=dict)
    headline: str = ""  # the score by which its task tells models apart
    measured: tuple[str, ...] = ()  # the scores of its task
    threshold: float | None = None  # None without a saved one
    classes: int = 0  # 0 while unknown
    best_epoch: float | None = None
    seconds: float | None = None  # of training so far; None before it began
    samples_per_second: float | None = None
    created: float = 0.0  # seconds since the epoch
    tags: tuple[str, ...] = ()
    note: str = ""
    group: str = ""
    fold: int = 0  # of a cross-validation, the fold it holds out
    folds: int = 0  # of a cross-validation; 0 for other runs
    place: int = 0  # place in the queue, from 1; 0 if not queued
    damaged: bool = False  # True if its configuration cannot be read
    settings: dict[str, Any] = field(default_factory=dict)  # settings other than the defaults
    resolved: dict[str, Any] = field(default_factory=dict)  # what automatic settings came to
    curve: tuple[float, ...] = ()  # the headline score at its evaluations, evenly thinned

    def value(self, column: str) -> Any:
        """Return the value of a column: a field's name or a hyperparameter's; None if unknown."""
        if column in score_columns():
            return self.scores.get(column)
        if column in columns():
            return getattr(self, column)
        return None if self.damaged else self.settings.get(column, _defaults()[column])


class RunGroup:
    """Runs that differ by the seed alone, or the runs of a cross-validation; `rows` are the ones
    that are shown. The scores are those over seeds, or over folds."""

    def __init__(self, members: Sequence[RunRow]) -> None:
        self.rows: list[RunRow] = []
        self.folds = members[0].folds
        last = SEED if not self.folds else BETWEEN
        named = [row.name.rpartition(last)[0] for row in members if last in row.name]
        self.name = named[0] if named else members[0].name
        self.count = len(members)
        finished = [row for row in members if row.status == "finished"]
        self.finished = len(finished)
        self.scores = {  # None if none was scored
            name: grids.seed_spread(
                (row.scores.get(name) for row in finished if row.fold or not row.folds),
                independent=not self.folds,
            )
            for name in score_columns()
        }


def run_rows(store: RunStore) -> list[RunRow]:
    """Return the row of every run, newest first. A page asks for them every second, so the row of
    an ended run that does not wait is cached until one of its files changes."""
    waiting, rows = Queue(store.root).waiting(), []
    for run in store.runs():
        paths = [run.folder / name for name in _FILES]
        version = [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]
        cached_version, row = _ended_rows.get(run.folder, (None, None))
        if row is None or cached_version != version or run.id in waiting:
            row = run_row(store, run)
            # A process or the queue may change these without a change in the run's files.
            if row.status in ENDED and run.state().end_recorded:
                _ended_rows[run.folder] = version, row
        rows.append(row)
    return _with_names_of_data(rows)


def _with_names_of_data(rows: Sequence[RunRow]) -> list[RunRow]:
    """Give the same data one name, all that it has, and other data of that name a number."""
    found: list[tuple[frozenset[str], dict[str, None]]] = []  # keys and names of the same data
    for row in reversed(rows):  # the oldest first
        same = [data for data in found if data[0] & row.data_keys]
        names = dict.fromkeys([*(name for _, each in same for name in each), row.dataset])
        keys = row.data_keys.union(*(each for each, _ in same))
        found = [data for data in found if data not in same[1:]]
        if same:
            found[found.index(same[0])] = keys, names
        else:
            found.append((keys, names))
    name_of: dict[str, str] = {}
    used = Counter[str]()
    for keys, names in found:
        name = ", ".join(names)
        used[name] += 1
        name_of |= dict.fromkeys(keys, f"{name} ({used[name]})" if used[name] > 1 else name)
    named = []
    for row in rows:
        name = name_of.get(next(iter(row.data_keys), ""), row.dataset)
        settings = row.settings | ({"dataset": name} if "dataset" in row.settings else {})
        named.append(replace(row, dataset=name, settings=settings))
    return named


def run_row(store: RunStore, run: Run) -> RunRow:
    """Return the row of one run."""
    summary, about = run.state(), run.about()
    values: dict[str, Any] = {"damaged": True}
    with contextlib.suppress(StoreError):
        settings = run.config()
        uploaded = config.is_upload(settings.dataset)
        # Leaving out training rows changes no key: the scores are still of the same pairs.
        deciding = {*config.DATA_FIELDS} - {"max_train_samples", "drop_leaked"}
        fingerprint = summary.prepared.fingerprint if summary.prepared else ""
        keys = [json.dumps(settings.model_dump(include=deciding)), fingerprint]
        values = {
            "dataset": (about.pairs or "own files")
            if uploaded
            else f"{settings.dataset} {settings.dataset_config_name}".rstrip(),
            "data_keys": frozenset(filter(None, keys)),
            "fold": settings.fold,
            "folds": settings.folds,
            "checkpoint": settings.checkpoint.rstrip("/").rsplit("/", maxsplit=1)[-1],
        }
        values["settings"] = {
            name: values.get(name, value)
            for name, value in settings.to_dict().items()
            if name != "name" and value != _defaults()[name]
        }
        values["resolved"] = summary.resolved_settings(settings)
    if (best := summary.best) and not summary.discarded:
        rule = decision_rule.read_rule(run.best)
        labels = summary.prepared.labels if summary.prepared else []
        values |= {
            "scores": report.kept_metrics(run, summary),
            "best_epoch": best.epoch,
            "threshold": rule.threshold_for(labels),
        }
    curve = [
        scored.metrics[summary.headline.name]
        for scored in summary.validation
        if summary.headline.name in scored.metrics
    ]
    stride = -(-len(curve) // CURVE) or 1
    return RunRow(
        id=run.id,
        name=run.title(),
        status=summary.status,
        headline=summary.headline.name,
        measured=tuple(metric.name for metric in summary.task.metrics),
        classes=summary.classes,
        seconds=training_seconds(summary),
        samples_per_second=summary.samples_per_second or None,
        created=about.created,
        tags=about.tags,
        note=about.note,
        group=about.group,
        place=service.queue_place(store, run)[0] if summary.status == "waiting" else 0,
        curve=(*curve[:-1:stride], *curve[-1:]),
        **values,
    )


@cache
def _defaults() -> dict[str, Any]:
    return RunConfig().to_dict()


def training_seconds(summary: RunSummary) -> float | None:
    """Return the seconds worked on a run; None before it began."""
    if not summary.began:
        return None
    return summary.worked_until_now if summary.status == "running" else summary.worked


def filter_rows(rows: Sequence[RunRow], text: str) -> list[RunRow]:
    """Return the rows with every word of `text` in name, status, data, checkpoint or tags."""

    def searchable(row: RunRow) -> str:
        parts = (row.name, row.status, row.dataset, row.checkpoint, *row.tags, row.note, row.id)
        return " ".join(parts).casefold()

    words = text.casefold().split()
    return [row for row in rows if all(word in searchable(row) for word in words)]


def sort_rows(
    rows: Sequence[RunRow], by: str, descending: bool, all_rows: Sequence[RunRow]
) -> list[RunRow | RunGroup]:
    """Return the rows in order, unknown values last, and a group's rows together at the first one's
    place. A group is placed by all its members in `all_rows`."""

    def sort_key(row: RunRow) -> Any:
        value = row.value(by)
        return value.casefold() if isinstance(value, str) else value

    ordered = [row for row in rows if row.value(by) is not None]
    ordered.sort(key=sort_key, reverse=descending)
    ordered += [row for row in rows if row.value(by) is None]
    members: dict[str, list[RunRow]] = defaultdict(list)
    for row in all_rows:
        members[row.group].append(row)
    groups = {name: RunGroup(each) for name, each in members.items() if name and len(each) > 1}
    for row in ordered:
        if row.group in groups:
            groups[row.group].rows.append(row)
    lines = [groups.get(row.group, row) for row in ordered]
    return list({id(line): line for line in lines}.values())  # a group at its first row's place


def dataset_of(line: RunRow | RunGroup) -> str:
    """Return the data of a run or a group."""
    return line.rows[0].dataset if isinstance(line, RunGroup) else line.dataset


def by_dataset(
    lines: Sequence[RunRow | RunGroup], rows: Sequence[RunRow]
) -> list[RunRow | RunGroup]:
    """Return the lines in their order, those of the same data together, because scores of different
    data cannot be compared. `rows` are all runs, whose newest come first."""
    order = {name: n for n, name in enumerate(dict.fromkeys(row.dataset for row in rows))}
    return sorted(lines, key=lambda line: order[dataset_of(line)])


def runs_csv(rows: Sequence[RunRow]) -> str:
    """Return all runs as CSV: results, and every hyperparameter, automatic ones as resolved."""
    names = [*columns(), *(name for name in _defaults() if name not in columns())]
    cells = [[row.id, *(row.resolved.get(name, row.value(name)) for name in names)] for row in rows]
    return csv_cells.to_csv([["id", *names], *cells])


def differing_settings(rows: Sequence[RunRow]) -> dict[str, list[Any]]:
    """Return the values of each hyperparameter that differs between the rows."""
    names = {name for row in rows for name in row.settings}
    table = {name: [row.value(name) for row in rows] for name in _defaults() if name in names}
    return {
        name: values
        for name, values in table.items()
        if len({repr(value) for value in values if value is not None}) > 1
    }


def value_text(value: Any) -> str:
    """Format a setting's value: `5e-4`, `true`; a dash if it has none."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        mantissa, _, exponent = f"{value:.4e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}" if 0 < abs(value) < 0.01 else f"{value:g}"
    return str(value) if value not in ("", None) else "\u2013"
