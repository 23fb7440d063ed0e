"""A model's accuracy in plain terms: how many of ten new examples it gets right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from finetune.evaluation.report import Analysis
from finetune.metrics.catalog import ACCURACY
from finetune.metrics.intervals import Interval
from finetune.tasks.registry import task_of


class InTen(NamedTuple):
    """Expected results for ten new examples."""

    right: Interval  # that the model answers rightly, with its 95% interval
    guessed: float  # that are right if the commonest answer is always given


def in_ten(analysis: Analysis, baselines: Mapping[str, Mapping[str, float]]) -> InTen | None:
    """Return the expected results for ten new examples; None if the guess was not measured."""
    guess = baselines.get(task_of(analysis.target).constant, {}).get(ACCURACY.name)
    if guess is None:
        return None
    score = analysis.expected.get(ACCURACY.name, analysis.scores[ACCURACY.name])
    return InTen(Interval(10 * score.value, 10 * score.low, 10 * score.high), 10 * guess)
