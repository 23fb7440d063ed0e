"""Find the row of a table that names its columns. A title or empty rows may stand above it, and
some tables have none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from finetune.data.table import MAX_LINES, Answer, Remark
from finetune.errors import some
from finetune.messages import message as _

Cells = Sequence[str]
_FEW = 8  # rows that are needed to judge the values of a column
_MAX_VALUES = 50  # different values of a column that is taken for a label
_MAX_ABOVE = 50  # rows above a header
_WORDY = 5  # words of a cell; longer ones are sentences rather than names
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")


@dataclass(frozen=True)
class Header:
    """The position of the row that names the columns.

    Attributes:
        above: rows above the names, or above the first row if there are no names.
        named: true if a row has the names of the columns.
        doubtful: true if that is uncertain.
    """

    above: int
    named: bool
    doubtful: bool = False


def find_header(rows: Sequence[Cells], requested: str = "auto") -> Header:
    """Find the header among the first rows of a table; `requested` is `RunConfig.header`."""
    filled = [sum(cell.strip() != "" for cell in row) for row in rows]
    usual = max(Counter(n for n in filled if n > 1).most_common(1), default=(1, 0))[0]
    above = 0
    while usual > 1 and above < min(_MAX_ABOVE, len(rows) - 1) and filled[above] < 2:
        above += 1
    # A title of two cells: the next row has all the names.
    if above + 1 < len(rows) and 1 < filled[above] < usual <= filled[above + 1]:
        rest = rows[above + 2 :]
        if len(rest) >= _FEW and _votes(rows[above + 1], rest) > 0 >= _votes(rows[above], rest):
            above += 1
    if requested != "auto" or above == len(rows):
        return Header(above, requested != "no")
    votes = _votes(rows[above], rows[above + 1 :])
    if votes <= 0 and above and len(rows[0]) == len(rows[above]) and filled[0]:
        above = 0  # a row with an empty cell rather than a title
        votes = _votes(rows[0], rows[1:])
    return Header(above, votes >= 0, abs(votes) < 2)


class Repeats:
    """Rows that repeat the header, or a title above it, as in the middle of joined files."""

    def __init__(self, names: Cells, above: Sequence[Cells] = ()) -> None:
        rows = [tuple(map(clean, row)) for row in (names, *above)]
        self._rows = {row for row in rows if any(row)}
        self._index = max(range(len(names)), key=lambda i: len(names[i]), default=0)
        # Every repeated row has this text.
        self.key = clean(names[self._index]) if names and not above else ""
        self._keys = {row[self._index] for row in self._rows if len(row) > self._index}

    def __contains__(self, cells: Cells) -> bool:
        index = self._index
        if not self._rows or len(cells) <= index or clean(cells[index]) not in self._keys:
            return False
        return tuple(map(clean, cells)) in self._rows


def clean(cell: str) -> str:
    """Strip a byte order mark and white space from a cell."""
    return cell.strip("\ufeff \t\r\n")


def is_label(values: Counter[str], rows: int) -> bool:
    """True if a column of this many rows has few values, most of them several times."""
    return rows >= _FEW and 0 < len(values) <= min(_MAX_VALUES, max(2, rows // 5))


def _votes(first: Cells, body: Sequence[Cells]) -> int:
    """Vote whether a row holds names: above 0 it does, below 0 it is a row of data."""
    cells = [clean(cell) for cell in first]
    if len(cells) > 1 and [cell for cell in cells if cell] == [
        str(number) for number in range(sum(cell != "" for cell in cells))
    ]:
        return 2  # names that pandas gives
    same_width = [[clean(cell) for cell in row] for row in body if len(row) == len(cells)]
    others = [row for row in same_width if row != cells]  # without repeated headers
    votes = [_column_vote(cell, [row[i] for row in others]) for i, cell in enumerate(cells)]
    # A value of the label's column is strong evidence; any word may be a name or a short text.
    if min(votes, default=0) <= -3:
        return -1 if max(votes) > 1 else -3
    if total := sum(votes):
        return total
    # Sentences or numbers cannot be a header.
    wordy = any(len(cell.split()) > _WORDY for cell in cells)
    numeric = any(_NUMBER.fullmatch(cell) for cell in cells)
    data = wordy or (numeric and any(" " in cell for cell in cells))
    return -1 if len(cells) > 1 and data else 1


def _column_vote(cell: str, values: list[str]) -> int:
    """The vote of one column on its first cell."""
    present = [value for value in values if value]
    if not cell or not present:
        return 0
    counts = Counter(present)
    numeric = sum(bool(_NUMBER.fullmatch(value)) for value in present) >= 0.9 * len(present)
    is_number = bool(_NUMBER.fullmatch(cell))
    if is_label(counts, len(present)):
        return -3 if cell in counts else 2 if not numeric else -1 if is_number else 3
    if numeric:
        return -2 if is_number else 2
    words = sorted(len(value.split()) for value in present)
    if len(cell.split()) > _WORDY:
        return -1
    return 2 if len(present) >= _FEW and len(cell.split()) < words[len(words) // 20] else 0


def remarks(name: str, line: int, header: Header, names: Cells) -> list[Remark]:
    """Remark on the first line of a table if its header was guessed and is in doubt."""
    if not header.named:
        title = _(
            "Line {line} of {name} looks like data, so it is read as a row.", line=line, name=name
        )
        action = _("The columns are named by their numbers.")
        answer = Answer("header", "yes", _("It has the names of the columns"))
    elif header.doubtful:
        title = _(
            "Line {line} of {name} is taken as names of the columns: {names}.",
            line=line,
            name=name,
            names=some(names),
        )
        action = _("Its cells are not read as a row. Say so if it is one.")
        answer = Answer("header", "no", _("It is a row"))
    else:
        return []
    return [Remark("header", "notes", title, action, answers=[answer])]


def repeat_remarks(lines: Sequence[int]) -> list[Remark]:
    """Remark on the lines that repeat the header."""
    if not lines:
        return []
    title = _("Rows that are the header again: line {lines}", lines=some(lines, 3))
    shown = [(line, "") for line in lines[:MAX_LINES]]
    return [Remark("repeated-header", "notes", title, _("They are left out."), len(lines), shown)]
