"""Checks pairs before training and reports what is read of them and what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from finetune.config import NO_COLUMN, RunConfig
from finetune.data import catalog, columns, dataset_cache, sources, splits, token_lengths
from finetune.data.check_report import (
    CheckReport,
    Example,
    Finding,
    Remedy,
    SplitSummary,
    TokenLengths,
)
from finetune.data.splits import SplitRows
from finetune.errors import DataError, ModelError, some
from finetune.messages import message as _
from finetune.metrics import classification, intervals
from finetune.metrics.classification import metric_name
from finetune.runs.events import Phase
from finetune.text_hashes import Integers

# Phase, the split it reads, rows done, rows in all (0: unknown)
ProgressCallback = Callable[[Phase, str, int, int], None]
MAX_EXAMPLES = 5  # of a finding
FEW = 100  # training rows
EXAMPLE_CHARACTERS = 200  # of a sentence
# Half the width of the 95% interval of an accuracy near 0.5. Above 0.1 (93 pairs) a good model
# and a constant answer can score the same; above 0.06 (263) two that differ by a whole preset.
UNCERTAIN, SLIGHTLY_UNCERTAIN = 0.1, 0.06
# Imbalance, from 0 for even classes to 1 for a single one. MRPC's 68/32 is 0.35: accuracy alone
# flatters. From 90/10 on, 0.8, it says next to nothing, and a model may learn to answer one class.
IMBALANCED, VERY_IMBALANCED = 0.3, 0.8


def check_pairs(
    config: RunConfig,
    root: Path,
    progress: ProgressCallback = lambda phase, detail, done, total: None,
    on_partial: Callable[[CheckReport], None] = lambda report: None,
) -> CheckReport:
    """Read a configuration's pairs and report what is wrong with them; DataError where their source
    cannot be opened. `on_partial` gets the report before the lengths are known."""
    start = time.monotonic()
    try:
        dataset = dataset_cache.read_dataset(
            config, root, lambda split, rows: progress(Phase.READ_ROWS, split, rows, 0)
        )
    except DataError as error:
        return _report_columns(config, root, error)
    progress(Phase.COUNT_ROWS, "", 0, 0)
    everything = config.changed(drop_duplicates=False, drop_leaked=False)
    findings = list(_row_findings(config, splits.assign_rows(dataset, everything)))
    assigned = splits.assign_rows(dataset, config)
    report = _report(assigned, config, findings)
    on_partial(replace(report, seconds=time.monotonic() - start))
    progress(Phase.MEASURE_LENGTHS, "", 0, 0)
    lengths, length_findings = _check_lengths(assigned, config)
    findings = _by_severity([*report.findings, *length_findings])
    seconds = time.monotonic() - start
    return replace(report, lengths=lengths, findings=findings, seconds=seconds)


def _by_severity(findings: list[Finding]) -> list[Finding]:
    order = ("blocks", "warns", "notes")
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _report_columns(config: RunConfig, root: Path, error: DataError) -> CheckReport:
    """A report of a source whose columns are unclear, with its first rows for the user to choose
    by; `error` is raised again where it cannot be opened."""
    try:
        source = sources.open_source(config, root)
    except DataError:
        raise error from None
    guesses = columns.guess_columns(list(source.columns))
    roles = dict(zip(("sentence1", "sentence2", "label"), guesses, strict=True))
    usable = [name for name, reason in source.columns.items() if not reason]
    examples = []
    for line, cells in islice(source.rows("train", usable, "", lambda *_: None), MAX_EXAMPLES):
        text = "; ".join(f"{name}: {cell}" for name, cell in zip(usable, cells, strict=False))
        examples.append(Example("train", line, note=text[:EXAMPLE_CHARACTERS]))
    remedies = _column_choices(config, roles, usable)
    return CheckReport(
        source=source.name,
        revision=source.revision,
        choices=source.columns,
        columns=roles,
        findings=[Finding("columns", "blocks", error.fact, 0, error.remedy, examples, remedies)],
        notes=source.notes,
        sheets=source.sheets,
    )


def _column_choices(config: RunConfig, guesses: dict[str, str], usable: list[str]) -> list[Remedy]:
    """A button for each column that can have the first role that none has."""
    columns = {role: getattr(config, f"{role}_column") or guesses[role] for role in guesses}
    free = [name for name in usable if name not in columns.values()][:6]
    if not columns["sentence1"]:
        texts = [_("{name!r} is the first sentence", name=name) for name in free]
        return [Remedy("sentence1_column", *choice) for choice in zip(free, texts, strict=True)]
    texts = [_("{name!r} is the label", name=name) for name in free if not columns["label"]]
    return [Remedy("label_column", *choice) for choice in zip(free, texts, strict=False)]


def _report(assigned: SplitRows, config: RunConfig, findings: list[Finding]) -> CheckReport:
    """The report without lengths; what blocks training is added to the findings."""
    dataset, counts = assigned.dataset, assigned.class_counts()
    action = _("Training is not possible with these rows.")
    blocks = [Finding("impossible", "blocks", text, 0, action) for text in assigned.blocks]
    try:
        positive = columns.positive_class(dataset.labels, config.positive_label)
    except DataError as error:
        remedies = _class_choices(dataset.labels)
        finding = Finding("positive", "blocks", error.fact, 0, error.remedy, remedies=remedies)
        blocks.append(finding)
        positive = min(1, len(dataset.labels) - 1)
    majority, fingerprint = {}, ""
    if not blocks:
        majority = classification.majority_scores(counts["train"], counts["validation"], positive)
        fingerprint = assigned.fingerprint(positive)
    report = CheckReport(
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
        lengths=TokenLengths(note=_("They are measured once the tokenizer is loaded.")),
        notes=dataset.notes,
        sheets=dataset.sheets,
        fingerprint=fingerprint,
    )
    if not blocks:
        findings = [*_positive_class(config, report), *findings, *_class_balance(report)]
    return replace(report, findings=_by_severity([*blocks, *findings]))


def _class_choices(labels: Sequence[str]) -> list[Remedy]:
    """A button for each of a few classes."""
    return [Remedy("positive_label", name, _("It is {name!r}", name=name)) for name in labels[:4]]


def _positive_class(config: RunConfig, report: CheckReport) -> Iterator[Finding]:
    """Asks which of two classes is the positive one where their names do not say it."""
    if columns.is_positive_plain(report.labels):
        return
    if config.positive_label:
        title = _("The positive class is {name!r}.", name=report.positive_label)
        undo = Remedy("positive_label", "", _("Undo"))
        action = _("You chose it; F1, precision and recall are of it.")
        yield Finding("positive", "warns", title, 0, action, remedies=[undo], done=True)
        return
    first, second = report.labels
    title = _(
        "Which class is the positive one, {first!r} or {second!r}?", first=first, second=second
    )
    action = _(
        "F1, precision and recall are of it: the one you look for, such as the duplicates. Until "
        "positive_label says it, {name!r} is taken.",
        name=report.positive_label,
    )
    remedies = _class_choices(report.labels)
    yield Finding("positive", "warns", title, 0, action, remedies=remedies)


def _check_lengths(assigned: SplitRows, config: RunConfig) -> tuple[TokenLengths, list[Finding]]:
    """The lengths of the training rows, and what is wrong with them."""
    findings = []
    try:
        lengths = token_lengths.check_lengths(assigned, config)
    except ModelError as error:
        findings.append(Finding("tokenizer", "blocks", error.fact, 0, error.remedy))
        lengths = TokenLengths(note=_("The lengths are missing. {fact}", fact=error.fact))
    if lengths.cut > 0:
        title = _(
            "Rows longer than max_length ({max_length} tokens): {cut:.1%}",
            max_length=lengths.max_length,
            cut=lengths.cut,
        )
        action = _("Their ends are cut off; the longest has {n} tokens.", n=lengths.longest)
        severe, count = lengths.cut > 0.05, round(lengths.cut * lengths.of)
        findings.append(Finding("cut", "warns" if severe else "notes", title, count, action))
    return lengths, findings


def _row_findings(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    """What is wrong with rows, of which duplicates and leaked ones are not left out."""
    yield from _unread_cells(config, assigned)
    yield from _incomplete_rows(config, assigned)
    yield from _leaked_rows(config, assigned)
    yield from _conflicting_labels(assigned)
    yield from _duplicates(config, assigned)
    yield from _small_splits(assigned)
    yield from _shared_sentences(assigned)


def _rows_finding(
    assigned: SplitRows,
    kind: str,
    title: str,
    action: str,
    rows: Sequence[tuple[str, Integers]],
    remedy: Callable[[int], Remedy] | None = None,
) -> Iterator[Finding]:
    """A warning of some rows of the dataset's splits, `done` where its remedy takes one back; none
    where there are none."""
    if count := sum(len(indices) for _, indices in rows):
        examples: list[Example] = []
        for split, indices in rows:
            shown = indices[: MAX_EXAMPLES - len(examples)]
            examples += assigned.dataset.examples_of(split, shown, EXAMPLE_CHARACTERS)
        remedies = [remedy(count)] if remedy else []
        done = bool(remedies) and not remedies[0].value
        yield Finding(kind, "warns", title, count, action, examples, remedies, done)


def _leave_out(config: RunConfig, field: str, count: int) -> Remedy:
    """The button that leaves some rows out, or takes that back."""
    if getattr(config, field):
        return Remedy(field, False, _("Undo"))
    text = {
        ("drop_leaked", True): _("Leave out 1 leaked row"),
        ("drop_leaked", False): _("Leave out {count:,} leaked rows", count=count),
        ("drop_duplicates", True): _("Leave out 1 repeat"),
        ("drop_duplicates", False): _("Leave out {count:,} repeats", count=count),
    }
    return Remedy(field, True, text[field, count == 1])


def _unread_cells(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    """Rows that are broken, and a column that may be the other sentence, which nobody left out."""
    dataset = assigned.dataset
    if count := sum(dataset.unreadable.values()):
        action = _("They are left out; mend those lines and upload the file again to have them.")
        rows = [
            Example(split, line, note=reason)
            for split, examples in dataset.examples.items()
            for line, reason in examples
        ]
        lines = some([row.line for row in rows], 3)
        title = _("Rows that could not be read: line {lines}", lines=lines)
        yield Finding("unreadable", "warns", title, count, action, rows)
    used = (dataset.columns.sentence1, dataset.columns.label)
    unused = [name for name, why in dataset.choices.items() if not why and name not in used]
    if not dataset.paired and not config.sentence2_column and unused:
        title = _("Single sentences: only {column!r} is read.", column=used[0])
        action = _(
            "Not read: {columns}. Where one of these is the other sentence of a pair, choose "
            "it as sentence2_column; else choose {no_column}.",
            columns=some(unused),
            no_column=NO_COLUMN,
        )
        choices = [(name, _("Pair it with {name!r}", name=name)) for name in unused[:4]]
        choices.append((NO_COLUMN, _("They are single sentences")))
        remedies = [Remedy("sentence2_column", name, text) for name, text in choices]
        yield Finding("single", "notes", title, 0, action, remedies=remedies)


def _incomplete_rows(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    empty, unlabelled = [], []
    for split, keys in assigned.hashes.items():
        complete = keys.complete(assigned.dataset.paired)
        empty.append((split, np.flatnonzero(~complete)))
        own = not catalog.is_hub_dataset(config.dataset)
        if own or split == "train" or (keys.label >= 0).any():  # GLUE's test splits have none
            unlabelled.append((split, np.flatnonzero(complete & (keys.label < 0))))
    action = _("They are left out.")
    title = _("Rows with an empty or missing sentence")
    yield from _rows_finding(assigned, "empty", title, action, empty)
    title = _("Rows without a label")
    yield from _rows_finding(assigned, "unlabelled", title, action, unlabelled)


def _leaked_rows(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    action = _(
        "They are kept, and the score will flatter the model; drop_leaked leaves them out of train."
    )
    if config.drop_leaked:
        action = _("They are left out of train.")
    remedy = partial(_leave_out, config, "drop_leaked")
    for name, leaked in assigned.leaked().items():
        title = _(
            "Leakage: training rows that stand in {split} too, in either order, but for "
            "case, white space or punctuation at the ends",
            split=name,
        )
        rows = [(assigned.rows["train"][0], leaked)]
        yield from _rows_finding(assigned, "leakage", title, action, rows, remedy)


def _conflicting_labels(assigned: SplitRows) -> Iterator[Finding]:
    """Rows whose pair has another label elsewhere, in any split."""
    keys, classes = list(map(assigned.of, assigned.rows)), max(1, len(assigned.dataset.labels))
    ordered = np.concatenate([key.ordered for key in keys])
    group = np.unique(ordered, return_inverse=True)[1]
    labels = np.concatenate([key.label for key in keys])
    labels_of_group = np.bincount(np.unique(group * classes + labels) // classes)
    conflicting = labels_of_group[group] > 1
    conflicts, start = [], 0
    for origin, rows in assigned.rows.values():
        end = start + len(rows)
        order = np.argsort(group[start:end], kind="stable")  # rows of a pair stand together
        conflicts.append((origin, rows[order][conflicting[start:end][order]]))
        start = end
    title = _("Rows whose pair has another label elsewhere")
    action = _(
        "They are kept; one of the labels is wrong, and no model can learn both. Of equal "
        "pairs in a split drop_duplicates keeps the first."
    )
    yield from _rows_finding(assigned, "conflicts", title, action, conflicts)


def _duplicates(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    action = _("They are kept and count more than once; drop_duplicates leaves the later ones out.")
    if config.drop_duplicates:
        action = _("The later ones are left out.")
    repeated = []
    for name, (origin, rows) in assigned.rows.items():
        first = np.unique(assigned.of(name).ordered, return_index=True)[1]
        repeated.append((origin, np.delete(rows, first)))
    title = _("Rows that repeat an earlier pair of their split")
    remedy = partial(_leave_out, config, "drop_duplicates")
    yield from _rows_finding(assigned, "duplicates", title, action, repeated, remedy)


def _class_balance(report: CheckReport) -> Iterator[Finding]:
    """Whether one class is so common that accuracy flatters, and what a constant answer scores."""
    counts = next(split.classes for split in report.splits if split.name == "train")
    classes = len(counts)
    label = report.labels[int(np.argmax(counts))]
    share = max(counts) / sum(counts)
    imbalance = (share - 1 / classes) / (1 - 1 / classes)
    if imbalance < IMBALANCED:
        return
    advice = _("Macro F1 and MCC tell more than accuracy.")
    severe = imbalance >= VERY_IMBALANCED
    if severe:
        advice = _(
            "{advice} class_weights can be set to balanced, or rows of the rarer added.",
            advice=advice,
        )
    title = _(
        "Classes out of balance: {share:.1%} of the training rows are {label!r}",
        share=share,
        label=label,
    )
    action = _(
        "Always answering that scores accuracy {accuracy:.3f}, {metric} {f1:.3f} and MCC 0 "
        "on validation. {advice}",
        accuracy=report.majority["accuracy"],
        f1=report.majority["f1"],
        metric=metric_name("f1", classes),
        advice=advice,
    )
    yield Finding("balance", "warns" if severe else "notes", title, max(counts), action)


def _shared_sentences(assigned: SplitRows) -> Iterator[Finding]:
    """Rows of a validation split cut from train, where it could not be had without them."""
    if assigned.rows["validation"][0] != "train" or not assigned.dataset.paired:
        return
    train, validation = assigned.of("train"), assigned.of("validation")
    known = np.union1d(train.first, train.second)
    count = int((np.isin(validation.first, known) | np.isin(validation.second, known)).sum())
    if count:
        title = _("Validation rows that share a sentence with training rows")
        action = _(
            "They were cut from train, where almost every row shares a sentence with others: the "
            "scores are of new pairs, not of new sentences."
        )
        yield Finding("shared", "notes", title, count, action)


def _small_splits(assigned: SplitRows) -> Iterator[Finding]:
    train, validation = (len(assigned.rows[name][1]) for name in ("train", "validation"))
    if 0 < train < FEW:
        title = _("Only {train} training rows", train=train)
        action = _("A few hundred are the least from which a model learns something that lasts.")
        yield Finding("few", "warns", title, train, action)
    if not validation:
        return
    margin = intervals.accuracy_margin(validation)
    if margin > SLIGHTLY_UNCERTAIN:
        title = _(
            "Only {rows} validation rows: they tell accuracy to \u00b1{points:.0f} points",
            rows=validation,
            points=100 * margin,
        )
        action = _(
            "That is half the 95% interval of an accuracy near 0.5; scores that differ by less "
            "tell nothing. Bring more validation rows, or raise validation_share where they "
            "are cut from train."
        )
        severe = margin > UNCERTAIN
        yield Finding("few-validation", "warns" if severe else "notes", title, validation, action)
