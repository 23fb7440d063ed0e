"""Read a label column as classes, and report accidental, rare or unclear ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.errors import DataError, some
from finetune.findings import Finding, Remedy, question, shorten
from finetune.messages import message as _
from finetune.metrics.catalog import ACCURACY, F1, metric_name
from finetune.tasks import cells, classes, scores
from finetune.tasks.base import MISSING_LABEL, MULTI_LABEL, SINGLE_LABEL, Target, Targets, Task
from finetune.tasks.cells import NO_LABEL, clean_label
from finetune.tasks.classes import Classes, LabelEncoder, make_classes
from finetune.tasks.labels import LabelledRows, answered, changeable, impossible

# Imbalance, from 0 for even classes to 1 for a single one. MRPC's 68/32 is 0.35: accuracy alone
# flatters. From 90/10 on, 0.8, it says next to nothing, and a model may learn to answer one class.
IMBALANCED, VERY_IMBALANCED = 0.3, 0.8
RARE = 5  # a class of fewer training rows is asked about
_EACH_LABEL = Remedy("task", MULTI_LABEL, _("Learn each label by itself"))
_COMBINATIONS = Remedy("task", SINGLE_LABEL, _("Each combination is a class of its own"))
_EITHER_CASE = {"true", "false", "yes", "no", "t", "f", "y", "n", "ja", "nein", "j"}


class ReadsClasses(Task):
    """Reads a label column as classes."""

    encoder: type[Any] = LabelEncoder
    left_out = _("the label is no class")

    def cell(self, spellings: Sequence[str], code: Any) -> str:
        return clean_label(spellings[code]) if code >= 0 else ""

    def read(self, labels: LabelledRows) -> Classes:
        changes, spellings = labels.config.changed_labels, labels.spellings
        read = make_classes(spellings, labels.counts(), labels.named, changes)
        if labels.named:
            return read
        marks = len(read.names) == 1 and all(map(cells.mark_of, spellings))
        if marks and any((codes == MISSING_LABEL).any() for codes in labels.codes.values()):
            # All others are one mark, such as x, so that empty cells are a class.
            read = replace(read, names=[classes.EMPTY, *read.names], table=read.table + 1)
        doubted = [name for name in read.names if name.lower() in cells.DOUBTFUL]
        doubted += [NO_LABEL] * classes.may_be_unlabelled(read.names)
        unclear = next((name for name in doubted if changeable(name) not in changes), "")
        return replace(read, unclear=unclear, separator=cells.suggest_separator(spellings))

    def settle(self, labels: LabelledRows) -> tuple[Classes, bool]:
        few = {} if self.questions(labels) or self.blocks(labels) else _rare_classes(labels)
        reading = replace(labels.reading, rare=labels.reading.rare | few)
        if not few or labels.config.rare_classes != "leave_out":
            return reading, False
        return reading.without(few), True

    def questions(self, labels: LabelledRows) -> list[Finding]:
        asked: list[Finding] = []
        if labels.reading.separator and not labels.config.task:
            title = _(
                "Does the column {column!r} hold several labels per row, such as {listed!r}?",
                column=labels.column,
                listed=_listed(labels),
            )
            asked.append(question("several-labels", title, [_EACH_LABEL, _COMBINATIONS]))
        if labels.reading.unclear:
            own = labels.reading.unclear
            spelled = [n for n, text in enumerate(labels.spellings) if clean_label(text) == own]
            rows = labels.spelled(spelled)
            # Of few rows it is asked with the other rare classes.
            if own == NO_LABEL or sum(len(own) for _split, own in rows) >= RARE:
                asked.append(labels.no_label(rows, own, _("It is a class")))
        return asked

    def unlearnable(self, labels: LabelledRows) -> list[Finding]:
        train = labels.of("train")
        present, rows = np.unique(train), len(train)
        if len(present) == 1:
            name = labels.reading.names[present[0]]
            text = _("All {count:,} training rows have one class, {name!r}.", count=rows, name=name)
            return impossible(text)
        text = _(
            "The column {column!r} has {classes:,} different values in {count:,} training rows: "
            "texts or ids rather than classes.",
            column=labels.column,
            classes=len(present),
            count=rows,
        )
        return impossible(text, "too-many-classes") if 2 * len(present) > rows else []

    def undecided(self, labels: LabelledRows) -> list[Finding]:
        """Ask about rare classes, and for a positive class that exists."""
        found, names = [], labels.reading.names
        if labels.reading.rare and labels.config.rare_classes == "ask":
            found.append(_ask_about_rare(labels))
        try:
            classes.positive_class(names, labels.config.positive_label)
        except DataError as error:
            asked = _class_choices(names)
            found.append(Finding("positive", "blocks", error.fact, error.remedy, remedies=asked))
        return found

    def findings(
        self, labels: LabelledRows, train: Targets, constant: Mapping[str, float]
    ) -> Iterator[Finding]:
        """Report how spellings of labels became classes, and what was chosen about the classes."""
        target = self.target(labels) if constant else None
        if target:
            yield from _positive_class(labels.config, target)
        yield from scores.classes_or_score(labels)
        yield from labels.changed()
        if labels.reading.rare and labels.config.rare_classes != "ask":
            undo = Remedy("rare_classes", "ask", _("Undo"))
            yield answered("rare-classes", _name_rare(labels.reading.rare), undo)
        yield from _no_agreement(labels)
        yield _spellings(labels)
        yield _capitals(labels)
        yield _same_values(labels)
        if labels.reading.table[-1] >= 0:
            title = _(
                "Empty cells of the column {column!r} are a class of their own",
                column=labels.column,
            )
            mark = labels.reading.names[-1]
            action = _("All other cells hold the same mark, {mark!r}.", mark=mark)
            yield Finding("empty-cells", "warns", title, action, labels.spelled([MISSING_LABEL]))
        nested = [n for n, cell in enumerate(labels.spellings) if cells.is_nested(cell)]
        yield labels.unreadable(nested)
        if labels.reading.separator and labels.config.task:
            title = _(
                "The column {column!r} holds several labels per row, such as {listed!r}.",
                column=labels.column,
                listed=_listed(labels),
            )
            action = _("Each combination of labels is learned as a class of its own.")
            yield Finding("several-labels", "warns", title, action, remedies=[_EACH_LABEL])
        if target:
            yield from class_balance(train, target, constant)


def _rare_classes(labels: LabelledRows) -> dict[str, int]:
    """Return class -> number of training rows, for classes with fewer than `RARE`.

    Empty if the source itself names its classes, which are then taken as intended.
    """
    if labels.named:
        return {}
    names = labels.reading.names
    counts = {split: np.bincount(labels.of(split), minlength=len(names)) for split in labels.rows}
    found = np.sum(list(counts.values()), axis=0) > 0
    rare = np.flatnonzero(found & (counts["train"] < RARE)).tolist()
    return {names[code]: int(counts["train"][code]) for code in rare}


def _name_rare(rare: Mapping[str, int]) -> str:
    return _(
        "Classes of fewer than {few} training rows: {names}.",
        few=RARE,
        names=some([f"{name!r} ({count})" for name, count in rare.items()]),
    )


def _listed(labels: LabelledRows) -> str:
    """The longest cell of several labels."""
    listed = (text for text in labels.spellings if labels.reading.separator in text)
    return shorten(max(listed, key=len).replace("\n", " \u21b5 "), 60)


def _ask_about_rare(labels: LabelledRows) -> Finding:
    rare, names = labels.reading.rare, labels.reading.names
    action = _(
        "Say whether they are typing errors (label_map, such as 'old=new'), rows to leave out "
        "(rare_classes: leave_out) or classes (keep)."
    )
    others = [name for name in names if name not in rare]
    remedies: list[Remedy] = []
    for name in list(rare)[:4]:
        if similar := classes.similar_class(name, others):
            text = _("{name!r} is {other!r}", name=name, other=similar)
            remedies += labels.change({name: similar}, text)
    remedies.append(Remedy("rare_classes", "leave_out", _("Leave out their rows")))
    remedies.append(Remedy("rare_classes", "keep", _("Keep them as classes")))
    codes = [names.index(name) for name in rare]
    rows = labels.where(lambda spelled: np.isin(labels.reading.targets(spelled), codes))
    return Finding("rare-classes", "blocks", _name_rare(rare), action, rows, remedies)


def _no_agreement(labels: LabelledRows) -> Iterator[Finding]:
    if not (names := labels.reading.no_agreement):
        return
    indices = [n for n, text in enumerate(labels.spellings) if clean_label(text) in names]
    title = _("Rows whose annotators did not agree on a label ({names})", names=some(names))
    remedies = labels.change({name: name for name in names}, _("It is a class"))
    rows = labels.spelled(indices)
    yield Finding("no-agreement", "notes", title, _("They are left out."), rows, remedies)


def _spellings(labels: LabelledRows) -> Finding:
    """Report labels that look the same but have different characters."""
    names, odd = [], []
    for own, spelled in _spellings_of_classes(labels):
        if any(changeable(text) in labels.config.changed_labels for text in spelled.values()):
            continue
        plain = {n: " ".join(text.lower().split()) for n, text in spelled.items()}
        others = [n for n, text in plain.items() if text != own.lower()]
        if others and len(set(plain.values())) > 1:
            names.append(repr(own))
            odd += others
    title = _(
        "Labels that look alike but differ in their characters (composed or not, invisible, full "
        "or half width) are read as one class: {names}",
        names=some(names),
    )
    return Finding("spellings", "notes", title, _("No action is needed."), labels.spelled(odd))


def _spellings_of_classes(labels: LabelledRows) -> Iterator[tuple[str, dict[int, str]]]:
    """Yield each class's name, and its spellings by number."""
    for code, name in enumerate(labels.reading.names):
        members = np.flatnonzero(labels.reading.table[:-1] == code)
        yield name, {index: labels.spellings[index] for index in members.tolist()}


