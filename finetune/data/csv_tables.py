"""Delimited text: CSV and TSV, and the numbered lines that JSON lines are read from too.

Records are read with the standard library's `csv`: `pyarrow.csv` ends at the first quote that is
not closed and at a cell larger than its block, where this reports one row and goes on.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from finetune.data import table_files
from finetune.data.table_files import MAX_FIELD, OnBadRow, Row, Table
from finetune.errors import DataError

MAX_RECORD = 1000  # lines; a quote that is open for longer is taken for a mistake
_SAMPLE_LINES, _SAMPLE_CHARACTERS = 100, 10 * table_files.BLOCK
_SEPARATOR_LINE = re.compile(r'"?sep=([^"\w\s]|\t)"?\s*', re.IGNORECASE)  # written by Excel
_SEPARATOR_NAMES = {"\t": "tabs", ";": "semicolons", "|": "bars"}


def numbered_lines(
    path: Path, name: str, encoding: str, on_bad_row: OnBadRow
) -> Iterator[tuple[int, str]]:
    """The lines of a file without NULs, and their numbers from 1; one of more than `MAX_FIELD`
    characters is reported and skipped."""
    file = table_files.open_bytes(path, name)
    number = 0
    with io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="") as text:
        while line := text.readline(MAX_FIELD):
            number += 1
            if len(line) < MAX_FIELD or line.endswith(("\n", "\r")):
                yield number, line.replace("\0", "")
                continue
            on_bad_row(number, f"is longer than {MAX_FIELD:,} characters")
            while line and not line.endswith(("\n", "\r")):
                line = text.readline(MAX_FIELD)


class CsvTable(Table):
    """Delimited text; the delimiter is the one that gives most lines as many cells as the first.

    Args:
        tab: prefer tabs where several delimiters fit.
    """

    def __init__(self, path: Path, name: str, encoding: str, tab: bool) -> None:
        super().__init__()
        self._path, self._name, self._encoding = path, name, encoding
        csv.field_size_limit(MAX_FIELD)
        sample = self._sample()
        if not sample:
            raise DataError(f"{name} is empty.", "Upload a file with a header and rows.")
        separator = _SEPARATOR_LINE.fullmatch(sample[0])
        if separator:
            del sample[0]
        self.delimiter = separator[1] if separator else _detect_delimiter(sample, tab)
        records = csv.reader(sample, delimiter=self.delimiter)
        header = next((cells for cells in records if any(map(str.strip, cells))), [])
        table_files.check_column_count(name, len(header))
        has_header = not _looks_like_data(header)
        self._skipped_rows = has_header + bool(separator)
        self.columns = _unique_names(header if has_header else [""] * len(header))
        if not has_header:
            self.notes.append(f"The first line of {name} looks like data, so it is read as a row.")
        if self.delimiter != ",":
            separators = _SEPARATOR_NAMES.get(self.delimiter, repr(self.delimiter))
            self.notes.append(f"{name} is separated by {separators}.")

    def _sample(self) -> list[str]:
        """The first lines, without blank ones before them."""
        sample: list[str] = []
        for _, line in numbered_lines(
            self._path, self._name, self._encoding, lambda line, reason: None
        ):
            if line.strip() or sample:
                sample.append(line)
            if len(sample) >= _SAMPLE_LINES or sum(map(len, sample)) > _SAMPLE_CHARACTERS:
                break
        return sample

    def rows(self, columns: Sequence[str], on_bad_row: OnBadRow) -> Iterator[Row]:
        indices, width = [self.columns.index(name) for name in columns], len(self.columns)
        for line, cells in islice(self._records(on_bad_row), self._skipped_rows, None):
            if len(cells) != width and (len(cells) < width or any(cells[width:])):
                on_bad_row(line, f"has {len(cells)} fields where the first line has {width}")
            else:
                yield line, [cells[index] for index in indices]

    def _records(self, on_bad_row: OnBadRow) -> Iterator[Row]:
        """Line and cells of every record; a broken one costs its first line only."""
        lines = numbered_lines(self._path, self._name, self._encoding, on_bad_row)
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
                    on_bad_row(number, "has a quote within a quoted field that is not doubled")
                else:
                    on_bad_row(number, "a quote is opened here and not closed")
            else:
                if any(cells):
                    yield record[0][0], cells


def _unique_names(header: list[str]) -> list[str]:
    """Names without spaces around; an empty one is numbered, as is a repeated one."""
    names: list[str] = []
    for index, cell in enumerate(header, 1):
        base = name = " ".join(cell.replace("\ufeff", "").split())[:200] or f"column {index}"
        number = 1
        while name in names:
            number += 1
            name = f"{base} ({number})"
        names.append(name)
    return names


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
