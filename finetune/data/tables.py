"""Opens the files people have as tables: CSV, TSV, JSONL, JSON and Parquet, gzipped or not.

The app's own process calls this in a child with limits (`environment.child_process`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from finetune.data import table_files
from finetune.data.csv_tables import CsvTable
from finetune.data.json_tables import JsonLinesTable, open_json
from finetune.data.table_files import OnBadRow, Row, Table, first_line
from finetune.errors import DataError

MAX_DECODED = 2**24  # bytes of Parquet rows that are decoded together
_BATCH = 10_000  # rows
_MAGIC = {
    b"PK\x03\x04": "a zip archive or an Excel workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"%PDF": "a PDF",
}


def open_table(path: Path, name: str = "") -> Table:
    """Open a file as a table, by its contents and the ending of its name.

    Args:
        name: how errors call it; the name of `path` by default.

    Raises:
        DataError: when it is empty, not a table, or unpacks to too much.
    """
    name = name or path.name
    ending = path.name.lower().removesuffix(".gz")
    try:
        with table_files.open_bytes(path, name) as file:
            head = file.read(table_files.BLOCK)
        if not head.strip(b"\0\r\n\t \xef\xbb\xbf"):
            raise DataError(f"{name} is empty.", "Upload a file with a header and rows.")
        if head.startswith(b"PAR1"):
            return _ParquetTable(path, name)
        for magic, kind in _MAGIC.items():
            if head.startswith(magic):
                raise DataError(
                    f"{name} is {kind}, not a table of text.", "Save it as CSV and upload that."
                )
        if ending.endswith(".parquet"):
            raise DataError(f"{name} is not a Parquet file.", "Write it again, or upload CSV.")
        encoding, notes = table_files.detect_encoding(path, name, head)
        table: Table
        if ending.endswith(".json"):
            table = open_json(path, name, encoding)
        elif ending.endswith((".jsonl", ".ndjson")):
            table = JsonLinesTable(path, name, encoding)
        else:
            table = CsvTable(path, name, encoding, tab=ending.endswith(".tsv"))
        table.notes = notes + table.notes
        return table
    except (OSError, EOFError, pa.ArrowException) as error:
        raise DataError(
            f"{name} cannot be read: {first_line(error)}", "Upload it again."
        ) from error


def usable_columns(path: str, name: str) -> list[str]:
    """The columns of a file that can be sentences or labels.

    Args, Raises: as `open_table`.
    """
    table = open_table(Path(path), name)
    return [column for column in table.columns if column not in table.unusable]


class _ParquetTable(Table):
    """Apache Parquet; nested columns cannot be sentences or labels.

    Its encodings store a value once for many rows, so a small file can need much memory: texts are
    read as dictionaries and decoded in parts of at most `MAX_DECODED` bytes.
    """

    def __init__(self, path: Path, name: str) -> None:
        super().__init__()
        self._path, self._name = path, name
        self._metadata = pq.read_metadata(path)
        self._leaves = [
            self._metadata.schema.column(index) for index in range(self._metadata.num_columns)
        ]
        self._check(path.stat().st_size)
        self.schema = pq.read_schema(path)
        self.columns = list(self.schema.names)
        for field in self.schema:
            if pa.types.is_nested(field.type):
                self.unusable[field.name] = f"is nested ({str(field.type)[:60]})"
        if len(set(self.columns)) < len(self.columns):
            raise DataError(f"{name} has two columns of the same name.", "Rename one of them.")

    def _check(self, packed: int) -> None:
        """Raise DataError where the file unpacks to far more than text does, has too many
        columns, or an encoding whose memory is not known before it is decoded."""
        table_files.check_column_count(len(self._leaves), self._name)
        unpacked = 0
        for group in range(self._metadata.num_row_groups):
            for index, leaf in enumerate(self._leaves):
                column = self._metadata.row_group(group).column(index)
                values = column.num_values * max(1, leaf.length)
                unpacked += max(column.total_uncompressed_size, values)
                if "DELTA_BYTE_ARRAY" in column.encodings:
                    raise DataError(
                        f"{self._name} has the column {leaf.path[:60]!r} in the encoding "
                        "DELTA_BYTE_ARRAY.",
                        "Leave it out, or write it in another encoding.",
                    )
        if unpacked > MAX_DECODED and unpacked > table_files.MAX_RATIO * packed:
            raise table_files.unpacks_too_far(self._name, unpacked, packed)

    def rows(self, columns: Sequence[str], on_bad_row: OnBadRow) -> Iterator[Row]:
        for line, cells in self._typed_rows(columns, on_bad_row):
            yield line, [table_files.to_plain_value(cell) for cell in cells]

    def records(self, on_bad_row: OnBadRow) -> Iterator[tuple[int, dict[str, Any]]]:
        for line, cells in self._typed_rows(self.columns, on_bad_row):
            yield line, dict(zip(self.columns, cells, strict=True))

    def _typed_rows(self, columns: Sequence[str], on_bad_row: OnBadRow) -> Iterator[Row]:
        row_count = 0
        for batch in self._batches(list(dict.fromkeys(columns))):
            selected = pa.record_batch([batch.column(name) for name in columns], list(columns))
            for part in _split(selected):
                yield from _python_rows(part, row_count + 1, on_bad_row)
                row_count += len(part)

    def _batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        texts = [
            leaf.path
            for leaf in self._leaves
            if leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type != "DECIMAL"
        ]
        fixed_bytes = sum(max(0, leaf.length) for leaf in self._leaves)
        try:
            with pq.ParquetFile(self._path, metadata=self._metadata, read_dictionary=texts) as file:
                for index in range(self._metadata.num_row_groups):
                    group = self._metadata.row_group(index)
                    row_bytes = fixed_bytes + group.total_byte_size / max(1, group.num_rows)
                    size = max(1, min(_BATCH, int(MAX_DECODED / max(1.0, row_bytes))))
                    yield from file.iter_batches(size, row_groups=[index], columns=columns)
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{self._name} cannot be read to its end: {first_line(error)}", "Upload it again."
            ) from error


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in parts of at most `MAX_DECODED` bytes, or of one row."""
    if len(batch) > 1 and sum(map(_decoded_bytes, batch.columns)) > MAX_DECODED:
        half = len(batch) // 2
        yield from _split(batch.slice(0, half))
        yield from _split(batch.slice(half))
    else:
        yield batch


