"""Predicts every row of a file in bounded memory: the same rows are written with the prediction
and every class's probability."""

from __future__ import annotations

import contextlib
import csv
import json
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
from finetune.inference.file_request import PredictionRequest
from finetune.metrics import classification, intervals
from finetune.runs import pair_index
from finetune.runs.run import Run
from finetune.runs.summary import fold_events

WINDOW = 4096  # rows sorted by length together, and held at once
FIRST = 64  # rows of the first window, which is soon predicted; each is four times the former
CHARACTERS = 2**22  # of a window's cells, beyond which it ends
HEAD = 100
_SHOWN = 500  # characters of a cell among the first rows
ENOUGH = 30  # labelled rows to be scored apart; with fewer, intervals are 30 points wide and more
TRAINED_ON = "trained_on"
OnProgress = Callable[[int, int], None]
OnHead = Callable[[list[dict[str, Any]]], None]
Line = dict[str, Any]  # a row of the result: column -> cell


class Cancelled(BaseException):
    """The prediction of a file is to end; what is written is kept."""


@dataclass(frozen=True)
class InputRow:
    """One row of the file, or why it could not be read."""

    record: dict[str, Any]
    error: str = ""


@dataclass
class RunningTotals:
    """Counts over the rows so far.

    Args:
        rows, errors: rows, and those of them that could not be predicted.
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

    def overlap(self) -> dict[str, int]:
        """How many rows the run has seen, for a report; empty where that is not known."""
        if self.trained is None or self.validated is None:
            return {}
        return {TRAINED_ON: self.trained, "validated_on": self.validated}


def predict_file(
    run: Run,
    request: PredictionRequest,
    path: Path,
    out: Path,
    on_progress: OnProgress = lambda done, total: None,
    on_head: OnHead = lambda rows: None,
    totals: RunningTotals | None = None,
) -> tuple[dict[str, Any], bool]:
    """Predict every row of a file: the report, and whether all rows were predicted.

    A row that cannot be read, or that has no sentence, is written with the reason in the column
    `error`. Where the run has written down which pairs it was trained on, the column `trained_on`
    says of each row whether it is one of them.

    Args:
        path, out: the file and the result, of the same kind (JSON becomes JSONL).
        on_progress: called with rows done and rows in all, 0 while unknown; it may raise
            `Cancelled`.
        on_head: called with the first rows of the result.
        totals: counts the rows, for callers who look at it meanwhile.

    Raises:
        DataError: when the file cannot be read.
        ModelError: when there is no model.
    """
    table = tables.open_table(path, request.file)
    totals = totals or RunningTotals()
    predictor = _RowPredictor(run, request, totals)
    row_count = _count_rows(path, table)
    head: list[Line] = []
    complete = True
    with disk.writing(out), open_writer(out, table, predictor.columns) as write:
        try:
            for window in _windows(_read_rows(table, request)):
                lines = predictor.predict(window)
                write(lines)
                if len(head) < HEAD:
                    head += map(_shorten, lines[: HEAD - len(head)])
                    on_head(head)
                on_progress(totals.rows, max(row_count, totals.rows) if row_count else 0)
        except Cancelled:
            complete = False
    return _report(totals, predictor.labels, predictor.positive), complete


def _read_rows(table: Table, request: PredictionRequest) -> Iterator[InputRow]:
    """Every row of the file in its order, those that cannot be read among them."""
    broken: list[InputRow] = []

    def on_error(line: int, reason: str) -> None:
        broken.append(InputRow({}, f"line {line} {reason}"))

    columns = [*filter(None, (request.sentence1, request.sentence2))]
    for _, record in table.rows(on_error):
        yield from broken
        broken.clear()
        empty = [name for name in columns if not _sentence(record.get(name)).strip()]
        yield InputRow(record, f"{empty[0]} is empty" if empty else "")
    yield from broken


def _sentence(cell: Any) -> str:
    """A cell as training reads it and a tokenizer can take it: no lone surrogates, no NUL."""
    if isinstance(cell, dict | list):
        return ""
    return (text_hashes.clean_sentence(to_plain_value(cell)) or "").replace("\0", " ")


def _windows(rows: Iterable[InputRow]) -> Iterator[list[InputRow]]:
    """Rows to be predicted together: few at first, so that the first are soon seen."""
    window: list[InputRow] = []
    most, size = min(FIRST, WINDOW), 0
    for row in rows:
        window.append(row)
        for cell in row.record.values():
            if isinstance(cell, dict | list):
                cell = str(cell)
            size += len(cell) if isinstance(cell, str | bytes) else 8
        if len(window) == most or size >= CHARACTERS:
            yield window
            most = min(most * 4, WINDOW)
            window, size = [], 0
    if window:
        yield window


def _shorten(line: Line) -> Line:
    """A row for a person to look at, whatever is in its cells."""
    short = {}
    for name, cell in line.items():
        value = str(cell) if isinstance(cell, dict | list) else to_plain_value(cell)
        short[name] = value[:_SHOWN] if isinstance(value, str) else value
    return short


class _RowPredictor:
    """Adds predictions to rows, and counts them in `totals`."""

    def __init__(self, run: Run, request: PredictionRequest, totals: RunningTotals) -> None:
        from finetune.inference.scorer import Scorer

        length = checkpoints.length_of(run.folder)
        self._scorer = Scorer(run.best, length, paired=bool(request.sentence2))
        self.labels = self._scorer.labels
        self._request, self._totals = request, totals
        self._rule = decision_rule.read_rule(run.best)
        prepared = fold_events(run.tail()[0]).prepared
        name = self._rule.positive or (prepared and prepared.data.get("positive_label"))
        default = min(1, len(self.labels) - 1)
        self.positive = self.labels.index(name) if name in self.labels else default
        self._pair_index = pair_index.read_pair_index(run)
        self._probability_columns = [f"probability_{label}" for label in self.labels]
        known = [TRAINED_ON] if self._pair_index is not None else []
        self.columns = ["prediction", *self._probability_columns, *known, "error"]
        if request.label:
            totals.counts = np.zeros((len(self.labels), len(self.labels)), np.int64)
            totals.new = np.zeros_like(totals.counts)
        if self._pair_index is not None:
            totals.trained = totals.validated = 0

    def predict(self, window: list[InputRow]) -> list[Line]:
        """The rows of the result."""
        good = [row for row in window if not row.error]
        predictions = iter(self._predictions(good) if good else ())
        lines = []
        for row in window:
            added: Line = dict.fromkeys(self.columns)
            if row.error:
                self._totals.errors += 1
                if len(self._totals.examples) < 10:
                    self._totals.examples.append(row.error)
            else:
                added |= next(predictions)
            lines.append({**row.record, **added, "error": row.error})
        self._totals.rows += len(window)
        return lines

    def _predictions(self, rows: list[InputRow]) -> Iterator[Line]:
        """The added columns of rows that can be predicted."""
        request = self._request
        first = [_sentence(row.record[request.sentence1]) for row in rows]
        second = swapped = None
        if request.sentence2:
            second = [_sentence(row.record[request.sentence2]) for row in rows]
            swapped = self._scorer.scores(second, first) if request.both_orders else None
        logits = self._scorer.scores(first, second)
        shares, answers = decision_rule.decide(
            logits, self.labels, self._rule, request.options, swapped
        )
        trained_on = self._trained_on(rows)
        for row, answer, values, trained in zip(rows, answers, shares, trained_on, strict=True):
            rounded = (round(float(value), 6) for value in values)
            added = dict(zip(self._probability_columns, rounded, strict=True))
            if self._pair_index is not None:
                added[TRAINED_ON] = bool(trained)
            if request.label:
                self._count_label(row.record.get(request.label), int(answer), not trained)
            yield {"prediction": self.labels[answer], **added}

    def _trained_on(self, rows: list[InputRow]) -> NDArray[np.bool_]:
        """Which rows stand among the run's training pairs, of shape (rows,); they are counted."""
        if self._pair_index is None:
            return np.zeros(len(rows), bool)
        columns = filter(None, (self._request.sentence1, self._request.sentence2))
        sides = [[to_plain_value(row.record[name]) for row in rows] for name in columns]
        numbers = pair_index.pair_hashes(sides[0], sides[1] if len(sides) > 1 else None)
        trained = self._pair_index.among("train", numbers)
        validated = self._pair_index.among("validation", numbers) & ~trained
        self._totals.trained = (self._totals.trained or 0) + int(trained.sum())
        self._totals.validated = (self._totals.validated or 0) + int(validated.sum())
        return trained

    def _count_label(self, cell: Any, answer: int, new: bool) -> None:
        assert self._totals.counts is not None
        assert self._totals.new is not None
        text = " ".join(_sentence(cell).split()).lower().removesuffix(".0")
        names = [name.lower() for name in self.labels]
        if text in names:
            label = names.index(text)
        elif text.isdecimal() and int(text) < len(names):
            label = int(text)
        else:
            self._totals.unknown += 1
            return
        self._totals.counts[label, answer] += 1
        self._totals.new[label, answer] += new


