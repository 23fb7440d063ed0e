"""Index of the pairs that a run has seen: hashes of its training and validation pairs.

    seen/train        the training pairs, sorted, 8 bytes each (little-endian)
    seen/validation   the validation pairs, by which the best model is chosen
    seen/sentences    the sentences of the training pairs; runs of former versions have none

The hashes never leave the machine: `best/`, which is pushed, does not contain them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune import disk, text_hashes
from finetune.runs.run import Run
from finetune.text_hashes import Integers

SPLITS = ("train", "validation")
SENTENCES = "sentences"
_HASH = np.dtype("<i8")


@dataclass(frozen=True)
class PairIndex:
    """The hashes of a run's pairs by split, and of its training sentences, sorted."""

    hashes: dict[str, Integers]

    def among(self, split: str, hashes: Integers) -> NDArray[np.bool_]:
        """Mask of the pairs that are in a split, shape (pairs,), from their `pair_hashes`."""
        positions = np.searchsorted(self.hashes[split], hashes)
        return np.searchsorted(self.hashes[split], hashes, "right") > positions

    def shares(self, first: Sequence[Any], second: Sequence[Any] | None) -> NDArray[np.bool_]:
        """Mask of the rows, of shape (rows,), with a sentence that was in a training pair; of none
        if the sentences were not kept."""
        rows = text_hashes.row_hashes(first, second)
        if SENTENCES not in self.hashes:
            return np.zeros(rows.shape[1], bool)
        first_seen, second_seen = (self.among(SENTENCES, side) & (side != 0) for side in rows)
        found: NDArray[np.bool_] = first_seen | second_seen
        return found


def write_pair_index(run: Run, hashes: Mapping[str, Integers]) -> None:
    """Write the `pair_hashes` of each of the `SPLITS`, and the `SENTENCES`, to the run's folder."""
    folder = run.folder / "seen"
    folder.mkdir(exist_ok=True)
    for name, values in hashes.items():
        with disk.replacing(folder / name) as new:
            np.unique(values).astype(_HASH).tofile(new)


def read_pair_index(run: Run) -> PairIndex | None:
    """Read the index of the pairs that a run has seen; None if there is none."""
    folder = run.folder / "seen"
    names = [*SPLITS, *([SENTENCES] if (folder / SENTENCES).exists() else [])]
    try:
        return PairIndex({name: np.fromfile(folder / name, _HASH) for name in names})
    except OSError:
        return None


def pair_hashes(first: Sequence[Any], second: Sequence[Any] | None = None) -> Integers:
    """Hash each pair of a file's cells, the same in either order, as the data checks do. `second`
    is None for single sentences."""
    return text_hashes.unordered_pair_hash(*text_hashes.row_hashes(first, second))
