"""What a file with few labels or none tells, by simulation: intervals that hold, few false alarms,
real shifts seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.metrics import cohen_kappa_score

from finetune.inference import other_answers
from finetune.metrics import intervals, label_free
from finetune.metrics.intervals import Interval, wilson_interval
from finetune.metrics.shared_rows import SharedRows

Counts = NDArray[np.int64]
CONFUSION = np.array([[0.85, 0.1, 0.05], [0.1, 0.8, 0.1], [0.02, 0.08, 0.9]])


def answers(
    draw: np.random.Generator, rows: int, sure: float = 3.0
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Draw confidences, and whether each answer is right; an overconfident model."""
    odds = np.abs(draw.normal(sure, 2, rows))
    return 2 * expit(odds) - 1, draw.random(rows) < expit(0.7 * odds)


def counted(confidence: NDArray[Any]) -> Counts:
    bins = label_free.confidence_bins(confidence)
    return np.bincount(bins, minlength=label_free.CONFIDENCE_BINS)


def reference(confidence: NDArray[Any], right: NDArray[np.bool_]) -> Counts:
    return np.stack([counted(confidence[~right]), counted(confidence[right])])


def expected(sure: float) -> float:
    return float(answers(np.random.default_rng(9), 1_000_000, sure)[1].mean())


def coverage(draws: int, rows: int, file_rows: int) -> tuple[float, float]:
    """The share of draws whose interval holds the accuracy, and whose difference holds 0."""
    draw, truth, held = np.random.default_rng(1), expected(3.0), []
    for _ in range(draws):
        known = reference(*answers(draw, rows))
        accuracy, change = label_free.estimated_accuracy(
            known, counted(answers(draw, file_rows)[0])
        )
        held.append((accuracy.low <= truth <= accuracy.high, change.low <= 0 <= change.high))
    first, second = np.mean(held, axis=0)
    return float(first), float(second)


@pytest.mark.long
@pytest.mark.parametrize(("rows", "file_rows"), [(100, 100), (400, 2000), (2000, 200)])
def test_the_accuracys_interval_holds_in_95_of_100_draws(
    monkeypatch: pytest.MonkeyPatch, rows: int, file_rows: int
) -> None:
    monkeypatch.setattr(label_free, "_RESAMPLES", 500)
    accuracy, change = coverage(600, rows, file_rows)
    assert accuracy >= 0.95
    assert change >= 0.925  # within three standard errors


def test_a_harder_file_is_seen_and_its_accuracy_estimated() -> None:
    draw = np.random.default_rng(0)
    known, file = reference(*answers(draw, 2000)), answers(draw, 2000, sure=1.5)
    accuracy, change = label_free.estimated_accuracy(known, counted(file[0]))
    assert accuracy.value == pytest.approx(file[1].mean(), abs=0.08)
    assert change.high < 0
    assert accuracy.value - change.value == pytest.approx(known[1].sum() / 2000)


@pytest.mark.parametrize("shares", [(0.2, 0.3, 0.5), (0.6, 0.3, 0.1)])
def test_the_shares_of_the_classes_are_estimated_from_the_answers(
    monkeypatch: pytest.MonkeyPatch, shares: tuple[float, ...]
) -> None:
    monkeypatch.setattr(label_free, "_RESAMPLES", 300)
    draw, held = np.random.default_rng(0), np.zeros(3)
    for _ in range(300):
        known = np.stack(
            [draw.multinomial(n, row) for n, row in zip((60, 90, 150), CONFUSION, strict=True)]
        )
        found = label_free.estimated_shares(
            known, draw.multinomial(500, np.array(shares) @ CONFUSION)
        )
        assert found is not None
        held += [one.low <= share <= one.high for one, share in zip(found, shares, strict=True)]
    assert (held / 300 >= 0.925).all()  # 0.95 within two standard errors


def test_shares_are_not_estimated_of_classes_that_are_hardly_found() -> None:
    rare = np.array([[80, 5], [2, 3]])
    missed = np.array([[80, 5], [60, 30]])
    assert label_free.estimated_shares(rare, np.array([50, 50])) is None
    assert label_free.estimated_shares(missed, np.array([50, 50])) is None


