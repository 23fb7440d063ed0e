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
# Of (true, predicted): accuracy 0.85 and F1 0.9, as a good run on MRPC has them.
MRPC = np.array([0.175, 0.09, 0.06, 0.675])  # 00, 01, 10, 11


@pytest.fixture(autouse=True)
def warnings_are_errors() -> None:
    warnings.simplefilter("error")


def made(n: int, classes: int, right: float = 0.7, seed: int = 0) -> tuple[Array, Array, Array]:
    """Labels and the predictions of two classifiers that are right about so often."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(classes, size=n)
    first, second = (
        np.where(draw.random(n) < right, labels, draw.integers(classes, size=n)) for _ in range(2)
    )
    return labels, first, second


def scikit(labels: Array, predictions: Array, classes: int, positive: int) -> tuple[float, float]:
    binary = {"average": "binary", "pos_label": positive} if classes == 2 else {"average": "macro"}
    return (
        accuracy_score(labels, predictions),
        f1_score(labels, predictions, zero_division=0, **binary),
    )


def direct(
    labels: Array, predictions: list[Array], classes: int, positive: int, resamples: int
) -> NDArray[np.float64]:
    """The bootstrap as the books have it: examples are drawn again, one resample at a time."""
    draw = np.random.default_rng(1)
    found = []
    for _ in range(resamples):
        chosen = draw.integers(len(labels), size=len(labels))
        each = [scikit(labels[chosen], one[chosen], classes, positive) for one in predictions]
        found.append(np.subtract(each[-1], each[0]) if len(each) == 2 else np.array(each[0]))
    return np.array(found)


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("classes", [2, 3, 40])
@pytest.mark.parametrize("n", [2, 30, 1000])
def test_scores_equal_scikit_learns(n: int, classes: int, positive: int) -> None:
    labels, predictions, _ = made(n, classes)
    found = intervals.scores(labels, predictions, classes, positive)
    assert tuple(found.values()) == pytest.approx(scikit(labels, predictions, classes, positive))


@pytest.mark.parametrize("classes", [2, 3])
def test_the_bootstrap_of_cells_is_the_bootstrap_of_examples(classes: int) -> None:
    labels, predictions, _ = made(150, classes)
    expected = direct(labels, [predictions], classes, 1, 1000)
    tables, counts = intervals._tables(labels, [predictions], classes, 1)
    drawn = intervals._resampled(tables, counts, 10_000, np.random.default_rng(2))
    for column, values in enumerate(drawn):
        assert values.mean() == pytest.approx(expected[:, column].mean(), abs=0.006)
        assert values.std() == pytest.approx(expected[:, column].std(), rel=0.1)


@pytest.mark.parametrize("classes", [2, 7])
def test_the_interval_of_a_confusion_matrix_is_that_of_its_examples(classes: int) -> None:
    labels, predictions, _ = made(500, classes)
    counts = confusion_matrix(labels, predictions, labels=range(classes))
    counts[0, 1:] = 0  # some cells are empty
    labels, predictions = np.repeat(np.indices(counts.shape).reshape(2, -1), counts.ravel(), axis=1)
    found = intervals.bootstrap_from_counts(counts, positive=0, seed=3)
    assert found == intervals.bootstrap_intervals(labels, predictions, classes, positive=0, seed=3)


def test_a_difference_resamples_the_same_examples_for_both() -> None:
    labels, first, _ = made(200, 2)
    second = first.copy()
    second[:15] = labels[:15]  # nearly the same answers, so the difference varies little
    expected = direct(labels, [first, second], 2, 1, 1000)
    found = intervals.paired_bootstrap(labels, first, second, 2)
    for column, name in enumerate(intervals.NAMES):
        low, high = np.quantile(expected[:, column], [0.025, 0.975])
        assert found[name].value == pytest.approx(
            scikit(labels, second, 2, 1)[column] - scikit(labels, first, 2, 1)[column]
        )
        assert found[name].low == pytest.approx(low, abs=0.012)
        assert found[name].high == pytest.approx(high, abs=0.012)
    alone = intervals.bootstrap_intervals(labels, second, 2)["accuracy"]
    both = found["accuracy"]
    assert both.high - both.low < (alone.high - alone.low) / 2


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("n", [12, 90])
def test_leaving_one_out_equals_leaving_it_out(n: int, classes: int) -> None:
    labels, predictions, _ = made(n, classes, 0.5)
    tables, counts = intervals._tables(labels, [predictions], classes, 1)
    by_cell = tables[0].without_one(counts)
    cells = np.unique(labels * classes + predictions)
    for example in range(n):
        rest = np.arange(n) != example
        cell = np.searchsorted(cells, labels[example] * classes + predictions[example])
        expected = scikit(labels[rest], predictions[rest], classes, 1)
        assert tuple(by_cell[:, cell]) == pytest.approx(expected)


def test_leaving_out_the_one_example_of_a_class_takes_its_f1_out_of_the_mean() -> None:
    labels, predictions = np.array([0, 0, 1, 1, 2, 2, 4]), np.array([0, 1, 1, 3, 2, 0, 4])
    tables, counts = intervals._tables(labels, [predictions], 5, 1)
    by_cell = tables[0].without_one(counts)
    assert counts.tolist() == [1] * 7  # so cells come in the order of labels, then predictions
    order = np.lexsort([predictions, labels])
    for cell, example in enumerate(order):
        rest = np.arange(7) != example
        expected = scikit(labels[rest], predictions[rest], 5, 1)
        assert tuple(by_cell[:, cell]) == pytest.approx(expected)


def test_the_interval_equals_scipys_bca() -> None:
    labels, predictions, _ = made(120, 2)
    expected = scipy.stats.bootstrap(
        ((labels == predictions).astype(float),), np.mean, n_resamples=9999, rng=0
    ).confidence_interval
    found = intervals.bootstrap_intervals(labels, predictions, 2)["accuracy"]
    assert found.low == pytest.approx(expected.low, abs=0.009)  # one example is 0.008
    assert found.high == pytest.approx(expected.high, abs=0.009)


@pytest.mark.parametrize(("n", "least", "most"), [(408, 0.935, 0.97), (50, 0.93, 0.98)])
def test_intervals_hold_the_truth_as_often_as_they_say(n: int, least: float, most: float) -> None:
    draw = np.random.default_rng(3)
    truth = {"accuracy": 0.85, "f1": 2 * 0.675 / (2 * 0.675 + 0.15)}
    above, below = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    sets = 2500
    for cells in draw.multinomial(n, MRPC, size=sets):
        labels, predictions = np.divmod(np.repeat(np.arange(4), cells), 2)
        found = intervals.bootstrap_intervals(labels, predictions, 2, resamples=1000, seed=4)
        for name, value in truth.items():
            above[name] += found[name].low - 1e-9 > value
            below[name] += found[name].high + 1e-9 < value
    for name in truth:
        assert least < 1 - (above[name] + below[name]) / sets < most, name
        assert max(above[name], below[name]) / sets < 0.035, name  # on either side, not on one


def test_the_difference_of_equals_holds_zero_as_often_as_it_says() -> None:
    draw = np.random.default_rng(5)
    held, sets = dict.fromkeys(intervals.NAMES, 0), 1000
    for _ in range(sets):
        labels = draw.integers(2, size=408)
        hard = draw.random(408) < 0.2  # for both
        first, second = (
            np.where(draw.random(408) < np.where(hard, 0.5, 0.95), labels, 1 - labels)
            for _ in range(2)
        )
        found = intervals.paired_bootstrap(labels, first, second, 2, resamples=1000)
        for name, one in found.items():
            held[name] += one.low <= 0 <= one.high
    for name in held:
        assert 0.93 < held[name] / sets < 0.97, name


def test_the_same_seed_gives_the_same_interval_and_the_level_widens_it() -> None:
    labels, predictions, _ = made(100, 3)
    found = intervals.bootstrap_intervals(labels, predictions, 3)
    assert found == intervals.bootstrap_intervals(labels, predictions, 3)
    wide = intervals.bootstrap_intervals(labels, predictions, 3, level=0.99)
    for name in intervals.NAMES:
        assert wide[name].low < found[name].low < found[name].value
        assert found[name].value < found[name].high < wide[name].high


def test_many_cells_get_fewer_resamples_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "_BUDGET", 3000)
    labels, predictions, second = made(500, 60)
    found = intervals.bootstrap_intervals(labels, predictions, 60)["f1"]
    assert found.resamples == intervals._FEWEST
    assert found.low < found.value < found.high
    assert (
        intervals.paired_bootstrap(labels, predictions, second, 60)["f1"].resamples
        == intervals._FEWEST
    )
    assert (
        intervals.bootstrap_intervals(*made(500, 2)[:2], 2)["f1"].resamples == 750
    )  # of four cells


def test_chunks_of_resamples_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, predictions, _ = made(100, 3)
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
    assert intervals.scores(np.zeros(n, int), np.zeros(n, int), 2)["f1"] == 0


def test_where_all_are_right_the_interval_is_wilsons() -> None:
    labels = np.array([1] * 6 + [0] * 4)
    found = intervals.bootstrap_intervals(labels, labels, 2)
    assert found["accuracy"] == intervals.wilson_interval(10, 10)
    share = intervals.wilson_interval(6, 6).low  # of the six that are positive or called so
    assert (found["f1"].low, found["f1"].high) == (2 * share / (1 + share), 1.0)
    assert found == intervals.bootstrap_from_counts(np.array([[4, 0], [0, 6]]))
    never = intervals.bootstrap_intervals(
        labels, np.zeros(10, np.int64), 2
    )  # F1 is 0 in every resample
    assert never["accuracy"].resamples
    share = intervals.wilson_interval(0, 6).high
    assert (never["f1"].low, never["f1"].high) == (0.0, 2 * share / (1 + share))


def test_equals_differ_by_more_than_chance_as_seldom_as_it_says() -> None:
    """Whether both were measured on the same examples, one on a part of them, or on others."""
    draw, sets = np.random.default_rng(7), 1000
    for n, part in ((408, 408), (2000, 300)):
        wrongly = 0
        for _ in range(sets):
            labels = draw.integers(2, size=n)
            first, second = (np.where(draw.random(n) < 0.9, labels, 1 - labels) for _ in range(2))
            mine = intervals.bootstrap_intervals(labels, first, 2, resamples=300)["f1"]
            other = intervals.scores(labels[:part], second[:part], 2)["f1"]
            wrongly += abs(mine.value - other) > intervals.newcombe_bound(mine, other, part)
        assert wrongly / sets < 0.06, n


@pytest.mark.parametrize("classes", [3, 20])
def test_intervals_of_macro_f1_hold_the_truth_as_often_as_they_say(classes: int) -> None:
    draw, sets = np.random.default_rng(8), 1000
    mix = np.full((classes, classes), 0.2 / (classes - 1))
    np.fill_diagonal(mix, 0.8)
    truth, held = 0.8, 0  # of every class: as many are put there as belong there
    for _ in range(sets):
        confusion = draw.multinomial(408, mix.ravel() / classes).reshape(classes, classes)
        found = intervals.bootstrap_from_counts(confusion, resamples=400)["f1"]
        held += found.low <= truth <= found.high
    assert 0.93 < held / sets < 0.97


def test_one_wrong_of_two_is_no_trouble() -> None:
    for classes in (2, 3):
        for found in intervals.bootstrap_intervals(
            np.array([0, 1]), np.array([1, 1]), classes
        ).values():
            assert 0 <= found.low <= found.value <= found.high <= 1


@pytest.mark.parametrize("n", [5, 60, 2000])
def test_mcnemar_equals_statsmodels(n: int) -> None:
    labels, first, second = made(n, 3, seed=n)
    a, b = first == labels, second == labels
    table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
    found = intervals.mcnemar_test(labels, first, second)
    assert (found.first_only, found.second_only) == (table[0][1], table[1][0])
    assert found.p == pytest.approx(min(1.0, mcnemar(table, exact=True).pvalue))


def test_classifiers_that_never_disagree_have_p_one() -> None:
    labels, first, _ = made(20, 2)
    assert intervals.mcnemar_test(labels, first, first) == intervals.McNemar(0, 0, 1.0)


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (0, 30), (17, 30), (99_990, 100_000)])
def test_wilson_equals_statsmodels(right: int, n: int, level: float) -> None:
    found = intervals.wilson_interval(right, n, level)
    expected = proportion_confint(right, n, alpha=1 - level, method="wilson")
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-12)
    assert (found.value, found.level, found.resamples) == (right / n, level, 0)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_wilson_of_nothing_says_nothing() -> None:
    found = intervals.wilson_interval(0, 0)
    assert math.isnan(found.value)
    assert (found.low, found.high) == (0, 1)


def test_the_mean_over_seeds_has_students_interval() -> None:
    values = [0.85, 0.87, 0.84, 0.88, 0.86]
    found = intervals.mean_interval(values, 0.9)
    assert found is not None
    expected = scipy.stats.t.interval(0.9, df=4, loc=np.mean(values), scale=scipy.stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.value == pytest.approx(0.86)
    assert intervals.standard_deviation(values) == pytest.approx(np.std(values, ddof=1))


def test_one_seed_has_no_interval() -> None:
    assert intervals.mean_interval([0.8]) is None
    assert intervals.mean_interval([]) is None
    assert intervals.standard_deviation([0.8]) is None
    assert intervals.mean_interval([0.8, 0.8]) == intervals.Interval(0.8, 0.8, 0.8)
