"""`python -m finetune.batch`: judge a file of pairs with a run's model, row by row, in bounded
memory: the same file comes out with the prediction and every class' probability.

The page starts it as a process of its own; from a terminal it takes a run, a file and a result.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import json
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from finetune import (
    caches,
    calibration,
    checkpoints,
    curves,
    decision,
    disk,
    errands,
    events,
    files,
    hashes,
    intervals,
    seen,
    sheets,
)
from finetune.batches import Asked, Batch, checked
from finetune.decision import Decision
from finetune.errors import FinetuneError
from finetune.seen import Seen
from finetune.store import Run, default_root, write_atomically
from finetune.summary import fold

WINDOW = 4096  # rows sorted by length together, and held at once
FIRST = 64  # rows of the first window, which is soon judged; each is four times the former
CHARACTERS = 2**22  # of a window's cells, beyond which it ends
HEAD = 100
_SHOWN = 500  # characters of a cell among the first rows
ENOUGH = 30  # labelled rows to be scored apart; with fewer, intervals are 30 points wide and more
TRAINED_ON = "trained_on"
Told = Callable[[int, int], None]


class Cancelled(BaseException):
    """A signal came."""


@dataclass(frozen=True)
class Row:
    """One row of the file.

    Args:
        line: where it stands, from 1.
        record: its cells; empty where it could not be read.
        error: why it has no prediction; empty where it has.
    """

    line: int
    record: dict[str, Any]
    error: str = ""


@dataclass
class Tally:
    """What a batch comes to.

    Args:
        rows, errors: rows so far, and those of them that could not be judged.
        examples: why some could not.
        counts: confusion matrix; None where there are no labels.
        unknown: labels that are no class of the model.
        new: of `counts` those of rows that are no training pairs of the run.
        trained, validated: rows that stand among the run's training pairs, and of the others
            those among its validation pairs; None where it did not write them down.
    """

    rows: int = 0
    errors: int = 0
    examples: list[str] = field(default_factory=list)
    counts: NDArray[np.int64] | None = None
    unknown: int = 0
    new: NDArray[np.int64] | None = None
    trained: int | None = None
    validated: int | None = None

    def known(self) -> dict[str, int]:
        """How many rows the run has seen, as a report says it; empty where nobody knows."""
        if self.trained is None or self.validated is None:
            return {}
        return {TRAINED_ON: self.trained, "validated_on": self.validated}


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 judged, 1 failed."""
    caches.ensure()
    parser = argparse.ArgumentParser(prog="python -m finetune.batch", description=__doc__)
    parser.add_argument("--folder", type=Path, help="a batch's folder, as the page makes it")
    parser.add_argument("--run", help="a run's id, or its folder")
    parser.add_argument("--runs", type=Path, help=f"(default: {default_root()})")
    parser.add_argument("--file", type=Path, help="CSV, TSV, JSONL, JSON or Parquet, also .gz")
    parser.add_argument("--out", type=Path, help="where the result goes")
    for name in ("sentence1_column", "sentence2_column", "label_column"):
        parser.add_argument(f"--{name}", default="", help="guessed from the names where absent")
    for name in ("both_orders", "threshold", "calibrated"):
        parser.add_argument(f"--{name}", action="store_true")
    given = parser.parse_args(arguments)
    _few_arenas()
    os.environ["HF_HUB_OFFLINE"] = "1"  # the model lies here; nobody is to be asked for it
    if given.folder:
        return _carry_out(Batch(given.folder))
    if not (given.run and given.file and given.out):
        parser.error("--run, --file and --out are needed")
    run = Run(Path(given.run) if "/" in given.run else (given.runs or default_root()) / given.run)
    asked = Asked(
        run.id, given.file.name, given.sentence1_column, given.sentence2_column,
        given.label_column, given.both_orders, given.threshold, given.calibrated,
    )  # fmt: skip
    try:
        asked = checked(asked, given.file, fold(run.tail()[0]).paired)
        report, _ = judge(run, asked, given.file, given.out, _Bar())
    except (FinetuneError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=2, ensure_ascii=False))
    return 0


def _few_arenas() -> None:
    """Let the threads share the C library's heaps: each of its own keeps what it once needed, and
    a long file would slowly take a quarter more memory."""
    most_arenas = -8  # M_ARENA_MAX of glibc's malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another system, another C library
        ctypes.CDLL(None).mallopt(most_arenas, 1)


