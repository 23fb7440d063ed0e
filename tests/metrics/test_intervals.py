from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom
from sklearn.metrics import f1_score
from statsmodels.stats.proportion import proportion_confint

from finetune.metrics import intervals
from finetune.metrics.catalog import ACCURACY, F1, METRICS, OF_LABELS, OF_SCORES, Metric

Array = NDArray[np.int64]
Floats = NDArray[np.float64]
# Of (true, predicted): accuracy 0.85 and F1 0.9, as a good run on MRPC has them.
MRPC = np.array([0.175, 0.09, 0.06, 0.675])  # 00, 01, 10, 11
TALLIED = [metric for metric in METRICS.values() if metric.of_tally]
pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "_RESAMPLES", 1000)


def answered(lost: int, gained: int, rows: int) -> tuple[Array, Array, Array]:
    """Labels, and the answers of a first and a second model, which lose and gain so many."""
    labels = np.arange(rows) % 2
    first, second = labels.copy(), labels.copy()
    second[:lost] = 1 - labels[:lost]
    first[lost : lost + gained] = 1 - labels[lost : lost + gained]
    return labels, first, second


@pytest.mark.parametrize(
    ("lost", "gained", "rows"),
    [(0, 0, 30), (0, 0, 400), (1, 0, 50), (0, 5, 60), (6, 0, 60), (2, 9, 100), (9, 2, 100),
     (12, 30, 400), (3, 3, 30), (30, 0, 30)],
)  # fmt: skip
def test_a_difference_agrees_with_the_exact_tests(lost: int, gained: int, rows: int) -> None:
    """It excludes 0 where McNemar's exact test is significant. Where answers are only lost, its
    ends are Clopper and Pearson's; it never has no width."""
    labels, first, second = answered(lost, gained, rows)
    found = intervals.difference_intervals(second, first, labels, [ACCURACY])["accuracy"]
    p = intervals.sign_test((second == labels) - (first == labels).astype(int))
    assert found.value == pytest.approx((gained - lost) / rows)
    assert (found.low <= 0 <= found.high) == (p > 0.05)
    assert found.high - found.low > 1 / rows
    if not gained:
        most = proportion_confint(lost, rows, method="beta")[1]
        assert found.low == pytest.approx(-most, rel=0.06)  # of 10,000 resamples
    f1 = intervals.difference_intervals(second, first, labels, [F1], 1)["f1"]
    assert f1.low < f1.value < f1.high or rows == lost


@pytest.mark.parametrize("metric", [*TALLIED, *OF_SCORES, *OF_LABELS], ids=lambda each: each.name)
@pytest.mark.parametrize("right", [True, False])
def test_equal_answers_differ_by_a_few_rows_at_most(metric: Metric, right: bool) -> None:
    """Of 40 rows an interval reaches to both sides, of a hundred times as many hardly."""
    draw = np.random.default_rng(0)
    truth: Any = {
        "classes": np.arange(40) % 3, "score": np.linspace(0, 5, 40),
        "labels": draw.integers(0, 2, (40, 3)),
    }[metric.kind]  # fmt: skip
    answers = truth if right else np.roll(truth, 1, axis=0)
    (once,) = intervals.difference_intervals(answers, answers, truth, [metric]).values()
    (more,) = intervals.difference_intervals(
        answers, answers, truth, [metric], times=100
    ).values()  # fmt: skip
    assert once.value == more.value == 0
    assert once.low < more.low <= 0 <= more.high < once.high
    assert more.high - more.low < 0.2 * (once.high - once.low)


# The share of right answers of an old model, and what a new one loses of these and gains of others.
MODELS = {
    "loses 3%": (0.9, 0.03, 0.0), "loses 3%, gains": (0.9, 0.03, 0.2),
    "loses and gains": (0.8, 0.1, 0.1), "was perfect": (1.0, 0.03, 0.0),
}  # fmt: skip


