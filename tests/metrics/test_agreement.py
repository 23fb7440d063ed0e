"""Two sets of answers to the same rows, beside scikit-learn's and by simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import pearsonr
from sklearn.metrics import cohen_kappa_score

from finetune.inference import other_answers
from finetune.metrics import intervals
from finetune.metrics.intervals import Interval


def noisy(
    draw: np.random.Generator, rows: int, classes: int = 3
) -> tuple[NDArray[Any], NDArray[Any]]:
    first = draw.choice(classes, rows, p=[0.6, 0.3, 0.1])
    return first, np.where(draw.random(rows) < 0.7, first, draw.integers(0, classes, rows))


def test_kappa_is_scikit_learns_and_its_interval_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "_RESAMPLES", 500)
    draw = np.random.default_rng(0)
    first, second = noisy(draw, 200)
    assert other_answers.kappa(first, second).value == pytest.approx(
        cohen_kappa_score(first, second)
    )
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


def test_classes_labels_and_scores_are_compared_by_what_they_are() -> None:
    draw = np.random.default_rng(0)
    first, second = noisy(draw, 200)
    classes = other_answers.agreement_of(first, second, "abc")
    assert [*classes] == ["equal", "kappa"]
    assert classes["equal"].value == (first == second).mean()
    labels = other_answers.agreement_of(np.eye(3)[first], np.eye(3)[second], "abc")
    assert [*labels] == ["equal", "kappa a", "kappa b", "kappa c"]
    assert labels["kappa b"].value == pytest.approx(cohen_kappa_score(first == 1, second == 1))
    scores = other_answers.agreement_of(first + 0.0, second + 0.5, "")
    assert scores["pearson"].value == pytest.approx(pearsonr(first, second).statistic)
    assert scores["difference"].value == pytest.approx((second - first).mean() + 0.5)
