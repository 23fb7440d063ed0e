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
    Source: Wang et al. 2019 (GLUE), https://arxiv.org/abs/1804.07461
    """

    def __init__(self, labels: list[str], positive: int = 1) -> None:
        self._average = "binary" if len(labels) == 2 else "macro"
        self._positive = positive if len(labels) == 2 else 1  # scikit-learn warns of others
        # In memory: no cache file for two runs on one machine to fight over.
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        index = datasets.Value("int64")
        return evaluate.MetricInfo(
            description="Accuracy and F1 of predicted classes, as GLUE scores MRPC.",
            citation="Wang et al. 2019, https://arxiv.org/abs/1804.07461",
            inputs_description="predictions, references: class indices",
            features=datasets.Features(predictions=index, references=index),
        )

    def _compute(self, predictions: ArrayLike, references: ArrayLike) -> dict[str, float]:
        options: dict[str, Any] = {"average": self._average, "zero_division": 0}
        f1 = f1_score(references, predictions, pos_label=self._positive, **options)
        return {"accuracy": float(accuracy_score(references, predictions)), "f1": float(f1)}


def majority_scores(
    train: Sequence[int], validation: Sequence[int], positive: int = 1
) -> dict[str, float]:
    """The scores of always answering training's most frequent class, by each class's examples."""
    return classification.constant_answer_scores(validation, int(np.argmax(train)), positive)
