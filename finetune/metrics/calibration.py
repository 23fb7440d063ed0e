"""Calibration: answers given with 80% confidence should be right in 80 of 100.

A temperature divides the logits: above 1 it makes a model less sure, below 1 surer.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.classification import Floats, Indices, Truths, ratio
from finetune.metrics.selection import assign_folds

Logits = NDArray[np.floating[Any]]

COLDEST, HOTTEST = 0.05, 20.0  # temperatures
FEWEST_ERRORS = 10  # needed to fit a temperature; fewer are chance
BINS = 15  # of confidence, of equal width
_FITTED_ON = 3_000_000  # logits at most
_FOLDS = 5


@dataclass(frozen=True)
class Reliability:
    """Confidence beside accuracy, by bins of confidence."""

    counts: NDArray[np.int64]  # examples in each bin; a bin holds its upper edge
    confidence: Floats  # mean over each bin; nan if it is empty
    accuracy: Floats
    ece: float  # expected calibration error: |accuracy - confidence|, mean over the examples


@dataclass(frozen=True)
class Calibration:
    """Calibration after temperature scaling, or why no temperature is offered."""

    errors: int  # examples whose most probable class is wrong
    temperature: float | None = None  # fitted to all examples; the one to use
    after: Reliability | None = None  # each fold at the temperature fitted to the other folds
    folds: int = _FOLDS
    refusal: Literal["", "few errors", "bound", "no gain"] = ""


def probabilities(
    logits: Logits, temperature: float | NDArray[np.float32] = 1.0
) -> NDArray[np.float32]:
    """Softmax of finite logits divided by a temperature, a number or an array of shape (examples,
    1)."""
    result: NDArray[np.float32]
    result = np.subtract(logits, logits.max(axis=1, keepdims=True), dtype=np.float32)
    result /= np.float32(temperature)
    np.exp(result, out=result)
    result /= result.sum(axis=1, keepdims=True)
    return result


def reliability(confidence: Floats | Logits, right: Truths) -> Reliability:
    """Compare the probabilities of predicted classes with their correctness, both of shape
    (examples,), in bins of confidence. The error of few examples is too high: even a perfect model
    shows some.

    Source: Naeini, Cooper and Hauskrecht 2015, https://doi.org/10.1609/aaai.v29i1.9602.
    """
    bins = np.searchsorted(np.arange(1, BINS) / BINS, confidence, side="left")
    counts = np.bincount(bins, minlength=BINS)
    mean_confidence, accuracy = (
        np.where(counts, ratio(np.bincount(bins, values, minlength=BINS), counts), np.nan)
        for values in (confidence, right)
    )
    gaps = np.nan_to_num(np.abs(accuracy - mean_confidence))
    return Reliability(counts, mean_confidence, accuracy, float(np.average(gaps, weights=counts)))


def fit_temperature(logits: Logits, labels: Indices) -> float:
    """Fit the temperature, from 0.05 to 20, at which the labels are most likely; 1 if all logits of
    each example are equal. Of very many examples a random sample is used.

    Source: Guo, Pleiss, Sun and Weinberger 2017, https://arxiv.org/abs/1706.04599.
    """
    from scipy.optimize import brentq

    most = max(1, _FITTED_ON // logits.shape[1])
    if len(labels) > most:
        rows = np.random.default_rng(0).choice(len(labels), most, replace=False)
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


def calibrate(logits: Logits, labels: Indices) -> Calibration:
    """Calibrate by temperature scaling. Each of 5 folds is judged at the temperature fitted to the
    others.

    No temperature is offered with fewer than 10 errors, if the fit ends at a bound (without errors
    it would be ever colder), or if it does not lower the expected calibration error.
    """
    wrong = logits.argmax(axis=1) != labels
    errors = int(wrong.sum())
    if errors < FEWEST_ERRORS:
        return Calibration(errors, refusal="few errors")
    temperature = fit_temperature(logits, labels)
    if temperature in (COLDEST, HOTTEST):
        return Calibration(errors, refusal="bound")
    fold_of = assign_folds(wrong, _FOLDS)
    temperatures = np.empty((len(labels), 1), np.float32)
    for fold in range(_FOLDS):
        others = fold_of != fold
        temperatures[~others] = fit_temperature(logits[others], labels[others])
    before, after = (
        reliability(probabilities(logits, at).max(axis=1), ~wrong) for at in (1.0, temperatures)
    )
    if after.ece >= before.ece:
        return Calibration(errors, refusal="no gain")
    return Calibration(errors, temperature, after)


def conformal_margin(errors: Floats, coverage: float = 0.95) -> float | None:
    """The distance within which a new answer lies of the true score, with this probability or more.

    It is the split-conformal quantile, the ceil((n + 1) coverage)-th least of n distances, and
    holds for examples drawn as these were, whatever the model (Lei et al. 2018,
    https://doi.org/10.1080/01621459.2017.1307116). None if there are too few of them: 19 at least
    for 95%. `errors`: answers minus true scores of examples that were not trained on.
    """
    rank = int(np.ceil((len(errors) + 1) * coverage - 1e-9))
    return float(np.partition(np.abs(errors), rank - 1)[rank - 1]) if rank <= len(errors) else None
