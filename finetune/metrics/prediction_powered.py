"""Prediction-powered inference: the share of rows with some property, from a few labelled rows and
what a model says of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.classification import Floats, ratio
from finetune.metrics.intervals import Interval

FEWEST = (
    10  # labelled rows with the property, and without it; of fewer the model's errors are chance
)


def share_intervals(
    known: NDArray[Any], predicted: NDArray[Any], mean: Floats, variance: Floats, rows: float
) -> list[Interval]:
    """Estimate shares of rows, such as those answered rightly, each with a 95% interval.

    The model's mean over all rows is corrected by its error on the labelled ones. How much it
    counts is chosen by these (PPI++): a model that knows nothing costs nothing. It does
    not count for a property that nearly all rows have, or none. With 50 labels a
    normal interval holds too seldom near 0 and 1. This is Clopper and Pearson's with as many rows
    as would be equally sure without a model, as for surveys (Korn and Graubard).

    Args:
        known: 0 or 1 for each labelled row and each share, shape (labelled, shares). The rows are a
            random sample of all.
        predicted: what the model expects of these, of any scale; the same shape.
        mean, variance: of what it expects of all rows, shape (shares,).
        rows: the number of all rows, or how many they are worth.

    Raises:
        ValueError: for fewer than 3 labelled rows.

    Sources: Angelopoulos et al. 2023, Prediction-powered inference,
    https://arxiv.org/abs/2301.09633; Angelopoulos, Duchi and Zrnic 2023, PPI++,
    https://arxiv.org/abs/2311.01453; Korn and Graubard 1998, Survey Methodology 24(2), 193-201.
    """
    from scipy.special import betaincinv, stdtrit

    n = len(known)
    if n < 3:
        raise ValueError(f"{n} labelled rows are too few")
    y, f = np.asarray(known, np.float64), np.asarray(predicted, np.float64)
    common = ((y - y.mean(axis=0)) * (f - f.mean(axis=0))).mean(axis=0)
    rare = np.minimum(y.sum(axis=0), (1 - y).sum(axis=0)) < FEWEST
    weight = np.where(rare, 0, ratio(common, f.var(axis=0) * (1 + n / rows)))
    rest = y - weight * f
    share = (rest.mean(axis=0) + weight * mean).clip(0, 1)
    # Two degrees of freedom are spent, on the mean and on the weight.
    squared_error = rest.var(axis=0) / (n - 2) + weight**2 * variance / rows
    size = ratio(share * (1 - share), squared_error) * (1.959964 / stdtrit(n - 2, 0.975)) ** 2
    size = np.where(rare, n, np.maximum(size, 1))
    hits = share * size
    low = betaincinv(np.maximum(hits, 1e-9), size - hits + 1, 0.025)
    high = betaincinv(hits + 1, np.maximum(size - hits, 1e-9), 0.975)
    ends = np.minimum(low, share), np.maximum(high, share)
    found = zip(share.tolist(), *(end.tolist() for end in ends), strict=True)
    return [Interval(value, low, high) for value, low, high in found]
