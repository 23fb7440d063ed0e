"""How many independent rows some rows are worth: beside statsmodels, and by simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy.stats import norm, t

from finetune.metrics import intervals
from finetune.metrics.catalog import OF_SCORES
from finetune.metrics.shared_rows import SharedRows, note

Right = NDArray[np.bool_]
SETS = 300
Draw = Callable[[np.random.Generator], tuple[SharedRows, Right]]


def topics(groups: int, rows: int, alike: float, sentences: int = 1) -> Draw:
    """Rows of topics on which a model is right more and less often, in 80% on average. `alike` is
    the correlation of two rows. Rows of a topic have its sentence, or two of its `sentences`."""
    of_row = np.repeat(np.arange(groups), rows // groups)

    def draw(rng: np.random.Generator) -> tuple[SharedRows, Right]:
        first, second = of_row, np.arange(len(of_row)) + 1_000_000
        if sentences > 1:
            one = rng.integers(0, sentences, len(of_row))
            other = (one + rng.integers(1, sentences, len(of_row))) % sentences
            first, second = of_row * sentences + one, of_row * sentences + other
        share: Any = 0.8
        if alike:
            apart = 1 / alike - 1
            share = rng.beta(0.8 * apart, 0.2 * apart, groups)[of_row]
        return SharedRows(first, second), rng.random(len(of_row)) < share

    return draw


def dyads(sentences: int, rows: int, alike: float) -> Draw:
    """Pairs of some sentences, each of which is more or less difficult."""

    def draw(rng: np.random.Generator) -> tuple[SharedRows, Right]:
        first = rng.integers(0, sentences, rows)
        second = (first + rng.integers(1, sentences, rows)) % sentences
        hard = rng.normal(size=sentences) * alike**0.5
        noise = rng.normal(size=rows) * (1 - 2 * alike) ** 0.5
        return SharedRows(first, second), hard[first] + hard[second] + noise < norm.ppf(0.8)

    return draw


@pytest.mark.parametrize(
    ("draw", "by_rows", "wider"),
    [
        pytest.param(topics(400, 400, 0.0), 1.0, 1.0, id="independent"),
        pytest.param(topics(20, 600, 0.0), 1.0, 1.2, id="20 topics that are alike"),
        pytest.param(topics(6, 600, 0.1), 0.7, 5.0, id="6 topics"),
        pytest.param(topics(20, 600, 0.1), 0.8, 2.5, id="20 topics"),
        pytest.param(topics(20, 600, 0.1, 8), 0.8, 2.5, id="20 topics of 8 sentences"),
        pytest.param(topics(200, 600, 0.5), 0.9, 1.6, id="200 topics"),
        pytest.param(dyads(310, 434, 0.25), 0.93, 1.6, id="pairs"),
        pytest.param(dyads(100, 434, 0.2), 0.88, 2.0, id="pairs of few sentences"),
        pytest.param(dyads(310, 434, 0.0), 1.0, 1.15, id="pairs that are independent"),
    ],
)
def test_an_interval_of_the_rows_that_count_holds_the_truth(
    draw: Draw, by_rows: float, wider: float
) -> None:
    """In 95% of 300 draws, less two standard errors. One of all rows does so less often than
    `by_rows` if rows are alike. It is at most so much `wider`."""
    rng, held, widths = np.random.default_rng(1), np.zeros(2), np.zeros(2)
    for _ in range(SETS):
        shared, right = draw(rng)
        for at, rows in enumerate((len(right), shared.worth(right))):
            found = intervals.wilson_interval(rows * float(right.mean()), rows)
            held[at] += found.low <= 0.8 <= found.high
            widths[at] += found.high - found.low
    assert held[1] / SETS >= 0.925
    assert held[0] / SETS <= by_rows
    assert widths[1] / widths[0] <= wider


def test_a_correlation_of_scores_is_known_by_topics_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores and answers of a topic are alike; the errors are not."""
    monkeypatch.setattr(intervals, "_RESAMPLES", 200)
    rng, held, sets = np.random.default_rng(0), np.zeros(2), 150
    of_row = np.repeat(np.arange(40), 5)
    shared = SharedRows(of_row)
    for _ in range(sets):
        truth = rng.normal(size=40)[of_row] + 0.3 * rng.normal(size=200)
        answers = truth + 0.7 * rng.normal(size=40)[of_row] + 0.5 * rng.normal(size=200)
        for at, known in enumerate((None, shared)):
            found = intervals.score_intervals(answers, truth, OF_SCORES[:1], shared=known)
            held[at] += found["pearson"].low <= (1.09 / 1.83) ** 0.5 <= found["pearson"].high
    assert held[0] / sets < 0.75 < 0.9 <= held[1] / sets


def test_topics_of_one_size_have_the_cluster_robust_variance_of_statsmodels() -> None:
    rng, of_row = np.random.default_rng(0), np.repeat(np.arange(30), 40)
    values = rng.normal(size=30)[of_row] + rng.normal(size=1200)
    fitted = sm.OLS(values, np.ones(1200)).fit(
        cov_type="cluster", cov_kwds={"groups": of_row}, use_t=True
    )
    half = float(fitted.conf_int()[0, 1] - fitted.params[0])
    worth = SharedRows(of_row).worth(values)
    assert t.ppf(0.975, 1199) * values.std(ddof=1) / worth**0.5 == pytest.approx(half, rel=0.01)


def test_pairs_have_the_dyadic_variance() -> None:
    """Compared with the sum over all pairs of rows that share a sentence; every row is linked to
    every other."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 60, (2, 500))  # some pairs twice, some of one sentence
    hard = rng.normal(size=60)
    values = hard[first] + hard[second] + rng.normal(size=500)
    one, other = first[:, None], second[:, None]
    related = (one == first) | (one == second) | (other == first) | (other == second)
    centre = np.eye(500) - 1 / 500
    away, matrix = centre @ values, centre @ related
    degrees = np.trace(matrix) ** 2 / np.trace(matrix @ matrix)
    ratio = (away @ related @ away) / np.trace(matrix) / values.var(ddof=1)
    wider = t.ppf(0.975, degrees) / t.ppf(0.975, 499)
    assert SharedRows(first, second).worth(values) == pytest.approx(
        500 / ratio / wider**2, rel=0.01
    )


def test_what_nothing_is_known_of_counts_once() -> None:
    """Without an error, or with one sentence in all rows, which is no bond if there is another."""
    of_row, right = np.repeat(np.arange(100), 3), np.ones(300)
    shared = SharedRows(of_row)
    assert shared.worth(right) == pytest.approx(100, rel=0.03)
    right[:2] = 0  # two errors of one sentence, of which the third row is right
    assert 90 < shared.worth(right) < 140
    right[:] = np.arange(300) % 3 > 0  # one of each sentence: rows are no more than they are
    assert shared.worth(right) == pytest.approx(300, rel=0.03)
    assert SharedRows(np.zeros(50, np.int64)).worth(np.arange(50.0)) == 1
    assert SharedRows(np.arange(50), np.zeros(50, np.int64)).worth(np.arange(50.0)) == 50
    assert SharedRows(np.arange(50), np.full(50, 7)).worth(np.arange(50.0)) == 50
    for rows in (0, 1):
        assert SharedRows(np.arange(rows)).worth(np.ones(rows)) == max(1, rows)
    assert note(300, 250) == ""
    assert "Of 300 rows about 100 count" in note(300, 99.7)
