"""Any number of labels for each example: transformers' `multi_label_classification`.

The best model is chosen by micro F1: a label of a few rows moves macro F1 by much with each answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.messages import message
from finetune.metrics import catalog, intervals, selection
from finetune.metrics.calibration import Logits
from finetune.metrics.catalog import Metric
from finetune.metrics.classification import Counts, Floats
from finetune.metrics.intervals import Interval
from finetune.metrics.selection import CrossFittedThresholds
from finetune.metrics.shared_rows import SharedRows, rows_worth
from finetune.tasks.base import MULTI_LABEL, Answers, DecisionRule, Shares, Target, Targets
from finetune.tasks.label_lists import ReadsLists
from finetune.text_hashes import Integers

_HALF = 0.5  # the probability from which a label is given, if no other is kept with the model
_RARE = 10  # examples; of a label with fewer, no score says much


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


def _scores(
    given: NDArray[np.bool_], true: NDArray[np.bool_], shared: SharedRows | None
) -> LabelScores:
    """The scores of one label; shapes (rows,)."""
    hits, called, meant = (int(rows.sum()) for rows in (given & true, given, true))
    part = rows_worth(given != true, shared) / len(true)
    # F1 is 2 J / (1 + J), where J is the share of hits among what is of it or given it.
    precision, recall, share = (
        intervals.wilson_interval(hits * part, rows * part)
        for rows in (called, meant, called + meant - hits)
    )
    value, low, high = (2 * end / (1 + end) for end in (share.value, share.low, share.high))
    f1 = Interval(value, low, high)
    return LabelScores(precision, recall, f1, meant, called, meant - hits, called - hits)


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


class MultiLabel(ReadsLists):
    """Answers with each label whose probability reaches its threshold."""

    name = MULTI_LABEL
    title = message("Any number of labels for each row")
    metrics: tuple[Metric, ...] = catalog.OF_LABELS
    headline = catalog.OF_LABELS[0]
    template = "labels"
    constant = message("always the commonest labels")
    has_right = True

    def strata(self, targets: Targets) -> Integers:
        """One for each label, and one of the rows without any."""
        return np.column_stack([targets > 0, ~(targets > 0).any(axis=1)]).astype(np.int64)

    def constant_answer(self, train: Targets, target: Target) -> Any:
        """As many of the commonest labels as are best on the training rows."""
        order, best = np.argsort(-train.sum(axis=0), kind="stable"), (-1.0, 0)
        for most in range(1, target.size + 1):
            given = train[:, order[:most]].sum()
            score = 2 * given / (most * len(train) + train.sum())  # micro F1
            best = max(best, (float(score), most))
        return np.isin(np.arange(target.size), order[: best[1]]).astype(train.dtype)

    def feature(self, target: Target) -> Any:
        from datasets import List, Value

        return List(Value("float32"), length=target.size)

    def word_model(self) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.multiclass import OneVsRestClassifier

        return OneVsRestClassifier(LogisticRegression(max_iter=200))

    def spell(self, values: Targets, target: Target, between: str = ", ") -> list[str]:
        """A row without labels is an empty text."""
        return [between.join(target.names[at] for at in np.flatnonzero(row)) for row in values]

    def counted(self, values: Targets, target: Target) -> Mapping[str, int]:
        counts = (int(rows) for rows in values.sum(axis=0, dtype=np.int64))
        return dict(zip(target.names, counts, strict=True))

    def check_targets(self, targets: Targets, target: Target) -> None:
        if targets.ndim != 2 or targets.shape[1] != target.size:
            raise ValueError(f"there are not {target.size} labels")
        if not np.isin(targets, (0, 1)).all():
            raise ValueError("a label is neither 0 nor 1")

    def outputs(self, logits: Logits, temperature: float = 1.0) -> Shares:
        from scipy.special import expit

        return np.asarray(expit(np.asarray(logits, np.float32)))

    def decide(self, outputs: Shares, target: Target, rule: DecisionRule) -> Answers:
        return Answers(outputs, _given(outputs, _levels(target, rule)))

    def margins(self, answers: Answers, target: Target, rule: DecisionRule) -> Shares | None:
        away = np.abs(answers.probabilities - _levels(target, rule)).min(axis=1)
        return np.asarray(np.minimum(1, 2 * away), np.float32)

    def plain_answers(self, logits: Logits) -> Targets:
        return _given(self.outputs(logits), _HALF)

    def changed_loss(self, outputs: Any, labels: Any, weights: Any, smoothing: float) -> Any:
        from torch.nn.functional import binary_cross_entropy_with_logits

        aims = labels * (1 - smoothing) + smoothing / 2
        return binary_cross_entropy_with_logits(outputs.logits.float(), aims, weights)

    def losses(self, logits: Logits, labels: Targets) -> Floats:
        scores = np.asarray(logits, np.float64)
        return np.asarray((np.logaddexp(0, scores) - labels * scores).mean(axis=1))

    def details(
        self, logits: Logits, answers: Answers, truth: Targets, target: Target,
        shared: SharedRows | None,
    ) -> LabelDetails:  # fmt: skip
        shares = self.outputs(logits)  # those of the given order, without kept thresholds
        given, true = answers.values > 0, truth > 0
        missed, wrong = (part.astype(np.float64) for part in (true & ~given, given & ~true))
        whole = true.astype(np.float64)
        return LabelDetails(
            labels=[_scores(*of_label, shared) for of_label in zip(given.T, true.T, strict=True)],
            together=(whole.T @ whole).astype(np.int64),
            confused=(missed.T @ wrong).astype(np.int64),
            rare=np.flatnonzero(true.sum(axis=0) < _RARE).tolist(),
            mean_labels=(float(true.sum(axis=1).mean()), float(given.sum(axis=1).mean())),
            thresholds=selection.cross_fit_thresholds(shares, true, shared),
            errors=int((given != true).any(axis=1).sum()),
        )


def _levels(target: Target, rule: DecisionRule) -> Floats:
    """The threshold of each label, shape (labels,)."""
    kept = dict(rule.thresholds)
    return np.array([kept.get(name, _HALF) for name in target.names])


def _given(shares: Shares, levels: Floats | float) -> NDArray[np.int8]:
    return (shares.astype(np.float64) >= levels).astype(np.int8)
