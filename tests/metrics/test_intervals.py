"""Intervals hold as often as they say; what was picked, by simulation: scores without the picking
bias, thresholds judged on other rows, and the set that holds the best of several models."""

from bisect import bisect_left

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, norm
from sklearn.metrics import f1_score
from statsmodels.stats.proportion import proportion_confint

from finetune.metrics import catalog, classification, intervals, selection
from finetune.metrics.catalog import ACCURACY, F1, METRICS, OF_LABELS, OF_SCORES
from finetune.metrics.shared_rows import SharedRows

Array = NDArray[np.int64]
# Of (true, predicted): accuracy 0.85 and F1 0.9, as a good run on MRPC has them.
MRPC = np.array([0.175, 0.09, 0.06, 0.675])  # 00, 01, 10, 11
TALLIED = [metric for metric in METRICS.values() if metric.of_tally]
pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def few_resamples(monkeypatch):
    monkeypatch.setattr(intervals, "_RESAMPLES", 1000)


def answered(lost, gained, rows):
    """Labels, and the answers of a first and a second model, which lose and gain so many."""
    labels = np.arange(rows) % 2
    first, second = labels.copy(), labels.copy()
    second[:lost] = 1 - labels[:lost]
    first[lost : lost + gained] = 1 - labels[lost : lost + gained]
    return labels, first, second


@pytest.mark.parametrize(
    ("lost", "gained", "rows"),
    [(0, 0, 30), (0, 0, 400), (1, 0, 50), (0, 5, 60), (6, 0, 60), (2, 9, 100), (9, 2, 100),
     (12, 30, 400), (3, 3, 30), (30, 0, 30)],
)  # fmt: skip
def test_a_difference_agrees_with_the_exact_tests(lost, gained, rows):
    """It excludes 0 where McNemar's exact test is significant. Where answers are only lost, its
    ends are Clopper and Pearson's; it never has no width."""
    labels, first, second = answered(lost, gained, rows)
    found = intervals.difference_intervals(second, first, labels, [ACCURACY])["accuracy"]
    p = intervals.sign_test((second == labels) - (first == labels).astype(int))
    assert found.value == pytest.approx((gained - lost) / rows)
    assert (found.low <= 0 <= found.high) == (p > 0.05)
    assert found.high - found.low > 1 / rows
    if not gained:
        most = proportion_confint(lost, rows, method="beta")[1]
        assert found.low == pytest.approx(-most, rel=0.06)  # of 10,000 resamples
    f1 = intervals.difference_intervals(second, first, labels, [F1], 1)["f1"]
    assert f1.low < f1.value < f1.high or rows == lost


@pytest.mark.parametrize("metric", [*TALLIED, *OF_SCORES, *OF_LABELS], ids=lambda each: each.name)
@pytest.mark.parametrize("right", [True, False])
def test_equal_answers_differ_by_a_few_rows_at_most(metric, right):
    """Of 40 rows an interval reaches to both sides, of a hundred times as many hardly."""
    draw = np.random.default_rng(0)
    truth = {
        "classes": np.arange(40) % 3, "score": np.linspace(0, 5, 40),
        "labels": draw.integers(0, 2, (40, 3)),
    }[metric.kind]  # fmt: skip
    answers = truth if right else np.roll(truth, 1, axis=0)
    (once,) = intervals.difference_intervals(answers, answers, truth, [metric]).values()
    (more,) = intervals.difference_intervals(answers, answers, truth, [metric], times=100).values()
    assert once.value == more.value == 0
    assert once.low < more.low <= 0 <= more.high < once.high
    assert more.high - more.low < 0.2 * (once.high - once.low)


# The share of right answers of an old model, and what a new one loses of these and gains of others.
MODELS = {
    "loses 3%": (0.9, 0.03, 0.0), "loses 3%, gains": (0.9, 0.03, 0.2),
    "loses and gains": (0.8, 0.1, 0.1), "was perfect": (1.0, 0.03, 0.0),
}  # fmt: skip


def passes(lost, gained, rows, least):
    labels, old, new = answered(lost, gained, rows)
    return intervals.difference_intervals(new, old, labels, [ACCURACY])["accuracy"].low >= least


