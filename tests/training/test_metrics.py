from __future__ import annotations

import evaluate
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from finetune.metrics import classification
from finetune.training import metrics


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_equal_scikit_learns_batch_by_batch(classes: int) -> None:
    draw = np.random.default_rng(0)
    wanted, found = draw.integers(classes, size=(2, 97))
    metric = metrics.AccuracyAndF1([str(n) for n in range(classes)])
    assert isinstance(metric, evaluate.Metric)
    for start in range(0, 97, 10):
        some = slice(start, start + 10)
        metric.add_batch(predictions=found[some], references=wanted[some])
    average = "binary" if classes == 2 else "macro"
    assert metric.compute() == {
        "accuracy": pytest.approx(accuracy_score(wanted, found)),
        "f1": pytest.approx(f1_score(wanted, found, average=average)),
    }


def test_a_metric_can_be_used_again() -> None:
    metric = metrics.AccuracyAndF1(["no", "yes"])
    for expected in (1.0, 0.5):
        wrong = 0 if expected == 1.0 else 1
        metric.add_batch(predictions=[1, wrong], references=[1, 0])
        assert metric.compute()["accuracy"] == expected


def test_the_majority_comes_from_training() -> None:
    scores = metrics.majority_scores([1, 2], [3, 1])
    assert scores == {"accuracy": 0.25, "f1": pytest.approx(0.4)}


@pytest.mark.parametrize("support", [[3, 1], [0, 4], [5, 2, 9], [5, 0, 9], [0, 7, 9]])
def test_a_constant_answer_scores_as_if_it_were_predicted(support: list[int]) -> None:
    references = np.repeat(np.arange(len(support)), support)
    for answer in range(len(support)):
        for positive in (0, 1):
            metric = metrics.AccuracyAndF1([str(n) for n in range(len(support))], positive)
            found = np.full(len(references), answer)
            expected = metric.compute(predictions=found, references=references)
            assert classification.constant_answer_scores(
                support, answer, positive
            ) == pytest.approx(expected)
