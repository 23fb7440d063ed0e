"""CSV, TSV, JSON, JSON lines and Parquet, read row by row: a broken line costs itself alone."""

from __future__ import annotations

import codecs
import csv
import io
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, dropwhile, islice
from pathlib import Path
from typing import Any

import charset_normalizer
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from finetune import disk
from finetune.data import tables
from finetune.data.tables import MAX_FIELD, OnBadRow, Rows, Table
from finetune.errors import DataError
from finetune.messages import message as _

MAX_RECORD = 1000  # lines; a quote that is open for longer is taken for a mistake
MAX_JSON = 128 * 2**20  # characters of a JSON file, which is held in memory; JSONL has no limit
MAX_JSON_VALUES = 2**22  # values of a JSON file, about; each takes up to 100 bytes
_SAMPLE = 100  # lines whose delimiters are counted
_KEYED_ROWS = 1_000  # JSON objects whose keys are the columns
_BATCH_ROWS, _BATCH_BYTES = 10_000, 2**24  # of a Parquet file, decoded together
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_LE: "utf-16", codecs.BOM_BE: "utf-16"}
# Of Windows in Western Europe, Korea, China, Taiwan, Japan, and for Cyrillic and Greek letters.
_ENCODINGS = ["cp1252", "cp949", "gb18030", "big5", "cp932", "cp1251", "cp1253"]
_GUESSED_BYTES, _LEAST_GUESSED = 2**16, 12  # bytes that are looked at; beyond ASCII, at least
_CONTROL = bytes((*range(9), *range(14, 27)))


