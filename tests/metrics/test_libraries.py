"""Our figures beside those of scikit-learn, scipy, statsmodels and GLUE: arrays in, numbers out.
And what is measured of a task, also by modules of anybody."""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.calibration import calibration_curve
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.data import catalog as datasets_offered
from finetune.evaluation import abstention
from finetune.inference import other_answers
from finetune.metrics import (
    calibration,
    catalog,
    classification,
    intervals,
    label_free,
    modules,
    selection,
)
from finetune.metrics.calibration import conformal_margin
from finetune.metrics.catalog import OF_LABELS, OF_SCORES
from finetune.tasks.base import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Target
from finetune.tasks.registry import deciding_metric, find_task, measured, task_of
from finetune.tasks.single_label import SingleLabel

Array = NDArray[Any]
Pairs = Iterator[tuple[str, Any, Any]]  # what it is, ours and theirs
ALL = [metric for metric in catalog.METRICS.values() if metric is not catalog.LOSS]
TALLIED = [metric for metric in ALL if metric.of_tally is not None]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def classes_of(rows, classes, seed=0, right=0.6):
    """True classes, and answers of which so many are right."""
    draw = np.random.default_rng(seed)
    truth, other = draw.integers(classes, size=(2, rows))
    return truth, np.where(draw.random(rows) < right, truth, other)


def logits_of(rows, classes, seed=0):
    """True classes, and logits that tell something of them."""
    draw = np.random.default_rng(seed)
    truth = draw.integers(classes, size=rows)
    logits = draw.normal(size=(rows, classes)).astype(np.float32)
    logits[np.arange(rows), truth] += 1
    return truth, logits


def labels_of(rows, seed=0):
    """True labels, common and rare ones, and answers."""
    draw = np.random.default_rng(seed)
    truth = (draw.random((rows, 5)) < [0.6, 0.4, 0.3, 0.2, 0.1]).astype(np.int8)
    return truth, np.where(draw.random(truth.shape) < 0.8, truth, 1 - truth)


def scores_of(rows, seed=0, decimals=2):
    """True scores, some of them equal, and answers of correlation 0.7."""
    draw = np.random.default_rng(seed)
    truth = draw.normal(size=rows)
    noise = np.sqrt(1 / 0.49 - 1) * draw.normal(size=rows)
    return truth.round(decimals), (truth + noise).round(decimals)


def shares_of(rows, share, ties=False):
    """Which rows are positive, and probabilities of that, rounded to two digits for ties."""
    draw = np.random.default_rng(0)
    positives = draw.random(rows) < share
    shares = 1 / (1 + np.exp(-draw.normal(np.where(positives, 1.0, -1.0), 1.5)))
    return positives, shares.round(2) if ties else shares


def of_labels(truth, answers):
    return {
        "micro_f1": sk.f1_score(truth, answers, average="micro", zero_division=0),
        "macro_f1": sk.f1_score(truth, answers, average="macro", zero_division=0),
        "subset_accuracy": sk.accuracy_score(truth, answers),
        "hamming_loss": sk.hamming_loss(truth, answers),
    }


def of_scores(truth, answers):
    off = answers - truth
    return {
        "pearson": float(scipy.stats.pearsonr(answers, truth).statistic),
        "spearmanr": float(scipy.stats.spearmanr(answers, truth).statistic),
        "mae": float(np.abs(off).mean()),
        "rmse": float(np.sqrt((off**2).mean())),
    }


def of_classes(metric, truth, logits, positive):
    classes = logits.shape[1]
    if metric.of_tally is None:
        shares = softmax(logits.astype(float), axis=1)
        sides = [positive] if classes == 2 else np.unique(truth)
        return float(np.mean([sk.roc_auc_score(truth == one, shares[:, one]) for one in sides]))
    function = getattr(sk, metric.library.removeprefix("sklearn.metrics."))
    options = metric.library_options(classes, positive)
    return float(function(truth, logits.argmax(axis=1), **options))


