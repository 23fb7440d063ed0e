"""Is one of two models better? Both have answered the same rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from finetune.metrics import intervals, selection
from finetune.metrics.catalog import Metric
from finetune.metrics.classification import Floats, Truths
from finetune.metrics.intervals import Interval
from finetune.metrics.shared_rows import SharedRows, rows_worth
from finetune.tasks.base import Target, Targets, Task
from finetune.tasks.registry import task_of

_MOST_APART = 50  # rows on which the answers differ most, if they are only near


@dataclass(frozen=True, eq=False)
class Comparison:
    """The answers of a first and a second model to the same rows."""

    # Metric -> of the first model minus of the second, without what picking added to either.
    difference: dict[str, Interval]
    misses: tuple[Floats, Floats]  # of each model, as `misses`; shape (rows,)
    p: float  # McNemar's exact test; the sign test if answers are only near
    has_right: bool  # False if answers are only near
    same_answers: bool  # to all rows
    worth: float  # how many independent rows tell as much about which model is better

    @property
    def first_only(self) -> int:
        """Number of rows that only the first model answers rightly, or more nearly."""
        return int((self.misses[0] < self.misses[1]).sum())

    @property
    def second_only(self) -> int:
        """Number of rows that only the second model answers rightly, or more nearly."""
        return int((self.misses[0] > self.misses[1]).sum())

    @property
    def disagreements(self) -> list[int]:
        """The rows that only one model answers rightly; of near answers those that differ most."""
        apart = np.abs(self.misses[0] - self.misses[1])
        if self.has_right:
            return [*map(int, np.flatnonzero(apart))]
        return [*map(int, np.argsort(-apart, kind="stable")[:_MOST_APART])]

    def is_better(self, metric: Metric) -> bool:
        """Return True if the first model is better by more than chance, by the interval and, of
        right and wrong answers, by the test."""
        gain = self.difference[metric.name]
        surely = min(metric.rank(gain.low), metric.rank(gain.high)) > 0
        return surely and (not self.has_right or self.p < 0.05)


def compare(
    first: Targets,
    second: Targets,
    truth: Targets,
    target: Target,
    metrics: Sequence[Metric],
    shared: SharedRows | None = None,
    bias: Mapping[str, float] | None = None,
) -> Comparison:
    """Compare the answers of two models to the same rows, of shape (rows, ...), by the metrics for
    which answers suffice. `shared`: which rows share a sentence; None if that is unknown. `bias`:
    metric -> what being picked has added to the first model more than to the second."""
    task = task_of(target)
    missed = misses(task, first, truth), misses(task, second, truth)
    meant, added = target.meant, bias or {}
    found = intervals.difference_intervals(first, second, truth, metrics, meant, shared)
    return Comparison(
        {name: selection.lowered(gain, added.get(name, 0.0)) for name, gain in found.items()},
        missed,
        intervals.sign_test(missed[1] - missed[0], shared),
        task.has_right,
        np.array_equal(first, second),
        rows_worth(np.sign(missed[1] - missed[0]), shared),
    )


def may_be_best(
    answers: Targets,
    truth: Targets,
    target: Target,
    metric: Metric,
    shared: SharedRows | None = None,
    bias: Floats | float = 0.0,
) -> Truths:
    """Return which of several models are not shown to be worse than another one by their answers to
    the same rows, of shape (models, rows, ...), as `selection.best_set`. `shared`: which rows share
    a sentence; None if that is unknown. `bias`: what being picked has added to the score of each
    model, more being better."""
    missed = np.stack([misses(task_of(target), each, truth) for each in answers])
    apart = [each for each in missed - missed.mean(axis=0) if each.any()]
    worth = min((rows_worth(each, shared) for each in apart), default=None)
    statistics = selection.statistics([metric], truth, answers, target.meant)
    sampled = selection.bootstrap_scores(statistics[metric.name], worth)
    kept: Truths = selection.best_set(*sampled, bias)
    return kept


def misses(task: Task, answers: Targets, truth: Targets) -> Floats:
    """Return 1 for each wrong answer and 0 for a right one, or how far off it is if answers are
    only near; shape (rows,)."""
    errors = task.errors(answers, truth)
    return np.asarray(errors != 0, np.float64) if task.has_right else errors
