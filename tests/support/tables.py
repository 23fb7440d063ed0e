"""The same rows as a file of any format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support import toys


def write_labelled(
    path: Path, columns: Sequence[str], cells: Sequence[Sequence[Any]], count: int = 48
) -> None:
    """Write texts beside the cells of these columns, which are repeated, by the path's ending."""
    texts = [f"{first} {n} and {second}" for n, (first, second, _) in enumerate(toys.rows(count))]
    rows = [[text, *own] for text, own in zip(texts, islice(cycle(cells), count), strict=True)]
    names = ["text", *columns]
    records = [dict(zip(names, row, strict=True)) for row in rows]
    frame = pd.DataFrame(rows, columns=names, dtype=object)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".xlsx":
        frame.to_excel(path, index=False)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