def _capitals(labels: LabelledRows) -> Finding:
    """Report labels that differ only in case, except for words written either way."""
    changes: dict[str, str] = {}
    rarer, shown = [], []
    for name, spelled in _spellings_of_classes(labels):
        others = {clean_label(text): n for n, text in spelled.items()}
        others = {text: n for text, n in others.items()
                  if text != name and text.lower() == name.lower()
                  and text.lower() not in _EITHER_CASE
                  and changeable(text) not in labels.config.changed_labels}  # fmt: skip
        if others:
            shown.append(" / ".join([name, *others]))
            rarer += list(others.values())
            changes |= dict.fromkeys(others, name)
    title = _("Labels that differ in case only are taken as one class: {names}", names=some(shown))
    action = _("Say whether they are one class.")
    remedies = labels.change(changes, _("They are one class"))
    remedies += labels.change({text: text for text in changes}, _("They are different classes"))
    return Finding("case", "warns", title, action, labels.spelled(rarer), remedies)


def _same_values(labels: LabelledRows) -> Finding:
    """Report classes that are one number, or one of yes and no, written in several ways."""
    names, said = labels.reading.names, labels.config.changed_labels
    numbers, marks = [*map(cells.read_number, names)], [*map(cells.mark_of, names)]
    keys: list[Any] = [number and number.by_comma for number in numbers]
    if len(names) > 2 and None not in marks:
        keys = marks
    alike: dict[Any, list[str]] = {}
    for name, key in zip(names, keys, strict=True):
        if key is not None and changeable(name) not in said:
            alike.setdefault(key, []).append(name)
    several = [own for own in alike.values() if len(own) > 1]
    changes = {other: own[0] for own in several for other in own[1:]}
    codes = [names.index(other) for other in changes]
    rows = labels.where(lambda spelled: np.isin(labels.reading.targets(spelled), codes))
    title = _(
        "Classes that may be one, written differently: {names}",
        names=some([" / ".join(own) for own in several]),
    )
    remedies = labels.change(changes, _("They are one class"))
    remedies += labels.change({text: text for text in changes}, _("They are different classes"))
    action = _("Say whether they are one class.")
    return Finding("same-value", "warns", title, action, rows, remedies)


