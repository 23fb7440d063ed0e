from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, f1_score
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from finetune.metrics import intervals
from finetune.metrics.classification import confusion_matrix
from finetune.metrics.intervals import Interval

Array = NDArray[np.int64]
Floats = NDArray[np.float64]
# Of (true, predicted): accuracy 0.85 and F1 0.9, as a good run on MRPC has them.
MRPC = np.array([0.175, 0.09, 0.06, 0.675])  # 00, 01, 10, 11
pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "_RESAMPLES", 1000)


def drawn(n: int, classes: int, right: float = 0.7, seed: int = 0) -> tuple[Array, Array, Array]:
    """Draw labels, and predictions of two classifiers with these accuracies."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=n)
    first, second = (
        np.where(random.random(n) < right, labels, random.integers(classes, size=n))
        for _ in range(2)
    )
    return labels, first, second


def bootstrap(labels: Array, predictions: Array, classes: int) -> dict[str, Interval]:
    return intervals.bootstrap_intervals(confusion_matrix(labels, predictions, classes))


def scores(labels: Array, predictions: Array, classes: int) -> Floats:
    """Accuracy and F1 over the last axis."""
    f1, occurring = np.zeros(labels.shape[:-1]), np.zeros(labels.shape[:-1])
    for label in [1] if classes == 2 else range(classes):
        true, called = labels == label, predictions == label
        sizes = true.sum(axis=-1) + called.sum(axis=-1)
        f1 += 2 * (true & called).sum(axis=-1) / np.maximum(sizes, 1)
        occurring += sizes > 0
    return np.array([(labels == predictions).mean(axis=-1), f1 / np.maximum(occurring, 1)])


@pytest.mark.parametrize(("n", "classes"), [(60, 2), (90, 4)])
def test_the_interval_equals_scipys_bca(n: int, classes: int) -> None:
    labels, predictions, _ = drawn(n, classes)
    computed = bootstrap(labels, predictions, classes)
    average = "binary" if classes == 2 else "macro"
    assert computed["accuracy"].value == accuracy_score(labels, predictions)
    assert computed["f1"].value == pytest.approx(f1_score(labels, predictions, average=average))
    for column, name in enumerate(("accuracy", "f1")):
        expected = scipy.stats.bootstrap(
            (labels, predictions),
            lambda true, called, axis: scores(true, called, classes)[column],  # noqa: B023
            paired=True, vectorized=True, n_resamples=5000, rng=0,
        ).confidence_interval  # fmt: skip
        assert computed[name].low == pytest.approx(expected.low, abs=0.018)
        assert computed[name].high == pytest.approx(expected.high, abs=0.018)


def test_the_interval_of_a_difference_is_that_of_resampled_examples() -> None:
    labels, first, _ = drawn(200, 2)
    second = first.copy()
    second[:15] = labels[:15]  # nearly the same answers, so the difference varies little
    computed = intervals.paired_bootstrap(labels, first, second, 2)
    value = scores(labels, second, 2) - scores(labels, first, 2)
    rows = np.random.default_rng(1).integers(200, size=(2000, 200))
    draws = scores(labels[rows], second[rows], 2) - scores(labels[rows], first[rows], 2)
    for column, name in enumerate(("accuracy", "f1")):
        assert computed[name].value == pytest.approx(value[column])
        ends = np.quantile(draws[column], [0.025, 0.975])
        assert [computed[name].low, computed[name].high] == pytest.approx(ends, abs=0.015)
    alone, both = bootstrap(labels, second, 2)["f1"], computed["f1"]
    assert both.high - both.low < (alone.high - alone.low) / 2


def test_intervals_hold_the_truth_as_often_as_they_say(few_resamples: None) -> None:
    random, sets = np.random.default_rng(3), 600
    truth = {"accuracy": 0.85, "f1": 2 * 0.675 / (2 * 0.675 + 0.15)}
    above, below = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    for cells in random.multinomial(408, MRPC, size=sets):
        computed = intervals.bootstrap_intervals(cells.reshape(2, 2))
        for name, value in truth.items():
            above[name] += computed[name].low - 1e-9 > value
            below[name] += computed[name].high + 1e-9 < value
    for name in truth:
        assert 0.93 < 1 - (above[name] + below[name]) / sets < 0.975, name
        assert max(above[name], below[name]) / sets < 0.04, name  # on either side, not on one


def test_equals_differ_by_more_than_chance_as_seldom_as_it_says(few_resamples: None) -> None:
    """Uses the interval of the difference from a score without an interval."""
    wrongly, sets = 0, 400
    for seed in range(sets):
        labels, first, second = drawn(408, 2, seed=seed)
        f1 = bootstrap(labels, first, 2)["f1"]
        other = float(scores(labels[:300], second[:300], 2)[1])
        gain = intervals.newcombe_interval(f1, other, 300)
        assert gain.value == f1.value - other
        wrongly += not gain.low <= 0 <= gain.high
    assert wrongly / sets < 0.08


@pytest.mark.parametrize("classes", [1, 5])
@pytest.mark.parametrize("n", [1, 10])
def test_few_examples_and_a_single_class_are_no_trouble(n: int, classes: int) -> None:
    labels = np.full(n, classes - 1)
    for predictions in (labels, np.zeros(n, dtype=np.int64)):
        for score in bootstrap(labels, predictions, classes).values():
            assert 0 <= score.low <= score.value <= score.high <= 1
            assert score.high - score.low > 0.1  # so few examples are never sure
        for score in intervals.paired_bootstrap(labels, labels, predictions, classes).values():
            assert score.low == score.value == score.high


def test_where_all_are_right_the_interval_is_wilsons() -> None:
    labels = np.array([1] * 6 + [0] * 4)
    all_right = bootstrap(labels, labels, 2)
    assert all_right["accuracy"] == intervals.wilson_interval(10, 10)
    share = intervals.wilson_interval(6, 6).low  # of the six that are positive or called so
    assert (all_right["f1"].low, all_right["f1"].high) == (2 * share / (1 + share), 1.0)
    never = bootstrap(labels, np.zeros(10, np.int64), 2)["f1"]
    share = intervals.wilson_interval(0, 6).high
    assert (never.low, never.high) == (0.0, 2 * share / (1 + share))


@pytest.mark.parametrize("n", [5, 2000])
def test_mcnemar_equals_statsmodels(n: int) -> None:
    labels, first, second = drawn(n, 3, seed=n)
    a, b = first == labels, second == labels
    table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
    test = intervals.mcnemar_test(a, b)
    assert (test.first_only, test.second_only) == (table[0][1], table[1][0])
    assert test.p == pytest.approx(min(1.0, mcnemar(table, exact=True).pvalue))
    assert intervals.mcnemar_test(a, a) == intervals.McNemar(0, 0, 1.0)


@pytest.mark.parametrize(("right", "n"), [(0, 1), (17, 30), (99_990, 100_000)])
def test_wilson_equals_statsmodels(right: int, n: int) -> None:
    share = intervals.wilson_interval(right, n)
    expected = proportion_confint(right, n, alpha=0.05, method="wilson")
    assert (share.low, share.high) == pytest.approx(expected, abs=1e-12)
    assert share.value == right / n
    assert math.isnan(intervals.wilson_interval(0, 0).value)


def test_the_mean_over_seeds_has_students_interval() -> None:
    values = [0.85, 0.87, 0.84, 0.88, 0.86]
    mean = intervals.mean_interval(values)
    assert mean is not None
    error = scipy.stats.sem(values)
    expected = scipy.stats.t.interval(0.95, df=4, loc=np.mean(values), scale=error)
    assert (mean.value, mean.low, mean.high) == pytest.approx((0.86, *expected))
    assert intervals.mean_interval([0.8]) is intervals.mean_interval([]) is None
