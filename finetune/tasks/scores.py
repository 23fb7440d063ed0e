"""The scores of a label column: how cells are read as numbers, and which columns hold scores."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.tasks.base import Targets
from finetune.tasks.classes import MISSING, clean_label, label_text

MANY = 20  # different whole numbers; more may be scores, unless they count up
_MOST_SPELLINGS = 1000  # of cells that are no numbers, kept to be shown
_LARGEST = float(np.finfo(np.float32).max)
_NUMBER = re.compile(r"([+-]?)(\d[\d.,]*|[.,]\d+)(e[+-]?\d+)?\s?%?", re.IGNORECASE)
_THOUSANDS = re.compile(r"\d{1,3}([.,])\d{3}(\1\d{3})+")
_GROUPED = re.compile(r"\d{1,3}([.,])\d{3}(\1\d{3})*(?!\1)[.,]\d*")  # with decimals


def to_number(text: str) -> float | None:
    """Read a number with a decimal point or comma; None if a text is none, such as a date. Of
    `1.234,5` and `1,234.5` the last mark is the decimal one. A per cent sign is ignored.

    A single mark is the decimal one, `1.234` is a little more than 1.
    """
    plain = text.strip()
    if not text.isascii():
        plain = unicodedata.normalize("NFKC", plain).replace("\u2212", "-").strip()
    found = _NUMBER.fullmatch(plain)
    if found is None:
        return None
    sign, digits, exponent = found[1], found[2], found[3] or ""
    last = max(digits.rfind("."), digits.rfind(","))
    if _THOUSANDS.fullmatch(digits):
        digits = re.sub("[.,]", "", digits)
    elif re.search("[.,]", digits[: max(last, 0)]) and not _GROUPED.fullmatch(digits):
        return None
    elif last >= 0:
        digits = re.sub("[.,]", "", digits[:last]) + "." + digits[last + 1 :]
    number = float(sign + digits + exponent)
    return number if abs(number) <= _LARGEST else None


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
    """Reads a label column as numbers, two for a row: its score and -1, or infinity and the place
    of a cell that is no number among `spellings`. A missing score is nan."""

    no_labels: NDArray[Any] = np.zeros((0, 2))

    def __init__(self) -> None:
        self.spellings: list[str] = []
        self._places: dict[str, int] = {}

    def code(self, cell: Any) -> tuple[float, int]:
        """Return a row's numbers."""
        text = label_text(cell)
        if clean_label(text).lower() in MISSING:
            return np.nan, -1
        number = to_number(text)
        if number is not None:
            return number, -1
        if text not in self._places and len(self.spellings) < _MOST_SPELLINGS:
            self._places[text] = len(self.spellings)
            self.spellings.append(text)
        return np.inf, self._places.get(text, -1)


@dataclass(frozen=True)
class Scores:
    """The scores as they are read."""

    names: list[str] = field(default_factory=list)  # none
    missing: float = np.nan  # a score that stands for none

    def targets(self, codes: NDArray[Any]) -> Targets:
        """The scores of rows, shape (rows,): nan for a missing one, infinity for none."""
        scores = codes[:, 0]
        return np.where(scores == self.missing, np.nan, scores).astype(np.float32)


def read_scores(codes: Mapping[str, NDArray[Any]]) -> Scores:
    """Read the numbers of each split; -1 is no score if a held-out split has no other number and
    the training rows have none below 0, as in GLUE's test split."""
    train = codes["train"][:, 0]
    hidden = any(
        len(numbers) and (numbers[:, 0] == -1).all()
        for split, numbers in codes.items()
        if split != "train"
    )
    return Scores(missing=-1.0 if hidden and not (train < 0).any() else np.nan)


def numbers_of(cells: Sequence[Any]) -> set[float] | None:
    """The different numbers of cells, the missing ones left out; None if a cell is none."""
    if any(isinstance(cell, list | dict) for cell in cells):
        return None
    texts = set(map(label_text, cells))
    found = [to_number(text) for text in texts if clean_label(text).lower() not in MISSING]
    return None if None in found else {number for number in found if number is not None}


def are_scores(cells: Sequence[Any]) -> bool:
    """True if cells are plainly scores: numbers of which more than two have fractions, or whole
    numbers that hardly repeat and do not count up, as 0, 1, 2 ... do.

    Other whole numbers, such as 1 to 5 stars, may be either, and are classes until somebody says
    so.
    """
    numbers = numbers_of(cells)
    if not numbers:
        return False
    fractions = sum(number != int(number) for number in numbers)
    unlike = 2 * len(numbers) > len(cells) and len(numbers) > MANY and not _count_up(numbers)
    return fractions > 2 or (fractions == 0 and unlike)


def _count_up(numbers: set[float]) -> bool:
    """True for nearly all whole numbers from 0 or 1 on, of which a sample may lack a few."""
    low, high = min(numbers), max(numbers)
    return low >= 0 and high < 2 * len(numbers) + low and low < len(numbers)


def may_be_scores(names: Sequence[str], column: str) -> bool:
    """True if the names of classes are whole numbers that may be meant as scores: from 1 to 4 or
    more, such as stars, many that do not count up, or any in a column whose name says it."""
    numbers = numbers_of(names)
    if not numbers or len(numbers) < 3 or len(numbers) < len(names):
        return False
    named = _SCORE_NAME.search(column) is not None
    starred = min(numbers) == 1 and 4 <= max(numbers) == len(numbers) <= 10
    return named or starred or (len(numbers) > MANY and not _count_up(numbers))


_SCORE_NAME = re.compile(r"(?i)(?<![a-z])(rating|stars?|score|similarity|relatedness|grade|points)")
