"""Which pairs a run has seen: numbers of its training and validation pairs, in its folder.

    seen/train        the training pairs, sorted, 8 bytes each (little-endian)
    seen/validation   the validation pairs, by which the kept model is chosen

Written by the worker when training starts, for `batch` to say which rows of a file say nothing of
new pairs. The numbers (`hashes`) are of texts, so that they stay here: `best/`, which is taken
away and pushed, has none of them. A run of before there were any has no such files.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune import text_hashes
from finetune.runs.run import Run
from finetune.text_hashes import Integers

SPLITS = ("train", "validation")
_KIND = np.dtype("<i8")
_BLOCK = 2**16  # numbers held at once; a million pairs are 8 MB, which no reader need hold


@dataclass(frozen=True)
class PairIndex:
    """The pairs of a run, on disk.

    Args:
        folder: a file a split.
    """

    folder: Path

    def among(self, split: str, numbers: Integers) -> NDArray[np.bool_]:
        """Which pairs are in a split, of shape (pairs,).

        The file is read past, a block at a time: 5 ms for 4,096 pairs among a million.

        Args:
            numbers: of `pairs`.

        Raises:
            OSError: when the file cannot be read any more.
        """
        found = np.zeros(len(numbers), bool)
        with (self.folder / split).open("rb") as file:
            while len(block := np.fromfile(file, _KIND, _BLOCK)):
                at = np.minimum(np.searchsorted(block, numbers), len(block) - 1)
                found |= block[at] == numbers
        return found


def write_pair_index(run: Run, numbers: Mapping[str, Integers]) -> None:
    """Write down what a run will have seen.

    Args:
        numbers: split (of `SPLITS`) -> a number a pair, the same in either order.

    Raises:
        OSError: when the disk is full or the run's folder is gone, which is not made again.
    """
    folder = _folder(run)
    folder.mkdir(exist_ok=True)
    for split in SPLITS:
        aside = folder / f".{split}.{secrets.token_hex(4)}"
        try:
            np.unique(numbers[split]).astype(_KIND).tofile(aside)
            os.replace(aside, folder / split)
        finally:
            aside.unlink(missing_ok=True)


def read_pair_index(run: Run) -> PairIndex | None:
    """What a run has seen; None where it was not written down, or not to its end."""
    folder = _folder(run)
    try:
        whole = all((folder / split).stat().st_size % _KIND.itemsize == 0 for split in SPLITS)
    except OSError:
        return None
    return PairIndex(folder) if whole else None


def pair_hashes(first: Sequence[Any], second: Sequence[Any] | None) -> Integers:
    """A number a pair, the same in either order and as the examination compares them.

    Args:
        first, second: cells of a file, as many of both; `second` None for single sentences.
    """
    one = _numbers(first)
    return text_hashes.unordered_pair_hash(
        one, np.zeros_like(one) if second is None else _numbers(second)
    )


def _numbers(cells: Sequence[Any]) -> Integers:
    found = (text_hashes.text_hash(text_hashes.clean_sentence(cell)) for cell in cells)
    return np.fromiter(found, np.int64, len(cells))


def _folder(run: Run) -> Path:
    return run.folder / "seen"
