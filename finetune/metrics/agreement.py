"""How far two sets of answers to the same rows agree: a model's, a person's, or another model's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics import intervals
from finetune.metrics.catalog import OF_SCORES, Metric, Tally
from finetune.metrics.classification import Floats, Truths, ratio
from finetune.metrics.intervals import Interval
from finetune.metrics.shared_rows import SharedRows, rows_worth


def _cohen_kappa(tally: Tally, positive: int | None) -> Floats:
    by_chance = (tally.support * tally.predicted).sum(axis=0, dtype=np.float64)
    rows = tally.support.sum(axis=0, dtype=np.float64)
    return ratio(tally.hits.sum(axis=0) * rows - by_chance, rows**2 - by_chance)


KAPPA = Metric("cohen_kappa", "Cohen's kappa", "kappa", range=(-1, 1), of_tally=_cohen_kappa)


def kappa(first: NDArray[Any], second: NDArray[Any], shared: SharedRows | None = None) -> Interval:
    """Compute Cohen's kappa of two sets of class indices, both of shape (rows,), with a bootstrap
    interval: 0 for an agreement by chance, 1 for a complete one. If one of them always gives the
    same class it is 0, and if both do nan; the interval is then unknown.

    Source: Cohen 1960, https://doi.org/10.1177/001316446002000104.
    """
    used = [len(np.unique(each)) for each in (first, second)]
    if min(used) < 2:
        return Interval(0.0 if max(used) > 1 else float("nan"), -1.0, 1.0)
    answers, truth = (np.asarray(each, np.int64) for each in (second, first))
    return intervals.score_intervals(answers, truth, [KAPPA], None, shared)[KAPPA.name]


def agreement(
    first: NDArray[Any], second: NDArray[Any], names: Sequence[str],
    shared: SharedRows | None = None,
) -> dict[str, Interval]:  # fmt: skip
    """Compare two sets of answers.

    Args:
        first, second: class indices or scores of shape (rows,), or 0 and 1 for each label, of shape
            (rows, labels).
        names: of the classes or labels; none for scores.
        shared: which rows share a sentence; None if that is unknown.

    Returns:
        For classes the share of `equal` answers and `kappa`; for several labels the share of equal
        sets and the kappa of each label, as `kappa NAME`; for scores the correlation `pearson`, and
        the mean of second - first as `difference`.
    """
    if not names:
        found = intervals.score_intervals(second, first, OF_SCORES[:1], None, shared)
        part = rows_worth(second - first, shared) / len(first)
        difference = intervals.mean_interval((second - first).tolist(), part)
        return found | ({"difference": difference} if difference else {})
    same = (first == second).reshape(len(first), -1).all(axis=1)
    worth = rows_worth(same, shared)
    equal = {"equal": intervals.wilson_interval(worth * float(same.mean()), worth)}
    if first.ndim == 1:
        return equal | {"kappa": kappa(first, second, shared)}
    return equal | {
        f"kappa {name}": kappa(first[:, label], second[:, label], shared)
        for label, name in enumerate(names)
    }


def who_is_right(first_right: Truths, second_right: Truths, same: Truths) -> dict[str, int]:
    """Count, of the rows that two sets of answers differ in, those where only the first is right,
    only the second, and neither. All arguments have shape (rows,)."""
    masks = {
        "first": first_right & ~second_right,
        "second": second_right & ~first_right,
        "neither": ~first_right & ~second_right & ~same,
    }
    return {name: int(mask.sum()) for name, mask in masks.items()}
