"""Cut a validation split or folds from training rows: each class by its share, equal pairs
together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from finetune.errors import DataError
from finetune.messages import message as _
from finetune.metrics.shared_rows import linked_rows
from finetune.text_hashes import Integers

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
        strata: of which each gets its share, such as classes; shape (rows,), from 0, or (rows,
            strata) of 0 and 1 for rows that may be of several.
        share: of the rows, from 0 to 1.
        seed: fixes the choice.
    """
    if len(keys) < 2:
        return np.zeros(len(keys), bool)
    # At least a row of each class, but never all of one.
    row, stratum = np.nonzero(strata) if strata.ndim > 1 else (np.arange(len(keys)), strata)
    rows = np.bincount(stratum)
    wanted = np.where(rows > 1, np.maximum(1, np.round(rows * share)), 0).astype(np.int64)
    if not wanted.any():  # as many classes as rows
        wanted[stratum[0]] = 1
    shares = wanted / wanted.sum()
    rng = np.random.default_rng(seed)
    linked = linked_rows(keys.first, keys.second if keys.second.any() else keys.first)
    for size in _SIZES:
        chosen = _draw_groups(linked, row, stratum, np.ceil(wanted * size).astype(int), rng)
        got = np.bincount(stratum[chosen[row]], minlength=len(wanted))
        total = int(got.sum())
        # Off by a row, or by half the standard deviation of a random draw if that is more.
        allowed = np.maximum(1.0, np.sqrt(total * shares * (1 - shares)) / 2)
        off = np.abs(got - total * shares) > allowed
        if 2 * total >= wanted.sum() and not off.any():
            return chosen
    equal = np.unique(keys.unordered, return_inverse=True)[1]
    chosen = _draw_groups(equal, row, stratum, wanted, rng)
    if 2 * chosen.sum() >= wanted.sum():
        return chosen
    return _draw_groups(np.arange(len(keys)), row, stratum, wanted, rng)


def cut_folds(
    keys: RowHashes, strata: Integers, folds: int, seed: int, names: Sequence[str] = ()
) -> Integers:
    """Assign each row to a fold, from 1; shape (rows,). No sentence is in two folds, and each
    stratum is spread over them as evenly as that allows.

    Groups of rows that share sentences go, the largest and then the rarest first, to the fold that
    lacks most of their strata (after Sechidis et al. 2011,
    https://doi.org/10.1007/978-3-642-23808-6_10).

    Args:
        keys: hashes of the rows.
        strata: as `cut_validation` takes them.
        folds: number of folds.
        seed: fixes the folds.
        names: of the strata if they are classes, each of which has to be in every fold.

    Raises:
        DataError: if there are too few groups, or one is too large for its fold.
    """
    group = linked_rows(keys.first, keys.second if keys.second.any() else keys.first)
    table = strata if strata.ndim > 1 else np.eye(1 + max(strata, default=0), dtype=int)[strata]
    counts = np.zeros((1 + max(group, default=-1), table.shape[1]), np.int64)
    np.add.at(counts, group, table)
    rows = np.bincount(group, minlength=len(counts))
    if len(counts) < folds:
        raise DataError(
            "{folds} folds need as many groups of rows that share no sentence; there are {n}.",
            "Set folds to 0, or bring more rows.", folds=folds, n=len(counts),
        )  # fmt: skip
    for name, found in zip(names, (counts > 0).sum(axis=0).tolist(), strict=False):
        if 0 < found < folds and strata.ndim == 1:
            raise DataError(
                "{folds} folds need as many groups of rows of each class that share no sentence; "
                "{name} has {n}.",
                _("Set folds to {n} at most, or leave the class out with label_map.", n=found)
                if found > 1 else _("Set folds to 0, or leave the class out with label_map."),
                folds=folds, name=name, n=found,
            )  # fmt: skip
    shares = counts / np.maximum(1, counts.sum(axis=0))
    order = np.random.default_rng(seed).permutation(len(counts))
    order = order[np.lexsort((-shares.max(axis=1)[order], -rows[order]))]
    fold_of, sizes = np.zeros(len(counts), np.int64), np.zeros(folds)
    taken = np.zeros((folds, table.shape[1]))
    for index in order.tolist():
        fold = np.lexsort((sizes, taken @ shares[index]))[0]
        fold_of[index] = fold + 1
        taken[fold] += shares[index]
        sizes[fold] += rows[index]
    if sizes.max() > np.ceil(1.5 * len(keys) / folds):
        raise DataError(
            "{share:.0%} of the rows share sentences with one another, so they cannot be cut into "
            "{folds} folds with no sentence in two.",
            "Set folds to 0, or to fewer.", share=rows.max() / len(keys), folds=folds,
        )  # fmt: skip
    return fold_of[group]


def _draw_groups(
    group: Integers, row: Integers, stratum: Integers, wanted: Integers, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw whole groups of rows until each class has the wanted rows or no other group fits.
    Each `row` is of the `stratum` in the same place, and perhaps of others.

    Groups with the rarest class come first (iterative stratification, Sechidis et al. 2011,
    https://doi.org/10.1007/978-3-642-23808-6_10). Groups of several rows get their share of each
    class; single rows fill up the rest.
    """
    cells, rows = np.unique(group[row] * len(wanted) + stratum, return_counts=True)
    owner, label = np.divmod(cells, len(wanted))
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    sizes = np.bincount(stratum, minlength=len(wanted))
    rarity = np.argsort(np.argsort(sizes, kind="stable"))
    order = rng.permutation(len(starts))
    rarest = np.minimum.reduceat(rarity[label], starts)
    order = order[np.argsort(rarest[order], kind="stable")]
    several = np.bincount(group) > 1
    in_several = np.bincount(stratum, weights=several[group[row]], minlength=len(wanted))
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
