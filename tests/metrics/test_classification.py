from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics

from finetune.metrics import classification


@pytest.fixture(autouse=True)
def warnings_are_errors() -> None:
    warnings.simplefilter("error")


def made(n: int, classes: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    draw = np.random.default_rng(seed)
    labels = draw.integers(classes, size=n)
    return labels, np.where(draw.random(n) < 0.6, labels, draw.integers(classes, size=n))


def scored(
    n: int, share: float = 0.4, ties: bool = False, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Probabilities that tell something of the truth; with ties, to two digits."""
    draw = np.random.default_rng(seed)
    positives = draw.random(n) < share
    scores = 1 / (1 + np.exp(-draw.normal(np.where(positives, 1.0, -1.0), 1.5)))
    return (scores.round(2) if ties else scores), positives


@pytest.mark.parametrize("classes", [1, 2, 3, 50])
@pytest.mark.parametrize("n", [1, 10, 500])
def test_the_confusion_and_its_figures_equal_scikit_learns(n: int, classes: int) -> None:
    labels, predictions = made(n, classes)
    found = classification.confusion_matrix(labels, predictions, classes)
    every = range(classes)
    if classes > 1:  # for one, scikit-learn warns of it
        np.testing.assert_array_equal(
            found, metrics.confusion_matrix(labels, predictions, labels=every)
        )
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        labels, predictions, labels=every, zero_division=0
    )
    rows = classification.per_class(found)
    assert [row.precision for row in rows] == pytest.approx(precision)
    assert [row.recall for row in rows] == pytest.approx(recall)
    assert [row.f1 for row in rows] == pytest.approx(f1)
    assert [row.support for row in rows] == support.tolist()
    assert [row.predicted for row in rows] == np.bincount(predictions, minlength=classes).tolist()
    if classes > 1 and n > 1:
        assert classification.matthews_corrcoef(found) == pytest.approx(
            metrics.matthews_corrcoef(labels, predictions)
        )


def test_rows_of_the_confusion_are_the_true_classes() -> None:
    found = classification.confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 3)
    assert found.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]


def test_matthews_ends_are_exact_and_it_does_not_overflow() -> None:
    assert classification.matthews_corrcoef(np.array([[5, 0], [0, 7]])) == pytest.approx(1)
    assert classification.matthews_corrcoef(np.array([[0, 5], [7, 0]])) == pytest.approx(-1)
    assert classification.matthews_corrcoef(np.array([[3, 0], [7, 0]])) == 0
    assert classification.matthews_corrcoef(np.array([[3, 7], [0, 0]])) == 0
    many = np.array([[3_000_000_000, 1_000_000_000], [1_000_000_000, 3_000_000_000]])
    assert classification.matthews_corrcoef(many) == pytest.approx(0.5)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("share", [0.01, 0.4, 0.95])
def test_the_roc_equals_scikit_learns(share: float, ties: bool) -> None:
    scores, positives = scored(800, share, ties)
    found = classification.roc_curve(scores, positives)
    assert found is not None
    x, y, thresholds = metrics.roc_curve(positives, scores, drop_intermediate=False)
    np.testing.assert_allclose(found.x, x)
    np.testing.assert_allclose(found.y, y)
    np.testing.assert_array_equal(found.thresholds, thresholds)
    assert found.area == pytest.approx(metrics.roc_auc_score(positives, scores))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("share", [0.01, 0.4, 0.95])
def test_precision_and_recall_equal_scikit_learns(share: float, ties: bool) -> None:
    scores, positives = scored(800, share, ties)
    found = classification.precision_recall_curve(scores, positives)
    assert found is not None
    precision, recall, thresholds = metrics.precision_recall_curve(positives, scores)
    np.testing.assert_allclose(found.x, recall[::-1])
    np.testing.assert_allclose(found.y, precision[::-1])
    np.testing.assert_array_equal(found.thresholds[1:], thresholds[::-1])
    assert found.thresholds[0] == np.inf
    assert found.area == pytest.approx(metrics.average_precision_score(positives, scores))


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("n", [1, 10])
def test_a_single_class_has_no_curve(n: int, truth: bool) -> None:
    scores, positives = np.linspace(0.1, 0.9, n), np.full(n, truth)
    assert classification.roc_curve(scores, positives) is None
    assert classification.precision_recall_curve(scores, positives) is None
    found = classification.threshold_sweep(scores, positives)
    assert found.recall[0] == found.best.recall == found.best.f1 == truth


@pytest.mark.parametrize("n", [3, 150, 20_000])
def test_a_thinned_curve_keeps_its_ends_its_shape_and_its_area(n: int) -> None:
    scores, positives = scored(n, seed=3)
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
        assert abs(float(lost)) < 0.002


def test_a_thinned_roc_is_nowhere_far_from_the_full_one() -> None:
    curve = classification.roc_curve(*scored(20_000, 0.005, seed=4))  # steep at the start
    assert curve is not None
    found = classification.thin_curve(curve)
    steps = (np.stack([found.x[1:], found.y[1:]]) - np.stack([found.x[:-1], found.y[:-1]])).T
    starts = np.stack([found.x[:-1], found.y[:-1]], axis=1)
    square = np.maximum((steps**2).sum(axis=1), 1e-30)
    for point in np.stack([curve.x, curve.y], axis=1)[::50]:
        along = np.clip(((point - starts) * steps).sum(axis=1) / square, 0, 1)
        nearest = starts + along[:, None] * steps
        assert np.hypot(*(nearest - point).T).min() < 0.005


def test_points_on_one_line_are_left_out() -> None:
    line = np.linspace(0, 1, 50)
    found = classification.thin_curve(classification.Curve(line, line, line[::-1], 0.5))
    assert found.x.tolist() == [0, 1]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("share", [0.02, 0.4, 1.0])
def test_a_sweep_equals_scikit_learn_at_each_threshold(share: float, ties: bool) -> None:
    scores, positives = scored(300, share, ties)
    found = classification.threshold_sweep(scores, positives)
    assert found.thresholds.tolist() == [n / 100 for n in range(101)]
    for index, threshold in enumerate(found.thresholds):
        expected = metrics_of(scores, positives, threshold)
        assert classification.metrics_at_threshold(scores, positives, threshold) == pytest.approx(
            expected
        )
        row = {name: getattr(found, name)[index] for name in expected}
        assert row == pytest.approx(expected)


def metrics_of(
    scores: NDArray[np.float64], positives: NDArray[np.bool_], threshold: float
) -> dict[str, float]:
    called = scores >= threshold
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        positives, called, average="binary", zero_division=0
    )
    accuracy = metrics.accuracy_score(positives, called)
    return {"accuracy": accuracy, "precision": precision, "recall": recall, "f1": f1}


@settings(max_examples=80, deadline=None)
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
    found = classification.metrics_at_threshold(scores, positives, best.threshold)
    assert found == {
        "accuracy": best.accuracy, "precision": best.precision,
        "recall": best.recall, "f1": best.f1,
    }  # fmt: skip
    assert best.f1 == max(
        classification.metrics_at_threshold(scores, positives, one)["f1"] for one in scores
    )


def test_the_best_threshold_lies_midway_between_neighbours() -> None:
    scores = np.array([0.1, 0.2, 0.6, 0.7])
    found = classification.threshold_sweep(scores, np.array([False, False, True, True])).best
    assert found.threshold == pytest.approx(0.4)
    assert (found.accuracy, found.precision, found.recall, found.f1) == (1, 1, 1, 1)
    found = classification.threshold_sweep(scores, np.array([True, True, True, True])).best
    assert found.threshold == pytest.approx(0.05)


@pytest.mark.parametrize("low", [0.5, float(np.nextafter(0.5, 1)), 0.0, 0.7])
def test_between_two_floats_without_room_the_upper_is_the_threshold(low: float) -> None:
    scores, positives = np.array([low, np.nextafter(low, 1)]), np.array([False, True])
    best = classification.threshold_sweep(scores, positives).best
    assert (
        best.f1 == classification.metrics_at_threshold(scores, positives, best.threshold)["f1"] == 1
    )


def test_of_thresholds_as_good_the_one_nearest_a_half_is_best() -> None:
    scores = np.array([0.05, 0.3, 0.7, 0.9])
    found = classification.threshold_sweep(scores, np.array([False, False, False, False])).best
    assert found.threshold == pytest.approx(0.5)
    assert found.f1 == 0
