"""Details of an evaluation of several labels: each label's scores and errors, and which ones occur
together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finetune.metrics import intervals, selection
from finetune.metrics.classification import Counts
from finetune.metrics.intervals import Interval
from finetune.metrics.selection import CrossFittedThresholds
from finetune.metrics.shared_rows import SharedRows, rows_worth
from finetune.tasks.base import Targets

RARE = 10  # examples; of a label with fewer, no score says much


@dataclass(frozen=True)
class LabelScores:
    """The scores of one label."""

    precision: Interval  # nan if it was never given
    recall: Interval  # nan if it does not occur
    f1: Interval
    support: int  # examples that have it
    given: int  # examples that it was given to
    missed: int  # examples that have it and were not given it
    wrong: int  # examples that were given it and do not have it


@dataclass(frozen=True)
class LabelDetails:
    """The figures of a model that answers with labels, besides those that every task has."""

    labels: list[LabelScores]
    together: Counts  # examples that have both labels, or on the diagonal the one
    # Examples that have a label (row) which was missed, and were given another (column) wrongly.
    confused: Counts
    rare: list[int]  # labels of fewer than ten examples
    mean_labels: tuple[float, float]  # of an example, and of an answer
    thresholds: CrossFittedThresholds | None  # None if every label has too few examples
    errors: int  # examples of which a label is wrong or missing
    always: None = None
    fitted: None = None


def measure_details(
    answers: Targets, shares: NDArray[np.floating], truth: Targets, shared: SharedRows | None
) -> LabelDetails:
    """Measure the details of answers.

    Args:
        answers, truth: 0 and 1, of shape (examples, labels).
        shares: the probability of each label, of the same shape.
        shared: which examples share a sentence; linked ones stay together in cross-fitting.
    """
    given, true = answers > 0, truth > 0
    missed, wrong = (part.astype(np.float64) for part in (true & ~given, given & ~true))
    whole = true.astype(np.float64)
    support = true.sum(axis=0)
    labels = []
    counts = np.array([(given & true).sum(axis=0), given.sum(axis=0), support])
    for label, (hits, called, meant) in enumerate(counts.T.tolist()):
        part = rows_worth(given[:, label] != true[:, label], shared) / len(true)

        def share_of(all_of_them: int, hits: int = hits, part: float = part) -> Interval:
            return intervals.wilson_interval(hits * part, all_of_them * part)

        # F1 is 2 J / (1 + J), where J is the share of hits among what is of the label or given it.
        share = share_of(called + meant - hits)
        value, low, high = (2 * end / (1 + end) for end in (share.value, share.low, share.high))
        labels.append(
            LabelScores(
                precision=share_of(called),
                recall=share_of(meant),
                f1=Interval(value, low, high),
                support=meant,
                given=called,
                missed=meant - hits,
                wrong=called - hits,
            )
        )
    return LabelDetails(
        labels=labels,
        together=(whole.T @ whole).astype(np.int64),
        confused=(missed.T @ wrong).astype(np.int64),
        rare=np.flatnonzero(support < RARE).tolist(),
        mean_labels=(float(true.sum(axis=1).mean()), float(given.sum(axis=1).mean())),
        thresholds=selection.cross_fit_thresholds(shares, true, shared),
        errors=int((given != true).any(axis=1).sum()),
    )
