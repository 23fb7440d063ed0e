"""What kinds of mistakes there are, and what another threshold would make of them.

From class indices: the confusion matrix, precision, recall and F1 of each class, Matthews'
coefficient. From the scores of one class: the ROC and the precision-recall curve, and the metrics
at every threshold. How far these figures can be trusted is `intervals`' business; whether a score
of 0.8 means 80 % is `calibration`'s. Draws nothing.

Throughout, an example is called positive where its score is at least the threshold, and a ratio
without any example (a precision where nothing is called positive) is 0.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClassScores:
    """One class against all others.

    Args:
        precision: share right of the examples put into this class.
        recall: share of the examples of this class that are put there.
        f1: the harmonic mean of the two.
        support: examples of this class.
        predicted: examples put into this class.
    """

    precision: float
    recall: float
    f1: float
    support: int
    predicted: int


@dataclass(frozen=True)
class Curve:
    """A curve over thresholds, from the highest (nothing is called positive) to the lowest.

    Args:
        x: of shape (points,), ascending; the false positive rate, or the recall.
        y: of shape (points,); the true positive rate, or the precision.
        thresholds: of shape (points,), descending from infinity.
        area: under the full curve, also where it has been thinned.
    """

    x: Floats
    y: Floats
    thresholds: Floats
    area: float


@dataclass(frozen=True)
class ThresholdMetrics:
    """The metrics at one threshold, each from 0 to 1."""

    threshold: float
    accuracy: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class ThresholdSweep:
    """The metrics over a grid of thresholds.

    Args:
        thresholds: of shape (steps,), from 0 to 1.
        accuracy, precision, recall, f1: of shape (steps,).
        best: the threshold with the best F1 of all, not of the grid alone.
    """

    thresholds: Floats
    accuracy: Floats
    precision: Floats
    recall: Floats
    f1: Floats
    best: ThresholdMetrics


def confusion_matrix(labels: Indices, predictions: Indices, classes: int) -> NDArray[np.int64]:
    """How many examples of each class are put into each.

    Args:
        labels, predictions: class indices of shape (examples,).
        classes: how many there are.

    Returns:
        of shape (classes, classes); rows are the true classes.
    """
    cells = np.asarray(labels, dtype=np.int64) * classes + predictions
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def per_class(confusion: NDArray[np.int64]) -> list[ClassScores]:
    """Precision, recall and F1 of each class.

    Args:
        confusion: of shape (classes, classes); rows are the true classes.
    """
    hits, support, predicted = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
    rows = zip(
        _ratio(hits, predicted).tolist(),
        _ratio(hits, support).tolist(),
        _ratio(2 * hits, support + predicted).tolist(),
        support.tolist(),
        predicted.tolist(),
        strict=True,
    )
    return [ClassScores(*row) for row in rows]


def constant_answer_scores(
    support: Sequence[int], answer: int, positive: int = 1
) -> dict[str, float]:
    """The accuracy and F1 of always answering one class, as `metrics.AccuracyAndF1` has them.

    Args:
        support: how many examples each class has.
        answer: index of the class that is always answered.
        positive: of two classes, the one whose F1 is meant; of more it is macro F1, over the
            classes that occur or are answered.
    """
    share = support[answer] / max(1, sum(support))
    f1 = 2 * share / (1 + share)  # precision is the share, recall is 1
    if len(support) > 2:
        f1 /= sum(1 for label, count in enumerate(support) if count or label == answer)
    elif answer != positive:
        f1 = 0.0
    return {"accuracy": share, "f1": f1}


def matthews_corrcoef(confusion: NDArray[np.int64]) -> float:
    """Matthews' correlation coefficient, for two classes or more.

    1 is all right, 0 no better than chance; -1, reached by two classes alone, all wrong.

    Args:
        confusion: of shape (classes, classes); rows are the true classes.

    Returns:
        0 where labels or predictions hold a single class, as scikit-learn has it.

    Source: Gorodkin 2004, Comparing two K-category assignments by a K-category correlation
    coefficient, Computational Biology and Chemistry 28(5-6), 367-374,
    https://doi.org/10.1016/j.compbiolchem.2004.09.006; for two classes, Matthews 1975, Comparison
    of the predicted and observed secondary structure of T4 phage lysozyme, Biochimica et
    Biophysica Acta 405(2), 442-451, https://doi.org/10.1016/0005-2795(75)90109-9.
    """
    # In whole numbers of any size: 100,000 examples to the fourth power pass 64 bits.
    support = [int(count) for count in confusion.sum(axis=1)]
    predicted = [int(count) for count in confusion.sum(axis=0)]
    n, right = sum(support), int(confusion.trace())
    shared = right * n - sum(p * t for p, t in zip(predicted, support, strict=True))
    spread_predicted = n * n - sum(p * p for p in predicted)
    spread_true = n * n - sum(t * t for t in support)
    if not spread_predicted or not spread_true:
        return 0.0
    return shared / math.sqrt(spread_predicted) / math.sqrt(spread_true)


def roc_curve(scores: NDArray[np.floating[Any]], positives: NDArray[np.bool_]) -> Curve | None:
    """The receiver operating characteristic: true against false positive rate.

    Its area is the chance that a positive example scores above a negative one, ties counted half.

    Args:
        scores: of shape (examples,), higher for what is more likely positive.
        positives: of shape (examples,), True where the example is positive.

    Returns:
        the curve from (0, 0) to (1, 1), one point for each distinct score; None where there are
        no positives or no negatives.

    Source: Fawcett 2006, An introduction to ROC analysis, Pattern Recognition Letters 27(8),
    861-874, https://doi.org/10.1016/j.patrec.2005.10.010.
    """
    thresholds, hits, called = _ranked(scores, positives)
    positive, negative = int(hits[-1]), int(called[-1] - hits[-1])
    if not positive or not negative:
        return None
    x, y = (called - hits) / negative, hits / positive
    return Curve(x, y, thresholds, float(np.trapezoid(y, x)))


def precision_recall_curve(
    scores: NDArray[np.floating[Any]], positives: NDArray[np.bool_]
) -> Curve | None:
    """Precision against recall.

    Its area is the average precision: each precision weighted by the recall gained there. Straight
    lines between the points would promise too much.

    Args:
        scores, positives: as for `roc`.

    Returns:
        the curve from recall 0, where precision is set to 1, to recall 1; None where there are no
        positives or no negatives.

    Source: Davis and Goadrich 2006, The relationship between Precision-Recall and ROC curves,
    ICML, https://doi.org/10.1145/1143844.1143874; average precision as scikit-learn's
    `average_precision_score`.
    """
    thresholds, hits, called = _ranked(scores, positives)
    positive = int(hits[-1])
    if not positive or positive == called[-1]:
        return None
    x, y = hits / positive, _ratio(hits, called)
    y[0] = 1.0
    return Curve(x, y, thresholds, float((np.diff(x) * y[1:]).sum()))


def thin_curve(curve: Curve, points: int = 200) -> Curve:
    """The same curve of fewer points, for a chart.

    From the two ends on, the point farthest from the line drawn so far is added, which is the
    rule of Douglas and Peucker with a number of points in place of a tolerance.

    Args:
        points: how many are kept at most, at least 2.

    Returns:
        points of the curve, its first and last among them; `area` stays that of the full curve.

    Source: Douglas and Peucker 1973, Algorithms for the reduction of the number of points required
    to represent a digitized line or its caricature, Cartographica 10(2), 112-122,
    https://doi.org/10.3138/FM57-6770-U75U-7727.
    """
    last = len(curve.x) - 1
    kept = {0, last}
    worst = [_farthest(curve, 0, last)]
    while len(kept) < points:
        away, middle, left, right = heapq.heappop(worst)
        if away == 0:  # all that is left out lies on the line
            break
        kept.add(middle)
        heapq.heappush(worst, _farthest(curve, left, middle))
        heapq.heappush(worst, _farthest(curve, middle, right))
    chosen = sorted(kept)
    return replace(curve, x=curve.x[chosen], y=curve.y[chosen], thresholds=curve.thresholds[chosen])


def threshold_sweep(
    scores: NDArray[np.floating[Any]], positives: NDArray[np.bool_], steps: int = 101
) -> ThresholdSweep:
    """The metrics at every threshold of a grid, and the threshold of the best F1.

    The best threshold is fitted to these very examples, so the F1 there is better than what new
    examples will show.

    Args:
        scores: probabilities of shape (examples,), at least one example.
        positives: of shape (examples,), True where the example is positive.
        steps: thresholds from 0 to 1; 101 for 0.00, 0.01 ... 1.00.

    Returns:
        the metrics; `best.threshold` lies midway between two neighbouring scores (or 0 and the
        lowest), and where several have the same F1 it is the one nearest 0.5.
    """
    values, hits, called = _ranked(scores, positives)
    grid = np.arange(steps) / (steps - 1)
    # values descend from infinity: the last that is at least t ends those called positive.
    ends = len(values) - 1 - np.searchsorted(values[::-1], grid, side="left")
    found = _metrics(hits[ends], called[ends], hits[-1], called[-1])
    return ThresholdSweep(grid, *found, best=_best(values, hits, called))


def metrics_at_threshold(
    scores: NDArray[np.floating[Any]], positives: NDArray[np.bool_], threshold: float
) -> dict[str, float]:
    """The metrics of "positive where the score is at least this".

    Args:
        scores, positives: of shape (examples,), at least one example.
        threshold: any number.

    Returns:
        `accuracy`, `precision`, `recall` and `f1`.
    """
    called = np.asarray(scores, dtype=np.float64) >= threshold
    counts = ((called & positives).sum(), called.sum(), positives.sum(), len(called))
    found = _metrics(*(np.array([count]) for count in counts))
    names = ("accuracy", "precision", "recall", "f1")
    return {name: float(value[0]) for name, value in zip(names, found, strict=True)}


def _ranked(
    scores: NDArray[np.floating[Any]], positives: NDArray[np.bool_]
) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Of each distinct score from the top: it, and the positives and examples at least as high.

    The first row stands for a threshold above all scores.
    """
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(-values, kind="stable")
    values = values[order]
    last_of_ties = np.append(np.flatnonzero(np.diff(values)), len(values) - 1)
    hits = np.cumsum(np.asarray(positives, dtype=np.int64)[order])[last_of_ties]
    return (
        np.concatenate([[np.inf], values[last_of_ties]]),
        np.concatenate([[0], hits]),
        np.concatenate([[0], last_of_ties + 1]),
    )


