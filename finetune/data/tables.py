"""Opens the files people have as tables: CSV, TSV, JSONL, JSON, Parquet and workbooks; writes CSV.

The app's own process opens them in a child with limits (`environment.child_process`); the limits
here bound the memory that a small file can make a reader use.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from finetune.errors import DataError
from finetune.messages import message as _

OnBadRow = Callable[[int, str], None]  # line from 1, and what is wrong with it
Rows = Iterator[tuple[int, dict[str, Any]]]  # line from 1, and cells by their columns

MAX_FIELD = 1_000_000  # characters of a cell
MAX_RATIO = 200  # unpacked to packed bytes, checked beyond 64 MiB; text reaches about 20
MAX_UNPACKED = 8 * 2**30  # bytes
TOO_LONG = _("has more than {max_field:,} characters in a cell", max_field=MAX_FIELD)

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")  # a class may be called -1


class Table(ABC):
    """A file of rows and columns, read row by row."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.columns: list[str] = []  # unique names, in the order of the file
        self.unusable: dict[str, str] = {}  # column -> why it cannot be a sentence or a label
        self.sheets: list[str] = []  # of a workbook
        self.row_count = 0  # about; 0 where only reading all of it would tell
        self.schema: pa.Schema | None = None  # types of the columns; None for text formats
        self.delimiter = ""  # of cells; empty for formats without one
        self.notes: list[str] = []  # remarks for the user on how the file was read
        self.has_header = True
        self.keep_empty_rows = False  # rows of empty cells are rows too; blank lines are none

    def _read_header(self, line: list[str]) -> None:
        """Name the columns by a first line, unless it looks like data; without spaces around, an
        empty or repeated one numbered."""
        self.has_header = not _looks_like_data(line)
        names: dict[str, None] = {}
        for index, cell in enumerate(line if self.has_header else [""] * len(line), 1):
            column = " ".join(cell.replace("\ufeff", "").split())[:200] or f"column {index}"
            names[f"{column} ({index})" if column in names else column] = None
        self.columns = list(names)
        if not self.has_header:
            self.notes.append(
                _(
                    "The first line of {name} looks like data, so it is read as a row.",
                    name=self.name,
                )
            )

    @abstractmethod
    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        """Iterate over the readable rows; DataError where the rest of the file cannot be read.

        Args:
            on_bad_row: called for every row that cannot be read.
            columns: to be read, their cells no lists or objects then; all by default.
        """


def open_table(path: Path, name: str = "", sheet: str = "") -> Table:
    """Open a file as a table, by its contents and the ending of its path; errors call it `name`.
    DataError where it is empty, not a table, or unpacks to too much. Of a workbook `sheet` is read,
    or its first one with a table."""
    from finetune.data import table_formats, workbooks  # they are made of what is defined here

    name = name or path.name
    ending = path.name.lower().removesuffix(".gz")
    try:
        with open_bytes(path, name) as file:
            head = file.read(2**16)
        if not head.strip(b"\0\r\n\t \xef\xbb\xbf"):
            raise DataError("{name} is empty.", "Upload a file with a header and rows.", name=name)
        if head.startswith(b"PAR1") or ending.endswith(".parquet"):
            return table_formats.ParquetTable(path, name)
        if head.startswith(workbooks.STARTS):
            return workbooks.WorkbookTable(path, name, sheet)
        if ending.endswith((".json", ".jsonl", ".ndjson")):
            return table_formats.JsonTable(path, name)
        return table_formats.CsvTable(path, name, tab=ending.endswith(".tsv"))
    except (OSError, EOFError, pa.ArrowException) as error:
        raise DataError(
            "{name} cannot be read: {error}", "Upload it again.", name=name, error=error
        ) from error


def is_too_long(cell: Any) -> bool:
    """Whether a cell is refused as `TOO_LONG`."""
    return isinstance(cell, (str, bytes)) and len(cell) > MAX_FIELD


def _looks_like_data(header: list[str]) -> bool:
    """Whether a first line has sentences or numbers where a header has names."""
    cells = [cell.strip() for cell in header]
    wordy = any(len(cell.split()) > 5 for cell in cells)
    numeric = any(re.fullmatch(r"-?\d+([.,]\d+)?", cell) for cell in cells)
    return len(cells) > 1 and (wordy or (numeric and any(" " in cell for cell in cells)))


def usable_columns(path: str, name: str, sheet: str = "") -> tuple[list[str], list[str]]:
    """The columns of a file that can be sentences or labels, and a workbook's sheets; raises as
    `open_table`."""
    table = open_table(Path(path), name, sheet)
    return [column for column in table.columns if column not in table.unusable], table.sheets


def open_bytes(path: Path, name: str) -> BinaryIO:
    """Open a file for reading, unpacked where it is gzipped."""
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


def to_plain_value(cell: Any) -> Any:
    """A cell of a typed file as text or number; dates and decimals become text, None stays."""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    return cell if cell is None or isinstance(cell, (str, int, float)) else str(cell)


def escape_formula(cell: object) -> object:
    """A cell that no spreadsheet takes for a formula: text that begins like one gets an apostrophe.
    Source: OWASP, CSV Injection, https://owasp.org/www-community/attacks/CSV_Injection"""
    if not isinstance(cell, str) or not cell.lstrip(" ").startswith(_FORMULA_STARTS):
        return cell
    return cell if _NUMBER.fullmatch(cell) else "'" + cell


def to_csv(rows: Iterable[Sequence[object]]) -> str:
    """Rows of a CSV file, with every cell escaped; every CSV the app writes goes through here."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([escape_formula(cell) for cell in row] for row in rows)
    return out.getvalue()
