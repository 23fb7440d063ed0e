"""The picking bias: scores without it agree with those of new examples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import accuracy_score, f1_score, log_loss

from finetune.metrics import intervals, selection
from finetune.metrics.catalog import (
    ACCURACY,
    F1,
    OF_LABELS,
    OF_SCORES,
    Metric,
    example_scores,
    find,
)  # fmt: skip
from finetune.metrics.intervals import Interval
from finetune.metrics.selection import Statistic

RUNS, EXAMPLES, POSITIVE = 300, 150, 0.6


def scored(
    metric: Metric, truth: np.ndarray, answers: np.ndarray, positive: int | None = None
) -> Statistic:
    return selection.statistics([metric], truth, answers, positive)[metric.name]


def simulated(models: int, spread: float) -> Iterator[tuple[Interval, Interval, float]]:
    """Pick the best of several models in each of many experiments; return its F1 as measured,
    without the picking bias, and on endless examples.

    A model answers by a score of its own and a shared one; `spread` is the standard deviation of
    how well the models can tell the classes apart.
    """
    for seed in range(RUNS):
        draw = np.random.default_rng(seed)
        skills = 0.8 + spread * draw.normal(size=models)
        labels = (draw.random(EXAMPLES) < POSITIVE).astype(np.int64)
        noise = draw.normal(size=EXAMPLES) + draw.normal(size=(models, EXAMPLES))
        predictions = ((2 * labels - 1) * skills[:, None] + noise / 2**0.5 > 0).astype(np.int64)
        (f1,) = selection.statistics([F1], labels, predictions, 1).values()
        kept = int(f1.of(np.ones((EXAMPLES, 1)))[:, 0].argmax())
        bias = selection.picking_bias(f1, {"f1": f1}, kept)["f1"]
        score = intervals.score_intervals(predictions[kept], labels, [F1], 1)["f1"]
        right = float(norm.cdf(skills[kept]))
        true = 2 * POSITIVE * right / (POSITIVE + POSITIVE * right + (1 - POSITIVE) * (1 - right))
        yield score, selection.lowered(score, bias), true


@pytest.mark.parametrize(
    ("models", "spread", "flattered"), [(10, 0.0, True), (30, 0.05, True), (10, 0.3, False)]
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


def test_the_sums_give_the_scores_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    labels, predictions = draw.integers(0, 3, 80), draw.integers(0, 3, (4, 80))
    counts = draw.integers(0, 4, (80, 2))
    binary = np.minimum(labels, 1), np.minimum(predictions, 1)
    likely = draw.dirichlet(np.ones(3), (4, 80))
    losses = -np.log(likely[:, np.arange(80), labels])
    found = {
        "accuracy": scored(ACCURACY, labels, predictions).of(counts),
        "macro": scored(F1, labels, predictions).of(counts),
        "f1": scored(F1, *binary, 0).of(counts),
        "loss": selection.loss(losses).of(counts),
    }
    for model in range(4):
        for column in range(2):
            rows = np.repeat(np.arange(80), counts[:, column])
            true, called = labels[rows], predictions[model, rows]
            two = binary[0][rows], binary[1][model, rows]
            expected = {
                "accuracy": accuracy_score(true, called),
                "macro": f1_score(true, called, average="macro"),
                "f1": f1_score(*two, pos_label=0),
                "loss": -log_loss(true, likely[model, rows], labels=[0, 1, 2]),
            }
            for name, value in expected.items():
                assert found[name][model, column] == pytest.approx(value, rel=1e-5), name


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


def test_a_loss_that_picks_says_what_it_adds_to_the_other_scores() -> None:
    """Equally good models, picked by the loss: the bias of accuracy is smaller than that of the
    loss."""
    draw = np.random.default_rng(3)
    labels = draw.integers(0, 2, 100)
    margins = 1 + 2 * draw.normal(size=(10, 100))
    loss = selection.loss(np.log1p(np.exp(-margins)))
    accuracy = scored(ACCURACY, labels, np.where(margins > 0, labels, 1 - labels))
    kept = int(loss.of(np.ones((100, 1)))[:, 0].argmax())
    bias = selection.picking_bias(loss, {"loss": loss, "accuracy": accuracy}, kept)
    assert bias["loss"] > 0.02
    assert 0 < bias["accuracy"] < 0.1


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
        scores = example_scores(answers[kept], truth, metrics)
        for name in expected:
            rank = find(name).rank
            picked[name].append(rank(scores[name]) - rank(expected[name]))
            corrected[name].append(picked[name][-1] - bias[name])
    for name in expected:
        assert np.mean(picked[name]) > 0.01, name
        assert abs(np.mean(corrected[name])) < np.mean(picked[name]) / 2, name
