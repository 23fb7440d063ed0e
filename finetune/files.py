"""Tables from files people have: CSV, TSV, JSONL, JSON and Parquet, gzipped or not, row by row.

A row that cannot be read is reported with its line and left out; only a file that is no table at
all is an error. Nothing is held but the record being read, so a file may be larger than memory
(JSON, which has no lines, is the exception). Knows cells and lines; nothing of sentences or labels.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from finetune.errors import DataError

Bad = Callable[[int, str], None]  # line, and what is wrong with it
Row = tuple[int, list[Any]]  # line, and the cells of the columns asked for

MAX_FIELD = 1_000_000  # characters
MAX_COLUMNS = 10_000
MAX_REREAD = 50_000_000  # characters read twice, after quotes that are not closed
MAX_JSON = 256 * 2**20  # bytes, for JSON is read whole
MAX_UNPACKED = 8 * 2**30  # bytes
MAX_RATIO = 200  # unpacked to packed, asked beyond 64 MiB; text reaches 20
_SAMPLE = 2**16
_AT_ONCE = 2**24  # bytes of a Parquet file's rows that are decoded together, about

_MAGIC = {
    b"PK\x03\x04": "a zip archive or an Excel workbook",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"%PDF": "a PDF",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"SQLite format": "a SQLite database",
    b"\x7fELF": "a program",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"ARROW1": "an Arrow file",
}
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

csv.field_size_limit(MAX_FIELD + 1)


class Table(ABC):
    """A file opened as rows and columns.

    Attributes:
        columns: names, made unique; in the file's order.
        unusable: column -> why it cannot be a sentence or a label.
        schema: types of the columns where the file says them.
        delimiter: what separates the cells of delimited text.
        notes: what a person should know of how the file was read.
    """

    def __init__(self) -> None:
        self.columns: list[str] = []
        self.schema: pa.Schema | None = None
        self.delimiter = ""
        self.unusable: dict[str, str] = {}
        self.notes: list[str] = []

    @abstractmethod
    def rows(self, columns: Sequence[str], bad: Bad) -> Iterator[Row]:
        """Line (or row) number from 1 and the cells of `columns`, of every row that can be read.

        Args:
            columns: some of `self.columns`.
            bad: told of every row that cannot be read.

        Raises:
            DataError: when the rest of the file cannot be read.
        """

    def records(self, bad: Bad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Line and the whole record of every row that can be read, whatever is in its cells.

        Args, Raises: as `rows`.
        """
        for line, cells in self.rows(self.columns, bad):
            yield line, dict(zip(self.columns, cells, strict=True))


def open_table(path: Path, name: str = "") -> Table:
    """The table a file holds, by its contents rather than its name.

    Args:
        name: what to call it in errors, when not as it lies.

    Raises:
        DataError: when it is empty, no table, or unpacks to more than is read.
    """
    name = name or path.name
    plain = path.name.lower().removesuffix(".gz")
    try:
        head = _head(path, name)
        if head.startswith(b"PAR1"):
            return _Parquet(path, name)
        for magic, what in _MAGIC.items():
            if head.startswith(magic):
                raise DataError(
                    f"{name} is {what}, not a table of text.", "Save it as CSV and upload that."
                )
        if plain.endswith(".parquet"):
            raise DataError(f"{name} is not a Parquet file.", "Write it again, or upload CSV.")
        encoding, notes = _encoding(path, name, head)
        table: Table
        if plain.endswith(".json"):
            table = _Json(path, name, encoding)
        elif plain.endswith((".jsonl", ".ndjson")):
            table = _JsonLines(path, name, encoding)
        else:
            table = _Csv(path, name, encoding, tab=plain.endswith(".tsv"))
        table.notes = notes + table.notes
        return table
    except (OSError, EOFError, pa.ArrowException) as error:
        raise DataError(
            f"{name} cannot be read: {_first_line(error)}", "Upload it again."
        ) from error


# -- bytes ---------------------------------------------------------------------------------------