def confusion_matrices():
    for rows, classes in ((1, 2), (500, 2), (1, 50), (500, 50), (60, 50)):
        truth, answers = classes_of(rows, classes)
        confusion = classification.confusion_matrix(truth, answers, classes)
        options = {"labels": range(classes)}
        yield "counts", confusion, sk.confusion_matrix(truth, answers, **options)
        found = classification.class_scores(confusion)
        columns = [[row.precision, row.recall, row.f1, row.support] for row in found]
        table = np.array(columns, np.float64)  # None becomes nan: a score of no example
        expected = sk.precision_recall_fscore_support(
            truth, answers, zero_division=np.nan, **options
        )
        yield "of a class", table.T, np.array(expected)
        yield "given", [row.predicted for row in found], np.bincount(answers, minlength=classes)
        for positive in (0, 1):
            binary = {"average": "binary", "pos_label": positive}
            average = binary if classes == 2 else {"average": "macro"}
            f1 = sk.f1_score(truth, answers, zero_division=0, **average)
            expected = {"accuracy": sk.accuracy_score(truth, answers), "f1": f1}
            meant = positive if classes == 2 else None
            yield "standard", catalog.scores(answers, truth, positive=meant), expected
        mcc = catalog.scores(answers, truth, [catalog.MATTHEWS])
        yield "MCC", mcc, {catalog.MATTHEWS.name: sk.matthews_corrcoef(truth, answers)}
    ends = (np.eye(30), 1), ([[0, 3], [3, 0]], -1), ([[5, 0], [0, 0]], 0), ([[3, 0], [2, 0]], 0)
    for counts, expected in ends:
        cells = np.asarray(counts, np.int64)
        truth, answers = np.repeat(np.argwhere(cells + 1), cells.ravel(), axis=0).T
        mcc = catalog.scores(answers, truth, [catalog.MATTHEWS])
        yield "MCC at its ends", mcc, {catalog.MATTHEWS.name: expected}


def metrics_of_classes():
    """By arrays, of resamples, and by modules that are handed batches and begin anew."""
    for classes, positive in ((2, 0), (2, 1), (40, 1)):
        scored = modules.ScoreModules([metric.name for metric in ALL], classes, positive)
        for seed in range(1 + positive):
            truth, logits = logits_of(90, classes, seed)
            for rows in np.array_split(np.arange(90), [32, 64]):
                scored.add_batch(predictions=logits[rows], references=truth[rows])
            expected = {each.name: of_classes(each, truth, logits, positive) for each in ALL}
            yield f"{classes} classes", scored.compute(), expected
        for metric in TALLIED:
            answers, side = logits.argmax(axis=1), positive if classes == 2 else None
            statistic = selection.statistics([metric], truth, np.stack([answers, truth]), side)
            found = statistic[metric.name].of(np.ones((90, 1)))[:, 0]
            of_one = metric.rank(of_classes(metric, truth, logits, positive))
            yield metric.name, found, [of_one, 1]


def metrics_of_labels_and_scores():
    """A label that neither occurs nor is given does not count; resamples are ranked anew."""
    truth, answers = labels_of(90)
    yield "labels", catalog.scores(answers, truth, OF_LABELS), of_labels(truth, answers)
    wide_answers, wide_truth = (np.column_stack([part, np.zeros(90)]) for part in (answers, truth))
    macro = catalog.scores(wide_answers, wide_truth, OF_LABELS)["macro_f1"]
    yield "five of six labels", macro, of_labels(truth, answers)["macro_f1"]
    zeros = np.zeros((4, 2))
    nothing = {"micro_f1": 0, "macro_f1": 0, "subset_accuracy": 1, "hamming_loss": 0}
    yield "no label", catalog.scores(zeros, zeros, OF_LABELS), nothing
    target = Target(tuple("abcde"), task=MULTI_LABEL)
    scored = find_task(MULTI_LABEL).score_modules(target, OF_LABELS)
    for rows in np.array_split(np.arange(90), [32, 64]):
        scored.add_batch(
            predictions=answers[rows] * 2.0 - 1, references=truth[rows].astype(np.float32)
        )
    yield "modules of labels", scored.compute(), of_labels(truth, answers)
    for count in (5, 60, 3000):
        truth, answers = scores_of(count, decimals=1)
        found = catalog.scores(answers, truth, OF_SCORES)
        yield f"{count} scores", found, of_scores(truth, answers)
    scored = find_task(REGRESSION).score_modules(Target((), task=REGRESSION), OF_SCORES)
    truth, answers = (part.astype(np.float32) for part in scores_of(90))
    for seed in range(2):
        for rows in np.array_split(np.arange(90), [32, 64]):
            scored.add_batch(predictions=answers[rows, None] + seed, references=truth[rows])
        yield "modules of scores", scored.compute(), of_scores(truth, answers + seed)
    constant = np.array([0.1, 0.5, 0.9])
    for answers in (np.full(3, 0.3, np.float32), np.full(3, 1e6)):
        found = catalog.scores(answers, constant, OF_SCORES[:2])
        yield "a constant", found, {"pearson": 0, "spearmanr": 0}
    small = catalog.scores(constant * 1e-7, constant, OF_SCORES[:2])
    yield "small scores", small, {"pearson": 1, "spearmanr": 1}
    truth, answers = scores_of(40, decimals=1)
    weights = np.random.default_rng(1).multinomial(40, np.full(40, 1 / 40), 5).T
    for metric in OF_SCORES:
        repeated = [
            of_scores(np.repeat(truth, times), np.repeat(answers, times))[metric.name]
            for times in weights.T
        ]
        yield metric.name, metric.of_examples(answers, truth, weights), repeated