def _decoded_bytes(array: pa.Array) -> int:
    """The memory of an array when the values of its dictionaries are repeated for every row."""
    if pa.types.is_dictionary(array.type):
        lengths = 0
        if not pa.types.is_primitive(array.type.value_type):
            lengths = pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0
        return 8 * len(array) + int(lengths)
    if pa.types.is_struct(array.type):
        return sum(map(_decoded_bytes, array.flatten()))
    if pa.types.is_map(array.type):  # has no kernel of `flatten`
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        sides = (array.keys.slice(start, end - start), array.items.slice(start, end - start))
        return sum(map(_decoded_bytes, sides))
    if pa.types.is_nested(array.type) and hasattr(array, "flatten"):
        return 8 * len(array) + _decoded_bytes(array.flatten())
    return int(array.nbytes)


def _decode(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _python_rows(batch: pa.RecordBatch, line: int, on_bad_row: OnBadRow) -> Iterator[Row]:
    """Number and cells of each row; a row with a value that Python cannot represent is reported.

    Args:
        line: number of the first row.
    """
    if len(batch) == 1 and sum(map(_decoded_bytes, batch.columns)) > MAX_DECODED:
        on_bad_row(line, f"has more than {MAX_DECODED // 2**20} MiB")
        return
    try:
        columns = [_decode(column).to_pylist() for column in batch.columns]
    except (OverflowError, ValueError, KeyError) as error:  # such as a year after 9999
        if len(batch) == 1:
            on_bad_row(line, f"has a value that cannot be read: {first_line(error)}")
            return
        for index in range(len(batch)):
            yield from _python_rows(batch.slice(index, 1), line + index, on_bad_row)
        return
    names = batch.schema.names
    for number, cells in enumerate(zip(*columns, strict=True), line):
        long = (
            name for name, cell in zip(names, cells, strict=True) if table_files.is_too_long(cell)
        )
        if (name := next(long, None)) is not None:
            on_bad_row(number, f"has more than {table_files.MAX_FIELD:,} characters as {name!r}")
        else:
            yield number, list(cells)