class _Bar:
    """Progress in a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        from tqdm import tqdm

        self._bar = self._bar or tqdm(total=total or None, unit="row")
        self._bar.update(done - self._bar.n)


def _carry_out(batch: Batch) -> int:
    def on_signal(number: int, frame: FrameType | None) -> None:
        raise Cancelled

    signal.signal(signal.SIGTERM, on_signal)
    began = last = time.monotonic()
    tally = Tally()

    def told(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5 or done == total:
            if any(tally.known().values()):
                so_far = {"rows": tally.rows, **tally.known()}
                write_atomically(batch.folder / "report.json", json.dumps(so_far))
            batch.append(events.Progressed(done=done, total=total))
            last = time.monotonic()
        if batch.stop_requested():
            raise Cancelled

    def head(rows: list[dict[str, Any]]) -> None:
        text = json.dumps({"rows": rows}, ensure_ascii=False, default=str)
        write_atomically(batch.folder / "head.json", text)

    def work() -> events.Event:
        try:
            asked = batch.asked()
            run = Run(batch.folder.parent.parent / asked.run)
            out = batch.folder / f"result{_kind(batch.input)}"
            report, whole = judge(run, asked, batch.input, out, told, head, tally)
        except Cancelled:
            return events.Stopped(step=0, seconds=time.monotonic() - began)
        seconds = time.monotonic() - began
        text = json.dumps(report | {"seconds": seconds}, ensure_ascii=False)
        write_atomically(batch.folder / "report.json", text)
        kind = events.Finished if whole else events.Stopped
        return kind(step=0, seconds=seconds)

    return errands.carry_out(batch, "start", work)


def judge(
    run: Run,
    asked: Asked,
    path: Path,
    out: Path,
    told: Told = lambda done, total: None,
    head: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
    tally: Tally | None = None,
) -> tuple[dict[str, Any], bool]:
    """Judge every row of a file; what it came to, and whether all of it was judged.

    A row that cannot be read, or that has no sentence, is written with the reason in the column
    `error` and without a prediction. Where the run has written down which pairs it was trained on
    (`seen`), the column `trained_on` says of each row whether it is one of them.

    Args:
        run: whose kept model judges.
        path, out: the file and the result, of the same kind (JSON becomes JSONL).
        told: called with rows done and rows in all, 0 while unknown; it may raise `Cancelled`,
            which ends the work and keeps what is written.
        head: called with the first rows of the result.
        tally: where it is counted, for who wants to look at it meanwhile.

    Raises:
        DataError: when the file cannot be read.
        ModelError: when there is no model.
    """
    from finetune.scoring import Scorer

    scorer = Scorer(run.best, checkpoints.length_of(run), paired=bool(asked.sentence2))
    table = files.open_table(path, asked.file)
    chosen = decision.read(run.best)
    known = seen.of(run)
    answer = _Answer(scorer, asked, chosen, _positive(run, scorer.labels, chosen), known)
    total, tally = _count(path, table), tally or Tally()
    shown: list[dict[str, Any]] = []
    if asked.label:
        size = len(scorer.labels)
        tally.counts = np.zeros((size, size), np.int64)
        tally.new = np.zeros_like(tally.counts)
    if known is not None:
        tally.trained = tally.validated = 0
    whole = True
    with disk.writing(out), _writer(out, table, answer.columns) as writer:
        try:
            for window in _windows(_rows(table, asked)):
                lines = answer(window, tally)
                writer.write(lines)
                if len(shown) < HEAD:
                    shown += map(_shortened, lines[: HEAD - len(shown)])
                    head(shown)
                told(tally.rows, max(total, tally.rows) if total else 0)
        except Cancelled:
            whole = False
    return _report(tally, scorer.labels, answer.positive), whole


def _rows(table: files.Table, asked: Asked) -> Iterator[Row]:
    """Every row of the file in its order, those that cannot be read among them."""
    broken: list[Row] = []

    def bad(line: int, reason: str) -> None:
        broken.append(Row(line, {}, f"line {line} {reason}"))

    wanted = [asked.sentence1, *filter(None, [asked.sentence2])]
    for line, record in table.records(bad):
        yield from broken
        broken.clear()
        missing = [name for name in wanted if not _sentence(record.get(name)).strip()]
        yield Row(line, record, f"{missing[0]} is empty" if missing else "")
    yield from broken


def _sentence(cell: Any) -> str:
    """A cell as training reads it and a tokenizer can take it: no lone surrogates, no NUL."""
    if isinstance(cell, dict | list):
        return ""
    return (hashes.sentence(files.plain(cell)) or "").replace("\0", " ")


def _windows(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows to be judged together: few at first, that there soon is something to be seen."""
    window: list[Row] = []
    most, size = min(FIRST, WINDOW), 0
    for row in rows:
        window.append(row)
        size += sum(map(_size, row.record.values()))
        if len(window) == most or size >= CHARACTERS:
            yield window
            most = min(most * 4, WINDOW)
            window, size = [], 0
    if window:
        yield window