def curves_and_thresholds():
    for share, ties in ((0.01, False), (0.95, True)):
        positives, shares = shares_of(20_000, share, ties)
        curves = classification.ranking_curves(shares, positives)
        areas = sk.roc_auc_score, sk.average_precision_score
        for area, curve in zip(areas, curves, strict=True):
            yield "area", curve.area, area(positives, shares)
            thinned = classification.thin_curve(curve)
            assert len(thinned.x) == len(thinned.y) <= 200
            lost = np.trapezoid(thinned.y, thinned.x) - np.trapezoid(curve.y, curve.x)
            assert abs(float(lost)) < 0.003
    for share, ties in ((0.02, True), (0.5, False), (1.0, False)):
        positives, shares = shares_of(300, share, ties)
        sweep = classification.threshold_sweep(shares, positives)
        yield "thresholds", sweep.thresholds, np.arange(101) / 100
        for index in range(0, 101, 10):
            called = shares >= sweep.thresholds[index]
            theirs = sk.precision_recall_fscore_support(
                positives, called, average="binary", zero_division=np.nan
            )
            row = [sweep.scores[name][index] for name in ("accuracy", "precision", "recall", "f1")]
            yield "at a threshold", row, [sk.accuracy_score(positives, called), *theirs[:3]]


def calibrations():
    for kind in (np.float16, np.float64):
        for temperature in (0.1, 7.0):
            logits = logits_of(40, 5)[1].astype(kind)
            shares = calibration.probabilities(logits, temperature)
            yield "softmax", shares, softmax(logits.astype(np.float64) / temperature, axis=1)
    draw = np.random.default_rng(0)
    sure = np.append(draw.uniform(0.4, 1, size=500), [0.0, 1.0])
    right = draw.random(502) < sure**2
    bins = calibration.reliability(sure, right)
    accuracy, mean = calibration_curve(right, sure, n_bins=calibration.BINS)
    filled = bins.counts > 0
    yield "bins", [bins.accuracy[filled], bins.confidence[filled]], [accuracy, mean]
    error = (np.abs(accuracy - mean) * bins.counts[filled]).sum() / len(right)
    yield "expected error", bins.ece, error
    for rows, classes, temperature in ((30, 2, 0.3), (300, 7, 4.0)):
        truth, logits = logits_of(rows, classes)
        logits = logits.astype(float) * temperature

        def loss(log, logits=logits, truth=truth):
            likely = log_softmax(logits / math.exp(log[0]), axis=1)[np.arange(len(truth)), truth]
            return float(-likely.mean())

        options = {"xatol": 1e-7, "fatol": 1e-12}
        best = minimize(loss, [0.0], method="Nelder-Mead", options=options)
        yield "temperature", calibration.fit_temperature(logits, truth), math.exp(best.x[0])


def intervals_and_tests():
    for right, rows in ((0, 1), (17, 30), (99_990, 100_000)):
        share = intervals.wilson_interval(right, rows)
        yield "Wilson", [share.low, share.high], proportion_confint(right, rows, method="wilson")
    values = [0.85, 0.87, 0.84, 0.88, 0.86]
    mean = intervals.mean_interval(values)
    error = scipy.stats.sem(values)
    ends = scipy.stats.t.interval(0.95, df=4, loc=np.mean(values), scale=error)
    yield "Student", [mean.value, mean.low, mean.high], [0.86, *ends]
    for rows in (5, 2000):
        truth, first = classes_of(rows, 3, rows)
        second = classes_of(rows, 3, rows + 1)[1]
        a, b = first == truth, second == truth
        table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
        p = intervals.sign_test(a.astype(int) - b)
        yield "McNemar", p, min(1.0, mcnemar(table, exact=True).pvalue)
    draw = np.random.default_rng(0)
    first, second = draw.integers(0, 30, 200), draw.integers(5, 33, 150)
    one, other = (np.bincount(values, minlength=33) for values in (first, second))
    found = label_free.counts_test(one, other, ordered=True).distance
    yield "Kolmogorov and Smirnov", found, scipy.stats.ks_2samp(first, second).statistic
    for seed in range(5):
        ps = np.random.default_rng(seed).random(6) ** 3 / 4
        yield "Holm", label_free.holm(list(ps)), multipletests(ps, method="holm")[0]
    sure, hits = draw.random(80), draw.random(80) < 0.8
    curve = abstention.abstention_curve(sure, hits, 0.05)
    for point in (0, 9, 79):
        wrong = round(curve.error[point] * (point + 1))
        exact = scipy.stats.binomtest(wrong, point + 1).proportion_ci(0.90, "exact")
        yield "Clopper and Pearson, 95% on one side", curve.upper[point], exact.high


