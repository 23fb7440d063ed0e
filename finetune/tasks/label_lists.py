"""The labels of a column whose cells hold several: how cells are read, and which columns they are.

A cell is a list, as JSON or Python writes it, or texts with a mark between them. An empty cell has
no label.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.errors import DataError
from finetune.tasks import classes
from finetune.tasks.base import Targets
from finetune.tasks.classes import MISSING, clean_label, label_text

MARKS = (";", "|", ",")  # between labels, the likelier ones first
LIST = "list"
_MOST_CELLS = 100_000  # different ones
_MOST_CHARACTERS = 10_000  # of a cell
_LIST = re.compile(r"\s*[\[(].*[\])]\s*", re.DOTALL)


class ListEncoder:
    """Numbers the cells of a label column in the order of their appearance."""

    no_labels: NDArray[Any] = np.zeros(0, np.int64)

    def __init__(self, column: str, names: Sequence[str] = ()) -> None:
        self._column = column
        self.spellings = list(names)
        self._codes = {name: code for code, name in enumerate(names)}

    def code(self, cell: Any) -> int:
        """Return the number of a cell. DataError if there are too many different ones."""
        text = cell_text(cell)
        if text not in self._codes:
            if len(self.spellings) >= _MOST_CELLS:
                raise DataError(
                    "The column {column!r} has more than {most:,} different cells: texts rather "
                    "than labels.",
                    "Choose another label_column.",
                    column=self._column,
                    most=_MOST_CELLS,
                )
            self._codes[text] = len(self.spellings)
            self.spellings.append(text)
        return self._codes[text]


def cell_text(cell: Any) -> str:
    """Spell a cell; one that is missing has no label, and is empty."""
    if isinstance(cell, list | tuple):
        return json.dumps([str(value) for value in cell], ensure_ascii=False)
    if not isinstance(cell, str):
        cell = label_text(cell)
    text = cell.strip()[:_MOST_CHARACTERS]
    return "" if text.lower() in MISSING else text


@dataclass(frozen=True)
class LabelLists:
    """The labels of a column."""

    names: list[str]  # in their order
    separator: str  # between the labels of a cell: a mark, or `LIST`; empty for one label a cell
    members: list[list[int] | None]  # of each spelling of a cell; None if it cannot be read
    unknown: list[str]  # changed names that no label has
    example: str  # the cell with the most labels

    def targets(self, codes: NDArray[Any]) -> Targets:
        """1 for each label of a row and 0 for the others, or nan for a row that cannot be read;
        shape (rows, labels)."""
        targets = np.zeros((len(codes), max(1, len(self.names))), np.float32)
        spellings, first, place = np.unique(codes, return_index=True, return_inverse=True)
        for number, spelling in enumerate(spellings.tolist()):
            labels = self.members[spelling]
            targets[first[number], slice(None) if labels is None else labels] = (
                np.nan if labels is None else 1
            )
        return targets[first[place]]


def read_lists(
    spellings: Sequence[str],
    rows: NDArray[Any],
    separator: str = "auto",
    changes: Mapping[str, str] | None = None,
) -> LabelLists:
    """Read the labels of cells. Spellings that differ in case or form only are one label.

    Args:
        spellings: of cells.
        rows: how often each occurs, shape (spellings,).
        separator: `RunConfig.label_separator`.
        changes: `RunConfig.changed_labels`, label -> new name; "" leaves the label out.
    """
    mark = guess_separator(spellings) if separator == "auto" else separator
    mark = "" if mark == "none" else mark
    cells = [split_cell(text, mark) for text in spellings]
    counts: Counter[str] = Counter()
    for parts, count in zip(cells, rows.tolist(), strict=True):
        for part in parts or ():
            counts[part] += count
    parts = list(counts)
    read = classes.make_classes(parts, np.array([*counts.values()], np.int64), changes=changes)
    code_of = dict(zip(parts, read.codes.tolist(), strict=True))
    members: list[list[int] | None] = [
        None
        if labels is None
        else sorted({code_of[label] for label in labels if code_of[label] >= 0})
        for labels in cells
    ]
    longest = max(range(len(cells)), key=lambda at: len(members[at] or ()), default=None)
    example = "" if longest is None else spellings[longest]
    return LabelLists(read.names, mark, members, read.unknown, example)


def split_cell(text: str, separator: str) -> list[str] | None:
    """Return the labels of a cell, each once; None if it is to be a list and is none."""
    if not text:
        return []
    if separator == LIST:
        parts = _list_of(text)
        if parts is None:
            return None
    else:
        parts = text.split(separator) if separator else [text]
    labels = (" ".join(clean_label(part).split())[:200] for part in parts)
    return list(dict.fromkeys(label for label in labels if label))


def _list_of(text: str) -> list[str] | None:
    """Read a list of texts or numbers as JSON or Python writes it; None if it is none."""
    values: Any = None
    for parse in (json.loads, ast.literal_eval):
        try:
            values = parse(text)
            break
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    if not isinstance(values, list | tuple | set):
        return None
    plain = all(isinstance(value, str | int | float) for value in values)
    return [label_text(value) for value in values] if plain else None


def guess_separator(spellings: Sequence[str]) -> str:
    """Guess what is between the labels of a cell: `LIST`, a mark, or "" for one label a cell."""
    filled = [text for text in spellings if text]
    lists = [text for text in filled if _LIST.fullmatch(text) and _list_of(text) is not None]
    if 2 * len(lists) > len(filled):
        return LIST
    found = {mark: sum(mark in text for text in filled) for mark in MARKS}
    shared = [mark for mark in MARKS if found[mark] and _are_shared(filled, mark)]
    frequent = [mark for mark in MARKS if 2 * found[mark] > len(filled)]
    return next(iter(shared + frequent), "")


def _are_shared(cells: Sequence[str], mark: str) -> bool:
    """True if most labels of cells with a mark occur in other cells too, as labels do and parts of
    sentences do not."""
    counts: Counter[str] = Counter()
    parts = [{part.strip() for part in text.split(mark)} - {""} for text in cells]
    for labels in parts:
        counts.update(labels)
    several = [label for labels in parts if len(labels) > 1 for label in labels]
    return 2 * sum(counts[label] > 1 for label in several) > len(several) > 0


def are_lists(cells: Sequence[Any]) -> bool:
    """True if cells plainly hold several labels: lists, or few texts in many combinations."""
    texts = [text for text in dict.fromkeys(map(cell_text, cells)) if text]
    return classes.holds_several(texts)


def parse(cells: Sequence[Any], names: Sequence[str]) -> tuple[Targets, NDArray[np.bool_]]:
    """Read cells of another file as labels with these names.

    Returns:
        1 for each label of a row and 0 for the others, shape (rows, labels), and a mask of the rows
        all of whose labels are known, shape (rows,).
    """
    texts = list(map(cell_text, cells))
    place = {classes.class_key(name): label for label, name in enumerate(names)}
    guessed = guess_separator(list(dict.fromkeys(texts)))
    # A cell is split in the way that leaves only known labels, as one label if that is one.
    marks = ("", LIST, *MARKS, guessed)
    targets, known = np.zeros((len(texts), len(names)), np.float32), np.ones(len(texts), bool)
    for row, text in enumerate(texts):
        found: list[int] = []
        for mark in marks:
            labels = split_cell(text, mark)
            found = [place.get(classes.class_key(label), -1) for label in labels or ()]
            known[row] = labels is not None and min(found, default=0) >= 0
            if known[row]:
                break
        targets[row, [label for label in found if label >= 0]] = 1
    return targets, known
