"""Rows for a person to look at: the first of a file at once, or chosen ones of a cached dataset.

The first rows are shown as they stand in the file, before all of it is read and checked.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, field
from itertools import islice
from pathlib import Path

import numpy as np
from pydantic.dataclasses import dataclass

from finetune import uploads
from finetune.config import BUNDLED_DATASET, RunConfig, is_upload
from finetune.data import catalog, table_files, tables
from finetune.data.check_report import Example, shorten
from finetune.errors import DataError, FinetuneError

FIRST_ROWS, FIRST_COLUMNS = 5, 12
CELL_CHARACTERS, SENTENCE_CHARACTERS = 120, 400
PREVIEW_ROWS = 10


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a file."""

    source: str  # the file's name
    columns: list[str] = field(default_factory=list)  # the first ones
    rows: list[tuple[int, list[str]]] = field(default_factory=list)  # line and cells
    more: int = 0  # further columns

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


def read_first_rows(config: RunConfig, root: Path) -> FirstRows | None:
    """The first training rows of an upload or of the bundled pairs; None for Hub datasets, and
    for what cannot be read: the checks will say why."""
    with contextlib.suppress(FinetuneError, OSError, ValueError):
        if config.dataset == BUNDLED_DATASET:
            path, name = catalog.BUNDLED_PAIRS / "train.csv", "train.csv"
        elif is_upload(config.dataset):
            stored = uploads.Uploads(root / "uploads")
            path = stored.files(config.dataset)["train"]
            name = stored.file_names(config.dataset).get("train", path.name)
        else:
            return None
        table = tables.open_table(path, name)
        usable = [column for column in table.columns if column not in table.unusable]
        columns = usable[:FIRST_COLUMNS]
        rows = [
            (line, [_shown(cell) for cell in row.values()])
            for line, row in islice(table.rows(lambda *bad_row: None, columns), FIRST_ROWS)
        ]
        return FirstRows(name, columns, rows, len(table.columns) - len(columns))
    return None


def _shown(cell: object) -> str:
    text = table_files.to_plain_value(cell)
    return "" if text is None else shorten(str(text), CELL_CHARACTERS)


def preview_rows(
    folder: Path, split: str, order: str = "first", query: str = "", seed: int = 0
) -> list[Example]:
    """Some rows of a split of a cached dataset.

    Args:
        folder: of the cached dataset.
        order: `first`, `random`, `class` (the class `query`) or `search` (texts with `query`).
        seed: of the random order.

    Raises:
        DataError: when the dataset is gone, or has no such split or class.
    """
    from finetune.data import dataset_cache

    dataset = dataset_cache.load_cached(folder)
    if dataset is None:
        raise DataError("What was read of these pairs is gone.", "Press Examine again.")
    if split not in dataset.rows:
        raise DataError(
            "There is no split {split!r}.",
            "It has {rows}.",
            split=split,
            rows=", ".join(dataset.rows),
        )
    rows = np.arange(dataset.rows[split])
    if order == "random":
        size = min(PREVIEW_ROWS, len(rows))
        rows = np.sort(np.random.default_rng(seed).choice(rows, size, replace=False))
    elif order == "class":
        if query not in dataset.labels:
            raise DataError("There is no class {query!r}.", "Choose one of the list.", query=query)
        rows = np.flatnonzero(dataset.hashes(split).label == dataset.labels.index(query))
    elif order == "search":
        rows = dataset.search(split, query)
    return dataset.examples_of(split, rows[:PREVIEW_ROWS], SENTENCE_CHARACTERS)