def agreements():
    draw = np.random.default_rng(0)
    first = draw.choice(3, 200, p=[0.6, 0.3, 0.1])
    second = np.where(draw.random(200) < 0.7, first, draw.integers(0, 3, 200))
    yield "kappa", other_answers.kappa(first, second).value, sk.cohen_kappa_score(first, second)
    labels = other_answers.agreement_of(np.eye(3)[first], np.eye(3)[second], "abc")
    yield "of a label", labels["kappa b"].value, sk.cohen_kappa_score(first == 1, second == 1)
    scores = other_answers.agreement_of(first + 0.0, second + 0.5, "")
    yield "of scores", scores["pearson"].value, scipy.stats.pearsonr(first, second).statistic
    yield "difference", scores["difference"].value, (second - first).mean() + 0.5
    classes = other_answers.agreement_of(first, second, "abc")
    yield "equal", classes["equal"].value, (first == second).mean()


FAMILIES = [
    confusion_matrices, metrics_of_classes, metrics_of_labels_and_scores,
    curves_and_thresholds, calibrations, intervals_and_tests, agreements,
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_a_figure_is_that_of_the_library(family):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that do not occur
        pairs = [*family()]
    for name, ours, theirs in pairs:
        if not isinstance(theirs, dict):
            ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
        assert ours == pytest.approx(theirs, rel=2e-4, abs=1e-6, nan_ok=True), name


def f1_of(truth, answers, axis):
    return 2 * (truth & answers).sum(axis) / (truth.sum(axis) + answers.sum(axis))


@pytest.mark.parametrize(
    ("drawn", "metric", "statistic"),
    [
        (classes_of(60, 2), catalog.ACCURACY, lambda a, b, axis: (a == b).mean(axis)),
        (classes_of(60, 2), catalog.F1, f1_of),
        (classes_of(90, 4), catalog.ACCURACY, lambda a, b, axis: (a == b).mean(axis)),
    ],
)
def test_an_interval_is_scipys_bca(drawn, metric, statistic):
    truth, answers = drawn
    positive = 1 if metric is catalog.F1 else None
    found = intervals.score_intervals(answers, truth, [metric], positive)[metric.name]
    theirs = scipy.stats.bootstrap(
        drawn, statistic, paired=True, vectorized=True, n_resamples=5000, rng=0
    ).confidence_interval
    assert found.value == pytest.approx(statistic(truth, answers, -1))
    assert [found.low, found.high] == pytest.approx([theirs.low, theirs.high], abs=0.025)


SCORES = Target((), task=REGRESSION)


@pytest.mark.parametrize("metric", TALLIED, ids=lambda metric: metric.name)
@pytest.mark.parametrize("classes", [2, 3])
def test_of_right_answers_alone_the_interval_reaches_below(metric, classes):
    truth, positive = np.repeat(np.arange(classes), 5), 1 if classes == 2 else None
    interval = intervals.score_intervals(truth, truth, [metric], positive)[metric.name]
    assert (interval.value, interval.high) == (1.0, 1.0)
    assert 0 < interval.low < 0.9


FOREIGN = """
import datasets
import evaluate


class Hits(evaluate.Metric):
    def _info(self):
        label = datasets.Value("int64")
        features = datasets.Features({"predictions": label, "references": label})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        hits = sum(a == b for a, b in zip(predictions, references))
        return {"hits": hits, "all": [hits], "undefined": float("nan")}
"""


def test_a_folder_or_a_module_of_the_hub_is_a_metric_and_no_number_is_left_out(hub, tmp_path):
    (folder := tmp_path / "hits").mkdir()
    (folder / "hits.py").write_text(FOREIGN)
    hub.add_repo("ada/hits", "space", {"hits.py": FOREIGN.encode()})
    labels, logits = logits_of(20, 2)
    hits = float((logits.argmax(axis=1) == labels).sum())
    for name in (str(folder), "ada/hits"):
        scored = modules.ScoreModules(["accuracy", name], 2)
        scored.add_batch(predictions=logits, references=labels)
        assert scored.compute() == {"accuracy": hits / 20, "hits": hits}
    assert datasets_offered.needs_hub("bundled", BUNDLED_CHECKPOINT, ["ada/hits"])
    assert not datasets_offered.needs_hub("bundled", BUNDLED_CHECKPOINT, [str(modules.FOLDER)])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([np.float32, np.float64]),
)
def test_no_threshold_has_a_better_f1_than_the_best(rows, kind):
    scores = np.array([score for score, _ in rows], dtype=kind)
    positives = np.array([positive for _, positive in rows])
    best = classification.threshold_sweep(scores, positives).best
    reached, *others = (
        sklearn.metrics.f1_score(positives, scores.astype(float) >= threshold, zero_division=np.nan)
        for threshold in (best["threshold"], *scores.astype(float))
    )
    assert best["f1"] == pytest.approx(reached, nan_ok=True)
    if positives.any():
        assert best["f1"] == pytest.approx(max(others))


