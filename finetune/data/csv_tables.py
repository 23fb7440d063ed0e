"""Delimited text: CSV and TSV, and the numbered lines that JSON lines are read from too.

Records are read with the standard library's `csv`: `pyarrow.csv` ends at the first quote that is
not closed and at a cell larger than its block, where this reports one row and goes on.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from finetune.data import table_files
from finetune.data.table_files import MAX_FIELD, OnBadRow, Row, Table
from finetune.errors import DataError

MAX_REREAD = 50_000_000  # characters read twice, after quotes that are not closed
_SEPARATOR_LINE = re.compile(r'"?sep=([^"\w\s]|\t)"?\s*', re.IGNORECASE)  # written by Excel


class NumberedLines:
    """Iterates over numbered lines; the lines of the current record can be read again.

    A line of more than `MAX_FIELD` characters is reported and skipped; NULs are removed.

    Attributes:
        number: of the last line, from 1.
        record: lines since `start_record`.
    """

    def __init__(self, path: Path, name: str, encoding: str, on_bad_row: OnBadRow) -> None:
        self._text = io.TextIOWrapper(
            table_files.open_bytes(path, name), encoding=encoding, errors="replace", newline=""
        )
        self._on_bad_row = on_bad_row
        self._pending: list[str] = []  # lines to be read again, the next one last
        self.record: list[str] = []
        self.number = 0

    def __iter__(self) -> NumberedLines:
        return self

    def __next__(self) -> str:
        line = self._pending.pop() if self._pending else self._read()
        if self.record and sum(map(len, self.record)) + len(line) > MAX_FIELD:
            self._pending.append(line)
            raise csv.Error("a record that is too long")
        self.number += 1
        self.record.append(line)
        return line

    def _read(self) -> str:
        while line := self._text.readline(MAX_FIELD):
            if len(line) < MAX_FIELD or line.endswith(("\n", "\r")):
                return line.replace("\0", "") if "\0" in line else line
            self.number += 1
            self._on_bad_row(self.number, f"is longer than {MAX_FIELD:,} characters")
            while line and not line.endswith(("\n", "\r")):
                line = self._text.readline(MAX_FIELD)
        raise StopIteration

    def start_record(self) -> None:
        self.record.clear()

    def rewind(self) -> None:
        """Return to the second line of the current record."""
        self._pending.extend(reversed(self.record[1:]))
        self.number -= len(self.record) - 1
        self.record.clear()

    def close(self) -> None:
        self._text.close()


class CsvTable(Table):
    """Delimited text; the delimiter is the one that gives most lines as many cells as the first.

    Args:
        tab: prefer tabs where several delimiters fit.
    """

    def __init__(self, path: Path, name: str, encoding: str, tab: bool) -> None:
        super().__init__()
        self._path, self._name, self._encoding = path, name, encoding
        csv.field_size_limit(MAX_FIELD + 1)
        sample = self._sample()
        if not sample:
            raise DataError(f"{name} is empty.", "Upload a file with a header and rows.")
        separator = _SEPARATOR_LINE.fullmatch(sample[0]) if len(sample) > 1 else None
        self.delimiter = separator[1] if separator else _detect_delimiter(sample, tab)
        records = list(csv.reader(sample[1:] if separator else sample, delimiter=self.delimiter))
        header = next((cells for cells in records if any(map(str.strip, cells))), [])
        table_files.check_column_count(len(header), name)
        has_header = not _looks_like_data(header)
        self._skipped_rows = has_header + (separator is not None)
        self.columns = self._column_names(header if has_header else [""] * len(header))
        if not has_header:
            self.notes.append(f"The first line of {name} looks like data, so it is read as a row.")
        if self.delimiter != ",":
            names = {"\t": "tabs", ";": "semicolons", "|": "bars"}
            by = names.get(self.delimiter, repr(self.delimiter))
            self.notes.append(f"{name} is separated by {by}.")

    def _sample(self) -> list[str]:
        """The first lines, without blank ones before them."""
        lines = NumberedLines(self._path, self._name, self._encoding, lambda line, reason: None)
        sample: list[str] = []
        with contextlib.closing(lines):
            for line in lines:
                lines.start_record()
                if line.strip() or sample:
                    sample.append(line)
                if len(sample) >= 100 or sum(map(len, sample)) > 10 * table_files.BLOCK:
                    break
        return sample

    def _column_names(self, header: list[str]) -> list[str]:
        """Unique names without spaces around; an empty one is numbered, as is a repeated one."""
        names: dict[str, None] = {}
        for index, cell in enumerate(header, 1):
            base = " ".join(cell.replace("\ufeff", "").split())[:200] or f"column {index}"
            name, number = base, 1
            while name in names:
                number += 1
                name = f"{base} ({number})"
            if number == 2:
                self.notes.append(
                    f"{self._name} has two columns {base!r}; the second is called {name!r}."
                )
            names[name] = None
        return list(names)

    def rows(self, columns: Sequence[str], on_bad_row: OnBadRow) -> Iterator[Row]:
        indices, width = [self.columns.index(name) for name in columns], len(self.columns)
        lines = NumberedLines(self._path, self._name, self._encoding, on_bad_row)
        with contextlib.closing(lines):
            for line, cells in islice(self._records(lines, on_bad_row), self._skipped_rows, None):
                if len(cells) != width and (len(cells) < width or any(cells[width:])):
                    reason = f"has {len(cells)} fields where the first line has {width}"
                    on_bad_row(line, reason)
                else:
                    yield line, [cells[index] for index in indices]

    def _records(self, lines: NumberedLines, on_bad_row: OnBadRow) -> Iterator[Row]:
        """Line and cells of every record; a quote that is not closed costs its own line only."""
        reread = 0
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
        while True:
            lines.start_record()
            line = lines.number + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                reason = "a quote is opened here and not closed"
                if "expected after" in str(error):
                    reason = "has a quote within a quoted field that is not doubled"
            else:
                if any(cells):
                    yield lines.number - len(lines.record) + 1, cells
                continue
            # The record is broken: its first line is read alone, the others again.
            reread += sum(map(len, lines.record))
            if reread > MAX_REREAD:
                raise DataError(
                    f"{self._name} has too many quotes that are not closed, the last in line "
                    f"{line}.",
                    "Double the quotes within fields, or save it as TSV or JSONL.",
                )
            first = lines.record[0] if lines.record else ""
            lines.rewind()
            reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
            if cells := self._parse_line(first):
                yield line, cells
            else:
                on_bad_row(line, reason)

    def _parse_line(self, line: str) -> list[str]:
        """The cells of a line with quotes escaped by backslashes, or with plain quotes in TSV;
        empty where it cannot be read so either."""
        with contextlib.suppress(csv.Error, StopIteration):
            reader = csv.reader(
                [line], delimiter=self.delimiter, doublequote=False, escapechar="\\", strict=True
            )
            if len(cells := next(reader)) == len(self.columns):
                return cells
        cells = line.rstrip("\r\n").split(self.delimiter)
        return cells if self.delimiter == "\t" and len(cells) == len(self.columns) else []


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
