"""The same rows as a file of any format."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import openpyxl  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support import toys


def write_labelled(
    path: Path, columns: Sequence[str], cells: Sequence[Sequence[Any]], count: int = 48
) -> None:
    """Write texts beside the cells of these columns, which are repeated, by the path's ending."""
    texts = [f"{first} {n} and {second}" for n, (first, second, _) in enumerate(toys.rows(count))]
    rows = [
        [text, *own] for text, own in zip(texts, islice(cycle(cells), count), strict=True)
    ]  # fmt: skip
    names = ["text", *columns]
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            csv.writer(file, delimiter=delimiter).writerows([names, *rows])
        return
    if path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for row in [names, *rows]:
            book.active.append(row)
        book.save(path)
        return
    records = [dict(zip(names, row, strict=True)) for row in rows]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
