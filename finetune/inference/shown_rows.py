"""The rows of a predicted file that a person sees: the first ones, and the least sure of all."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any, NamedTuple, TypedDict

from finetune.data.table import to_plain_value

FIRST = 1000  # rows shown from the beginning
LEAST_SURE = 200  # further rows shown because the model is unsure of them
UNSURE = 0.3  # an answer with a smaller margin is unsure: less than 65% to 35% of two classes
_CELL = 500  # characters of a cell


class PredictedRow(NamedTuple):
    """A row of the result."""

    cells: dict[str, Any]  # column -> cell
    margin: float | None  # of `Answers.margins`; None if it is not known
    unsure: bool


class ShownRow(TypedDict):
    """A row of the result, as JSON keeps it."""

    row: int  # in the file, from 0
    margin: float | None  # of `Answers.margins`; None if it is not known
    unsure: bool  # the model is
    cells: dict[str, Any]  # column -> cell, shortened


class ShownRows:
    """Collects the rows to show while a file is predicted."""

    def __init__(self) -> None:
        self._first: list[ShownRow] = []
        self._unsure: list[ShownRow] = []

    @property
    def rows(self) -> list[ShownRow]:
        """The rows so far, in the order of the file."""
        return self._first + sorted(self._unsure, key=lambda row: row["row"])

    def add(self, begin: int, lines: Iterable[PredictedRow]) -> bool:
        """Take in rows from number `begin` on. Returns True if any is shown."""
        rows = [
            ShownRow(row=number, margin=margin, unsure=unsure, cells=cells)
            for number, (cells, margin, unsure) in enumerate(lines, begin)
            if number < FIRST or unsure
        ]
        first = [shortened(row) for row in rows if row["row"] < FIRST]
        later = [row for row in rows if row["row"] >= FIRST]
        if later:
            least = heapq.nsmallest(
                LEAST_SURE, self._unsure + later, key=lambda row: row["margin"] or 0.0
            )
            self._unsure = [shortened(row) for row in least]
        self._first += first
        return bool(first)


def shortened(row: ShownRow) -> ShownRow:
    """Shorten the cells of a row."""
    plain = {name: to_plain_value(cell) for name, cell in row["cells"].items()}
    row["cells"] = {
        name: cell if cell is None or isinstance(cell, int | float) else str(cell)[:_CELL]
        for name, cell in plain.items()
    }
    return row