def _class_choices(labels: Sequence[str]) -> list[Remedy]:
    return [Remedy("positive_label", name, _("It is {name!r}", name=name)) for name in labels[:4]]


def _positive_class(config: RunConfig, target: Target) -> Iterator[Finding]:
    """Ask which of two classes is the positive one, unless their names say it."""
    if classes.is_positive_plain(target.names):
        return
    name = target.names[target.positive]
    if config.positive_label:
        title = _("The positive class is {name!r}.", name=name)
        undo = Remedy("positive_label", "", _("Undo"))
        action = _("You chose it; F1, precision and recall are computed for it.")
        yield Finding("positive", "warns", title, action, remedies=[undo], done=True)
        return
    first, second = target.names
    title = _(
        "Which answer are you looking for, {first!r} or {second!r}?", first=first, second=second
    )
    action = _(
        "F1, precision and recall are computed for it. Until positive_label is set, {name!r} is "
        "used.",
        name=name,
    )
    yield Finding("positive", "warns", title, action, remedies=_class_choices(target.names))


def class_balance(
    train: NDArray[Any], target: Target, constant: Mapping[str, float]
) -> Iterator[Finding]:
    """Report a class so common among the training rows that accuracy flatters, and the scores of
    always answering it, by name (`constant`)."""
    counts = np.bincount(train, minlength=target.size)
    label = target.names[int(np.argmax(counts))]
    share = float(max(counts) / sum(counts))
    imbalance = (share - 1 / target.size) / (1 - 1 / target.size)
    if imbalance < IMBALANCED:
        return
    advice = _("Macro F1 and MCC tell more than accuracy.")
    severe = imbalance >= VERY_IMBALANCED
    if severe:
        advice = _(
            "{advice} Set class_weights to balanced, or add rows of the rarer classes.",
            advice=advice,
        )
    title = _(
        "Classes out of balance: {share:.1%} of the training rows are {label!r}",
        share=share,
        label=label,
    )
    action = _(
        "A model that always gives this answer scores accuracy {accuracy:.3f}, {metric} {f1:.3f} "
        "and MCC 0 on validation. {advice}",
        accuracy=constant[ACCURACY.name],
        f1=constant[F1.name],
        metric=metric_name(F1.name, target.size),
        advice=advice,
    )
    yield Finding("balance", "warns" if severe else "notes", title, action, count=int(max(counts)))
