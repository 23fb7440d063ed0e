"""Confusion matrices, scores of classes, curves over thresholds, and the best threshold.

scikit-learn is imported when it is first needed, because that takes a second. An example is called
positive if its score is at least the threshold.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.integer[Any]]
Probabilities = NDArray[np.floating[Any]]
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Truths = NDArray[np.bool_]


@dataclass(frozen=True)
class ClassScores:
    """One class against all others: `support` examples belong to it, `predicted` were assigned to
    it. A score without examples is None."""

    precision: float | None
    recall: float | None
    f1: float | None
    support: int
    predicted: int


@dataclass(frozen=True)
class Curve:
    """A curve over falling thresholds."""

    x: Floats  # the false positive rate, or the recall; of shape (points,), ascending
    y: Floats  # the true positive rate, or the precision
    area: float  # under the full curve, also if it has been thinned


@dataclass(frozen=True)
class ThresholdSweep:
    """The metrics at thresholds from 0 to 1, all of shape (101,), and at the best threshold; nan if
    a metric has no examples."""

    thresholds: Floats
    scores: dict[str, Floats]  # by name, the one that is best at `best` first
    best: dict[str, float]  # `threshold` and the metrics there


def ratio(above: NDArray[Any], below: NDArray[Any]) -> Floats:
    """above / below, elementwise; 0 where below is 0."""
    out = np.zeros(np.broadcast_shapes(np.shape(above), np.shape(below)))
    np.divide(above, below, out=out, where=np.asarray(below) > 0)
    return out


def mean_f1(hits: NDArray[Any], sizes: NDArray[Any]) -> Floats:
    """Mean F1 of the classes that occur. `hits` are the examples rightly assigned to each class,
    `sizes` the examples of each class plus those assigned to it, both of shape (classes, ...)."""
    occurring = np.maximum(1, (sizes > 0).sum(axis=0))
    return ratio(2 * hits, sizes).sum(axis=0) / occurring  # type: ignore[no-any-return]


def confusion_matrix(labels: Indices, predictions: Indices, classes: int) -> Counts:
    """Count the examples of each class (row) that are assigned to each class (column).

    scikit-learn's takes 50 times as long, and warns of a single class.
    """
    cells = np.asarray(labels, dtype=np.int64) * classes + predictions
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def class_scores(confusion: Counts) -> list[ClassScores]:
    """Precision, recall and F1 of each class, in order."""
    hits, support, predicted = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)

    def shares(above: Counts, below: Counts) -> list[float | None]:
        return [a / b if b else None for a, b in zip(above.tolist(), below.tolist(), strict=True)]

    f1, counts = shares(2 * hits, support + predicted), (support.tolist(), predicted.tolist())
    columns = shares(hits, predicted), shares(hits, support), f1, *counts
    return [ClassScores(*row) for row in zip(*columns, strict=True)]


def ranking_curves(scores: Probabilities, positives: Truths) -> tuple[Curve, Curve] | None:
    """Return the receiver operating characteristic, and the precision-recall curve, whose area is
    the average precision; None if there are no positives or no negatives."""
    from sklearn import metrics

    if positives.all() or not positives.any():
        return None
    x, y, _ = metrics.roc_curve(positives, scores, drop_intermediate=False)
    precision, recall, _ = metrics.precision_recall_curve(positives, scores)
    area = float(-(np.diff(recall) * precision[:-1]).sum())
    return Curve(x, y, float(metrics.auc(x, y))), Curve(recall[::-1], precision[::-1], area)


def thin_curve(curve: Curve, points: int = 200) -> Curve:
    """Reduce a curve to at most this many points, evenly spaced along its length, for a chart."""
    if len(curve.x) <= points:
        return curve
    length = np.append(0.0, np.cumsum(np.hypot(np.diff(curve.x), np.diff(curve.y))))
    rows = np.unique(np.searchsorted(length, np.linspace(0, length[-1], points)))
    rows[-1] = len(length) - 1
    return replace(curve, x=curve.x[rows], y=curve.y[rows])


def threshold_sweep(scores: Probabilities, positives: Truths) -> ThresholdSweep:
    """Compute the metrics at thresholds 0.00, 0.01 ... 1.00, and at the threshold of the best F1.

    The best threshold is fitted to these very examples, so the F1 there is better than what new
    examples will show.
    """
    exact: Floats = np.asarray(scores, np.float64)
    thresholds = np.append(np.arange(101) / 100, best_threshold(exact, positives))
    called = exact >= thresholds[:, None]
    hits, predicted = called[:, positives].sum(axis=1), called.sum(axis=1)
    support, examples = positives.sum(), np.array(len(positives))
    metrics = {
        "f1": np.where(predicted + support > 0, ratio(2 * hits, predicted + support), np.nan),
        "accuracy": ratio(examples - predicted - support + 2 * hits, examples),
        "precision": np.where(predicted > 0, ratio(hits, predicted), np.nan),
        "recall": np.where(support > 0, ratio(hits, support), np.nan),
    }
    best = {name: float(values[-1]) for name, values in metrics.items()}
    best["threshold"] = float(thresholds[-1])
    grid = {name: values[:-1] for name, values in metrics.items()}
    return ThresholdSweep(thresholds[:-1], grid, best)


def best_threshold(scores: Floats, positives: Truths) -> float:
    """Find the threshold of the best F1, midway between two neighbouring scores (or 0 and the
    lowest); of several the one nearest to a half."""
    from sklearn import metrics

    if not positives.any():
        return 0.5
    precision, recall, cuts = metrics.precision_recall_curve(positives, scores)
    f1 = ratio(2 * precision * recall, precision + recall)[:-1]
    below = np.append(min(0.0, cuts[0]), cuts[:-1])
    between = below + (cuts - below) / 2
    thresholds = np.where(between > below, between, cuts)  # two neighbouring floats have no middle
    equals = thresholds[np.isclose(f1, f1.max(), rtol=1e-12, atol=0)]
    return float(equals[np.argmin(np.abs(equals - 0.5))])


def predict_by_threshold(
    tuned_on: NDArray[Any], labels: Indices, similarity: NDArray[Any], positive: int
) -> Indices:
    """Predict classes by a threshold of a similarity. Threshold and direction are those most often
    right on the tuning pairs. All arrays have shape (pairs,)."""
    values = np.unique(tuned_on).astype(np.float64)
    edges = np.array([-np.inf, *(values[1:] + values[:-1]) / 2, np.inf])
    right = ((tuned_on >= edges[:, None]) == (labels == positive)).sum(axis=1)
    high, low = int(right.argmax()), int(right.argmin())
    if right[high] >= len(labels) - right[low]:
        called = similarity >= edges[high]
    else:  # the positive class is that of unlike sentences
        called = similarity < edges[low]
    return np.where(called, positive, 1 - positive).astype(np.int64)
