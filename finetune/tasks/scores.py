"""The scores of a label column: how cells are read as numbers, and which columns hold scores."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.tasks import cells
from finetune.tasks.base import Targets
from finetune.tasks.cells import COMMA, POINT, Number, to_number

MANY = 20  # different whole numbers; more may be scores, unless they count up
_MOST_SPELLINGS = 1000  # of cells that are no numbers, kept to be shown


def spell(score: float) -> str:
    """Write a score with the digits that float32 keeps."""
    return f"{float(score):.6g}"


def cut_names(cut: float) -> list[str]:
    """Name the two classes of scores below a cut, and from it on."""
    return [f"below {spell(cut)}", f"from {spell(cut)}"]


def cut_of(names: Sequence[str]) -> float | None:
    """Return the cut that two classes are named by; None if they are not."""
    cut = to_number(names[-1].removeprefix("from ")) if len(names) == 2 else None
    return cut if cut is not None and cut_names(cut) == [*names] else None


class ScoreEncoder:
    """Reads a label column as numbers, four for a row: the first three fields of its `Number`, or
    infinity for a cell that is no number, and the place of its unit or of that cell among
    `spellings`. A missing score is nan."""

    no_labels: NDArray[Any] = np.zeros((0, 4))

    def __init__(self) -> None:
        self.spellings: list[str] = []
        self._places: dict[str, int] = {}

    def code(self, cell: Any) -> tuple[float, float, int, int]:
        """Return a row's numbers."""
        value = cells.read_value(cell)
        number = cells.read_number(value)
        if number is None and cells.is_missing(value):
            return np.nan, np.nan, 0, -1
        text = number.unit if number else cells.label_text(value)[:200]
        number = number or Number(np.inf, np.inf)
        if text not in self._places and len(self.spellings) < _MOST_SPELLINGS:
            self._places[text] = len(self.spellings)
            self.spellings.append(text)
        return (*number[:3], self._places.get(text, -1))


@dataclass(frozen=True)
class Scores:
    """The scores as they are read."""

    names: list[str] = field(default_factory=list)  # none
    missing: float = np.nan  # a score that stands for none
    unclear: bool = False  # True if -1 may stand for no score
    decimal: str = POINT  # what precedes decimals where a number does not say it; "" if in doubt
    both: tuple[float, float] | None = None  # by point and by comma, the first that does not say it
    units: frozenset[int] = frozenset()  # spellings of units; an empty one for none

    def targets(self, codes: NDArray[Any]) -> Targets:
        """The scores of rows, shape (rows,): nan for a missing one, infinity for none."""
        scores = codes[:, int(self.decimal == COMMA)]
        return np.where(scores == self.missing, np.nan, scores).astype(np.float32)


def read_scores(codes: Mapping[str, NDArray[Any]], config: RunConfig) -> Scores:
    """Read the numbers of each split; -1 is no score if a held-out split has no other number and
    the training rows have none below 0, as in GLUE's test split."""
    numbers = np.concatenate([*codes.values()])
    numbers = numbers[np.isfinite(numbers[:, 0])]
    values, train = numbers[:, 0], codes["train"][:, 0]
    hidden = any(
        len(held_out) and (held_out[:, 0] == -1).all()
        for split, held_out in codes.items()
        if split != "train"
    )
    meant = config.changed_labels.get(cells.NO_LABEL)
    stands_for_none = meant == "" or (hidden and not (train < 0).any())
    whole = len(values) > 0 and bool((values % 1 == 0).all()) and values.min() == -1
    decimal = config.decimal_mark
    either = numbers[numbers[:, 0] != numbers[:, 1], :2]
    return Scores(
        missing=-1.0 if stands_for_none else np.nan,
        unclear=whole and meant is None and not stands_for_none,
        decimal=cells.find_decimal(numbers[:, :3]) if decimal == "auto" else decimal,
        both=(float(either[0, 0]), float(either[0, 1])) if len(either) else None,
        units=frozenset(numbers[:, 3].astype(int).tolist()),
    )


def numbers_of(sample: Sequence[Any]) -> list[Number] | None:
    """Read cells as numbers, the missing ones left out; None if one is none."""
    values = [value for value in map(cells.read_value, sample) if not cells.is_missing(value)]
    numbers = [*map(cells.read_number, values)]
    return None if None in numbers else [number for number in numbers if number is not None]


def are_scores(sample: Sequence[Any]) -> bool:
    """True if cells are plainly scores: numbers of which more than two have fractions, numbers with
    units or separated thousands, or whole numbers that hardly repeat and do not count up, as 0, 1,
    2 ... do.

    Other whole numbers, such as 1 to 5 stars, may be either, and are classes until somebody says
    so.
    """
    numbers = numbers_of(sample)
    if not numbers:
        return False
    values = _values(numbers)
    fractions = sum(value != int(value) for value in values)
    unlike = 2 * len(values) > len(sample) and len(values) > MANY and not _count_up(values)
    separated = any(number.by_point != number.by_comma for number in numbers)
    measured = len(values) > 2 and (separated or all(number.unit for number in numbers))
    return measured or fractions > 2 or (fractions == 0 and unlike)


def _values(numbers: Sequence[Number]) -> set[float]:
    """The different values of numbers."""
    decimal = cells.find_decimal(np.array([number[:3] for number in numbers]))
    return {number.by_comma if decimal == COMMA else number.by_point for number in numbers}


def _count_up(values: set[float]) -> bool:
    """True for nearly all whole numbers from 0 or 1 on, of which a sample may lack a few."""
    low, high = min(values), max(values)
    return low >= 0 and high < 2 * len(values) + low and low < len(values)


def may_be_scores(names: Sequence[str], column: str) -> bool:
    """True if the names of classes are whole numbers that may be meant as scores: from 1 to 4 or
    more, such as stars, many that do not count up, or any in a column whose name says it."""
    values = _values(numbers) if (numbers := numbers_of(names)) else set()
    if len(values) < max(3, len(names)):
        return False
    named = _SCORE_NAME.search(column) is not None
    starred = min(values) == 1 and 4 <= max(values) == len(values) <= 10
    return named or starred or (len(values) > MANY and not _count_up(values))


_SCORE_NAME = re.compile(r"(?i)(?<![a-z])(rating|stars?|score|similarity|relatedness|grade|points)")
