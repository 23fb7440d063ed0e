"""How sure one may be, beside statsmodels and by simulation: of temperatures, of sure answers, of
rows that share sentences, and of a file with few labels or none."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, softmax
from scipy.stats import norm
from sklearn.metrics import cohen_kappa_score

from finetune.evaluation import abstention
from finetune.inference import other_answers
from finetune.metrics import calibration, intervals, label_free
from finetune.metrics.catalog import OF_SCORES
from finetune.metrics.intervals import Interval, wilson_interval
from finetune.metrics.shared_rows import SharedRows, note

Labels = NDArray[np.int64]
pytestmark = pytest.mark.filterwarnings("error")


def drawn(n, classes, temperature, seed=0):
    """Draw logits and labels; the labels follow the softmax of the logits at this temperature."""
    random = np.random.default_rng(seed)
    true = random.normal(scale=1.5, size=(n, classes))
    # The largest of logits with Gumbel noise is a draw from their softmax.
    labels = (true + random.gumbel(size=true.shape)).argmax(axis=1)
    return true * temperature, labels


def erring(errors, n=200, scale=4.0):
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
        (*drawn(408, 2, 3.0), ""),
        (np.full((30, 3), 2.0), np.arange(30) % 3, "no gain"),
    ],
)
def test_a_temperature_is_offered_where_errors_determine_it(logits, labels, refusal):
    fitted = calibration.calibrate(logits, labels)
    assert fitted.refusal == refusal
    assert (fitted.temperature is None) == (fitted.after is None) == bool(refusal)
    right = logits.argmax(axis=1) == labels
    assert fitted.errors == (~right).sum()
    if fitted.after is not None:
        assert fitted.temperature == calibration.fit_temperature(logits, labels)
        before = calibration.reliability(softmax(logits, axis=1).max(axis=1), right)
        assert fitted.after.ece < before.ece  # on rows that it was not fitted on
        assert fitted.after.counts.sum() == len(labels)


DRAWS = 2000
_LOGITS = np.linspace(-9, 9, 4001)
# Of a confidence, the chance that the answer is right.
MODELS = {
    "as sure as it is right": lambda sure: sure,
    "too sure of itself": lambda sure: 0.5 + 0.88 * (sure - 0.5),
    "wrong a little too often, however sure": lambda sure: np.full_like(sure, 0.947),
    "wrong where it is surest": lambda sure: np.where(sure > 0.995, 0.9, 0.5 + 0.5 * sure),
    "at the edge of the bound": lambda sure: np.where(sure > 0.8, 0.948, 0.7),
}


def true_errors(right_at):
    """Thresholds in rising order, and the share of errors above each among all rows there are."""
    sure = expit(np.abs(_LOGITS))
    weight = norm.pdf(_LOGITS, 3, 2.5)
    order = np.argsort(sure)
    beyond = np.cumsum(weight[order][::-1])[::-1]
    wrong = np.cumsum((weight * (1 - right_at(sure)))[order][::-1])[::-1]
    return sure[order], wrong / beyond


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("rows", [150, 600])
def test_the_bound_holds_in_95_of_100_draws(kind, rows):
    draw, error, delta = np.random.default_rng(rows), 0.05, 0.05
    thresholds, errors = true_errors(MODELS[kind])
    sure = expit(np.abs(draw.normal(3, 2.5, (DRAWS, rows))))
    right = draw.random(sure.shape) < MODELS[kind](sure)
    broken = 0.0
    for confidence, hits in zip(sure, right, strict=True):
        found = abstention.sure_threshold(confidence, hits, error, delta)
        if found is not None:
            broken += np.interp(found[0], thresholds, errors) > error
    assert broken <= DRAWS * delta


@pytest.mark.parametrize(("error", "rows"), [(0.02, 149), (0.05, 59), (0.1, 29)])
def test_it_takes_that_many_rows_even_without_an_error(error, rows):
    assert abstention.fewest_rows(error, 0.05) == rows
    for count in (rows - 1, rows):
        sure, right = np.linspace(0.6, 0.9, count), np.ones(count, bool)
        found = abstention.sure_threshold(sure, right, error, 0.05)
        assert (found is not None) == (count == rows)
        assert rows <= (abstention.rows_needed(sure, right, error, 0.05) or 0) <= rows + 3


def test_rows_needed_suffice_where_the_errors_stay_as_frequent():
    sure, right = np.linspace(0.99, 0.5, 200), np.ones(200, bool)
    right[20::25] = False  # one in 25 of all, at any confidence
    assert abstention.sure_threshold(sure, right, 0.06, 0.05) is None
    needed = abstention.rows_needed(sure, right, 0.06, 0.05)
    assert 200 < needed < 4000
    times = -(-needed // 200)
    assert abstention.sure_threshold(np.repeat(sure, times), np.repeat(right, times), 0.06, 0.05)
    assert abstention.rows_needed(sure, right, 0.02, 0.05) is None


def test_the_bound_holds_where_rows_share_sentences():
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


SETS = 300


def topics(groups, rows, alike, sentences=1):
    """Rows of topics on which a model is right more and less often, in 80% on average. `alike` is
    the correlation of two rows. Rows of a topic have its sentence, or two of its `sentences`."""
    of_row = np.repeat(np.arange(groups), rows // groups)

    def draw(rng):
        first, second = of_row, np.arange(len(of_row)) + 1_000_000
        if sentences > 1:
            one = rng.integers(0, sentences, len(of_row))
            other = (one + rng.integers(1, sentences, len(of_row))) % sentences
            first, second = of_row * sentences + one, of_row * sentences + other
        share = 0.8
        if alike:
            apart = 1 / alike - 1
            share = rng.beta(0.8 * apart, 0.2 * apart, groups)[of_row]
        return SharedRows(first, second), rng.random(len(of_row)) < share

    return draw


def dyads(sentences, rows, alike):
    """Pairs of some sentences, each of which is more or less difficult."""

    def draw(rng):
        first = rng.integers(0, sentences, rows)
        second = (first + rng.integers(1, sentences, rows)) % sentences
        hard = rng.normal(size=sentences) * alike**0.5
        noise = rng.normal(size=rows) * (1 - 2 * alike) ** 0.5
        return SharedRows(first, second), hard[first] + hard[second] + noise < norm.ppf(0.8)

    return draw


# Of a way to draw rows how seldom an interval of all of them may hold the truth, and how much wider
# the other one may be.
DRAWN = {
    "6 topics": (topics(6, 600, 0.1), 0.7, 5.0),
    "20 topics of 8 sentences": (topics(20, 600, 0.1, 8), 0.8, 2.5),
    "pairs": (dyads(310, 434, 0.25), 0.93, 1.6),
    "20 topics that are alike": (topics(20, 600, 0.0), 1.0, 1.2),
    "200 topics": (topics(200, 600, 0.5), 0.9, 1.6),
    "pairs of few sentences": (dyads(100, 434, 0.2), 0.88, 2.0),
    "pairs that are independent": (dyads(310, 434, 0.0), 1.0, 1.15),
}
SOME = 3  # of these are drawn in the default run


@pytest.mark.parametrize(
    "name",
    [*list(DRAWN)[:SOME],
     *(pytest.param(name, marks=pytest.mark.long) for name in list(DRAWN)[SOME:])],
)  # fmt: skip
def test_an_interval_of_the_rows_that_count_holds_the_truth(name):
    """In 95% of 300 draws, less two standard errors. One of all rows does so less often than
    `by_rows` if rows are alike. It is at most so much `wider`."""
    draw, by_rows, wider = DRAWN[name]
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


@pytest.mark.long
def test_a_correlation_of_scores_is_known_by_topics_only(monkeypatch):
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


def test_what_nothing_is_known_of_counts_once():
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


Counts = NDArray[np.int64]
CONFUSION = np.array([[0.85, 0.1, 0.05], [0.1, 0.8, 0.1], [0.02, 0.08, 0.9]])


def answers(draw, rows, sure=3.0):
    """Draw confidences, and whether each answer is right; an overconfident model."""
    odds = np.abs(draw.normal(sure, 2, rows))
    return 2 * expit(odds) - 1, draw.random(rows) < expit(0.7 * odds)


def counted(confidence):
    bins = label_free.confidence_bins(confidence)
    return np.bincount(bins, minlength=label_free.CONFIDENCE_BINS)


def reference(confidence, right):
    return np.stack([counted(confidence[~right]), counted(confidence[right])])


@pytest.mark.long
@pytest.mark.parametrize(("rows", "file_rows"), [(100, 100), (400, 2000), (2000, 200)])
def test_the_accuracys_interval_holds_in_95_of_100_draws(monkeypatch, rows, file_rows):
    """And the difference's holds 0 as often."""
    monkeypatch.setattr(label_free, "_RESAMPLES", 500)
    truth = answers(np.random.default_rng(9), 1_000_000)[1].mean()
    draw, held = np.random.default_rng(1), []
    for _ in range(600):
        known, file = reference(*answers(draw, rows)), counted(answers(draw, file_rows)[0])
        accuracy, change = label_free.estimated_accuracy(known, file)
        held.append((accuracy.low <= truth <= accuracy.high, change.low <= 0 <= change.high))
    accuracy_held, change_held = np.mean(held, axis=0)
    assert accuracy_held >= 0.95
    assert change_held >= 0.925  # within three standard errors


