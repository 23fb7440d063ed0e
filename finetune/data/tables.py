"""Tables from files people have: CSV, TSV, JSONL, JSON and Parquet, gzipped or not, row by row.

A row that cannot be read is reported with its line and left out; only a file that is no table at
all is an error. Nothing is held but the record being read, so a file may be larger than memory
(columns of lists in JSON are the exception). How much one record, cell or batch unpacks to and how
deep it is nested has bounds, whatever a small file says. Knows cells and lines; nothing of
sentences or labels. The app's own process parses no person's file: see `child_process`.
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
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from finetune.errors import DataError, some

Bad = Callable[[int, str], None]  # line, and what is wrong with it
Row = tuple[int, list[Any]]  # line, and the cells of the columns asked for

MAX_FIELD = 1_000_000  # characters
MAX_COLUMNS = 10_000
MAX_REREAD = 50_000_000  # characters read twice, after quotes that are not closed
MAX_RECORD = 4_000_000  # characters of a record in a JSON list
MAX_DEPTH = 100  # of lists and objects within each other
MAX_COLUMN_JSON = 128 * 2**20  # characters, about; columns of lists are held together
MAX_UNPACKED = 8 * 2**30  # bytes
MAX_RATIO = 200  # unpacked to packed, asked beyond 64 MiB; text reaches 20
_SAMPLE = 2**16
_FIRST = 1_000  # records whose names are the columns
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


def usable_columns(path: str, name: str) -> list[str]:
    """The columns of a file that can be sentences or labels.

    Args, Raises: as `open_table`.
    """
    table = open_table(Path(path), name)
    return [column for column in table.columns if column not in table.unusable]


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
            raise _too_wild(self._name, self._read, self._packed)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _too_wild(name: str, unpacked: int, packed: int) -> DataError:
    return DataError(
        f"{name} unpacks to more than {unpacked // 2**20} MiB from {packed / 2**20:.1f} MiB, "
        "which no table of text does.",
        "Upload it unpacked, or in part.",
    )


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


# What Excel writes before the header, and hides.
_SEPARATOR = re.compile(r'"?sep=([^"\w\s]|\t)"?\s*', re.IGNORECASE)


class _Csv(Table):
    """Delimited text; the delimiter is found by trying which one makes even rows."""

    def __init__(self, path: Path, name: str, encoding: str, tab: bool) -> None:
        super().__init__()
        self._path, self._name, self._encoding = path, name, encoding
        sample = self._sample()
        if not sample:
            raise DataError(f"{name} is empty.", "Upload a file with a header and rows.")
        said = _SEPARATOR.fullmatch(sample[0])
        self._says_delimiter = said is not None and len(sample) > 1
        if said is not None and self._says_delimiter:
            self.delimiter, sample = said[1], sample[1:]
        else:
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
            shown = {"\t": "tabs", ";": "semicolons", "|": "bars"}
            by = shown.get(self.delimiter, repr(self.delimiter))
            self.notes.append(f"{name} is separated by {by}.")

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
            for line, cells in islice(
                self._records(lines, bad), self._has_header + self._says_delimiter, None
            ):
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
                if problem := _no_record(record):
                    bad(lines.number, problem)
                else:
                    yield lines.number, record
        finally:
            lines.close()

    def records(self, bad: Bad) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from self._objects(bad)

    def rows(self, columns: Sequence[str], bad: Bad) -> Iterator[Row]:
        for line, record in self._objects(bad):
            if row := _cells(line, record, columns, bad):
                yield row


class _JsonText:
    """A JSON text read piece by piece: its lists and objects are walked through, and of the values
    in them one at a time is held.

    Every method raises ValueError where the text is no JSON, and DataError where a value is longer
    than `MAX_RECORD`.

    Attributes:
        taken: characters of all values so far.
    """

    def __init__(self, path: Path, name: str, encoding: str) -> None:
        self._text = io.TextIOWrapper(_open(path, name), encoding=encoding, errors="replace")
        self._name = name
        self._decode = json.JSONDecoder().raw_decode
        self._buffer, self._at = "", 0
        self.taken = 0

    def __enter__(self) -> _JsonText:
        return self

    def __exit__(self, *problem: object) -> None:
        self._text.close()

    def next(self) -> str:
        """The next character that is no white space, which is not taken; empty at the end."""
        while True:
            self._at = cast(re.Match[str], _BLANK.match(self._buffer, self._at)).end()
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def elements(self) -> Iterator[Any]:
        """Each value of the list that begins here."""
        self._take("[")
        if self.next() == "]":
            self._take("]")
            return
        while True:
            yield self.value()
            if self._take(",]") == "]":
                return

    def names(self) -> Iterator[str]:
        """Each name of the object that begins here; its value is to be taken before the next."""
        self._take("{")
        if self.next() == "}":
            self._take("}")
            return
        while True:
            name = self.value()
            if not isinstance(name, str):
                raise ValueError(f"{_kind(name)} where a name should stand")
            self._take(":")
            yield name
            if self._take(",}") == "}":
                return

    def value(self) -> Any:
        """The value that begins here."""
        self.next()
        while True:
            try:
                value, end = self._decode(self._buffer, self._at)
            except RecursionError:
                raise ValueError("it is nested too deep") from None
            except ValueError:
                if self._more():
                    continue
                raise
            if end == len(self._buffer) and self._more():  # a number may go on
                continue
            self.taken += end - self._at
            self._at = end
            return value

    def _take(self, wanted: str) -> str:
        found = self.next()
        if not found or found not in wanted:
            raise ValueError(f"{found or 'the end'} where {' or '.join(wanted)} should stand")
        self._at += 1
        return found

    def _more(self) -> bool:
        """Read on, as much again as is held; False at the end."""
        held = len(self._buffer) - self._at
        if held > MAX_RECORD:
            raise DataError(
                f"{self._name} has a value of more than {MAX_RECORD:,} characters of JSON.",
                "Write a list of one object a row, or save it as JSONL or CSV.",
            )
        block = self._text.read(min(max(_SAMPLE, held), MAX_RECORD + 1 - held))
        if block:
            self._buffer, self._at = self._buffer[self._at :] + block, 0
        return bool(block)


_BLANK = re.compile(r"[ \t\r\n]*")


class _Json(Table):
    """A JSON array of objects, alone or as the one list of an object; or columns of lists."""

    def __init__(self, path: Path, name: str, encoding: str) -> None:
        super().__init__()
        self._path, self._name, self._encoding = path, name, encoding
        self._lines: _JsonLines | None = None
        self._list: str | None = None  # name of the list of records; None where it stands alone
        self._held: dict[str, list[Any]] = {}  # columns of lists
        self._size = 0  # of those, in characters, about
        try:
            first = self._look()
        except ValueError as error:
            try:
                self._lines = _JsonLines(path, name, encoding)
            except DataError:
                raise DataError(
                    f"{name} is not JSON: {_first_line(error)}.", "Check it, or upload CSV."
                ) from None
            self.columns = self._lines.columns
            self.notes.append(f"{name} holds one object a line and is read as JSONL.")
            return
        names: dict[str, None] = dict.fromkeys(self._held)
        for record in first:
            if isinstance(record, dict):
                names |= dict.fromkeys(record)
        if not names:
            raise DataError(
                f"{name} has no list of objects.",
                'Write [{"sentence1": ..., "sentence2": ..., "label": ...}, ...].',
            )
        self.columns = list(names)[:MAX_COLUMNS]

    def _look(self) -> list[Any]:
        """The first records, once it is known where they are; none of columns of lists.

        Raises:
            ValueError: when it is no JSON.
            DataError: when it has several lists of records, or columns that are too long.
        """
        with _JsonText(self._path, self._name, self._encoding) as text:
            if text.next() == "[":
                return list(islice(text.elements(), _FIRST))
            if text.next() != "{":
                text.value()
                self._expect_end(text)
                return []
            lists: dict[str, list[Any]] = {}
            for name in text.names():
                if text.next() != "[":
                    text.value()
                elif first := self._walk(text, name):
                    lists[name] = first
            self._expect_end(text)
        if len(self._held) > 1 and len(set(map(len, self._held.values()))) == 1:
            return []
        self._held = {}
        if len(lists) > 1:
            raise DataError(
                f"{self._name} has {len(lists)} lists of rows: {some(list(map(repr, lists)))}.",
                "Save each as a file of its own, and upload them as training, validation and "
                "test file.",
            )
        self._list = next(iter(lists), None)
        return lists[self._list] if self._list is not None else []

    def _walk(self, text: _JsonText, name: str) -> list[Any]:
        """The first records of a list; empty where it is a column, which is held."""
        elements, before = text.elements(), text.taken
        first = list(islice(elements, 1))
        if first and isinstance(first[0], dict):
            first += islice(elements, _FIRST - 1)
            for _ in elements:
                pass
            return first
        held = first
        for cell in elements:
            held.append(cell)
            # A short value takes as much as 64 characters, one within another 32 times its text.
            self._size += 64
            self._size += (text.taken - before) * (32 if isinstance(cell, (dict, list)) else 1)
            before = text.taken
            if self._size > MAX_COLUMN_JSON:
                raise DataError(
                    f"{self._name} has more than {MAX_COLUMN_JSON // 2**20} MiB of JSON in "
                    "columns, which are held together.",
                    "Save it as JSONL, CSV or Parquet.",
                )
        if held:
            self._held[name] = held
        return []

    def _expect_end(self, text: _JsonText) -> None:
        if found := text.next():
            raise ValueError(f"{found} after its end")

    def _elements(self) -> Iterator[Any]:
        if self._held:
            for row in zip(*self._held.values(), strict=True):
                yield dict(zip(self._held, row, strict=True))
            return
        with _JsonText(self._path, self._name, self._encoding) as text:
            if self._list is None:
                yield from text.elements()
                self._expect_end(text)
                return
            for name in text.names():
                if name == self._list and text.next() == "[":
                    yield from text.elements()
                    return
                if text.next() == "[":
                    for _ in text.elements():
                        pass
                else:
                    text.value()

    def records(self, bad: Bad) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._lines is not None:
            yield from self._lines.records(bad)
            return
        number = 0
        try:
            for record in self._elements():
                number += 1
                if problem := _no_record(record):
                    bad(number, problem)
                else:
                    yield number, record
        except ValueError as error:
            raise DataError(
                f"{self._name} is not JSON after record {number:,}: {_first_line(error)}.",
                "Check it, or upload CSV.",
            ) from error

    def rows(self, columns: Sequence[str], bad: Bad) -> Iterator[Row]:
        for number, record in self.records(bad):
            if row := _cells(number, record, columns, bad):
                yield row


class _Parquet(Table):
    """Apache Parquet; nested columns cannot be sentences.

    Its encodings say a value once for many rows, so that little of a file can be much of memory:
    what is decoded together is chosen by the longest value, not by what the file has of it.
    """

    def __init__(self, path: Path, name: str) -> None:
        super().__init__()
        self._path, self._name = path, name
        self._known = pq.read_metadata(path)
        _check(self._known, path.stat().st_size, name)
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
            yield line, [to_plain_value(cell) for cell in cells]

    def _cells(self, columns: Sequence[str], size: int, bad: Bad) -> Iterator[Row]:
        # By its name one of two of the same name cannot be read.
        wanted = None if self._twice else list(dict.fromkeys(columns))
        names = self.columns if wanted is None else wanted
        leaves = [self._known.schema.column(at) for at in range(self._known.num_columns)]
        # One cell of a list has any number of values: of these each is held once.
        once = [leaf.path for leaf in leaves if leaf.max_repetition_level and _is_text(leaf)]
        before = 0
        with pq.ParquetFile(self._path, metadata=self._known, read_dictionary=once) as file:
            for batch in self._batches(file, wanted, size):
                if wanted is not None:
                    names = batch.schema.names
                chosen = [batch.column(names.index(name)) for name in columns]
                for part in _parts(pa.record_batch(chosen, list(map(str, columns)))):
                    yield from _typed(part, before, bad)
                    before += len(part)

    def _batches(
        self, file: pq.ParquetFile, wanted: list[str] | None, size: int
    ) -> Iterator[pa.RecordBatch]:
        try:
            for group in range(self._known.num_row_groups):
                rows = _fitting(self._path, self._known, group, wanted, size)
                yield from file.iter_batches(rows, row_groups=[group], columns=wanted)
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{self._name} cannot be read to its end: {_first_line(error)}", "Upload it again."
            ) from error


# -- cells ---------------------------------------------------------------------------------------


def _check(known: pq.FileMetaData, packed: int, name: str) -> None:
    """See that a Parquet file is such as a table of text can be.

    Args:
        packed: its size in bytes.

    Raises:
        DataError: when it unpacks to far more than text does, or has too many columns.
    """
    if known.num_columns > MAX_COLUMNS:
        raise DataError(
            f"{name} has {known.num_columns:,} columns; at most {MAX_COLUMNS:,} are read.",
            "Keep the columns of the sentences and the label.",
        )
    leaves = [known.schema.column(at) for at in range(known.num_columns)]
    unpacked = 0
    for group in range(known.num_row_groups):
        row_group = known.row_group(group)
        for at, leaf in enumerate(leaves):
            column = row_group.column(at)
            values = column.num_values * max(1, leaf.length)
            unpacked += max(column.total_uncompressed_size, values)
            if leaf.max_repetition_level and _DELTA in column.encodings:
                raise DataError(
                    f"{name} has the nested column {leaf.path[:60]!r} in the encoding {_DELTA}.",
                    "Leave it out, or write it in another encoding.",
                )
    if unpacked > _AT_ONCE and unpacked > MAX_RATIO * packed:
        raise _too_wild(name, unpacked, packed)


_DELTA = "DELTA_BYTE_ARRAY"  # a value repeats the beginning of the one before
_CODED = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}


def _is_text(leaf: pq.ColumnSchema) -> bool:
    """Whether a column's values are bytes of any length."""
    return bool(leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type != "DECIMAL")


