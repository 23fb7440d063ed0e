"""The labels of a column whose cells hold several: lists, marks for each label, or texts with a
separator between labels. An empty cell has no label. And what a person should know of them."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.errors import DataError, some
from finetune.findings import Finding, Remedy, shorten
from finetune.messages import message as _
from finetune.tasks import cells, classes
from finetune.tasks.base import SINGLE_LABEL, Target, Targets, Task
from finetune.tasks.cells import MARKS, NO_LABEL, Columns, find_separator, label_text
from finetune.tasks.labels import LabelledRows, Reading, impossible
from finetune.text_hashes import Integers

NAMES = {"\n": "newline", "\t": "tab", " ": "space"}  # of separators, which cannot be seen
_SEPARATORS = {name: mark for mark, name in NAMES.items()} | {"list": "", "none": ""}
_MOST_CELLS = 100_000  # different ones
RARE = 5  # a label of fewer training rows is named
_STRUCTURE = " "  # begins the spelling of a list or an object; no text begins with a blank

# Texts, lists, marks of names, numbers between 0 and 1 as marks, lists of marks, or several columns
# of labels.
Notation = Literal["text", "list", "marks", "shares", "places", "labels"]
Said = list[str] | dict[str, str] | str  # what a cell says


class ListEncoder(classes.LabelEncoder):
    """Numbers the cells of a label column; `MISSING_LABEL` stands for one that no column has."""

    def _spell(self, cell: Any) -> str:
        return _spell(cell)

    def _is_missing(self, cell: Any, text: str) -> bool:
        return isinstance(cell, Columns) and not cell

    def _check(self, text: str) -> None:
        if len(self.spellings) > _MOST_CELLS:
            raise DataError(
                "The column {column!r} has more than {most:,} different cells: texts rather "
                "than labels.",
                "Choose another label_column.",
                column=self._column,
                most=_MOST_CELLS,
            )


def _spell(cell: Any) -> str:
    said = cells.read_cell(cell)
    if isinstance(said, dict):
        said = {name: _text(cells.read_value(own)) for name, own in said.items()}
    elif not isinstance(said, list):
        return _text(said)
    return _STRUCTURE + json.dumps(said, ensure_ascii=False)


def _text(value: Any) -> str:
    return "" if cells.is_missing(value) else label_text(value)


def _said(spelling: str) -> Said:
    said: Said = json.loads(spelling) if spelling.startswith(_STRUCTURE) else spelling
    return said


def _shown(spelling: str) -> str:
    """Return a cell as a person reads it, from its spelling."""
    said = _said(spelling)
    said = cells.given(said) if isinstance(said, dict) else said
    return said if isinstance(said, str) else ", ".join(said)


@dataclass(frozen=True)
class LabelLists(Reading):
    """The labels of a column. Targets are 1 for each label of a row and 0 for the others."""

    separator: str = ""  # between the labels of texts; empty for one label a text
    unreadable: list[int] = field(default_factory=list)  # spellings
    unlabelled: list[int] = field(default_factory=list)  # spellings in which -1 is for no label
    example: str = ""  # the cell with the most labels
    notation: Notation = "text"


def read_lists(spellings: Sequence[str], rows: Integers, config: RunConfig) -> LabelLists:
    """Read the labels of cells by their spellings, and how often each occurs. Labels that differ in
    case or form only are one."""
    said, changes = [*map(_said, spellings)], config.changed_labels
    by_place = cells.are_places([value for value in said if isinstance(value, list) and value])
    if by_place:
        said = [cells.by_place(value) if isinstance(value, list) else value for value in said]
    marked = _marked(said, rows)
    separator = _SEPARATORS.get(config.label_separator, config.label_separator or "auto")
    if separator == "auto":
        texts = _texts(said, marked)
        separator = guess_separator(texts) if texts is not None else ""
    labels = [_labels(value, marked, separator) for value in said]
    minus = [number for number, value in enumerate(said) if _has_minus(value, marked)]
    meant = changes.pop(NO_LABEL, None) if minus else ""
    # A label that no row has is one, too.
    counts = Counter({name: 0 for name, is_label in marked.items() if is_label})
    for own, count in zip(labels, rows.tolist(), strict=True):
        counts.update(dict.fromkeys(own or (), count))
    numbers = np.array([*counts.values()], np.int64)
    read = classes.make_classes([*counts], numbers, by_place, changes)
    code_of = dict(zip(counts, read.table[:-1].tolist(), strict=True))
    table = np.zeros((len(said) + 1, max(1, len(read.names))), np.float32)
    table[-1] = np.nan
    for spelling, own in enumerate(labels):
        codes = [code_of[label] for label in own or ()]
        table[spelling, [code for code in codes if code >= 0]] = 1
    longest = int(table[:-1].sum(axis=1).argmax()) if said else -1
    unreadable = [spelling for spelling, own in enumerate(labels) if own is None]
    unlabelled = [] if meant else minus
    table[unreadable + unlabelled] = np.inf
    return LabelLists(
        read.names,
        table,
        read.unknown,
        NO_LABEL if meant is None else "",
        separator=separator,
        unreadable=unreadable,
        unlabelled=unlabelled,
        example="" if longest < 0 else _shown(spellings[longest]),
        notation=_notation(said, marked, by_place),
    )


def _notation(said: Sequence[Said], marked: Mapping[str, bool], by_place: bool) -> Notation:
    if not marked:
        return "list" if any(isinstance(value, list) for value in said) else "text"
    if by_place or not all(marked.values()):
        return "places" if by_place else "labels"
    marks = {mark for value in said if isinstance(value, dict) for mark in value.values()}
    return "shares" if any(map(cells.is_share, marks)) else "marks"


def _marked(said: Sequence[Said], rows: Integers) -> dict[str, bool]:
    """Return the names of objects, and for each whether most of its cells are marks."""
    votes: dict[str, int] = {}
    for value, count in zip(said, rows.tolist(), strict=True):
        for name, cell in value.items() if isinstance(value, dict) else ():
            is_mark = cells.mark_of(cell) is not None or cell == NO_LABEL
            vote = 0 if not cell else count if is_mark else -count
            votes[name] = votes.get(name, 0) + vote
    least = 1 if min(votes.values(), default=0) < 0 else 0  # an empty column is as the others are
    return {name: vote >= least for name, vote in votes.items()}


def _texts(said: Sequence[Said], marked: Mapping[str, bool]) -> list[str] | None:
    """Return the different texts that may hold several labels; None if lists or marks do."""
    if any(marked.values()) or any(isinstance(value, list) for value in said):
        return None
    texts = (value.values() if isinstance(value, dict) else [str(value)] for value in said)
    return list(dict.fromkeys(chain.from_iterable(texts)))


def _has_minus(value: Said, marked: Mapping[str, bool]) -> bool:
    return isinstance(value, dict) and any(
        cell == NO_LABEL and marked[name] for name, cell in value.items()
    )


def _labels(value: Said, marked: Mapping[str, bool], separator: str) -> list[str] | None:
    """Return the labels of a cell, each once; None if it cannot be read. A cell of an object that
    is no mark is a label itself."""
    if isinstance(value, str):
        broken = value.startswith(("[", "{"))
        return None if broken else cells.split_text(value, separator)
    if isinstance(value, list):
        return list(dict.fromkeys(map(cells.clean_label, value)))
    labels: list[str] = []
    for name, cell in value.items():
        given = cells.mark_of(cell)
        if not marked[name]:
            labels += cells.split_text(cell, separator)
        elif given is None and cell != NO_LABEL:
            return None
        elif given:
            labels.append(name)
    return list(dict.fromkeys(labels))


def guess_separator(texts: Sequence[str]) -> str:
    """Guess what is between labels in the different texts of a column that holds several; "" if
    nothing is."""
    filled = [text for text in texts if text]
    frequent = (mark for mark in MARKS if 2 * sum(mark in text for text in filled) > len(filled))
    return cells.suggest_separator(filled) or next(frequent, "")


class ReadsLists(Task):
    """Reads a label column whose cells hold any number of labels."""

    encoder: type[Any] = ListEncoder
    left_out = _("the label is left out or cannot be read")

    def recognises(self, cells: Sequence[Any]) -> bool:
        """True for lists, some of more than one label, marks in several columns, or few texts in
        many combinations."""
        if any(isinstance(cell, Columns) for cell in cells):
            return True
        spellings = list(dict.fromkeys(map(_spell, cells)))
        said = [*map(_said, spellings)]
        if any(not isinstance(value, str) for value in said):
            read = read_lists(spellings, np.ones(len(spellings), np.int64), RunConfig())
            return bool((np.count_nonzero(read.table == 1, axis=1) > 1).any())
        return find_separator([value for value in spellings if value]) != ""

    def cell(self, spellings: Sequence[str], code: Any) -> str:
        return _shown(spellings[code]) if code >= 0 else ""

    def read(self, labels: LabelledRows) -> LabelLists:
        return read_lists(labels.spellings, labels.counts(), labels.config)

    def parse(
        self, cells: Sequence[Any], target: Target, changes: Mapping[str, str] | None = None
    ) -> tuple[Targets, NDArray[np.bool_]]:
        names, spellings = target.names, list(map(_spell, cells))
        different = Counter(spellings)
        said = {text: _by_name(_said(text), names) for text in different}
        marked = _marked([*said.values()], np.array([*different.values()]))
        guessed = guess_separator([text for text in said.values() if isinstance(text, str)])
        place = {classes.class_key(name): label for label, name in enumerate(names)}
        targets, known = np.zeros((len(cells), len(names)), np.float32), np.ones(len(cells), bool)
        for row, text in enumerate(spellings):
            found = [-1]
            # A text is split in the way that leaves only known labels.
            for separator in ("", *MARKS, guessed):
                own = _labels(said[text], marked, separator)
                if own is not None and not _has_minus(said[text], marked):
                    renamed = [classes.changed(label, changes) for label in own]
                    found = [place.get(classes.class_key(label), -1) for label in renamed if label]
                if min(found, default=0) >= 0:
                    break
            targets[row, [label for label in found if label >= 0]] = 1
            known[row] = min(found, default=0) >= 0
        return targets, known

    def questions(self, labels: LabelledRows) -> list[Finding]:
        if not labels.reading.unclear:
            return []
        rows = labels.spelled(labels.reading.unlabelled)
        return [labels.no_label(rows, "0", _("It means 0: the label is not given"))]

    def unlearnable(self, labels: LabelledRows) -> list[Finding]:
        column, count = labels.column, len(labels.reading.names)
        one = Remedy("task", SINGLE_LABEL, _("One class for each row"))
        if count < 2:
            text = _("The column {column!r} has fewer than two labels.", column=column)
            return impossible(text, "one-label", one)
        text = _(
            "The column {column!r} has {count:,} different labels: rather texts or ids.",
            column=column,
            count=count,
        )
        return impossible(text, "too-many-labels", one) if count > classes.MAX_CLASSES else []

    def findings(
        self, labels: LabelledRows, train: Targets, constant: Mapping[str, float]
    ) -> Iterator[Finding]:
        """Report how cells are read, cells that cannot be, and labels of few, all or no rows."""
        yield _several_labels(labels)
        yield from labels.changed()
        if labels.reading.notation == "shares":
            title = _("The column {column!r} has numbers between 0 and 1.", column=labels.column)
            action = _("A row has a label from 0.5 on. For another limit, write 0 and 1.")
            yield Finding("shares", "warns", title, action)
        yield labels.unreadable(labels.reading.unreadable)
        if labels.reading.notation == "places" and not labels.config.label_map:
            title = _(
                "The column {column!r} has 0 or 1 for each of {count} labels, but not their names.",
                column=labels.column,
                count=len(labels.reading.names),
            )
            action = _(
                "They are called by their places, from 1. Name them by label_map, such as {names}.",
                names="'1=first 2=second'",
            )
            yield Finding("label-names", "warns", title, action)
        if not self.blocks(labels):
            yield from _few_rows(labels)
        if f"{constant.get(self.headline.name, 0.0):.3f}" == "1.000":
            title = _("Always giving the same labels already reaches micro F1 1.000.")
            action = _("No model can do better, so its score says nothing.")
            yield Finding("constant", "warns", title, action)


def _by_name(said: Said, names: Sequence[str]) -> Said:
    """Name the marks of a list that has one for each label."""
    if not isinstance(said, list) or len(said) != len(names) or "0" in names:
        return said
    return dict(zip(names, said, strict=True)) if cells.are_places([said]) else said


def _several_labels(labels: LabelledRows) -> Finding:
    """Say how labels are read, with buttons for the other possibilities."""
    reading, column, kind = labels.reading, labels.column, "several-labels"
    if labels.joined:
        title = _("Each of these columns is a label: {columns}", columns=column)
        action = _(
            "A row has those in whose column it has 1 or a mark such as x. An empty cell is 0."
        )
        if reading.notation == "labels":
            title = _("The labels of a row are in these columns: {columns}", columns=column)
            action = _("Each cell that is not empty is a label.")
        return Finding(kind, "notes", title, action)
    title = _(
        "The column {column!r} holds several labels per row, such as {listed!r}.",
        column=column,
        listed=shorten(reading.example, 60),
    )
    action, others = _("Each is read as a list of labels."), []
    if reading.notation == "text":
        action = _("Each is read as one label.")
        others = [mark for mark in MARKS if mark != reading.separator and mark in reading.example]
    if reading.separator:
        mark = NAMES.get(reading.separator, reading.separator)
        action = _("The labels between {mark!r} are learned each by itself.", mark=mark)
    remedies = [
        Remedy("label_separator", mark, _("They are separated by {mark!r}", mark=mark))
        for mark in others
    ]
    done = labels.config.label_separator != "auto"
    if done:
        remedies = [Remedy("label_separator", "auto", _("Undo"))]
    else:
        remedies.append(Remedy("task", SINGLE_LABEL, _("Each combination is a class of its own")))
    return Finding(kind, "notes", title, action, remedies=remedies, done=done)


def _few_rows(labels: LabelledRows) -> Iterator[Finding]:
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
        yield Finding("rare-labels", "warns", title, action)
    if names_of_none := [names[label] for label in np.flatnonzero(every == 0)]:
        title = _("Labels that no row has: {names}", names=some([*map(repr, names_of_none)]))
        action = _("A model learns never to give them, and each counts as 0 in macro F1.")
        remedies = labels.change(dict.fromkeys(names_of_none, ""), _("Leave them out"))
        yield Finding("label-of-none", "warns", title, action, remedies=remedies)
    of_all = np.flatnonzero(train == len(labels.of("train")))
    if names_of_all := [names[label] for label in of_all]:
        title = _(
            "Labels that every training row has: {names}", names=some([*map(repr, names_of_all)])
        )
        action = _("A model learns to give them to every row, whatever it says.")
        remedies = labels.change(dict.fromkeys(names_of_all, ""), _("Leave them out"))
        yield Finding("label-of-all", "warns", title, action, remedies=remedies)
    for split, rows in counts.items():
        missing = np.flatnonzero((rows == 0) & (train > 0))
        if len(missing) and len(labels.of(split)):
            title = _(
                "Labels that no row of {split} has: {names}",
                split=split,
                names=some([repr(names[label]) for label in missing]),
            )
            action = _("How well they are found is not measured there.")
            yield Finding("missing-labels", "warns", title, action)
    unlabelled = int((~(labels.of("train") > 0).any(axis=1)).sum())
    if unlabelled:
        title = _("Training rows without any label")
        action = _("They are learned from: none of the labels is right for them.")
        yield Finding("no-labels", "notes", title, action, count=unlabelled)
