"""The classes of a label column: from whatever stands in it to names and numbers.

Knows one cell at a time; standard library only.
"""

from __future__ import annotations

import math
import re
from typing import Any

from finetune.errors import DataError, some

MAX_CLASSES = 1000

_NEGATIVES = {"0", "no", "n", "false", "f", "negative", "different", "none", "-1"}
_POSITIVES = {"1", "yes", "y", "true", "t", "positive", "same", "duplicate", "equivalent",
              "paraphrase", "entailment", "match"}  # fmt: skip
_MISSING = {"", "nan", "null", "n/a"}


class Vocabulary:
    """The classes of a label column, numbered as they are met.

    Args:
        column: for errors.
    """

    def __init__(self, column: str, names: list[str] | None = None) -> None:
        self._column = column
        self._codes: dict[str, int] = {}
        self._seen: dict[Any, int] = {}
        self._fractions: set[str] = set()
        self.names: list[str] = []
        self.merged: set[str] = set()
        for name in names or []:
            self._add(name)

    def code(self, cell: Any) -> int:
        """The number of a label; -1 for a missing one. `TRUE`, `True` and `true` are one class,
        so are `1` and `1.0`.

        Raises:
            DataError: when there are too many classes, or the labels are fractions.
        """
        try:
            # A bool is no number here: True and 1 have the same hash.
            return self._seen[type(cell), cell]
        except KeyError:
            pass
        number = self._new(_label_text(cell))
        if len(self._seen) < 10 * MAX_CLASSES:
            self._seen[type(cell), cell] = number
        return number

    def _new(self, text: str) -> int:
        if text.lower() in _MISSING:
            return -1
        number = self._codes.get(text.lower())
        if number is None:
            return self._add(text)
        if self.names[number] != text and len(self.merged) < 20:
            self.merged.add(text)
        return number

    def _add(self, text: str) -> int:
        if re.fullmatch(r"-?\d*[.,]\d+", text):
            self._fractions.add(text)
            if len(self._fractions) > 2:
                raise DataError(
                    f"The column {self._column!r} holds numbers with fractions "
                    f"({some(sorted(self._fractions))}): scores, not classes.",
                    "Choose another label_column, or turn the scores into classes first.",
                )
        if len(self.names) >= MAX_CLASSES:
            raise DataError(
                f"The column {self._column!r} has more than {MAX_CLASSES:,} different values, "
                f"such as {some(self.names)}: text or ids rather than classes.",
                "Choose another label_column.",
            )
        self._codes[text.lower()] = len(self.names)
        self.names.append(text)
        return len(self.names) - 1

    def order(self) -> list[int]:
        """Codes in the order the classes shall have: numbers by value, of two the negative first,
        others by name."""
        lower = [name.lower() for name in self.names]
        codes = list(range(len(lower)))
        if all(re.fullmatch(r"-?\d+", name) for name in lower):
            return sorted(codes, key=lambda code: int(lower[code]))
        if len(lower) == 2:
            return sorted(codes, key=lambda code: _positiveness(lower[code], lower[1 - code]))
        return sorted(codes, key=lambda code: lower[code])


def _positiveness(name: str, other: str) -> tuple[int, str]:
    if name in _POSITIVES or other in _NEGATIVES:
        return 1, name
    if name in _NEGATIVES or other in _POSITIVES:
        return -1, name
    if name.endswith(other):  # not_duplicate, non-duplicate
        return -1, name
    return (1, name) if other.endswith(name) else (0, name)


def positive_class(labels: list[str], asked: str) -> int:
    """The index of the class whose F1 is meant: the one asked for, else the last of two.

    Raises:
        DataError: when the class asked for does not exist.
    """
    if not asked:
        # `entailment` is the first of GLUE's names, and the one that is looked for.
        first = len(labels) == 2 and _positiveness(labels[0].lower(), labels[1].lower())[0] > 0
        return 0 if first else min(1, len(labels) - 1)
    for index, name in enumerate(labels):
        if name.lower() == asked.lower():
            return index
    raise DataError(
        f"positive_label is {asked!r}, but the classes are {some(labels)}.", "Choose one of them."
    )


def _label_text(cell: Any) -> str:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float):
        if math.isnan(cell):
            return ""
        return str(int(cell)) if cell.is_integer() else str(cell)
    if cell is None:
        return ""
    text = " ".join(str(cell).split())[:200]
    return text[:-2] if re.fullmatch(r"-?\d+\.0", text) else text
