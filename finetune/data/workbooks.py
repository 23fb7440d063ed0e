"""Workbooks: one sheet of an Excel or OpenDocument file as a table.

One cell far away is enough for a small file to ask for any memory: a child process with limits
opens it first, so that this process reads only what has fitted there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from python_calamine import (
    CalamineError,
    CalamineWorkbook,
    PasswordError,
    SheetTypeEnum,
    SheetVisibleEnum,
)

from finetune.data import tables
from finetune.data.tables import OnBadRow, Rows, Table
from finetune.environment import child_process
from finetune.environment.confinement import Confinement
from finetune.errors import DataError, some
from finetune.messages import message as _

STARTS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")  # of zip files and of old Excel's


class WorkbookTable(Table):
    """A sheet of a workbook; its first row with two cells or more has the names of the columns."""

    def __init__(self, path: Path, name: str, sheet: str) -> None:
        super().__init__(path, name)
        self.sheets, self._sheet, above, header, height = child_process.call(
            "finetune.data.workbooks:read_layout", str(path), name, sheet, about=name,
            confinement=Confinement((str(path),)),
        )  # fmt: skip
        self._read_header(header)
        self._skipped = above + self.has_header
        self.row_count = height - self._skipped
        if len(self.sheets) > 1:
            text = _(
                "{name} has the sheets {sheets}; {sheet!r} is read.",
                name=name,
                sheets=some(self.sheets),
                sheet=self._sheet,
            )
            self.notes.append(text)

    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        names = self.columns if columns is None else columns
        indices = [(name, self.columns.index(name)) for name in names]
        sheet = CalamineWorkbook.from_path(self.path).get_sheet_by_name(self._sheet)
        for line, cells in enumerate(sheet.iter_rows(), 1):
            is_empty = not self.keep_empty_rows and not any(cell != "" for cell in cells)
            if line <= self._skipped or is_empty:
                continue
            record = {name: _plain(cells[index]) for name, index in indices}
            if any(map(tables.is_too_long, record.values())):
                on_bad_row(line, tables.TOO_LONG)
            else:
                yield line, record


def _plain(cell: Any) -> Any:
    """A cell as it is shown: every number of a workbook is a fraction."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def read_layout(path: str, name: str, requested: str) -> tuple[list[str], str, int, list[str], int]:
    """The sheets of a workbook that can be seen; the one to be read, the rows above its header,
    that header and the last row; DataError where there is none."""
    try:
        return _find_table(CalamineWorkbook.from_path(path), name, requested)
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
    workbook: CalamineWorkbook, name: str, requested: str
) -> tuple[list[str], str, int, list[str], int]:
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
        sheet = workbook.get_sheet_by_name(title)
        for row, cells in enumerate(sheet.iter_rows()):
            if sum(str(cell).strip() != "" for cell in cells) > 1:
                header, last = [str(_plain(cell)) for cell in cells], sheet.end or (0, 0)
                return sheets, title, row, header, last[0] + 1
    raise DataError(
        "{name} has no table: no row of {sheets} has two cells.",
        "Write the names of the columns into the first row, and a pair into each row beneath.",
        name=name,
        sheets=some([requested] if requested else sheets),
    )
