"""JSON tables: one object a line (JSONL), or a file with one list of objects.

`pyarrow.json` is not used: it refuses a whole file for one line that is broken or of another type,
where this reader reports the line and goes on.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from finetune import json_files
from finetune.data import table_files
from finetune.data.csv_tables import numbered_lines
from finetune.data.table_files import OnBadRow, Row, Table
from finetune.errors import DataError

MAX_JSON = 128 * 2**20  # characters of a JSON file, which is held in memory; JSONL has no limit
MAX_JSON_VALUES = 2**22  # values of a JSON file, about; each takes up to 100 bytes
_SAMPLE_ROWS = 1_000  # whose keys are the columns


class JsonTable(Table):
    """A table whose rows are JSON objects; the keys of the first ones are its columns.

    Args:
        lines: whether each line is an object; a file that is none of JSON is tried as such too.
    """

    def __init__(self, path: Path, name: str, encoding: str, lines: bool) -> None:
        super().__init__()
        self._path, self._name, self._encoding = path, name, encoding
        self._items: list[Any] | None = None
        problem = f"{name} has no line that is a JSON object."
        if not lines:
            try:
                self._items = self._parse()
                problem = f"{name} has no list of objects."
            except ValueError as error:
                problem = f"{name} is not JSON: {error}."
        records = islice(self.records(lambda line, reason: None), _SAMPLE_ROWS)
        names = dict.fromkeys(key for _, record in records for key in record)
        self.columns = list(names)[: table_files.MAX_COLUMNS]
        if not self.columns:
            example = '{"sentence1": ..., "sentence2": ..., "label": ...}'
            raise DataError(problem, f"Write {example} a line, or [{example}, ...].")

    def _parse(self) -> list[Any]:
        """The list in the file; empty where it holds another value.

        Raises:
            ValueError: when it is not JSON.
        """
        file = table_files.open_bytes(self._path, self._name)
        with io.TextIOWrapper(file, encoding=self._encoding, errors="replace") as text_file:
            text = text_file.read(MAX_JSON + 1)
        if len(text) > MAX_JSON or sum(map(text.count, "[{,")) > MAX_JSON_VALUES:
            raise DataError(
                f"{self._name} has more JSON than is held in memory: at most "
                f"{MAX_JSON // 2**20} MiB and {MAX_JSON_VALUES:,} values.",
                "Save it as JSONL, CSV or Parquet.",
            )
        value = json_files.parse(text)
        return value if isinstance(value, list) else []

    def _values(self, on_bad_row: OnBadRow) -> Iterator[tuple[int, Any]]:
        if self._items is not None:
            yield from enumerate(self._items, 1)
            return
        for number, line in numbered_lines(self._path, self._name, self._encoding, on_bad_row):
            if line.strip():
                try:
                    value = json_files.parse(line)
                except ValueError as error:
                    on_bad_row(number, f"is not JSON: {error}")
                else:
                    yield number, value

    def records(self, on_bad_row: OnBadRow) -> Iterator[tuple[int, dict[str, Any]]]:
        for line, value in self._values(on_bad_row):
            if isinstance(value, dict):
                yield line, value
            else:
                on_bad_row(line, "is not a JSON object")

    def rows(self, columns: Sequence[str], on_bad_row: OnBadRow) -> Iterator[Row]:
        for line, record in self.records(on_bad_row):
            cells = [record.get(name) for name in columns]
            if any(isinstance(cell, (dict, list)) for cell in cells):
                on_bad_row(line, "has a list or an object where a text or number is read")
            elif any(map(table_files.is_too_long, cells)):
                on_bad_row(line, f"has more than {table_files.MAX_FIELD:,} characters in a cell")
            else:
                yield line, cells
