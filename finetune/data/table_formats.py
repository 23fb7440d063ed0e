"""Open files as tables: CSV, TSV, JSONL, JSON, Parquet, workbooks, and texts
with marked labels.

The app's own process opens them in a child with limits (`environment.child_process`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from finetune import disk, messages
from finetune.data import delimited, json_tables, table, workbooks
from finetune.data.table import OnBadRow, ReadOptions, Rows, Table, open_bytes
from finetune.data.text_tables import TextTable
from finetune.errors import DataError
from finetune.messages import message as _

_LABEL = "__label__"  # before each label of a line
_LABELS = re.compile(rf"(?:^|(?<=[\s,])){_LABEL}([^\s,]+)")
_BATCH_ROWS, _BATCH_BYTES = 10_000, 2**24  # decoded together


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
            return ParquetTable(path, name)
        if head.startswith(workbooks.STARTS):
            return workbooks.WorkbookTable(path, name, options)
        if ending.endswith((".json", ".jsonl", ".ndjson")):
            return json_tables.JsonTable(path, name, options)
        if _are_labelled(head):
            return LabelledLines(path, name, options)
        return delimited.CsvTable(path, name, options, tab=ending.endswith(".tsv"))
    except (OSError, EOFError, pa.ArrowException) as error:
        if reason := getattr(error, "strerror", None):  # as for a file that does not exist
            raise DataError(
                "{name!r} cannot be read: {reason}.", name=name, reason=reason
            ) from error
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


class ParquetTable(Table):
    """Apache Parquet. Its encodings store a value once for many rows, so a small file can need much
    memory. Texts are therefore read as dictionaries, whose rows share their values."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, name)
        self._metadata = pq.read_metadata(path)
        # A file must not unpack to far more than text does, nor have an encoding whose memory is
        # unknown before decoding.
        unpacked = 0
        for group in map(self._metadata.row_group, range(self._metadata.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                unpacked += max(column.total_uncompressed_size, column.num_values)
                if "DELTA_BYTE_ARRAY" in column.encodings:
                    raise DataError(
                        "{name} has the column {column!r} in the encoding DELTA_BYTE_ARRAY.",
                        "Leave it out, or write it in another encoding.",
                        name=name,
                        column=column.path_in_schema[:60],
                    )
        table.check_unpacked_size(name, unpacked, path.stat().st_size)
        self._row_bytes = unpacked // max(1, self._metadata.num_rows) + 1
        self.schema, self.row_count = pq.read_schema(path), self._metadata.num_rows
        self.columns = list(self.schema.names)
        self._names = _class_names(self.schema)
        for number, field in enumerate(self.schema):
            if field.name in self._names:
                is_list = pa.types.is_nested(field.type)
                kind = pa.list_(pa.string()) if is_list else pa.string()
                self.schema = self.schema.set(number, field.with_type(kind))
        for field in self.schema:
            # Lists of fractions are no labels.
            of_fractions = pa.types.is_floating(getattr(field.type, "value_type", pa.null()))
            if pa.types.is_nested(field.type) and not of_fractions:
                self.nested.append(field.name)
            if pa.types.is_nested(field.type) or pa.types.is_fixed_size_binary(field.type):
                self.unusable[field.name] = f"is nested or binary ({str(field.type)[:60]})"

    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        if columns is None:
            columns = [name for name in self.columns if name not in self.unusable]
        for line, cells in enumerate(self._cells(list(columns)), 1):
            if any(map(table.is_too_long, cells)):
                on_bad_row(line, table.TOO_LONG)
            else:
                yield line, dict(zip(columns, cells, strict=True))

    def _cells(self, columns: list[str]) -> Iterator[tuple[Any, ...]]:
        leaves = map(self._metadata.schema.column, range(self._metadata.num_columns))
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        size = max(1, min(_BATCH_ROWS, _BATCH_BYTES // self._row_bytes))
        try:
            with pq.ParquetFile(self.path, metadata=self._metadata, read_dictionary=texts) as file:
                for batch in file.iter_batches(size, columns=columns):
                    yield from zip(*(self._values(batch, name) for name in columns), strict=True)
        except (OSError, OverflowError, ValueError, pa.ArrowException) as error:
            raise DataError(
                "{name} cannot be read to its end: {error}",
                "Upload it again.",
                name=self.name,
                error=error,
            ) from error

    def _values(self, batch: pa.RecordBatch, column: str) -> list[Any]:
        names, values = self._names.get(column), _values(batch.column(column))
        if names is None:
            return values

        def named(value: Any) -> Any:
            if isinstance(value, list):
                return [named(one) for one in value]
            return names.get(value) if isinstance(value, int) else value

        return [named(value) for value in values]


def _class_names(schema: pa.Schema) -> dict[str, dict[int, str]]:
    """The names of the classes of columns of numbers, as the library `datasets` writes them beside
    the columns. A number without a name, as -1, is no class."""
    found: Any = disk.parse_object((schema.metadata or {}).get(b"huggingface", b""))
    for part in ("info", "features"):
        found = found.get(part) if isinstance(found, dict) else None
    columns = {}
    for column, feature in found.items() if isinstance(found, dict) else ():
        while isinstance(feature, dict) and isinstance(feature.get("feature"), dict):
            feature = feature["feature"]  # of a list
        names = feature.get("names") if isinstance(feature, dict) else None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            columns[column] = dict(enumerate(names))
    return columns


def _values(array: pa.Array) -> list[Any]:
    """The values of a column; rows with the same text share one."""
    if not pa.types.is_dictionary(array.type):
        return list(array.to_pylist())
    codes, positions = np.unique(array.indices.fill_null(-1).to_numpy(), return_inverse=True)
    texts = array.dictionary.take(pa.array(codes, mask=codes < 0)).to_pylist()
    return [texts[position] for position in positions]


class LabelledLines(TextTable):
    """Lines of a text and its labels, which `__label__` marks, as fastText reads them."""

    def __init__(self, path: Path, name: str, options: ReadOptions) -> None:
        super().__init__(path, name, options)
        self.columns = ["label", "text"]
        self._several = any(len(_LABELS.findall(line)) > 1 for _n, line in self._lines())
        text = _(
            "Each line of {name} is a text and its labels, marked by {mark}.",
            name=self.name,
            mark=_LABEL,
        )
        self.notes.append(text)

    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        names = self.columns if columns is None else columns
        for number, line in self._lines(on_bad_row):
            labels, text = _LABELS.findall(line), _LABELS.sub("", line).strip(" ,\t\r\n")
            cells = {"label": labels if self._several else "".join(labels), "text": text}
            if labels or text:
                yield number, {name: cells[name] for name in names}


def _are_labelled(head: bytes) -> bool:
    """True if nearly every line of the beginning of a file has marked labels at an end."""
    lines = [line.strip() for line in head.splitlines()[:1000] if line.strip()]
    mark = _LABEL.encode()
    marked = [line.startswith(mark) or line.split()[-1].startswith(mark) for line in lines]
    return sum(marked) > 0.9 * len(lines)
