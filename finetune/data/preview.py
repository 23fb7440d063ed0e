"""A few rows of what was read, for a person to look at: the first, random ones, of one class, or
those with a word in them. Knows no page.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finetune.data import dataset_cache
from finetune.data.check_report import Example
from finetune.errors import DataError

MAX_ROWS = 50
MAX_SENTENCE_CHARACTERS = 400  # characters of a sentence


class Preview:
    """The rows of one corpus.

    Args:
        folder: what `corpus.read` made.

    Raises:
        DataError: when it is gone.
    """

    def __init__(self, folder: Path) -> None:
        found = dataset_cache.load_cached(folder)
        if found is None:
            raise DataError("What was read of these pairs is gone.", "Press Examine again.")
        self._corpus = found

    def rows(
        self, split: str, how: str = "first", what: str = "", count: int = 10, seed: int = 0
    ) -> list[Example]:
        """Some rows of a split.

        Args:
            how: `first`, `random`, `class` (the class `what`) or `search` (texts with `what`).
            seed: of the random choice.

        Raises:
            DataError: when there is no such split, class or way.
        """
        found = self._corpus
        if split not in found.rows:
            raise DataError(f"There is no split {split!r}.", f"It has {', '.join(found.rows)}.")
        count = min(count, MAX_ROWS)
        if how == "random":
            size = found.rows[split]
            draw = np.random.default_rng(seed)
            rows = np.sort(draw.choice(size, min(count, size), replace=False)).astype(np.int64)
            batches: Iterator[pa.RecordBatch] = found.some(split, rows)
        elif how == "class":
            if what not in found.labels:
                raise DataError(f"There is no class {what!r}.", "Choose one of the list.")
            index = found.labels.index(what)
            batches = (b.filter(pc.equal(b.column("label"), index)) for b in found.batches(split))
        elif how == "search":
            batches = (b.filter(self._has(b, what)) for b in found.batches(split))
        else:
            batches = found.batches(split)
        return self._shown(split, batches, count)

    def _has(self, batch: pa.RecordBatch, what: str) -> Any:
        def inside(name: str) -> Any:
            return pc.match_substring(batch.column(name), what, ignore_case=True).fill_null(False)

        if not self._corpus.paired:
            return inside("sentence1")
        return pc.or_(inside("sentence1"), inside("sentence2"))

    def _shown(self, split: str, batches: Iterator[pa.RecordBatch], count: int) -> list[Example]:
        shown: list[Example] = []
        for batch in batches:
            for row in batch.slice(0, count - len(shown)).to_pylist():
                label = row["label"]
                shown.append(
                    Example(
                        split=split,
                        line=row["line"],
                        sentence1=(row["sentence1"] or "")[:MAX_SENTENCE_CHARACTERS],
                        sentence2=(row.get("sentence2") or "")[:MAX_SENTENCE_CHARACTERS],
                        label=self._corpus.labels[label] if label >= 0 else "",
                    )
                )
            if len(shown) >= count:
                break
        return shown
