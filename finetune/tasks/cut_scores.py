"""Scores cut into two classes: those from a number on, and those below it.

What is learned is one class for each row, and is a `Target` of that task; only reading differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.errors import DataError
from finetune.findings import Finding, Remedy, RowsFinding
from finetune.messages import message
from finetune.tasks import class_findings, score_findings, scores
from finetune.tasks.base import (
    CUT_SCORES,
    LEFT_OUT,
    MISSING_LABEL,
    SINGLE_LABEL,
    Findings,
    LabelColumn,
    LabelledRows,
    Target,
    Targets,
)
from finetune.tasks.regression import Regression
from finetune.tasks.scores import ScoreEncoder, Scores
from finetune.tasks.single_label import SingleLabel


@dataclass(frozen=True)
class CutReading:
    """Two classes of scores."""

    names: list[str]
    scores: Scores
    cut: float
    unknown: list[str] = field(default_factory=list)  # as `Classes` has them

    def targets(self, codes: NDArray[Any]) -> Targets:
        """The classes of rows, shape (rows,)."""
        read = self.scores.targets(codes).astype(np.float64)
        above = np.where(read >= np.float32(self.cut), 1, 0)
        return np.where(np.isnan(read), MISSING_LABEL, np.where(np.isinf(read), LEFT_OUT, above))


class CutScores(SingleLabel):
    """Learns whether a score is at least `RunConfig.score_cut`."""

    name = CUT_SCORES
    title = message("Two classes of scores")
    left_out = Regression.left_out

    def recognises(self, cells: Sequence[Any]) -> bool:
        return False  # it is chosen

    def encoder(self, column: str, names: Sequence[str] = ()) -> Any:
        return ScoreEncoder()

    def cell(self, spellings: Sequence[str], code: Any) -> str:
        return Regression().cell(spellings, code)

    def read(self, column: LabelColumn, config: RunConfig) -> Any:
        if not config.score_cut:
            raise DataError("The scores are not cut.", "Set score_cut to a number.")
        cut = float(config.score_cut.replace(",", "."))
        return CutReading(scores.cut_names(cut), scores.read_scores(column.codes, config), cut)

    def settle(self, labels: LabelledRows, config: RunConfig) -> tuple[Any, bool]:
        return labels.reading, False

    def problems(self, labels: LabelledRows, config: RunConfig) -> Findings:
        undo = Remedy("score_cut", "", message("Undo"))
        blocked = score_findings.no_numbers(labels) or class_findings.blocks(labels)
        return score_findings.questions(config, labels, labels.reading.scores) or [
            replace(one, remedies=[undo]) for one in blocked if isinstance(one, Finding)
        ]

    def findings(
        self, labels: LabelledRows, config: RunConfig, train: Targets,
        constant: Mapping[str, float],
    ) -> Iterator[Finding | RowsFinding]:  # fmt: skip
        title = message(
            "Scores from {cut} on are one class, those below it the other.",
            cut=scores.spell(labels.reading.cut),
        )
        yield from score_findings.notation(config, labels, labels.reading.scores)
        undo = Remedy("score_cut", "", message("Learn the score itself"))
        yield class_findings.answered("cut", title, undo, int((train == 1).sum()))
        if constant:
            counts = np.bincount(train, minlength=2)
            yield from class_findings.class_balance(counts, self.target(labels, config), constant)

    def target(self, labels: LabelledRows, config: RunConfig) -> Target:
        class_findings.refuse(self.problems(labels, config))
        decimal = labels.reading.scores.decimal
        return Target(tuple(labels.reading.names), 1, SINGLE_LABEL, decimal=decimal)

    def facts(self, target: Target, config: RunConfig) -> dict[str, Any]:
        return {"positive_label": target.names[1], "positive_assumed": False}
