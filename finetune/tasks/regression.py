"""One score for each example: transformers' `regression` with one output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.findings import Finding, RowsFinding
from finetune.messages import message
from finetune.metrics import catalog
from finetune.metrics.calibration import Logits
from finetune.metrics.catalog import Metric
from finetune.metrics.classification import Floats
from finetune.metrics.example_metrics import conformal_margin
from finetune.metrics.modules import ScoreModules
from finetune.metrics.shared_rows import SharedRows
from finetune.tasks import class_findings, numerals, score_findings, scores
from finetune.tasks.base import (
    LEFT_OUT,
    MISSING_LABEL,
    NO_RULE,
    REGRESSION,
    Answers,
    DecisionRule,
    LabelColumn,
    LabelledRows,
    PredictOptions,
    Target,
    Targets,
    Task,
)
from finetune.tasks.cells import read_value
from finetune.tasks.score_details import ScoreDetails, measure_details
from finetune.tasks.scores import ScoreEncoder, Scores
from finetune.text_hashes import Integers

if TYPE_CHECKING:
    import torch

_BINS, _BIN_ROWS = 10, 50  # parts of a scale and strata of a cut, and rows of each at least


class Regression(Task):
    """Answers with a score, on the scale of the data: the model's only output as it is."""

    name = REGRESSION
    title = message("A score for each row")
    metrics: tuple[Metric, ...] = catalog.OF_SCORES
    headline = catalog.OF_SCORES[0]
    template = "score"
    constant = message("always the mean")
    has_right = False
    left_out = message("the label is no number")

    def recognises(self, cells: Sequence[Any]) -> bool:
        return scores.are_scores(cells)

    def encoder(self, column: str, names: Sequence[str] = ()) -> ScoreEncoder:
        return ScoreEncoder()

    def cell(self, spellings: Sequence[str], code: Any) -> str:
        by_point, by_comma, _mark, spelling = code
        if np.isinf(by_point):
            return spellings[int(spelling)] if spelling >= 0 else ""
        if by_point != by_comma:
            return "" if np.isnan(by_point) else numerals.spell_both(by_point, by_comma)
        return scores.spell(by_point)

    def read(self, column: LabelColumn, config: RunConfig) -> Scores:
        return scores.read_scores(column.codes, config)

    def states(self, targets: Targets) -> Integers:
        missing = np.where(np.isnan(targets), MISSING_LABEL, 0)
        return np.where(np.isinf(targets), LEFT_OUT, missing)

    def strata(self, targets: Targets) -> Integers:
        bins = min(_BINS, max(1, len(targets) // _BIN_ROWS))
        if not len(targets):
            return np.zeros(0, np.int64)
        edges = np.unique(np.quantile(targets, np.arange(1, bins) / bins))
        return np.searchsorted(edges, targets)

    def count(self, targets: Targets, names: Sequence[str]) -> list[int]:
        return []

    def problems(self, labels: LabelledRows, config: RunConfig) -> list[Finding | RowsFinding]:
        return score_findings.problems(config, labels)

    def findings(
        self, labels: LabelledRows, config: RunConfig, train: Targets,
        constant: Mapping[str, float],
    ) -> Iterator[Finding | RowsFinding]:  # fmt: skip
        return score_findings.findings(config, labels)

    def target(self, labels: LabelledRows, config: RunConfig) -> Target:
        asked = score_findings.questions(config, labels, labels.reading)
        class_findings.refuse(asked, score_findings.blocks(labels))
        train = labels.of("train")
        low, high = (float(scores.spell(end)) for end in (train.min(), train.max()))
        decimal = labels.reading.decimal
        return Target((), task=self.name, low=low, high=high, decimal=decimal)

    def facts(self, target: Target, config: RunConfig) -> dict[str, Any]:
        return {"low": target.low, "high": target.high, "decimal": target.decimal}

    def constant_scores(
        self, train: Targets, validation: Targets, target: Target, metrics: Sequence[Metric]
    ) -> dict[str, float]:
        mean = np.full(len(validation), np.mean(train, dtype=np.float64))
        return self.scores(mean, validation, target, metrics)

    def feature(self, target: Target) -> Any:
        from datasets import Value

        return Value("float32")

    def head(self, target: Target) -> dict[str, Any]:
        return {
            "id2label": {0: "score"},
            "label2id": {"score": 0},
            "problem_type": REGRESSION,
            # Otherwise a CrossEncoder would put a sigmoid behind the only output.
            "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
        }

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

    def spell(self, values: Targets, target: Target) -> list[str]:
        return [scores.spell(value) for value in values]

    def parse(self, cells: Sequence[Any], target: Target) -> tuple[Targets, NDArray[np.bool_]]:
        """A number that can be read in two ways is read as those that were trained on, and -1 is no
        score if these begin at 0 or above."""
        values = [numerals.to_number(read_value(cell), target.decimal) for cell in cells]
        numbers = np.array([np.nan if value is None else value for value in values], np.float32)
        no_score = (numbers == -1) & (0 <= target.low < target.high)
        return numbers, np.isfinite(numbers) & ~no_score

    def columns(self, target: Target, rule: DecisionRule) -> dict[str, type]:
        ends = ("prediction_low", "prediction_high") if rule.margin is not None else ()
        return dict.fromkeys(("prediction", *ends), float)

    def cells(self, answers: Answers, target: Target, rule: DecisionRule) -> list[list[Any]]:
        values = answers.values.astype(np.float64)
        margin = rule.margin
        columns = [values] if margin is None else [values, values - margin, values + margin]
        return [[float(scores.spell(value)) for value in row] for row in np.transpose(columns)]

    def counted(self, values: Targets, target: Target) -> Mapping[str, int]:
        edges = np.linspace(target.low, target.high, _BINS + 1)
        inside = np.clip(values.astype(np.float64), target.low, target.high)
        counts = np.histogram(inside, edges)[0].tolist()
        names = (f"{low:.3g} \u2013 {high:.3g}" for low, high in pairwise(edges.tolist()))
        return dict(zip(names, counts, strict=True)) if target.low < target.high else {}

    def explained_output(self, answers: Answers) -> int:
        return 0

    def check_targets(self, targets: Targets, target: Target) -> None:
        if targets.ndim != 1 or targets.dtype.kind != "f" or not np.isfinite(targets).all():
            raise ValueError("a score is no number")

    def answers(
        self,
        logits: Logits,
        target: Target,
        rule: DecisionRule = NO_RULE,
        options: PredictOptions | None = None,
        swapped: Logits | None = None,
    ) -> Answers:
        options = options or PredictOptions(both_orders=swapped is not None)
        values = self.plain_answers(logits)
        if options.both_orders and swapped is not None:
            values = (values + self.plain_answers(swapped)) / np.float32(2)
        return Answers(np.zeros((len(values), 0), np.float32), values)

    def plain_answers(self, logits: Logits) -> Targets:
        return np.asarray(logits[:, 0], np.float32)

    def fitted_rule(self, logits: Logits, truth: Targets, target: Target) -> dict[str, Any]:
        return {"margin": conformal_margin(self.plain_answers(logits) - truth)}

    def score_modules(self, target: Target, metrics: Sequence[Metric]) -> ScoreModules:
        names = [metric.name for metric in metrics]
        return ScoreModules(names, 0, answer=self.plain_answers, shares=lambda logits: logits)

    def loss(
        self,
        outputs: Any,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
        smoothing: float = 0.0,
    ) -> torch.Tensor:
        return outputs.loss  # type: ignore[no-any-return]

    def losses(self, logits: Logits, labels: Targets) -> Floats:
        return self.errors(self.plain_answers(logits), labels) ** 2

    def errors(self, answers: Targets, truth: Targets) -> Floats:
        return np.abs(np.asarray(answers, np.float64) - truth)

    def details(
        self, logits: Logits, answers: Answers, truth: Targets, target: Target,
        shared: SharedRows | None,
    ) -> ScoreDetails:  # fmt: skip
        return measure_details(answers.values, truth)
