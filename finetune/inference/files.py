"""Predicts every row of a file with a run's model in bounded memory: the same file comes out with
the prediction and every class's probability.

The page starts it as a process of its own; from a terminal it takes a run, a file and a result.
"""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from finetune import disk, text_hashes
from finetune.data import checkpoints, safe_csv, tables
from finetune.data.table_files import Table, to_plain_value
from finetune.inference import decision_rule
from finetune.inference.decision_rule import DecisionRule
from finetune.inference.file_request import PredictionRequest
from finetune.metrics import calibration, classification, intervals
from finetune.runs import pair_index
from finetune.runs.pair_index import PairIndex
from finetune.runs.run import Run
from finetune.runs.summary import fold_events

WINDOW = 4096  # rows sorted by length together, and held at once
FIRST = 64  # rows of the first window, which is soon judged; each is four times the former
CHARACTERS = 2**22  # of a window's cells, beyond which it ends
HEAD = 100
_SHOWN = 500  # characters of a cell among the first rows
ENOUGH = 30  # labelled rows to be scored apart; with fewer, intervals are 30 points wide and more
TRAINED_ON = "trained_on"
ProgressCallback = Callable[[int, int], None]


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
class RunningTotals:
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


def predict_file(
    run: Run,
    asked: PredictionRequest,
    path: Path,
    out: Path,
    told: ProgressCallback = lambda done, total: None,
    head: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
    tally: RunningTotals | None = None,
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
    from finetune.inference.scorer import Scorer

    scorer = Scorer(run.best, checkpoints.length_of(run.folder), paired=bool(asked.sentence2))
    table = tables.open_table(path, asked.file)
    chosen = decision_rule.read_rule(run.best)
    known = pair_index.read_pair_index(run)
    answer = _Answer(scorer, asked, chosen, _positive(run, scorer.labels, chosen), known)
    total, tally = _count(path, table), tally or RunningTotals()
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


def _rows(table: Table, asked: PredictionRequest) -> Iterator[Row]:
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
    return (text_hashes.clean_sentence(to_plain_value(cell)) or "").replace("\0", " ")


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
    cell = str(cell) if isinstance(cell, dict | list) else to_plain_value(cell)
    return cell[:_SHOWN] if isinstance(cell, str) else cell


@dataclass
class _Answer:
    """From rows to the same rows with predictions."""

    scorer: Any
    asked: PredictionRequest
    chosen: DecisionRule
    positive: int
    seen: PairIndex | None = None

    @property
    def columns(self) -> list[str]:
        """Those that are added, in order."""
        known = [TRAINED_ON] * (self.seen is not None)
        return ["prediction", *self._probability_columns, *known, "error"]

    @property
    def _probability_columns(self) -> list[str]:
        return [f"probability_{name}" for name in self.scorer.labels]

    def __call__(self, window: list[Row], tally: RunningTotals) -> list[dict[str, Any]]:
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

    def _trained(self, rows: list[Row], tally: RunningTotals) -> NDArray[np.bool_]:
        """Which rows stand among the run's training pairs, of shape (rows,); they are counted."""
        if self.seen is None or not rows:
            return np.zeros(len(rows), bool)
        sides = [
            [to_plain_value(row.record[name]) for row in rows]
            for name in filter(None, (self.asked.sentence1, self.asked.sentence2))
        ]
        numbers = pair_index.pair_hashes(sides[0], sides[1] if len(sides) > 1 else None)
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
            level = decision_rule.rescale_threshold(threshold, self.chosen.temperature)
        return np.where(probabilities[:, self.positive] >= level, self.positive, 1 - self.positive)

    def _count(self, row: Row, index: int, tally: RunningTotals, new: bool) -> None:
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


def _positive(run: Run, labels: list[str], chosen: DecisionRule) -> int:
    prepared = fold_events(run.tail()[0]).prepared
    name = chosen.positive or (str(prepared.data.get("positive_label")) if prepared else "")
    return labels.index(name) if name in labels else min(1, len(labels) - 1)


def _report(tally: RunningTotals, labels: list[str], positive: int) -> dict[str, Any]:
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
    found = intervals.bootstrap_from_counts(counts, positive)
    return {
        "scores": {name: [one.value, one.low, one.high] for name, one in found.items()},
        "confusion": counts.tolist(),
        "matthews": classification.matthews_corrcoef(counts),
    }


def _count(path: Path, table: Table) -> int:
    """About how many rows there are; 0 where only reading all of it would tell."""
    if table.schema is not None:
        return int(pq.read_metadata(path).num_rows)
    if path.name.endswith((".gz", ".json")):
        return 0
    with path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
    return max(1, lines - 1)


# -- results -------------------------------------------------------------------------------------


def result_suffix(path: Path) -> str:
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

    def __init__(self, out: Path, table: Table, added: list[str]) -> None:
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
            {
                n: value if n in own else safe_csv.escape_formula(value)
                for n, value in _cells(line).items()
            }
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


def _writer(out: Path, table: Table, added: list[str]) -> _Writer:
    kinds: dict[str, type[_Writer]] = {".jsonl": _Lines, ".parquet": _Parquet}
    return kinds.get(out.suffix, _Delimited)(out, table, added)
