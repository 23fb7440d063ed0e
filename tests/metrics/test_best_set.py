"""The set that holds the best of several models: simulated, and against scores computed singly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from finetune.metrics import catalog, selection
from finetune.metrics.catalog import F1, Metric
from finetune.metrics.classification import Floats, Truths


def kept(skills: NDArray[np.float64], examples: int, seed: int) -> Truths:
    """The models kept in one experiment; a model answers by a score of its own and a shared one,
    and tells the classes apart as well as its skill says."""
    draw = np.random.default_rng(seed)
    labels = (draw.random(examples) < 0.6).astype(np.int64)
    noise = draw.normal(size=examples) + draw.normal(size=(len(skills), examples))
    answers = ((2 * labels - 1) * skills[:, None] + noise / 2**0.5 > 0).astype(np.int64)
    return selection.best_set(*scored(F1, labels, answers, 1))


def scored(
    metric: Metric, truth: Any, answers: Any, positive: int | None = None
) -> tuple[Floats, Floats]:
    statistics = selection.statistics([metric], truth, np.asarray(answers), positive)
    return selection.bootstrap_scores(statistics[metric.name])


@pytest.mark.parametrize(
    ("skills", "fewest", "most"), [([0.8] * 6, 5.5, 6), ([1.2, 0.8, 0.8, 0.4, 0.2, 0], 1, 4)]
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


@pytest.mark.long
@pytest.mark.parametrize(("models", "examples"), [(2, 60), (20, 60), (6, 400)])
def test_the_best_is_in_the_set_of_few_and_of_many(
    models: int, examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 2,000 experiments each, of equally good models (standard error: half a point)."""
    monkeypatch.setattr(selection, "_RESAMPLES", 500)
    found = [kept(np.full(models, 0.8), examples, seed)[0] for seed in range(2000)]
    assert np.mean(found) >= 0.95


def test_equal_answers_stay_together_and_a_lead_must_hold_without_the_bias() -> None:
    draw = np.random.default_rng(0)
    truth = draw.integers(0, 2, 300)
    good, poor = (np.where(draw.random(300) < share, truth, 1 - truth) for share in (0.9, 0.75))
    measured, resampled = scored(catalog.ACCURACY, truth, [good, good, poor])
    assert selection.best_set(measured, resampled).tolist() == [True, True, False]
    # The lead came from picking, or from the other model's being picked less.
    bias = np.array([0.2, 0.2, 0.0])
    assert selection.best_set(measured, resampled, bias).tolist() == [True, True, True]
    assert selection.best_set(measured, resampled, -bias).tolist() == [True, True, False]
    assert selection.best_set(*scored(catalog.ACCURACY, truth, [poor])).tolist() == [True]


def test_scores_and_labels_are_ranked_too() -> None:
    """Of an error the smallest is the best; labels count row by row."""
    draw = np.random.default_rng(1)
    truth = draw.normal(size=200)
    near, far = (truth + spread * draw.normal(size=200) for spread in (0.2, 1.0))
    error = catalog.find("mae")
    measured, resampled = scored(error, truth, [far, near])
    assert measured[1] == pytest.approx(-np.abs(near - truth).mean(), rel=1e-4)
    assert selection.best_set(measured, resampled).tolist() == [False, True]
    labels = draw.integers(0, 2, (200, 3))
    answers = [labels, np.roll(labels, 1, axis=1)]
    sets = scored(catalog.find("micro_f1"), labels, answers)
    assert selection.best_set(*sets).tolist() == [True, False]


@pytest.mark.parametrize(("lost", "left_out"), [(0, False), (4, False), (6, True)])
def test_a_few_lost_answers_are_no_proof(lost: int, left_out: bool) -> None:
    """Four lost answers and none gained are chance in one of sixteen cases, six in one of 64."""
    truth = np.ones(60, np.int64)
    poorer = (np.arange(60) >= lost).astype(np.int64)
    kept = selection.best_set(*scored(catalog.ACCURACY, truth, [poorer, truth]))
    assert kept.tolist() == [not left_out, True]
