"""A few labels and many predictions: by simulation, the intervals hold and are shorter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from finetune.metrics import label_free
from finetune.metrics.intervals import wilson_interval

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


def test_two_labels_are_too_few() -> None:
    with pytest.raises(ValueError, match="2 labelled rows"):
        label_free.share_intervals(np.ones((2, 1)), np.ones((2, 1)), np.ones(1), np.zeros(1), 9)
