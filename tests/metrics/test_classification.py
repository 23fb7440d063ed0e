from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics

from finetune.metrics import classification

Floats = NDArray[np.float64]
Truths = NDArray[np.bool_]


@pytest.fixture(autouse=True)
def warnings_are_errors() -> None:
    warnings.simplefilter("error")


def scored(n: int, share: float = 0.4, ties: bool = False, seed: int = 0) -> tuple[Floats, Truths]:
    """Probabilities that tell something of the truth; with ties, to two digits."""
    random = np.random.default_rng(seed)
    positives = random.random(n) < share
    scores = 1 / (1 + np.exp(-random.normal(np.where(positives, 1.0, -1.0), 1.5)))
    return (scores.round(2) if ties else scores), positives


@pytest.mark.parametrize("classes", [1, 2, 3, 50])
@pytest.mark.parametrize("n", [1, 10, 500])
def test_figures_of_a_confusion_matrix_are_those_of_its_examples(n: int, classes: int) -> None:
    random = np.random.default_rng(0)
    labels, other = random.integers(classes, size=(2, n))
    predictions = np.where(random.random(n) < 0.6, labels, other)
    found = classification.confusion_matrix(labels, predictions, classes)
    every = range(classes)
    if classes > 1:  # for one, scikit-learn warns of it
        expected = metrics.confusion_matrix(labels, predictions, labels=every)
        np.testing.assert_array_equal(found, expected)
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        labels, predictions, labels=every, zero_division=0
    )
    rows = classification.class_scores(found)
    assert [row.precision for row in rows] == pytest.approx(precision)
    assert [row.recall for row in rows] == pytest.approx(recall)
    assert [row.f1 for row in rows] == pytest.approx(f1)
    assert [row.support for row in rows] == support.tolist()
    assert [row.predicted for row in rows] == np.bincount(predictions, minlength=classes).tolist()
    for positive in (0, min(1, classes - 1)):
        binary = {"average": "binary", "pos_label": positive}
        how = binary if classes == 2 else {"average": "macro"}
        assert classification.accuracy_and_f1(found, positive) == pytest.approx(
            {
                "accuracy": metrics.accuracy_score(labels, predictions),
                "f1": metrics.f1_score(labels, predictions, zero_division=0, **how),
            }
        )
    if classes > 1 and n > 1:
        matthews = classification.matthews_corrcoef(found)
        assert matthews == pytest.approx(metrics.matthews_corrcoef(labels, predictions))


def test_rows_of_the_confusion_are_the_true_classes() -> None:
    found = classification.confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 3)
    assert found.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("confusion", "expected"),
    [
        ([[5, 0], [0, 7]], 1), ([[0, 5], [7, 0]], -1), ([[3, 0], [7, 0]], 0), ([[3, 7], [0, 0]], 0),
        ([[4, 0], [0, 0]], 0), ([[3 * 10**9, 10**9], [10**9, 3 * 10**9]], 0.5),
    ],
)  # fmt: skip
def test_matthews_ends_are_exact_and_it_does_not_overflow(
    confusion: list[list[int]], expected: float
) -> None:
    assert classification.matthews_corrcoef(np.array(confusion)) == pytest.approx(expected)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("share", [0.01, 0.4, 0.95])