class _Bounded(io.RawIOBase):
    """A gzip stream that ends in an error where it unpacks to far more than text does."""

    def __init__(self, path: Path, name: str) -> None:
        self._file = gzip.GzipFile(path)
        self._name = name
        self._packed = max(1, path.stat().st_size)
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._read += count
        wild = self._read > 64 * 2**20 and self._read > MAX_RATIO * self._packed
        if wild or self._read > MAX_UNPACKED:
            raise DataError(
                f"{self._name} unpacks to more than {self._read // 2**20} MiB from "
                f"{self._packed / 2**20:.1f} MiB, which no table of text does.",
                "Upload it unpacked, or in part.",
            )
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _open(path: Path, name: str) -> BinaryIO:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    raw: io.RawIOBase = _Bounded(path, name) if packed else io.FileIO(path)
    return cast(BinaryIO, io.BufferedReader(raw, _SAMPLE))


def _head(path: Path, name: str) -> bytes:
    with _open(path, name) as file:
        head = file.read(_SAMPLE)
    if not head.strip(b"\0\r\n\t \xef\xbb\xbf"):
        raise DataError(f"{name} is empty.", "Upload a file with a header and rows.")
    return head


def _encoding(path: Path, name: str, head: bytes) -> tuple[str, list[str]]:
    """The encoding the whole file can be read in, and what to say of it.

    Reads the file once: what is not UTF-8 shows only where it stands, perhaps at the end.
    """
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return encoding, [] if encoding == "utf-8-sig" else [f"{name} is {encoding.upper()}."]
    zeros = head[:4096].count(0)
    if zeros > len(head[:4096]) // 4:
        return (("utf-16-le" if head[1:2] == b"\0" else "utf-16-be"), [f"{name} is UTF-16."])
    control = sum(head[:4096].count(byte) for byte in (*range(1, 9), *range(14, 27)))
    if control > max(8, len(head[:4096]) // 20):
        raise DataError(f"{name} is not text.", "Save it as CSV, TSV, JSONL or Parquet.")
    good, wrong = _count_utf8(path, name)
    if not wrong:
        return "utf-8", []
    if good > wrong:
        return "utf-8", [f"{name} is UTF-8 with {wrong:,} broken places, read as \ufffd."]
    return "cp1252", [f"{name} is not UTF-8; it was read as Windows-1252 (Latin-1)."]


def _count_utf8(path: Path, name: str) -> tuple[int, int]:
    """Characters beyond ASCII that are valid UTF-8, and places that are not."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    good = wrong = 0
    with _open(path, name) as file:
        while True:
            block = file.read(2**20)
            text = decoder.decode(block, final=not block)
            if not text.isascii():
                bad = text.count("\ufffd") - block.count(b"\xef\xbf\xbd")
                wrong += max(0, bad)
                good += len(re.findall(r"[^\x00-\x7f\ufffd]", text))
            if not block:
                return good, wrong


class _Lines:
    """The lines of a text file one by one, numbered; those of one record can be given back.

    Args:
        bad: told of lines longer than `MAX_FIELD`, which are skipped.
    """

    def __init__(self, path: Path, name: str, encoding: str, bad: Bad) -> None:
        self._text = io.TextIOWrapper(
            _open(path, name), encoding=encoding, errors="replace", newline=""
        )
        self._bad = bad
        self._ahead: list[str] = []
        self.held: list[str] = []
        self.number = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._ahead.pop() if self._ahead else self._read()
        if sum(map(len, self.held)) + len(line) > MAX_FIELD and self.held:
            self._ahead.append(line)
            raise csv.Error("a quote is opened here and not closed")
        self.number += 1
        self.held.append(line)
        return line

    def _read(self) -> str:
        while True:
            line = self._text.readline(MAX_FIELD)
            if not line:
                raise StopIteration
            if len(line) < MAX_FIELD or line.endswith(("\n", "\r")):
                return line.replace("\0", "") if "\0" in line else line
            self.number += 1
            self._bad(self.number, f"is longer than {MAX_FIELD:,} characters")
            while line and not line.endswith(("\n", "\r")):
                line = self._text.readline(MAX_FIELD)

    def begin(self) -> None:
        """A new record begins with the next line."""
        self.held.clear()

    def give_back(self) -> None:
        """Every line of this record but its first will come again."""
        self._ahead.extend(reversed(self.held[1:]))
        self.number -= len(self.held) - 1
        self.held.clear()

    def close(self) -> None:
        self._text.close()


# -- kinds of files ------------------------------------------------------------------------------


class _Csv(Table):
    """Delimited text; the delimiter is found by trying which one makes even rows."""

    def __init__(self, path: Path, name: str, encoding: str, tab: bool) -> None:
        super().__init__()
        self._path, self._name, self._encoding = path, name, encoding
        self._first = 0  # line of the first record
        sample = self._sample()
        if not sample:
            raise DataError(f"{name} is empty.", "Upload a file with a header and rows.")
        self.delimiter = _delimiter(sample, tab)
        found = list(csv.reader(sample, delimiter=self.delimiter))
        header = next((cells for cells in found if any(map(str.strip, cells))), [])
        self._width = len(header)
        if self._width > MAX_COLUMNS:
            raise DataError(
                f"{name} has {self._width:,} columns; at most {MAX_COLUMNS:,} are read.",
                "Keep the columns of the sentences and the label.",
            )
        self._has_header = not _looks_like_data(header)
        if self._has_header:
            self.columns = _unique(header, self.notes, name)
        else:
            self.columns = [f"column {index + 1}" for index in range(self._width)]
            self.notes.append(f"The first line of {name} looks like data, so it is read as a row.")
        if self.delimiter != ",":
            shown = {"\t": "tab", ";": "semicolon", "|": "bar"}[self.delimiter]
            self.notes.append(f"{name} is separated by {shown}s.")

    def _sample(self) -> list[str]:
        """The first lines, for a look at how they are made."""
        lines = _Lines(self._path, self._name, self._encoding, lambda line, reason: None)
        sample: list[str] = []
        size = 0
        try:
            for line in lines:
                lines.begin()
                if line.strip() or sample:
                    sample.append(line)
                    size += len(line)
                if len(sample) >= 100 or size > 10 * _SAMPLE:
                    break
        finally:
            lines.close()
        return sample

    def rows(self, columns: Sequence[str], bad: Bad) -> Iterator[Row]:
        wanted = [self.columns.index(name) for name in columns]
        lines = _Lines(self._path, self._name, self._encoding, bad)
        try:
            header = self._has_header
            for line, cells in self._records(lines, bad):
                if header:
                    header = False
                    continue
                if len(cells) > self._width and not any(cells[self._width :]):
                    cells = cells[: self._width]
                if len(cells) != self._width:
                    bad(line, f"has {len(cells)} fields where the first line has {self._width}")
                    continue
                yield line, [cells[index] for index in wanted]
        finally:
            lines.close()

    def _records(self, lines: _Lines, bad: Bad) -> Iterator[tuple[int, list[str]]]:
        """Line and cells of every record; a quote that is not closed costs its own line only."""
        reread = 0
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
        while True:
            lines.begin()
            line = lines.number + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                reason = _quoting(str(error))
            else:
                if any(cells):
                    yield lines.number - len(lines.held) + 1, cells
                continue
            reread += sum(map(len, lines.held))
            first = lines.held[0] if lines.held else ""
            lines.give_back()
            reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
            if reread > MAX_REREAD:
                raise DataError(
                    f"{self._name} has too many quotes that are not closed, the last in line "
                    f"{line}.",
                    "Double the quotes within fields, or save it as TSV or JSONL.",
                )
            if alone := self._otherwise(first):
                yield line, alone
            else:
                bad(line, reason)

    def _otherwise(self, line: str) -> list[str]:
        """The cells of one line whose quotes are not those of CSV; empty where that fails too.

        Some writers escape a quote by a backslash; in TSV a quote is often just a quote.
        """
        with contextlib.suppress(csv.Error, StopIteration):
            escaped = csv.reader(
                [line], delimiter=self.delimiter, doublequote=False, escapechar="\\", strict=True
            )
            if len(cells := next(escaped)) == self._width:
                return cells
        cells = line.rstrip("\r\n").split(self.delimiter)
        return cells if self.delimiter == "\t" and len(cells) == self._width else []


class _JsonLines(Table):
    """One JSON object a line."""

    def __init__(self, path: Path, name: str, encoding: str) -> None:
        super().__init__()
        self._path, self._name, self._encoding = path, name, encoding
        names: dict[str, None] = {}
        for count, (_, record) in enumerate(self._objects(lambda line, reason: None)):
            names |= dict.fromkeys(map(str, record))
            if count >= 1000 or len(names) > MAX_COLUMNS:
                break
        if not names:
            raise DataError(
                f"{name} has no line that is a JSON object.",
                'Write one object a line: {"sentence1": ..., "sentence2": ..., "label": ...}.',
            )
        self.columns = list(names)[:MAX_COLUMNS]

    def _objects(self, bad: Bad) -> Iterator[tuple[int, dict[str, Any]]]:
        lines = _Lines(self._path, self._name, self._encoding, bad)
        try:
            for line in lines:
                lines.begin()
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError) as error:
                    bad(lines.number, f"is not JSON: {_first_line(error)}")
                    continue
                if isinstance(record, dict):
                    yield lines.number, record
                else:
                    bad(lines.number, f"is not a JSON object but {_kind(record)}")
        finally:
            lines.close()

    def records(self, bad: Bad) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from self._objects(bad)

    def rows(self, columns: Sequence[str], bad: Bad) -> Iterator[Row]:
        for line, record in self._objects(bad):
            if row := _cells(line, record, columns, bad):
                yield row


class _Json(Table):
    """A JSON array of objects, alone or as the one list of an object; or columns of lists."""

    def __init__(self, path: Path, name: str, encoding: str) -> None:
        super().__init__()
        self._lines: _JsonLines | None = None
        with _open(path, name) as file:
            text = file.read(MAX_JSON + 1)
        if len(text) > MAX_JSON:
            raise DataError(
                f"{name} has more than {MAX_JSON // 2**20} MiB of JSON, which is read whole.",
                "Save it as JSONL, CSV or Parquet.",
            )
        try:
            value = json.loads(text.decode(encoding, "replace"))
        except (ValueError, RecursionError) as error:
            try:
                self._lines = _JsonLines(path, name, encoding)
            except DataError:
                raise DataError(
                    f"{name} is not JSON: {_first_line(error)}.", "Check it, or upload CSV."
                ) from None
            self.columns = self._lines.columns
            self.notes.append(f"{name} holds one object a line and is read as JSONL.")
            return
        self._records = _records(value)
        if not self._records:
            raise DataError(
                f"{name} has no list of objects.",
                'Write [{"sentence1": ..., "sentence2": ..., "label": ...}, ...].',
            )
        names: dict[str, None] = {}
        for record in self._records[:1000]:
            if isinstance(record, dict):
                names |= dict.fromkeys(map(str, record))
        self.columns = list(names)[:MAX_COLUMNS]

    def records(self, bad: Bad) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._lines is not None:
            yield from self._lines.records(bad)
            return
        for number, record in enumerate(self._records, 1):
            if isinstance(record, dict):
                yield number, record
            else:
                bad(number, f"is not a JSON object but {_kind(record)}")

    def rows(self, columns: Sequence[str], bad: Bad) -> Iterator[Row]:
        if self._lines is not None:
            yield from self._lines.rows(columns, bad)
            return
        for number, record in enumerate(self._records, 1):
            if not isinstance(record, dict):
                bad(number, f"is not a JSON object but {_kind(record)}")
            elif row := _cells(number, record, columns, bad):
                yield row


class _Parquet(Table):
    """Apache Parquet; nested columns cannot be sentences."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__()
        self._path = path
        self.schema = pq.read_schema(path)
        self.columns = list(self.schema.names)
        self._twice = len(set(self.columns)) < len(self.columns)
        if self._twice:
            self.columns = _unique(self.columns, self.notes, name)
            named = zip(self.schema, self.columns, strict=True)
            self.schema = pa.schema([field.with_name(column) for field, column in named])
        for field in self.schema:
            if pa.types.is_nested(field.type):
                self.unusable[field.name] = f"is nested ({str(field.type)[:60]})"

    def records(self, bad: Bad) -> Iterator[tuple[int, dict[str, Any]]]:
        for line, cells in self._cells(self.columns, 1_000, bad):
            yield line, dict(zip(self.columns, cells, strict=True))

    def rows(self, columns: Sequence[str], bad: Bad) -> Iterator[Row]:
        for line, cells in self._cells(columns, 10_000, bad):
            yield line, [plain(cell) for cell in cells]

    def _cells(self, columns: Sequence[str], size: int, bad: Bad) -> Iterator[Row]:
        # By its name one of two of the same name cannot be read.
        wanted = None if self._twice else list(dict.fromkeys(columns))
        names = self.columns if wanted is None else wanted
        before = 0
        with pq.ParquetFile(self._path) as file:
            for batch in file.iter_batches(min(size, _fitting(file.metadata)), columns=wanted):
                if wanted is not None:
                    names = batch.schema.names
                chosen = [batch.column(names.index(name)) for name in columns]
                yield from _typed(pa.record_batch(chosen, list(map(str, columns))), before, bad)
                before += len(batch)


# -- cells ---------------------------------------------------------------------------------------


def _fitting(known: pq.FileMetaData) -> int:
    """Rows that have `_AT_ONCE` bytes, by the group whose rows are the largest; at least one."""
    groups = [known.row_group(at) for at in range(known.num_row_groups)]
    largest = max((one.total_byte_size / max(1, one.num_rows) for one in groups), default=1.0)
    return max(1, int(_AT_ONCE / max(1.0, largest)))


def _typed(batch: pa.RecordBatch, before: int, bad: Bad) -> Iterator[Row]:
    """Number and cells of each row; one with a value that Python has none for is told.

    Args:
        before: rows of the file before these.
    """
    try:
        columns = [column.to_pylist() for column in batch.columns]
    except (OverflowError, ValueError, KeyError) as error:  # a year past 9999, no such time zone
        if len(batch) == 1:
            bad(before + 1, f"has a value that cannot be read: {_first_line(error)}")
            return
        for at in range(len(batch)):
            yield from _typed(batch.slice(at, 1), before + at, bad)
        return
    for number, cells in enumerate(zip(*columns, strict=True), before + 1):
        yield number, list(cells)


def _cells(line: int, record: dict[str, Any], columns: Sequence[str], bad: Bad) -> Row | None:
    cells = [record.get(name) for name in columns]
    for name, cell in zip(columns, cells, strict=True):
        if isinstance(cell, (dict, list)):
            bad(line, f"has {_kind(cell)} as {name!r}")
            return None
        if isinstance(cell, str) and len(cell) > MAX_FIELD:
            bad(line, f"has more than {MAX_FIELD:,} characters as {name!r}")
            return None
    return line, cells


def _records(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return []
    lists = {str(name): item for name, item in value.items() if isinstance(item, list)}
    columns = [item for item in lists.values() if item and not isinstance(item[0], dict)]
    if len(columns) > 1 and len({len(item) for item in columns}) == 1:
        names = [name for name, item in lists.items() if item in columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return next((item for item in lists.values() if item and isinstance(item[0], dict)), [])


def plain(cell: Any) -> Any:
    """A cell of a typed file as a text or a number; None where there is nothing."""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    if cell is None or isinstance(cell, (str, int, float)):
        return cell
    return str(cell)  # dates, decimals


def _kind(value: Any) -> str:
    kinds = {list: "a list", dict: "an object", str: "a text", type(None): "null"}
    return kinds.get(type(value), "a number")


def _delimiter(sample: list[str], tab: bool) -> str:
    """The delimiter under which most lines have as many fields as the first one."""
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


def _quoting(reason: str) -> str:
    """Python's words on a broken record in ours."""
    if "expected after" in reason:
        return "has a quote within a quoted field that is not doubled"
    return "a quote is opened here and not closed"


def _looks_like_data(header: list[str]) -> bool:
    """Whether a first line is no header: it has sentences or numbers where names would stand."""
    cells = [cell.strip() for cell in header]
    wordy = any(len(cell.split()) > 5 for cell in cells)
    numeric = any(re.fullmatch(r"-?\d+([.,]\d+)?", cell) for cell in cells)
    return len(cells) > 1 and (wordy or (numeric and any(" " in cell for cell in cells)))


def _unique(header: list[str], notes: list[str], name: str) -> list[str]:
    """Names without spaces around; a second of the same name is numbered, an empty one named."""
    found: dict[str, None] = {}
    for index, cell in enumerate(header):
        base = " ".join(cell.replace("\ufeff", "").split())[:200] or f"column {index + 1}"
        column, number = base, 1
        while column in found:
            number += 1
            column = f"{base} ({number})"
        if number == 2:
            notes.append(f"{name} has two columns {base!r}; the second is called {column!r}.")
        found[column] = None
    return list(found)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