def test_the_majority_is_that_of_training_and_in_a_tie_the_positive_class():
    def scores(train, validation):
        """Of always answering the majority, from the number of rows of each class."""
        rows = [np.repeat(np.arange(len(counts)), counts) for counts in (train, validation)]
        target = Target(tuple("abc"[: len(train)]))
        return SingleLabel().constant_scores(rows[0], rows[1], target, catalog.STANDARD)

    assert scores([5, 5], [3, 3]) == {"accuracy": 0.5, "f1": pytest.approx(2 / 3)}
    assert scores([6, 5], [1, 3]) == {"accuracy": 0.25, "f1": 0}
    assert scores([4, 1, 4], [2, 1, 1])["accuracy"] == 0.5


def test_thresholds_are_fitted_to_each_label_and_judged_on_others():
    """The first label's probabilities are too low, those of the second too high."""
    draw = np.random.default_rng(0)
    truth = draw.random((600, 3)) < 0.4
    signal = np.where(truth, 1.0, -1.0) + draw.normal(0, 0.7, truth.shape)
    shares = 1 / (1 + np.exp(-(signal * 2 + [-3, 3, 0])))
    fitted = selection.cross_fit_thresholds(shares, truth)
    low, high, _ = fitted.thresholds
    assert low < 0.3
    assert high > 0.7
    assert fitted.is_recommended
    apparent = catalog.scores(shares >= fitted.thresholds, truth, OF_LABELS)["micro_f1"]
    assert fitted.f1.value <= apparent + 1e-9
    rare = truth.copy()
    rare[:, 1] = False
    few = selection.cross_fit_thresholds(shares, rare)
    assert few.thresholds[1] == 0.5
    assert selection.cross_fit_thresholds(shares, np.zeros_like(truth)) is None


def test_a_conformal_interval_covers_new_scores():
    """95% or a little more of new examples, whatever the errors are like."""
    for n, low in ((19, 0.93), (100, 0.935), (400, 0.94)):
        covered = []
        for seed in range(400):
            draw = np.random.default_rng(seed)
            errors = draw.standard_t(2, n + 50)
            margin = conformal_margin(errors[:n])
            covered.append((np.abs(errors[n:]) <= margin).mean())
        assert low <= np.mean(covered) <= 0.97
    assert conformal_margin(np.zeros(18)) is None
    assert conformal_margin(np.arange(19.0) - 9) == 9


def test_metrics_of_other_answers_are_not_measured_of_scores():
    config = RunConfig(metrics="matthews_correlation")
    assert [metric.name for metric in measured(config, SCORES)] == [
        metric.name for metric in OF_SCORES
    ]
    decided = {"f1": "pearson", "roc_auc": "pearson", "mae": "mae", "loss": "loss"}
    for name, decides in decided.items():
        by_name = config.changed(metric_for_best_model=name)
        assert deciding_metric(by_name, task_of(SCORES)) == decides
    by_error = config.changed(metric_for_best_model="mae")
    assert deciding_metric(by_error, find_task(SINGLE_LABEL)) == "f1"
