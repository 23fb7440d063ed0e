"""Checks pairs before training and reports what is read of them and what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from finetune.config import RunConfig
from finetune.data import checkpoints, columns, dataset_cache, sources, splits, token_lengths
from finetune.data.check_report import CheckReport, Finding, SplitSummary, TokenLengths
from finetune.data.row_checks import row_findings
from finetune.data.splits import SplitRows
from finetune.errors import ConfigError, DataError, ModelError
from finetune.metrics import classification
from finetune.phases import Phase

# Phase, the split it reads, rows done, rows in all (0: unknown)
ProgressCallback = Callable[[Phase, str, int, int], None]
_SEVERITIES = ("blocks", "warns", "notes")


def check_pairs(
    config: RunConfig,
    root: Path,
    progress: ProgressCallback = lambda phase, detail, done, total: None,
    on_partial: Callable[[CheckReport], None] = lambda report: None,
) -> CheckReport:
    """Read the pairs that a configuration asks for and report what is wrong with them.

    Args:
        on_partial: called with a report of all but the lengths, before a tokenizer is loaded.

    Raises:
        DataError: when there is no such source, or it cannot be opened.
    """
    start = time.monotonic()
    try:
        dataset = dataset_cache.read_dataset(
            config, root, lambda split, rows: progress(Phase.READ_ROWS, split, rows, 0)
        )
    except DataError as error:
        return _report_columns(config, root, error)
    progress(Phase.COUNT_ROWS, "", 0, 0)
    everything = config.changed(drop_duplicates=False, drop_leaked=False)
    all_rows = splits.assign_rows(dataset, everything)
    findings = list(row_findings(config, all_rows))
    assigned = splits.assign_rows(dataset, config, all_rows.hashes)
    report = _report(assigned, config, findings)
    on_partial(replace(report, seconds=time.monotonic() - start))
    progress(Phase.MEASURE_LENGTHS, "", 0, 0)
    lengths, length_findings = _check_lengths(assigned, config)
    return replace(
        report,
        lengths=lengths,
        findings=_by_severity([*report.findings, *length_findings]),
        seconds=time.monotonic() - start,
    )


def _by_severity(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity))


def _report_columns(config: RunConfig, root: Path, error: DataError) -> CheckReport:
    """A report of a source whose columns are unclear, for the user to choose from; `error` is
    raised again where it cannot be opened."""
    try:
        source = sources.open_source(config, root)
    except DataError:
        raise error from None
    guesses = columns.guess_columns(list(source.columns))
    return CheckReport(
        source=source.name,
        revision=source.revision,
        choices=source.columns,
        columns=dict(zip(("sentence1", "sentence2", "label"), guesses, strict=True)),
        findings=[Finding("columns", "blocks", error.fact, 0, error.remedy)],
        notes=source.notes,
    )


def _report(assigned: SplitRows, config: RunConfig, findings: list[Finding]) -> CheckReport:
    """The report without lengths; what blocks training is added to the findings."""
    dataset, counts = assigned.dataset, assigned.class_counts()
    blocks = [
        Finding("impossible", "blocks", text, 0, "Training is not possible with these rows.")
        for text in assigned.blocks
    ]
    try:
        positive = columns.positive_class(dataset.labels, config.positive_label)
    except DataError as error:
        blocks.append(Finding("positive", "blocks", error.fact, 0, error.remedy))
        positive = min(1, len(dataset.labels) - 1)
    majority, fingerprint = {}, ""
    if not blocks:
        commonest = int(np.argmax(counts["train"]))
        majority = classification.constant_answer_scores(counts["validation"], commonest, positive)
        fingerprint = assigned.fingerprint(positive)
    return CheckReport(
        source=dataset.source,
        revision=dataset.revision,
        corpus=dataset.folder.name,
        choices=dataset.choices,
        columns=asdict(dataset.columns),
        labels=dataset.labels,
        positive_label=dataset.labels[positive] if dataset.labels else "",
        read=dataset.rows,
        splits=[
            SplitSummary(name, origin, len(rows), counts[name], assigned.left_out.get(name, {}))
            for name, (origin, rows) in assigned.rows.items()
        ],
        majority=majority,
        lengths=TokenLengths(note="They are measured once the tokenizer is loaded."),
        findings=_by_severity([*blocks, *findings]),
        notes=dataset.notes,
        fingerprint=fingerprint,
    )


def _check_lengths(assigned: SplitRows, config: RunConfig) -> tuple[TokenLengths, list[Finding]]:
    """The lengths of the training rows, and what is wrong with them."""
    findings = []
    try:
        checkpoints.check_length(config.checkpoint, config.max_length)
    except ConfigError as error:
        action = "Training would fail at a long row."
        findings.append(Finding("too_long", "blocks", error.fact, 0, action))
    try:
        lengths = token_lengths.check_lengths(assigned, config)
    except ModelError as error:
        findings.append(Finding("tokenizer", "blocks", error.fact, 0, error.remedy))
        lengths = TokenLengths(note=f"The lengths are missing. {error.fact}")
    if lengths.cut > 0:
        findings.append(
            Finding(
                "cut", "warns" if lengths.cut > 0.05 else "notes",
                f"Rows longer than max_length ({lengths.max_length} tokens): {lengths.cut:.1%}",
                round(lengths.cut * lengths.of),
                f"Their ends are cut off; the longest has {lengths.longest} tokens.",
            )
        )  # fmt: skip
    return lengths, findings
