"""Cross-fitted scores agree with those of new examples; naive scores do not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from finetune.metrics import classification, selection
from finetune.metrics.shared_rows import SharedRows

Floats = NDArray[np.float64]
Truths = NDArray[np.bool_]


def drawn(draw: np.random.Generator, n: int, share: float, bias: float) -> tuple[Floats, Truths]:
    """Draw probabilities of a weak model, biased on the scale of its logits."""
    positives = draw.random(n) < share
    logits = draw.normal(np.where(positives, 0.7, -0.7) + bias, 1.5)
    return 1 / (1 + np.exp(-logits)), positives


def f1_at(threshold: float, scores: Floats, positives: Truths) -> float:
    called = scores >= threshold
    return float(2 * (called & positives).sum() / (called.sum() + positives.sum()))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "share", "bias"), [(120, 0.5, 0.0), (240, 0.3, -1.0)])
def test_a_cross_fitted_f1_is_that_of_new_examples_and_the_best_one_is_not(
    n: int, share: float, bias: float
) -> None:
    """Each of 120 validation sets has its own threshold, judged on 100,000 new examples."""
    draw = np.random.default_rng(7)
    new = drawn(draw, 100_000, share, bias)
    naive, fitted, covered, harmful = [], [], [], 0
    for _ in range(120):
        scores, positives = drawn(draw, n, share, bias)
        found = selection.cross_fit_threshold(scores, positives)
        assert found is not None
        true = f1_at(found.threshold, *new)
        naive.append(f1_at(found.threshold, scores, positives) - true)
        fitted.append(found.f1.value - true)
        covered.append(found.f1.low <= true <= found.f1.high)
        harmful += found.is_recommended and true < f1_at(0.5, *new)
    error = np.std(fitted) / len(fitted) ** 0.5  # of the mean
    assert abs(np.mean(fitted)) < 2 * error
    assert np.mean(naive) > 5 * error
    assert np.mean(covered) > 0.88
    assert harmful <= 0.025 * len(fitted)


def test_repeated_examples_do_not_confirm_a_threshold_that_was_fitted_to_them() -> None:
    """Random scores, each eight times: with groups their result is that of one copy of each."""
    draw = np.random.default_rng(1)
    once = draw.random(60), draw.random(60) < 0.4
    scores, positives = np.repeat(once[0], 8), np.repeat(once[1], 8)
    shared = SharedRows(np.repeat(np.arange(60), 8))
    alone = selection.cross_fit_threshold(scores, positives)
    together = selection.cross_fit_threshold(scores, positives, shared)
    assert alone is not None
    assert together is not None
    best = f1_at(together.threshold, *once)
    assert alone.f1.value > best - 0.02
    assert together.f1.value < best - 0.04
    widths = [found.f1.high - found.f1.low for found in (alone, together)]
    assert widths[1] > 2 * widths[0]  # they are worth 60 examples, not 480


def test_folds_keep_groups_together_and_classes_apart_and_are_the_same_again() -> None:
    draw = np.random.default_rng(0)
    strata, groups = draw.random(500) < 0.2, draw.integers(0, 300, 500)
    folds = selection.assign_folds(strata, 5)
    assert np.bincount(folds).tolist() == [100] * 5
    assert np.ptp(np.bincount(folds[strata])) <= 1
    np.testing.assert_array_equal(folds, selection.assign_folds(strata.astype(int), 5))
    folds = selection.assign_folds(strata, 5, groups)
    assert all(len({*folds[groups == group]}) == 1 for group in {*groups})
    assert set(folds) == set(range(5))


@pytest.mark.parametrize(("positives", "negatives"), [(9, 50), (50, 9), (0, 60)])
def test_of_too_few_examples_of_a_class_nothing_is_said(positives: int, negatives: int) -> None:
    scores = np.linspace(0, 1, positives + negatives)
    truth = np.repeat([True, False], [positives, negatives])
    assert selection.cross_fit_threshold(scores, truth) is None


def test_a_threshold_that_only_costs_is_not_recommended() -> None:
    """The scores are perfect, so any threshold is as good as a half."""
    truth = np.arange(80) % 2 == 1
    found = selection.cross_fit_threshold(np.where(truth, 0.9, 0.1), truth)
    assert found is not None
    assert classification.best_threshold(np.where(truth, 0.9, 0.1), truth) == found.threshold
    assert (found.f1.value, found.gain.value, found.is_recommended) == (1.0, 0.0, False)
