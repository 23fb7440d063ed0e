"""Calibration: do probabilities of 80% mean right in 80 of 100, and temperature scaling.

A temperature T divides the logits: above 1 it makes a model less sure, below 1 surer; the
predicted classes stay what they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.classification import Floats, Indices, Truths

Logits = NDArray[np.floating[Any]]

COLDEST, HOTTEST = 0.05, 20.0  # temperatures
_CHUNK = 1_000_000  # numbers at once
_FITTED_ON = 3_000_000  # numbers at most
_FEWEST = 10  # examples


@dataclass(frozen=True)
class Reliability:
    """Confidence beside accuracy, by bins of confidence.

    Args:
        counts: examples in each bin; a bin holds its upper edge.
        confidence, accuracy: means over each bin; nan where it is empty.
        ece: expected calibration error, the mean of |accuracy - confidence| over the examples.
    """

    counts: NDArray[np.int64]
    confidence: Floats
    accuracy: Floats
    ece: float


@dataclass(frozen=True)
class Calibration:
    """Calibration before and after temperature scaling, on examples it was not fitted on.

    Args:
        temperature: fitted on all examples; the one to use.
        before: at temperature 1.
        after: each fold at the temperature fitted on the other folds.
    """

    temperature: float
    before: Reliability
    after: Reliability
    folds: int


def probabilities(logits: Logits, temperature: float = 1.0) -> NDArray[np.float32]:
    """The softmax of finite logits over a temperature, of shape (examples, classes)."""
    wide = np.promote_types(logits.dtype, np.float32)  # float16 would round the difference
    with np.errstate(over="ignore"):  # what passes float32 is as good as 0
        shifted = np.subtract(logits, logits.max(axis=1, keepdims=True), dtype=wide)
        out: NDArray[np.float32] = shifted.astype(np.float32, copy=False)
        out /= np.float32(temperature)
    np.exp(out, out=out)
    out /= out.sum(axis=1, keepdims=True)
    return out


def reliability(confidence: Floats | Logits, right: Truths, bins: int = 15) -> Reliability:
    """Confidence against accuracy in bins of equal width.

    The expected error of few examples is too high: even a perfect model shows some. (scikit-learn's
    `calibration_curve` has neither the bins' counts nor the empty bins.)

    Args:
        confidence: probability of the predicted class, of shape (examples,), at least one example.
        right: of shape (examples,), True where the predicted class is the true one.

    Source: Naeini, Cooper and Hauskrecht 2015, https://doi.org/10.1609/aaai.v29i1.9602.
    """
    values = np.asarray(confidence, dtype=np.float64)
    index = np.searchsorted(np.arange(1, bins) / bins, values, side="left")
    counts, sums, hits = (
        np.bincount(index, weights, minlength=bins) for weights in (None, values, right)
    )
    filled = counts > 0
    mean_confidence, accuracy = (
        np.divide(total, counts, out=np.full(bins, np.nan), where=filled) for total in (sums, hits)
    )
    gaps = np.abs(accuracy - mean_confidence)[filled]
    ece = float((gaps * counts[filled]).sum() / len(values))
    return Reliability(counts, mean_confidence, accuracy, ece)


def fit_temperature(logits: Logits, labels: Indices, seed: int = 0) -> float:
    """The temperature at which the labels are most likely.

    Beyond 3 million numbers the fit rests on a random part of the examples, drawn with `seed`.

    Returns:
        from 0.05, as where every example is right, to 20, as where logits say less than nothing;
        1 where no temperature changes anything, all logits of each example being equal.

    Source: Guo, Pleiss, Sun and Weinberger 2017, https://arxiv.org/abs/1706.04599.
    """
    from scipy.optimize import brentq

    most = max(1, _FITTED_ON // logits.shape[1])
    if len(labels) > most:
        rows = np.random.default_rng(seed).choice(len(labels), most, replace=False)
        logits, labels = logits[rows], labels[rows]
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    if not shifted.any():
        return 1.0
    true = shifted[np.arange(len(labels)), labels].mean()

    def slope(inverse: float) -> float:
        """Derivative of the mean negative log likelihood, which is convex, by 1 / T."""
        weights = np.exp(shifted * inverse)
        expected = np.einsum("nk,nk->n", weights, shifted) / weights.sum(axis=1)
        return float(expected.mean() - true)

    if slope(1 / COLDEST) <= 0:
        return COLDEST
    if slope(1 / HOTTEST) >= 0:
        return HOTTEST
    return 1 / float(brentq(slope, 1 / HOTTEST, 1 / COLDEST, rtol=1e-7))


def calibrate(logits: Logits, labels: Indices, folds: int = 5, seed: int = 0) -> Calibration | None:
    """Calibration before and after temperature scaling; None for fewer than 10 examples.

    A temperature looks better on the examples it was fitted on. So each fold of the examples is
    judged at the temperature fitted on the others; fewer than 5 where one would hold under 10."""
    n = len(labels)
    if n < _FEWEST:
        return None
    folds = max(2, min(folds, n // 10))
    fold_of = np.random.default_rng(seed).permutation(n) % folds
    temperatures = np.empty(n)
    for fold in range(folds):
        others = fold_of != fold
        temperatures[~others] = fit_temperature(logits[others], labels[others], seed)
    right = logits.argmax(axis=1) == labels
    return Calibration(
        temperature=fit_temperature(logits, labels, seed),
        before=reliability(_confidence(logits, np.ones(n)), right),
        after=reliability(_confidence(logits, temperatures), right),
        folds=folds,
    )


def _confidence(logits: Logits, temperatures: Floats) -> Floats:
    """Probability of the predicted class, at a temperature for each example. In chunks, as 100,000
    examples of 1,000 classes would take a gigabyte."""
    parts = []
    chunks = min(len(logits), 1 + logits.size // _CHUNK)
    for rows in np.array_split(np.arange(len(logits)), chunks):
        shifted = logits[rows].astype(np.float64)
        shifted -= shifted.max(axis=1, keepdims=True)  # the largest is 0, of which exp is 1
        parts.append(1 / np.exp(shifted / temperatures[rows, None]).sum(axis=1))
    return np.concatenate(parts)
