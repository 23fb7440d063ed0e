"""Answering only when sure: the confidence above which answers keep a bound on their error.

Arrays in, numbers out: `confidence` and `right` of shape (rows,). Which rows are answered depends
on their confidence alone. So, given a threshold and the number of rows above it, the errors of rows
that are drawn independently are binomial, and the exact upper bound of Clopper and Pearson 1934
(https://doi.org/10.1093/biomet/26.4.404) holds for their share of errors on new rows. Rows that
share a sentence count as the part of them that they are worth (`SharedRows.worth`), as in surveys
(Korn and Graubard 1998, Survey Methodology 24(2), 193-201).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.classification import Floats, Truths

_STEPS = 20  # a step of the tested thresholds is this part of the rows
_FIRST = 4  # steps: the strictest threshold answers a fifth; the first rows alone prove little
_MOST_ROWS = 10_000_000  # more are never asked for

Confidences = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class SureThreshold:
    """A threshold that keeps a bound on the error."""

    above: float  # answers with a greater confidence are given
    answered: int  # rows above it
    errors: int  # of these


@dataclass(frozen=True)
class AbstentionCurve:
    """The error of the surest answers, for rising shares of the rows."""

    coverage: Floats  # share of the rows that are answered, shape (points,)
    error: Floats  # share of these that are wrong
    upper: Floats  # upper confidence bound of that share, for each point alone


def fewest_rows(error: float, delta: float) -> int:
    """Return how many answers without an error show that at most a share `error` is wrong, with
    confidence `1 - delta`."""
    return math.ceil(math.log(delta) / math.log1p(-error))


def sure_threshold(
    confidence: Confidences, right: Truths, error: float, delta: float, part: float = 1.0
) -> SureThreshold | None:
    """Find the lowest threshold above which at most a share `error` of new answers is wrong.

    This is Learn then Test (Angelopoulos et al. 2021, https://arxiv.org/abs/2110.01052) with fixed
    sequence testing: the thresholds are tested from the strictest on until one fails, so that all
    tests together err with a probability of at most `delta`. The thresholds are those that answer a
    fifth of the rows, a fourth and so on, chosen without a look at `right`; those with fewer rows
    than `fewest_rows` above them are left out. The level is exact if a lower threshold never has
    the smaller error; the tests simulate other cases too.

    Args:
        part: of the rows that they are worth.

    Returns:
        None if no tested threshold keeps the bound.
    """
    above, answered, errors = _tested(confidence, right)
    last = _kept(part * answered, part * errors, error, delta)
    if last is None:
        return None
    return SureThreshold(float(above[last]), int(answered[last]), int(errors[last]))


def rows_needed(
    confidence: Confidences, right: Truths, error: float, delta: float, part: float = 1.0
) -> int | None:
    """Estimate how many rows like these would suffice for a threshold that keeps the bound, if the
    errors stay as frequent as they are; None if no number of rows would."""
    _, answered, errors = _tested(confidence, right)
    times, enough = 1.0, None  # `enough`: from this many times the rows on all would suffice
    while 0 < len(right) * times < _MOST_ROWS:
        kept = _kept(part * answered * times, part * errors * times, error, delta)
        enough = None if kept is None else enough or times
        times *= 1.02
    return math.ceil(len(right) * enough) if enough else None


def abstention_curve(
    confidence: Confidences, right: Truths, delta: float, part: float = 1.0
) -> AbstentionCurve:
    """Return the error of the surest answers at every share of the rows. `part`: as above."""
    from scipy.special import betaincinv

    ranked = np.argsort(-confidence, kind="stable")
    # Rows of equal confidence are answered together.
    last = np.flatnonzero(np.diff(confidence[ranked], append=-np.inf))
    answered, errors = last + 1, np.cumsum(~right[ranked])[last]
    hits = part * np.maximum(answered - errors, 1.0)
    bound = betaincinv(part * errors + 1.0, hits, 1 - delta)
    upper = np.where(errors == answered, 1.0, bound)
    return AbstentionCurve(answered / max(1, len(right)), errors / answered, upper)


def _tested(confidence: Confidences, right: Truths) -> tuple[Floats, NDArray[Any], NDArray[Any]]:
    """The tested thresholds from the strictest on, the rows above each, and the errors of these."""
    rows = len(right)
    counts = np.unique(np.arange(_FIRST, _STEPS) * rows // _STEPS)
    ranked = -np.sort(-np.asarray(confidence, np.float64))
    above = np.append(ranked[counts[counts < rows]], 0.0)
    above = np.unique(above)[::-1]
    answered = np.searchsorted(-ranked, -above)  # equal confidences are not above
    wrong = np.sort(-np.asarray(confidence, np.float64)[~right])
    return above, answered, np.searchsorted(wrong, -above)


def _kept(answered: Floats, errors: Floats, error: float, delta: float) -> int | None:
    """The index of the last threshold before a test fails; None if the first one does."""
    from scipy.special import betainc

    tested = np.flatnonzero(answered >= fewest_rows(error, delta))
    hits = np.maximum(answered - errors, 1e-9)[tested]
    failed = betainc(hits, errors[tested] + 1, 1 - error) > delta  # P(so few errors) at the bound
    passed = int(failed.argmax()) if failed.any() else len(tested)
    return int(tested[passed - 1]) if passed else None
