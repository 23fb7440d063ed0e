"""What was picked, by simulation: scores without the picking bias, thresholds judged on other rows,
and the set that holds the best of several models."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from finetune.metrics import catalog, classification, intervals, selection
from finetune.metrics.catalog import ACCURACY, F1, OF_LABELS, OF_SCORES, Metric
from finetune.metrics.classification import Floats, Truths
from finetune.metrics.intervals import Interval
from finetune.metrics.selection import Statistic
from finetune.metrics.shared_rows import SharedRows

RUNS, EXAMPLES, POSITIVE = 300, 150, 0.6


def scored(
    metric: Metric, truth: np.ndarray, answers: np.ndarray, positive: int | None = None
) -> Statistic:
    return selection.statistics([metric], truth, answers, positive)[metric.name]


def answered_by(
    skills: Floats, examples: int, draw: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """True classes, and the answers of models. A model answers by a score of its own and a shared
    one, and tells the classes apart as well as its skill says."""
    labels = (draw.random(examples) < POSITIVE).astype(np.int64)
    noise = draw.normal(size=examples) + draw.normal(size=(len(skills), examples))
    return labels, ((2 * labels - 1) * skills[:, None] + noise / 2**0.5 > 0).astype(np.int64)


def simulated(models: int, spread: float) -> Iterator[tuple[Interval, Interval, float]]:
    """Pick the best of several models in each of many experiments; return its F1 as measured,
    without the picking bias, and on endless examples. `spread` is the standard deviation of the
    models' skills."""
    for seed in range(RUNS):
        draw = np.random.default_rng(seed)
        skills = 0.8 + spread * draw.normal(size=models)
        labels, predictions = answered_by(skills, EXAMPLES, draw)
        f1 = scored(F1, labels, predictions, 1)
        kept = int(f1.of(np.ones((EXAMPLES, 1)))[:, 0].argmax())
        bias = selection.picking_bias(f1, {"f1": f1}, kept)["f1"]
        score = intervals.score_intervals(predictions[kept], labels, [F1], 1)["f1"]
        right = float(norm.cdf(skills[kept]))
        true = 2 * POSITIVE * right / (POSITIVE + POSITIVE * right + (1 - POSITIVE) * (1 - right))
        yield score, selection.lowered(score, bias), true


