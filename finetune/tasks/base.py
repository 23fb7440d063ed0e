"""The interface of all tasks: a label column becomes targets, and logits become answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from finetune import text_hashes
from finetune.config import RunConfig
from finetune.errors import DataError
from finetune.findings import Finding
from finetune.messages import message as _
from finetune.metrics import catalog, intervals
from finetune.metrics.calibration import Logits
from finetune.metrics.catalog import Metric
from finetune.metrics.classification import Floats
from finetune.metrics.intervals import Interval
from finetune.metrics.modules import ScoreModules
from finetune.metrics.shared_rows import SharedRows
from finetune.tasks.labels import IMPOSSIBLE, LabelledRows, Reading
from finetune.text_hashes import Integers

SINGLE_LABEL = "single_label_classification"  # also of runs that name no task
REGRESSION = "regression"
MULTI_LABEL = "multi_label_classification"
CUT_SCORES = "cut_scores"  # names how a column is read; what is learned is a single label
MISSING_LABEL, LEFT_OUT = -1, -2  # states of rows without a target; rows with one have state 0

# What is learned or answered: class indices or scores of shape (rows,), or 0 and 1 for each label,
# of shape (rows, labels). A row without a target has its state as its class; of a score or labels
# it has nan if its label is missing, and infinity if it is left out.
Targets = NDArray[Any]
Shares = NDArray[np.float32]  # probabilities, or scores


@dataclass(frozen=True)
class Target:
    """The classes, labels or score that a model answers with."""

    names: tuple[str, ...]  # of classes or labels, by index; empty for a score
    positive: int = 1  # of two classes, the index of the one whose scores are reported
    task: str = SINGLE_LABEL
    low: float = 0.0  # of a score, the least and the greatest in training
    high: float = 0.0
    decimal: str = "."  # what precedes decimals of scores where a number does not say it

    @property
    def size(self) -> int:
        """Number of a model's logits: that of the names, or one for a score."""
        return len(self.names) or 1

    @property
    def meant(self) -> int | None:
        """The class whose scores are reported, of two; None if they are means over all."""
        return self.positive if self.size == 2 else None

    @property
    def unsure(self) -> str:
        """The decision where no answer is given; no name of a class."""
        taken = "unsure" in map(str.casefold, self.names)
        return "(unsure)" if taken else "unsure"


def one_stratum(strata: Integers) -> Integers:
    """Return the stratum of each row, or the rarest if it is of several; shape (rows,)."""
    if strata.ndim == 1:
        return strata
    rarity = np.argsort(np.argsort(strata.sum(axis=0), kind="stable"))
    return np.asarray(np.where(strata > 0, rarity, strata.shape[1]).argmin(axis=1))


@dataclass(frozen=True)
class PredictOptions:
    """Options for turning logits into an answer."""

    both_orders: bool = False  # average the probabilities of both orders of the sentences
    threshold: bool = True  # use the threshold saved with the model, if there is one
    calibrated: bool = False  # use the temperature saved with the model


@dataclass(frozen=True)
class SureRule:
    """From which confidence on a model gives an answer, and the bound that this keeps. The
    confidence is the answer's probability in the given order, not calibrated; of several labels the
    probability that all are right."""

    error: float  # at most this share of the given answers is wrong,
    confidence: float  # with this probability
    above: float  # an answer is given if its confidence is greater; 1 for none
    classes: tuple[tuple[str, float], ...] = ()  # classes with such a threshold of their own
    examples: int = 0  # it was found on
    answered: int = 0  # of these
    split: str = "validation"  # of the run, which they are of

    @property
    def coverage(self) -> float:
        """Share of the examples that were answered."""
        return self.answered / max(1, self.examples)


@dataclass(frozen=True)
class DecisionRule:
    """A person's choices for one model; None for a default."""

    threshold: float | None = None  # plain probability from which `positive` is the answer
    temperature: float | None = None  # calibrated probabilities are softmax(logits / temperature)
    positive: str = ""  # name of a class, of two
    margin: float | None = None  # a score's 95% interval is the answer with this on either side
    # Names of labels, each with the probability from which it is given; a half for others.
    thresholds: tuple[tuple[str, float], ...] = ()
    sure: SureRule | None = None  # None if every answer is given

    def threshold_for(self, names: Sequence[str]) -> float | None:
        """Return the threshold; None unless there are two classes, one of them `positive`."""
        return self.threshold if len(names) == 2 and self.positive in names else None

    def under(self, options: PredictOptions) -> Self:
        """Return the rule without the choices that `options` do not use."""
        rule = self if options.calibrated else replace(self, temperature=None)
        return rule if options.threshold else replace(rule, threshold=None, thresholds=())


