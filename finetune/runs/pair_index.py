"""Index of the pairs that a run has seen: hashes of its training and validation pairs.

    seen/train        the training pairs, sorted, 8 bytes each (little-endian)
    seen/validation   the validation pairs, by which the best model is chosen

The hashes never leave the machine: `best/`, which is pushed, does not contain them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune import disk, text_hashes
from finetune.runs.run import Run
from finetune.text_hashes import Integers

SPLITS = ("train", "validation")
_HASH = np.dtype("<i8")


@dataclass(frozen=True)
class PairIndex:
    """The hashes of a run's pairs by split, sorted."""

    hashes: dict[str, Integers]

    def among(self, split: str, hashes: Integers) -> NDArray[np.bool_]:
        """Mask of the pairs that are in a split, shape (pairs,), from their `pair_hashes`."""
        positions = np.searchsorted(self.hashes[split], hashes)
        return np.searchsorted(self.hashes[split], hashes, "right") > positions


def write_pair_index(run: Run, hashes: Mapping[str, Integers]) -> None:
    """Write the `pair_hashes` of each of the `SPLITS` to the run's folder."""
    folder = run.folder / "seen"
    folder.mkdir(exist_ok=True)
    for split in SPLITS:
        with disk.replacing(folder / split) as new:
            np.unique(hashes[split]).astype(_HASH).tofile(new)


def read_pair_index(run: Run) -> PairIndex | None:
    """Read the index of the pairs that a run has seen; None if there is none."""
    try:
        return PairIndex({name: np.fromfile(run.folder / "seen" / name, _HASH) for name in SPLITS})
    except OSError:
        return None


def pair_hashes(first: Sequence[Any], second: Sequence[Any] | None) -> Integers:
    """Hash each pair of a file's cells, the same in either order, as the data checks do. `second`
    is None for single sentences."""
    return text_hashes.unordered_pair_hash(*text_hashes.row_hashes(first, second))
