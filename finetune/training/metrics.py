"""The scores that a run reports of its validation split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import accuracy_score, f1_score

from finetune.metrics import classification


class AccuracyAndF1(evaluate.Metric):
    """Accuracy, and F1: of the positive class when there are two, macro for more.

    A class of its own, for `evaluate.load` fetches its scripts from the Hub.

    Args:
        labels: names of the classes, by index.
        positive: index of the class whose F1 is meant; 1 as GLUE scores MRPC.

    Source: Wang et al. 2019 (GLUE), https://arxiv.org/abs/1804.07461
    """

    def __init__(self, labels: list[str], positive: int = 1, **kwargs: Any) -> None:
        binary = len(labels) == 2
        self._options = {"average": "binary", "pos_label": positive} if binary else {
            "average": "macro"
        }  # fmt: skip
        # In memory: no cache file for two runs on one machine to fight over.
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        index = datasets.Value("int64")
        return evaluate.MetricInfo(
            description="Accuracy and F1 of predicted classes, as GLUE scores MRPC.",
            citation="Wang et al. 2019, https://arxiv.org/abs/1804.07461",
            inputs_description="predictions, references: class indices",
            features=datasets.Features(predictions=index, references=index),
        )

    def _compute(self, predictions: ArrayLike, references: ArrayLike) -> dict[str, float]:
        f1 = f1_score(references, predictions, zero_division=0, **self._options)
        return {"accuracy": float(accuracy_score(references, predictions)), "f1": float(f1)}


def majority_scores(
    train: Sequence[int], validation: Sequence[int], positive: int = 1
) -> dict[str, float]:
    """The scores of always answering the class most frequent in training.

    Args:
        train, validation: how many examples each class has.
        positive: as for `AccuracyAndF1`.
    """
    return classification.constant_answer_scores(validation, int(np.argmax(train)), positive)
