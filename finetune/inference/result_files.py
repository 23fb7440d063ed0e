"""The rows of a predicted file: all are written as CSV, TSV, JSON lines, JSON or Parquet; the first
ones and the least sure are shown on the page.

The columns of the file keep their names and cells; those of the prediction are renamed if needed.
"""

import csv
import heapq
import itertools
import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from finetune.data import csv_cells
from finetune.data.table import Table, to_plain_value
from finetune.errors import DataError
from finetune.metrics.catalog import metric_name
from finetune.text_hashes import replace_surrogates

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")  # formats that can be written
PREDICTION, DECISION, TRAINED_ON, ERROR = "prediction", "decision", "trained_on", "error"
Line = dict[str, Any]  # a row of the file or of the result: column -> cell
ColumnTypes = dict[str, pa.DataType]
WriteLines = Callable[[list[Line]], None]
FIRST = 1000  # rows shown from the beginning
LEAST_SURE = 200  # further rows shown because the model is unsure of them
UNSURE = 0.3  # an answer with a smaller margin is unsure: less than 65% to 35% of two classes
_CELL = 500  # characters of a cell


def result_suffix(path: Path) -> str:
    """The default ending of a file's result: its own, unpacked; JSON becomes JSONL, a workbook
    CSV."""
    ending = _unpacked_suffix(path)
    kinds = dict.fromkeys((".txt", ".xlsx", ".xls", ".ods"), ".csv")
    return (kinds | {".json": ".jsonl", ".ndjson": ".jsonl"}).get(ending, ending)


def _unpacked_suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def file_columns(table: Table) -> ColumnTypes:
    """The columns of a file that are copied to its result, with their types.

    Formats that declare no columns (JSON, workbooks) are read once for this: a key or a type may
    first occur in the last row.
    """
    if table.schema is not None:
        usable = [name for name in table.columns if name not in table.unusable]
        return {name: table.schema.field(name).type for name in usable}
    if table.delimiter:
        return dict.fromkeys(table.columns, pa.string())
    own = [name for name in table.columns if name not in table.inner]
    types: dict[str, set[type]] = {name: set() for name in own}
    for _, record in table.rows(lambda line, reason: None):
        for name, cell in record.items():
            if cell is not None and cell != "":
                is_large = isinstance(cell, int) and not -(2**63) <= cell < 2**63
                types.setdefault(name, set()).add(str if is_large else type(cell))
    narrowest = {
        frozenset({bool}): pa.bool_(),
        frozenset({int}): pa.int64(),
        frozenset({float}): pa.float64(),
        frozenset({int, float}): pa.float64(),
    }  # text holds any
    return {name: narrowest.get(frozenset(found), pa.string()) for name, found in types.items()}


def added_columns(
    answered: Mapping[str, type], trained_on: bool, taken: Iterable[str]
) -> ColumnTypes:
    """The columns that a prediction adds: those of the task, `trained_on` if that is known, and
    `error`.

    If the file, whose columns are `taken`, has one of these names, ignoring case, all of them get
    the ending `_2`, or the next free number.
    """
    columns = {
        name: pa.string() if kind is str else pa.float64() for name, kind in answered.items()
    }
    columns |= {TRAINED_ON: pa.bool_()} if trained_on else {}
    columns |= {ERROR: pa.string()}
    used = {name.casefold() for name in taken}
    ending, number = "", 2
    while not used.isdisjoint(f"{name}{ending}".casefold() for name in columns):
        ending, number = f"_{number}", number + 1
    return {f"{name}{ending}": kind for name, kind in columns.items()}


@contextmanager
def open_writer(
    out: Path, table: Table, own: ColumnTypes, added: ColumnTypes
) -> Iterator[WriteLines]:
    """Open the result of a predicted file, with its `own` and the `added` columns, in the format of
    its ending; yields a function that writes rows. DataError if it has another ending."""
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(
            "The result cannot be {ending}.", "Choose one of {formats}.",
            ending=suffix or out.name, formats=", ".join(SUFFIXES),
        )  # fmt: skip
    if suffix == ".parquet":
        columns = own | added
        fields = [pa.field(replace_surrogates(name), kind) for name, kind in columns.items()]
        if table.schema is not None:
            fields[: len(own)] = map(table.schema.field, own)
        schema = pa.schema(fields)
        with pq.ParquetWriter(out, schema) as parquet:
            yield lambda lines: parquet.write_table(_to_arrow(lines, columns, schema))
        return
    # A spreadsheet would take texts of a CSV for formulas, and misread UTF-8 without a mark.
    is_csv = suffix in (".csv", ".tsv")
    encoding = "utf-8-sig" if is_csv and table.sheets else "utf-8"
    with out.open("w", encoding=encoding, errors="replace", newline="") as file:
        if is_csv:
            yield _csv_writer(file, out, table, [*own], [*added])
            return
        begins: Iterator[str] = itertools.repeat("")
        if suffix == ".json":
            begins = itertools.chain("[", itertools.repeat(","))

        def write(lines: list[Line]) -> None:
            for line in lines:
                cells = {  # JSON has no numbers that are not finite
                    name: None if isinstance(cell, float) and not math.isfinite(cell) else cell
                    for name, cell in line.items()
                }
                text = json.dumps(cells, ensure_ascii=False, default=to_plain_value)
                file.write(f"{next(begins)}{text}\n")
            file.flush()

        yield write
        if suffix == ".json":
            file.write("]\n" if next(begins) == "," else "[]\n")


