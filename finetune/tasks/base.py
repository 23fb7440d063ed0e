"""The interface of all tasks: a label column becomes targets, and logits become answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.findings import Finding, RowsFinding
from finetune.metrics.calibration import Logits
from finetune.metrics.catalog import Metric
from finetune.metrics.classification import Floats, Indices
from finetune.metrics.intervals import Interval
from finetune.metrics.modules import ScoreModules
from finetune.text_hashes import Integers

if TYPE_CHECKING:
    import torch

SINGLE_LABEL = "single_label_classification"  # also of runs that name no task
MISSING_LABEL, LEFT_OUT = -1, -2  # states of rows without a target; rows with one have state 0


@dataclass(frozen=True)
class Target:
    """The classes, labels or score that a model answers with."""

    names: tuple[str, ...]  # of classes or labels, by index; empty for a score
    positive: int = 1  # of two classes, the index of the one whose scores are reported
    task: str = SINGLE_LABEL

    @property
    def size(self) -> int:
        """Number of a model's logits: that of the names, or one for a score."""
        return len(self.names) or 1


class TargetEncoder(Protocol):
    """Turns the cells of a label column into numbers while the rows are read."""

    spellings: list[str]  # what the numbers stand for, if they are not the values themselves
    no_labels: NDArray[Any]  # an array of no rows, with the dtype and shape of a column's numbers

    def code(self, cell: Any) -> Any:
        """Return a cell as numbers. Raises DataError if the column cannot be learned."""


