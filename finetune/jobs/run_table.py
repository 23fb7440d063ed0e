"""The runs as a table: rows, the differences between them, sorting, filtering and groups."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from finetune import config
from finetune.data import csv_cells
from finetune.errors import StoreError
from finetune.evaluation import ranking, report, saved_predictions
from finetune.inference import decision_rule
from finetune.jobs import service
from finetune.metrics import catalog
from finetune.metrics.intervals import Interval
from finetune.runs import grids
from finetune.runs.queue import Queue
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.tasks.registry import score_metrics, task_of

_FILES = ("events.jsonl", "about.json", "config.json", "best/config.json")
_ended_rows: dict[Path, tuple[list[int], RunRow]] = {}  # run folder -> its files' versions, row
CURVE = 30  # points of a run's curve
# The columns that the table always has.
FIXED = ("name", "what", "score", "created", "seconds", "megabytes", "status")
# The columns to sort by, those of one metric first; True if the greatest value comes first.
SCORES = {metric.name: metric.greater_is_better for metric in score_metrics()}
COLUMNS = {
    "name": False, "what": False, "score": True, "created": True, "seconds": True,
    "megabytes": False, "status": False, "dataset": False, **SCORES, "best_epoch": False,
}  # fmt: skip


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
    megabytes: float | None = None  # of the weights that answer; None without a model
    threshold: float | None = None  # None without a saved one
    classes: int = 0  # 0 while unknown
    best_epoch: float | None = None
    seconds: float | None = None  # of training so far; None before it began
    samples_per_second: float | None = None
    created: float = 0.0  # seconds since the epoch
    tags: tuple[str, ...] = ()
    note: str = ""
    owner: str = ""
    group: str = ""  # shared by the seeds of one configuration, or the folds
    bundle: str = ""  # the name of the bundle that it belongs to
    trial: bool = False  # True for a trial of a search
    fold: int = 0  # of a cross-validation, the fold it holds out
    folds: int = 0  # of a cross-validation; 0 for other runs
    place: int = 0  # place in the queue, from 1; 0 if not queued
    damaged: bool = False  # True if its configuration cannot be read
    settings: dict[str, Any] = field(default_factory=dict)  # settings other than the defaults
    resolved: dict[str, Any] = field(default_factory=dict)  # what automatic settings came to
    curve: tuple[float, ...] = ()  # the headline score at its evaluations, evenly thinned

    @property
    def ids(self) -> str:
        """The ids of the line's runs, as of a `BundleRow`."""
        return self.id

    def value(self, column: str) -> Any:
        """Return the value of a column: a field's name or a hyperparameter's; None if unknown."""
        if column == "score":
            return self.scores.get(self.headline)
        if column == "what":
            return self.checkpoint
        if column in SCORES:
            return self.scores.get(column)
        if column in COLUMNS:
            return getattr(self, column)
        return None if self.damaged else self.settings.get(column, _defaults()[column])


class BundleRow:
    """A bundle, or the seeds of one point of a grid."""

    def __init__(self, name: str, members: Sequence[RunRow]) -> None:
        self.name, self.members = name, members
        self.rows: list[RunRow] = []  # the members that the filter leaves
        self.ids = " ".join(row.id for row in members)
        self.headline, self.classes = members[0].headline, members[0].classes
        self.dataset, self.folds = members[0].dataset, members[0].folds
        self.kind = "grid"
        if self.folds or any(row.trial for row in members):
            self.kind = "folds" if self.folds else "search"
        elif members[0].group and len({row.group for row in members}) == 1:
            self.kind = "seeds"
        finished = [row for row in members if row.status == "finished"]
        self.finished = len(finished)
        self.created = max(row.created for row in members)
        self.seconds = sum(row.seconds or 0.0 for row in members)
        self.megabytes = sum(row.megabytes or 0.0 for row in members)
        # Of a cross-validation the id of the run on all rows, else of any.
        self.whole = next((row.id for row in members if not row.fold), members[0].id)
        models = [row for row in finished if row.trial] or finished
        if self.folds:
            models = [row for row in finished if not row.fold]
        self.model = max(models, key=_rank, default=None)  # the row of the bundle's model
        self.spread = None  # of the score over seeds or folds
        if self.kind in ("seeds", "folds"):
            scores = [row.value("score") for row in finished if row.fold or not row.folds]
            self.spread = grids.seed_spread(scores, self.headline, not self.folds)

    def lines(self) -> list[RunRow | BundleRow]:
        """Return the rows, those of a grid's point together below a line of their own."""
        if self.kind != "grid":
            return [*self.rows]
        points = defaultdict(list)
        for row in self.rows:
            points[row.group or row.id].append(row)
        found: list[RunRow | BundleRow] = []
        for rows in points.values():
            every = [row for row in self.members if row.group and row.group == rows[0].group]
            if len(every) > 1:
                found.append(BundleRow(every[0].name.rpartition(grids.SEED)[0], every))
            found += rows
        return found