def _metrics(
    hits: Indices, called: Indices, positive: Indices, n: Indices
) -> tuple[Floats, Floats, Floats, Floats]:
    """Accuracy, precision, recall and F1 from counts of true positives and called positives."""
    right = n - called - positive + 2 * hits
    return (
        _ratio(right, n),
        _ratio(hits, called),
        _ratio(hits, positive),
        _ratio(2 * hits, called + positive),
    )


def _best(values: Floats, hits: Indices, called: Indices) -> ThresholdMetrics:
    """The threshold of the best F1; nothing called positive is no choice."""
    found = _metrics(hits[1:], called[1:], hits[-1], called[-1])
    lowest = values[-1]
    below = np.append(values[2:], 0.0 if lowest > 0 else lowest)
    between = below + (values[1:] - below) / 2
    # Between two neighbouring floats there is nothing: the upper one itself parts them as well.
    thresholds = np.where((between > below) | (values[1:] == below), between, values[1:])
    ties = np.flatnonzero(found[-1] == found[-1].max())
    best = ties[np.argmin(np.abs(thresholds[ties] - 0.5))]
    return ThresholdMetrics(float(thresholds[best]), *(float(metric[best]) for metric in found))


def _farthest(curve: Curve, left: int, right: int) -> tuple[float, int, int, int]:
    """Of the points between two: (less its distance to their line, itself, the two)."""
    if right - left < 2:
        return 0.0, left, left, right
    x, y = curve.x[left : right + 1] - curve.x[left], curve.y[left : right + 1] - curve.y[left]
    length = float(np.hypot(x[-1], y[-1]))
    away = np.abs(x * y[-1] - y * x[-1]) / length if length else np.hypot(x, y)
    middle = int(np.argmax(away))
    far = float(away[middle])
    return (-far if far > 1e-12 else 0.0), left + middle, left, right


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> Floats:
    """above / below, and 0 where below is 0."""
    out = np.zeros(np.broadcast_shapes(np.shape(above), np.shape(below)))
    np.divide(above, below, out=out, where=np.asarray(below) > 0)
    return out
