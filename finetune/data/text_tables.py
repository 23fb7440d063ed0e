"""Tables that are text: CSV, TSV, JSON lines and JSON.

`pyarrow.csv` and `pyarrow.json` are not used: they refuse a whole file for one line that is broken,
where these readers report the line and go on.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any

from finetune import disk
from finetune.data import table_files
from finetune.data.table_files import MAX_FIELD, OnBadRow, Table
from finetune.errors import DataError
from finetune.messages import message as _

MAX_RECORD = 1000  # lines; a quote that is open for longer is taken for a mistake
MAX_JSON = 128 * 2**20  # characters of a JSON file, which is held in memory; JSONL has no limit
MAX_JSON_VALUES = 2**22  # values of a JSON file, about; each takes up to 100 bytes
_SAMPLE = 100  # lines whose delimiters are counted
_KEYED_ROWS = 1_000  # JSON objects whose keys are the columns


class _TextTable(Table):
    def __init__(self, path: Path, name: str, encoding: str) -> None:
        super().__init__()
        self._path, self._name, self._encoding = path, name, encoding

    def _open(self) -> io.TextIOWrapper:
        file = table_files.open_bytes(self._path, self._name)
        return io.TextIOWrapper(file, encoding=self._encoding, errors="replace", newline="")

    def _lines(self, on_bad_row: OnBadRow = lambda line, reason: None) -> Iterator[tuple[int, str]]:
        """Lines without NULs, and their numbers from 1; one of more than `MAX_FIELD` characters is
        reported and skipped."""
        number = 0
        with self._open() as text:
            while line := text.readline(MAX_FIELD):
                number += 1
                if len(line) < MAX_FIELD or line.endswith(("\n", "\r")):
                    yield number, line.replace("\0", "")
                    continue
                on_bad_row(
                    number, _("is longer than {max_field:,} characters", max_field=MAX_FIELD)
                )
                while line and not line.endswith(("\n", "\r")):
                    line = text.readline(MAX_FIELD)


class CsvTable(_TextTable):
    """Delimited text; the delimiter is the one that gives most lines as many cells as the first.

    Args:
        tab: prefer tabs where several delimiters fit.
    """

    def __init__(self, path: Path, name: str, encoding: str, tab: bool) -> None:
        super().__init__(path, name, encoding)
        csv.field_size_limit(MAX_FIELD)
        lines = dropwhile(lambda line: not line.strip(), (line for _, line in self._lines()))
        sample = list(islice(lines, _SAMPLE))
        if not sample:
            raise DataError("{name} is empty.", "Upload a file with a header and rows.", name=name)
        self.delimiter = _detect_delimiter(sample, tab)
        records = csv.reader(sample, delimiter=self.delimiter)
        header = next((cells for cells in records if any(map(str.strip, cells))), [])
        self._has_header = not _looks_like_data(header)
        self.columns = _unique_names(header if self._has_header else [""] * len(header))
        if not self._has_header:
            self.notes.append(
                _("The first line of {name} looks like data, so it is read as a row.", name=name)
            )
        if self.delimiter != ",":
            self.notes.append(
                _("{name} is separated by {delimiter!r}.", name=name, delimiter=self.delimiter)
            )

    def rows(
        self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        names, width = self.columns if columns is None else columns, len(self.columns)
        indices = [(name, self.columns.index(name)) for name in names]
        for line, cells in islice(self._records(on_bad_row), self._has_header, None):
            if len(cells) != width and (len(cells) < width or any(cells[width:])):
                on_bad_row(
                    line,
                    _(
                        "has {count} fields where the first line has {width}",
                        count=len(cells),
                        width=width,
                    ),
                )
            else:
                yield line, {name: cells[index] for name, index in indices}

    def _records(self, on_bad_row: OnBadRow) -> Iterator[tuple[int, list[str]]]:
        """Line and cells of every record; a broken one costs its first line only."""
        lines = self._lines(on_bad_row)
        again: list[tuple[int, str]] = []  # lines of a broken record, the next one last
        record: list[tuple[int, str]] = []

        def record_lines() -> Iterator[str]:
            while line := again.pop() if again else next(lines, None):
                record.append(line)
                if len(record) > MAX_RECORD:
                    raise csv.Error
                yield line[1]

        reader = csv.reader(record_lines(), delimiter=self.delimiter, strict=True)
        while True:
            record.clear()
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                number, line = record[0]
                again += reversed(record[1:])
                reader = csv.reader(record_lines(), delimiter=self.delimiter, strict=True)
                plain = line.rstrip("\r\n").split("\t")  # TSV may have quotes that mean nothing
                if self.delimiter == "\t" and len(plain) == len(self.columns):
                    yield number, plain
                elif "expected after" in str(error):
                    on_bad_row(number, _("has a quote within a quoted field that is not doubled"))
                else:
                    on_bad_row(number, _("a quote is opened here and not closed"))
            else:
                if any(cells):
                    yield record[0][0], cells


def _unique_names(header: list[str]) -> list[str]:
    """Names without spaces around; an empty one is numbered, as is a repeated one."""
    names: dict[str, None] = {}
    for index, cell in enumerate(header, 1):
        name = " ".join(cell.replace("\ufeff", "").split())[:200] or f"column {index}"
        names[f"{name} ({index})" if name in names else name] = None
    return list(names)


def _detect_delimiter(sample: list[str], tab: bool) -> str:
    scores = []
    for order, delimiter in enumerate("\t,;|" if tab else ",;\t|"):
        try:
            widths = [len(cells) for cells in csv.reader(sample, delimiter=delimiter) if cells]
        except csv.Error:
            continue
        if widths and widths[0] > 1:
            even = sum(width == widths[0] for width in widths) / len(widths)
            scores.append((round(even, 1), -order, delimiter))
    return max(scores)[2] if scores else ("\t" if tab else ",")


def _looks_like_data(header: list[str]) -> bool:
    """Whether a first line has sentences or numbers where a header has names."""
    cells = [cell.strip() for cell in header]
    wordy = any(len(cell.split()) > 5 for cell in cells)
    numeric = any(re.fullmatch(r"-?\d+([.,]\d+)?", cell) for cell in cells)
    return len(cells) > 1 and (wordy or (numeric and any(" " in cell for cell in cells)))


class JsonTable(_TextTable):
    """JSON objects as rows; the keys of the first ones are the columns.

    Args:
        lines: whether each line is an object; else the file is one list of them, or such lines
            where it is no JSON.
    """

    def __init__(self, path: Path, name: str, encoding: str, lines: bool) -> None:
        super().__init__(path, name, encoding)
        self._items: list[Any] | None = None
        problem = _("{name} has no line that is a JSON object.", name=name)
        if not lines:
            try:
                self._items = self._parse()
                problem = _("{name} has no list of objects.", name=name)
            except ValueError as error:
                problem = _("{name} is not JSON: {error}.", name=name, error=error)
        first_rows = islice(self.rows(lambda line, reason: None), _KEYED_ROWS)
        names = dict.fromkeys(key for _, record in first_rows for key in record)
        self.columns = list(names)[: table_files.MAX_COLUMNS]
        if not self.columns:
            example = '{"sentence1": ..., "sentence2": ..., "label": ...}'
            raise DataError(
                problem, "Write {example} a line, or [{example}, ...].", example=example
            )

    def _parse(self) -> list[Any]:
        """The list in the file, empty where it holds another value; may raise ValueError."""
        with self._open() as file:
            text = file.read(MAX_JSON + 1)
        if len(text) > MAX_JSON or sum(map(text.count, "[{,")) > MAX_JSON_VALUES:
            raise DataError(
                "{name} has more JSON than is held in memory: at most {mebibytes} MiB and "
                "{max_json_values:,} values.",
                "Save it as JSONL, CSV or Parquet.",
                name=self._name,
                mebibytes=MAX_JSON // 2**20,
                max_json_values=MAX_JSON_VALUES,
            )
        value = disk.parse_json(text)
        return value if isinstance(value, list) else []

    def _values(self, on_bad_row: OnBadRow) -> Iterator[tuple[int, Any]]:
        if self._items is not None:
            yield from enumerate(self._items, 1)
            return
        for number, line in self._lines(on_bad_row):
            if line.strip():
                try:
                    value = disk.parse_json(line)
                except ValueError as error:
                    on_bad_row(number, _("is not JSON: {error}", error=error))
                else:
                    yield number, value

    def rows(
        self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for line, value in self._values(on_bad_row):
            if not isinstance(value, dict):
                on_bad_row(line, _("is not a JSON object"))
                continue
            record = value if columns is None else {name: value.get(name) for name in columns}
            if columns and any(isinstance(cell, (dict, list)) for cell in record.values()):
                on_bad_row(line, _("has a list or an object where a text or number is read"))
            elif any(map(table_files.is_too_long, record.values())):
                on_bad_row(
                    line, _("has more than {max_field:,} characters in a cell", max_field=MAX_FIELD)
                )
            else:
                yield line, record
