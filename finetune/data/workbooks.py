"""Workbooks: one sheet of an Excel or OpenDocument file as a table.

A small file can ask for any memory, a cell far away is enough: a child process with limits opens
it first, so that this process reads only what has fitted there.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
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

from finetune.data import tables
from finetune.data.tables import OnBadRow, Rows, Table
from finetune.environment import child_process
from finetune.errors import DataError, some
from finetune.messages import message as _

STARTS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")  # of zip files and of old Excel's


class WorkbookTable(Table):
    """A sheet of a workbook; its first row with two cells or more has the names of the columns."""

    is_workbook = True

    def __init__(self, path: Path, name: str, sheet: str = "") -> None:
        super().__init__(path, name)
        layout = child_process.call(
            "finetune.data.workbooks:read_layout", str(path), name, sheet, about=name
        )
        self.sheets, self._sheet, self._head = layout["sheets"], layout["sheet"], layout["head"]
        self.columns, has_header = tables.column_names(layout["header"])
        self._first = self._head + has_header
        self.row_count = layout["height"] - self._first
        if not has_header:
            self.notes.append(tables.no_header_note(name))
        if len(self.sheets) > 1:
            self.notes.append(
                _(
                    "{name} has the sheets {sheets}; {sheet!r} is read.",
                    name=name,
                    sheets=some(self.sheets),
                    sheet=self._sheet,
                )
            )

    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        names = self.columns if columns is None else columns
        indices = [(name, self.columns.index(name)) for name in names]
        sheet = _open(self.path, self.name).get_sheet_by_name(self._sheet)
        for line, cells in enumerate(sheet.iter_rows(), 1):
            if line <= self._first or not any(cell != "" for cell in cells):
                continue
            record = {name: _plain(cells[index]) for name, index in indices}
            if any(map(tables.is_too_long, record.values())):
                on_bad_row(line, tables.TOO_LONG)
            else:
                yield line, record


def _plain(cell: Any) -> Any:
    """A cell as it is shown: every number of a workbook is a fraction."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def _open(path: Path, name: str) -> CalamineWorkbook:
    try:
        return CalamineWorkbook.from_path(path)
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


def read_layout(path: str, name: str, requested: str) -> dict[str, Any]:
    """The sheets of a workbook that can be seen, the one to be read, where its header is, and how
    many rows it has; DataError where there is none."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            unpacked = sum(entry.file_size for entry in packed.infolist())
        tables.check_unpacked_size(name, unpacked, Path(path).stat().st_size)
    workbook = _open(Path(path), name)
    sheets = [
        sheet.name
        for sheet in workbook.sheets_metadata
        if sheet.typ == SheetTypeEnum.WorkSheet and sheet.visible == SheetVisibleEnum.Visible
    ]
    if requested and requested not in sheets:
        raise DataError(
            "{name} has no sheet {sheet!r}; it has {sheets}.",
            "Choose one of them as sheet.",
            name=name,
            sheet=requested,
            sheets=some(sheets),
        )
    for title in [requested] if requested else sheets:
        try:
            sheet = workbook.get_sheet_by_name(title)
        except CalamineError as error:
            raise DataError(
                "The sheet {sheet!r} of {name} cannot be read: {error}.",
                "Save it again as .xlsx, or as CSV.",
                sheet=title,
                name=name,
                error=error,
            ) from error
        if (head := _header_row(sheet)) is not None:
            (row, cells), (last, _column) = head, sheet.end or (0, 0)
            layout = {"sheets": sheets, "sheet": title, "head": row, "header": cells}
            return layout | {"height": last + 1}
    raise DataError(
        "{name} has no table: no row of {sheets} has two cells.",
        "Write the names of the columns into the first row, and a pair into each row beneath.",
        name=name,
        sheets=some([requested] if requested else sheets),
    )


def _header_row(sheet: CalamineSheet) -> tuple[int, list[str]] | None:
    """How many rows are above the first one with two cells or more, and its cells."""
    for row, cells in enumerate(sheet.iter_rows()):
        if sum(str(cell).strip() != "" for cell in cells) > 1:
            return row, [str(_plain(cell)) for cell in cells]
    return None