@pytest.mark.parametrize(
    ("kind", "rows"),
    [*((kind, 30) for kind in MODELS), ("loses 3%, gains", 100), ("was perfect", 100)],
)
def test_a_model_at_the_margin_passes_in_at_most_2_5_of_100_cases(kind, rows, few_resamples):
    """A new model that is exactly as much worse as is still allowed: the probability that the lower
    end of the interval reaches the true difference, over all that it may lose and gain."""
    right, lost, gained = MODELS[kind]
    loses, gains = right * lost, (1 - right) * gained
    error = 0.0
    for losses in range(rows + 1):
        if (p := binom.pmf(losses, rows, loses)) < 1e-5:
            continue
        # The fewest gains with which it passes; more do not hurt.
        fewest = bisect_left(
            range(rows - losses + 1),
            True,
            key=lambda gained: passes(losses, gained, rows, gains - loses),
        )
        error += p * binom.sf(fewest - 1, rows - losses, gains / (1 - loses))
    assert error <= 0.025


@pytest.mark.parametrize(
    ("kind", "rows"),
    [("loses 3%, gains", 50)]
    + [pytest.param(kind, rows, marks=pytest.mark.long)
       for kind, rows in (*((kind, 30) for kind in MODELS), ("loses and gains", 400))],
)  # fmt: skip
def test_so_it_does_by_f1(kind, rows, few_resamples):
    """In 400 draws (standard error: 0.8 points); the positive class is the rarer one."""
    right, lost, gained = MODELS[kind]
    shares = np.array([right * (1 - lost), right * lost, (1 - right) * gained])
    cells = np.outer([0.7, 0.3], [*shares, 1 - shares.sum()]).ravel()
    draw, passed, sets = np.random.default_rng(rows), 0, 400
    true = _f1_gain(cells)
    for counts in draw.multinomial(rows, cells, sets):
        cell = np.repeat(np.arange(8), counts)
        labels, case = cell // 4, cell % 4
        old = np.where(case < 2, labels, 1 - labels)
        new = np.where(case % 2 == 0, labels, 1 - labels)
        found = intervals.difference_intervals(new, old, labels, [F1], 1)["f1"]
        passed += found.low >= true
    assert passed / sets <= 0.025 + 0.016


def _f1_gain(cells):
    """The difference of F1 on endless rows; the cells are those of above."""
    (zero, one), case = cells.reshape(2, 4), np.arange(4)

    def f1(right):
        hits = one[right].sum()
        return float(2 * hits / (hits + zero[~right].sum() + one.sum()))

    return f1(case % 2 == 0) - f1(case < 2)


