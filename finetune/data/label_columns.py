"""Labels that are not texts in one column: a column of lists, or a column of 0 and 1 for each."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Sequence
from typing import Any

from finetune.data.table import OnBadRow
from finetune.messages import message as _
from finetune.tasks.classes import MISSING, label_text

LISTS = _("is nested: it holds lists, which only labels can be")  # why a column can be no sentence
BETWEEN = " | "  # names of columns, as one label column
_GIVEN = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def parts_of(label: str, columns: Container[str]) -> list[str]:
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
        labels, unclear = given(parts, cells[-len(parts) :])
        if unclear:
            on_bad_row(line, _("has neither 0 nor 1 in the column {column!r}", column=unclear))
            continue
        yield line, [*cells[: -len(parts)], labels]


def given(parts: Sequence[str], cells: Sequence[Any]) -> tuple[str, str]:
    """Return the parts that a row's cells give, as a JSON list, and the first part whose cell says
    neither; "" if each says one. An empty cell does not give its part."""
    labels = []
    for part, cell in zip(parts, cells, strict=True):
        text = label_text(cell).lower()
        mark = False if text in MISSING else _GIVEN.get(text)
        if mark is None:
            return "", part
        if mark:
            labels.append(part)
    return json.dumps(labels, ensure_ascii=False), ""