def _csv_writer(file: Any, out: Path, table: Table, own: list[str], added: list[str]) -> WriteLines:
    delimiter = "\t" if out.suffix.lower() == ".tsv" else ","
    if table.delimiter and _unpacked_suffix(table.path) == out.suffix.lower():
        delimiter = table.delimiter
    escaped = {*own, *added} if table.sheets else {*added}
    rows = csv.writer(file, delimiter=delimiter)

    def cell(name: str, value: Any) -> object:
        """Format a cell. Texts that are not the person's own must not become formulas."""
        if not isinstance(value, str):
            return _to_text(value)
        return csv_cells.escape_formula(value) if name in escaped else value

    rows.writerow([cell(name, name) for name in (*own, *added)])

    def write(lines: list[Line]) -> None:
        rows.writerows([cell(name, line.get(name)) for name in (*own, *added)] for line in lines)
        file.flush()

    return write


def _to_text(cell: Any) -> str:
    """A cell of any type as text; lists and objects as JSON."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, dict | list):
        return json.dumps(cell, ensure_ascii=False, default=str)
    return "" if cell is None else str(to_plain_value(cell))


def _to_arrow(lines: list[Line], columns: ColumnTypes, schema: pa.Schema) -> pa.Table:
    cells = ([line.get(name) for line in lines] for name in columns)
    texts = (
        [None if cell is None else replace_surrogates(_to_text(cell)) for cell in column]
        if field.type == pa.string()
        else [None if cell == "" and pa.types.is_primitive(field.type) else cell for cell in column]
        for column, field in zip(cells, schema, strict=True)
    )
    return pa.table([pa.array(*column) for column in zip(texts, schema.types, strict=True)], schema)


class ShownRow(TypedDict):
    """A row of the result."""

    row: int  # in the file, from 0
    margin: float | None  # of `Task.margins`; None if it is not known
    unsure: bool  # the model is
    cells: dict[str, Any]  # column -> cell; shortened if it is shown


class ShownRows:
    """Collects the rows to show while a file is predicted."""

    def __init__(self) -> None:
        self._first: list[ShownRow] = []
        self._unsure: list[ShownRow] = []

    @property
    def rows(self) -> list[ShownRow]:
        """The rows so far, in the order of the file."""
        return self._first + sorted(self._unsure, key=lambda row: row["row"])

    def add(self, rows: Sequence[ShownRow]) -> bool:
        """Take in the next rows. Returns True if one of the first is shown."""
        first = [shortened(row) for row in rows if row["row"] < FIRST]
        self._first += first
        if later := [row for row in rows if row["row"] >= FIRST and row["unsure"]]:
            least = heapq.nsmallest(
                LEAST_SURE, self._unsure + later, key=lambda row: row["margin"] or 0.0
            )
            self._unsure = [shortened(row) for row in least]
        return bool(first)


def shortened(row: ShownRow) -> ShownRow:
    """Return a row with shortened cells."""
    plain = {name: to_plain_value(cell) for name, cell in row["cells"].items()}
    cells = {
        name: cell if cell is None or isinstance(cell, int | float) else str(cell)[:_CELL]
        for name, cell in plain.items()
    }
    return ShownRow(row=row["row"], margin=row["margin"], unsure=row["unsure"], cells=cells)


def as_text(report: Mapping[str, Any]) -> str:
    """Return what came of a predicted file in plain lines."""
    counts = [*report["answers"].items(), ("no label", report.get("without_label", 0))]
    answers = ", ".join(f"{name} {count:,}" for name, count in counts if count)
    lines = [f"{report['rows']:,} rows" + (f" ({answers})" if answers else "")]
    if report["errors"]:
        first = "; ".join(map(str, report["examples"][:3]))
        lines.append(
            f"{report['errors']:,} have no answer: {report['columns'][-1]} says why ({first})"
        )
    if report.get("unsure"):
        lines.append(f"the model is unsure of {report['unsure']:,}")
    for part in (report, report.get("not_trained_on", {})):
        if "scores" in part:
            scores = ", ".join(
                f"{metric_name(name, len(report['labels']))} {value:.3f} ({low:.3f} to {high:.3f})"
                for name, (value, low, high) in part["scores"].items()
            )
            which = "" if part is report else " that were not trained on"
            lines.append(f"on {part['labelled']:,} labelled rows{which}: {scores}")
    if unknown := report.get("unknown_labels"):
        lines.append(f"{unknown:,} rows with a label that the model does not know are in no score")
    if lost := report.get("left_out"):
        lines.append(f"nested columns that the result lacks: {', '.join(lost)}")
    if trained := report.get("trained_on"):
        lines.append(f"{trained:,} rows were trained on: their scores say nothing about new rows")
    for other in report.get("others", []):
        agreed = ", ".join(f"{name} {value[0]:.3f}" for name, value in other["agreement"].items())
        lines.append(f"compared with {other['column']}: {agreed}")
    return "\n  ".join(lines)


def notes(report: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return what else the command of such arguments says: no review without a bound, and new
    names of the columns that were added."""
    found, run, review = [], given["run"], given["review"]
    if review and "sure" not in report:
        bound = shlex.join(["--runs", str(run.folder.parent), f"--run={run.id}"])
        found.append(
            f"{review} is not written: the model has no bound on such answers; keep one with "
            f"python -m finetune sure {bound}"
        )
    if report["columns"][-1] != ERROR:
        names = ", ".join(report["columns"])
        found.append(f"{given['file']} keeps its own columns; those added are {names}")
    return found
