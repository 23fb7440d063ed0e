"""The base of all table formats, and limits for reading.

The limits bound the memory that a small file can make a reader use.
"""

import gzip
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

import pyarrow as pa

from finetune import owners
from finetune.config import READING_FIELDS, RunConfig
from finetune.errors import DataError
from finetune.findings import Example, Finding, Remedy, Severity
from finetune.messages import message as _

OnBadRow = Callable[[int, str], None]  # line from 1, and what is wrong with it
Rows = Iterator[tuple[int, dict[str, Any]]]  # line from 1, and cells by their columns

MAX_FIELD = 1_000_000  # characters of a cell
MAX_RATIO = 200  # unpacked to packed bytes, checked beyond 64 MiB; text reaches about 20
MAX_UNPACKED = 8 * 2**30  # bytes; for visitors twice as many as they may upload
MAX_COLUMNS = 4096
TOO_LONG = _("has more than {max_field:,} characters in a cell", max_field=MAX_FIELD)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options for reading a file, from the fields of `RunConfig`; an empty text means: guess."""

    sheet: str = ""
    delimiter: str = ""
    quote: str = ""
    encoding: str = ""
    header: str = "auto"

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        return cls(**{name: getattr(config, name) for name in READING_FIELDS})


MAX_LINES = 20  # shown of a remark


def remark(
    kind: str,
    title: str,
    action: str,
    lines: Sequence[int] = (),
    answers: Sequence[Remedy] = (),
    texts: Sequence[str] = (),
    severity: Severity = "notes",
) -> Finding:
    """Make a finding about how a file was read: about its `lines` from 1, with the `texts` of each.
    `findings.in_split` names its split."""
    shown = [*lines[:MAX_LINES]]
    examples = [Example("", line, note=text) for line, text in zip(shown, texts, strict=False)]
    rows = {"": shown} if shown else {}
    return Finding(
        kind, severity, title, action, None, [*answers], False, len(lines), examples, rows
    )


class Table(ABC):
    """A file of rows and columns, read row by row."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.columns: list[str] = []  # unique names, in the order of the file
        self.unusable: dict[str, str] = {}  # column -> why it cannot be a sentence or a label
        self.nested: list[str] = []  # columns of lists or objects, which can be labels
        self.inner: set[str] = set()  # columns within those of the file, which hold objects
        self.sheets: list[str] = []  # of a workbook
        self.row_count = 0  # approximate; 0 if only reading the file would tell
        self.schema: pa.Schema | None = None  # types of the columns; None for text formats
        self.delimiter = ""  # of cells; empty for formats without one
        self.notes: list[str] = []  # facts for the user on how the file was read
        self.remarks: list[Finding] = []  # doubts about that, and lines read in an unusual way
        self.keep_empty_rows = False  # rows of empty cells are rows too; blank lines are none
        self.line = 0  # from 1, of the readable row that `every_row` yielded last

    def _name_columns(self, cells: Sequence[str]) -> None:
        """Name the columns by the cells of a header. Empty and repeated names are numbered."""
        names: dict[str, None] = {}
        for index, cell in enumerate(cells, 1):
            column = " ".join(cell.replace("\ufeff", "").split())[:200] or f"column {index}"
            names[f"{column} ({index})" if column in names else column] = None
        self.columns = list(names)

    @abstractmethod
    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        """Iterate over the readable rows, by default with all columns that are not `unusable`; the
        others are told to `on_bad_row`. DataError if the rest of the file cannot be read."""

    def every_row(
        self, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[dict[str, Any], str]]:
        """Iterate over all rows in their order, those of empty cells too. One that cannot be read
        has no cells, but the reason."""
        self.keep_empty_rows = True
        broken: list[tuple[dict[str, Any], str]] = []

        def on_bad_row(line: int, reason: str) -> None:
            broken.append(({}, f"line {line} {reason}"))

        for at, record in self.rows(on_bad_row, columns):
            yield from broken
            broken.clear()
            self.line = at
            yield record, ""
        yield from broken


def is_too_long(cell: Any) -> bool:
    """True if a cell is refused as `TOO_LONG`."""
    return isinstance(cell, (str, bytes)) and len(cell) > MAX_FIELD


def open_bytes(path: Path, name: str) -> BinaryIO:
    """Open a file for reading, and unpack gzip."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    raw = _BoundedGzip(path, name) if packed else io.FileIO(path)
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, raw), 2**16))


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
    """Raise DataError if a file unpacks to far more than text does, or to more than is read."""
    most = min(MAX_UNPACKED, 2 * owners.policy().limits.upload_bytes)
    if unpacked > most:
        raise DataError(
            "{name} unpacks to more than {most:,} MiB.",
            "Upload a part of it.",
            name=name,
            most=most // 2**20,
        )
    if unpacked > max(64 * 2**20, MAX_RATIO * packed):
        raise DataError(
            "{name} unpacks to more than {unpacked} MiB from {packed:.1f} MiB, which no table of "
            "text does.",
            "Upload it unpacked, or in part.",
            name=name,
            unpacked=unpacked // 2**20,
            packed=packed / 2**20,
        )


def check_width(name: str, columns: int) -> None:
    """Raise DataError if a file has more columns than are read."""
    if columns > MAX_COLUMNS:
        raise DataError(
            "{name} has {columns:,} columns; at most {most:,} are read.",
            "Leave out what is no text and no label, or choose another delimiter.",
            name=name,
            columns=columns,
            most=MAX_COLUMNS,
        )


def is_filled(cell: Any) -> bool:
    """True if a cell has anything but white space."""
    return cell is not None and str(cell).strip() != ""


def to_plain_value(cell: Any) -> Any:
    """Convert a cell of a typed file to text or number. Dates and decimals become text; None, lists
    and objects stay."""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    return cell if cell is None or isinstance(cell, str | int | float | list | dict) else str(cell)


def cell_text(cell: Any) -> str:
    """Convert a cell to text, as in a text file; "" if it is missing."""
    return "" if cell is None else str(cell)