def test_intervals_hold_the_truth_as_often_as_they_say(few_resamples):
    random, sets = np.random.default_rng(3), 400
    truth = {"accuracy": 0.85, "f1": 2 * 0.675 / (2 * 0.675 + 0.15)}
    above, below = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    for cells in random.multinomial(408, MRPC, size=sets):
        true, called = np.divmod(np.repeat(np.arange(4), cells), 2)
        computed = intervals.score_intervals(called, true, positive=1)
        for name, value in truth.items():
            above[name] += computed[name].low - 1e-9 > value
            below[name] += computed[name].high + 1e-9 < value
    for name in truth:
        assert 0.93 < 1 - (above[name] + below[name]) / sets < 0.975, name
        assert max(above[name], below[name]) / sets < 0.04, name  # on either side, not on one
    assert intervals.score_intervals(*[np.arange(1000) // 499] * 2, [F1])["f1"].low < 0.85  # of two


def test_equals_differ_by_more_than_chance_as_seldom_as_it_says(few_resamples):
    """Uses the interval of the difference from a score without an interval."""
    wrongly, sets = 0, 200
    for seed in range(sets):
        draw = np.random.default_rng(seed)
        labels, *guesses = draw.integers(2, size=(3, 408))
        first, second = (np.where(draw.random(408) < 0.7, labels, guess) for guess in guesses)
        f1 = intervals.score_intervals(first, labels, [F1], positive=1)["f1"]
        other = float(f1_score(labels[:300], second[:300]))
        gain = intervals.unpaired_difference(f1, other, 300)
        wrongly += not gain.low <= 0 <= gain.high
    assert wrongly / sets < 0.08


RUNS, EXAMPLES, POSITIVE = 300, 150, 0.6


def scored(metric, truth, answers, positive=None):
    return selection.statistics([metric], truth, answers, positive)[metric.name]


def answered_by(skills, examples, draw):
    """True classes, and the answers of models. A model answers by a score of its own and a shared
    one, and tells the classes apart as well as its skill says."""
    labels = (draw.random(examples) < POSITIVE).astype(np.int64)
    noise = draw.normal(size=examples) + draw.normal(size=(len(skills), examples))
    return labels, ((2 * labels - 1) * skills[:, None] + noise / 2**0.5 > 0).astype(np.int64)


def simulated(models, spread):
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("models", "spread", "flattered"), [(10, 0.0, True), (30, 0.05, True), (10, 0.3, False)]
)
def test_the_interval_holds_what_new_examples_show(models, spread, flattered, monkeypatch):
    """95% intervals over 300 experiments (standard error of a share: 1.3 points)."""
    monkeypatch.setattr(selection, "_RESAMPLES", 200)
    monkeypatch.setattr(intervals, "_RESAMPLES", 500)
    measured, corrected, true = zip(*simulated(models, spread), strict=True)

    def bias(scores):
        return float(np.mean([score.value - f1 for score, f1 in zip(scores, true, strict=True)]))

    def coverage(scores):
        pairs = zip(scores, true, strict=True)
        return float(np.mean([score.low <= f1 <= score.high for score, f1 in pairs]))

    assert abs(bias(corrected)) < 0.01
    assert coverage(corrected) >= 0.94
    if flattered:  # by models that hardly differ
        assert bias(measured) > 0.03
        assert coverage(measured) < 0.9


def test_nothing_is_taken_off_where_nothing_was_picked():
    labels = np.arange(40) % 2
    right, wrong = labels.copy(), 1 - labels
    for predictions in ([right], [right, wrong, wrong], [right, right]):
        statistic = scored(ACCURACY, labels, np.array(predictions))
        assert selection.picking_bias(statistic, {"accuracy": statistic}, 0)["accuracy"] == 0.0
    alone = scored(ACCURACY, labels[:1], np.array([right[:1], wrong[:1]]))
    assert selection.picking_bias(alone, {"accuracy": alone}, 0)["accuracy"] == 0.0


@pytest.mark.parametrize(("name", "true"), [("rmse", 1.0), ("mae", 0.798), ("pearson", 0.707)])
@pytest.mark.parametrize("examples", [8, 40])
def test_few_scores_flatter_nobody(name, true, examples, monkeypatch):
    """In at most 6% of experiments the true value is worse than the interval, and mostly in it."""
    monkeypatch.setattr(intervals, "_RESAMPLES", 1000)
    metric, draw, worse, held = catalog.find(name), np.random.default_rng(5), 0, 0
    for _ in range(100):
        truth, errors = draw.normal(size=(2, examples))
        found = intervals.score_intervals(truth + errors, truth, [metric])[name]
        worse += true < found.low if metric.greater_is_better else true > found.high
        held += found.low <= true <= found.high
    assert worse <= 6
    assert held >= 90


def answers_of(task, draw):
    """The truth of 100 examples and the answers of ten equally good models: scores that correlate
    with it by 0.8, or three labels of which each is wrong in a tenth."""
    if task == "scores":
        truth = draw.normal(size=100)
        return truth, truth + 0.75 * draw.normal(size=(10, 100))
    labels = draw.integers(0, 2, (100, 3))
    return labels, np.where(draw.random((10, 100, 3)) < 0.1, 1 - labels, labels)


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "metrics", "expected"),
    [
        ("scores", OF_SCORES, {"pearson": 0.8, "rmse": 0.75}),
        ("labels", OF_LABELS, {"micro_f1": 0.9, "subset_accuracy": 0.9**3, "hamming_loss": 0.1}),
    ],
)
def test_what_picking_adds_to_scores_and_labels_is_taken_off(task, metrics, expected, monkeypatch):
    monkeypatch.setattr(selection, "_RESAMPLES", 100)
    picked = {name: [] for name in expected}
    corrected = {name: [] for name in expected}
    for seed in range(100):
        truth, answers = answers_of(task, np.random.default_rng(seed))
        statistics = selection.statistics(metrics, truth, answers)
        by = statistics[metrics[0].name]
        kept = int(by.of(np.ones((100, 1)))[:, 0].argmax())
        bias = selection.picking_bias(by, statistics, kept)
        scores = catalog.scores(answers[kept], truth, metrics)
        for name in expected:
            rank = catalog.find(name).rank
            picked[name].append(rank(scores[name]) - rank(expected[name]))
            corrected[name].append(picked[name][-1] - bias[name])
    for name in expected:
        assert np.mean(picked[name]) > 0.01, name
        assert abs(np.mean(corrected[name])) < np.mean(picked[name]) / 2, name


