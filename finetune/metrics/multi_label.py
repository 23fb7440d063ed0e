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


def effects_on_f1(answers: Labels, truth: Labels, micro: bool = False) -> Floats:
    """By how much each example raises macro F1, or micro F1, times their number; shape
    (examples,)."""
    given, true = answers > 0, truth > 0
    hits, sizes = (given & true).astype(np.float64), given.astype(np.float64) + true
    if micro:
        hits, sizes = (each.sum(axis=1, keepdims=True) for each in (hits, sizes))
    whole = sizes.sum(axis=0)
    away = ratio(2 * hits - ratio(2 * hits.sum(axis=0), whole) * sizes, whole)
    return np.asarray(away.sum(axis=1) * len(truth) / max(1, (whole > 0).sum()))


def effects_on_share(answers: Labels, truth: Labels, whole: bool = False) -> Floats:
    """The same of the share of wrong decisions, or of examples that are right as a whole."""
    wrong = (answers > 0) != (truth > 0)
    found = ~wrong.any(axis=1) if whole else wrong.mean(axis=1)
    return np.asarray(found, np.float64)


def _sums(answers: Labels, truth: Labels, weights: NDArray[Any]) -> tuple[Floats, Floats]:
    """Examples that have a label and were given it, and examples that have it plus those that were
    given it; both of shape (labels, samples)."""
    from scipy.sparse import csr_array

    given, true = answers > 0, truth > 0
    hits, sizes = given & true, given.astype(np.float64) + true
    return tuple(csr_array(each.T.astype(np.float64)) @ weights for each in (hits, sizes))
