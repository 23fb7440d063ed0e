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

    @property
    def about(self) -> float:
        """The number to name: a whole one if it lies in the interval."""
        whole = round(self.right.value)
        return whole if self.right.low <= whole <= self.right.high else round(self.right.value, 1)


class Plainly(NamedTuple):
    """A score that can be said in plain words, for tasks whose answers are not counted in tens."""

    words: str  # with `{value}`
    expected: float  # of new examples
    constant: float  # of the best constant answer


def plainly(analysis: Analysis, baselines: Mapping[str, Mapping[str, float]]) -> Plainly | None:
    """Return the first score of a task that can be said in plain words; None if it was not measured
    of the constant answer too."""
    task = task_of(analysis.target)
    constant = baselines.get(task.constant, {})
    for metric in task.metrics:
        if metric.plain and metric.name in analysis.scores and metric.name in constant:
            score = analysis.expected.get(metric.name, analysis.scores[metric.name])
            return Plainly(metric.plain, score.value, constant[metric.name])
    return None


def in_ten(analysis: Analysis, baselines: Mapping[str, Mapping[str, float]]) -> InTen | None:
    """Return the expected results for ten new examples; None if the guess was not measured."""
    guess = baselines.get(task_of(analysis.target).constant, {}).get(ACCURACY.name)
    if guess is None:
        return None
    score = analysis.expected.get(ACCURACY.name, analysis.scores[ACCURACY.name])
    return InTen(Interval(10 * score.value, 10 * score.low, 10 * score.high), 10 * guess)