def _size(cell: Any) -> int:
    """Characters of a cell, about."""
    if isinstance(cell, str | bytes):
        return len(cell)
    return len(str(cell)) if isinstance(cell, dict | list) else 8


def _shortened(line: dict[str, Any]) -> dict[str, Any]:
    """A row for a person to look at, whatever is in its cells."""
    return {name: _glimpse(cell) for name, cell in line.items()}


def _glimpse(cell: Any) -> Any:
    cell = str(cell) if isinstance(cell, dict | list) else files.plain(cell)
    return cell[:_SHOWN] if isinstance(cell, str) else cell


@dataclass
class _Answer:
    """From rows to the same rows with predictions."""

    scorer: Any
    asked: Asked
    chosen: Decision
    positive: int
    seen: Seen | None = None

    @property
    def columns(self) -> list[str]:
        """Those that are added, in order."""
        known = [TRAINED_ON] * (self.seen is not None)
        return ["prediction", *self._probability_columns, *known, "error"]

    @property
    def _probability_columns(self) -> list[str]:
        return [f"probability_{name}" for name in self.scorer.labels]

    def __call__(self, window: list[Row], tally: Tally) -> list[dict[str, Any]]:
        good = [row for row in window if not row.error]
        probabilities = self._probabilities(good) if good else np.zeros((0, 0), np.float32)
        trained = self._trained(good, tally)
        answers = iter(zip(self._answers(probabilities), probabilities, trained, strict=True))
        lines = []
        for row in window:
            tally.rows += 1
            added: dict[str, Any] = dict.fromkeys(self.columns)
            added["error"] = row.error
            if row.error:
                tally.errors += 1
                if len(tally.examples) < 10:
                    tally.examples.append(row.error)
            else:
                index, values, known = next(answers)
                added["prediction"] = self.scorer.labels[index]
                for name, value in zip(self._probability_columns, values, strict=True):
                    added[name] = round(float(value), 6)
                if self.seen is not None:
                    added[TRAINED_ON] = bool(known)
                self._count(row, int(index), tally, not known)
            lines.append({**row.record, **added})
        return lines

    def _probabilities(self, rows: list[Row]) -> NDArray[np.float32]:
        first = [_sentence(row.record[self.asked.sentence1]) for row in rows]
        second = None
        if self.asked.sentence2:
            second = [_sentence(row.record[self.asked.sentence2]) for row in rows]
        temperature = (self.chosen.temperature if self.asked.calibrated else None) or 1.0
        found = calibration.probabilities(self.scorer.scores(first, second), temperature)
        if self.asked.both_orders and second is not None:
            other = calibration.probabilities(self.scorer.scores(second, first), temperature)
            found = np.asarray((found + other) / 2, np.float32)
        return found

    def _trained(self, rows: list[Row], tally: Tally) -> NDArray[np.bool_]:
        """Which rows stand among the run's training pairs, of shape (rows,); they are counted."""
        if self.seen is None or not rows:
            return np.zeros(len(rows), bool)
        sides = [
            [files.plain(row.record[name]) for row in rows]
            for name in filter(None, (self.asked.sentence1, self.asked.sentence2))
        ]
        numbers = seen.pairs(sides[0], sides[1] if len(sides) > 1 else None)
        trained = self.seen.among("train", numbers)
        validated = self.seen.among("validation", numbers) & ~trained
        tally.trained = (tally.trained or 0) + int(trained.sum())
        tally.validated = (tally.validated or 0) + int(validated.sum())
        return trained

    def _answers(self, probabilities: NDArray[np.float32]) -> NDArray[np.int64]:
        if not len(probabilities):
            return np.zeros(0, np.int64)
        threshold = self.chosen.threshold if self.asked.threshold else None
        if threshold is None or probabilities.shape[1] != 2:
            return np.asarray(probabilities.argmax(axis=1), np.int64)
        level = threshold
        if self.asked.calibrated and self.chosen.temperature:
            level = decision.cooled(threshold, self.chosen.temperature)
        return np.where(probabilities[:, self.positive] >= level, self.positive, 1 - self.positive)

    def _count(self, row: Row, index: int, tally: Tally, new: bool) -> None:
        if tally.counts is None or tally.new is None:
            return
        given = " ".join(_sentence(row.record.get(self.asked.label)).split()).lower()
        names = [name.lower() for name in self.scorer.labels]
        if given.removesuffix(".0") in names:
            label = names.index(given.removesuffix(".0"))
        elif given.isdecimal() and int(given) < len(names):
            label = int(given)
        else:
            tally.unknown += 1
            return
        tally.counts[label, index] += 1
        tally.new[label, index] += new


def _positive(run: Run, labels: list[str], chosen: Decision) -> int:
    prepared = fold(run.tail()[0]).prepared
    name = chosen.positive or (str(prepared.data.get("positive_label")) if prepared else "")
    return labels.index(name) if name in labels else min(1, len(labels) - 1)


