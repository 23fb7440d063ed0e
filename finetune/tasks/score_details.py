"""Details of an evaluation of scores: answers against the truth, and how far off they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finetune.metrics.classification import Counts, Floats
from finetune.metrics.example_metrics import conformal_margin
from finetune.tasks.base import Targets
from finetune.text_hashes import Integers

_BINS = 20  # of answers, of true scores, and of errors
_WORST = 20


@dataclass(frozen=True)
class ScoreBin:
    """The examples whose true score lies from `low` up to `high`."""

    low: float
    high: float
    count: int  # at least 1
    answer: float  # their mean answer
    error: float  # their mean absolute error


@dataclass(frozen=True)
class ScoreDetails:
    """The figures of a model that answers with scores, besides those that every task has.

    An error is the answer minus the true score.
    """

    edges: Floats  # of equal bins that hold all answers and true scores, shape (21,)
    density: Counts  # examples by true score (row) and answer (column), shape (20, 20)
    error_edges: Floats  # of equal bins of errors, shape (21,)
    error_counts: Counts  # examples by error, shape (20,)
    bins: list[ScoreBin]  # by quartiles of the true score
    worst: Integers  # rows of the largest errors, the largest first
    bias: float  # the mean error
    # The true score rises by so much where the answer rises by 1; below 1 answers are too extreme.
    slope: float
    margin: float | None  # 95% of new answers lie within it of the true score; None of too few
    errors: int  # answers that are not exactly the true score
    always: None = None
    fitted: None = None


def measure_details(answers: Targets, truth: Targets) -> ScoreDetails:
    """Measure the details of answers, both of shape (examples,)."""
    answered, true = (np.asarray(values, np.float64) for values in (answers, truth))
    errors = answered - true
    everything = np.concatenate([answered, true])
    edges = np.histogram_bin_edges(everything, _BINS)
    density = np.histogram2d(true, answered, (edges, edges))[0].astype(np.int64)
    counts, error_edges = np.histogram(errors, _BINS)
    spread = answered.var()
    return ScoreDetails(
        edges=edges,
        density=density,
        error_edges=error_edges,
        error_counts=counts,
        bins=_bins(answered, true),
        worst=np.argsort(-np.abs(errors), kind="stable")[:_WORST],
        bias=float(errors.mean()),
        slope=float(np.mean((answered - answered.mean()) * true) / spread) if spread else 0.0,
        margin=conformal_margin(errors),
        errors=int((errors != 0).sum()),
    )


def _bins(answers: Floats, truth: Floats) -> list[ScoreBin]:
    edges = np.unique(np.quantile(truth, [0.25, 0.5, 0.75], method="lower"))
    bin_of = np.searchsorted(edges, truth)
    found = []
    for index in np.unique(bin_of):
        members = bin_of == index
        own, off = truth[members], np.abs(answers - truth)[members]
        mean = float(answers[members].mean())
        found.append(
            ScoreBin(float(own.min()), float(own.max()), len(own), mean, float(off.mean()))
        )
    return found
