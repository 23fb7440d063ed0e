"""Opens the files people have as tables: CSV, TSV, JSONL, JSON and Parquet, gzipped or not.

The app's own process calls this in a child with limits (`environment.child_process`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from finetune.data import table_files
from finetune.data.table_files import OnBadRow, Table
from finetune.data.text_tables import CsvTable, JsonTable
from finetune.errors import DataError
from finetune.messages import message as _

_BATCH_ROWS, _BATCH_BYTES = 10_000, 2**24  # of a Parquet file, decoded together
_MAGIC = {
    b"PK\x03\x04": _("a zip archive or an Excel workbook"),
    b"\xd0\xcf\x11\xe0": _("an old Excel workbook"),
}


def open_table(path: Path, name: str = "") -> Table:
    """Open a file as a table, by its contents and the ending of its path.

    Args:
        name: how errors call it; the name of `path` by default.

    Raises:
        DataError: when it is empty, not a table, or unpacks to too much.
    """
    name = name or path.name
    ending = path.name.lower().removesuffix(".gz")
    try:
        with table_files.open_bytes(path, name) as file:
            head = file.read(2**16)
        if not head.strip(b"\0\r\n\t \xef\xbb\xbf"):
            raise DataError("{name} is empty.", "Upload a file with a header and rows.", name=name)
        for magic, kind in _MAGIC.items():
            if head.startswith(magic):
                raise DataError(
                    "{name} is {kind}, not a table of text.",
                    "Save it as CSV and upload that.",
                    name=name,
                    kind=kind,
                )
        if ending.endswith(".parquet") and not head.startswith(b"PAR1"):
            raise DataError(
                "{name} is not a Parquet file.", "Write it again, or upload CSV.", name=name
            )
        table: Table
        if head.startswith(b"PAR1"):
            table = _ParquetTable(path, name)
        else:
            encoding, notes = table_files.detect_encoding(path, name)
            if ending.endswith((".json", ".jsonl", ".ndjson")):
                table = JsonTable(path, name, encoding, lines=not ending.endswith(".json"))
            else:
                table = CsvTable(path, name, encoding, tab=ending.endswith(".tsv"))
            table.notes = notes + table.notes
    except (OSError, EOFError, pa.ArrowException) as error:
        raise DataError(
            "{name} cannot be read: {error}", "Upload it again.", name=name, error=error
        ) from error
    if (count := len(table.columns)) > table_files.MAX_COLUMNS:
        raise DataError(
            "{name} has {count:,} columns; at most {max_columns:,} are read.",
            "Keep the columns of the sentences and the label.",
            name=name,
            count=count,
            max_columns=table_files.MAX_COLUMNS,
        )
    return table


def usable_columns(path: str, name: str) -> list[str]:
    """The columns of a file that can be sentences or labels; raises as `open_table`."""
    table = open_table(Path(path), name)
    return [column for column in table.columns if column not in table.unusable]


class _ParquetTable(Table):
    """Apache Parquet; nested columns and those of fixed binary values are not read.

    Its encodings store a value once for many rows, so a small file can need much memory: texts are
    read as dictionaries, whose rows share their values.
    """

    def __init__(self, path: Path, name: str) -> None:
        super().__init__()
        self._path, self._name = path, name
        self._metadata = pq.read_metadata(path)
        self._leaves = list(map(self._metadata.schema.column, range(self._metadata.num_columns)))
        self._check_size(path.stat().st_size)
        self.schema = pq.read_schema(path)
        self.columns = list(self.schema.names)
        for field in self.schema:
            if pa.types.is_nested(field.type) or pa.types.is_fixed_size_binary(field.type):
                self.unusable[field.name] = f"is nested or binary ({str(field.type)[:60]})"
        if len(set(self.columns)) < len(self.columns):
            raise DataError(
                "{name} has two columns of the same name.", "Rename one of them.", name=name
            )

    def _check_size(self, packed: int) -> None:
        """Raise DataError where the file unpacks to far more than text does, or has an encoding
        whose memory is not known before it is decoded."""
        unpacked = 0
        for group in map(self._metadata.row_group, range(self._metadata.num_row_groups)):
            for column in map(group.column, range(len(self._leaves))):
                unpacked += max(column.total_uncompressed_size, column.num_values)
                if "DELTA_BYTE_ARRAY" in column.encodings:
                    raise DataError(
                        "{name} has the column {column!r} in the encoding DELTA_BYTE_ARRAY.",
                        "Leave it out, or write it in another encoding.",
                        name=self._name,
                        column=column.path_in_schema[:60],
                    )
        table_files.check_unpacked_size(self._name, unpacked, packed)

    def rows(
        self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        if columns is None:
            columns = [name for name in self.columns if name not in self.unusable]
        for line, cells in enumerate(self._cells(columns), 1):
            if any(map(table_files.is_too_long, cells)):
                on_bad_row(
                    line,
                    _(
                        "has more than {max_field:,} characters in a cell",
                        max_field=table_files.MAX_FIELD,
                    ),
                )
            else:
                yield line, dict(zip(columns, cells, strict=True))

    def _cells(self, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        texts = [leaf.path for leaf in self._leaves if leaf.physical_type == "BYTE_ARRAY"]
        groups = list(map(self._metadata.row_group, range(self._metadata.num_row_groups)))
        try:
            with pq.ParquetFile(self._path, metadata=self._metadata, read_dictionary=texts) as file:
                for index, group in enumerate(groups):
                    row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
                    size = max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes))
                    for batch in file.iter_batches(size, row_groups=[index], columns=list(columns)):
                        values = [_values(batch.column(name)) for name in columns]
                        yield from zip(*values, strict=True)
        except (OSError, OverflowError, ValueError, pa.ArrowException) as error:
            raise DataError(
                "{name} cannot be read to its end: {error}",
                "Upload it again.",
                name=self._name,
                error=error,
            ) from error


def _values(array: pa.Array) -> list[Any]:
    """The values of a column; rows with the same text share one."""
    if not pa.types.is_dictionary(array.type):
        return list(array.to_pylist())
    codes, positions = np.unique(array.indices.fill_null(-1).to_numpy(), return_inverse=True)
    texts = array.dictionary.take(pa.array(codes, mask=codes < 0)).to_pylist()
    return [texts[position] for position in positions]