class _TextTable(Table):
    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, name)
        self._encoding = self._detect_encoding()

    def _detect_encoding(self) -> str:
        """By the byte order mark, else UTF-8 or a guess; DataError where it is not text."""
        valid = broken = 0  # characters beyond ASCII
        with tables.open_bytes(self.path, self.name) as file:
            start = file.read(4096)
            for mark, encoding in _MARKS.items():
                if start.startswith(mark):
                    if encoding == "utf-16":
                        self.notes.append(_("{name} is UTF-16.", name=self.name))
                    return encoding
            if len(start) - len(start.translate(None, _CONTROL)) > max(8, len(start) // 20):
                raise DataError(
                    "{name} is not text.", "Save it as CSV, TSV, JSONL or Parquet.", name=self.name
                )
            # The whole file: bytes that are not UTF-8 may stand at its end only.
            blocks = chain([start], iter(partial(file.read, 2**20), b""))
            for text in codecs.iterdecode(blocks, "utf-8", "replace"):
                if not text.isascii():
                    replaced = text.count("\ufffd")
                    broken += replaced
                    valid += len(text) - len(text.encode("ascii", "ignore")) - replaced
        if not broken:
            return "utf-8"
        if valid > broken:
            text = _(
                "{name} is UTF-8 with {n:,} broken places, read as \ufffd.",
                name=self.name,
                n=broken,
            )
            self.notes.append(text)
            return "utf-8"
        encoding = self._guess_encoding()
        text = _(
            "{name} is not UTF-8; it was read as {encoding}. Where letters are wrong, save it as "
            "UTF-8.",
            name=self.name,
            encoding=encoding,
        )
        self.notes.append(text)
        return encoding

    def _guess_encoding(self) -> str:
        """Which of the encodings in use before UTF-8 the lines beyond ASCII seem to have."""
        sample = b""
        with tables.open_bytes(self.path, self.name) as file:
            while len(sample) < _GUESSED_BYTES and (line := file.readline(_GUESSED_BYTES)):
                sample += b"" if line.isascii() else line
        letters = len(sample) - len(sample.decode("ascii", "ignore"))
        if letters < _LEAST_GUESSED:
            return _ENCODINGS[0]
        guess = charset_normalizer.from_bytes(sample, cp_isolation=_ENCODINGS).best()
        return guess.encoding if guess else _ENCODINGS[0]

    def _open(self) -> io.TextIOWrapper:
        file = tables.open_bytes(self.path, self.name)
        return io.TextIOWrapper(file, encoding=self._encoding, errors="replace", newline="")

    def _lines(self, on_bad_row: OnBadRow = lambda line, reason: None) -> Iterator[tuple[int, str]]:
        """Lines without NULs, and their numbers from 1; too long ones are reported and skipped."""
        number = 0
        with self._open() as text:
            while line := text.readline(MAX_FIELD):
                number += 1
                if len(line) < MAX_FIELD or line.endswith(("\n", "\r")):
                    yield number, line.replace("\0", "")
                    continue
                reason = _("is longer than {max_field:,} characters", max_field=MAX_FIELD)
                on_bad_row(number, reason)
                while line and not line.endswith(("\n", "\r")):
                    line = text.readline(MAX_FIELD)


class CsvTable(_TextTable):
    """Delimited text; the delimiter is the one that gives most lines as many cells as the first,
    of several a tab if `tab`."""

    def __init__(self, path: Path, name: str, tab: bool) -> None:
        super().__init__(path, name)
        csv.field_size_limit(MAX_FIELD)
        lines = dropwhile(lambda line: not line.strip(), (line for _, line in self._lines()))
        sample = list(islice(lines, _SAMPLE))
        self.delimiter = _detect_delimiter(sample, tab)
        records = csv.reader(sample, delimiter=self.delimiter)
        header = next((cells for cells in records if any(map(str.strip, cells))), [])
        self._read_header(header)
        if self.delimiter != ",":
            self.notes.append(
                _("{name} is separated by {delimiter!r}.", name=name, delimiter=self.delimiter)
            )

    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        names, width = self.columns if columns is None else columns, len(self.columns)
        indices = [(name, self.columns.index(name)) for name in names]
        records = dropwhile(lambda record: not any(record[1]), self._records(on_bad_row))
        for line, cells in islice(records, self.has_header, None):
            if len(cells) == width or (len(cells) > width and not any(cells[width:])):
                yield line, {name: cells[index] for name, index in indices}
            else:
                reason = _(
                    "has {count} fields where the first line has {width}",
                    count=len(cells),
                    width=width,
                )
                on_bad_row(line, reason)

    def _records(self, on_bad_row: OnBadRow) -> Iterator[tuple[int, list[str]]]:
        """Line and cells of every record; a broken one costs its first line only."""
        lines = self._lines(on_bad_row)
        again: deque[tuple[int, str]] = deque()  # lines that followed a broken one

        def record_lines(record: list[tuple[int, str]]) -> Iterator[str]:
            while len(record) < MAX_RECORD:
                if not (line := again.popleft() if again else next(lines, None)):
                    return
                record.append(line)
                yield line[1]

        while True:
            record: list[tuple[int, str]] = []
            try:
                reader = csv.reader(record_lines(record), delimiter=self.delimiter, strict=True)
                cells = next(reader, None)
            except csv.Error as error:
                number, line = record[0]
                again.extendleft(reversed(record[1:]))
                plain = line.rstrip("\r\n").split("\t")  # TSV may have quotes that mean nothing
                if self.delimiter == "\t" and len(plain) == len(self.columns):
                    yield number, plain
                elif "expected after" in str(error):
                    on_bad_row(number, _("has a quote within a quoted field that is not doubled"))
                else:
                    on_bad_row(number, _("a quote is opened here and not closed"))
                continue
            if cells is None:
                return
            is_blank = not record[0][1].strip(" \r\n")
            if not is_blank if self.keep_empty_rows else any(cells):
                yield record[0][0], cells


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


class JsonTable(_TextTable):
    """JSON objects as rows, one a line or all in one list; the first ones' keys are the columns."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, name)
        self._items = self._parse_list()
        first_rows = islice(self.rows(lambda line, reason: None), _KEYED_ROWS)
        self.columns = list(dict.fromkeys(key for _, record in first_rows for key in record))
        if not self.columns:
            raise DataError(
                "{name} has no line that is a JSON object.",
                "Write {example} a line, or [{example}, ...].",
                name=name,
                example='{"sentence1": ..., "sentence2": ..., "label": ...}',
            )

    def _parse_list(self) -> list[Any] | None:
        """The items of a file that is one list; None for any other."""
        with self._open() as file:
            text = file.read(2**16)
            if not text.lstrip().startswith("["):
                return None
            text += file.read(MAX_JSON)
        if len(text) > MAX_JSON or sum(map(text.count, "[{,")) > MAX_JSON_VALUES:
            raise DataError(
                "{name} has more JSON than is held in memory: at most {mebibytes} MiB and "
                "{max_json_values:,} values.",
                "Save it as JSONL, CSV or Parquet.",
                name=self.name,
                mebibytes=MAX_JSON // 2**20,
                max_json_values=MAX_JSON_VALUES,
            )
        try:
            return list(disk.parse_json(text))
        except ValueError as error:
            raise DataError(
                "{name} is not JSON: {error}.", "Upload it again.", name=self.name, error=error
            ) from error

    def _parse_lines(self, on_bad_row: OnBadRow) -> Iterator[tuple[int, Any]]:
        for number, line in self._lines(on_bad_row):
            if line.strip():
                try:
                    yield number, disk.parse_json(line)
                except ValueError as error:
                    on_bad_row(number, _("is not JSON: {error}", error=error))

    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        lines = self._parse_lines(on_bad_row) if self._items is None else enumerate(self._items, 1)
        for line, value in lines:
            if not isinstance(value, dict):
                on_bad_row(line, _("is not a JSON object"))
                continue
            record = value if columns is None else {name: value.get(name) for name in columns}
            if columns and any(isinstance(cell, (dict, list)) for cell in record.values()):
                on_bad_row(line, _("has a list or an object where a text or number is read"))
            elif any(map(tables.is_too_long, record.values())):
                on_bad_row(line, tables.TOO_LONG)
            else:
                yield line, record


class ParquetTable(Table):
    """Apache Parquet. Its encodings store a value once for many rows, so a small file can need much
    memory: texts are read as dictionaries, whose rows share their values."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, name)
        self._metadata = pq.read_metadata(path)
        self._check_size()
        self.schema, self.row_count = pq.read_schema(path), self._metadata.num_rows
        self.columns = list(self.schema.names)
        for field in self.schema:
            if pa.types.is_nested(field.type) or pa.types.is_fixed_size_binary(field.type):
                self.unusable[field.name] = f"is nested or binary ({str(field.type)[:60]})"

    def _check_size(self) -> None:
        """Raise DataError where the file unpacks to far more than text does, or has an encoding
        whose memory is not known before it is decoded."""
        unpacked = 0
        for group in map(self._metadata.row_group, range(self._metadata.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                unpacked += max(column.total_uncompressed_size, column.num_values)
                if "DELTA_BYTE_ARRAY" in column.encodings:
                    raise DataError(
                        "{name} has the column {column!r} in the encoding DELTA_BYTE_ARRAY.",
                        "Leave it out, or write it in another encoding.",
                        name=self.name,
                        column=column.path_in_schema[:60],
                    )
        tables.check_unpacked_size(self.name, unpacked, self.path.stat().st_size)
        self._row_bytes = unpacked // max(1, self._metadata.num_rows) + 1

    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        if columns is None:
            columns = [name for name in self.columns if name not in self.unusable]
        for line, cells in enumerate(self._cells(list(columns)), 1):
            if any(map(tables.is_too_long, cells)):
                on_bad_row(line, tables.TOO_LONG)
            else:
                yield line, dict(zip(columns, cells, strict=True))

    def _cells(self, columns: list[str]) -> Iterator[tuple[Any, ...]]:
        leaves = map(self._metadata.schema.column, range(self._metadata.num_columns))
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        size = max(1, min(_BATCH_ROWS, _BATCH_BYTES // self._row_bytes))
        try:
            with pq.ParquetFile(self.path, metadata=self._metadata, read_dictionary=texts) as file:
                for batch in file.iter_batches(size, columns=columns):
                    yield from zip(*map(_values, map(batch.column, columns)), strict=True)
        except (OSError, OverflowError, ValueError, pa.ArrowException) as error:
            raise DataError(
                "{name} cannot be read to its end: {error}",
                "Upload it again.",
                name=self.name,
                error=error,
            ) from error


def _values(array: pa.Array) -> list[Any]:
    """The values of a column; rows with the same text share one."""
    if not pa.types.is_dictionary(array.type):
        return list(array.to_pylist())
    codes, positions = np.unique(array.indices.fill_null(-1).to_numpy(), return_inverse=True)
    texts = array.dictionary.take(pa.array(codes, mask=codes < 0)).to_pylist()
    return [texts[position] for position in positions]
