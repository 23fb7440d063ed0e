"""Findings about the classes of a label column: accidental, rare or unclear ones."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from finetune.config import RunConfig
from finetune.data import classes, splits
from finetune.data.check_report import CheckReport, Finding, Remedy, shorten
from finetune.data.row_findings import rows_finding
from finetune.data.splits import SplitRows
from finetune.errors import DataError, some
from finetune.messages import message as _
from finetune.metrics.catalog import ACCURACY, F1, metric_name
from finetune.text_hashes import Integers

# Imbalance, from 0 for even classes to 1 for a single one. MRPC's 68/32 is 0.35: accuracy alone
# flatters. From 90/10 on, 0.8, it says next to nothing, and a model may learn to answer one class.
IMBALANCED, VERY_IMBALANCED = 0.3, 0.8
_MOST_CHANGES = 300  # the longest `label_map`, in characters
_EITHER_CASE = {"true", "false", "yes", "no", "t", "f", "y", "n", "ja", "nein", "j"}


def blocking_findings(config: RunConfig, assigned: SplitRows) -> list[Finding]:
    """The reasons why these rows cannot be trained on, or the questions to answer first."""
    action = _("Training is not possible with these rows.")
    findings = []
    for kind, text in assigned.blocks.items():
        remedies = [Remedy("label_map", "", _("Undo"))] if kind == "label-map" else []
        findings.append(Finding(kind, "blocks", text, 0, action, remedies=remedies))
    if assigned.rare and config.rare_classes == "ask":
        findings += _rare_classes(config, assigned)
    try:
        classes.positive_class(assigned.labels, config.positive_label)
    except DataError as error:
        remedies = class_choices(assigned.labels)
        finding = Finding("positive", "blocks", error.fact, 0, error.remedy, remedies=remedies)
        findings.append(finding)
    return findings


def class_findings(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    """Report how spellings of labels became classes, and what was chosen about the classes."""
    if config.label_map:
        title = _("Labels that you changed: {changes}", changes=config.label_map)
        yield _answered("label-map", title, Remedy("label_map", "", _("Undo")))
    if assigned.rare and config.rare_classes != "ask":
        undo = Remedy("rare_classes", "ask", _("Undo"))
        yield _answered("rare-classes", splits.ask_about_rare(assigned.rare)[0], undo)
    yield from _no_agreement(config, assigned)
    yield from _spellings(config, assigned)
    yield from _capitals(config, assigned)
    if classes.holds_several(assigned.labels):
        listed = max(assigned.labels, key=len)
        title = _(
            "The column {column!r} holds several labels a row, such as {listed!r}.",
            column=assigned.dataset.columns.label,
            listed=shorten(listed, 60),
        )
        action = _("Each combination of labels is learned as a class of its own.")
        yield Finding("several-labels", "warns", title, 0, action)


def _answered(kind: str, title: str, undo: Remedy) -> Finding:
    return Finding(kind, "notes", title, 0, _("You chose it."), remedies=[undo], done=True)


def _change(config: RunConfig, changes: Mapping[str, str], text: str) -> list[Remedy]:
    """The button that adds changes of labels to those of a configuration; none if it cannot hold
    them all."""
    changed = config.changed_labels | {classes.changeable(old): new for old, new in changes.items()}
    value = shlex.join(f"{old}={new}" for old, new in changed.items())
    return [Remedy("label_map", value, text)] if len(value) <= _MOST_CHANGES else []


def _rare_classes(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    title, action = splits.ask_about_rare(assigned.rare)
    others = [name for name in assigned.labels if name not in assigned.rare]
    remedies: list[Remedy] = []
    for name in list(assigned.rare)[:4]:
        if similar := classes.similar_class(name, others):
            text = _("{name!r} is {other!r}", name=name, other=similar)
            remedies += _change(config, {name: similar}, text)
    remedies.append(Remedy("rare_classes", "leave_out", _("Leave out their rows")))
    remedies.append(Remedy("rare_classes", "keep", _("Keep them as classes")))
    codes = [assigned.labels.index(name) for name in assigned.rare]
    rows = [
        (split, np.flatnonzero(np.isin(keys.label, codes)))
        for split, keys in assigned.hashes.items()
    ]
    yield from rows_finding(
        assigned, "rare-classes", title, action, rows, remedies=remedies, severity="blocks"
    )


def _rows_spelled(assigned: SplitRows, spellings: Sequence[int]) -> list[tuple[str, Integers]]:
    """The rows whose label has one of these spellings, by split."""
    dataset = assigned.dataset
    return [
        (split, np.flatnonzero(np.isin(dataset.hashes(split).label, spellings)))
        for split in dataset.rows
    ]


def _no_agreement(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    if not (names := assigned.classes.no_agreement):
        return
    spellings = assigned.dataset.spellings
    indices = [n for n, text in enumerate(spellings) if classes.clean_label(text) in names]
    title = _("Rows whose annotators did not agree on a label ({names})", names=some(names))
    remedies = _change(config, {name: name for name in names}, _("It is a class"))
    action = _("They are left out.")
    rows = _rows_spelled(assigned, indices)
    yield from rows_finding(
        assigned, "no-agreement", title, action, rows, remedies=remedies, severity="notes"
    )


def _spellings(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    """Report labels that look the same but have different characters."""
    names, odd = [], []
    for members in assigned.classes.members():
        texts = [assigned.dataset.spellings[index] for index in members]
        if any(classes.changeable(text) in config.changed_labels for text in texts):
            continue
        own = assigned.labels[assigned.classes.codes[members[0]]]
        others = [n for n, text in zip(members, texts, strict=True) if text.lower() != own.lower()]
        if others and len({text.lower() for text in texts}) > 1:
            names.append(repr(own))
            odd += others
    title = _(
        "Labels that look alike but have other characters (composed or not, invisible, of another "
        "width) are one class: {names}",
        names=some(names),
    )
    action = _("They are read as one class.")
    rows = _rows_spelled(assigned, odd)
    yield from rows_finding(assigned, "spellings", title, action, rows, severity="notes")


def _capitals(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    """Report labels that differ only in case, except for words written either way."""
    changes: dict[str, str] = {}
    rarer, shown = [], []
    for members in assigned.classes.members():
        name = assigned.labels[assigned.classes.codes[members[0]]]
        others = {classes.clean_label(assigned.dataset.spellings[n]): n for n in members}
        others = {text: n for text, n in others.items()
                  if text != name and text.lower() == name.lower()
                  and text.lower() not in _EITHER_CASE
                  and classes.changeable(text) not in config.changed_labels}  # fmt: skip
        if others:
            shown.append(" / ".join([name, *others]))
            rarer += list(others.values())
            changes |= dict.fromkeys(others, name)
    title = _("Labels that differ in case only are taken as one class: {names}", names=some(shown))
    action = _("Say whether they are one.")
    remedies = _change(config, changes, _("They are one class"))
    remedies += _change(config, {text: text for text in changes}, _("They are different classes"))
    rows = _rows_spelled(assigned, rarer)
    yield from rows_finding(assigned, "case", title, action, rows, remedies=remedies)


def class_choices(labels: Sequence[str]) -> list[Remedy]:
    """Make a button for each of the first four classes."""
    return [Remedy("positive_label", name, _("It is {name!r}", name=name)) for name in labels[:4]]


def positive_class(config: RunConfig, report: CheckReport) -> Iterator[Finding]:
    """Ask which of two classes is the positive one, unless their names say it."""
    if classes.is_positive_plain(report.labels):
        return
    if config.positive_label:
        title = _("The positive class is {name!r}.", name=report.positive_label)
        undo = Remedy("positive_label", "", _("Undo"))
        action = _("You chose it; F1, precision and recall are computed for it.")
        yield Finding("positive", "warns", title, 0, action, remedies=[undo], done=True)
        return
    first, second = report.labels
    title = _(
        "Which class is the positive one, {first!r} or {second!r}?", first=first, second=second
    )
    action = _(
        "It is the answer you are looking for, such as the duplicates; F1, precision and recall "
        "are computed for it. Until positive_label is set, {name!r} is used.",
        name=report.positive_label,
    )
    remedies = class_choices(report.labels)
    yield Finding("positive", "warns", title, 0, action, remedies=remedies)


def class_balance(report: CheckReport) -> Iterator[Finding]:
    """Report a class so common that accuracy flatters, and the scores of always answering it."""
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
        accuracy=report.majority[ACCURACY.name],
        f1=report.majority[F1.name],
        metric=metric_name(F1.name, classes),
        advice=advice,
    )
    yield Finding("balance", "warns" if severe else "notes", title, max(counts), action)
