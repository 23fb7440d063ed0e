"""95% confidence intervals of metrics, and tests of differences between classifiers.

The bootstrap resamples the counts of the confusion matrix's cells, not the examples: examples of
the same label and prediction are interchangeable. 10,000 resamples of 408 or 40,000 examples take
6 ms; `scipy.stats.bootstrap(method="BCa")` takes 320 ms for 408.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics import classification
from finetune.metrics.catalog import STANDARD, Metric, Tally
from finetune.metrics.classification import Counts, Floats, Indices, Truths

_RESAMPLES = 10_000
_FEWEST = 200  # resamples, however many cells there are
_BUDGET = 2_000_000  # cells x resamples, 16 MB

# The metrics, of shape (metrics, samples), of counts of shape (cells, samples).
_Statistic = Callable[[Counts], Floats]


@dataclass(frozen=True)
class Interval:
    """A figure and its 95% confidence interval."""

    value: float  # nan if nothing was measured
    low: float
    high: float
    resamples: int = 0  # bootstrap samples behind it; 0 if it comes from a formula


@dataclass(frozen=True)
class McNemar:
    """The number of examples on which only the first, and only the second of two classifiers is
    right, and the two-sided p value of "both are right equally often"."""

    first_only: int
    second_only: int
    p: float


def bootstrap_intervals(
    confusion: Counts, positive: int = 1, metrics: Iterable[Metric] = STANDARD
) -> dict[str, Interval]:
    """Compute bootstrap intervals of metrics of answers, bias-corrected and accelerated (BCa).

    At the ends of a metric's range all resamples agree; Wilson's interval of a proportion is used
    there
    (`Metric.at_ends`).

    Source: Efron 1987, Better Bootstrap Confidence Intervals,
    https://doi.org/10.1080/01621459.1987.10478410.
    """
    metrics = [metric for metric in metrics if metric.of_tally is not None]
    labels, predictions = np.nonzero(confusion)
    meant = positive if len(confusion) == 2 else None
    statistic = _scores_of(labels, predictions, meant, metrics)
    intervals = _bootstrap(statistic, confusion[labels, predictions], metrics)
    for metric in metrics:
        score, (least, most) = intervals[metric.name], metric.range
        if not least + 1e-12 < score.value < most - 1e-12:
            right, n, ends = metric.at_ends(Tally.of(confusion), meant)
            share = wilson_interval(right, n)
            intervals[metric.name] = Interval(score.value, ends(share.low), ends(share.high))
    return intervals


def paired_bootstrap(
    labels: Indices,
    first: Indices,
    second: Indices,
    classes: int,
    positive: int = 1,
    metrics: Iterable[Metric] = STANDARD,
) -> dict[str, Interval]:
    """Compute bootstrap intervals of the difference second - first on the same examples, in which
    what is hard for both cancels out (Berg-Kirkpatrick, Burkett and Klein 2012,
    https://aclanthology.org/D12-1091/)."""
    metrics = [metric for metric in metrics if metric.of_tally is not None]
    cells, counts = np.unique(np.stack([labels, first, second]), axis=1, return_counts=True)
    meant = positive if classes == 2 else None
    before, after = (_scores_of(cells[0], predictions, meant, metrics) for predictions in cells[1:])
    return _bootstrap(lambda weights: after(weights) - before(weights), counts, metrics)


def example_intervals(
    answers: NDArray[Any], truth: NDArray[Any], metrics: Iterable[Metric]
) -> dict[str, Interval]:
    """Compute the same intervals of metrics of scores or of several labels, by resampling examples.

    At the ends of a metric's range Wilson's interval of as many examples, all of them right or all
    wrong, is used.

    Args:
        answers, truth: of shape (examples, ...).
    """
    metrics, examples = [metric for metric in metrics if metric.of_examples], len(truth)
    counts = np.ones(examples, np.int64)
    intervals = _bootstrap(_metrics_of(answers, truth, metrics), counts, metrics)
    for metric in metrics:
        score, (least, most) = intervals[metric.name], metric.range
        if math.isfinite(most) and not least + 1e-12 < score.value < most - 1e-12:
            share = wilson_interval(examples * (2 * score.value > least + most), examples)
            low, high = (least + (most - least) * end for end in (share.low, share.high))
            intervals[metric.name] = Interval(score.value, low, high)
    return intervals


def paired_example_bootstrap(
    truth: NDArray[Any], first: NDArray[Any], second: NDArray[Any], metrics: Iterable[Metric]
) -> dict[str, Interval]:
    """Compute bootstrap intervals of the difference second - first of such metrics on the same
    examples."""
    metrics = [metric for metric in metrics if metric.of_examples]
    before, after = (_metrics_of(answers, truth, metrics) for answers in (first, second))
    counts = np.ones(len(truth), np.int64)
    return _bootstrap(lambda weights: after(weights) - before(weights), counts, metrics)


def _metrics_of(
    answers: NDArray[Any], truth: NDArray[Any], metrics: Sequence[Metric]
) -> _Statistic:
    """The statistic of these examples, which are cells of their own."""
    functions = [metric.of_examples for metric in metrics if metric.of_examples]
    return lambda weights: np.stack([of(answers, truth, weights) for of in functions])


def _scores_of(
    labels: Indices, predictions: Indices, positive: int | None, metrics: Sequence[Metric]
) -> _Statistic:
    """The statistic of cells of these labels and predictions, of the positive class or of all."""
    from scipy.sparse import csr_array

    size, cells = int(max(labels.max(), predictions.max(), positive or 0)) + 1, len(labels)
    # Which cells count for which class, of shape (classes, cells).
    labelled, predicted = (
        csr_array((np.ones(cells, np.int64), (classes, np.arange(cells))), (size, cells))
        for classes in (labels, predictions)
    )
    hits = labelled.multiply(labels == predictions).tocsr()

    def scores(counts: Counts) -> Floats:
        tally = Tally(hits @ counts, labelled @ counts, predicted @ counts)
        return np.stack([metric.tallied(tally, positive) for metric in metrics])

    return scores


def _bootstrap(
    statistic: _Statistic, counts: Counts, metrics: Sequence[Metric]
) -> dict[str, Interval]:
    # 1. Scores of resamples: fewer of them where the cells are many.
    resamples, total = min(_RESAMPLES, max(_FEWEST, _BUDGET // len(counts))), int(counts.sum())
    samples = np.random.default_rng(0).multinomial(total, counts / total, resamples)
    draws = statistic(np.ascontiguousarray(samples.T))
    # 2. Efron's a, how fast the standard error changes with the score, by the jackknife; 0 where
    # the cells are too many, and the examples so many that it matters little.
    measured = statistic(counts[:, None])
    accelerations = np.zeros(len(metrics))
    if total > 1 and len(counts) ** 2 <= _BUDGET:
        left_out = statistic(counts[:, None] - np.eye(len(counts), dtype=np.int64))
        away = np.average(left_out, axis=1, weights=counts)[:, None] - left_out
        square, cube = ((counts * away**power).sum(axis=1) for power in (2, 3))
        accelerations = classification.ratio(cube, np.where(square < 1e-24, 0, 6 * square**1.5))
    # 3. The ends of the intervals.
    rows = zip(metrics, measured[:, 0], draws, accelerations, strict=True)
    return {
        metric.name: Interval(float(value), *_bca_ends(value, scores, acceleration), resamples)
        for metric, value, scores, acceleration in rows
    }


def _bca_ends(value: float, draws: Floats, acceleration: float) -> tuple[float, float]:
    """The ends of the interval; ties with the measured value count half below it."""
    from scipy.special import ndtr, ndtri

    ties = np.abs(draws - value) < 1e-12
    below = ((draws < value) & ~ties).mean() + ties.mean() / 2
    edge = 0.5 / len(draws)  # no sample is ever wholly on one side
    bias = ndtri(np.clip(below, edge, 1 - edge))
    z = bias + ndtri(np.array([0.025, 0.975]))
    low, high = np.quantile(draws, ndtr(bias + z / np.maximum(1 - acceleration * z, 1e-6)))
    return float(low), float(high)


def mcnemar_test(first_right: Truths, second_right: Truths) -> McNemar:
    """Test exactly whether one of two classifiers is right more often on the same examples.

    Source: Dietterich 1998, https://doi.org/10.1162/089976698300017197.
    """
    from scipy.stats import binomtest

    first_only = int((first_right & ~second_right).sum())
    second_only = int((second_right & ~first_right).sum())
    disagreements = first_only + second_only
    p = float(binomtest(first_only, disagreements).pvalue) if disagreements else 1.0
    return McNemar(first_only, second_only, p)


def wilson_interval(right: int, n: int) -> Interval:
    """Wilson's score interval (1927) of a proportion, suitable for few examples and near 0 and
    1."""
    from scipy.stats import binomtest

    if n == 0:
        return Interval(float("nan"), 0.0, 1.0)
    low, high = binomtest(right, n).proportion_ci(method="wilson")
    return Interval(right / n, float(low), float(high))


def accuracy_margin(examples: int) -> float:
    """Half of the 95% interval of an accuracy of 0.5: the largest margin with this many
    examples."""
    interval = wilson_interval(examples // 2, examples)
    return (interval.high - interval.low) / 2


def newcombe_interval(score: Interval, other: float, examples: int) -> Interval:
    """The interval of the difference `score` - `other`, the latter without an interval of its own.
    Both are taken as independent proportions, which makes it too wide, if anything.

    Source: Newcombe 1998, Statistics in Medicine 17(8), 873-890, square-and-add.
    """
    return _square_and_add(score, other, wilson_interval(round(other * examples), examples))


def correlation_difference(score: Interval, other: float, examples: int) -> Interval:
    """The interval of the difference of two correlations, the second without an interval of its
    own: it gets Fisher's. Both are taken as independent.

    Source: Zou 2007, Psychological Methods 12(4), 399-413.
    """
    middle = math.atanh(max(-0.999999, min(0.999999, other)))
    half = 1.959964 / math.sqrt(max(1, examples - 3))
    around = Interval(other, math.tanh(middle - half), math.tanh(middle + half))
    return _square_and_add(score, other, around)


def _square_and_add(score: Interval, other: float, around: Interval) -> Interval:
    difference = score.value - other
    below = math.hypot(score.value - score.low, max(0.0, around.high - other))
    above = math.hypot(score.high - score.value, max(0.0, other - around.low))
    return Interval(difference, difference - below, difference + above)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Student's t interval of a mean, such as that over several seeds; None for fewer than two
    values."""
    from scipy.special import stdtrit  # loads in half of the time of scipy.stats

    if len(values) < 2:
        return None
    middle, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, 0.975)) * error
    return Interval(middle, middle - half, middle + half)