def test_curves_ascend_and_have_the_areas_of_scikit_learn(share: float, ties: bool) -> None:
    scores, positives = scored(800, share, ties)
    roc = classification.roc_curve(scores, positives)
    other = classification.precision_recall_curve(scores, positives)
    assert roc is not None
    assert other is not None
    assert roc.area == pytest.approx(metrics.roc_auc_score(positives, scores))
    assert other.area == pytest.approx(metrics.average_precision_score(positives, scores))
    for curve in (roc, other):
        assert (np.diff(curve.x) >= 0).all()
        assert (np.diff(curve.thresholds[1:]) < 0).all()
        assert (curve.thresholds[0], curve.x[0], curve.x[-1]) == (np.inf, 0, 1)
    for at in (1, len(roc.x) // 2):
        called = scores >= roc.thresholds[at]
        assert roc.y[at] == pytest.approx(metrics.recall_score(positives, called))
        assert other.y[at] == pytest.approx(metrics.precision_score(positives, called))


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("n", [1, 10])
def test_a_single_class_has_no_curve(n: int, truth: bool) -> None:
    scores, positives = np.linspace(0.1, 0.9, n), np.full(n, truth)
    assert classification.roc_curve(scores, positives) is None
    assert classification.precision_recall_curve(scores, positives) is None
    found = classification.threshold_sweep(scores, positives)
    assert found.recall[0] == found.best.recall == found.best.f1 == truth


@pytest.mark.parametrize(("n", "share"), [(3, 0.4), (150, 0.4), (20_000, 0.4), (20_000, 0.005)])
def test_a_thinned_curve_keeps_its_ends_its_shape_and_its_area(n: int, share: float) -> None:
    scores, positives = scored(n, share, seed=3)
    for curve in (
        classification.roc_curve(scores, positives),
        classification.precision_recall_curve(scores, positives),
    ):
        assert curve is not None
        found = classification.thin_curve(curve)
        assert len(found.x) == len(found.y) == len(found.thresholds) <= min(200, len(curve.x))
        assert found.area == curve.area
        for thinned, full in ((found.x, curve.x), (found.y, curve.y)):
            assert (thinned[0], thinned[-1]) == (full[0], full[-1])
        assert set(zip(found.x, found.y, strict=True)) <= set(zip(curve.x, curve.y, strict=True))
        lost = np.trapezoid(found.y, found.x) - np.trapezoid(curve.y, curve.x)
        assert abs(float(lost)) < 0.003
        # No point of the full curve is far from all points that are kept.
        points, kept = (np.stack([one.x, one.y], axis=1) for one in (curve, found))
        away = points[::50, None] - kept[None]
        assert np.hypot(away[..., 0], away[..., 1]).min(axis=1).max() < 0.05


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("share", [0.02, 0.4, 1.0])
def test_a_sweep_equals_scikit_learn_at_each_threshold(share: float, ties: bool) -> None:
    scores, positives = scored(300, share, ties)
    found = classification.threshold_sweep(scores, positives)
    assert found.thresholds.tolist() == [n / 100 for n in range(101)]
    for index, threshold in list(enumerate(found.thresholds))[::10]:
        called = scores >= threshold
        precision, recall, f1, _ = metrics.precision_recall_fscore_support(
            positives, called, average="binary", zero_division=0
        )
        accuracy = metrics.accuracy_score(positives, called)
        row = [getattr(found, name)[index] for name in ("accuracy", "precision", "recall", "f1")]
        assert row == pytest.approx([accuracy, precision, recall, f1])


def f1_at(scores: NDArray[np.floating], positives: Truths, threshold: float) -> float:
    return float(metrics.f1_score(positives, scores >= threshold, zero_division=0))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([np.float32, np.float64]),
)
def test_no_threshold_has_a_better_f1_than_the_best(
    rows: list[tuple[float, bool]], kind: type[np.floating]
) -> None:
    scores = np.array([score for score, _ in rows], dtype=kind)
    positives = np.array([positive for _, positive in rows])
    best = classification.threshold_sweep(scores, positives).best
    assert best.f1 == pytest.approx(f1_at(scores.astype(float), positives, best.threshold))
    assert best.f1 == pytest.approx(max(f1_at(scores, positives, one) for one in scores))


def test_the_best_threshold_lies_midway_between_neighbours() -> None:
    scores = np.array([0.1, 0.2, 0.6, 0.7])
    found = classification.threshold_sweep(scores, np.array([False, False, True, True])).best
    assert found.threshold == pytest.approx(0.4)
    assert (found.accuracy, found.precision, found.recall, found.f1) == (1, 1, 1, 1)
    found = classification.threshold_sweep(scores, np.array([True, True, True, True])).best
    assert found.threshold == pytest.approx(0.05)
    # Of thresholds as good the one nearest a half.
    found = classification.threshold_sweep(scores, np.array([False, False, False, False])).best
    assert (found.threshold, found.f1) == (0.5, 0)


@pytest.mark.parametrize("low", [0.5, float(np.nextafter(0.5, 1)), 0.0, 0.7])
def test_between_two_floats_without_room_the_upper_is_the_threshold(low: float) -> None:
    scores, positives = np.array([low, np.nextafter(low, 1)]), np.array([False, True])
    best = classification.threshold_sweep(scores, positives).best
    assert best.f1 == f1_at(scores, positives, best.threshold) == 1
