"""Doubts about how files were read, as findings of a data check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from finetune.data.table import Remark
from finetune.errors import DataError
from finetune.findings import Example, Finding

Remarks = Mapping[str, Sequence[Remark]]  # by split


def findings(remarks: Remarks) -> list[Finding]:
    """A finding for each remark on a file."""
    return [
        Finding(
            remark.kind,
            remark.severity,
            remark.title,
            remark.count,
            remark.action,
            [Example(split, line, note=text) for line, text in remark.lines if text],
            remark.answers,
            rows={split: [line for line, _ in remark.lines]} if remark.lines else {},
        )
        for split, of_split in remarks.items()
        for remark in of_split
    ]


def offer_sheets(found: list[Finding], remarks: Remarks) -> list[Finding]:
    """Add the other sheets of a workbook to the remedies of the first blocking finding."""
    sheets = [remark.answers for remark in remarks.get("train", ()) if remark.kind == "sheet"]
    blocked = next((n for n, finding in enumerate(found) if finding.severity == "blocks"), None)
    if blocked is None:
        return found
    first = replace(found[blocked], remedies=[*chain(*sheets), *found[blocked].remedies])
    return [*found[:blocked], first, *found[blocked + 1 :]]


def check_answered(remarks: Remarks) -> None:
    """Raise DataError if a question about a file must be answered before training."""
    for of_split in remarks.values():
        for remark in of_split:
            if remark.severity == "blocks":
                raise DataError(remark.title, remark.action)


def titles(remarks: Remarks) -> list[str]:
    """The titles of remarks, except for those on sheets."""
    return [
        remark.title
        for of_split in remarks.values()
        for remark in of_split
        if remark.kind != "sheet"
    ]
