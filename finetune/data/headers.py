"""Find the row of a table that names its columns. A title or empty rows may stand above it, rows
that describe the columns beneath it, and some tables have none."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from finetune.data.table import remark
from finetune.errors import some
from finetune.findings import Finding, Remedy
from finetune.messages import message as _

Cells = Sequence[str]
_FEW = 8  # rows that are needed to judge the values of a column
_MAX_VALUES = 50  # different values of a column that is taken for a label
_MAX_ABOVE = 50  # rows above a header
_TOP = 6  # rows below empty ones among which titles, names and descriptions are looked for
_WORDY = 5  # words of a cell; longer ones are sentences rather than names
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")


@dataclass(frozen=True)
class Header:
    """The position of the row that names the columns."""

    above: int  # rows above the names, or above the first row if there are no names
    named: bool  # True if a row has the names of the columns
    doubtful: bool = False  # True if it was guessed that there are none, or not surely these
    below: int = 0  # rows beneath the names that describe the columns

    @property
    def rows(self) -> int:
        """The number of rows before the first row of data."""
        return self.above + self.named + self.below

    def names(self, rows: Sequence[Cells]) -> Cells:
        """The names of the columns, from the first rows of a table; empty ones if no row has them.
        Where a name stands above several columns, each is called by the row beneath it too."""
        names = rows[self.above] if rows else []
        if not self.named:
            return [""] * len(names)
        beneath = rows[self.above + 1] if self.below else []
        if not any(sub and not name for name, sub in zip(names, beneath, strict=False)):
            return names
        joined, over = [], ""
        for name, sub, after in zip(names, beneath, [*names[1:], " "], strict=False):
            over = name or over
            joined.append(f"{over}: {sub}" if sub and not (name and after) else name)
        return joined


def find_header(rows: Sequence[Cells], requested: str = "auto") -> Header:
    """Find the header among the first rows of a table; `requested` is `RunConfig.header`."""
    filled = [sum(cell.strip() != "" for cell in row) for row in rows]
    usual = max(Counter(n for n in filled if n > 1).most_common(1), default=(1, 0))[0]
    limit = min(_MAX_ABOVE, len(rows) - 1) if usual > 1 else 0
    above = 0
    while above < limit and (
        filled[above] < 2 or (filled[above] != usual and rows[above][0].startswith("#"))
    ):
        above += 1
    if requested != "auto" or above == len(rows):
        return Header(above, requested != "no")
    names, first = _names_and_data(rows[above:])
    if first > 1:
        votes = _votes(rows[above + names], rows[above + first :])
        return Header(above + names, True, votes < 2, first - names - 1)
    votes = _votes(rows[above], rows[above + 1 :])
    if votes <= 0 and above and len(rows[0]) == len(rows[above]) and filled[0]:
        above = 0  # a row with an empty cell rather than a title
        votes = _votes(rows[0], rows[1:])
    return Header(above, votes >= 0, votes < 2)


def _names_and_data(rows: Sequence[Cells]) -> tuple[int, int]:
    """Return the positions of the names of the columns and of the first row of data, if titles
    stand above the names or descriptions beneath them; 0 and 0 otherwise."""
    top = min(_TOP, len(rows) // 3)
    cells = [[clean(cell) for cell in row] for row in rows[:top]]
    body = [row for row in rows[top:] if row not in rows[:top]]  # without repeated headers
    width = max(Counter(map(len, body)).most_common(1), default=(0, 0))[0]
    columns = [[clean(row[i]) for row in body if len(row) == width] for i in range(width)]
    votes = [
        list(map(_column_vote, row, columns)) if len(row) == width > 1 else [-3] for row in cells
    ]
    named = [n for n, of_row in enumerate(votes) if min(of_row) > -2 and _agreeing(of_row) > 1]
    if len(body) < _FEW or not named:
        return 0, 0
    names = min(named, key=lambda n: (cells[n].count(""), _wordiness(cells[n])))
    first = names + 1
    # Of a row of descriptions, some cells are empty in columns that are filled in nearly all rows.
    full = [sum(map(bool, values)) > 0.9 * len(values) for values in columns]
    while first in named:
        empty = sum(filled and not cell for cell, filled in zip(cells[first], full, strict=True))
        if _agreeing(votes[first]) + empty <= 2:
            break
        first += 1
    return names, first


def _agreeing(votes: Sequence[int]) -> int:
    """The number of columns whose vote says that a row is none of data."""
    return sum(vote > 1 for vote in votes)


def _wordiness(cells: Cells) -> float:
    """The average words of the cells of a row; a number or an object, hardly a name, has some."""
    words = [
        _WORDY if _NUMBER.fullmatch(cell) or cell.startswith("{") else len(cell.split())
        for cell in filter(None, cells)
    ]
    return sum(words) / max(1, len(words))


class Repeats:
    """Rows that repeat the header, or a title above it, as in the middle of joined files."""

    def __init__(self, names: Cells, above: Sequence[Cells] = ()) -> None:
        rows = [tuple(map(clean, row)) for row in (names, *above)]
        self._rows = {row for row in rows if any(row)}
        self._first = {row[0] for row in self._rows}

    def __contains__(self, cells: Cells) -> bool:
        found = bool(cells) and clean(cells[0]) in self._first
        return found and tuple(map(clean, cells)) in self._rows


def clean(cell: str) -> str:
    """Strip a byte order mark and white space from a cell."""
    return cell.strip("\ufeff \t\r\n")


def is_label(values: Counter[str]) -> bool:
    """True if a column has few values, most of them several times."""
    rows = values.total()
    return rows >= _FEW and len(values) <= min(_MAX_VALUES, max(2, rows // 5))


def _votes(first: Cells, body: Sequence[Cells]) -> int:
    """Vote whether a row holds names: above 0 it does, below 0 it is a row of data."""
    cells = [clean(cell) for cell in first]
    filled = [cell for cell in cells if cell]
    if len(cells) > 1 and filled == [str(number) for number in range(len(filled))]:
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
    present = [value for value in values if value]
    if not cell or not present:
        return 0
    counts = Counter(present)
    numeric = sum(bool(_NUMBER.fullmatch(value)) for value in present) >= 0.9 * len(present)
    is_number = bool(_NUMBER.fullmatch(cell))
    if [*counts] == [cell] and len(present) < len(values):
        return 0  # a mark, which may be called by the column's name
    if is_label(counts):
        return -3 if cell in counts else 2 if not numeric else -1 if is_number else 3
    if numeric:
        return -2 if is_number else 2
    words = sorted(len(value.split()) for value in present)
    if len(cell.split()) > _WORDY:
        return -1
    return 2 if len(present) >= _FEW and len(cell.split()) < words[len(words) // 20] else 0


def remarks(name: str, line: int, header: Header, names: Cells) -> list[Finding]:
    """Remark on the first line of a table if its header was guessed and is in doubt."""
    if not header.doubtful:
        return []
    title = _(
        "Line {line} of {name} looks like data, so it is read as a row.", line=line, name=name
    )
    action = _("The columns are named by their numbers.")
    answer = Remedy("header", "yes", _("It has the names of the columns"))
    if header.named:
        title = _(
            "Line {line} of {name} is taken as names of the columns: {names}.",
            line=line,
            name=name,
            names=some(names),
        )
        action = _("Its cells are not read as a row. Say so if it is one.")
        answer = Remedy("header", "no", _("It is a row"))
    return [remark("header", title, action, answers=[answer])]


def skipped_remarks(
    rows: Sequence[tuple[int, str]], names: int, header: Header, table: Sequence[Cells]
) -> list[Finding]:
    """Remark on lines before the first row of data. `names` is the line with the names of the
    columns; others stand above it, or describe the columns. A line that could not be the names of
    the columns of the table is not offered as that."""
    answers = [Remedy("header", "yes", _("The first line has the names of the columns"))]
    if header.rows == find_header(table, "yes").rows:
        answers = []
    above, below = [row for row in rows if row[0] < names], [row for row in rows if row[0] > names]
    return [
        remark(
            kind,
            title,
            _("They are skipped."),
            [line for line, _text in found],
            answers,
            [text.strip()[:200] for _line, text in found],
        )
        for kind, title, found in (
            ("above-header", _("Lines above the table"), above),
            ("below-header", _("Lines that describe the columns"), below),
        )
        if found
    ]


def repeat_remarks(lines: Sequence[int]) -> list[Finding]:
    """Remark on the lines that repeat the header."""
    title = _("Rows that are the header again: line {lines}", lines=some(lines, 3))
    return [remark("repeated-header", title, _("They are left out."), lines)] if lines else []
