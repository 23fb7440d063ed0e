"""The interface of all tasks: the target of a label column, and answers from logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.calibration import Logits
from finetune.metrics.catalog import Metric
from finetune.metrics.classification import Indices
from finetune.metrics.intervals import Interval
from finetune.metrics.modules import ScoreModules

if TYPE_CHECKING:
    import torch

SINGLE_LABEL = "single_label_classification"  # of runs that name no task


@dataclass(frozen=True)
class Target:
    """The classes of a label column."""

    names: tuple[str, ...]  # names of the classes, by index
    positive: int = 1  # of two classes, the index of the one whose scores are reported
    task: str = SINGLE_LABEL  # as transformers names it: a model's `problem_type`

    @property
    def size(self) -> int:
        """Number of classes, which is the number of a model's logits."""
        return len(self.names)


@dataclass(frozen=True)
class DecisionRule:
    """A person's choices for one model; None for a default."""

    threshold: float | None = None  # plain probability from which `positive` is the answer
    temperature: float | None = None  # calibrated probabilities are softmax(logits / temperature)
    positive: str = ""  # name of a class, of two

    def threshold_for(self, names: Sequence[str]) -> float | None:
        """Return the threshold; None unless there are two classes, one of them `positive`."""
        return self.threshold if len(names) == 2 and self.positive in names else None


NO_RULE = DecisionRule()


@dataclass(frozen=True)
class PredictOptions:
    """Options for turning logits into an answer."""

    both_orders: bool = False  # average the probabilities of both orders of the sentences
    threshold: bool = True  # use the threshold saved with the model, if there is one
    calibrated: bool = False  # use the temperature saved with the model


class Answers(NamedTuple):
    """Answers to several pairs."""

    probabilities: NDArray[np.float32]  # of shape (pairs, classes)
    values: NDArray[np.int64]  # class indices, of shape (pairs,)


class Task(Protocol):
    """A kind of problem to learn. Arrays of answers and of truth have the shape (examples,)."""

    name: str  # transformers' `problem_type`

    def answers(
        self,
        logits: Logits,
        target: Target,
        rule: DecisionRule = NO_RULE,
        options: PredictOptions | None = None,
        swapped: Logits | None = None,
    ) -> Answers:
        """Turn logits into answers.

        Args:
            logits: shape (pairs, target.size).
            rule: a person's choices for the model; none by default.
            options: by default the rule's threshold decides, and both orders are averaged if
                `swapped` is given.
            swapped: logits of the sentences in the other order; None for single sentences.
        """

    def plain_answers(self, scores: Logits) -> NDArray[np.int64]:
        """Answer by logits or probabilities alone, of shape (pairs, target.size)."""

    def score_modules(self, target: Target, metrics: Sequence[Metric]) -> ScoreModules:
        """Load the modules that get each batch's logits and labels."""

    def loss(
        self,
        outputs: Any,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
        smoothing: float = 0.0,
    ) -> torch.Tensor:
        """Return the loss that is trained on: the model's own unless it is changed."""

    def mean_loss(self, logits: Logits, labels: Indices) -> float:
        """Return the mean loss of many examples, as evaluations report it."""

    def scores(
        self, answers: Indices, truth: Indices, target: Target, metrics: Sequence[Metric]
    ) -> dict[str, float]:
        """Return the metrics for which answers suffice, by name."""

    def intervals(
        self, answers: Indices, truth: Indices, target: Target, metrics: Sequence[Metric]
    ) -> dict[str, Interval]:
        """Return the same with their 95% intervals."""
