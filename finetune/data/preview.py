"""Rows for a person to look at: the first of a file at once, or chosen ones of a cached dataset.

The first rows are shown as they stand in the file, before all of it is read and checked.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finetune import uploads
from finetune.config import BUNDLED_DATASET, RunConfig, is_upload
from finetune.data import catalog, tables
from finetune.data.check_report import Example, example_of, shorten
from finetune.errors import DataError, FinetuneError

FIRST_ROWS, FIRST_COLUMNS = 5, 12
MAX_CELL_CHARACTERS = 120
MAX_ROWS = 50
MAX_SENTENCE_CHARACTERS = 400
_MAX_JSON_BYTES = 20 * 2**20  # JSON is parsed whole, which takes seconds for larger files


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a file."""

    source: str  # the file's name
    columns: list[str] = field(default_factory=list)  # the first ones
    rows: list[tuple[int, list[str]]] = field(default_factory=list)  # line and cells
    more: int = 0  # further columns

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FirstRows:
        """The rows of a parsed file.

        Raises:
            TypeError, KeyError, ValueError: when it was written by another version.
        """
        rows = [(int(line), list(cells)) for line, cells in values["rows"]]
        return cls(**{**values, "rows": rows})


def read_first_rows(config: RunConfig, root: Path) -> FirstRows | None:
    """The first training rows of an upload or of the bundled pairs; None for Hub datasets, and
    for what cannot be read: the checks will say why."""
    with contextlib.suppress(FinetuneError, OSError, ValueError):
        if config.dataset == BUNDLED_DATASET:
            path, name = catalog.BUNDLED_PAIRS / "train.csv", "train.csv"
        elif is_upload(config.dataset):
            kept = uploads.Uploads(root / "uploads")
            path = kept.files(config.dataset)["train"]
            name = kept.file_names(config.dataset).get("train", path.name)
        else:
            return None
        is_json = name.lower().removesuffix(".gz").endswith(".json")
        if is_json and path.stat().st_size > _MAX_JSON_BYTES:
            return None
        table = tables.open_table(path, name)
        columns = table.columns[:FIRST_COLUMNS]
        rows = islice(table.rows(columns, lambda line, reason: None), FIRST_ROWS)
        shown = [
            (
                line,
                ["" if cell is None else shorten(str(cell), MAX_CELL_CHARACTERS) for cell in cells],
            )
            for line, cells in rows
        ]
        return FirstRows(name, columns, shown, len(table.columns) - len(columns))
    return None


def preview_rows(
    folder: Path, split: str, how: str = "first", query: str = "", count: int = 10, seed: int = 0
) -> list[Example]:
    """Some rows of a split of a cached dataset.

    Args:
        folder: of the cached dataset.
        how: `first`, `random`, `class` (the class `query`) or `search` (texts with `query`).
        seed: of the random choice.

    Raises:
        DataError: when the dataset is gone, or has no such split or class.
    """
    from finetune.data import dataset_cache

    dataset = dataset_cache.load_cached(folder)
    if dataset is None:
        raise DataError("What was read of these pairs is gone.", "Press Examine again.")
    if split not in dataset.rows:
        raise DataError(f"There is no split {split!r}.", f"It has {', '.join(dataset.rows)}.")
    count = min(count, MAX_ROWS)
    batches = dataset.batches(split)
    if how == "random":
        size = dataset.rows[split]
        rows = np.random.default_rng(seed).choice(size, min(count, size), replace=False)
        batches = dataset.select(split, np.sort(rows).astype(np.int64))
    elif how == "class":
        if query not in dataset.labels:
            raise DataError(f"There is no class {query!r}.", "Choose one of the list.")
        label = dataset.labels.index(query)
        batches = (batch.filter(pc.equal(batch.column("label"), label)) for batch in batches)
    elif how == "search":
        columns = dataset.sentence_columns
        batches = (batch.filter(_contains(batch, columns, query)) for batch in batches)
    return [
        example_of(row, split, dataset.labels, MAX_SENTENCE_CHARACTERS)
        for row in islice(_records(batches, count), count)
    ]


def _contains(batch: pa.RecordBatch, columns: list[str], text: str) -> pa.Array:
    masks = [
        pc.match_substring(batch.column(name), text, ignore_case=True).fill_null(False)
        for name in columns
    ]
    return masks[0] if len(masks) == 1 else pc.or_(*masks)


def _records(batches: Iterator[pa.RecordBatch], count: int) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.slice(0, count).to_pylist()
