"""What an examination of pairs found, as plain values that a page can show and a file can hold.

Knows no dataset and no page; standard library only. How it is found is `examination`'s business.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from finetune import json_files, owners
from finetune.config import DATA_FIELDS, RunConfig
from finetune.data import catalog, safe_csv

Severity = Literal["blocks", "warns", "notes"]


@dataclass(frozen=True)
class Example:
    """One row that shows a finding.

    Args:
        split: as the source calls it.
        line: where it stands in the source, from 1.
        sentence1, sentence2, label: shortened texts; empty where there is none.
        note: what is wrong with it, where the finding's title does not say.
    """

    split: str
    line: int
    sentence1: str = ""
    sentence2: str = ""
    label: str = ""
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """Something a person should know before training.

    Args:
        kind: a short name that does not change, such as `leakage`.
        severity: `blocks` training, `warns`, or `notes` a fact.
        title: what it is, in one sentence.
        count: rows concerned.
        action: what will be done about it, and what the person can do.
        examples: a few of the rows.
    """

    kind: str
    severity: Severity
    title: str
    count: int
    action: str
    examples: list[Example] = field(default_factory=list)


@dataclass(frozen=True)
class SplitSummary:
    """One split as it will be used.

    Args:
        name: `train`, `validation` or `test`.
        origin: the split of the source its rows come from.
        rows: rows that will be used.
        classes: rows of each class, in the order of the labels.
        left_out: reason -> rows.
    """

    name: str
    origin: str
    rows: int
    classes: list[int]
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenLengths:
    """Lengths in tokens under one checkpoint, special tokens included.

    Args:
        bins: lower bound, upper bound (exclusive), rows.
        rows: how many rows were tokenised.
        of: how many there are; more than `rows` where a random part was taken.
        longest: the longest one.
        max_length: where longer ones are cut.
        cut: share of rows that are cut.
        note: why there is no histogram; empty where there is.
    """

    bins: list[tuple[int, int, int]] = field(default_factory=list)
    rows: int = 0
    of: int = 0
    longest: int = 0
    max_length: int = 0
    cut: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class CheckReport:
    """Everything an examination found.

    Args:
        source, revision: what was read.
        corpus: name of the folder that holds the rows as read; empty where nothing could be.
        choices: column -> why it cannot be used, or "".
        columns: `sentence1`, `sentence2`, `label` -> the column read.
        labels: names of the classes, by index.
        positive_label: the class whose F1 is meant.
        read: split of the source -> rows read.
        splits: as they will be used.
        majority: accuracy and F1 on validation of always answering the commonest class.
        lengths: of the training rows.
        findings: the gravest first.
        notes: how the source was read.
        fingerprint: sha256 of what would be trained on; empty where that is blocked.
        seconds: the examination took.
    """

    source: str
    revision: str = ""
    corpus: str = ""
    choices: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    positive_label: str = ""
    read: dict[str, int] = field(default_factory=dict)
    splits: list[SplitSummary] = field(default_factory=list)
    majority: dict[str, float] = field(default_factory=dict)
    lengths: TokenLengths = field(default_factory=TokenLengths)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fingerprint: str = ""
    seconds: float = 0.0

    @property
    def blocked(self) -> list[Finding]:
        """The findings that make training impossible."""
        return [one for one in self.findings if one.severity == "blocks"]

    def as_csv(self) -> str:
        """The findings and the rows that show them, for a spreadsheet."""
        header = ["severity", "finding", "rows", "action", "split", "line"]
        header += ["sentence1", "sentence2", "label", "note"]
        rows = [
            [one.severity, one.title, one.count, one.action, *dataclasses.astuple(example)]
            for one in self.findings
            for example in one.examples or [Example("", 0)]
        ]
        return safe_csv.to_csv(header, rows)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CheckReport:
        """The report of a parsed `report.json`.

        Raises:
            TypeError, KeyError: when it is of another version.
        """
        known = dict(values)
        known["splits"] = [SplitSummary(**one) for one in known["splits"]]
        lengths = dict(known["lengths"])
        lengths["bins"] = [(low, high, count) for low, high, count in lengths["bins"]]
        known["lengths"] = TokenLengths(**lengths)
        known["findings"] = [
            Finding(**{**one, "examples": [Example(**row) for row in one["examples"]]})
            for one in known["findings"]
        ]
        return cls(**known)


def folder_for(root: Path, config: RunConfig) -> Path:
    """Where the checks of a configuration's pairs are kept, or would be.

    Args:
        root: as `RunStore.root`.
    """
    config = catalog.with_absolute_paths(config)
    values = [getattr(config, name) for name in (*DATA_FIELDS, "checkpoint", "max_length")]
    if owners.is_shared() and catalog.is_hub_dataset(config.dataset):
        values.append("for everybody")  # made without a token: nobody's private rows
    name = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:24]
    return root / "checks" / name


def read_report(folder: Path) -> CheckReport | None:
    """The finished report in a folder; None where there is none, or one of another version."""
    if values := json_files.read(folder / "report.json"):
        with contextlib.suppress(TypeError, KeyError, ValueError):
            return CheckReport.from_dict(values)
    return None