def test_a_harder_file_is_seen_and_its_accuracy_estimated():
    draw = np.random.default_rng(0)
    known, file = reference(*answers(draw, 2000)), answers(draw, 2000, sure=1.5)
    accuracy, change = label_free.estimated_accuracy(known, counted(file[0]))
    assert accuracy.value == pytest.approx(file[1].mean(), abs=0.08)
    assert change.high < 0
    assert accuracy.value - change.value == pytest.approx(known[1].sum() / 2000)


@pytest.mark.parametrize("shares", [(0.2, 0.3, 0.5), (0.6, 0.3, 0.1)])
def test_the_shares_of_the_classes_are_estimated_from_the_answers(monkeypatch, shares):
    monkeypatch.setattr(label_free, "_RESAMPLES", 300)
    draw, held = np.random.default_rng(0), np.zeros(3)
    for _ in range(300):
        known = np.stack(
            [draw.multinomial(n, row) for n, row in zip((60, 90, 150), CONFUSION, strict=True)]
        )
        found = label_free.estimated_shares(
            known, draw.multinomial(500, np.array(shares) @ CONFUSION)
        )
        held += [one.low <= share <= one.high for one, share in zip(found, shares, strict=True)]
    assert (held / 300 >= 0.925).all()  # 0.95 within two standard errors


