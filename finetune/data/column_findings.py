"""Findings about columns whose role is in doubt, with buttons to answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import chain, islice
from pathlib import Path

from finetune.config import NO_COLUMN, RunConfig
from finetune.data import (
    column_guess,
    columns,
    dataset_cache,
    sources,
)
from finetune.data.check_report import CheckReport
from finetune.data.row_findings import EXAMPLE_CHARACTERS, MAX_EXAMPLES
from finetune.data.splits import SplitRows
from finetune.errors import DataError, some
from finetune.findings import Example, Finding, Remedy, how_to_answer
from finetune.messages import message as _


def report_columns(config: RunConfig, root: Path, error: DataError) -> CheckReport:
    """Report a source whose columns are unclear, with its first rows to choose by. Raises `error`
    again if the source cannot be opened."""
    try:
        source = sources.open_source(config, root)
    except DataError:
        raise error from None
    usable = [name for name, reason in source.columns.items() if not reason]
    examples = []
    for line, cells in islice(source.cells("train", usable, lambda *_: None), MAX_EXAMPLES):
        text = "; ".join(f"{name}: {cell}" for name, cell in zip(usable, cells, strict=False))
        examples.append(Example("train", line, note=text[:EXAMPLE_CHARACTERS]))
    said, sample = columns.choices_of(config), dataset_cache.sample_cells(source, config)
    guess = columns.guess_from(source.columns, sample, said)
    findings = []  # a question about each role in doubt, the texts first
    for role in guess.doubts if any(guess.doubts.values()) else [*guess.doubts][:1]:
        text, answers = columns.question(guess, role, source.name, sample)
        kind = {"sentence2": "single-or-pair", "status": "review"}.get(role, "columns")
        action = how_to_answer(answers)
        findings.append(Finding(kind, "blocks", text, 0, action, remedies=answers))
    if not findings or not columns.are_usable(said, source.columns):
        findings = [Finding("columns", "blocks", error.fact, 0, error.remedy)]
    first = findings[0]
    findings[0] = Finding(
        first.kind, "blocks", first.title, 0, first.action, examples, first.remedies
    )
    return CheckReport(
        source=source.name,
        revision=source.revision,
        choices=source.columns,
        columns={role: getattr(guess, role) for role in column_guess.ROLES},
        findings=offer_sheets([*findings, *chain(*source.remarks.values())]),
        notes=source.notes,
        sheets=source.sheets,
    )


def offer_sheets(findings: list[Finding]) -> list[Finding]:
    """Add the other sheets of a workbook to the remedies of the first blocking finding."""
    sheets = [remedy for one in findings if one.kind == "sheet" for remedy in one.remedies]
    for number, finding in enumerate(findings):
        if finding.severity == "blocks":
            offering = replace(finding, remedies=[*sheets, *finding.remedies])
            return [*findings[:number], offering, *findings[number + 1 :]]
    return findings


def single_text(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    """Report the columns that are not read if each row is one text and nobody chose that."""
    dataset = assigned.dataset
    used = [name for name in asdict(dataset.columns).values() if name]
    unused = [name for name, why in dataset.choices.items() if not why and name not in used]
    if dataset.paired or config.sentence2_column or not unused:
        return
    title = _("Single sentences: only {column!r} is read.", column=dataset.columns.sentence1)
    action = _(
        "Not read: {columns}. If one of these is the other sentence of a pair, choose it as "
        "sentence2_column.",
        columns=some(unused),
    )
    remedies = [Remedy("sentence2_column", NO_COLUMN, _("They are single sentences"))]
    yield Finding("single", "notes", title, 0, action, remedies=remedies)
