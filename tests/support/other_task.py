"""A task that the project does not know: grades in an order, such as low, middle and high."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from finetune.config import RunConfig
from finetune.tasks.base import LabelColumn
from finetune.tasks.classes import Classes
from finetune.tasks.single_label import SingleLabel

GRADES = ["low", "middle", "high"]


class Ordinal(SingleLabel):
    """Answers with the grade nearest to the mean; the loss is how far the mean is off."""

    name, title = "ordinal", "Grades in an order"
    has_own_loss = True

    def recognises(self, cells: Sequence[Any]) -> bool:
        return {*cells} <= {*GRADES}

    def read(self, column: LabelColumn, config: RunConfig) -> Classes:
        read = super().read(column, config)
        place = np.array([GRADES.index(name) for name in read.names])
        return replace(
            read, names=GRADES, codes=np.where(read.codes < 0, read.codes, place[read.codes])
        )

    def plain_answers(self, scores: Any) -> Any:
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return np.rint((shares * np.arange(scores.shape[1])).sum(axis=1)).astype(np.int64)

    def loss(
        self, outputs: Any, labels: Any, class_weights: Any = None, smoothing: float = 0
    ) -> Any:
        import torch

        places = torch.arange(outputs.logits.shape[1], dtype=torch.float32)
        return ((outputs.logits.softmax(-1) @ places - labels) ** 2).mean()

    def losses(self, logits: Any, labels: Any) -> Any:
        return (self.plain_answers(logits) - labels) ** 2.0