def _report(tally: Tally, labels: list[str], positive: int) -> dict[str, Any]:
    report: dict[str, Any] = {
        "rows": tally.rows, "errors": tally.errors, "examples": tally.examples,
        "labels": labels, "positive": positive, **tally.known(),
    }  # fmt: skip
    if tally.counts is not None:
        report |= {"labelled": int(tally.counts.sum()), "unknown_labels": tally.unknown}
        if tally.counts.sum():
            report |= _scores(tally.counts, positive)
    if tally.trained and tally.new is not None:
        labelled = int(tally.new.sum())
        enough = _scores(tally.new, positive) if labelled >= ENOUGH else {}
        report["not_trained_on"] = {"labelled": labelled, **enough}
    return report


def _scores(counts: NDArray[np.int64], positive: int) -> dict[str, Any]:
    found = intervals.bootstrap_counts(counts, positive)
    return {
        "scores": {name: [one.value, one.low, one.high] for name, one in found.items()},
        "confusion": counts.tolist(),
        "matthews": curves.matthews(counts),
    }


def _count(path: Path, table: files.Table) -> int:
    """About how many rows there are; 0 where only reading all of it would tell."""
    if table.schema is not None:
        return int(pq.read_metadata(path).num_rows)
    if path.name.endswith((".gz", ".json")):
        return 0
    with path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
    return max(1, lines - 1)


# -- results -------------------------------------------------------------------------------------


def _kind(path: Path) -> str:
    """The ending of the result: that of the file, unpacked; JSON comes out as JSONL."""
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    return {".json": ".jsonl", ".ndjson": ".jsonl", ".txt": ".csv"}.get(ending, ending)


class _Writer(ABC):
    """Where the rows of the result go.

    Args:
        out: the file.
        table: what is read.
        added: columns that the result has beside those; one of the same name is replaced.
    """

    def __init__(self, out: Path, table: files.Table, added: list[str]) -> None:
        self.out, self.table = out, table
        self.own = [name for name in table.columns if name not in added]
        self.columns = [*self.own, *added]

    def __enter__(self) -> _Writer:
        return self

    @abstractmethod
    def __exit__(self, *problem: object) -> None:
        """Close the file."""

    @abstractmethod
    def write(self, lines: list[dict[str, Any]]) -> None:
        """Add rows."""


class _Delimited(_Writer):
    """CSV or TSV, the person's own cells as they came; those that are added as `sheets` has them,
    for the names of classes and columns may be another's."""

    def __enter__(self) -> _Writer:
        self._file = self.out.open("w", encoding="utf-8", newline="")
        self._csv = csv.DictWriter(
            self._file, self.columns, extrasaction="ignore", delimiter=self.table.delimiter or ","
        )
        self._csv.writeheader()
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()

    def write(self, lines: list[dict[str, Any]]) -> None:
        own = set(self.own)
        self._csv.writerows(
            {n: value if n in own else sheets.neutral(value) for n, value in _cells(line).items()}
            for line in lines
        )
        self._file.flush()


def _cells(line: dict[str, Any]) -> dict[str, Any]:
    """With truths as the other kinds of files and most programs spell them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in line.items()
    }


class _Lines(_Writer):
    """JSONL."""

    def __enter__(self) -> _Writer:
        self._file = self.out.open("w", encoding="utf-8")
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()

    def write(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            text = json.dumps(line, ensure_ascii=False, default=str)
            self._file.write(text.encode("utf-8", "replace").decode() + "\n")
        self._file.flush()


class _Parquet(_Writer):
    """Parquet, the columns with the types they had."""

    def __enter__(self) -> _Writer:
        known = self.table.schema
        assert known is not None, "only Parquet files become Parquet"
        fields = [known.field(name) for name in known.names if name in self.own]
        kept = {field.name for field in fields}
        for name in self.columns:
            if name not in kept:
                fields.append(pa.field(name, _arrow(name)))
        self._schema = pa.schema(fields)
        self._file = pq.ParquetWriter(self.out, self._schema)
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()

    def write(self, lines: list[dict[str, Any]]) -> None:
        self._file.write_table(pa.Table.from_pylist(lines, self._schema))


def _arrow(added: str) -> pa.DataType:
    """The type of an added column."""
    if added == TRAINED_ON:
        return pa.bool_()
    return pa.float64() if added.startswith("probability_") else pa.string()


def _writer(out: Path, table: files.Table, added: list[str]) -> _Writer:
    kinds: dict[str, type[_Writer]] = {".jsonl": _Lines, ".parquet": _Parquet}
    return kinds.get(out.suffix, _Delimited)(out, table, added)


if __name__ == "__main__":
    sys.exit(main())