def passes(lost: int, gained: int, rows: int, least: float) -> bool:
    labels, old, new = answered(lost, gained, rows)
    return intervals.difference_intervals(new, old, labels, [ACCURACY])["accuracy"].low >= least


@pytest.mark.parametrize(
    ("kind", "rows"),
    [(kind, rows) for kind in MODELS for rows in (30, 50, 100)]
    + [("loses 3%", 400), ("loses 3%, gains", 400),
       pytest.param("loses and gains", 400, marks=pytest.mark.long)],
)  # fmt: skip
def test_a_model_at_the_margin_passes_in_at_most_2_5_of_100_cases(
    kind: str, rows: int, few_resamples: None
) -> None:
    """A new model that is exactly as much worse as is still allowed: the probability that the lower
    end of the interval reaches the true difference, over all that it may lose and gain."""
    right, lost, gained = MODELS[kind]
    loses, gains = right * lost, (1 - right) * gained
    error = 0.0
    for losses in range(rows + 1):
        if (p := binom.pmf(losses, rows, loses)) < 1e-5:
            continue
        # The fewest gains with which it passes; more do not hurt.
        fewest = bisect_left(
            range(rows - losses + 1),
            True,
            key=lambda gained: passes(losses, gained, rows, gains - loses),
        )
        error += p * binom.sf(fewest - 1, rows - losses, gains / (1 - loses))
    assert error <= 0.025


@pytest.mark.parametrize(
    ("kind", "rows"),
    [("loses 3%, gains", 50), ("loses and gains", 100)]
    + [pytest.param(kind, rows, marks=pytest.mark.long)
       for kind in MODELS for rows in (30, 50, 100, 400)],
)  # fmt: skip
def test_so_it_does_by_f1(kind: str, rows: int, few_resamples: None) -> None:
    """In 400 draws (standard error: 0.8 points); the positive class is the rarer one."""
    right, lost, gained = MODELS[kind]
    shares = np.array([right * (1 - lost), right * lost, (1 - right) * gained])
    cells = np.outer([0.7, 0.3], [*shares, 1 - shares.sum()]).ravel()
    draw, passed, sets = np.random.default_rng(rows), 0, 400
    true = _f1_gain(cells)
    for counts in draw.multinomial(rows, cells, sets):
        cell = np.repeat(np.arange(8), counts)
        labels, case = cell // 4, cell % 4
        old = np.where(case < 2, labels, 1 - labels)
        new = np.where(case % 2 == 0, labels, 1 - labels)
        found = intervals.difference_intervals(new, old, labels, [F1], 1)["f1"]
        passed += found.low >= true
    assert passed / sets <= 0.025 + 0.016


def _f1_gain(cells: Floats) -> float:
    """The difference of F1 on endless rows; the cells are those of above."""
    (zero, one), case = cells.reshape(2, 4), np.arange(4)

    def f1(right: NDArray[np.bool_]) -> float:
        hits = one[right].sum()
        return float(2 * hits / (hits + zero[~right].sum() + one.sum()))

    return f1(case % 2 == 0) - f1(case < 2)


def test_intervals_hold_the_truth_as_often_as_they_say(few_resamples: None) -> None:
    random, sets = np.random.default_rng(3), 600
    truth = {"accuracy": 0.85, "f1": 2 * 0.675 / (2 * 0.675 + 0.15)}
    above, below = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    for cells in random.multinomial(408, MRPC, size=sets):
        true, called = np.divmod(np.repeat(np.arange(4), cells), 2)
        computed = intervals.score_intervals(called, true, positive=1)
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
        draw = np.random.default_rng(seed)
        labels, *guesses = draw.integers(2, size=(3, 408))
        first, second = (np.where(draw.random(408) < 0.7, labels, guess) for guess in guesses)
        f1 = intervals.score_intervals(first, labels, positive=1)["f1"]
        other = float(f1_score(labels[:300], second[:300]))
        gain = intervals.unpaired_difference(f1, other, 300)
        assert gain.value == f1.value - other
        wrongly += not gain.low <= 0 <= gain.high
    assert wrongly / sets < 0.08
