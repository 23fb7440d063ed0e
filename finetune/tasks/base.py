"""What all tasks share: what a label column came to, and how logits become answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Target:
    """What a label column came to."""

    names: tuple[str, ...]  # of the classes, by index
    positive: int = 1  # index of the class whose scores are meant, of two

    @property
    def size(self) -> int:
        """How many classes there are, which is how many logits a model has."""
        return len(self.names)


@dataclass(frozen=True)
class DecisionRule:
    """A person's choices for one model; None for a default."""

    threshold: float | None = None  # plain probability from which `positive` is the answer
    temperature: float | None = None  # calibrated probabilities are softmax(logits / temperature)
    positive: str = ""  # name of a class, of two

    def threshold_for(self, names: Sequence[str]) -> float | None:
        """The threshold, or None unless there are two classes, one of them `positive`."""
        return self.threshold if len(names) == 2 and self.positive in names else None


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
