"""What a set of predictions is worth.

`evaluate.load` fetches its scripts from the Hub; these subclasses of `evaluate.Metric` need no
network. Knows nothing of models: it sees class indices and logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import accuracy_score, f1_score

from finetune.metrics import classification

_DESCRIPTION = "Accuracy and F1 of predicted classes, as GLUE scores MRPC."
_CITATION = (
    "Wang et al. 2019, GLUE: A Multi-Task Benchmark and Analysis Platform for Natural "
    "Language Understanding, https://arxiv.org/abs/1804.07461"
)


class AccuracyAndF1(evaluate.Metric):
    """Accuracy, and F1: of the positive class when there are two, macro for more.

    Args:
        labels: names of the classes, by index.
        positive: index of the class whose F1 is meant; 1 as GLUE scores MRPC.

    Source: Wang et al. 2019 (GLUE), https://arxiv.org/abs/1804.07461; the figures are
    scikit-learn's.
    """

    def __init__(self, labels: list[str], positive: int = 1, **kwargs: Any) -> None:
        self._average = "binary" if len(labels) == 2 else "macro"
        self._positive = positive if len(labels) == 2 else 1
        # In memory: no cache file for two runs on one machine to fight over.
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description="predictions, references: class indices",
            features=datasets.Features(
                predictions=datasets.Value("int64"), references=datasets.Value("int64")
            ),
        )

    def _compute(self, predictions: ArrayLike, references: ArrayLike) -> dict[str, float]:
        return {
            "accuracy": float(accuracy_score(references, predictions)),
            "f1": float(
                f1_score(
                    references,
                    predictions,
                    average=self._average,
                    pos_label=self._positive,
                    zero_division=0,
                )
            ),
        }


def majority_scores(
    train: Sequence[int], validation: Sequence[int], positive: int = 1
) -> dict[str, float]:
    """The scores of always answering the class most frequent in training.

    Args:
        train, validation: how many examples each class has.
        positive: as for `AccuracyAndF1`.
    """
    return classification.constant_answer_scores(validation, int(np.argmax(train)), positive)


def cross_entropy(logits: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]]) -> float:
    """Mean negative log likelihood in nats.

    Args:
        logits: of shape (examples, classes).
        labels: of shape (examples,).
    """
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_partition = np.log(np.exp(shifted).sum(axis=1))
    return float((log_partition - shifted[np.arange(len(labels)), labels]).mean())