@pytest.mark.parametrize("ordered", [True, False])
def test_counts_of_one_distribution_are_told_apart_in_5_of_100_draws(
    monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    monkeypatch.setattr(label_free, "_PERMUTATIONS", 199)
    draw, shares = np.random.default_rng(3), np.array([0.5, 0.3, 0.15, 0.05])
    ps = [
        label_free.counts_test(
            draw.multinomial(400, shares), draw.multinomial(300, shares), ordered
        ).p
        for _ in range(1000)
    ]
    assert np.mean(np.array(ps) <= 0.05) <= 0.064  # within two standard errors
    moved = draw.multinomial(300, [0.3, 0.3, 0.2, 0.2])
    assert label_free.counts_test(draw.multinomial(400, shares), moved, ordered).p < 0.01


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_that_share_a_sentence_raise_few_false_alarms(
    monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """Files of 100 sentences in three rows each, which mostly have the same cell."""
    monkeypatch.setattr(label_free, "_PERMUTATIONS", 199)
    draw, sentence = np.random.default_rng(3), np.repeat(np.arange(100), 3)
    shared, alarms = SharedRows(sentence), np.zeros(2)

    def cells() -> tuple[Counts, float]:
        of_row = draw.integers(0, 6, 100)[sentence]
        of_row = np.where(draw.random(300) < 0.8, of_row, draw.integers(0, 6, 300))
        values = of_row if ordered else of_row[:, None] == np.arange(6)
        return np.bincount(of_row, minlength=6), shared.worth(values) / 300

    for _ in range(400):
        (first, one), (second, other) = cells(), cells()
        for at, parts in enumerate(((1.0, 1.0), (one, other))):
            alarms[at] += label_free.counts_test(first, second, ordered, parts).p <= 0.05
    assert alarms[0] / 400 > 0.1
    assert alarms[1] / 400 <= 0.072  # within two standard errors


def test_a_classifier_tells_texts_apart_only_if_they_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(label_free, "_CLASSIFIERS", 100)
    draw, is_file, found = np.random.default_rng(0), np.arange(90) < 60, []
    for _ in range(150):
        rows = draw.normal(size=(90, 20)) / 4.5
        found.append(label_free.classifier_test(rows @ rows.T, is_file))
    areas, ps = np.array(found).T
    assert areas.mean() == pytest.approx(0.5, abs=0.02)
    assert (ps <= 0.05).mean() <= 0.09  # 0.05 within two standard errors
    rows[is_file, 0] += 0.5
    shifted = label_free.classifier_test(rows @ rows.T, is_file)
    assert shifted.p < 0.05
    assert shifted.distance > 0.75


ROWS, DRAWS = 1000, 1500


def check_coverage(
    known: NDArray[Any], predicted: NDArray[Any], truth: float, labelled: int
) -> float:
    """Assert that 95% intervals hold in the draws, each a column. Returns their mean width."""
    found = label_free.share_intervals(
        known[:labelled], predicted[:labelled], predicted.mean(0), predicted.var(0), ROWS
    )
    low, high = (np.array([getattr(one, end) for one in found]) for end in ("low", "high"))
    assert ((low <= truth) & (truth <= high)).mean() >= 0.939  # 0.95 within two standard errors
    return float((high - low).mean())


@pytest.mark.parametrize("labelled", [50, 100])
@pytest.mark.parametrize("sure", [0.5, 3.0, 6.0])
def test_the_accuracys_interval_holds(sure: float, labelled: int) -> None:
    draw = np.random.default_rng(0)
    odds = np.abs(draw.normal(sure, 2, (ROWS, DRAWS)))
    right = draw.random((ROWS, DRAWS)) < expit(0.7 * odds)
    check_coverage(right, expit(odds), float(expit(0.7 * odds).mean()), labelled)


@pytest.mark.parametrize("share", [0.03, 0.1, 0.5])
def test_a_classs_share_is_known_better_by_a_good_model(share: float) -> None:
    draw = np.random.default_rng(0)
    truth = draw.random((ROWS, DRAWS)) < share
    answers = np.where(draw.random((ROWS, DRAWS)) < 0.95, truth, ~truth).astype(float)
    width = check_coverage(truth, answers, share, 100)
    alone = wilson_interval(round(100 * share), 100)
    if share == 0.5:
        assert width < 0.7 * (alone.high - alone.low)


def test_a_model_that_knows_nothing_costs_next_to_nothing() -> None:
    draw = np.random.default_rng(0)
    truth = draw.random((ROWS, DRAWS)) < 0.3
    width = check_coverage(truth, draw.random((ROWS, DRAWS)), 0.3, 100)
    alone = wilson_interval(30, 100)
    assert width < 1.1 * (alone.high - alone.low)


def noisy(
    draw: np.random.Generator, rows: int, classes: int = 3
) -> tuple[NDArray[Any], NDArray[Any]]:
    first = draw.choice(classes, rows, p=[0.6, 0.3, 0.1])
    return first, np.where(draw.random(rows) < 0.7, first, draw.integers(0, classes, rows))


def test_the_interval_of_kappa_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "_RESAMPLES", 500)
    draw = np.random.default_rng(0)
    truth, held = cohen_kappa_score(*noisy(draw, 500_000)), 0
    for _ in range(200):
        found = other_answers.kappa(*noisy(draw, 150))
        held += found.low <= truth <= found.high
    assert held / 200 >= 0.92  # 0.95 within two standard errors


def test_kappa_of_equal_and_of_constant_answers() -> None:
    same = np.array([0, 1] * 20)
    found = other_answers.kappa(same, same)
    assert (found.value, found.high) == (1, 1)
    assert 0.5 < found.low < 1
    assert np.isnan(other_answers.kappa(np.zeros(9, int), np.zeros(9, int)).value)
    assert other_answers.kappa(same, np.zeros(40, int)) == Interval(0, -1, 1)
