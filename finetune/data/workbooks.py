"""Workbooks: one sheet of an Excel or OpenDocument file as a table.

A single cell far away can make a small file need any amount of memory. So a child process with
limits opens the file first, and this process reads only what has fitted there.
"""

import contextlib
import os
import zipfile
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from python_calamine import (
    CalamineError,
    CalamineSheet,
    CalamineWorkbook,
    PasswordError,
    SheetTypeEnum,
    SheetVisibleEnum,
)

from finetune.data import headers, table
from finetune.data.headers import Header
from finetune.data.table import OnBadRow, ReadOptions, Rows, Table, remark
from finetune.environment import child_process
from finetune.environment.confinement import Confinement
from finetune.errors import DataError, some
from finetune.findings import Remedy
from finetune.messages import message as _

STARTS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")  # of zip files and of old Excel's
_FIRST = 1000  # rows in which the header is searched
_FEW = 10_000  # rows that are read whatever the size of the file
_SHOWN = 8  # sheets offered


class WorkbookTable(Table):
    """A sheet of a workbook; a title may stand above the names of its columns."""

    def __init__(self, path: Path, name: str, options: ReadOptions) -> None:
        super().__init__(path, name)
        read, confined = "finetune.data.workbooks:read_layout", Confinement((str(path),))
        asked = str(path), name, options.sheet, options.header
        layout = child_process.call(read, *asked, about=name, confinement=confined)
        sizes: dict[str, int] = layout["sizes"]
        self.sheets, self._sheet = list(sizes), layout["sheet"]
        header, first = Header(*layout["header"]), layout["first"]
        self._name_columns(header.names(first))
        self._skipped, self._height = header.rows, layout["height"]
        self.row_count = self._height - self._skipped
        self._repeats = _repeats(header, first)
        self.remarks += headers.remarks(name, header.above + 1, header, self.columns)
        above = [(line, "; ".join(filter(None, cells))) for line, cells in enumerate(first, 1)]
        filled = [(line, text) for line, text in above[: header.rows] if text]
        self.remarks += headers.skipped_remarks(filled, header.above + 1, header, first)
        self.remarks += headers.repeat_remarks(layout["repeats"])
        if merged := layout["merged"]:
            title = _("Merged cells: line {lines}", lines=some(merged, 3))
            action = _("Their value holds for every row that they span.")
            self.remarks.append(remark("merged-cells", title, action, merged))
        if len(self.sheets) > 1:
            text = _(
                "{name} has the sheets {sheets}; {sheet!r} is read.",
                name=name,
                sheets=some(self.sheets),
                sheet=self._sheet,
            )
            self.notes.append(text)
            answers = [
                Remedy("sheet", other, _("Read {sheet!r} ({n:,} rows)", sheet=other, n=rows - 1))
                for other, rows in sizes.items()
                if rows > 1 and other != self._sheet
            ]
            if answers:
                title = _("The sheet {sheet!r} is read; there are others.", sheet=self._sheet)
                action = _("Choose another one as sheet to read it instead.")
                self.remarks.append(remark("sheet", title, action, answers=answers[:_SHOWN]))

    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        names = self.columns if columns is None else columns
        indices = [(name, self.columns.index(name)) for name in names]
        sheet = CalamineWorkbook.from_path(self.path).get_sheet_by_name(self._sheet)
        for line, (cells, _merged) in enumerate(_cells(sheet), 1):
            if line > self._height:
                return
            is_empty = not self.keep_empty_rows and not any(cell != "" for cell in cells)
            if line <= self._skipped or is_empty or _texts(cells) in self._repeats:
                continue
            record = {name: _plain(cells[index]) for name, index in indices}
            if any(map(table.is_too_long, record.values())):
                on_bad_row(line, table.TOO_LONG)
            else:
                yield line, record


