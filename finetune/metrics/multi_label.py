"""Metrics of several labels for each example, which counts as often as weights say.

`answers` and `truth` are 0 and 1 of shape (examples, labels), `weights` have shape (examples,
samples); the results have shape (samples,).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.classification import Floats, mean_f1, ratio

Labels = NDArray[Any]


def micro_f1(answers: Labels, truth: Labels, weights: NDArray[Any]) -> Floats:
    """F1 of all decisions together, whichever label they are of."""
    hits, sizes = _sums(answers, truth, weights)
    return ratio(2 * hits.sum(axis=0), sizes.sum(axis=0))


def macro_f1(answers: Labels, truth: Labels, weights: NDArray[Any]) -> Floats:
    """The mean F1 of the labels that occur or are given."""
    return mean_f1(*_sums(answers, truth, weights))


def subset_accuracy(answers: Labels, truth: Labels, weights: NDArray[Any]) -> Floats:
    """The share of examples whose labels are all right."""
    right = ((answers > 0) == (truth > 0)).all(axis=1)
    return ratio(right @ weights, weights.sum(axis=0))


def hamming_loss(answers: Labels, truth: Labels, weights: NDArray[Any]) -> Floats:
    """The share of wrong decisions."""
    wrong = ((answers > 0) != (truth > 0)).sum(axis=1)
    return ratio(wrong @ weights, weights.sum(axis=0) * answers.shape[1])


def _sums(answers: Labels, truth: Labels, weights: NDArray[Any]) -> tuple[Floats, Floats]:
    """Examples that have a label and were given it, and examples that have it plus those that were
    given it; both of shape (labels, samples)."""
    from scipy.sparse import csr_array

    given, true = answers > 0, truth > 0
    hits, sizes = given & true, given.astype(np.float64) + true
    return tuple(csr_array(each.T.astype(np.float64)) @ weights for each in (hits, sizes))
