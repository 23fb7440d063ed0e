"""Cross-fitting: what is fitted to some examples is scored on others."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from finetune.metrics import classification, intervals
from finetune.metrics.catalog import F1, OF_LABELS
from finetune.metrics.classification import Floats, Indices, Probabilities, Truths
from finetune.metrics.intervals import Interval
from finetune.metrics.shared_rows import SharedRows

FOLDS = 10
MICRO_F1 = OF_LABELS[0]
WORTHWHILE = 0.01  # of F1, for another threshold to be recommended


@dataclass(frozen=True)
class CrossFittedThresholds:
    """The threshold of each label with its best F1, and their expected effect on new examples."""

    thresholds: tuple[float, ...]  # fitted to all examples; a half for labels with too few
    f1: Interval  # micro F1, each fold at the thresholds fitted to the other folds
    gain: Interval  # of that over a half for every label, or the most probable class of two

    @property
    def threshold(self) -> float:
        """The only one, if it is that of the positive class of two."""
        return self.thresholds[0]

    @property
    def is_recommended(self) -> bool:
        """True if the gain is worth a choice and is not due to chance."""
        return self.gain.value >= WORTHWHILE and self.gain.low > 0


def assign_folds(strata: Indices | Truths, folds: int, groups: Indices | None = None) -> Indices:
    """Put examples into folds of about equal size, each with its share of each stratum.

    The strata fix the random order: the same examples get the same folds on every machine.

    Args:
        strata: shape (examples,).
        folds: how many.
        groups: examples of a group share a fold; shape (examples,). By default each is its own.

    Returns:
        The fold of each example, from 0; shape (examples,).
    """
    strata = np.asarray(strata, np.int64)
    groups = np.arange(len(strata)) if groups is None else groups
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    order = np.random.default_rng(zlib.crc32(strata.tobytes())).permutation(len(first))
    order = order[np.argsort(strata[first][order], kind="stable")]
    fold_of_group = np.empty(len(first), np.int64)
    fold_of_group[order] = np.arange(len(first)) % folds
    return fold_of_group[group]


def cross_fit_threshold(
    scores: Probabilities, positives: Truths, shared: SharedRows | None = None
) -> CrossFittedThresholds | None:
    """Fit the threshold of the positive class of two, as below; both of shape (examples,)."""
    return cross_fit_thresholds(scores[:, None], positives[:, None], shared)


def cross_fit_thresholds(
    scores: Probabilities, truth: Truths, shared: SharedRows | None = None
) -> CrossFittedThresholds | None:
    """Fit the threshold of the best F1 for each label, and estimate their F1 on new examples.

    The best F1 on the examples that a threshold was fitted to is too good. Here each tenth of the
    examples is answered at the thresholds fitted to the other nine (Stone 1974,
    https://doi.org/10.1111/j.2517-6161.1974.tb00994.x).

    Args:
        scores: probabilities of shape (examples, labels); of one label those of a class.
        truth: which labels the examples have, of the same shape.
        shared: which examples share a sentence; linked ones are never on both sides of a fold.

    Returns:
        None if no label has ten examples, or groups, with it and ten without it.
    """
    exact: Floats = np.asarray(scores, np.float64)
    groups = np.arange(len(exact)) if shared is None else shared.fold_groups(FOLDS)
    labels = [label for label, own in enumerate(truth.T) if _suffices(own, groups)]
    if not labels:
        return None
    fold_of = assign_folds(np.unique(truth, axis=0, return_inverse=True)[1], FOLDS, groups)

    def fit(rows: Truths) -> Floats:
        levels = np.full(truth.shape[1], 0.5)
        for label in labels:
            levels[label] = classification.best_threshold(exact[rows, label], truth[rows, label])
        return levels

    answers = np.empty(truth.shape, bool)
    for fold in range(FOLDS):
        own = fold_of == fold
        answers[own] = exact[own] >= fit(~own)
    one = truth.shape[1] == 1
    plain = exact > 0.5 if one else exact >= 0.5
    fitted, half, true = (
        (each[:, 0] if one else each).astype(np.int64) for each in (answers, plain, truth)
    )
    metric, positive = (F1, 1) if one else (MICRO_F1, None)
    return CrossFittedThresholds(
        tuple(fit(np.ones(len(exact), bool)).tolist()),
        *intervals.score_intervals(fitted, true, [metric], positive, shared).values(),
        *intervals.difference_intervals(fitted, half, true, [metric], positive, shared).values(),
    )


def _suffices(positives: Truths, groups: Indices) -> bool:
    """True if there are ten groups of either class."""
    return all(len(np.unique(groups[positives == value])) >= FOLDS for value in (False, True))