def _fitting(
    path: Path, known: pq.FileMetaData, group: int, wanted: Sequence[str] | None, most: int
) -> int:
    """Rows of a group that have `_AT_ONCE` bytes at the most when decoded; at least one.

    Args:
        wanted: the columns that are read; None for all.
        most: rows at the most, whatever they have.
    """
    row_group = known.row_group(group)
    most = min(most, row_group.num_rows)
    a_row = row_group.total_byte_size / max(1, row_group.num_rows)
    for at in range(known.num_columns):
        leaf, column = known.schema.column(at), row_group.column(at)
        read = wanted is None or any(f"{leaf.path}.".startswith(f"{one}.") for one in wanted)
        if not read or leaf.max_repetition_level:
            continue
        whole = column.total_uncompressed_size
        if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY":
            a_row += leaf.length
        elif _is_text(leaf) and whole * most > _AT_ONCE:
            if _DELTA in column.encodings:
                a_row += whole
            elif _CODED & set(column.encodings):
                a_row += _longest(path, known, group, leaf.path)
    return max(1, min(most, int(_AT_ONCE / max(1.0, a_row))))


def _longest(path: Path, known: pq.FileMetaData, group: int, leaf: str) -> int:
    """Bytes of the longest value that a group says once for many rows of a column."""
    with pq.ParquetFile(path, metadata=known, read_dictionary=[leaf]) as file:
        for batch in file.iter_batches(1_000, row_groups=[group], columns=[leaf]):
            column = batch.column(0)
            while pa.types.is_struct(column.type):
                column = column.field(0)
            if pa.types.is_dictionary(column.type) and len(column.dictionary):
                return int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
    return 0


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in parts that have `_AT_ONCE` bytes at the most, or one row."""
    if len(batch) > 1 and sum(map(_decoded, batch.columns)) > _AT_ONCE:
        half = len(batch) // 2
        yield from _parts(batch.slice(0, half))
        yield from _parts(batch.slice(half))
    else:
        yield batch


def _decoded(array: pa.Array) -> int:
    """Bytes of an array whose every value stands for itself."""
    if pa.types.is_dictionary(array.type):
        value = array.type.value_type
        if not pa.types.is_primitive(value):
            lengths = pc.binary_length(array.dictionary).take(array.indices)
            return 8 * len(array) + int(pc.sum(lengths).as_py() or 0)
        return 8 * len(array)
    if pa.types.is_struct(array.type):
        return sum(map(_decoded, array.flatten()))
    if pa.types.is_map(array.type):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return sum(_decoded(one.slice(start, end - start)) for one in (array.keys, array.items))
    if pa.types.is_nested(array.type) and hasattr(array, "flatten"):
        return 8 * len(array) + _decoded(array.flatten())
    return int(array.nbytes)


def _typed(batch: pa.RecordBatch, before: int, bad: Bad) -> Iterator[Row]:
    """Number and cells of each row; one with a value that Python has none for is told.

    Args:
        before: rows of the file before these.
    """
    if len(batch) == 1 and sum(map(_decoded, batch.columns)) > _AT_ONCE:
        bad(before + 1, f"has more than {_AT_ONCE // 2**20} MiB")
        return
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
        long = (one for one, cell in zip(batch.schema.names, cells, strict=True) if _is_long(cell))
        if (name := next(long, None)) is not None:
            bad(number, f"has more than {MAX_FIELD:,} characters as {name!r}")
        else:
            yield number, list(cells)


def _is_long(cell: Any) -> bool:
    return isinstance(cell, (str, bytes)) and len(cell) > MAX_FIELD


def _cells(line: int, record: dict[str, Any], columns: Sequence[str], bad: Bad) -> Row | None:
    cells = [record.get(name) for name in columns]
    for name, cell in zip(columns, cells, strict=True):
        if isinstance(cell, (dict, list)):
            bad(line, f"has {_kind(cell)} as {name!r}")
            return None
        if _is_long(cell):
            bad(line, f"has more than {MAX_FIELD:,} characters as {name!r}")
            return None
    return line, cells


def _no_record(value: Any) -> str:
    """Why a JSON value is no row; empty where it is one."""
    if not isinstance(value, dict):
        return f"is not a JSON object but {_kind(value)}"
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        nested = [one for one in level if isinstance(one, (dict, list))]
        level = [x for one in nested for x in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return ""
    return f"is nested more than {MAX_DEPTH} deep"


def to_plain_value(cell: Any) -> Any:
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
