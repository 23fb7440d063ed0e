"""Details of an evaluation of classes, besides scores: errors, curves, the threshold, and how far
probabilities can be trusted."""

from __future__ import annotations

from dataclasses import dataclass

from finetune.metrics import calibration, catalog, classification, selection
from finetune.metrics.calibration import Calibration, Logits, Reliability
from finetune.metrics.classification import (
    ClassScores,
    Counts,
    Curve,
    Indices,
    Probabilities,
    ThresholdSweep,
)
from finetune.metrics.selection import CrossFittedThresholds
from finetune.metrics.shared_rows import SharedRows
from finetune.tasks.base import Target


@dataclass(frozen=True)
class ClassDetails:
    """The figures of a classifier, besides those that every task has."""

    confusion: Counts  # a row a true class, a column an answer
    classes: list[ClassScores]
    matthews: float  # Matthews' correlation, -1 to 1
    roc: Curve | None  # of the positive class of two; None too if one class is missing
    precision_recall: Curve | None
    sweep: ThresholdSweep | None  # the scores at every threshold; for two classes
    fitted: CrossFittedThresholds | None  # the best threshold; None for few examples
    reliability: Reliability  # of the most probable class, as the model is
    calibration: Calibration  # after temperature scaling

    @property
    def errors(self) -> int:
        """Number of wrong answers."""
        return int(self.confusion.sum() - self.confusion.trace())

    @property
    def always(self) -> int | None:
        """The class that it always answers with although others occur; None if there is none."""
        answered, occurring = (self.confusion.sum(axis=axis).nonzero()[0] for axis in (0, 1))
        return int(answered[0]) if len(answered) == 1 < len(occurring) else None


def measure_details(
    logits: Logits,
    shares: Probabilities,
    answers: Indices,
    truth: Indices,
    target: Target,
    shared: SharedRows | None,
) -> ClassDetails:
    """Measure the details of answers.

    Args:
        logits, shares: of shape (examples, classes); `shares` are probabilities.
        answers, truth: of shape (examples,).
        shared: which examples share a sentence; linked ones stay together in cross-fitting.
    """
    confusion = classification.confusion_matrix(truth, answers, target.size)
    curves, sweep, fitted = None, None, None
    if target.size == 2:
        scores, positives = shares[:, target.positive], truth == target.positive
        curves = classification.ranking_curves(scores, positives)
        sweep = classification.threshold_sweep(scores, positives)
        fitted = selection.cross_fit_threshold(scores, positives, shared)
    roc, precision_recall = curves or (None, None)
    most_probable = shares.argmax(axis=1)
    return ClassDetails(
        confusion=confusion,
        classes=classification.class_scores(confusion),
        matthews=catalog.MATTHEWS.score(confusion),
        roc=roc,
        precision_recall=precision_recall,
        sweep=sweep,
        fitted=fitted,
        reliability=calibration.reliability(shares.max(axis=1), most_probable == truth),
        calibration=calibration.calibrate(logits, truth),
    )
