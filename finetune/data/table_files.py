"""What the readers of all table formats share: limits, opening, the text encoding, the interface.

The limits bound the memory that a small file can make a reader use.
"""

from __future__ import annotations

import codecs
import gzip
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from finetune.errors import DataError

OnBadRow = Callable[[int, str], None]  # line from 1, and what is wrong with it

MAX_FIELD = 1_000_000  # characters of a cell
MAX_COLUMNS = 10_000
MAX_RATIO = 200  # unpacked to packed bytes, checked beyond 64 MiB; text reaches about 20
MAX_UNPACKED = 8 * 2**30  # bytes

_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_CONTROL = bytes((*range(9), *range(14, 27)))


class Table(ABC):
    """A file of rows and columns, read row by row."""

    def __init__(self) -> None:
        self.columns: list[str] = []  # unique names, in the order of the file
        self.unusable: dict[str, str] = {}  # column -> why it cannot be a sentence or a label
        self.schema: pa.Schema | None = None  # types of the columns; None for text formats
        self.delimiter = ""  # of cells; empty for formats without one
        self.notes: list[str] = []  # remarks for the user on how the file was read

    @abstractmethod
    def rows(
        self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Iterate over the readable rows: line number from 1, and cells by their columns.

        Args:
            on_bad_row: called for every row that cannot be read.
            columns: some of `self.columns`, whose cells are no lists or objects then; all by
                default.

        Raises:
            DataError: when the rest of the file cannot be read.
        """


class _BoundedGzip(gzip.GzipFile):
    """A gzip stream that raises DataError when it unpacks to far more than text does."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path)
        self._table_name, self._packed, self._unpacked = name, path.stat().st_size, 0

    def read(self, size: int | None = -1) -> bytes:
        block = super().read(size)
        self._unpacked += len(block)
        check_unpacked_size(self._table_name, self._unpacked, self._packed)
        return block


def check_unpacked_size(name: str, unpacked: int, packed: int) -> None:
    """Raise DataError where a file's contents are far larger than those of text can be."""
    if unpacked > min(MAX_UNPACKED, max(64 * 2**20, MAX_RATIO * packed)):
        raise DataError(
            "{name} unpacks to more than {unpacked} MiB from {packed:.1f} MiB, which no table of "
            "text does.",
            "Upload it unpacked, or in part.",
            name=name,
            unpacked=unpacked // 2**20,
            packed=packed / 2**20,
        )


def open_bytes(path: Path, name: str) -> BinaryIO:
    """Open a file for reading, unpacked where it is gzipped."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    raw = _BoundedGzip(path, name) if packed else io.FileIO(path)
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, raw), 2**16))


def detect_encoding(path: Path, name: str) -> tuple[str, list[str]]:
    """The encoding of a text file, by its byte order mark, else UTF-8 or Windows-1252, and notes
    on it for the user; DataError where it is not text."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    valid = broken = 0  # characters beyond ASCII
    with open_bytes(path, name) as file:
        start = file.read(4096)
        for mark, encoding in _BOMS.items():
            if start.startswith(mark):
                return encoding, [f"{name} is UTF-16."] if encoding == "utf-16" else []
        if len(start) - len(start.translate(None, _CONTROL)) > max(8, len(start) // 20):
            raise DataError(
                "{name} is not text.", "Save it as CSV, TSV, JSONL or Parquet.", name=name
            )
        # The whole file: bytes that are not UTF-8 may stand at its end only.
        for block in chain([start], iter(lambda: file.read(2**20), b""), [b""]):
            text = decoder.decode(block, final=not block)
            if not text.isascii():
                replaced = text.count("\ufffd")
                broken += replaced
                valid += len(text) - len(text.encode("ascii", "ignore")) - replaced
    if not broken:
        return "utf-8", []
    if valid > broken:
        return "utf-8", [f"{name} is UTF-8 with {broken:,} broken places, read as \ufffd."]
    return "cp1252", [f"{name} is not UTF-8; it was read as Windows-1252 (Latin-1)."]


def is_too_long(cell: Any) -> bool:
    """Whether a cell has more than `MAX_FIELD` characters."""
    return isinstance(cell, (str, bytes)) and len(cell) > MAX_FIELD


def to_plain_value(cell: Any) -> Any:
    """A cell of a typed file as text or number; dates and decimals become text, None stays."""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    return cell if cell is None or isinstance(cell, (str, int, float)) else str(cell)
