"""The labels of a column whose cells hold several: lists, marks for each label, or texts with a
separator between labels. An empty cell has no label."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.errors import DataError
from finetune.tasks import cells, classes
from finetune.tasks.base import MISSING_LABEL, Targets
from finetune.tasks.cells import MARKS, NO_LABEL, Columns, label_text
from finetune.text_hashes import Integers

NAMES = {"\n": "newline", "\t": "tab", " ": "space"}  # of separators, which cannot be seen
_SEPARATORS = {name: mark for mark, name in NAMES.items()} | {"list": "", "none": ""}
_MOST_CELLS = 100_000  # different ones
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


def shown(spelling: str) -> str:
    """Return a cell as a person reads it, from its spelling."""
    said = _said(spelling)
    said = cells.given(said) if isinstance(said, dict) else said
    return said if isinstance(said, str) else ", ".join(said)


@dataclass(frozen=True)
class LabelLists:
    """The labels of a column."""

    names: list[str]  # in their order
    separator: str  # between the labels of texts; empty for one label a text
    members: list[list[int] | None]  # of each spelling of a cell; None if it cannot be read
    unlabelled: set[int]  # spellings in which -1 stands for no label
    unclear: bool  # True if nobody said yet what -1 stands for
    unknown: list[str]  # changed names that no label has
    example: str  # the cell with the most labels
    notation: Notation

    def targets(self, codes: NDArray[Any]) -> Targets:
        """1 for each label of a row and 0 for the others, infinity for a row without a label, nan
        for one that is left out; shape (rows, labels)."""
        targets = np.zeros((len(codes), max(1, len(self.names))), np.float32)
        spellings, first, place = np.unique(codes, return_index=True, return_inverse=True)
        for number, spelling in enumerate(spellings.tolist()):
            if spelling == MISSING_LABEL:
                targets[first[number]] = np.inf
            elif spelling in self.unlabelled or self.members[spelling] is None:
                targets[first[number]] = np.nan
            else:
                targets[first[number], self.members[spelling]] = 1
        return targets[first[place]]


def read_lists(spellings: Sequence[str], rows: Integers, config: RunConfig) -> LabelLists:
    """Read the labels of cells. Spellings that differ in case or form only are one label.

    Args:
        spellings: of cells.
        rows: how often each occurs, shape (spellings,).
    """
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
    minus = {number for number, value in enumerate(said) if _has_minus(value, marked)}
    meant = changes.pop(NO_LABEL, None) if minus else ""
    # A label that no row has is one, too.
    counts = Counter({name: 0 for name, is_label in marked.items() if is_label})
    for own, count in zip(labels, rows.tolist(), strict=True):
        counts.update(dict.fromkeys(own or (), count))
    numbers = np.array([*counts.values()], np.int64)
    read = classes.make_classes([*counts], numbers, by_place, changes)
    code_of = dict(zip(counts, read.codes.tolist(), strict=True))
    members = [
        None if own is None else sorted({code_of[label] for label in own if code_of[label] >= 0})
        for own in labels
    ]
    longest = max(range(len(said)), key=lambda at: len(members[at] or ()), default=None)
    return LabelLists(
        names=read.names,
        separator=separator,
        members=members,
        unlabelled=set() if meant else minus,
        unclear=meant is None,
        unknown=read.unknown,
        example="" if longest is None else shown(spellings[longest]),
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


def are_lists(sample: Sequence[Any]) -> bool:
    """True if cells plainly hold several labels: lists, some of more than one label, marks in
    several columns, or few texts in many combinations."""
    if any(isinstance(cell, Columns) for cell in sample):
        return True
    spellings = list(dict.fromkeys(map(_spell, sample)))
    said = [*map(_said, spellings)]
    texts = [value for value in said if isinstance(value, str) and value]
    if any(not isinstance(value, str) for value in said):
        read = read_lists(spellings, np.ones(len(spellings), np.int64), RunConfig())
        return any(len(labels or ()) > 1 for labels in read.members)
    return cells.find_separator(texts) != ""


def parse(
    sample: Sequence[Any], names: Sequence[str], changes: Mapping[str, str]
) -> tuple[Targets, NDArray[np.bool_]]:
    """Read cells of another file as labels with these names.

    Args:
        changes: label -> new name; "" for none.

    Returns:
        1 for each label of a row and 0 for the others, shape (rows, labels), and a mask of the rows
        all of whose labels are known, shape (rows,).
    """
    spellings = list(map(_spell, sample))
    different = Counter(spellings)
    said = {text: _by_name(_said(text), names) for text in different}
    marked = _marked([*said.values()], np.array([*different.values()]))
    guessed = guess_separator([text for text in said.values() if isinstance(text, str)])
    place = {classes.class_key(name): label for label, name in enumerate(names)}
    targets, known = np.zeros((len(sample), len(names)), np.float32), np.ones(len(sample), bool)
    for row, text in enumerate(spellings):
        found = [-1]
        # A text is split in the way that leaves only known labels.
        for separator in ("", *MARKS, guessed):
            labels = _labels(said[text], marked, separator)
            if labels is not None and not _has_minus(said[text], marked):
                renamed = [classes.changed(label, changes) for label in labels]
                found = [place.get(classes.class_key(label), -1) for label in renamed if label]
            if min(found, default=0) >= 0:
                break
        targets[row, [label for label in found if label >= 0]] = 1
        known[row] = min(found, default=0) >= 0
    return targets, known


def _by_name(said: Said, names: Sequence[str]) -> Said:
    """Name the marks of a list that has one for each label."""
    if not isinstance(said, list) or len(said) != len(names) or "0" in names:
        return said
    return dict(zip(names, said, strict=True)) if cells.are_places([said]) else said