def test_shares_are_not_estimated_of_classes_that_are_hardly_found():
    rare = np.array([[80, 5], [2, 3]])
    missed = np.array([[80, 5], [60, 30]])
    assert label_free.estimated_shares(rare, np.array([50, 50])) is None
    assert label_free.estimated_shares(missed, np.array([50, 50])) is None


@pytest.mark.parametrize("ordered", [True, False])
def test_counts_of_one_distribution_are_told_apart_in_5_of_100_draws(monkeypatch, ordered):
    monkeypatch.setattr(label_free, "_PERMUTATIONS", 199)
    draw, shares = np.random.default_rng(3), np.array([0.5, 0.3, 0.15, 0.05])
    ps = [
        label_free.counts_test(
            draw.multinomial(400, shares), draw.multinomial(300, shares), ordered
        ).p
        for _ in range(1000)
    ]
    assert np.mean(np.array(ps) <= 0.05) <= 0.064  # within two standard errors
    moved = draw.multinomial(300, [0.3, 0.3, 0.2, 0.2])
    assert label_free.counts_test(draw.multinomial(400, shares), moved, ordered).p < 0.01


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_that_share_a_sentence_raise_few_false_alarms(monkeypatch, ordered):
    """Files of 100 sentences in three rows each, which mostly have the same cell."""
    monkeypatch.setattr(label_free, "_PERMUTATIONS", 199)
    draw, sentence = np.random.default_rng(3), np.repeat(np.arange(100), 3)
    shared, alarms = SharedRows(sentence), np.zeros(2)

    def cells():
        of_row = draw.integers(0, 6, 100)[sentence]
        of_row = np.where(draw.random(300) < 0.8, of_row, draw.integers(0, 6, 300))
        values = of_row if ordered else of_row[:, None] == np.arange(6)
        return np.bincount(of_row, minlength=6), shared.worth(values) / 300

    for _ in range(400):
        (first, one), (second, other) = cells(), cells()
        for at, parts in enumerate(((1.0, 1.0), (one, other))):
            alarms[at] += label_free.counts_test(first, second, ordered, parts).p <= 0.05
    assert alarms[0] / 400 > 0.1
    assert alarms[1] / 400 <= 0.072  # within two standard errors


