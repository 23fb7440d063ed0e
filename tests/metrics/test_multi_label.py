"""Metrics of several labels: equal to scikit-learn's, their intervals, and thresholds."""

from __future__ import annotations

from typing import Any

import evaluate
import numpy as np
import pytest
import sklearn.metrics
from numpy.typing import NDArray

from finetune.metrics import catalog, intervals, modules, selection
from finetune.metrics.catalog import OF_LABELS
from finetune.tasks.base import MULTI_LABEL, Target
from finetune.tasks.multi_label import LabelDetails, MultiLabel
from finetune.tasks.registry import find_task

Labels = NDArray[Any]


def drawn(n: int, seed: int = 0) -> tuple[Labels, Labels]:
    """Draw answers and true labels, common and rare ones."""
    draw = np.random.default_rng(seed)
    truth = (draw.random((n, 5)) < [0.6, 0.4, 0.3, 0.2, 0.1]).astype(np.int8)
    return np.where(draw.random(truth.shape) < 0.8, truth, 1 - truth), truth


def by_sklearn(answers: Labels, truth: Labels) -> dict[str, float]:
    f1 = sklearn.metrics.f1_score
    return {
        "micro_f1": f1(truth, answers, average="micro", zero_division=0),
        "macro_f1": f1(truth, answers, average="macro", zero_division=0),
        "subset_accuracy": sklearn.metrics.accuracy_score(truth, answers),
        "hamming_loss": sklearn.metrics.hamming_loss(truth, answers),
    }


def test_they_equal_scikit_learns_by_arrays_and_modules() -> None:
    answers, truth = drawn(90)
    expected = by_sklearn(answers, truth)
    assert catalog.example_scores(answers, truth, OF_LABELS) == pytest.approx(expected)
    target = Target(tuple("abcde"), task=MULTI_LABEL)
    scored = find_task(MULTI_LABEL).score_modules(target, OF_LABELS)
    for _ in range(2):
        for rows in np.array_split(np.arange(90), [32, 64]):
            scored.add_batch(
                predictions=answers[rows] * 2.0 - 1, references=truth[rows].astype(np.float32)
            )
        assert scored.compute() == pytest.approx(expected)
    loaded = evaluate.load(str(modules.FOLDER), "hamming_loss")
    result = loaded.compute(predictions=[[1, 0], [0, 1]], references=[[1, 1], [0, 1]])
    assert result == {"hamming_loss": 0.25}


def test_a_label_that_neither_occurs_nor_is_given_does_not_count() -> None:
    answers, truth = drawn(50)
    answers, truth = (np.column_stack([part, np.zeros(50)]) for part in (answers, truth))
    macro = catalog.example_scores(answers, truth, OF_LABELS)["macro_f1"]
    assert macro == pytest.approx(by_sklearn(answers[:, :5], truth[:, :5])["macro_f1"])
    nothing = catalog.example_scores(np.zeros((4, 2)), np.zeros((4, 2)), OF_LABELS)
    assert nothing == {
        "micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": 1.0, "hamming_loss": 0.0
    }  # fmt: skip


def test_intervals_are_of_resampled_examples() -> None:
    answers, truth = drawn(200)
    computed = intervals.score_intervals(answers, truth, OF_LABELS)
    rows = np.random.default_rng(1).integers(200, size=(1000, 200))
    draws = [by_sklearn(answers[row], truth[row]) for row in rows]
    for name, score in computed.items():
        low, high = np.quantile([draw[name] for draw in draws], [0.025, 0.975])
        assert score.low == pytest.approx(low, abs=0.02)
        assert score.high == pytest.approx(high, abs=0.02)


def test_of_right_answers_alone_the_interval_reaches_below() -> None:
    _, truth = drawn(20)
    found = intervals.score_intervals(truth, truth, OF_LABELS)
    for name in ("micro_f1", "macro_f1", "subset_accuracy"):
        assert (found[name].value, found[name].high) == (1.0, 1.0)
        assert 0.7 < found[name].low < 0.95
    assert (found["hamming_loss"].value, found["hamming_loss"].low) == (0.0, 0.0)
    assert 0.05 < found["hamming_loss"].high < 0.3


def details_of(answers: Labels, truth: Labels) -> LabelDetails:
    """The details of answers that a model is moderately sure of."""
    logits, target = 2.0 * answers - 1, Target(tuple("abcde"), task=MULTI_LABEL)
    return MultiLabel().details(logits, MultiLabel().answers(logits, target), truth, target, None)


def test_each_label_has_its_own_scores_and_errors() -> None:
    answers, truth = drawn(300)
    details = details_of(answers, truth)
    for label, own in enumerate(details.labels):
        precision, recall, f1, _ = sklearn.metrics.precision_recall_fscore_support(
            truth[:, label], answers[:, label], average="binary"
        )
        for interval, value in ((own.precision, precision), (own.recall, recall), (own.f1, f1)):
            assert interval.value == pytest.approx(value)
            assert interval.low < interval.value < interval.high
    both = int((truth[:, 0] & truth[:, 1]).sum())
    assert details.together[0, 1] == details.together[1, 0] == both
    first_for_second = (truth[:, 1] > answers[:, 1]) & (answers[:, 0] > truth[:, 0])
    assert details.confused[1, 0] == first_for_second.sum()
    assert details.rare == []
    assert details_of(answers[:30], truth[:30]).rare == [
        label for label in range(5) if truth[:30, label].sum() < 10
    ]


def test_thresholds_are_fitted_to_each_label_and_judged_on_others() -> None:
    """The first label's probabilities are too low, those of the second too high."""
    draw = np.random.default_rng(0)
    truth = draw.random((600, 3)) < 0.4
    signal = np.where(truth, 1.0, -1.0) + draw.normal(0, 0.7, truth.shape)
    shares = 1 / (1 + np.exp(-(signal * 2 + [-3, 3, 0])))
    fitted = selection.cross_fit_thresholds(shares, truth)
    assert fitted is not None
    low, high, _ = fitted.thresholds
    assert low < 0.3
    assert high > 0.7
    assert fitted.is_recommended
    apparent = catalog.example_scores(shares >= fitted.thresholds, truth, OF_LABELS)["micro_f1"]
    assert fitted.f1.value <= apparent + 1e-9
    rare = truth.copy()
    rare[:, 1] = False
    few = selection.cross_fit_thresholds(shares, rare)
    assert few is not None
    assert few.thresholds[1] == 0.5
    assert selection.cross_fit_thresholds(shares, np.zeros_like(truth)) is None
