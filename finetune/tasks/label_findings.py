"""Findings about a column of several labels: how it is read, and which labels few, all or no rows
have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from finetune.config import RunConfig
from finetune.errors import some
from finetune.findings import Finding, Remedy, RowsFinding, shorten
from finetune.messages import message as _
from finetune.metrics import catalog
from finetune.tasks import class_findings, label_lists
from finetune.tasks.base import SINGLE_LABEL, Findings, LabelledRows
from finetune.tasks.cells import MARKS
from finetune.tasks.classes import MAX_CLASSES

RARE = 5  # a label of fewer training rows is named


def blocks(labels: LabelledRows) -> Findings:
    """The finding that makes training impossible, if there is one."""
    none = class_findings.unknown_changes(labels) or class_findings.no_rows(labels, "train")
    return none or _no_labels(labels) or class_findings.no_rows(labels, "validation")


def _no_labels(labels: LabelledRows) -> Findings:
    column, count = labels.column.name, len(labels.reading.names)
    one = Remedy("task", SINGLE_LABEL, _("One class for each row"))
    if count < 2:
        text = _("The column {column!r} has fewer than two labels.", column=column)
        return class_findings.impossible(text, "one-label", one)
    text = _(
        "The column {column!r} has {count:,} different labels: rather texts or ids.",
        column=column,
        count=count,
    )
    return class_findings.impossible(text, "too-many-labels", one) if count > MAX_CLASSES else []


def questions(config: RunConfig, labels: LabelledRows) -> Findings:
    """What a person must say before these rows can be trained on."""
    if not labels.reading.unclear:
        return []
    rows = class_findings.rows_spelled(labels, sorted(labels.reading.unlabelled))
    text = _("It means 0: the label is not given")
    return [class_findings.no_label(config, labels.column.name, rows, "0", text)]


def findings(
    config: RunConfig, labels: LabelledRows, constant: Mapping[str, float]
) -> Iterator[Finding | RowsFinding]:
    """Report how cells are read, cells that cannot be, and labels of few, all or no rows.

    Args:
        constant: the scores of always giving the commonest labels, by name.
    """
    column, members = labels.column, labels.reading.members
    yield _several_labels(config, labels)
    yield from class_findings.changed_labels(config)
    if labels.reading.notation == "shares":
        title = _("The column {column!r} has numbers between 0 and 1.", column=column.name)
        action = _("A row has a label from 0.5 on. For another limit, write 0 and 1.")
        yield Finding("shares", "warns", title, 0, action)
    yield class_findings.unreadable(labels, [n for n, of in enumerate(members) if of is None])
    yield from _names(config, labels)
    if not blocks(labels):
        yield from _few_rows(config, labels)
    if f"{constant.get(catalog.OF_LABELS[0].name, 0):.3f}" == "1.000":
        title = _("Always giving the same labels already reaches micro F1 1.000.")
        action = _("No model can do better, so its score says nothing.")
        yield Finding("constant", "warns", title, 0, action)


def _several_labels(config: RunConfig, labels: LabelledRows) -> Finding:
    """Say how labels are read, with buttons for the other possibilities."""
    reading, column, kind = labels.reading, labels.column, "several-labels"
    if column.joined:
        title = _("Each of these columns is a label: {columns}", columns=column.name)
        action = _(
            "A row has those in whose column it has 1 or a mark such as x. An empty cell is 0."
        )
        if reading.notation == "labels":
            title = _("The labels of a row are in these columns: {columns}", columns=column.name)
            action = _("Each cell that is not empty is a label.")
        return Finding(kind, "notes", title, 0, action)
    title = _(
        "The column {column!r} holds several labels per row, such as {listed!r}.",
        column=column.name,
        listed=shorten(reading.example, 60),
    )
    action, others = _("Each is read as a list of labels."), []
    if reading.notation == "text":
        action = _("Each is read as one label.")
        others = [mark for mark in MARKS if mark != reading.separator and mark in reading.example]
    if reading.separator:
        mark = label_lists.NAMES.get(reading.separator, reading.separator)
        action = _("The labels between {mark!r} are learned each by itself.", mark=mark)
    remedies = [
        Remedy("label_separator", mark, _("They are separated by {mark!r}", mark=mark))
        for mark in others
    ]
    done = config.label_separator != "auto"
    if done:
        remedies = [Remedy("label_separator", "auto", _("Undo"))]
    else:
        remedies.append(Remedy("task", SINGLE_LABEL, _("Each combination is a class of its own")))
    return Finding(kind, "notes", title, 0, action, remedies=remedies, done=done)


def _names(config: RunConfig, labels: LabelledRows) -> Iterator[Finding]:
    """Ask for the names of labels that are called by their places."""
    if labels.reading.notation != "places" or config.label_map:
        return
    title = _(
        "The column {column!r} has 0 or 1 for each of {count} labels, but not their names.",
        column=labels.column.name,
        count=len(labels.reading.names),
    )
    action = _(
        "They are called by their places, from 1. Name them by label_map, such as {names}.",
        names="'1=first 2=second'",
    )
    yield Finding("label-names", "warns", title, 0, action)


def _few_rows(config: RunConfig, labels: LabelledRows) -> Iterator[Finding]:
    names = labels.reading.names
    counts = {split: (labels.of(split) > 0).sum(axis=0) for split in labels.rows}
    every, train = sum(counts.values()), counts["train"]
    rare = np.flatnonzero((train < RARE) & (every > 0))
    if len(rare):
        title = _(
            "Labels of fewer than {few} training rows: {names}",
            few=RARE,
            names=some([f"{names[label]!r} ({train[label]})" for label in rare]),
        )
        action = _(
            "A model hardly learns them. Merge them with others or leave them out (label_map), or "
            "bring more rows."
        )
        yield Finding("rare-labels", "warns", title, 0, action)
    for kind, found in (
        ("label-of-none", np.flatnonzero(every == 0)),
        ("label-of-all", np.flatnonzero(train == len(labels.of("train")))),
    ):
        if len(found):
            yield _nothing_to_learn(config, kind, [names[label] for label in found])
    for split, rows in counts.items():
        missing = np.flatnonzero((rows == 0) & (train > 0))
        if len(missing) and len(labels.of(split)):
            title = _(
                "Labels that no row of {split} has: {names}",
                split=split,
                names=some([repr(names[label]) for label in missing]),
            )
            action = _("How well they are found is not measured there.")
            yield Finding("missing-labels", "warns", title, 0, action)
    unlabelled = int((~(labels.of("train") > 0).any(axis=1)).sum())
    if unlabelled:
        title = _("Training rows without any label")
        action = _("They are learned from: none of the labels is right for them.")
        yield Finding("no-labels", "notes", title, unlabelled, action)


def _nothing_to_learn(config: RunConfig, kind: str, names: list[str]) -> Finding:
    """Report labels that no row has, or that every training row has."""
    shown = some([*map(repr, names)])
    title = {
        "label-of-none": _("Labels that no row has: {names}", names=shown),
        "label-of-all": _("Labels that every training row has: {names}", names=shown),
    }
    action = {
        "label-of-none": _("A model learns never to give them, and each counts as 0 in macro F1."),
        "label-of-all": _("A model learns to give them to every row, whatever it says."),
    }
    text = _("Leave them out")
    remedies = class_findings.change(config, dict.fromkeys(names, ""), text)
    return Finding(kind, "warns", title[kind], 0, action[kind], remedies=remedies)
