"""The findings of a data check, as dataclasses that a page can show and JSON can hold."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from finetune.config import DATA_FIELDS, RunConfig
from finetune.data import catalog, hub_access
from finetune.data.columns import NESTED, parts_of
from finetune.findings import Example, Finding
from finetune.messages import Text
from finetune.tasks.base import SINGLE_LABEL
from finetune.tasks.registry import find_task

FEW_HELD_OUT = "few-validation"  # kind of a finding


@dataclass(frozen=True)
class SplitSummary:
    """One split as it will be used."""

    name: str
    origin: str  # the split of the source that its rows come from
    rows: int
    classes: list[int]  # rows of each class, in the order of the labels
    left_out: dict[str, int] = field(default_factory=dict)  # reason -> rows


@dataclass(frozen=True)
class TokenLengths:
    """Lengths in tokens under one checkpoint, special tokens included."""

    bins: list[tuple[int, int, int]] = field(default_factory=list)  # from, below, rows
    rows: int = 0  # tokenized rows
    of: int = 0  # all rows; more than `rows` if a random sample was tokenized
    longest: int = 0
    max_length: int = 0  # longer rows are cut
    cut: float = 0.0  # share of rows that are cut
    note: Text = ""  # why there is no histogram; empty if there is one


@dataclass(frozen=True)
class CheckReport:
    """The result of a data check."""

    source: str
    revision: str = ""
    corpus: str = ""  # folder of the cached dataset; empty if the source could not be read
    choices: dict[str, Text] = field(default_factory=dict)  # column -> why it cannot be used, or ""
    columns: dict[str, str] = field(default_factory=dict)  # sentence1, sentence2, label -> column
    task: str = SINGLE_LABEL
    labels: list[str] = field(default_factory=list)  # names of the classes, by index
    # Training rows by part of the scale, of scores; empty if training is blocked.
    scale: dict[str, int] = field(default_factory=dict)
    # Scores at which they can be cut into two classes, with the training rows from each one on.
    cuts: list[tuple[float, int]] = field(default_factory=list)
    positive_label: str = ""  # the class whose F1 is reported
    read: dict[str, int] = field(default_factory=dict)  # split of the source -> rows read
    splits: list[SplitSummary] = field(default_factory=list)
    majority: dict[str, float] = field(default_factory=dict)  # scores of the commonest class
    # Baseline -> score -> value on validation, under a run's names; empty if training is blocked
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    lengths: TokenLengths = field(default_factory=TokenLengths)  # of the training rows
    findings: list[Finding] = field(default_factory=list)  # the most severe first
    unreadable: list[Example] = field(default_factory=list)  # rows, each with its reason
    notes: list[Text] = field(default_factory=list)  # how the source was read
    sheets: list[str] = field(default_factory=list)  # of a workbook
    folds: int = 0  # of a cross-validation: both splits have all of its rows
    fingerprint: str = ""  # of the training data; empty if training is blocked
    seconds: float = 0.0

    @property
    def template(self) -> str:
        """The task's, which says what kind of answers the label column has."""
        return find_task(self.task).template

    def usable(self, role: str) -> list[str]:
        """Return the columns that can be `sentence1`, `sentence2`, `label` or `status`. A label may
        be a nested column, or the columns that it is now."""
        reasons = ["", NESTED] if role in ("label", "status") else [""]
        names = [name for name, reason in self.choices.items() if reason in reasons]
        read = self.columns.get(role, "")
        return [*names, read] if parts_of(read, self.choices) else names

    @property
    def blocked(self) -> list[Finding]:
        """The findings that make training impossible."""
        return [finding for finding in self.findings if finding.severity == "blocks"]

    @property
    def validation_rows(self) -> int:
        """The rows that score a model."""
        return sum(split.rows for split in self.splits if split.name == "validation")

    @property
    def few_held_out(self) -> Finding | None:
        """The finding that so few rows are held out that a cross-validation is better, or None."""
        return next((f for f in self.findings if f.kind == FEW_HELD_OUT and f.remedies), None)

    @property
    def question(self) -> Finding | None:
        """The unanswered finding that asks for the positive class, or None."""
        return next((f for f in self.findings if f.kind == "positive" and not f.done), None)

    def to_json(self) -> str:
        return TypeAdapter(CheckReport).dump_json(self).decode() + "\n"


def folder_for(root: Path, config: RunConfig) -> Path:
    """The folder of the data check of a configuration."""
    config = catalog.with_absolute_paths(config)
    values = [getattr(config, name) for name in (*DATA_FIELDS, "checkpoint", "max_length")]
    values += hub_access.cache_scope(config)
    return root / "checks" / hashlib.sha256(json.dumps(values).encode()).hexdigest()[:24]


def describe_columns(columns: Mapping[str, str]) -> str:
    """Describe the columns that are read, in one line for a terminal."""
    names = {"first text": "sentence1", "second text": "sentence2", "answer": "label"}
    chosen = {noun: columns.get(role) for noun, role in names.items()}
    return ", ".join(f"{noun} {name!r}" if name else f"no {noun}" for noun, name in chosen.items())


def summarise(report: CheckReport) -> dict[str, Any]:
    """Convert a report to plain JSON for scripts: `source`, `revision`; `columns`, role -> column
    or None; `splits`, name -> `rows`, `classes` (name -> rows) and `left_out` (reason -> rows);
    `unreadable`, a list of `split`, `line` and `reason`; `findings`, each with `kind`, `severity`,
    `title`, `action`, `rows` (their number), `lines` (split -> the first of them, from 1),
    `choices` (values of fields that resolve it, each with its `option` of the command line) and
    `done`; `blocks`, the reasons why training is impossible; `notes`, facts on how the source was
    read."""
    findings = []
    for finding in report.findings:
        lines = dict(finding.rows)
        if not lines:
            for row in finding.examples:
                lines.setdefault(row.split, []).append(row.line)
        said = {name: getattr(finding, name) for name in ("kind", "severity", "title", "action")}
        choices = [
            {"field": remedy.field, "value": remedy.value, "option": remedy.option}
            for remedy in finding.remedies
        ]
        found = {"rows": finding.count, "lines": lines, "choices": choices, "done": finding.done}
        findings.append(said | found)
    roles = ("sentence1", "sentence2", "label")
    return {
        "source": report.source,
        "revision": report.revision,
        "columns": {role: report.columns.get(role) or None for role in roles},
        "splits": {
            split.name: {
                "rows": split.rows,
                "classes": dict(zip(report.labels, split.classes, strict=False)),
                "left_out": split.left_out,
            }
            for split in report.splits
        },
        "unreadable": [
            {"split": row.split, "line": row.line, "reason": row.note} for row in report.unreadable
        ],
        "findings": findings,
        "blocks": [f"{finding.title} {finding.action}".strip() for finding in report.blocked],
        "notes": report.notes,
    }
