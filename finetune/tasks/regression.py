"""One score for each example: transformers' `regression` with one output; and scores cut into two
classes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.errors import DataError
from finetune.findings import Finding, Remedy
from finetune.messages import message
from finetune.metrics import catalog
from finetune.metrics.calibration import Logits, conformal_margin
from finetune.metrics.catalog import Metric
from finetune.metrics.classification import Counts, Floats
from finetune.metrics.shared_rows import SharedRows
from finetune.tasks import base, class_findings, scores
from finetune.tasks.base import Answers, DecisionRule, Shares, Target, Targets
from finetune.tasks.cells import read_value, to_number
from finetune.tasks.labels import LabelledRows, answered, impossible
from finetune.tasks.scores import ReadsScores, Scores
from finetune.tasks.single_label import SingleLabel
from finetune.text_hashes import Integers

_BINS, _BIN_ROWS = 10, 50  # parts of a scale and strata of a cut, and rows of each at least
_DRAWN = 20  # bins of answers, of true scores, and of errors


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
    bias: float  # the mean error
    # The true score rises by so much where the answer rises by 1; below 1 answers are too extreme.
    slope: float
    margin: float | None  # 95% of new answers lie within it of the true score; None of too few
    errors: int  # answers that are not exactly the true score
    always: None = None
    fitted: None = None


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


class Regression(ReadsScores):
    """Answers with a score, on the scale of the data: the model's only output as it is."""

    name = base.REGRESSION
    title = message("A score for each row")
    metrics: tuple[Metric, ...] = catalog.OF_SCORES
    headline = catalog.OF_SCORES[0]
    template = "score"
    constant = message("always the mean")
    has_right = False

    def read(self, labels: LabelledRows) -> Scores:
        return scores.read_scores(labels)

    def strata(self, targets: Targets) -> Integers:
        bins = min(_BINS, max(1, len(targets) // _BIN_ROWS))
        if not len(targets):
            return np.zeros(0, np.int64)
        edges = np.unique(np.quantile(targets, np.arange(1, bins) / bins))
        return np.searchsorted(edges, targets)

    def unlearnable(self, labels: LabelledRows) -> list[Finding]:
        train = labels.of("train")
        if train.min() < train.max():
            return []
        count, score = len(train), scores.spell(train[0])
        text = message(
            "All {count:,} training rows have one score, {score}.", count=count, score=score
        )
        return impossible(text, "constant")

    def make_target(self, labels: LabelledRows) -> Target:
        train = labels.of("train")
        low, high = (float(scores.spell(end)) for end in (train.min(), train.max()))
        return Target((), task=self.name, low=low, high=high, decimal=labels.reading.decimal)

    def facts(self, target: Target, config: RunConfig) -> dict[str, Any]:
        return {"low": target.low, "high": target.high, "decimal": target.decimal}

    def constant_answer(self, train: Targets, target: Target) -> Any:
        return np.mean(train, dtype=np.float64)

    def feature(self, target: Target) -> Any:
        from datasets import Value

        return Value("float32")

    def head(self, target: Target) -> dict[str, Any]:
        # Otherwise a CrossEncoder would put a sigmoid behind the only output.
        activation = {"activation_fn": "torch.nn.modules.linear.Identity"}
        head = super().head(replace(target, names=("score",)))
        return {**head, "sentence_transformers": activation}

    def target_of(self, config: Any) -> Target:
        return Target((), task=self.name)

    def word_model(self) -> Any:
        from sklearn.linear_model import Ridge

        return Ridge()

    def uses_similarity(self, target: Target) -> bool:
        return True

    def by_similarity(
        self, tuned_on: NDArray[Any], truth: Targets, similarity: NDArray[Any], target: Target
    ) -> Targets:
        from sklearn.linear_model import LinearRegression

        model = LinearRegression().fit(tuned_on[:, None], truth)
        return np.asarray(model.predict(similarity[:, None]))

    def spell(self, values: Targets, target: Target, between: str = "") -> list[str]:
        return [scores.spell(value) for value in values]

    def parse(
        self, cells: Sequence[Any], target: Target, changes: Mapping[str, str] | None = None
    ) -> tuple[Targets, NDArray[np.bool_]]:
        """A number that can be read in two ways is read as those that were trained on, and -1 is no
        score if these begin at 0 or above."""
        values = [to_number(read_value(cell), target.decimal) for cell in cells]
        numbers = np.array([np.nan if value is None else value for value in values], np.float32)
        no_score = (numbers == -1) & (0 <= target.low < target.high)
        return numbers, np.isfinite(numbers) & ~no_score

    def columns(self, target: Target, rule: DecisionRule) -> dict[str, type]:
        ends = ("prediction_low", "prediction_high") if rule.margin is not None else ()
        return dict.fromkeys(("prediction", *ends), float)

    def cells(self, answers: Answers, target: Target, rule: DecisionRule) -> list[list[Any]]:
        values = answers.values.astype(np.float64)
        margin = rule.margin
        columns = [values]
        if margin is not None:  # an interval ends where the scale ends, or at an answer beyond
            lows = np.minimum(values, np.maximum(values - margin, target.low))
            columns += [lows, np.maximum(values, np.minimum(values + margin, target.high))]
        return [[float(scores.spell(value)) for value in row] for row in np.transpose(columns)]

    def counted(self, values: Targets, target: Target) -> Mapping[str, int]:
        edges = np.linspace(target.low, target.high, _BINS + 1)
        inside = np.clip(values.astype(np.float64), target.low, target.high)
        counts = np.histogram(inside, edges)[0].tolist()
        names = (f"{low:.3g} \u2013 {high:.3g}" for low, high in pairwise(edges.tolist()))
        return dict(zip(names, counts, strict=True)) if target.low < target.high else {}

    def check_targets(self, targets: Targets, target: Target) -> None:
        if targets.ndim != 1 or targets.dtype.kind != "f" or not np.isfinite(targets).all():
            raise ValueError("a score is no number")

    def outputs(self, logits: Logits, temperature: float = 1.0) -> Shares:
        return np.asarray(logits, np.float32)

    def decide(self, outputs: Shares, target: Target, rule: DecisionRule) -> Answers:
        return Answers(np.zeros((len(outputs), 0), np.float32), outputs[:, 0])

    def plain_answers(self, logits: Logits) -> Targets:
        return self.outputs(logits)[:, 0]

    def fitted_rule(self, logits: Logits, truth: Targets, target: Target) -> dict[str, Any]:
        return {"margin": conformal_margin(self.plain_answers(logits) - truth)}

    def losses(self, logits: Logits, labels: Targets) -> Floats:
        return self.errors(self.plain_answers(logits), labels) ** 2

    def errors(self, answers: Targets, truth: Targets) -> Floats:
        return np.abs(np.asarray(answers, np.float64) - truth)

    def details(
        self, logits: Logits, answers: Answers, truth: Targets, target: Target,
        shared: SharedRows | None,
    ) -> ScoreDetails:  # fmt: skip
        answered, true = (np.asarray(values, np.float64) for values in (answers.values, truth))
        errors = answered - true
        edges = np.histogram_bin_edges(np.concatenate([answered, true]), _DRAWN)
        density = np.histogram2d(true, answered, (edges, edges))[0].astype(np.int64)
        counts, error_edges = np.histogram(errors, _DRAWN)
        spread = answered.var()
        return ScoreDetails(
            edges=edges,
            density=density,
            error_edges=error_edges,
            error_counts=counts,
            bins=_bins(answered, true),
            bias=float(errors.mean()),
            slope=float(np.mean((answered - answered.mean()) * true) / spread) if spread else 0.0,
            margin=conformal_margin(errors),
            errors=int((errors != 0).sum()),
        )


class CutScores(ReadsScores, SingleLabel):
    """Learns whether a score is at least `RunConfig.score_cut`. What is learned is one class for
    each row, and is a `Target` of that task; only reading differs."""

    name = base.CUT_SCORES
    title = message("Two classes of scores")

    def read(self, labels: LabelledRows) -> Any:
        if not labels.config.score_cut:
            raise DataError("The scores are not cut.", "Set score_cut to a number.")
        return scores.read_scores(labels, float(labels.config.score_cut.replace(",", ".")))

    def settle(self, labels: LabelledRows) -> tuple[Any, bool]:
        return labels.reading, False

    def undecided(self, labels: LabelledRows) -> list[Finding]:
        return []

    def problems(self, labels: LabelledRows) -> list[Finding]:
        undo = [Remedy("score_cut", "", message("Undo"))]
        found = super().problems(labels)
        return [one if one.remedies else replace(one, remedies=undo) for one in found]

    def findings(
        self, labels: LabelledRows, train: Targets, constant: Mapping[str, float]
    ) -> Iterator[Finding]:
        title = message(
            "Scores from {cut} on are one class, those below it the other.",
            cut=scores.spell(labels.reading.cut),
        )
        yield from scores.notation(labels)
        undo = Remedy("score_cut", "", message("Learn the score itself"))
        yield answered("cut", title, undo, int((train == 1).sum()))
        if constant:
            yield from class_findings.class_balance(train, self.target(labels), constant)

    def make_target(self, labels: LabelledRows) -> Target:
        reading = labels.reading
        return Target(tuple(reading.names), 1, base.SINGLE_LABEL, decimal=reading.decimal)

    def facts(self, target: Target, config: RunConfig) -> dict[str, Any]:
        return {"positive_label": target.names[1], "positive_assumed": False}
