"""Findings about a column of several labels: how it is read, and which are rare or missing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from finetune.config import RunConfig
from finetune.errors import some
from finetune.findings import Finding, Remedy, RowsFinding, shorten
from finetune.messages import message as _
from finetune.tasks.base import SINGLE_LABEL, LabelledRows
from finetune.tasks.classes import MAX_CLASSES
from finetune.tasks.label_lists import LIST, MARKS

RARE = 5  # a label of fewer training rows is named


def blocks(labels: LabelledRows) -> dict[str, str]:
    """The kinds of findings that make training impossible, each with the reason."""
    train, reading = labels.of("train"), labels.reading
    if reading.unknown:
        names = some(reading.unknown)
        text = _("label_map changes {names}, but no row has that label.", names=names)
        return {"label-map": text}
    if not len(train):
        text = _("No row of {source} can be trained on.", source=labels.column.source)
        return {"impossible": text}
    column = labels.column.name
    if len(reading.names) < 2:
        text = _("The column {column!r} has fewer than two labels.", column=column)
        return {"one-label": text}
    if len(reading.names) > MAX_CLASSES:
        text = _(
            "The column {column!r} has {count:,} different labels: rather texts or ids.",
            column=column,
            count=len(reading.names),
        )
        return {"too-many-labels": text}
    if not len(labels.of("validation")):
        return {"impossible": _("No row is left for validation.")}
    return {}


def problems(labels: LabelledRows) -> list[Finding | RowsFinding]:
    """The reasons why these rows cannot be trained on."""
    action = _("Training is not possible with these rows.")
    remedies = {
        "label-map": [Remedy("label_map", "", _("Undo"))],
        "one-label": [Remedy("task", SINGLE_LABEL, _("One class for each row"))],
        "too-many-labels": [Remedy("task", SINGLE_LABEL, _("One class for each row"))],
    }
    return [
        Finding(kind, "blocks", text, 0, action, remedies=remedies.get(kind, []))
        for kind, text in blocks(labels).items()
    ]


def findings(config: RunConfig, labels: LabelledRows) -> Iterator[Finding | RowsFinding]:
    """Report how cells are read, cells that are no list, and labels that are rare or missing."""
    yield _separator(config, labels)
    if config.label_map:
        title = _("Labels that you changed: {changes}", changes=config.label_map)
        undo = Remedy("label_map", "", _("Undo"))
        chosen = _("You chose it.")
        yield Finding("label-map", "notes", title, 0, chosen, remedies=[undo], done=True)
    unreadable = [number for number, of in enumerate(labels.reading.members) if of is None]
    title = _("Cells of the column {column!r} that are no list", column=labels.column.name)
    rows = [
        (split, np.flatnonzero(np.isin(codes, unreadable)))
        for split, codes in labels.column.codes.items()
    ]
    yield RowsFinding("no-list", "warns", title, _("They are left out."), rows)
    if not blocks(labels):
        yield from _few_rows(labels)


def _separator(config: RunConfig, labels: LabelledRows) -> Finding:
    """Say what was taken to be between labels, with buttons for the other possibilities."""
    reading = labels.reading
    if labels.column.joined:
        title = _("Each of these columns is a label: {columns}", columns=labels.column.name)
        action = _("A row has those in whose column it has 1.")
        return Finding("several-labels", "notes", title, 0, action)
    title = _(
        "The column {column!r} holds several labels per row, such as {listed!r}.",
        column=labels.column.name,
        listed=shorten(reading.example, 60),
    )
    read = {
        LIST: _("Each is read as a list of labels."),
        "": _("Each is read as one label."),
    }
    action = read.get(reading.separator) or _(
        "The labels between {mark!r} are learned each by itself.", mark=reading.separator
    )
    others = [mark for mark in MARKS if mark != reading.separator and mark in reading.example]
    remedies = [
        Remedy("label_separator", mark, _("They are separated by {mark!r}", mark=mark))
        for mark in others
    ]
    done = config.label_separator != "auto"
    if done:
        remedies = [Remedy("label_separator", "auto", _("Undo"))]
    else:
        remedies.append(Remedy("task", SINGLE_LABEL, _("Each combination is a class of its own")))
    return Finding("several-labels", "notes", title, 0, action, remedies=remedies, done=done)


def _few_rows(labels: LabelledRows) -> Iterator[Finding]:
    names = labels.reading.names
    counts = {split: (labels.of(split) > 0).sum(axis=0) for split in labels.rows}
    rare = np.flatnonzero((counts["train"] < RARE) & (sum(counts.values()) > 0))
    if len(rare):
        title = _(
            "Labels of fewer than {few} training rows: {names}",
            few=RARE,
            names=some([f"{names[label]!r} ({counts['train'][label]})" for label in rare]),
        )
        action = _(
            "A model hardly learns them. Merge them with others or leave them out (label_map), or "
            "bring more rows."
        )
        yield Finding("rare-labels", "warns", title, 0, action)
    for split, rows in counts.items():
        missing = np.flatnonzero((rows == 0) & (counts["train"] > 0))
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
