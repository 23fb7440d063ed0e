"""The reported scores equal scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from finetune.metrics import classification
from finetune.training import metrics


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_equal_scikit_learns(classes: int) -> None:
    metric = metrics.AccuracyAndF1([str(n) for n in range(classes)])
    for seed in (0, 1):  # it can be used again
        labels, answers = np.random.default_rng(seed).integers(classes, size=(2, 97))
        average = "binary" if classes == 2 else "macro"
        assert metric.compute(predictions=answers, references=labels) == {
            "accuracy": pytest.approx(accuracy_score(labels, answers)),
            "f1": pytest.approx(f1_score(labels, answers, average=average)),
        }


def test_a_constant_answer_scores_as_if_it_were_predicted() -> None:
    scores = metrics.majority_scores([1, 2], [3, 1])  # the majority is training's
    assert scores == {"accuracy": 0.25, "f1": pytest.approx(0.4)}
    for support in ([3, 1], [0, 4], [5, 2, 9], [5, 0, 9], [0, 7, 9]):
        labels = np.repeat(np.arange(len(support)), support)
        for answer in range(len(support)):
            for positive in (0, 1):
                metric = metrics.AccuracyAndF1([str(n) for n in range(len(support))], positive)
                answers = np.full(len(labels), answer)
                expected = metric.compute(predictions=answers, references=labels)
                scores = classification.constant_answer_scores(support, answer, positive)
                assert scores == pytest.approx(expected)
