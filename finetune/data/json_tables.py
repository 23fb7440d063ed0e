"""JSON tables: one object a line (JSONL), or a file with one list of objects.

`pyarrow.json` is not used: it refuses a whole file for one line that is broken or of another type,
where these readers report the line and go on.
"""

from __future__ import annotations

import contextlib
import io
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from finetune import json_files
from finetune.data import table_files
from finetune.data.csv_tables import NumberedLines
from finetune.data.table_files import OnBadRow, Row, Table, first_line
from finetune.errors import DataError, some

MAX_JSON = 128 * 2**20  # characters of a JSON file, which is held in memory; JSONL has no limit
MAX_JSON_VALUES = 2**22  # values of a JSON file, about; each takes up to 100 bytes
MAX_DEPTH = 100  # of lists and objects within each other
_FIRST = 1_000  # records whose keys are the columns


class _ObjectTable(Table):
    """A table whose rows are JSON objects; the keys of the first ones are its columns."""

    @abstractmethod
    def _values(self, on_bad_row: OnBadRow) -> Iterable[tuple[int, Any]]:
        """Line and JSON value of every row."""

    def records(self, on_bad_row: OnBadRow) -> Iterator[tuple[int, dict[str, Any]]]:
        for line, value in self._values(on_bad_row):
            if problem := _record_problem(value):
                on_bad_row(line, problem)
            else:
                yield line, value

    def rows(self, columns: Sequence[str], on_bad_row: OnBadRow) -> Iterator[Row]:
        for line, record in self.records(on_bad_row):
            cells = [record.get(name) for name in columns]
            if problem := _cell_problem(columns, cells):
                on_bad_row(line, problem)
            else:
                yield line, cells

    def _set_columns(self) -> None:
        names: dict[str, None] = {}
        for _, record in islice(self.records(lambda line, reason: None), _FIRST):
            if len(names) < table_files.MAX_COLUMNS:
                names |= dict.fromkeys(record)
        self.columns = list(names)[: table_files.MAX_COLUMNS]


def _record_problem(value: Any) -> str:
    """Why a JSON value is not a row; empty where it is one."""
    if not isinstance(value, dict):
        return f"is not a JSON object but {_json_kind(value)}"
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        objects = [item.values() for item in level if isinstance(item, dict)]
        lists = [item for item in level if isinstance(item, list)]
        level = [inner for values in (*objects, *lists) for inner in values]
        if not level:
            return ""
    return f"is nested more than {MAX_DEPTH} deep"


def _cell_problem(columns: Sequence[str], cells: Sequence[Any]) -> str:
    """Why a cell cannot be a sentence or label; empty where all can."""
    for column, cell in zip(columns, cells, strict=True):
        if isinstance(cell, (dict, list)):
            return f"has {_json_kind(cell)} as {column!r}"
        if table_files.is_too_long(cell):
            return f"has more than {table_files.MAX_FIELD:,} characters as {column!r}"
    return ""


def _json_kind(value: Any) -> str:
    kinds = {list: "a list", dict: "an object", str: "a text", type(None): "null"}
    return kinds.get(type(value), "a number")


class JsonLinesTable(_ObjectTable):
    """One JSON object a line."""

    def __init__(self, path: Path, name: str, encoding: str) -> None:
        super().__init__()
        self._path, self._name, self._encoding = path, name, encoding
        self._set_columns()
        if not self.columns:
            raise DataError(
                f"{name} has no line that is a JSON object.",
                'Write one object a line: {"sentence1": ..., "sentence2": ..., "label": ...}.',
            )

    def _values(self, on_bad_row: OnBadRow) -> Iterator[tuple[int, Any]]:
        lines = NumberedLines(self._path, self._name, self._encoding, on_bad_row)
        with contextlib.closing(lines):
            for line in lines:
                lines.start_record()
                if not line.strip():
                    continue
                try:
                    value = json_files.parse(line)
                except ValueError as error:
                    on_bad_row(lines.number, f"is not JSON: {first_line(error)}")
                else:
                    yield lines.number, value


class _JsonTable(_ObjectTable):
    """A JSON list of objects, alone or as the only one of an object, or an object of columns.

    Raises:
        ValueError: when the file is not JSON.
    """

    def __init__(self, path: Path, name: str, encoding: str) -> None:
        super().__init__()
        with io.TextIOWrapper(
            table_files.open_bytes(path, name), encoding=encoding, errors="replace"
        ) as file:
            text = file.read(MAX_JSON + 1)
        if len(text) > MAX_JSON or sum(map(text.count, "[{,")) > MAX_JSON_VALUES:
            raise DataError(
                f"{name} has more JSON than is held in memory: at most {MAX_JSON // 2**20} MiB "
                f"and {MAX_JSON_VALUES:,} values.",
                "Save it as JSONL, CSV or Parquet.",
            )
        value = json_files.parse(text)
        lists = {
            key: items
            for key, items in (value if isinstance(value, dict) else {"": value}).items()
            if isinstance(items, list)
        }
        tables = {
            key: items
            for key, items in lists.items()
            if any(isinstance(item, dict) for item in items[:_FIRST])
        }
        if len(tables) > 1:
            raise DataError(
                f"{name} has {len(tables)} lists of rows: {some(list(map(repr, tables)))}.",
                "Save each as a file of its own, and upload them as training, validation and "
                "test file.",
            )
        self._list = next(iter(tables.values()), [])
        if not tables and len(lists) > 1 and len(set(map(len, lists.values()))) == 1:  # columns
            self._list = [
                dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)
            ]
        self._set_columns()
        if not self.columns:
            raise DataError(
                f"{name} has no list of objects.",
                'Write [{"sentence1": ..., "sentence2": ..., "label": ...}, ...].',
            )

    def _values(self, on_bad_row: OnBadRow) -> Iterable[tuple[int, Any]]:
        return enumerate(self._list, 1)


def open_json(path: Path, name: str, encoding: str) -> Table:
    """Open a `.json` file, which may hold JSON lines.

    Raises:
        DataError: when it is not JSON or has no list of objects.
    """
    try:
        return _JsonTable(path, name, encoding)
    except ValueError as error:
        try:
            table = JsonLinesTable(path, name, encoding)
        except DataError:
            raise DataError(
                f"{name} is not JSON: {first_line(error)}.", "Check it, or upload CSV."
            ) from None
        table.notes.append(f"{name} holds one object a line and is read as JSONL.")
        return table