def _rank(row: RunRow) -> float:
    """The headline score of a row, the greater the better."""
    score = row.value("score")
    return float("-inf") if score is None else catalog.find(row.headline).rank(score)


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
            "megabytes": ranking.model_megabytes(run),
            "threshold": rule.threshold_for(labels),
        }
    curve = [
        scored.metrics[summary.task.headline.name]
        for scored in summary.validation
        if summary.task.headline.name in scored.metrics
    ]
    stride = -(-len(curve) // CURVE) or 1
    return RunRow(
        id=run.id,
        name=run.title(),
        status=summary.status,
        headline=summary.task.headline.name,
        measured=tuple(metric.name for metric in summary.task.metrics),
        classes=summary.classes,
        seconds=training_seconds(summary),
        samples_per_second=summary.samples_per_second or None,
        created=about.created,
        tags=about.tags,
        note=about.note,
        group=about.group,
        owner=run.owner,
        bundle=run.bundle(),
        trial=bool(about.study),
        curve=(*curve[:-1:stride], *curve[-1:]),
        place=service.queue_place(store, run)[0] if summary.status == "waiting" else 0,
        **values,
    )


@lru_cache(maxsize=1000)
def _interval(folder: Path, version: object) -> Interval | None:
    with contextlib.suppress(StoreError):
        kept = report.kept_answers(Run(folder))
        task = task_of(kept.target)
        metric = [task.headline]
        scores = task.intervals(kept.answers, kept.truth, kept.target, metric, kept.shared)
        return scores[task.headline.name]
    return None


def score_interval(store: RunStore, row: RunRow) -> Interval | None:
    """Return the 95% interval of a run's score; None without one, or if its answers are gone."""
    if not row.scores:
        return None
    run = store.everyone.get(row.id)
    version = decision_rule.read_rule(run.best), saved_predictions.files_version(run)
    return _interval(run.folder, version)


@cache
def _defaults() -> dict[str, Any]:
    return config.RunConfig().to_dict()


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
) -> list[RunRow | BundleRow]:
    """Return the rows in order, unknown values last. A bundle, of all its members in `all_rows`, is
    one line at the place of its first row."""

    def sort_key(row: RunRow) -> Any:
        value = row.value(by)
        return value.casefold() if isinstance(value, str) else value

    ordered = [row for row in rows if row.value(by) is not None]
    ordered.sort(key=sort_key, reverse=descending)
    ordered += [row for row in rows if row.value(by) is None]
    members: dict[tuple[str, str], list[RunRow]] = defaultdict(list)
    for row in all_rows:
        members[row.owner, row.bundle].append(row)
    found = {key: BundleRow(key[1], each) for key, each in members.items() if key[1]}
    for row in ordered:
        if row.bundle:
            found[row.owner, row.bundle].rows.append(row)
    lines = [found.get((row.owner, row.bundle), row) for row in ordered]
    return list({id(line): line for line in lines}.values())  # a bundle at its first row's place


def chosen_lines(rows: Sequence[RunRow], ids: Collection[str]) -> list[RunRow | BundleRow]:
    """Return the lines of some of the runs, newest first: a bundle if it is whole."""
    found: list[RunRow | BundleRow] = []
    for line in sort_rows([row for row in rows if row.id in ids], "created", True, rows):
        if isinstance(line, BundleRow) and len(line.rows) < len(line.members):
            found += line.rows
        else:
            found.append(line)
    return found


def by_dataset(
    lines: Sequence[RunRow | BundleRow], rows: Sequence[RunRow]
) -> list[RunRow | BundleRow]:
    """Return the lines in their order, those of the same data together, because scores of different
    data cannot be compared. `rows` are all runs, whose newest come first."""
    order = {name: n for n, name in enumerate(dict.fromkeys(row.dataset for row in rows))}
    return sorted(lines, key=lambda line: order[line.dataset])


def runs_csv(rows: Sequence[RunRow]) -> str:
    """Return all runs as CSV: results, and every hyperparameter, automatic ones as resolved."""
    names = [*dict.fromkeys((*COLUMNS, *_defaults()))]
    names = [name for name in names if name not in ("what", "score")]  # each of other columns
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


def lines(store: RunStore, words: str = "") -> list[dict[str, Any]]:
    """Return the runs with all these words, the newest first; a bundle is one line. Each has
    `name`, `created` (seconds since the epoch), `status`, `metric` and, if it was scored, `score`
    as [value, low, high]."""
    rows, found = run_rows(store), []
    for row in sort_rows(filter_rows(rows, words), "created", True, rows):
        status, model = ("", row.model) if isinstance(row, BundleRow) else (row.status, row)
        if isinstance(row, BundleRow):
            status = f"{row.finished} of {len(row.members)} finished"
        score = score_interval(store, model) if model else None
        found.append({
            "name": row.name, "created": row.created, "status": status,
            "metric": catalog.metric_name(model.headline, model.classes) if model else "",
            "score": score and [score.value, score.low, score.high],
        })  # fmt: skip
    return found


def as_text(found: Sequence[dict[str, Any]]) -> str:
    """Return lines as a table."""
    table = [("RUN", "WHEN", "STATUS", "SCORE (95% interval)")]
    for line in found:
        when, shown = time.strftime("%Y-%m-%d %H:%M", time.localtime(line["created"])), "-"
        if line["score"]:
            shown = "{} {:.3f} ({:.3f} to {:.3f})".format(line["metric"], *line["score"])
        table.append((line["name"], when, line["status"], shown))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in table
    )
