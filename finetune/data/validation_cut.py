"""Cut a validation split from training rows: each class by its share, equal pairs together."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from finetune.text_hashes import Integers, sentence_groups

if TYPE_CHECKING:
    from finetune.data.dataset_cache import RowHashes

# Parts of the wanted size that are tried, so that a few large groups do not decide the split.
_SIZES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


def cut_validation(keys: RowHashes, strata: Integers, share: float, seed: int) -> NDArray[np.bool_]:
    """Choose the rows of a validation split, a mask of shape (rows,).

    Each class gets its share of the split. Rows that share a sentence, directly or through others,
    stay together. If the split would then be less than half of the requested size, or its classes
    off
    by more than a row, only equal pairs stay together; if one pair is almost everything, no rows
    do.

    Args:
        keys: hashes of the rows.
        strata: of which each gets its share, such as classes; shape (rows,), from 0.
        share: of the rows, from 0 to 1.
        seed: fixes the choice.
    """
    if len(keys) < 2:
        return np.zeros(len(keys), bool)
    # At least a row of each class, but never all of one.
    rows = np.bincount(strata)
    wanted = np.where(rows > 1, np.maximum(1, np.round(rows * share)), 0).astype(np.int64)
    if not wanted.any():  # as many classes as rows
        wanted[strata[0]] = 1
    shares = wanted / wanted.sum()
    rng = np.random.default_rng(seed)
    linked = sentence_groups(keys.first, keys.second if keys.second.any() else keys.first)
    for size in _SIZES:
        chosen = _draw_groups(linked, strata, np.ceil(wanted * size).astype(int), rng)
        got = np.bincount(strata[chosen], minlength=len(wanted))
        total = int(got.sum())
        # Off by a row, or by half the standard deviation of a random draw if that is more.
        allowed = np.maximum(1.0, np.sqrt(total * shares * (1 - shares)) / 2)
        off = np.abs(got - total * shares) > allowed
        if 2 * total >= wanted.sum() and not off.any():
            return chosen
    equal = np.unique(keys.unordered, return_inverse=True)[1]
    chosen = _draw_groups(equal, strata, wanted, rng)
    if 2 * chosen.sum() >= wanted.sum():
        return chosen
    return _draw_groups(np.arange(len(keys)), strata, wanted, rng)


def _draw_groups(
    group: Integers, labels: Integers, wanted: Integers, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw whole groups of rows until each class has the wanted rows or no other group fits.

    Groups with the rarest class come first (iterative stratification, Sechidis et al. 2011,
    https://doi.org/10.1007/978-3-642-23808-6_10). Groups of several rows get their share of each
    class; single rows fill up the rest.
    """
    cells, rows = np.unique(group * len(wanted) + labels, return_counts=True)
    owner, label = np.divmod(cells, len(wanted))
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    sizes = np.bincount(labels, minlength=len(wanted))
    rarity = np.argsort(np.argsort(sizes, kind="stable"))
    order = rng.permutation(len(starts))
    rarest = np.minimum.reduceat(rarity[label], starts)
    order = order[np.argsort(rarest[order], kind="stable")]
    several = np.add.reduceat(rows, starts) > 1
    in_several = np.bincount(labels, weights=several[group], minlength=len(wanted))
    their_share = np.ceil(in_several * wanted / np.maximum(1, sizes)).astype(int)
    counts = list(zip(label.tolist(), rows.tolist(), strict=True))
    members = [counts[start:end] for start, end in pairwise([*starts.tolist(), len(counts)])]
    chosen, taken = np.zeros(len(starts), bool), [0] * len(wanted)
    for candidates, limits in (
        (order[several[order]], their_share),
        (order[~several[order]], wanted),
        (order[several[order]], wanted),
    ):
        most = limits.tolist()
        for index in candidates.tolist():
            fits = all(taken[at] + n <= most[at] for at, n in members[index])
            if fits and not chosen[index]:
                chosen[index] = True
                for at, n in members[index]:
                    taken[at] += n
    return chosen[group]
