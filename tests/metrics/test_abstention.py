"""A threshold of confidence keeps its bound on the error; what is known of the draws tells so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from finetune.evaluation import abstention
from finetune.metrics.classification import Floats
from finetune.metrics.shared_rows import SharedRows

DRAWS = 2000
_LOGITS = np.linspace(-9, 9, 4001)
# Of a confidence, the chance that the answer is right.
MODELS: dict[str, Callable[[Floats], Floats]] = {
    "as sure as it is right": lambda sure: sure,
    "too sure of itself": lambda sure: 0.5 + 0.88 * (sure - 0.5),
    "wrong a little too often, however sure": lambda sure: np.full_like(sure, 0.947),
    "wrong where it is surest": lambda sure: np.where(sure > 0.995, 0.9, 0.5 + 0.5 * sure),
    "at the edge of the bound": lambda sure: np.where(sure > 0.8, 0.948, 0.7),
}


def true_errors(right_at: Callable[[Floats], Floats]) -> tuple[Floats, Floats]:
    """Thresholds in rising order, and the share of errors above each among all rows there are."""
    sure = expit(np.abs(_LOGITS))
    weight = norm.pdf(_LOGITS, 3, 2.5)
    order = np.argsort(sure)
    beyond = np.cumsum(weight[order][::-1])[::-1]
    wrong = np.cumsum((weight * (1 - right_at(sure)))[order][::-1])[::-1]
    return sure[order], wrong / beyond


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("rows", [150, 600])
def test_the_bound_holds_in_95_of_100_draws(kind: str, rows: int) -> None:
    draw, error, delta = np.random.default_rng(rows), 0.05, 0.05
    thresholds, errors = true_errors(MODELS[kind])
    sure = expit(np.abs(draw.normal(3, 2.5, (DRAWS, rows))))
    right = draw.random(sure.shape) < MODELS[kind](sure)
    broken = 0.0
    for confidence, hits in zip(sure, right, strict=True):
        found = abstention.sure_threshold(confidence, hits, error, delta)
        if found is not None:
            broken += np.interp(found.above, thresholds, errors) > error
    assert broken <= DRAWS * delta


def test_a_good_model_answers_most_rows_and_the_figures_are_those_of_the_rows() -> None:
    draw = np.random.default_rng(0)
    sure = expit(np.abs(draw.normal(3, 2.5, 3000)))
    right = draw.random(3000) < sure
    found = abstention.sure_threshold(sure, right, 0.05, 0.05)
    assert found is not None
    assert found.answered > 1900
    assert found.answered == (sure > found.above).sum()
    assert found.errors == (~right[sure > found.above]).sum()
    stricter = abstention.sure_threshold(sure, right, 0.02, 0.05)
    assert stricter is not None
    assert stricter.above > found.above
    everything = abstention.sure_threshold(sure, np.ones(3000, bool), 0.02, 0.05)
    assert everything == abstention.SureThreshold(0.0, 3000, 0)


@pytest.mark.parametrize(("error", "rows"), [(0.02, 149), (0.05, 59), (0.1, 29)])
def test_it_takes_that_many_rows_even_without_an_error(error: float, rows: int) -> None:
    assert abstention.fewest_rows(error, 0.05) == rows
    for count in (rows - 1, rows):
        sure, right = np.linspace(0.6, 0.9, count), np.ones(count, bool)
        found = abstention.sure_threshold(sure, right, error, 0.05)
        assert (found is not None) == (count == rows)
        assert rows <= (abstention.rows_needed(sure, right, error, 0.05) or 0) <= rows + 3


def test_rows_needed_suffice_where_the_errors_stay_as_frequent() -> None:
    sure, right = np.linspace(0.99, 0.5, 200), np.ones(200, bool)
    right[20::25] = False  # one in 25 of all, at any confidence
    assert abstention.sure_threshold(sure, right, 0.06, 0.05) is None
    needed = abstention.rows_needed(sure, right, 0.06, 0.05)
    assert needed is not None
    assert 200 < needed < 4000
    times = -(-needed // 200)
    assert abstention.sure_threshold(np.repeat(sure, times), np.repeat(right, times), 0.06, 0.05)
    assert abstention.rows_needed(sure, right, 0.02, 0.05) is None


def test_the_bound_holds_where_rows_share_sentences() -> None:
    """A model that is wrong a little too often, however sure, and is as sure and as often wrong on
    all rows of a sentence. Counted one by one the rows break the bound too often."""
    error, delta, sentence = 0.1, 0.05, np.repeat(np.arange(100), 6)
    shared, rng, broken, draws = SharedRows(sentence), np.random.default_rng(0), [0, 0], 400
    for _ in range(draws):
        confidence = rng.random(100)[sentence]
        right = rng.random(len(sentence)) < rng.beta(0.895 * 4, 0.105 * 4, 100)[sentence]
        for at, part in enumerate((1.0, shared.worth(right) / len(right))):
            found = abstention.sure_threshold(confidence, right, error, delta, part)
            broken[at] += found is not None
    assert broken[0] / draws > 1.3 * delta
    assert broken[1] / draws <= delta + 0.01
