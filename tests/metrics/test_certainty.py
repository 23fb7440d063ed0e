"""How sure one may be: temperatures, bounds on the error of sure answers, and how many independent
rows some rows are worth, beside statsmodels and by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy.special import expit, softmax
from scipy.stats import norm, t

from finetune.evaluation import abstention
from finetune.metrics import calibration, intervals
from finetune.metrics.catalog import OF_SCORES
from finetune.metrics.classification import Floats
from finetune.metrics.shared_rows import SharedRows, note

Labels = NDArray[np.int64]
pytestmark = pytest.mark.filterwarnings("error")


def drawn(n: int, classes: int, temperature: float, seed: int = 0) -> tuple[Floats, Labels]:
    """Draw logits and labels; the labels follow the softmax of the logits at this temperature."""
    random = np.random.default_rng(seed)
    true = random.normal(scale=1.5, size=(n, classes))
    # The largest of logits with Gumbel noise is a draw from their softmax.
    labels = (true + random.gumbel(size=true.shape)).argmax(axis=1)
    return true * temperature, labels


def test_separated_data_gets_the_coldest_and_nonsense_the_hottest() -> None:
    logits = np.array([[4.0, -4.0]] * 20 + [[-4.0, 4.0]] * 20)
    labels = np.repeat([0, 1], 20)
    for scale in (1, 1000):
        assert calibration.fit_temperature(logits * scale, labels) == calibration.COLDEST
    assert calibration.fit_temperature(logits, 1 - labels) == calibration.HOTTEST
    assert calibration.fit_temperature(np.full((5, 3), 2.0), np.arange(5) % 3) == 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_overconfident_data_gets_better_on_examples_not_fitted_on(seed: int) -> None:
    logits, labels = drawn(408, 2, 3.0, seed)
    shares = softmax(logits, axis=1)
    before = calibration.reliability(shares.max(axis=1), shares.argmax(axis=1) == labels)
    fitted = calibration.calibrate(logits, labels)
    assert fitted.refusal == ""
    assert fitted.after is not None
    assert fitted.temperature == calibration.fit_temperature(logits, labels)
    assert fitted.after.ece < before.ece
    assert fitted.after.counts.sum() == 408


def erring(errors: int, n: int = 200, scale: float = 4.0) -> tuple[Floats, Labels]:
    """Make equally confident logits of two classes, this many of them wrong."""
    labels = np.arange(n) % 2
    answers = np.where(np.arange(n) < errors, 1 - labels, labels)
    return scale * np.eye(2)[answers], labels


@pytest.mark.parametrize(
    ("logits", "labels", "refusal"),
    [
        (*erring(0), "few errors"),
        (*erring(9), "few errors"),
        (*erring(10), ""),  # 98% sure, right in 95%
        (*erring(200), "bound"),
        (*erring(20, scale=math.log(9)), "no gain"),  # 90% sure, right in 90%
        (*drawn(9, 2, 2.0), "few errors"),
        (np.full((30, 3), 2.0), np.arange(30) % 3, "no gain"),
    ],
)
def test_a_temperature_is_offered_where_errors_determine_it(
    logits: Floats, labels: Labels, refusal: str
) -> None:
    fitted = calibration.calibrate(logits, labels)
    assert fitted.refusal == refusal
    assert (fitted.temperature is None) == (fitted.after is None) == bool(refusal)
    assert fitted.errors == (logits.argmax(axis=1) != labels).sum()


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
