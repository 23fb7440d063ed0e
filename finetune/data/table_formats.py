"""Open files as tables: CSV, TSV, JSONL, JSON, Parquet and workbooks.

The app's own process opens them in a child with limits (`environment.child_process`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from finetune import messages
from finetune.data import delimited, json_tables, parquet_tables, table, text_tables, workbooks
from finetune.data.table import ReadOptions, Table, open_bytes
from finetune.errors import DataError
from finetune.messages import message as _


def open_table(path: Path, name: str = "", options: ReadOptions | None = None) -> Table:
    """Open a file as a table, by its contents and the ending of its path. DataError, which calls
    the file `name`, if it is empty, not a table, too wide, or unpacks to too much."""
    name = name or path.name
    opened = _open(path, name, options or ReadOptions())
    table.check_width(name, len(opened.columns))
    return opened


def _open(path: Path, name: str, options: ReadOptions) -> Table:
    ending = path.name.lower().removesuffix(".gz")
    try:
        with open_bytes(path, name) as file:
            head = file.read(2**16)
        if not head.strip(b"\0\r\n\t \xef\xbb\xbf"):
            raise DataError("{name} is empty.", "Upload a file with a header and rows.", name=name)
        if head.startswith(b"PAR1") or ending.endswith(".parquet"):
            return parquet_tables.ParquetTable(path, name)
        if head.startswith(workbooks.STARTS):
            return workbooks.WorkbookTable(path, name, options)
        if ending.endswith((".json", ".jsonl", ".ndjson")):
            return json_tables.JsonTable(path, name, options)
        if text_tables.are_labelled(head):
            return text_tables.LabelledLines(path, name, options)
        return delimited.CsvTable(path, name, options, tab=ending.endswith(".tsv"))
    except (OSError, EOFError, pa.ArrowException) as error:
        raise DataError(
            "{name} cannot be read: {error}", "Upload it again.", name=name, error=error
        ) from error


def usable_columns(
    path: str, name: str, options: Mapping[str, str]
) -> tuple[list[str], list[str], Any]:
    """Return the columns of a file that can be sentences or labels, a workbook's sheets, and the
    question to answer before reading (a `messages.encode`d text). Raises as `open_table`. `options`
    are the fields of `ReadOptions`."""
    opened = open_table(Path(path), name, ReadOptions(**options))
    unusable = opened.unusable.keys() - opened.nested
    usable = [column for column in opened.columns if column not in unusable]
    asked = [remark for remark in opened.remarks if remark.severity == "blocks"]
    text = _("{fact} {remedy}", fact=asked[0].title, remedy=asked[0].action) if asked else ""
    return usable, opened.sheets, messages.encode(text)
