"""Metrics of scores: equal to scipy's and GLUE's, their intervals, and how sure an answer is."""

from __future__ import annotations

from typing import Any

import evaluate
import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.metrics import catalog, intervals, modules
from finetune.metrics.catalog import OF_SCORES
from finetune.metrics.example_metrics import conformal_margin
from finetune.tasks.base import REGRESSION, SINGLE_LABEL, Target
from finetune.tasks.registry import deciding_metric, find_task, measured, task_of

Array = NDArray[Any]
TARGET = Target((), task=REGRESSION)
NAMES = ["pearson", "spearmanr", "mae", "rmse"]


def drawn(n: int, seed: int = 0, decimals: int = 2) -> tuple[Array, Array]:
    """Draw answers and true scores of correlation 0.7, some of them equal."""
    draw = np.random.default_rng(seed)
    truth = draw.normal(size=n)
    noise = np.sqrt(1 / 0.49 - 1) * draw.normal(size=n)
    return (truth + noise).round(decimals), truth.round(decimals)


def expected(answers: Array, truth: Array) -> dict[str, float]:
    off = answers - truth
    return {
        "pearson": float(scipy.stats.pearsonr(answers, truth).statistic),
        "spearmanr": float(scipy.stats.spearmanr(answers, truth).statistic),
        "mae": float(np.abs(off).mean()),
        "rmse": float(np.sqrt((off**2).mean())),
    }


@pytest.mark.parametrize("n", [5, 60, 3000])
def test_they_equal_scipys(n: int) -> None:
    answers, truth = drawn(n, decimals=1)
    found = catalog.example_scores(answers, truth, OF_SCORES)
    assert found == pytest.approx(expected(answers, truth))


def test_a_module_takes_batches_and_gives_what_glue_does() -> None:
    """GLUE's STS-B has Pearson's and Spearman's correlation by scipy, by these names."""
    answers, truth = (part.astype(np.float32) for part in drawn(90))
    scored = find_task(REGRESSION).score_modules(TARGET, OF_SCORES)
    for seed in range(2):  # it begins anew
        for rows in np.array_split(np.arange(90), [32, 64]):
            scored.add_batch(predictions=answers[rows, None] + seed, references=truth[rows])
        assert scored.compute() == pytest.approx(expected(answers + seed, truth), rel=1e-5)
    loaded = evaluate.load(str(modules.FOLDER), "spearmanr")
    result = loaded.compute(predictions=[1.0, 2.5, 4.0], references=[0.2, 0.5, 0.4])
    assert result == {"spearmanr": pytest.approx(0.5)}


def test_constant_scores_correlate_with_nothing() -> None:
    truth = np.array([0.1, 0.5, 0.9])
    for constant in (np.full(3, 0.3, np.float32), np.full(3, 1e6)):
        found = catalog.example_scores(constant, truth, OF_SCORES[:2])
        assert found == {"pearson": 0.0, "spearmanr": 0.0}
    small = catalog.example_scores(truth * 1e-7, truth, OF_SCORES[:2])
    assert small == pytest.approx({"pearson": 1.0, "spearmanr": 1.0})


def test_resamples_are_ranked_anew() -> None:
    answers, truth = drawn(40, decimals=1)
    weights = np.random.default_rng(1).multinomial(40, np.full(40, 1 / 40), 5).T
    for metric in OF_SCORES:
        assert metric.of_examples is not None
        found = metric.of_examples(answers, truth, weights)
        repeated = [
            expected(np.repeat(answers, times), np.repeat(truth, times))[metric.name]
            for times in weights.T
        ]
        assert found == pytest.approx(repeated)


def test_the_interval_equals_scipys_bca() -> None:
    answers, truth = drawn(80)
    computed = intervals.score_intervals(answers, truth, OF_SCORES)
    for name in ("pearson", "mae"):
        resampled = scipy.stats.bootstrap(
            (answers, truth), lambda a, t: expected(a, t)[name],  # noqa: B023
            paired=True, vectorized=False, n_resamples=2000, rng=0,
        ).confidence_interval  # fmt: skip
        assert computed[name].low == pytest.approx(resampled.low, abs=0.03)
        assert computed[name].high == pytest.approx(resampled.high, abs=0.03)


def test_an_interval_holds_the_true_value_as_often_as_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 200 intervals 95% would be 190; 12 fewer are four standard deviations."""
    monkeypatch.setattr(intervals, "_RESAMPLES", 600)
    metrics = [OF_SCORES[0], OF_SCORES[3]]
    true = {"pearson": 0.7, "rmse": np.sqrt(1 / 0.49 - 1)}
    hits = dict.fromkeys(true, 0)
    for seed in range(200):
        found = intervals.score_intervals(*drawn(120, seed, decimals=9), metrics)
        for name, value in true.items():
            hits[name] += found[name].low <= value <= found[name].high
    assert all(count >= 178 for count in hits.values()), hits


def test_the_difference_of_two_models_is_that_of_resampled_pairs() -> None:
    first, truth = drawn(150)
    second = first + np.random.default_rng(3).normal(0, 0.2, 150)
    computed = intervals.difference_intervals(second, first, truth, OF_SCORES)
    rows = np.random.default_rng(1).integers(150, size=(1500, 150))
    draws = [
        expected(second[row], truth[row])["mae"] - expected(first[row], truth[row])["mae"]
        for row in rows
    ]
    low, high = np.quantile(draws, [0.025, 0.975])
    assert computed["mae"].value == pytest.approx(
        expected(second, truth)["mae"] - expected(first, truth)["mae"]
    )
    assert computed["mae"].low == pytest.approx(low, abs=0.012)
    assert computed["mae"].high == pytest.approx(high, abs=0.012)
    swapped = find_task(REGRESSION).difference(first, second, truth, TARGET, OF_SCORES)
    assert swapped["mae"].value == pytest.approx(-computed["mae"].value)


def test_a_conformal_interval_covers_new_scores() -> None:
    """95% or a little more of new examples, whatever the errors are like."""
    for n, low in ((19, 0.93), (100, 0.935), (400, 0.94)):
        covered = []
        for seed in range(400):
            draw = np.random.default_rng(seed)
            errors = draw.standard_t(2, n + 50)
            margin = conformal_margin(errors[:n])
            assert margin is not None
            covered.append((np.abs(errors[n:]) <= margin).mean())
        assert low <= np.mean(covered) <= 0.97
    assert conformal_margin(np.zeros(18)) is None
    assert conformal_margin(np.arange(19.0) - 9) == 9


def test_metrics_of_other_answers_are_not_measured_of_scores() -> None:
    config = RunConfig(metrics="matthews_correlation")
    assert [metric.name for metric in measured(config, TARGET)] == NAMES
    decided = {"f1": "pearson", "roc_auc": "pearson", "mae": "mae", "loss": "loss"}
    for name, decides in decided.items():
        by_name = config.changed(metric_for_best_model=name)
        assert deciding_metric(by_name, task_of(TARGET)) == decides
    by_error = config.changed(metric_for_best_model="mae")
    assert deciding_metric(by_error, find_task(SINGLE_LABEL)) == "f1"