def test_a_classifier_tells_texts_apart_only_if_they_differ(monkeypatch):
    monkeypatch.setattr(label_free, "_CLASSIFIERS", 100)
    draw, is_file, found = np.random.default_rng(0), np.arange(90) < 60, []
    for _ in range(150):
        rows = draw.normal(size=(90, 20)) / 4.5
        found.append(label_free.classifier_test(rows @ rows.T, is_file))
    areas, ps = np.array(found).T
    assert areas.mean() == pytest.approx(0.5, abs=0.02)
    assert (ps <= 0.05).mean() <= 0.09  # 0.05 within two standard errors
    rows[is_file, 0] += 0.5
    shifted = label_free.classifier_test(rows @ rows.T, is_file)
    assert shifted.p < 0.05
    assert shifted.distance > 0.75


ROWS, DRAWS = 1000, 1500


def check_coverage(known, predicted, truth, labelled):
    """Assert that 95% intervals hold in the draws, each a column. Returns their mean width."""
    found = label_free.share_intervals(
        known[:labelled], predicted[:labelled], predicted.mean(0), predicted.var(0), ROWS
    )
    low, high = (np.array([getattr(one, end) for one in found]) for end in ("low", "high"))
    assert ((low <= truth) & (truth <= high)).mean() >= 0.939  # 0.95 within two standard errors
    return float((high - low).mean())


@pytest.mark.parametrize("labelled", [50, 100])
@pytest.mark.parametrize("sure", [0.5, 3.0, 6.0])
def test_the_accuracys_interval_holds(sure, labelled):
    draw = np.random.default_rng(0)
    odds = np.abs(draw.normal(sure, 2, (ROWS, DRAWS)))
    right = draw.random((ROWS, DRAWS)) < expit(0.7 * odds)
    check_coverage(right, expit(odds), float(expit(0.7 * odds).mean()), labelled)


@pytest.mark.parametrize(
    ("share", "right", "wide"), [(0.03, 0.95, 2), (0.5, 0.95, 0.7), (0.3, 0.5, 1.1)]
)
def test_a_classs_share_is_known_better_by_a_good_model(share, right, wide):
    """Answers that are right by chance cost next to nothing."""
    draw = np.random.default_rng(0)
    truth = draw.random((ROWS, DRAWS)) < share
    answers = np.where(draw.random((ROWS, DRAWS)) < right, truth, ~truth).astype(float)
    width = check_coverage(truth, answers, share, 100)
    alone = wilson_interval(round(100 * share), 100)
    assert width < wide * (alone.high - alone.low)


def noisy(draw, rows, classes=3):
    first = draw.choice(classes, rows, p=[0.6, 0.3, 0.1])
    return first, np.where(draw.random(rows) < 0.7, first, draw.integers(0, classes, rows))


def test_the_interval_of_kappa_holds(monkeypatch):
    monkeypatch.setattr(intervals, "_RESAMPLES", 500)
    draw = np.random.default_rng(0)
    truth, held = cohen_kappa_score(*noisy(draw, 500_000)), 0
    for _ in range(200):
        found = other_answers.kappa(*noisy(draw, 150))
        held += found.low <= truth <= found.high
    assert held / 200 >= 0.92  # 0.95 within two standard errors


def test_kappa_of_equal_and_of_constant_answers():
    same = np.array([0, 1] * 20)
    found = other_answers.kappa(same, same)
    assert (found.value, found.high) == (1, 1)
    assert 0.5 < found.low < 1
    assert np.isnan(other_answers.kappa(np.zeros(9, int), np.zeros(9, int)).value)
    assert other_answers.kappa(same, np.zeros(40, int)) == Interval(0, -1, 1)
