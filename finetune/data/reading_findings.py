"""Doubts about how files were read, as findings of a data check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from finetune.errors import DataError
from finetune.findings import Finding

Remarks = Mapping[str, Sequence[Finding]]  # by split


def offer_sheets(found: list[Finding], remarks: Remarks) -> list[Finding]:
    """Add the other sheets of a workbook to the remedies of the first blocking finding."""
    sheets = [one.remedies for one in remarks.get("train", ()) if one.kind == "sheet"]
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
