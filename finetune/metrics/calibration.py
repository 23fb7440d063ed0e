"""Does a confidence of 80 % mean right in 80 of 100, and which temperature would make it so?

Sees logits and labels. What is right at all is `intervals`' and `curves`' business. All passes go
by chunks of rows, so 100,000 examples of 1,000 classes cost one array of that size at most.

A temperature T divides the logits: above 1 it makes a model less sure, below 1 surer; the
predicted classes stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.floating[Any]]
Indices = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]

COLDEST, HOTTEST = 0.05, 20.0
_CHUNK = 1_000_000  # numbers at once
_ENOUGH = 5_000_000  # numbers a temperature is fitted on; more change it in no digit shown
_FEWEST = 10  # examples


@dataclass(frozen=True)
class Reliability:
    """Confidence beside accuracy, by bins of confidence.

    Args:
        edges: of shape (bins + 1,), from 0 to 1; a bin holds its upper edge.
        counts: examples in each bin.
        confidence, accuracy: means over each bin; nan where it is empty.
        ece: expected calibration error, the mean of |accuracy - confidence| over the examples.
        mce: maximum calibration error, the largest of them over the bins that hold any.
    """

    edges: Floats
    counts: NDArray[np.int64]
    confidence: Floats
    accuracy: Floats
    ece: float
    mce: float


@dataclass(frozen=True)
class Calibration:
    """What temperature scaling does, judged on examples it was not fitted on.

    Args:
        temperature: fitted on all examples; the one to use.
        before: at temperature 1.
        after: each fold at the temperature fitted on the other folds.
        nll_before, nll_after: mean negative log likelihood in nats, likewise.
        folds: how many there were.
    """

    temperature: float
    before: Reliability
    after: Reliability
    nll_before: float
    nll_after: float
    folds: int


def probabilities(logits: Logits, temperature: float = 1.0) -> NDArray[np.float32]:
    """The softmax of logits over a temperature.

    Args:
        logits: finite, of shape (examples, classes).
        temperature: above 0.

    Returns:
        of the same shape; the only array of that size that is made.
    """
    out = np.empty(logits.shape, dtype=np.float32)
    for rows in _chunks(len(logits), logits.shape[1]):
        powers = _powers(logits[rows], temperature)
        np.divide(powers, powers.sum(axis=1, keepdims=True), out=out[rows])
    return out


def reliability(
    confidence: NDArray[np.floating[Any]], right: NDArray[np.bool_], bins: int = 15
) -> Reliability:
    """Confidence against accuracy in bins of equal width.

    The expected error of few examples is too high: even a perfect model shows some.

    Args:
        confidence: probability of the predicted class, of shape (examples,), at least one example.
        right: of shape (examples,), True where the predicted class is the true one.
        bins: how many.

    Source: Naeini, Cooper and Hauskrecht 2015, Obtaining Well Calibrated Probabilities Using
    Bayesian Binning, AAAI, https://doi.org/10.1609/aaai.v29i1.9602; Guo, Pleiss, Sun and
    Weinberger 2017, On Calibration of Modern Neural Networks, ICML,
    https://arxiv.org/abs/1706.04599.
    """
    edges = np.arange(bins + 1) / bins
    values = np.asarray(confidence, dtype=np.float64)
    index = np.clip(np.searchsorted(edges, values, side="left") - 1, 0, bins - 1)
    counts = np.bincount(index, minlength=bins)
    sums = np.bincount(index, weights=values, minlength=bins)
    hits = np.bincount(index, weights=np.asarray(right, dtype=np.float64), minlength=bins)
    filled = counts > 0
    mean_confidence, accuracy = (
        np.divide(total, counts, out=np.full(bins, np.nan), where=filled) for total in (sums, hits)
    )
    gaps = np.abs(accuracy - mean_confidence)[filled]
    ece = float((gaps * counts[filled]).sum() / len(values))
    return Reliability(edges, counts, mean_confidence, accuracy, ece, float(gaps.max()))


def fit_temperature(logits: Logits, labels: Indices, seed: int = 0) -> float:
    """The temperature at which the labels are most likely.

    The negative log likelihood is convex in 1 / T, so Newton's steps with bisection where they
    leave the bracket find its one minimum, in some six passes over the logits. Beyond 5 million
    numbers the fit rests on a random part of the examples.

    Args:
        logits: finite, of shape (examples, classes), at least one example.
        labels: class indices of shape (examples,).
        seed: of the random part.

    Returns:
        from 0.05, as where every example is right, to 20, as where logits say less than nothing;
        1 where no temperature changes anything, all logits of each example being equal.

    Source: Guo, Pleiss, Sun and Weinberger 2017, On Calibration of Modern Neural Networks, ICML,
    https://arxiv.org/abs/1706.04599.
    """
    rows = _some(np.arange(len(labels)), logits.shape[1], seed)
    if len(rows) < len(labels):
        logits, labels = logits[rows], labels[rows]
    if all((_shifted(logits[some]) == 0).all() for some in _chunks(*logits.shape)):
        return 1.0
    low, high = 1 / HOTTEST, 1 / COLDEST  # of the inverse temperature
    if _slope(logits, labels, high)[0] <= 0:
        return COLDEST
    if _slope(logits, labels, low)[0] >= 0:
        return HOTTEST
    inverse = 1.0
    for _ in range(60):
        slope, curvature = _slope(logits, labels, inverse)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / curvature if curvature > 0 else low
        before, inverse = inverse, step if low < step < high else (low * high) ** 0.5
        if abs(inverse - before) <= 1e-9 * before:
            break
    return min(max(1 / inverse, COLDEST), HOTTEST)


def calibrate(logits: Logits, labels: Indices, folds: int = 5, seed: int = 0) -> Calibration | None:
    """Calibration before and after temperature scaling.

    A temperature looks better on the examples it was fitted on. So each part of the examples is
    judged at the temperature of the others.

    Args:
        logits: finite, of shape (examples, classes).
        labels: class indices of shape (examples,).
        folds: parts of the examples, at least 2; fewer where a part would hold under 10 examples.
        seed: of the parts.

    Returns:
        None for fewer than 10 examples.

    Source: as for `fit_temperature`; for the folds, Stone 1974, Cross-Validatory Choice and
    Assessment of Statistical Predictions, Journal of the Royal Statistical Society B 36(2),
    111-147, https://doi.org/10.1111/j.2517-6161.1974.tb00994.x.
    """
    n = len(labels)
    if n < _FEWEST:
        return None
    folds = max(2, min(folds, n // 10))
    part = np.random.default_rng(seed).permutation(n) % folds
    # One call for each fold: a copy of the other folds, cut down before it is made.
    held_out = np.empty(n)
    for fold in range(folds):
        others = _some(np.flatnonzero(part != fold), logits.shape[1], seed)
        held_out[part == fold] = fit_temperature(logits[others], labels[others])
    before, right, nll_before = _judged(logits, labels, np.ones(n))
    after, _, nll_after = _judged(logits, labels, held_out)
    return Calibration(
        temperature=fit_temperature(logits, labels, seed),
        before=reliability(before, right),
        after=reliability(after, right),
        nll_before=nll_before,
        nll_after=nll_after,
        folds=folds,
    )


def _judged(
    logits: Logits, labels: Indices, temperatures: Floats
) -> tuple[Floats, NDArray[np.bool_], float]:
    """Confidence, whether right, and the mean negative log likelihood.

    Args:
        temperatures: one an example.
    """
    confidence, right, nll = np.empty(len(labels)), np.empty(len(labels), dtype=bool), 0.0
    for rows in _chunks(*logits.shape):
        shifted, wanted = _shifted(logits[rows]), labels[rows]
        temperature = temperatures[rows]
        total = np.exp(shifted / temperature[:, None]).sum(axis=1)
        confidence[rows] = 1 / total  # the largest logit is 0 once shifted
        right[rows] = shifted.argmax(axis=1) == wanted
        nll += float((np.log(total) - _at(shifted, wanted) / temperature).sum())
    return confidence, right, nll / len(labels)


def _slope(logits: Logits, labels: Indices, inverse: float) -> tuple[float, float]:
    """First and second derivative of the mean negative log likelihood by 1 / T."""
    first = second = 0.0
    for rows in _chunks(*logits.shape):
        shifted = _shifted(logits[rows])
        weights = np.exp(shifted * inverse)
        weights /= weights.sum(axis=1, keepdims=True)
        mean = np.einsum("nk,nk->n", weights, shifted)
        weights *= shifted
        square = np.einsum("nk,nk->n", weights, shifted)
        first += float((mean - _at(shifted, labels[rows])).sum())
        second += float((square - mean**2).sum())
    return first / len(labels), second / len(labels)


def _powers(logits: Logits, temperature: float) -> NDArray[np.float32]:
    """exp of logits over a temperature, the largest of each row being 1."""
    # Half the time of float64, and as exact as the result; what passes float32 is as good as 0.
    with np.errstate(over="ignore"):
        wide = np.promote_types(logits.dtype, np.float32)  # float16 would round the difference
        shifted = np.subtract(logits, logits.max(axis=1, keepdims=True), dtype=wide)
        shifted = shifted.astype(np.float32, copy=False)
        shifted /= np.float32(temperature)
    powers: NDArray[np.float32] = np.exp(shifted, out=shifted)
    return powers


def _shifted(logits: Logits) -> Floats:
    """Logits less the largest of their row."""
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    return values


def _at(values: Floats, columns: Indices) -> Floats:
    return values[np.arange(len(columns)), columns]


def _some(rows: Indices, classes: int, seed: int) -> Indices:
    """As many of the rows as a temperature is fitted on."""
    most = max(1, _ENOUGH // classes)
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def _chunks(examples: int, classes: int) -> Iterator[slice]:
    step = max(1, _CHUNK // classes)
    return (slice(start, start + step) for start in range(0, examples, step))