class Reading(Protocol):
    """A task's interpretation of a label column."""

    @property
    def names(self) -> list[str]:
        """The names of classes or labels, by index; none for a score."""

    def targets(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Return what is learned of rows, from the encoder's numbers; shape (rows, ...)."""


@dataclass(frozen=True)
class LabelColumn:
    """A label column as an encoder has read it."""

    name: str
    source: str  # the name of the whole source
    spellings: Sequence[str]
    named: bool  # True if the source itself names the classes
    codes: Mapping[str, NDArray[Any]]  # split of the source -> the encoder's numbers


@dataclass(frozen=True)
class LabelledRows:
    """The rows of each split, and what the task made of their labels."""

    column: LabelColumn
    reading: Any
    # Split -> the source's split, and indices into it; before a maximum leaves out some.
    rows: Mapping[str, tuple[str, Integers]]

    def of(self, split: str) -> NDArray[Any]:
        """Return the targets of a split, shape (rows, ...)."""
        source_split, rows = self.rows[split]
        targets: NDArray[Any] = self.reading.targets(self.column.codes[source_split][rows])
        return targets


@dataclass(frozen=True)
class DecisionRule:
    """A person's choices for one model; None for a default."""

    threshold: float | None = None  # plain probability from which `positive` is the answer
    temperature: float | None = None  # calibrated probabilities are softmax(logits / temperature)
    positive: str = ""  # name of a class, of two

    def threshold_for(self, names: Sequence[str]) -> float | None:
        """Return the threshold; None unless there are two classes, one of them `positive`."""
        return self.threshold if len(names) == 2 and self.positive in names else None


NO_RULE = DecisionRule()


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

    def probability_of(self, values: Indices) -> NDArray[np.float32]:
        """Return the probability of one class for each pair, of shape (pairs,)."""
        return self.probabilities[np.arange(len(values)), values]


class Task(Protocol):
    """A kind of problem to learn. Arrays of answers and of truth have the shape (examples,)."""

    name: str
    title: str  # for a person
    metrics: tuple[Metric, ...]  # measured of every run
    headline: Metric  # of these, the one by which models are told apart
    constant: str  # a name for the best constant answer, as a baseline
    has_own_loss: bool  # True if the loss is not the one that transformers computes for its head

    # Reading

    def recognises(self, cells: Sequence[Any]) -> bool:
        """Return True if a sample of a label column's cells is plainly of this task."""

    def encoder(self, column: str, names: Sequence[str] = ()) -> TargetEncoder:
        """Return an encoder for a column; `names` are the classes that the source names."""

    def cell(self, spellings: Sequence[str], code: Any) -> str:
        """Return a cell as a person wrote it, from the encoder's number; "" if it has none."""

    def read(self, column: LabelColumn, config: RunConfig) -> Reading:
        """Decide what is learned of a column."""

    def settle(self, labels: LabelledRows, config: RunConfig) -> tuple[Any, bool]:
        """Return the reading, adjusted to the splits, and True if the rows must be assigned to
        splits again."""

    def states(self, targets: NDArray[Any]) -> Integers:
        """Return 0 for each row that has a target, otherwise `MISSING_LABEL` or `LEFT_OUT`."""

    def strata(self, targets: NDArray[Any]) -> Integers:
        """Return the stratum of each row, an integer from 0, for cutting a validation split."""

    def count(self, targets: NDArray[Any], names: Sequence[str]) -> list[int]:
        """Return the rows of each class or label."""

    def problems(self, labels: LabelledRows, config: RunConfig) -> list[Finding | RowsFinding]:
        """Return the reasons why rows cannot be trained on, or the questions to answer first."""

    def findings(
        self, labels: LabelledRows, config: RunConfig, train: NDArray[Any],
        constant: Mapping[str, float],
    ) -> Iterator[Finding | RowsFinding]:  # fmt: skip
        """Report what a person should know of a label column.

        Args:
            train: the targets of the rows to train on.
            constant: the scores of `constant_scores`; empty if training is not possible.
        """

    def target(self, labels: LabelledRows, config: RunConfig) -> Target:
        """Return the target; DataError if the rows cannot be trained on."""

    def facts(self, target: Target, config: RunConfig) -> dict[str, Any]:
        """Return what a run records of its target, as JSON values."""

    def constant_scores(
        self, train: NDArray[Any], validation: NDArray[Any], target: Target,
        metrics: Sequence[Metric],
    ) -> dict[str, float]:  # fmt: skip
        """Return the scores of the best constant answer."""

    # Training

    def feature(self, target: Target) -> Any:
        """Return the type of the targets in a `datasets.Dataset`."""

    def head(self, target: Target) -> dict[str, Any]:
        """Return the fields of a transformers configuration that describe the outputs."""

    def target_of(self, config: Any) -> Target:
        """Return the target of a saved model from its transformers configuration."""

    def word_model(self) -> Any:
        """Return a scikit-learn estimator of targets from the features of words."""

    def uses_similarity(self, target: Target) -> bool:
        """Return True if the similarity of two sentences can answer."""

    def by_similarity(
        self, tuned_on: NDArray[Any], truth: NDArray[Any], similarity: NDArray[Any], target: Target
    ) -> NDArray[Any]:
        """Answer by the similarity of two sentences.

        Args:
            tuned_on, truth: the similarities of training pairs, shape (pairs,), and their targets.
            similarity: of the pairs to answer, shape (pairs,).
        """

    # Answering and scoring

    def spell(self, values: NDArray[Any], target: Target) -> list[str]:
        """Return targets or answers as a person reads them."""

    def check_targets(self, targets: NDArray[Any], target: Target) -> None:
        """Raise ValueError unless saved targets are of this target."""

    def answers(
        self,
        logits: Logits,
        target: Target,
        rule: DecisionRule = NO_RULE,
        options: PredictOptions | None = None,
        swapped: Logits | None = None,
    ) -> Answers:
        """Turn logits into answers.

        Args:
            logits: shape (pairs, target.size).
            rule: a person's choices for the model; none by default.
            options: by default the rule's threshold decides, and both orders are averaged if
                `swapped` is given.
            swapped: logits of the sentences in the other order; None for single sentences.
        """

    def margins(
        self, answers: Answers, target: Target, rule: DecisionRule, options: PredictOptions
    ) -> NDArray[np.float32] | None:
        """Return how far each answer is from changing, from 0 to 1, shape (pairs,).

        None if the task has no such measure.

        Args:
            answers: the result of the method `answers` for the same rule and options.
        """

    def plain_answers(self, scores: Logits) -> NDArray[np.int64]:
        """Answer by logits or probabilities alone; their shape is (pairs, target.size)."""

    def score_modules(self, target: Target, metrics: Sequence[Metric]) -> ScoreModules:
        """Load the modules that get each batch's logits and labels."""

    def loss(
        self,
        outputs: Any,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
        smoothing: float = 0.0,
    ) -> torch.Tensor:
        """Return the loss that is trained on: the model's own unless it is changed."""

    def losses(self, logits: Logits, labels: Indices) -> Floats:
        """Return the loss of each example, whose mean evaluations report; shape (examples,)."""

    def scores(
        self, answers: Indices, truth: Indices, target: Target, metrics: Sequence[Metric]
    ) -> dict[str, float]:
        """Return the metrics for which answers suffice, by name."""

    def intervals(
        self, answers: Indices, truth: Indices, target: Target, metrics: Sequence[Metric]
    ) -> dict[str, Interval]:
        """Return the metrics of `scores` with their 95% confidence intervals, by name."""

    def right(self, answers: Indices, truth: Indices) -> NDArray[np.bool_]:
        """Return which answers are right."""

    def difference(
        self, first: Indices, second: Indices, truth: Indices, target: Target,
        metrics: Sequence[Metric],
    ) -> dict[str, Interval]:  # fmt: skip
        """Return the metrics of the first answers minus those of the second, by name, with their
        95% intervals."""

    def details(
        self, logits: Logits, answers: Answers, truth: Indices, target: Target,
        groups: Integers | None,
    ) -> Any:  # fmt: skip
        """Return what an evaluation shows besides scores.

        The result has the attributes `errors`, the number of wrong answers, and `always`, the
        answer given to every example although others would be right, or None.

        Args:
            groups: the group of each example, equal for examples that share a sentence; None if the
                texts are unknown.
        """
