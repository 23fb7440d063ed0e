"""One class for each example: transformers' `single_label_classification`."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.messages import message
from finetune.metrics import calibration, catalog, classification, selection
from finetune.metrics.calibration import Calibration, Logits, Reliability, probabilities
from finetune.metrics.catalog import MATTHEWS, Metric
from finetune.metrics.classification import ClassScores, Counts, Curve, Floats, ThresholdSweep
from finetune.metrics.selection import CrossFittedThresholds
from finetune.metrics.shared_rows import SharedRows
from finetune.tasks import classes, scores
from finetune.tasks.base import SINGLE_LABEL, Answers, DecisionRule, Shares, Target, Targets
from finetune.tasks.cells import label_text, read_value, to_number
from finetune.tasks.class_findings import ReadsClasses
from finetune.tasks.labels import LabelledRows


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

    def behind_f1(self, positive: int | None) -> int:
        """Number of rows that tell as much of F1 as of a share: those of the positive class, or as
        many of each class as the rarest one has."""
        support = self.confusion.sum(axis=1)
        if len(support) == 2 and positive is not None:
            return int(support[positive])
        return int(support[support > 0].min() * (support > 0).sum())

    @property
    def always(self) -> int | None:
        """The class that it always answers with although others occur; None if there is none."""
        answered, occurring = (self.confusion.sum(axis=axis).nonzero()[0] for axis in (0, 1))
        return int(answered[0]) if len(answered) == 1 < len(occurring) else None


class SingleLabel(ReadsClasses):
    """Answers with the most probable class, or by a threshold."""

    name = SINGLE_LABEL
    title = message("One class for each row")
    metrics: tuple[Metric, ...] = catalog.STANDARD
    headline = catalog.HEADLINE
    template = "classes"
    constant = message("always the commonest answer")
    has_right = True

    def make_target(self, labels: LabelledRows) -> Target:
        names = labels.reading.names
        positive = classes.positive_class(names, labels.config.positive_label)
        return Target(tuple(names), positive, self.name)

    def facts(self, target: Target, config: RunConfig) -> dict[str, Any]:
        plain = classes.is_positive_plain(target.names)
        return {
            "positive_label": target.names[target.positive],
            "positive_assumed": not (config.positive_label or plain),
        }

    def constant_answer(self, train: Targets, target: Target) -> Any:
        """The commonest class, or of several the positive one."""
        counts = np.bincount(train, minlength=target.size)
        most = np.flatnonzero(counts == counts.max())
        return target.positive if target.positive in most else most[0]

    def feature(self, target: Target) -> Any:
        from datasets import ClassLabel

        return ClassLabel(names=list(target.names))

    def word_model(self) -> Any:
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(max_iter=200)

    def uses_similarity(self, target: Target) -> bool:
        return target.size == 2

    def by_similarity(
        self, tuned_on: NDArray[Any], truth: NDArray[Any], similarity: NDArray[Any], target: Target
    ) -> Targets:
        return classification.predict_by_threshold(tuned_on, truth, similarity, target.positive)

    def spell(self, values: NDArray[Any], target: Target, between: str = "") -> list[str]:
        return [target.names[index] for index in values]

    def choices(self, target: Target) -> list[str]:
        return [*target.names]

    def parse(
        self, cells: Sequence[Any], target: Target, changes: Mapping[str, str] | None = None
    ) -> tuple[Targets, NDArray[np.bool_]]:
        """A class may be named by its number, unless a class is called by a number. A number is on
        one side of the cut, if the classes are."""
        index_of = {classes.class_key(name): index for index, name in enumerate(target.names)}
        index_of |= {name: index for index, name in enumerate(target.names)}
        index_of |= {"": index_of[classes.EMPTY]} if classes.EMPTY in index_of else {}
        cut = scores.cut_of(target.names)
        if cut is None and not any(re.fullmatch(r"-?\d+", name) for name in target.names):
            index_of |= {str(index): index for index in range(target.size)}

        def index(text: str) -> int:
            if cut is not None and (number := to_number(text, target.decimal)) is not None:
                return int(np.float32(number) >= np.float32(cut))
            name = classes.changed(text, changes)
            found = index_of.get(name, index_of.get(classes.class_key(name), -1))
            return found if name or not text else -1

        targets = np.array([index(label_text(read_value(cell))) for cell in cells], np.int64)
        return targets, targets >= 0

    def counted(self, values: Targets, target: Target) -> Mapping[str, int]:
        return Counter(self.spell(values, target))

    def explained_output(self, answers: Answers) -> int:
        return int(answers.values[0])

    def check_targets(self, targets: NDArray[Any], target: Target) -> None:
        if targets.ndim != 1 or targets.dtype.kind not in "iu":
            raise ValueError("an index is no whole number")
        if not ((targets >= 0) & (targets < target.size)).all():
            raise ValueError(f"an index is not from 0 to {target.size - 1}")

    def outputs(self, logits: Logits, temperature: float = 1.0) -> Shares:
        return probabilities(logits, temperature)

    def decide(self, outputs: Shares, target: Target, rule: DecisionRule) -> Answers:
        above = self._above_threshold(outputs, target, rule)
        if above is None:
            return Answers(outputs, self.plain_answers(outputs))
        positive = target.names.index(rule.positive)
        return Answers(outputs, np.where(above >= 0, positive, 1 - positive))

    def _above_threshold(self, shares: Logits, target: Target, rule: DecisionRule) -> Floats | None:
        """Return the positive class's probabilities minus the threshold; None if there is none."""
        if (level := rule.threshold_for(target.names)) is None:
            return None
        temperature = rule.temperature or 1.0
        if temperature != 1:  # the calibrated probability at which the plain one is the threshold
            odds = math.log(level / (1 - level))
            level = 1 / (1 + math.exp(-odds / temperature))
        # As float32 the threshold would be rounded.
        positive = target.names.index(rule.positive)
        return np.asarray(shares[:, positive].astype(np.float64) - level)

    def margins(self, answers: Answers, target: Target, rule: DecisionRule) -> Shares | None:
        shares = answers.probabilities
        above = self._above_threshold(shares, target, rule)
        if above is not None:
            return np.asarray(np.minimum(1, 2 * np.abs(above)), np.float32)
        second, first = np.partition(shares, -2, axis=1)[:, -2:].T
        return np.asarray(first - second, np.float32)

    def plain_answers(self, logits: Logits) -> Targets:
        return np.asarray(logits.argmax(axis=1), np.int64)

    def changed_loss(self, outputs: Any, labels: Any, weights: Any, smoothing: float) -> Any:
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs.logits.float(), labels, weights, label_smoothing=smoothing)

    def losses(self, logits: Logits, labels: Targets) -> Floats:
        scores = logits.astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        own = scores[np.arange(len(labels)), labels]
        return np.asarray(np.log(np.exp(scores).sum(axis=1)) - own)

    def details(
        self, logits: Logits, answers: Answers, truth: Targets, target: Target,
        shared: SharedRows | None,
    ) -> ClassDetails:  # fmt: skip
        shares, values = answers
        confusion = classification.confusion_matrix(truth, values, target.size)
        curves, sweep, fitted = None, None, None
        if target.size == 2:
            scores, positives = shares[:, target.positive], truth == target.positive
            curves = classification.ranking_curves(scores, positives)
            sweep = classification.threshold_sweep(scores, positives)
            columns = scores[:, None], positives[:, None]
            fitted = selection.cross_fit_thresholds(*columns, shared)
        roc, precision_recall = curves or (None, None)
        most_probable = shares.argmax(axis=1)
        return ClassDetails(
            confusion=confusion,
            classes=classification.class_scores(confusion),
            matthews=catalog.scores(values, truth, [MATTHEWS])[MATTHEWS.name],
            roc=roc,
            precision_recall=precision_recall,
            sweep=sweep,
            fitted=fitted,
            reliability=calibration.reliability(shares.max(axis=1), most_probable == truth),
            calibration=calibration.calibrate(logits, truth),
        )
