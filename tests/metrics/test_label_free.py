"""What a file without labels tells, by simulation: intervals that hold, few false alarms, real
shifts seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import ks_2samp

from finetune.metrics import label_free
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


def test_the_reference_itself_has_its_own_accuracy() -> None:
    known = reference(*answers(np.random.default_rng(0), 300))
    accuracy, change = label_free.estimated_accuracy(known, known.sum(axis=0))
    assert change.value == pytest.approx(0, abs=1e-12)
    assert accuracy.low < accuracy.value < accuracy.high


def test_without_an_error_the_accuracy_is_not_certain() -> None:
    known = reference(np.full(60, 0.99), np.ones(60, bool))
    accuracy, _ = label_free.estimated_accuracy(known, known.sum(axis=0))
    assert accuracy.value == 1
    assert accuracy.low < 0.95


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


def test_the_distance_of_ordered_counts_is_that_of_kolmogorov_and_smirnov() -> None:
    draw = np.random.default_rng(0)
    first, second = draw.integers(0, 30, 200), draw.integers(5, 33, 150)
    counts = [np.bincount(values, minlength=33) for values in (first, second)]
    found = label_free.counts_test(counts[0], counts[1], ordered=True)
    assert found.distance == pytest.approx(ks_2samp(first, second).statistic)


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


def test_several_tests_together_seldom_reject_what_is_true() -> None:
    assert label_free.holm([0.04, 0.001, 0.3, 0.012]) == [False, True, False, True]
    draws = np.random.default_rng(0).random((2000, 5))
    assert np.mean([any(label_free.holm(ps)) for ps in draws]) <= 0.06