@pytest.mark.parametrize(
    ("models", "spread", "flattered"),
    [
        (10, 0.0, True),
        pytest.param(30, 0.05, True, marks=pytest.mark.long),
        (10, 0.3, False),
    ],
)
def test_the_interval_holds_what_new_examples_show(
    models: int, spread: float, flattered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """95% intervals over 300 experiments (standard error of a share: 1.3 points)."""
    monkeypatch.setattr(selection, "_RESAMPLES", 200)
    monkeypatch.setattr(intervals, "_RESAMPLES", 1000)
    measured, corrected, true = zip(*simulated(models, spread), strict=True)

    def bias(scores: tuple[Interval, ...]) -> float:
        return float(np.mean([score.value - f1 for score, f1 in zip(scores, true, strict=True)]))

    def coverage(scores: tuple[Interval, ...]) -> float:
        pairs = zip(scores, true, strict=True)
        return float(np.mean([score.low <= f1 <= score.high for score, f1 in pairs]))

    assert abs(bias(corrected)) < 0.01
    assert coverage(corrected) >= 0.94
    if flattered:  # by models that hardly differ
        assert bias(measured) > 0.03
        assert coverage(measured) < 0.9


def test_the_best_in_the_sample_is_scored_outside_of_it() -> None:
    """Compared with the mean over all samples of four examples; each model is right on some of
    them."""
    right = np.array([[1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 0, 1]])
    added = []
    for sample in itertools.product(range(4), repeat=4):
        chosen = right[:, list(sample)].mean(axis=1).argmax()  # of equals the first
        outside = sorted({0, 1, 2, 3} - set(sample))
        added.append((right[0] - right[chosen])[outside].mean() if outside else 0.0)
    accuracy = scored(ACCURACY, np.ones(4, np.int64), right)
    found = selection.picking_bias(accuracy, {"accuracy": accuracy}, 0)["accuracy"]
    assert np.mean(added) > 0.1
    assert found == pytest.approx(np.mean(added), abs=0.03)


def test_nothing_is_taken_off_where_nothing_was_picked() -> None:
    labels = np.arange(40) % 2
    right, wrong = labels.copy(), 1 - labels
    for predictions in ([right], [right, wrong, wrong], [right, right]):
        statistic = scored(ACCURACY, labels, np.array(predictions))
        assert selection.picking_bias(statistic, {"accuracy": statistic}, 0)["accuracy"] == 0.0
    alone = scored(ACCURACY, labels[:1], np.array([right[:1], wrong[:1]]))
    assert selection.picking_bias(alone, {"accuracy": alone}, 0)["accuracy"] == 0.0


def answered(task: str, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The truth of 100 examples and the answers of ten equally good models: scores that correlate
    with it by 0.8, or three labels of which each is wrong in a tenth."""
    if task == "scores":
        truth = draw.normal(size=100)
        return truth, truth + 0.75 * draw.normal(size=(10, 100))
    labels = draw.integers(0, 2, (100, 3))
    return labels, np.where(draw.random((10, 100, 3)) < 0.1, 1 - labels, labels)


@pytest.mark.parametrize(
    ("task", "metrics", "expected"),
    [
        ("scores", OF_SCORES, {"pearson": 0.8, "rmse": 0.75}),
        ("labels", OF_LABELS, {"micro_f1": 0.9, "subset_accuracy": 0.9**3, "hamming_loss": 0.1}),
    ],
)
def test_what_picking_adds_to_scores_and_labels_is_taken_off(
    task: str, metrics: tuple[Metric, ...], expected: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(selection, "_RESAMPLES", 100)
    picked: dict[str, list[float]] = {name: [] for name in expected}
    corrected: dict[str, list[float]] = {name: [] for name in expected}
    for seed in range(100):
        truth, answers = answered(task, np.random.default_rng(seed))
        statistics = selection.statistics(metrics, truth, answers)
        by = statistics[metrics[0].name]
        kept = int(by.of(np.ones((100, 1)))[:, 0].argmax())
        bias = selection.picking_bias(by, statistics, kept)
        scores = catalog.example_scores(answers[kept], truth, metrics)
        for name in expected:
            rank = catalog.find(name).rank
            picked[name].append(rank(scores[name]) - rank(expected[name]))
            corrected[name].append(picked[name][-1] - bias[name])
    for name in expected:
        assert np.mean(picked[name]) > 0.01, name
        assert abs(np.mean(corrected[name])) < np.mean(picked[name]) / 2, name


def kept(skills: Floats, examples: int, seed: int) -> Truths:
    """The models kept in one experiment."""
    labels, answers = answered_by(skills, examples, np.random.default_rng(seed))
    return selection.best_set(*bootstrapped(F1, labels, answers, 1))


def bootstrapped(
    metric: Metric, truth: Any, answers: Any, positive: int | None = None
) -> tuple[Floats, Floats]:
    return selection.bootstrap_scores(scored(metric, truth, np.asarray(answers), positive))


@pytest.mark.parametrize(
    ("skills", "fewest", "most"),
    [
        ([0.8] * 6, 5.5, 6),
        ([1.2, 0.8, 0.8, 0.4, 0.2, 0], 1, 4),
        pytest.param([0.8] * 2, 1.8, 2, marks=pytest.mark.long),
        pytest.param([0.8] * 20, 18, 20, marks=pytest.mark.long),
    ],
)
def test_the_best_is_in_the_set(
    skills: list[float], fewest: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In at least 95% of 150 experiments: models that are equally good, the hardest case, and
    models of which some are plainly worse, which are left out."""
    monkeypatch.setattr(selection, "_RESAMPLES", 200)
    sets = np.stack([kept(np.array(skills), 60, seed) for seed in range(150)])
    assert sets[:, 0].mean() >= 0.95
    assert fewest <= sets.sum(axis=1).mean() <= most


def test_equal_answers_stay_together_and_a_lead_must_hold_without_the_bias() -> None:
    draw = np.random.default_rng(0)
    truth = draw.integers(0, 2, 300)
    good, poor = (np.where(draw.random(300) < share, truth, 1 - truth) for share in (0.9, 0.75))
    measured, resampled = bootstrapped(ACCURACY, truth, [good, good, poor])
    assert selection.best_set(measured, resampled).tolist() == [True, True, False]
    # The lead came from picking, or from the other model's being picked less.
    bias = np.array([0.2, 0.2, 0.0])
    assert selection.best_set(measured, resampled, bias).tolist() == [True, True, True]
    assert selection.best_set(measured, resampled, -bias).tolist() == [True, True, False]
    assert selection.best_set(*bootstrapped(ACCURACY, truth, [poor])).tolist() == [True]


def test_scores_and_labels_are_ranked_too() -> None:
    """Of an error the smallest is the best; labels count row by row."""
    draw = np.random.default_rng(1)
    truth = draw.normal(size=200)
    near, far = (truth + spread * draw.normal(size=200) for spread in (0.2, 1.0))
    error = catalog.find("mae")
    measured, resampled = bootstrapped(error, truth, [far, near])
    assert measured[1] == pytest.approx(-np.abs(near - truth).mean(), rel=1e-4)
    assert selection.best_set(measured, resampled).tolist() == [False, True]
    labels = draw.integers(0, 2, (200, 3))
    answers = [labels, np.roll(labels, 1, axis=1)]
    sets = bootstrapped(catalog.find("micro_f1"), labels, answers)
    assert selection.best_set(*sets).tolist() == [True, False]


@pytest.mark.parametrize(("lost", "left_out"), [(0, False), (4, False), (6, True)])
def test_a_few_lost_answers_are_no_proof(lost: int, left_out: bool) -> None:
    """Four lost answers and none gained are chance in one of sixteen cases, six in one of 64."""
    truth = np.ones(60, np.int64)
    poorer = (np.arange(60) >= lost).astype(np.int64)
    kept = selection.best_set(*bootstrapped(ACCURACY, truth, [poorer, truth]))
    assert kept.tolist() == [not left_out, True]


def weak_model(
    draw: np.random.Generator, n: int, share: float, bias: float
) -> tuple[Floats, Truths]:
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
    new = weak_model(draw, 100_000, share, bias)
    naive, fitted, covered, harmful = [], [], [], 0
    for _ in range(120):
        scores, positives = weak_model(draw, n, share, bias)
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


def test_a_threshold_that_only_costs_is_not_recommended() -> None:
    """The scores are perfect, so any threshold is as good as a half."""
    truth = np.arange(80) % 2 == 1
    found = selection.cross_fit_threshold(np.where(truth, 0.9, 0.1), truth)
    assert found is not None
    assert classification.best_threshold(np.where(truth, 0.9, 0.1), truth) == found.threshold
    assert (found.f1.value, found.gain.value, found.is_recommended) == (1.0, 0.0, False)
