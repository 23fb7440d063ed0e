"""The first rows of a person's own file, seconds before anything can be said of the whole of it.

As they stand in it: no column is chosen, no label understood, nothing hashed. Free of the libraries
that load slowly; that is what it is for. What is wrong with pairs is `examination`'s business.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from finetune.config import BUNDLED_DATASET, RunConfig, is_upload
from finetune.data import catalog, tables, uploads
from finetune.errors import FinetuneError

ROWS, COLUMNS = 5, 12
MAX_CELL_CHARACTERS = 120  # characters of a cell


@dataclass(frozen=True)
class FirstRows:
    """What is seen first.

    Args:
        source: the file's name.
        columns: the first ones' names.
        rows: line and cells of the first rows, in the order of the columns.
        more: columns beyond those.
    """

    source: str
    columns: list[str] = field(default_factory=list)
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    more: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FirstRows:
        """The glance of a parsed file.

        Raises:
            TypeError, KeyError, ValueError: when it is of another version.
        """
        known = dict(values)
        known["rows"] = [(int(line), list(cells)) for line, cells in known["rows"]]
        return cls(**known)


def read_first_rows(chosen: RunConfig, root: Path) -> FirstRows | None:
    """The first training rows of an upload or the bundled pairs.

    Args:
        root: as for `data.load`.

    Returns:
        None for what lies elsewhere, and for what cannot be read: the examination will say why.
    """
    with contextlib.suppress(FinetuneError, OSError, ValueError):
        found = training_file(chosen, root)
        if found is None:
            return None
        path, name = found
        whole = name.lower().removesuffix(".gz").endswith(".json")  # is read whole to be opened
        if whole and path.stat().st_size > _MOST_JSON:
            return None
        table = tables.open_table(path, name)
        columns = table.columns[:COLUMNS]
        rows = islice(table.rows(columns, lambda line, reason: None), ROWS)
        shown = [(line, [_cell(cell) for cell in cells]) for line, cells in rows]
        return FirstRows(name, columns, shown, len(table.columns) - len(columns))
    return None


def training_file(chosen: RunConfig, root: Path) -> tuple[Path, str] | None:
    """The training file and what its owner calls it; None where the pairs are no file here.

    Raises:
        DataError: when the upload is gone.
    """
    if chosen.dataset == BUNDLED_DATASET:
        return catalog.BUNDLED_PAIRS / "train.csv", "train.csv"
    if not is_upload(chosen.dataset):
        return None
    kept = uploads.Uploads(root / "uploads")
    path = kept.files(chosen.dataset)["train"]
    return path, kept.called(chosen.dataset).get("train", path.name)


_MOST_JSON = 20 * 2**20


def _cell(cell: Any) -> str:
    text = "" if cell is None else str(cell)
    return text if len(text) <= MAX_CELL_CHARACTERS else text[: MAX_CELL_CHARACTERS - 1] + "\u2026"