NO_RULE = DecisionRule()


class Answers(NamedTuple):
    """Answers to several pairs."""

    # Of each class or label, shape (pairs, target.size); (pairs, 0) if the task has none.
    probabilities: Shares
    values: Targets

    def probability_of(self, values: Targets) -> Shares:
        """Return the probability of one class, or of one set of labels if they are independent, for
        each pair; shape (pairs,). nan if the task has no probabilities."""
        shares = self.probabilities
        if not shares.shape[1]:
            return np.full(len(values), np.nan, np.float32)
        if values.ndim == 1:
            return shares[np.arange(len(values)), values]
        own = np.where(values > 0, shares, 1 - shares)
        return np.asarray(own.prod(axis=1, dtype=np.float32))


class Task(Protocol):
    """A kind of problem to learn. What has a body here is the same for most."""

    name: str  # as transformers calls it, if it does
    title: str  # for a person
    metrics: tuple[Metric, ...]  # measured of every run
    headline: Metric  # of these, the one by which models are told apart
    template: str  # name of the page's and the card's templates for its answers and scores
    constant: str  # a name for the best constant answer, as a baseline
    has_right: bool  # True if an answer is right or wrong; a score is only near
    # A `LabelEncoder`, made from the name of a column and the classes that the source names.
    encoder: type[Any]
    left_out: str  # why rows are left out whose label is none of the task's

    # Reading

    def recognises(self, cells: Sequence[Any]) -> bool:
        """Return True if a sample of a label column's cells is plainly of this task."""
        return False

    def cell(self, spellings: Sequence[str], code: Any) -> str:
        """Return a cell as a person wrote it, from the encoder's number; "" if it has none."""

    def read(self, labels: LabelledRows) -> Reading:
        """Decide what is learned of a column."""

    def settle(self, labels: LabelledRows) -> tuple[Any, bool]:
        """Return the reading, adjusted to the splits, and True if the rows must be assigned to
        splits again."""
        return labels.reading, False

    def states(self, targets: Targets) -> Integers:
        """Return 0 for each row that has a target, otherwise `MISSING_LABEL` or `LEFT_OUT`."""
        if targets.dtype.kind != "f":
            return np.asarray(np.minimum(targets, 0), np.int64)
        each = _later_axes(targets)
        missing = np.where(np.isnan(targets).any(axis=each), MISSING_LABEL, 0)
        return np.where(np.isinf(targets).any(axis=each), LEFT_OUT, missing)

    def strata(self, targets: Targets) -> Integers:
        """Return the stratum of each row, from 0, for cutting a validation split; shape (rows,), or
        (rows, strata) of 0 and 1 if a row may be of several."""
        return targets

    def questions(self, labels: LabelledRows) -> list[Finding]:
        """Return what a person must say before a column can be read."""
        return []

    def unlearnable(self, labels: LabelledRows) -> list[Finding]:
        """Return the reason why nothing can be learned of the training rows, if there is one."""
        return []

    def undecided(self, labels: LabelledRows) -> list[Finding]:
        """Return what a person must say of a column that was read."""
        return []

    def blocks(self, labels: LabelledRows) -> list[Finding]:
        """Return the reason why training is impossible, if there is one."""
        none = labels.unknown_changes() or labels.no_rows("train")
        return none or self.unlearnable(labels) or labels.no_rows("validation")

    def problems(self, labels: LabelledRows) -> list[Finding]:
        """Return the reasons why rows cannot be trained on, or the questions to answer first."""
        return self.questions(labels) or [*self.blocks(labels), *self.undecided(labels)]

    def findings(
        self, labels: LabelledRows, train: Targets, constant: Mapping[str, float]
    ) -> Iterator[Finding]:
        """Report what a person should know of a label column. `train`: the targets of the rows to
        train on; `constant`: `constant_scores`, empty if training is not possible."""

    def target(self, labels: LabelledRows) -> Target:
        """Return the target; DataError if the rows cannot be trained on."""
        for problem in self.problems(labels)[:1]:
            see = _("The Data tab shows what was read.")
            raise DataError(problem.title, see if problem.action == IMPOSSIBLE else problem.action)
        return self.make_target(labels)

    def make_target(self, labels: LabelledRows) -> Target:
        """Return the target of rows that can be trained on."""
        return Target(tuple(labels.reading.names), task=self.name)

    def facts(self, target: Target, config: RunConfig) -> dict[str, Any]:
        """Return what a run records of its target, as JSON values."""
        return {}

    def constant_scores(
        self, train: NDArray[Any], validation: NDArray[Any], target: Target,
        metrics: Sequence[Metric],
    ) -> dict[str, float]:  # fmt: skip
        """Return the scores of the best constant answer."""
        answers = np.broadcast_to(self.constant_answer(train, target), validation.shape)
        return self.scores(answers, validation, target, metrics)

    def constant_answer(self, train: Targets, target: Target) -> Any:
        """Return the answer that is best for all training rows."""

    # Training

    def feature(self, target: Target) -> Any:
        """Return the type of the targets in a `datasets.Dataset`."""

    def head(self, target: Target) -> dict[str, Any]:
        """Return the fields of a transformers configuration that describe the outputs."""
        return {
            "id2label": dict(enumerate(target.names)),
            "label2id": {name: index for index, name in enumerate(target.names)},
            "problem_type": self.name,
        }

    def target_of(self, config: Any) -> Target:
        """Return the target of a saved model from its transformers configuration."""
        names = (str(name) for _, name in sorted(config.id2label.items()))
        return Target(tuple(map(text_hashes.replace_surrogates, names)), task=self.name)

    def word_model(self) -> Any:
        """Return a scikit-learn estimator of targets from the features of words."""

    def uses_similarity(self, target: Target) -> bool:
        """Return True if the similarity of two sentences can answer."""
        return False

    def by_similarity(
        self, tuned_on: NDArray[Any], truth: NDArray[Any], similarity: NDArray[Any], target: Target
    ) -> NDArray[Any]:
        """Answer pairs by the similarity of their sentences, shape (pairs,). `tuned_on`, `truth`:
        the similarities of training pairs, shape (pairs,), and their targets."""
        raise TypeError("the similarity of two sentences answers nothing")

    # Answering and scoring

    def spell(self, values: NDArray[Any], target: Target, between: str = ", ") -> list[str]:
        """Return targets or answers as a person reads them, with `between` between labels."""

    def choices(self, target: Target) -> list[str]:
        """Return the answers of which a person can choose one; empty if it is no such choice."""
        return []

    def parse(
        self, cells: Sequence[Any], target: Target, changes: Mapping[str, str] | None = None
    ) -> tuple[Targets, NDArray[np.bool_]]:
        """Read the cells of any file as targets, however they are spelled; shape (rows, ...), and a
        mask of the cells that could be read, shape (rows,). `changes`: `RunConfig.changed_labels`
        of the run, label -> new name; "" leaves rows out."""

    def columns(self, target: Target, rule: DecisionRule) -> dict[str, type]:
        """Return the columns that a prediction adds to a row, each of `str` or `float`; the answer
        first."""
        return {"prediction": str} | {f"probability_{name}": float for name in target.names}

    def cells(self, answers: Answers, target: Target, rule: DecisionRule) -> list[list[Any]]:
        """Return the cells of `columns` for each pair. Labels are joined by semicolons, as such a
        column is read."""
        rounded = answers.probabilities.astype(float).round(6).tolist()
        named = zip(self.spell(answers.values, target, ";"), rounded, strict=True)
        return [[name, *shares] for name, shares in named]

    def counted(self, values: Targets, target: Target) -> Mapping[str, int]:
        """Count how often each answer was given, by its name."""

    def explained_output(self, answers: Answers) -> int:
        """Return the index of the output whose value explains the first of some answers."""
        probabilities = answers.probabilities[0]
        return int(probabilities.argmax()) if len(probabilities) else 0

    def check_targets(self, targets: NDArray[Any], target: Target) -> None:
        """Raise ValueError unless saved targets are of this target."""

    def answers(
        self, logits: Logits, target: Target, rule: DecisionRule = NO_RULE,
        options: PredictOptions | None = None, swapped: Logits | None = None,
    ) -> Answers:  # fmt: skip
        """Turn logits, of shape (pairs, target.size), into answers by a person's choices for the
        model. By default the rule's threshold decides, and both orders are averaged if there are
        `swapped` ones, the logits of the sentences in the other order."""
        options = options or PredictOptions(both_orders=swapped is not None)
        rule = rule.under(options)
        temperature = rule.temperature or 1.0
        outputs = self.outputs(logits, temperature)
        if options.both_orders and swapped is not None:
            outputs = (outputs + self.outputs(swapped, temperature)) / np.float32(2)
        return self.decide(outputs, target, rule)

    def outputs(self, logits: Logits, temperature: float = 1.0) -> Shares:
        """Return the probabilities of classes or labels, or scores; shape (pairs, target.size)."""

    def decide(self, outputs: Shares, target: Target, rule: DecisionRule) -> Answers:
        """Return the answers to `outputs`, which may be the means of both orders."""

    def margins(self, answers: Answers, target: Target, rule: DecisionRule) -> Shares | None:
        """Return how far each of the `answers` by this rule is from changing, from 0 to 1, shape
        (pairs,); None if the task has no such measure."""
        return None

    def plain_answers(self, logits: Logits) -> Targets:
        """Answer by logits alone, of shape (pairs, target.size)."""

    def fitted_rule(self, logits: Logits, truth: Targets, target: Target) -> dict[str, Any]:
        """Return the fields of a `DecisionRule` that every saved model gets, from its logits of the
        validation pairs."""
        return {}

    def score_modules(self, target: Target, metrics: Sequence[Metric]) -> ScoreModules:
        """Load the modules that get each batch's logits and labels."""
        names, classes = [metric.name for metric in metrics], len(target.names)
        return ScoreModules(names, classes, target.positive, self.plain_answers, self.outputs)

    def loss(self, outputs: Any, labels: Any, weights: Any = None, smoothing: float = 0.0) -> Any:
        """Return the loss that is trained on, a tensor: the model's own unless it is changed, by
        weights of the classes or labels or by smoothing."""
        changed = weights is not None or smoothing
        return self.changed_loss(outputs, labels, weights, smoothing) if changed else outputs.loss

    def changed_loss(self, outputs: Any, labels: Any, weights: Any, smoothing: float) -> Any:
        """Return the loss with weights of the classes or labels, or with smoothing."""
        return outputs.loss

    def losses(self, logits: Logits, labels: Targets) -> Floats:
        """Return the loss of each example, whose mean evaluations report; shape (examples,)."""

    def scores(
        self, answers: Targets, truth: Targets, target: Target, metrics: Sequence[Metric]
    ) -> dict[str, float]:
        """Return the metrics for which answers suffice, by name."""
        return catalog.scores(answers, truth, metrics, target.meant)

    def intervals(
        self, answers: Targets, truth: Targets, target: Target, metrics: Sequence[Metric],
        shared: SharedRows | None = None,
    ) -> dict[str, Interval]:  # fmt: skip
        """Return the metrics of `scores` with their 95% confidence intervals, by name. `shared`:
        which rows share a sentence; None if that is unknown."""
        return intervals.score_intervals(answers, truth, metrics, target.meant, shared)

    def errors(self, answers: Targets, truth: Targets) -> Floats:
        """Return how wrong each answer is, from 0 for a right one; shape (examples,). Of labels it
        is the share that is wrongly given or not given."""
        return np.asarray((answers != truth).mean(axis=_later_axes(truth)))

    def details(
        self, logits: Logits, answers: Answers, truth: Targets, target: Target,
        shared: SharedRows | None,
    ) -> Any:  # fmt: skip
        """Return what an evaluation shows besides scores, with the attributes `errors`, the number
        of wrong answers; `always`, the class given to every example although others would be right,
        or None; and `fitted`, a cross-fitted decision rule, or None. `shared`: which examples share
        a sentence; None if the texts are unknown."""


def _later_axes(values: Targets) -> tuple[int, ...]:
    """All axes but that of the rows."""
    return tuple(range(1, values.ndim))