def _report(totals: RunningTotals, labels: list[str], positive: int) -> dict[str, Any]:
    report: dict[str, Any] = {
        "rows": totals.rows, "errors": totals.errors, "examples": totals.examples,
        "labels": labels, "positive": positive, **totals.overlap(),
    }  # fmt: skip
    if totals.counts is not None:
        report |= {"labelled": int(totals.counts.sum()), "unknown_labels": totals.unknown}
        if totals.counts.any():
            report |= _scores(totals.counts, positive)
    if totals.trained and totals.new is not None:
        labelled = int(totals.new.sum())
        enough = _scores(totals.new, positive) if labelled >= ENOUGH else {}
        report["not_trained_on"] = {"labelled": labelled, **enough}
    return report


def _scores(counts: NDArray[np.int64], positive: int) -> dict[str, Any]:
    scores = intervals.bootstrap_from_confusion(counts, positive)
    return {
        "scores": {name: [one.value, one.low, one.high] for name, one in scores.items()},
        "confusion": counts.tolist(),
        "matthews": classification.matthews_corrcoef(counts),
    }


def _count_rows(path: Path, table: Table) -> int:
    """About how many rows there are; 0 where only reading all of it would tell."""
    if table.schema is not None:
        return int(pq.read_metadata(path).num_rows)
    if path.name.endswith((".gz", ".json")):
        return 0
    with path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
    return max(1, lines - 1)


