from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from finetune.metrics import intervals

Array = NDArray[np.int64]
Floats = NDArray[np.float64]
# Of (true, predicted): accuracy 0.85 and F1 0.9, as a good run on MRPC has them.
MRPC = np.array([0.175, 0.09, 0.06, 0.675])  # 00, 01, 10, 11


@pytest.fixture(autouse=True)
def warnings_are_errors() -> None:
    warnings.simplefilter("error")


def drawn(n: int, classes: int, right: float = 0.7, seed: int = 0) -> tuple[Array, Array, Array]:
    """Labels and the predictions of two classifiers that are right about so often."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=n)
    first, second = (
        np.where(random.random(n) < right, labels, random.integers(classes, size=n))
        for _ in range(2)
    )
    return labels, first, second


def scikit(labels: Array, predictions: Array, classes: int) -> tuple[float, float]:
    average = "binary" if classes == 2 else "macro"
    f1 = f1_score(labels, predictions, zero_division=0, average=average)
    return accuracy_score(labels, predictions), f1


def vectorized(labels: Array, predictions: Array, classes: int) -> tuple[Floats, Floats]:
    """As `scikit`, over the last axis."""
    f1, occurring = np.zeros(labels.shape[:-1]), np.zeros(labels.shape[:-1])
    for label in [1] if classes == 2 else range(classes):
        true, called = labels == label, predictions == label
        sizes = true.sum(axis=-1) + called.sum(axis=-1)
        f1 += 2 * (true & called).sum(axis=-1) / np.maximum(sizes, 1)
        occurring += sizes > 0
    return (labels == predictions).mean(axis=-1), f1 / np.maximum(occurring, 1)


@pytest.mark.parametrize(("classes", "paired"), [(2, False), (3, False), (2, True)])
def test_intervals_are_those_of_resampled_examples(classes: int, paired: bool) -> None:
    labels, first, _ = drawn(200, classes)
    second = first.copy()
    second[:15] = labels[:15]  # nearly the same answers, so the difference varies little
    # The bootstrap as the books have it: examples are drawn again.
    rows = np.random.default_rng(1).integers(200, size=(2000, 200))
    if paired:
        found = intervals.paired_bootstrap(labels, first, second, classes)
        value = np.subtract(scikit(labels, second, classes), scikit(labels, first, classes))
        draws = np.subtract(
            vectorized(labels[rows], second[rows], classes),
            vectorized(labels[rows], first[rows], classes),
        )
        alone = intervals.bootstrap_intervals(labels, second, classes)["accuracy"]
        both = found["accuracy"]
        assert both.high - both.low < (alone.high - alone.low) / 2
    else:
        found = intervals.bootstrap_intervals(labels, first, classes)
        value = np.array(scikit(labels, first, classes))
        draws = np.array(vectorized(labels[rows], first[rows], classes))
    for column, name in enumerate(intervals.NAMES):
        assert found[name].value == pytest.approx(value[column])
        ends = np.quantile(draws[column], [0.025, 0.975])
        assert [found[name].low, found[name].high] == pytest.approx(ends, abs=0.015)


@pytest.mark.parametrize(("n", "classes"), [(60, 2), (90, 4)])
def test_the_interval_equals_scipys_bca(n: int, classes: int) -> None:
    labels, predictions, _ = drawn(n, classes)
    found = intervals.bootstrap_intervals(labels, predictions, classes)
    for column, name in enumerate(intervals.NAMES):
        expected = scipy.stats.bootstrap(
            (labels, predictions),
            lambda one, two, axis: vectorized(one, two, classes)[column],  # noqa: B023
            paired=True, vectorized=True, n_resamples=5000, rng=0,
        ).confidence_interval  # fmt: skip
        assert found[name].low == pytest.approx(expected.low, abs=0.018)
        assert found[name].high == pytest.approx(expected.high, abs=0.018)


@pytest.mark.parametrize("classes", [2, 7])
def test_the_interval_of_a_confusion_matrix_is_that_of_its_examples(classes: int) -> None:
    labels, predictions, _ = drawn(500, classes)
    counts = confusion_matrix(labels, predictions, labels=range(classes))
    counts[0, 1:] = 0  # some cells are empty
    labels, predictions = np.repeat(np.indices(counts.shape).reshape(2, -1), counts.ravel(), axis=1)
    found = intervals.bootstrap_from_confusion(counts, positive=0, seed=3)
    assert found == intervals.bootstrap_intervals(labels, predictions, classes, positive=0, seed=3)


@pytest.mark.parametrize(("n", "least", "most"), [(408, 0.93, 0.975), (50, 0.92, 0.985)])
def test_intervals_hold_the_truth_as_often_as_they_say(n: int, least: float, most: float) -> None:
    random = np.random.default_rng(3)
    truth = {"accuracy": 0.85, "f1": 2 * 0.675 / (2 * 0.675 + 0.15)}
    above, below = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    sets = 1000
    for cells in random.multinomial(n, MRPC, size=sets):
        found = intervals.bootstrap_from_confusion(cells.reshape(2, 2), resamples=1000, seed=4)
        for name, value in truth.items():
            above[name] += found[name].low - 1e-9 > value
            below[name] += found[name].high + 1e-9 < value
    for name in truth:
        assert least < 1 - (above[name] + below[name]) / sets < most, name
        assert max(above[name], below[name]) / sets < 0.04, name  # on either side, not on one


@pytest.mark.parametrize("classes", [3, 20])
def test_intervals_of_macro_f1_hold_the_truth_as_often_as_they_say(classes: int) -> None:
    random, sets = np.random.default_rng(8), 400
    mix = np.full((classes, classes), 0.2 / (classes - 1))
    np.fill_diagonal(mix, 0.8)
    held = 0  # of every class as many are put there as belong there: the truth is 0.8
    for _ in range(sets):
        confusion = random.multinomial(408, mix.ravel() / classes).reshape(classes, classes)
        found = intervals.bootstrap_from_confusion(confusion, resamples=400)["f1"]
        held += found.low <= 0.8 <= found.high
    assert 0.92 < held / sets < 0.98


def test_the_difference_of_equals_holds_zero_as_often_as_it_says() -> None:
    random = np.random.default_rng(5)
    held, sets = dict.fromkeys(intervals.NAMES, 0), 400
    for _ in range(sets):
        labels = random.integers(2, size=408)
        hard = random.random(408) < 0.2  # for both
        first, second = (
            np.where(random.random(408) < np.where(hard, 0.5, 0.95), labels, 1 - labels)
            for _ in range(2)
        )
        found = intervals.paired_bootstrap(labels, first, second, 2, resamples=1000)
        for name, one in found.items():
            held[name] += one.low <= 0 <= one.high
    for name in held:
        assert 0.92 < held[name] / sets < 0.98, name


def test_many_cells_get_fewer_resamples_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, predictions, second = drawn(500, 60)
    monkeypatch.setattr(intervals, "_BUDGET", 3000)
    found = intervals.bootstrap_intervals(labels, predictions, 60)["f1"]
    assert found.resamples == 200
    assert found.low < found.value < found.high
    assert intervals.paired_bootstrap(labels, predictions, second, 60)["f1"].resamples == 200
    binary = intervals.bootstrap_intervals(*drawn(500, 2)[:2], 2)["f1"]
    assert binary.resamples == 750  # of four cells


def test_chunks_of_resamples_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, predictions, _ = drawn(100, 3)
    whole = intervals.bootstrap_intervals(labels, predictions, 3, resamples=1000)
    monkeypatch.setattr(intervals, "_CHUNK", 300)
    assert intervals.bootstrap_intervals(labels, predictions, 3, resamples=1000) == whole


@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 2, 10])
def test_few_examples_and_a_single_class_are_no_trouble(n: int, classes: int) -> None:
    ones = np.full(n, classes - 1)
    for predictions in (ones, np.zeros(n, dtype=np.int64)):
        for found in intervals.bootstrap_intervals(ones, predictions, classes).values():
            assert 0 <= found.low <= found.value <= found.high <= 1
            assert found.high - found.low > 0.1  # so few examples are never sure
            assert found.resamples == 0
        for found in intervals.paired_bootstrap(ones, ones, predictions, classes).values():
            assert found.low == found.value == found.high


def test_one_wrong_of_two_is_no_trouble() -> None:
    for classes in (2, 3):
        found = intervals.bootstrap_intervals(np.array([0, 1]), np.array([1, 1]), classes)
        for one in found.values():
            assert 0 <= one.low <= one.value <= one.high <= 1


def test_where_all_are_right_the_interval_is_wilsons() -> None:
    labels = np.array([1] * 6 + [0] * 4)
    found = intervals.bootstrap_intervals(labels, labels, 2)
    assert found["accuracy"] == intervals.wilson_interval(10, 10)
    share = intervals.wilson_interval(6, 6).low  # of the six that are positive or called so
    assert (found["f1"].low, found["f1"].high) == (2 * share / (1 + share), 1.0)
    never = intervals.bootstrap_intervals(labels, np.zeros(10, np.int64), 2)
    assert never["accuracy"].resamples
    share = intervals.wilson_interval(0, 6).high  # F1 is 0 in every resample
    assert (never["f1"].low, never["f1"].high) == (0.0, 2 * share / (1 + share))


def test_equals_differ_by_more_than_chance_as_seldom_as_it_says() -> None:
    """Whether both were measured on the same examples, or one on a part of them."""
    random, sets = np.random.default_rng(7), 400
    for n, part in ((408, 408), (2000, 300)):
        wrongly = 0
        for _ in range(sets):
            labels = random.integers(2, size=n)
            first, second = (np.where(random.random(n) < 0.9, labels, 1 - labels) for _ in range(2))
            mine = intervals.bootstrap_intervals(labels, first, 2, resamples=300)["f1"]
            other = float(vectorized(labels[:part], second[:part], 2)[1])
            wrongly += abs(mine.value - other) > intervals.newcombe_bound(mine, other, part)
        assert wrongly / sets < 0.06, n


@pytest.mark.parametrize("n", [5, 60, 2000])
def test_mcnemar_equals_statsmodels(n: int) -> None:
    labels, first, second = drawn(n, 3, seed=n)
    a, b = first == labels, second == labels
    table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
    found = intervals.mcnemar_test(labels, first, second)
    assert (found.first_only, found.second_only) == (table[0][1], table[1][0])
    assert found.p == pytest.approx(min(1.0, mcnemar(table, exact=True).pvalue))
    assert intervals.mcnemar_test(labels, first, first) == intervals.McNemar(0, 0, 1.0)


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (0, 30), (17, 30), (99_990, 100_000)])
def test_wilson_equals_statsmodels(right: int, n: int) -> None:
    found = intervals.wilson_interval(right, n)
    expected = proportion_confint(right, n, alpha=0.05, method="wilson")
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-12)
    assert (found.value, found.resamples) == (right / n, 0)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_wilson_of_nothing_says_nothing() -> None:
    found = intervals.wilson_interval(0, 0)
    assert math.isnan(found.value)
    assert (found.low, found.high) == (0, 1)


def test_the_mean_over_seeds_has_students_interval() -> None:
    values = [0.85, 0.87, 0.84, 0.88, 0.86]
    found = intervals.mean_interval(values)
    assert found is not None
    expected = scipy.stats.t.interval(
        0.95, df=4, loc=np.mean(values), scale=scipy.stats.sem(values)
    )
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.value == pytest.approx(0.86)
    assert intervals.mean_interval([0.8]) is intervals.mean_interval([]) is None
    assert intervals.mean_interval([0.8, 0.8]) == intervals.Interval(0.8, 0.8, 0.8)
