"""One class for each example: transformers' `single_label_classification`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics import catalog, intervals
from finetune.metrics.calibration import Logits, probabilities
from finetune.metrics.catalog import Metric
from finetune.metrics.classification import Indices, confusion_matrix
from finetune.metrics.intervals import Interval
from finetune.metrics.modules import ScoreModules
from finetune.tasks.base import (
    NO_RULE,
    SINGLE_LABEL,
    Answers,
    DecisionRule,
    PredictOptions,
    Target,
)

if TYPE_CHECKING:
    import torch


class SingleLabel:
    """Answers with the most probable class, or by a threshold."""

    name = SINGLE_LABEL

    def answers(
        self,
        logits: Logits,
        target: Target,
        rule: DecisionRule = NO_RULE,
        options: PredictOptions | None = None,
        swapped: Logits | None = None,
    ) -> Answers:
        options = options or PredictOptions(both_orders=swapped is not None)
        temperature = (rule.temperature if options.calibrated else None) or 1.0
        shares = probabilities(logits, temperature)
        if options.both_orders and swapped is not None:
            shares = (shares + probabilities(swapped, temperature)) / np.float32(2)
        level = rule.threshold_for(target.names) if options.threshold else None
        if level is None:
            return Answers(shares, self.plain_answers(shares))
        positive = target.names.index(rule.positive)
        if temperature != 1:  # the calibrated probability at which the plain one is the threshold
            odds = math.log(level / (1 - level))
            level = 1 / (1 + math.exp(-odds / temperature))
        # As float32 the threshold would be rounded.
        called = shares[:, positive].astype(np.float64) >= level
        return Answers(shares, np.where(called, positive, 1 - positive))

    def plain_answers(self, scores: Logits) -> NDArray[np.int64]:
        return np.asarray(scores.argmax(axis=1), np.int64)

    def score_modules(self, target: Target, metrics: Sequence[Metric]) -> ScoreModules:
        names = [metric.name for metric in metrics]
        return ScoreModules(names, target.size, target.positive, self.plain_answers)

    def loss(
        self,
        outputs: Any,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
        smoothing: float = 0.0,
    ) -> torch.Tensor:
        from torch.nn.functional import cross_entropy

        if class_weights is None and not smoothing:
            return outputs.loss  # type: ignore[no-any-return]
        logits = outputs.logits.float()
        return cross_entropy(logits, labels, class_weights, label_smoothing=smoothing)

    def mean_loss(self, logits: Logits, labels: Indices) -> float:
        import torch

        scores, truth = torch.from_numpy(logits).double(), torch.from_numpy(labels)
        return torch.nn.functional.cross_entropy(scores, truth).item()

    def scores(
        self, answers: Indices, truth: Indices, target: Target, metrics: Sequence[Metric]
    ) -> dict[str, float]:
        return catalog.tallied_scores(truth, answers, target.size, target.positive, metrics)

    def intervals(
        self, answers: Indices, truth: Indices, target: Target, metrics: Sequence[Metric]
    ) -> dict[str, Interval]:
        confusion = confusion_matrix(truth, answers, target.size)
        return intervals.bootstrap_intervals(confusion, target.positive, metrics)