def result_suffix(path: Path) -> str:
    """The ending of the result: that of the file, unpacked; JSON comes out as JSONL."""
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    return {".json": ".jsonl", ".ndjson": ".jsonl", ".txt": ".csv"}.get(ending, ending)


@contextlib.contextmanager
def open_writer(
    out: Path, table: Table, added: list[str]
) -> Iterator[Callable[[list[Line]], None]]:
    """A function that writes rows to the result.

    Args:
        table: the file that is read; Parquet columns keep its types, nested ones are left out.
        added: columns that the result has beside those; one of the same name is replaced.
    """
    own = {name: None for name in table.columns if name not in (*added, *table.unusable)}
    if out.suffix == ".parquet":
        assert table.schema is not None, "only Parquet files become Parquet"
        schema = pa.schema([*map(table.schema.field, own), *map(_added_field, added)])
        with pq.ParquetWriter(out, schema) as parquet:
            yield lambda lines: parquet.write_table(pa.Table.from_pylist(lines, schema))
        return
    with out.open("w", encoding="utf-8", errors="replace", newline="") as file:
        delimiter = table.delimiter or ","
        rows = csv.DictWriter(file, [*own, *added], extrasaction="ignore", delimiter=delimiter)
        if out.suffix != ".jsonl":
            rows.writeheader()

        def write(lines: list[Line]) -> None:
            if out.suffix == ".jsonl":
                texts = (json.dumps(line, ensure_ascii=False, default=str) for line in lines)
                file.writelines(f"{text}\n" for text in texts)
            else:
                rows.writerows(
                    {n: _csv_cell(line.get(n), n in own) for n in line} for line in lines
                )
            file.flush()

        yield write


def _csv_cell(value: Any, own: bool) -> Any:
    """The person's own cells as they came; added ones safe for a spreadsheet, as the names of
    classes may be another's."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if own else safe_csv.escape_formula(value)


def _added_field(name: str) -> pa.Field:
    kind = pa.float64() if name.startswith("probability_") else pa.string()
    return pa.field(name, pa.bool_() if name == TRAINED_ON else kind)
