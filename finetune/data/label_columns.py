"""Labels that are not texts in one column: a column of lists, or a column of 0 and 1 for each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finetune.data.table import OnBadRow
from finetune.messages import message as _
from finetune.tasks.classes import MISSING, label_text

LISTS = _("is nested: it holds lists, which only labels can be")  # why a column can be no sentence
BETWEEN = " | "  # names of columns, as one label column
_GIVEN = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def parts_of(label: str, columns: Mapping[str, str]) -> list[str]:
    """Return the columns of 0 and 1 that a label column stands for, such as `toxic | insult`; none
    if it is a column itself, or names one that does not exist."""
    parts = [part.strip() for part in label.split(BETWEEN.strip())]
    several = label not in columns and len(parts) > 1
    return parts if several and all(part in columns for part in parts) else []


def are_marks(cells: Sequence[Any]) -> bool:
    """True if cells say of a label whether a row has it."""
    texts = {label_text(cell).lower() for cell in cells}
    return texts - MISSING <= _GIVEN.keys() and len(texts - MISSING) > 1


def joined(
    rows: Iterator[tuple[int, list[Any]]], parts: Sequence[str], on_bad_row: OnBadRow
) -> Iterator[tuple[int, list[Any]]]:
    """Replace the last cells of rows, one for each part, by a list of the parts that are given."""
    for line, cells in rows:
        marks = dict(zip(parts, map(_mark, cells[-len(parts) :]), strict=True))
        wrong = [part for part, mark in marks.items() if mark is None]
        if wrong:
            on_bad_row(line, _("has neither 0 nor 1 in the column {column!r}", column=wrong[0]))
            continue
        labels = [part for part, mark in marks.items() if mark]
        yield line, [*cells[: -len(parts)], json.dumps(labels, ensure_ascii=False)]


def _mark(cell: Any) -> bool | None:
    """True if a cell gives its label, as an empty one does not; None if it says neither."""
    text = label_text(cell).lower()
    return False if text in MISSING else _GIVEN.get(text)
