"""Confidence intervals of accuracy and F1, and tests of differences between classifiers.

Examples are taken as drawn independently of one another. An interval covers the score on endlessly
many examples of the same source; it says nothing of another seed (see `mean_interval`) or source.

The bootstrap resamples the counts of the confusion matrix's cells, not the examples: examples of
the same label and prediction are interchangeable, so the distribution is the same. 10,000
resamples of 408 examples take 6 ms, and 320 ms by `scipy.stats.bootstrap(method="BCa",
vectorized=True)`; of 40,000 examples 6 ms as well, where scipy's jackknife has 1.6 billion numbers.
All intervals are of 95%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.classification import (
    Counts,
    Floats,
    Indices,
    confusion_matrix,
    mean_f1,
    ratio,
)

NAMES = ("accuracy", "f1")
_BUDGET = 20_000_000  # cells x resamples; about two seconds
_FEWEST = 200  # resamples, however many cells there are
_CHUNK = 2_000_000  # numbers held at once, 16 MB


@dataclass(frozen=True)
class Interval:
    """A figure and its 95% confidence interval.

    Args:
        value: as measured; nan where nothing was measured.
        resamples: bootstrap samples it rests on; 0 where it comes from a formula.
    """

    value: float
    low: float
    high: float
    resamples: int = 0


@dataclass(frozen=True)
class McNemar:
    """On how many examples only the first, only the second of two classifiers is right, and the
    two-sided p value of "both are right equally often"."""

    first_only: int
    second_only: int
    p: float


class _Cells:
    """Distinct (label, prediction) pairs of one classifier, and the scores of weights on them;
    macro F1 where no class is `positive`."""

    def __init__(self, labels: Indices, predictions: Indices, positive: int | None) -> None:
        from scipy.sparse import csr_array

        self.right = labels == predictions
        self.binary = positive is not None
        size = int(max(labels.max(), predictions.max(), positive or 0)) + 1
        rows = slice(None) if positive is None else slice(positive, positive + 1)

        def members(classes: Indices, counted: NDArray[Any]) -> Any:
            """Which cells count for which class, of shape (classes, cells)."""
            where = (classes, np.arange(len(classes)))
            return csr_array((counted.astype(np.int64), where), (size, len(classes)))[rows]

        every = np.ones(len(labels))
        self._hits = members(labels, self.right)
        self._sizes = members(labels, every) + members(predictions, every)

    def hits_and_sizes(self, weights: Counts) -> tuple[Counts, Counts]:
        """Of each class: examples rightly put there; examples of it plus examples put there."""
        return self._hits @ weights, self._sizes @ weights

    def scores(self, weights: Counts) -> Floats:
        """Accuracy and F1, of shape (2, samples), of weights of shape (cells, samples)."""
        hits, sizes = self.hits_and_sizes(weights)
        accuracy = weights[self.right].sum(axis=0) / weights.sum(axis=0)
        return np.stack([accuracy, mean_f1(hits, sizes)])


class _Statistic:
    """Accuracy and F1 of one classifier, or of the second minus the first, on the same examples.

    Args:
        labels: class indices of distinct cells, of shape (cells,).
        predictions: the same of each classifier.
        counts: examples in each cell.
    """

    def __init__(
        self, labels: Indices, predictions: Sequence[Indices], counts: Counts, positive: int | None
    ) -> None:
        self.counts = counts
        self.cells = [_Cells(labels, column, positive) for column in predictions]

    def __call__(self, weights: Counts) -> Floats:
        """Of shape (2, samples), of weights of shape (cells, samples)."""
        last = self.cells[-1].scores(weights)
        return last - self.cells[0].scores(weights) if len(self.cells) > 1 else last

    def resampled(self, resamples: int, seed: int) -> Floats:
        """The scores of bootstrap samples, of shape (2, resamples)."""
        random, total = np.random.default_rng(seed), int(self.counts.sum())
        step = max(1, _CHUNK // len(self.counts))
        parts = []
        for start in range(0, resamples, step):
            size = min(step, resamples - start)
            weights = random.multinomial(total, self.counts / total, size=size)
            parts.append(self(np.ascontiguousarray(weights.T)))
        return np.concatenate(parts, axis=1)

    def accelerations(self) -> Floats:
        """Efron's a of both scores: how fast the standard error changes with the score, from the
        jackknife; 0 where the cells are too many, and the examples so many that it matters little.
        """
        size = len(self.counts)
        if self.counts.sum() < 2 or size * size > _BUDGET:
            return np.zeros(2)
        left_out = self(self.counts[:, None] - np.eye(size, dtype=np.int64))
        away = np.average(left_out, axis=1, weights=self.counts)[:, None] - left_out
        square, cube = ((self.counts * away**power).sum(axis=1) for power in (2, 3))
        return ratio(cube, np.where(square < 1e-24, 0, 6 * square**1.5))


def bootstrap_intervals(
    labels: Indices,
    predictions: Indices,
    classes: int,
    positive: int = 1,
    resamples: int = 10_000,
    seed: int = 0,
) -> dict[str, Interval]:
    """Bootstrap intervals of accuracy and F1, bias-corrected and accelerated (BCa).

    Where all examples are right (or all wrong) all resamples agree: there the interval is Wilson's.

    Args:
        labels, predictions: class indices of shape (examples,), at least one example.
        positive: the class whose F1 is meant of two; of more it is macro F1.
        resamples: how many are drawn; fewer, but at least 200, where the cells are many.

    Source: Efron 1987, Better Bootstrap Confidence Intervals,
    https://doi.org/10.1080/01621459.1987.10478410.
    """
    return bootstrap_from_confusion(
        confusion_matrix(labels, predictions, classes), positive, resamples, seed
    )


def bootstrap_from_confusion(
    confusion: Counts, positive: int = 1, resamples: int = 10_000, seed: int = 0
) -> dict[str, Interval]:
    """As `bootstrap_intervals`, from the confusion matrix, of shape (classes, classes)."""
    labels, predictions = np.nonzero(confusion)
    counts = confusion[labels, predictions]
    target = positive if len(confusion) == 2 else None
    statistic = _Statistic(labels, [predictions], counts, target)
    intervals = _bootstrap(statistic, resamples, seed)
    return intervals | _intervals_at_the_ends(statistic, intervals)


def paired_bootstrap(
    labels: Indices,
    first: Indices,
    second: Indices,
    classes: int,
    positive: int = 1,
    resamples: int = 10_000,
    seed: int = 0,
) -> dict[str, Interval]:
    """Bootstrap intervals of the difference second - first on the same examples.

    Each resample holds the same examples for both, so what is hard for both cancels out.

    Source: Berg-Kirkpatrick, Burkett and Klein 2012, https://aclanthology.org/D12-1091/.
    """
    cells, counts = np.unique(np.stack([labels, first, second]), axis=1, return_counts=True)
    target = positive if classes == 2 else None
    return _bootstrap(_Statistic(cells[0], cells[1:], counts, target), resamples, seed)


def _bootstrap(statistic: _Statistic, resamples: int, seed: int) -> dict[str, Interval]:
    resamples = min(resamples, max(_FEWEST, _BUDGET // len(statistic.counts)))
    measured = statistic(statistic.counts[:, None])[:, 0].tolist()
    rows = zip(
        NAMES, measured, statistic.resampled(resamples, seed), statistic.accelerations(),
        strict=True,
    )  # fmt: skip
    return {
        name: Interval(value, *_bca(value, draws, float(a)), resamples=resamples)
        for name, value, draws, a in rows
    }


def _bca(value: float, draws: Floats, acceleration: float) -> tuple[float, float]:
    """The ends of the 95% interval; ties with the measured value count half below it."""
    from scipy.special import ndtr, ndtri

    ties = np.abs(draws - value) < 1e-12
    below = ((draws < value) & ~ties).mean() + ties.mean() / 2
    edge = 0.5 / len(draws)  # no sample is ever wholly on one side
    bias = ndtri(np.clip(below, edge, 1 - edge))
    z = bias + ndtri(np.array([0.025, 0.975]))
    bend = np.maximum(1 - acceleration * z, 1e-6)
    low, high = np.quantile(draws, ndtr(bias + z / bend))
    return float(low), float(high)


def _intervals_at_the_ends(
    statistic: _Statistic, measured: dict[str, Interval]
) -> dict[str, Interval]:
    """Intervals by formula of scores of 0 and 1, at which the resamples agree.

    An F1 of two classes is 2 J / (1 + J), where J is the share of true positives among all that
    are positive or called so: its interval is that of J. For macro F1 accuracy's stands in.
    """
    (cells,), counts = statistic.cells, statistic.counts
    accuracy = wilson_interval(int(counts[cells.right].sum()), int(counts.sum()))
    at_end = [name for name in NAMES if not 1e-12 < measured[name].value < 1 - 1e-12]
    intervals = {"accuracy": accuracy}
    if "f1" in at_end:
        f1 = measured["f1"].value
        hits, sizes = cells.hits_and_sizes(counts[:, None])
        if cells.binary:
            share = wilson_interval(int(hits[0, 0]), int(sizes[0, 0] - hits[0, 0]))
            low, high = (2 * end / (1 + end) for end in (share.low, share.high))
        else:
            low, high = min(f1, accuracy.low), max(f1, accuracy.high)
        intervals["f1"] = Interval(f1, low, high)
    return {name: intervals[name] for name in at_end}


def mcnemar_test(labels: Indices, first: Indices, second: Indices) -> McNemar:
    """The exact test whether one of two classifiers is right more often on the same examples.

    Source: McNemar 1947, https://doi.org/10.1007/BF02295996; for classifiers, Dietterich 1998,
    https://doi.org/10.1162/089976698300017197.
    """
    from scipy.stats import binomtest

    first_right, second_right = first == labels, second == labels
    first_only = int((first_right & ~second_right).sum())
    second_only = int((second_right & ~first_right).sum())
    disagreements = first_only + second_only
    p = float(binomtest(first_only, disagreements).pvalue) if disagreements else 1.0
    return McNemar(first_only, second_only, p)


def wilson_interval(right: int, n: int) -> Interval:
    """Wilson's score interval of a proportion, of use for few examples and near 0 and 1.

    Source: Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953.
    """
    from scipy.stats import binomtest

    if n == 0:
        return Interval(float("nan"), 0.0, 1.0)
    low, high = binomtest(right, n).proportion_ci(method="wilson")
    return Interval(right / n, float(low), float(high))


def newcombe_bound(score: Interval, other: float, examples: int) -> float:
    """How far two scores may be apart though both classifiers are as good: the 95% bound of their
    difference. Both are taken as independent proportions, which makes it too wide, if anything.

    Args:
        other: the score that has no interval.
        examples: that the other was measured on.

    Source: Newcombe 1998, Statistics in Medicine 17(8), 873-890, square-and-add.
    """
    around = wilson_interval(round(other * examples), examples)
    if other < score.value:
        return math.hypot(score.value - score.low, max(0.0, around.high - other))
    return math.hypot(score.high - score.value, max(0.0, other - around.low))


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Student's t interval of a mean, as over several seeds; None for fewer than two values."""
    from scipy.special import stdtrit  # loads in half of the time of scipy.stats

    if len(values) < 2:
        return None
    middle, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, 0.975)) * error
    return Interval(middle, middle - half, middle + half)
