"""Check pairs before training: what is read, and what is wrong."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from finetune import owners
from finetune.config import NO_COLUMN, RunConfig
from finetune.data import catalog, columns, dataset_cache, sources, splits, token_lengths
from finetune.data.check_report import FEW_HELD_OUT, CheckReport, SplitSummary, TokenLengths
from finetune.data.splits import SplitRows
from finetune.errors import DataError, ModelError, some
from finetune.findings import Example, Finding, Remedy, Severity
from finetune.messages import message as _
from finetune.metrics import intervals
from finetune.runs.events import Phase
from finetune.tasks.base import MISSING_LABEL, Task
from finetune.tasks.registry import deciding_metric, find_task
from finetune.text_hashes import Integers

# Phase, the split it reads, rows done, rows in all (0: unknown)
ProgressCallback = Callable[[Phase, str, int, int], None]
MAX_SHOWN = 20  # unreadable rows of a split
_MAX_EXAMPLES, _EXAMPLE_CHARACTERS = 5, 200  # rows of a finding, characters of each sentence
_MOST_LINES = 1000  # of a split, listed with a finding
_CUTS = 19  # places on a scale at which it may be cut into two classes
FEW = 100  # training rows
FEW_TO_HOLD_OUT = 500  # rows; of fewer a cross-validation is offered in place of a split
# Half the width of the 95% interval of an accuracy near 0.5. Above 0.1 (93 pairs) a good model
# and a constant answer can score the same; above 0.06 (263) two that differ by a whole preset.
UNCERTAIN, SLIGHTLY_UNCERTAIN = 0.1, 0.06


def check_pairs(
    config: RunConfig,
    root: Path,
    progress: ProgressCallback = lambda phase, detail, done, total: None,
    on_partial: Callable[[CheckReport], None] = lambda report: None,
) -> CheckReport:
    """Read a configuration's pairs and report what is wrong with them. `on_partial` gets the report
    before lengths are measured. DataError if the source cannot be opened. All runs of a
    cross-validation have the same report."""
    start, config = time.monotonic(), config.changed(fold=0)
    try:
        dataset = dataset_cache.read_dataset(
            config, root, lambda split, rows: progress(Phase.READ_ROWS, split, rows, 0)
        )
    except DataError as error:
        return _report_columns(config, root, error)
    progress(Phase.COUNT_ROWS, "", 0, 0)
    kept = config.changed(drop_duplicates=False, drop_leaked=False)
    all_rows = splits.assign_rows(dataset, kept)
    found = chain(
        *dataset.remarks.values(),
        splits.half_lost(all_rows, config),
        _rows_left_out(config, all_rows),
        _single_text(config, all_rows),
        _leaked_rows(config, all_rows),
        _repeated_pairs(config, all_rows),
        _split_findings(all_rows),
    )
    findings = [*_described(all_rows, found)]
    assigned = splits.assign_rows(dataset, config)
    try:
        assigned = splits.hold_out(assigned, config)
    except DataError as error:
        remedy = Remedy("folds", "", _("Hold out a validation split"))
        findings.append(Finding("folds", "blocks", error.fact, error.remedy, remedies=[remedy]))
    report = _report(assigned, config, findings)
    on_partial(replace(report, seconds=time.monotonic() - start))
    progress(Phase.MEASURE_LENGTHS, "", 0, 0)
    findings = list(report.findings)
    try:
        lengths, of_tokenizer = token_lengths.check_lengths(assigned, config)
        findings += of_tokenizer
    except ModelError as error:
        findings.append(Finding("tokenizer", "blocks", error.fact, error.remedy))
        lengths = TokenLengths(note=_("The lengths are missing. {fact}", fact=error.fact))
    if lengths.cut > 0:
        title = _(
            "Rows longer than max_length ({max_length} tokens): {cut:.1%}",
            max_length=lengths.max_length,
            cut=lengths.cut,
        )
        action = _("Their ends are cut off; the longest has {n} tokens.", n=lengths.longest)
        severe, count = lengths.cut > 0.05, round(lengths.cut * lengths.of)
        findings.append(Finding("cut", "warns" if severe else "notes", title, action, count=count))
    seconds = time.monotonic() - start
    return replace(report, lengths=lengths, findings=_by_severity(findings), seconds=seconds)


def _by_severity(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: ("blocks", "warns", "notes").index(one.severity))


def _other_metric(config: RunConfig, task: Task) -> Iterator[Finding]:
    chosen, asked = deciding_metric(config, task), config.metric_for_best_model
    if asked not in ("auto", chosen):
        title = _(
            "metric_for_best_model is {asked}, which is not measured here: {chosen} chooses the "
            "best model.",
            asked=asked, chosen=chosen,
        )  # fmt: skip
        yield Finding("other-metric", "notes", title, _("No action is needed."))


def _report(assigned: SplitRows, config: RunConfig, findings: list[Finding]) -> CheckReport:
    """Make the report without lengths; findings that block training are added."""
    dataset, counts, task = assigned.dataset, assigned.counts(), find_task(assigned.dataset.task)
    blocks = [*_described(assigned, task.problems(assigned.labels))]
    findings = [*findings, *_other_metric(config, task)]
    train, validation = assigned.of("train").label, assigned.of("validation").label
    measured: dict[str, Any] = {}  # if nothing blocks training
    if not blocks and not any(finding.severity == "blocks" for finding in findings):
        target = task.target(assigned.labels)
        measured = {
            "positive_label": task.facts(target, config).get("positive_label", ""),
            "majority": task.constant_scores(train, validation, target, task.metrics),
            "fingerprint": assigned.fingerprint(target),
        }
        if not target.names:
            cuts = (
                float(f"{n:.3g}") for n in np.linspace(target.low, target.high, _CUTS + 2)[1:-1]
            )
            measured["cuts"] = [(cut, int((train >= cut).sum())) for cut in cuts]
            measured["scale"] = dict(task.counted(train, target))
    report = CheckReport(
        source=dataset.source,
        revision=dataset.revision,
        corpus=dataset.folder.name,
        choices=dataset.choices,
        columns=dataset.columns._asdict(),
        task=task.name,
        labels=assigned.labels.reading.names,
        read=dataset.rows,
        splits=[
            SplitSummary(
                name, source_split, len(rows), counts[name], assigned.left_out.get(name, {})
            )
            for name, (source_split, rows) in assigned.rows.items()
        ],
        lengths=TokenLengths(note=_("They are measured once the model is loaded.")),
        notes=dataset.notes,
        unreadable=[*chain(*dataset.examples.values())],
        sheets=dataset.sheets,
        folds=config.folds,
        **measured,
    )
    own = _described(assigned, task.findings(assigned.labels, train, report.majority))
    return replace(report, findings=_by_severity(_offer_sheets([*blocks, *own, *findings])))


def _leave_out(config: RunConfig, field: str, rows: Sequence[tuple[str, Integers]]) -> Remedy:
    """The button that leaves some rows out, or undoes that."""
    if getattr(config, field):
        return Remedy(field, False, _("Undo"))
    count = sum(len(indices) for _, indices in rows)
    text = {
        ("drop_leaked", True): _("Leave out 1 leaked row"),
        ("drop_leaked", False): _("Leave out {count:,} leaked rows", count=count),
        ("drop_duplicates", True): _("Leave out 1 repeat"),
        ("drop_duplicates", False): _("Leave out {count:,} repeats", count=count),
    }
    return Remedy(field, True, text[field, count == 1])


def _rows_left_out(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    """Find rows that cannot be read, or lack a sentence or a label."""
    dataset = assigned.dataset
    if count := sum(dataset.unreadable.values()):
        action = _("They are left out. To use them, mend these lines and upload the file again.")
        rows = [row for found in dataset.examples.values() for row in found[:MAX_SHOWN]]
        lines = some([row.line for row in rows], 3)
        title = _("Rows that could not be read: line {lines}", lines=lines)
        examples = dataset.examples.items()
        known = {split: [row.line for row in found] for split, found in examples if found}
        yield Finding("unreadable", "warns", title, action, count=count, examples=rows, rows=known)
    empty, unlabelled, task = [], [], find_task(dataset.task)
    for split, keys in assigned.hashes.items():
        complete = keys.complete(dataset.paired)
        empty.append((split, np.flatnonzero(~complete)))
        own = not catalog.is_hub_dataset(config.dataset)
        states = task.states(keys.label)
        if own or split == "train" or (states == 0).any():  # GLUE's test splits have none
            unlabelled.append((split, np.flatnonzero(complete & (states == MISSING_LABEL))))
    action = _("They are left out.")
    yield Finding("empty", "warns", _("Rows with an empty or missing sentence"), action, empty)
    yield Finding("unlabelled", "warns", _("Rows without a label"), action, unlabelled)


def _leaked_rows(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    action = _(
        "They are kept, and the score will flatter the model; drop_leaked leaves them out of train."
    )
    if config.drop_leaked:
        action = _("They are left out of train.")
    for name, leaked in assigned.leaked().items():
        title = _(
            "Leakage: training rows that are in {split} too, in either order; case, white space "
            "and punctuation at the ends do not count",
            split=name,
        )
        rows = [(assigned.rows["train"][0], leaked)]
        remedies = [_leave_out(config, "drop_leaked", rows)]
        yield Finding("leakage", "warns", title, action, rows, remedies, config.drop_leaked)


def _repeated_pairs(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    """Find rows whose pair has another label elsewhere, in any split, or is a repeat in its own."""
    keys = list(map(assigned.of, assigned.distinct))
    ordered = np.concatenate([key.ordered for key in keys])
    if not len(ordered):
        return
    __, first, group = np.unique(ordered, return_index=True, return_inverse=True)
    labels = np.concatenate([key.label for key in keys])
    differs = (labels != labels[first[group]]).reshape(len(group), -1).any(axis=1)
    conflicts, repeated = [], []
    of_splits = np.split(group, np.cumsum([len(key) for key in keys])[:-1])
    for name, own in zip(assigned.distinct, of_splits, strict=True):
        source_split, rows = assigned.rows[name]
        order = np.argsort(own, kind="stable")  # rows of a pair stand together
        conflicts.append((source_split, rows[order][np.isin(own[order], group[differs])]))
        first = np.unique(own, return_index=True)[1]
        repeated.append((source_split, np.delete(rows, first)))
    title = _("Equal texts have different labels")
    action = _(
        "These rows are kept, though no model can learn both. If a text may have several labels, "
        "write them into one cell with semicolons between. If repeats are left out "
        "(drop_duplicates), the first of them is kept."
    )
    if not find_task(assigned.dataset.task).has_right:
        title = _("Equal texts have different scores")
        action = _(
            "These rows are kept, and a model learns their mean. If repeats are left out "
            "(drop_duplicates), the first of them is kept."
        )
    yield Finding("conflicts", "warns", title, action, conflicts)
    action = _("They are kept and count more than once; drop_duplicates keeps only the first.")
    if config.drop_duplicates:
        action = _("The first of them is kept.")
    title = _("Rows that repeat an earlier one of their split")
    buttons, done = [_leave_out(config, "drop_duplicates", repeated)], config.drop_duplicates
    yield Finding("duplicates", "warns", title, action, repeated, buttons, done)


def _split_findings(assigned: SplitRows) -> Iterator[Finding]:
    """Find too few rows to learn from or to validate with, and validation rows that share a
    sentence with training rows."""
    train, validation = (len(assigned.rows[name][1]) for name in ("train", "validation"))
    cut = assigned.rows["validation"][0] == "train" and "validation" in assigned.distinct
    if 0 < train < FEW:
        title = _("Only {train} training rows", train=train)
        action = _("A few hundred are the least from which a model learns something that lasts.")
        yield Finding("few", "warns", title, action, count=train)
    if validation and (margin := intervals.accuracy_margin(validation)) > SLIGHTLY_UNCERTAIN:
        title = _("Only {rows} validation rows", rows=validation)
        action = _(
            "A model's score is known only roughly from them. Bring more validation rows, or raise "
            "validation_share where they are cut from train."
        )
        if find_task(assigned.dataset.task).has_right:
            title = _(
                "Only {rows} validation rows: accuracy is known to \u00b1{points:.0f} points",
                rows=validation,
                points=100 * margin,
            )
            action = _(
                "That is half the 95% interval of an accuracy near 0.5; scores that differ by less "
                "tell nothing. Bring more validation rows, or raise validation_share where they "
                "are cut from train."
            )
        severity: Severity = "warns" if margin > UNCERTAIN else "notes"
        remedies, folds = [], owners.policy().limits.folds
        if cut and train + validation < FEW_TO_HOLD_OUT and folds > 1:
            text = _("Cross-validate in {folds} folds", folds=folds)
            remedies.append(Remedy("folds", str(folds), text))
        yield Finding(FEW_HELD_OUT, severity, title, action, count=validation, remedies=remedies)
    if not cut or not assigned.dataset.paired:
        return
    train_keys, keys = assigned.of("train"), assigned.of("validation")
    known = np.union1d(train_keys.first, train_keys.second)
    shared = int((np.isin(keys.first, known) | np.isin(keys.second, known)).sum())
    if shared:
        title = _("Validation rows that share a sentence with training rows")
        action = _(
            "They were cut from train, where almost every row shares a sentence with others: the "
            "scores are of new pairs, not of new sentences."
        )
        yield Finding("shared", "notes", title, action, count=shared)


def _report_columns(config: RunConfig, root: Path, error: DataError) -> CheckReport:
    """Report a source whose columns are unclear, with its first rows to choose by. Raises `error`
    again if the source cannot be opened."""
    try:
        source = sources.open_source(config, root)
    except DataError:
        raise error from None
    usable = [name for name, reason in source.columns.items() if not reason]
    examples = []
    for line, cells in islice(source.cells("train", usable, lambda *_: None), _MAX_EXAMPLES):
        text = "; ".join(f"{name}: {cell}" for name, cell in zip(usable, cells, strict=False))
        examples.append(Example("train", line, note=text[:_EXAMPLE_CHARACTERS]))
    said, sample = columns.choices_of(config), dataset_cache.sample_cells(source, config)
    guess, doubts = columns.guess_from(source.columns, sample, said)
    # A question about each role in doubt, the texts first.
    asked = [*doubts.items()] if any(doubts.values()) else [*doubts.items()][:1]
    findings = [columns.ask(guess, *in_doubt, source.name, sample) for in_doubt in asked]
    try:
        columns.check_choices(said, source.columns, source.name)
    except DataError:
        findings = []
    findings = findings or [Finding("columns", "blocks", error.fact, error.remedy)]
    findings[0] = replace(findings[0], examples=examples)
    return CheckReport(
        source=source.name,
        revision=source.revision,
        choices=source.columns,
        columns=guess._asdict(),
        findings=_offer_sheets([*findings, *chain(*source.remarks.values())]),
        notes=source.notes,
        sheets=source.sheets,
    )


def _offer_sheets(findings: list[Finding]) -> list[Finding]:
    """Add the other sheets of a workbook to the remedies of the first blocking finding."""
    sheets = [remedy for one in findings if one.kind == "sheet" for remedy in one.remedies]
    first = next((one for one in findings if one.severity == "blocks"), None)
    return [
        replace(one, remedies=[*sheets, *one.remedies]) if one is first else one for one in findings
    ]


def _single_text(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    """Report the columns that are not read if each row is one text and nobody chose that."""
    dataset = assigned.dataset
    used = [name for name in dataset.columns._asdict().values() if name]
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
    yield Finding("single", "notes", title, action, remedies=remedies)


def _described(assigned: SplitRows, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Look up the number, the lines and a few texts of the rows of findings; those about no rows
    are left out."""
    for finding in findings:
        if finding.where is None:
            yield finding
            continue
        examples: list[Example] = []
        lines: dict[str, list[int]] = {}
        for split, indices in finding.where:
            shown = indices[: _MAX_EXAMPLES - len(examples)]
            examples += assigned.dataset.examples_of(split, shown, _EXAMPLE_CHARACTERS)
            for part, own in assigned.dataset.origins(split, indices):
                if more := assigned.hashes[split].line[own[:_MOST_LINES]].tolist():
                    lines[part] = (lines.get(part, []) + more)[:_MOST_LINES]
        if count := sum(len(indices) for _, indices in finding.where):
            yield replace(finding, count=count, examples=examples, rows=lines, where=None)
