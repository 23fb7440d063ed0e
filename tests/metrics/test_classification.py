from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics

from finetune.metrics import catalog, classification
from finetune.tasks.base import Target
from finetune.tasks.single_label import SingleLabel

Floats = NDArray[np.float64]
Truths = NDArray[np.bool_]
pytestmark = pytest.mark.filterwarnings("error")


def scored(n: int, share: float = 0.4, ties: bool = False, seed: int = 0) -> tuple[Floats, Truths]:
    """Draw probabilities that are correlated with the truth, rounded to two digits for ties."""
    random = np.random.default_rng(seed)
    positives = random.random(n) < share
    scores = 1 / (1 + np.exp(-random.normal(np.where(positives, 1.0, -1.0), 1.5)))
    return (scores.round(2) if ties else scores), positives


@pytest.mark.parametrize("classes", [2, 50])
@pytest.mark.parametrize("n", [1, 500])
def test_figures_of_a_confusion_matrix_equal_scikit_learns(n: int, classes: int) -> None:
    random = np.random.default_rng(0)
    labels, other = random.integers(classes, size=(2, n))
    predictions = np.where(random.random(n) < 0.6, labels, other)
    confusion = classification.confusion_matrix(labels, predictions, classes)
    options = {"labels": range(classes)}
    expected = metrics.confusion_matrix(labels, predictions, **options)
    np.testing.assert_array_equal(confusion, expected)
    rows = classification.class_scores(confusion)
    columns = [[row.precision, row.recall, row.f1, row.support] for row in rows]
    table = np.array(columns, np.float64)  # None becomes nan: a score of no example
    scores = metrics.precision_recall_fscore_support(
        labels, predictions, zero_division=np.nan, **options
    )
    np.testing.assert_allclose(table.T, scores)
    assert [row.predicted for row in rows] == np.bincount(predictions, minlength=classes).tolist()
    for positive in (0, 1):
        binary = {"average": "binary", "pos_label": positive}
        average = binary if classes == 2 else {"average": "macro"}
        assert catalog.scores_of(confusion, positive) == pytest.approx(
            {
                "accuracy": metrics.accuracy_score(labels, predictions),
                "f1": metrics.f1_score(labels, predictions, zero_division=0, **average),
            }
        )


@pytest.mark.parametrize(("share", "ties"), [(0.01, False), (0.95, True)])
def test_curves_have_the_areas_of_scikit_learn_thinned_too(share: float, ties: bool) -> None:
    scores, positives = scored(20_000, share, ties)
    curves = classification.ranking_curves(scores, positives)
    assert curves is not None
    areas = metrics.roc_auc_score, metrics.average_precision_score
    for area, curve in zip(areas, curves, strict=True):
        assert curve.area == pytest.approx(area(positives, scores))
        thinned = classification.thin_curve(curve)
        assert len(thinned.x) == len(thinned.y) <= 200
        assert (thinned.area, thinned.x[0], thinned.x[-1]) == (curve.area, 0, 1)
        lost = np.trapezoid(thinned.y, thinned.x) - np.trapezoid(curve.y, curve.x)
        assert abs(float(lost)) < 0.003


@pytest.mark.parametrize(("classes", "n"), [(2, 500), (50, 500), (50, 60)])
def test_matthews_correlation_equals_scikit_learns(classes: int, n: int) -> None:
    labels, answers = np.random.default_rng(1).integers(classes, size=(2, n))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of so many classes
        expected = metrics.matthews_corrcoef(labels, answers)
    confusion = classification.confusion_matrix(labels, answers, classes)
    assert catalog.MATTHEWS.score(confusion) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("confusion", "expected"),
    [(np.eye(30), 1.0), ([[0, 3], [3, 0]], -1.0), ([[5, 0], [0, 0]], 0.0), ([[3, 0], [2, 0]], 0.0)],
)
def test_matthews_correlation_of_extremes(confusion: Any, expected: float) -> None:
    counts = np.asarray(confusion, np.int64)
    assert catalog.MATTHEWS.score(counts) == pytest.approx(expected)


@pytest.mark.parametrize(("share", "ties"), [(0.02, True), (0.5, False), (1.0, False)])
def test_a_sweep_equals_scikit_learn_at_each_threshold(share: float, ties: bool) -> None:
    scores, positives = scored(300, share, ties)
    sweep = classification.threshold_sweep(scores, positives)
    assert sweep.thresholds.tolist() == [n / 100 for n in range(101)]
    for index in range(0, 101, 10):
        called = scores >= sweep.thresholds[index]
        expected = metrics.precision_recall_fscore_support(
            positives, called, average="binary", zero_division=np.nan
        )
        row = [sweep.scores[name][index] for name in ("accuracy", "precision", "recall", "f1")]
        accuracy = metrics.accuracy_score(positives, called)
        assert row == pytest.approx([accuracy, *expected[:3]], nan_ok=True)
    if share == 1.0:
        assert classification.ranking_curves(scores, positives) is None


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
    reached, *others = (
        metrics.f1_score(positives, scores.astype(float) >= threshold, zero_division=np.nan)
        for threshold in (best["threshold"], *scores.astype(float))
    )
    assert best["f1"] == pytest.approx(reached, nan_ok=True)
    if positives.any():
        assert best["f1"] == pytest.approx(max(others))


def test_the_majority_is_that_of_training_and_in_a_tie_the_positive_class() -> None:
    def scores(train: list[int], validation: list[int]) -> dict[str, float]:
        """Of always answering the majority, from the number of rows of each class."""
        rows = [np.repeat(np.arange(len(counts)), counts) for counts in (train, validation)]
        target = Target(tuple("abc"[: len(train)]))
        return SingleLabel().constant_scores(rows[0], rows[1], target, catalog.STANDARD)

    assert scores([5, 5], [3, 3]) == {"accuracy": 0.5, "f1": pytest.approx(2 / 3)}
    assert scores([6, 5], [1, 3]) == {"accuracy": 0.25, "f1": 0}
    assert scores([4, 1, 4], [2, 1, 1])["accuracy"] == 0.5
