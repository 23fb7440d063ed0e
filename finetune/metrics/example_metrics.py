"""Metrics of scores, and of several labels, on examples that count as often as weights say.

`answers` and `truth` are scores of shape (examples,), or 0 and 1 of shape (examples, labels);
`weights` have shape (examples, samples), the results shape (samples,). A correlation with scores
that are all equal is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.classification import Floats, mean_f1, ratio

Scores = NDArray[np.floating[Any]]
Labels = NDArray[Any]


def pearson(answers: Scores, truth: Scores, weights: NDArray[Any]) -> Floats:
    """Pearson's correlation coefficient."""
    shape = (*answers.shape, 1)
    return _correlation(answers.reshape(shape), truth.reshape(shape), weights)


def spearman(answers: Scores, truth: Scores, weights: NDArray[Any]) -> Floats:
    """Spearman's rank correlation; equal scores share the mean of their ranks."""
    return _correlation(_ranks(answers, weights), _ranks(truth, weights), weights)


def mean_absolute_error(answers: Scores, truth: Scores, weights: NDArray[Any]) -> Floats:
    """How far off an answer is, on average."""
    return np.asarray(_mean(np.abs(_errors(answers, truth)), weights))


def root_mean_squared_error(answers: Scores, truth: Scores, weights: NDArray[Any]) -> Floats:
    """The root of the mean squared error, on the scale of the scores."""
    return np.sqrt(_mean(_errors(answers, truth) ** 2, weights))


def conformal_margin(errors: Scores, coverage: float = 0.95) -> float | None:
    """The distance within which a new answer lies of the true score, with this probability or more.

    It is the split-conformal quantile, the ceil((n + 1) coverage)-th least of n distances, and
    holds for examples drawn as these were, whatever the model (Lei et al. 2018,
    https://doi.org/10.1080/01621459.2017.1307116). None if there are too few of them: 19 at least
    for 95%.

    Args:
        errors: answers minus true scores of examples that were not trained on, shape (examples,).
    """
    rank = int(np.ceil((len(errors) + 1) * coverage - 1e-9))
    return float(np.partition(np.abs(errors), rank - 1)[rank - 1]) if rank <= len(errors) else None


def _errors(answers: Scores, truth: Scores) -> Floats:
    return np.asarray(answers, np.float64) - truth


def _mean(values: Floats, weights: NDArray[Any]) -> Floats:
    return values @ weights / weights.sum(axis=0)  # type: ignore[no-any-return]


def _ranks(values: Scores, weights: NDArray[Any]) -> Floats:
    """The mid-rank of each example in each sample, shape (examples, samples)."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    behind = np.cumsum(weights[np.argsort(group, kind="stable")], axis=0, dtype=np.float64)
    ends = behind[np.cumsum(sizes) - 1]
    middles = ends - np.diff(ends, axis=0, prepend=0) / 2
    return middles[group]  # type: ignore[no-any-return]


def _correlation(first: Scores, second: Scores, weights: NDArray[Any]) -> Floats:
    """The correlation of two arrays of shape (examples, samples) or (examples, 1)."""
    x, y = (_centred(np.asarray(values, np.float64), weights) for values in (first, second))
    squares = (x * x * weights).sum(axis=0) * (y * y * weights).sum(axis=0)
    return np.clip(ratio((x * y * weights).sum(axis=0), np.sqrt(squares)), -1, 1)


def _centred(values: Floats, weights: NDArray[Any]) -> Floats:
    """The distances from the mean of each sample, shape (examples, samples); 0 if they are no more
    than what rounding leaves of equal values."""
    away = values - (values * weights).sum(axis=0) / weights.sum(axis=0)
    return np.where(np.abs(away).max(axis=0) > 1e-12 * np.abs(values).max(), away, 0.0)


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