def kept(skills, examples, seed):
    """The models kept in one experiment."""
    labels, answers = answered_by(skills, examples, np.random.default_rng(seed))
    return selection.best_set(*bootstrapped(F1, labels, answers, 1))


def bootstrapped(metric, truth, answers, positive=None):
    return selection.bootstrap_scores(scored(metric, truth, np.asarray(answers), positive))


@pytest.mark.parametrize(
    ("skills", "fewest", "most"),
    [
        ([0.8] * 6, 5.5, 6),
        pytest.param([1.2, 0.8, 0.8, 0.4, 0.2, 0], 1, 4, marks=pytest.mark.long),
        pytest.param([0.8] * 2, 1.8, 2, marks=pytest.mark.long),
        pytest.param([0.8] * 20, 18, 20, marks=pytest.mark.long),
    ],
)
def test_the_best_is_in_the_set(skills, fewest, most, monkeypatch):
    """In at least 95% of 150 experiments: models that are equally good, the hardest case, and
    models of which some are plainly worse, which are left out."""
    monkeypatch.setattr(selection, "_RESAMPLES", 200)
    sets = np.stack([kept(np.array(skills), 60, seed) for seed in range(150)])
    assert sets[:, 0].mean() >= 0.95
    assert fewest <= sets.sum(axis=1).mean() <= most


def test_equal_answers_stay_together_and_a_lead_must_hold_without_the_bias():
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


def test_scores_and_labels_are_ranked_too():
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
def test_a_few_lost_answers_are_no_proof(lost, left_out):
    """Four lost answers and none gained are chance in one of sixteen cases, six in one of 64."""
    truth = np.ones(60, np.int64)
    poorer = (np.arange(60) >= lost).astype(np.int64)
    kept = selection.best_set(*bootstrapped(ACCURACY, truth, [poorer, truth]))
    assert kept.tolist() == [not left_out, True]


def weak_model(draw, n, share, bias):
    """Draw probabilities of a weak model, biased on the scale of its logits."""
    positives = draw.random(n) < share
    logits = draw.normal(np.where(positives, 0.7, -0.7) + bias, 1.5)
    return 1 / (1 + np.exp(-logits)), positives


def f1_at(threshold, scores, positives):
    called = scores >= threshold
    return float(2 * (called & positives).sum() / (called.sum() + positives.sum()))


@pytest.mark.long
@pytest.mark.parametrize(("n", "share", "bias"), [(120, 0.5, 0.0), (240, 0.3, -1.0)])
def test_a_cross_fitted_f1_is_that_of_new_examples_and_the_best_one_is_not(n, share, bias):
    """Each of 120 validation sets has its own threshold, judged on 100,000 new examples."""
    draw = np.random.default_rng(7)
    new = weak_model(draw, 100_000, share, bias)
    naive, fitted, covered, harmful = [], [], [], 0
    for _ in range(120):
        scores, positives = weak_model(draw, n, share, bias)
        found = selection.cross_fit_thresholds(scores[:, None], positives[:, None])
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


def test_repeated_examples_do_not_confirm_a_threshold_that_was_fitted_to_them():
    """Random scores, each eight times: with groups their result is that of one copy of each."""
    draw = np.random.default_rng(1)
    once = draw.random(60), draw.random(60) < 0.4
    scores, positives = np.repeat(once[0], 8), np.repeat(once[1], 8)
    shared = SharedRows(np.repeat(np.arange(60), 8))
    alone = selection.cross_fit_thresholds(scores[:, None], positives[:, None])
    together = selection.cross_fit_thresholds(scores[:, None], positives[:, None], shared)
    best = f1_at(together.threshold, *once)
    assert alone.f1.value > best - 0.02
    assert together.f1.value < best - 0.04
    widths = [found.f1.high - found.f1.low for found in (alone, together)]
    assert widths[1] > 2 * widths[0]  # they are worth 60 examples, not 480


def test_a_threshold_that_only_costs_is_not_recommended():
    """The scores are perfect, so any threshold is as good as a half."""
    truth = np.arange(80) % 2 == 1
    found = selection.cross_fit_thresholds(np.where(truth, 0.9, 0.1)[:, None], truth[:, None])
    assert classification.best_threshold(np.where(truth, 0.9, 0.1), truth) == found.threshold
    assert (found.f1.value, found.gain.value, found.is_recommended) == (1.0, 0.0, False)