def _plain(cell: Any) -> Any:
    """Convert a cell to what is shown: workbooks store every number as a fraction."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def _cells(sheet: CalamineSheet) -> Iterator[tuple[list[Any], bool]]:
    """Iterate over the rows of a sheet, and whether a cell above is merged with one of theirs. The
    value of merged cells stands in each row that they span."""
    left = sheet.start[1] if sheet.start else 0
    begun: dict[int, list[tuple[int, int]]] = {}  # first row -> last row and column
    for (top, column), (bottom, _right) in sheet.merged_cell_ranges or ():
        if bottom > top:
            begun.setdefault(top, []).append((bottom, column - left))
    spanned: dict[int, tuple[int, Any]] = {}  # column -> last row, and value
    for row, cells in enumerate(sheet.iter_rows()):
        spanned = {column: cell for column, cell in spanned.items() if cell[0] >= row}
        for column, (_last, value) in spanned.items():
            cells[column] = value
        yield cells, any(value != "" for _last, value in spanned.values())
        for last, column in begun.get(row, ()):
            if 0 <= column < len(cells):
                spanned[column] = last, cells[column]


def _repeats(header: Header, first: Sequence[Sequence[str]]) -> headers.Repeats:
    """The rows that repeat one of the `first` rows of a table."""
    names = first[header.above] if header.named else []
    return headers.Repeats(names, [row for row in first[: header.rows] if row is not names])


def _texts(cells: Sequence[Any]) -> list[str]:
    return [str(_plain(cell)) for cell in cells]


def read_layout(path: str, name: str, requested: str, header: str) -> dict[str, Any]:
    """Find the table in a workbook. Returns `sizes`, the rows with at least two cells of each
    visible sheet; the `sheet` to read, its `header` (the fields of `Header`), its `first` rows up
    to the first of data, its `height`, `repeats`, the rows that repeat the header, and `merged`,
    those that a merged cell spans. DataError if the file cannot be read, or has no table."""
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as packed:
        unpacked = sum(part.file_size for part in packed.infolist())
        table.check_unpacked_size(name, unpacked, os.path.getsize(path))
    try:
        return _find_table(CalamineWorkbook.from_path(path), name, requested, header)
    except PasswordError as error:
        raise DataError(
            "{name} is protected by a password.", "Save it without one, or as CSV.", name=name
        ) from error
    except CalamineError as error:
        raise DataError(
            "{name} is no workbook that can be read: {error}.",
            "Save it again as .xlsx, or as CSV.",
            name=name,
            error=error,
        ) from error


def _find_table(
    workbook: CalamineWorkbook, name: str, requested: str, requested_header: str
) -> dict[str, Any]:
    sheets = [
        sheet.name
        for sheet in workbook.sheets_metadata
        if sheet.typ == SheetTypeEnum.WorkSheet and sheet.visible == SheetVisibleEnum.Visible
    ]
    # A configuration holds no blanks at the ends of a name.
    requested = next((sheet for sheet in sheets if sheet.strip() == requested), requested)
    if requested and requested not in sheets:
        raise DataError(
            "{name} has no sheet {sheet!r}; it has {sheets}.",
            "Choose one of them as sheet.",
            name=name,
            sheet=requested,
            sheets=some(sheets),
        )
    sizes = {
        title: sum(sum(cell.strip() != "" for cell in row) > 1 for row, _ in _rows(workbook, title))
        for title in sheets
    }
    # A sheet of notes may come first, even with a small table: the pairs have the most rows.
    most = max(sizes.values(), default=0)
    sheet = requested or next((title for title in sheets if 2 * sizes[title] >= most), "")
    if not sizes.get(sheet):
        raise DataError(
            "{name} has no table: no row of {sheets} has two cells.",
            "Write column names into the first row, and an example into each row beneath.",
            name=name,
            sheets=some([requested] if requested else sheets),
        )
    rows = _rows(workbook, sheet)
    top = list(islice(rows, _FIRST))
    first = [cells for cells, _merged in top]
    header = headers.find_header(first, requested_header)
    repeats, found, merged, height = _repeats(header, first), [], [], 0
    for line, (cells, is_merged) in enumerate(chain(top, rows), 1):
        if any(cell != "" for cell in cells):
            height = line
        if line > header.rows and cells in repeats:
            found.append(line)
        elif line > header.rows and is_merged:
            merged.append(line)
    return {
        "sizes": sizes,
        "sheet": sheet,
        "header": [*vars(header).values()],
        "first": first[: header.rows + 1],
        "height": height,
        "repeats": found,
        "merged": merged,
    }


def _rows(workbook: CalamineWorkbook, sheet: str) -> Iterator[tuple[list[str], bool]]:
    opened, size = workbook.get_sheet_by_name(sheet), os.path.getsize(str(workbook.path))
    table.check_width(sheet, opened.width)
    if opened.height > max(size, _FEW):  # one row is stored with a number of repeats
        raise DataError(
            "The sheet {sheet!r} has {rows:,} rows in a file of {size:,} bytes: rows are repeated.",
            "Delete the repeated rows, or save it as CSV.",
            sheet=sheet, rows=opened.height, size=size,
        )  # fmt: skip
    return ((_texts(cells), merged) for cells, merged in _cells(opened))
