"""Split delimited text into records. Quotation marks may enclose cells or be part of the text.

An unclosed mark would join lines, so a whole file is surveyed first: if its lines fit the header
as they stand and do not fit with quotes, the quotes are text.
"""

import csv
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from finetune.data import headers
from finetune.data.table import remark
from finetune.errors import some
from finetune.findings import Finding, Remedy, Severity
from finetune.messages import message as _

_MOSTLY = 0.9  # share of rows from which a column counts as quoted
MAX_RECORD = 1000  # lines; a quote that is open for longer is taken for a mistake
NONE, DOUBLE, SINGLE = "none", '"', "'"
ESCAPED = "escaped"  # double ones; those within a cell follow a backslash
_RARE_IN_TEXTS = "\t|"  # delimiters that hardly stand in a text
_UNCLOSED = _("a quote is opened here and not closed")
_NOT_DOUBLED = _("has a quote within a quoted field that is not doubled")

Line = tuple[int, str]  # its number from 1, and the text with its end


def character(quote: str) -> str:
    """The quotation mark of a value of `RunConfig.quote`; "" for none."""
    return {NONE: "", ESCAPED: DOUBLE}.get(quote, quote)


class Record(NamedTuple):
    """The cells of a row."""

    line: int  # its first one, from 1
    cells: list[str]
    # "" for a row that fits the header; `stray` if it fits only as it stands, without quotes;
    # `extra` if it has more cells than the header, `repeated` if it repeats that, and `broken` if
    # it cannot be read.
    kind: str = ""
    raw: Sequence[Line] = ()  # its lines, if it has quotes
    problem: str = ""  # why it cannot be read

    @property
    def last(self) -> int:
        """Its last line, from 1."""
        return self.raw[-1][0] if self.raw else self.line


@dataclass(frozen=True)
class Shape:
    """The layout of a row."""

    delimiter: str
    width: int  # columns of the header
    required: int  # cells that a row must have; the columns after them have no names
    blanks: bool = False  # True if blanks after a delimiter belong to no cell
    # The values of columns that have few, by the column's index.
    values: dict[int, frozenset[str]] = field(default_factory=dict)
    repeats: headers.Repeats = field(default_factory=lambda: headers.Repeats(()))  # the header

    def split(self, line: str) -> list[str]:
        """Split a line at every delimiter."""
        cells = line.rstrip("\r\n").split(self.delimiter)
        return [cell.lstrip(" ") for cell in cells] if self.blanks else cells

    def fits(self, cells: Sequence[str]) -> bool:
        """True if a row has the right number of cells, or additional ones that are empty."""
        return len(cells) >= self.required and not any(cells[self.width :])

    def fits_plainly(self, line: str, sure: bool = False) -> bool:
        """True if a line that is split at every delimiter is a row. If texts contain the delimiter
        too, cells must have known values; `sure` requires a column of those."""
        cells = self.split(line)
        if not self.fits(cells):
            return False
        if self.delimiter in _RARE_IN_TEXTS:
            return True
        known = all(cells[i] in values for i, values in self.values.items() if i < len(cells))
        return known and bool(self.values or not sure)

    def has_useful_start(self, cells: Sequence[str]) -> bool:
        """True if a row with too many cells begins with the cells of all columns."""
        if len(cells) <= self.width:
            return False
        last = self.width - 1
        if self.delimiter == "," and cells[last].isdecimal() and cells[last + 1].isdecimal():
            return False  # perhaps one number, with a comma before its decimals
        return self.delimiter in _RARE_IN_TEXTS or cells[last] in self.values.get(last, ())


def few_values(rows: Sequence[Sequence[str]], width: int) -> dict[int, frozenset[str]]:
    """The values of the columns that have few, by the column's index."""
    columns = [Counter(row[i] for row in rows if len(row) > i) for i in range(width)]
    return {i: frozenset(own) for i, own in enumerate(columns) if headers.is_label(own)}


class Scanner:
    """Reads records from lines; a broken record costs only its first line. With `split_joined`,
    lines that a quote joins are rows of their own if each of them fits."""

    def __init__(
        self, lines: Iterator[Line], shape: Shape, quote: str, split_joined: bool = False
    ) -> None:
        self._lines, self._shape, self._split_joined = lines, shape, split_joined
        self._again: deque[Line] = deque()  # lines that followed a broken one
        self._mark = character(quote)
        self._escape = "\\" if quote == ESCAPED else None
        between = re.escape(shape.delimiter)  # of cells, of which the escape leaves only an N
        self._null = re.compile(rf"(^|{between})\\N(?={between}|\r?\n|$)")
        self._raw: list[Line] = []  # of the record that is read
        self._reader = self._new_reader()

    def _new_reader(self) -> Any:
        return csv.reader(
            iter(self._next_text, None),
            delimiter=self._shape.delimiter,
            quotechar=self._mark or None,
            quoting=csv.QUOTE_MINIMAL if self._mark else csv.QUOTE_NONE,
            escapechar=self._escape,
            skipinitialspace=self._shape.blanks,
            strict=True,
        )

    def _pull(self) -> Line | None:
        """The next line that belongs to no record yet; None at the end."""
        return self._again.popleft() if self._again else next(self._lines, None)

    def _next_text(self) -> str | None:
        """The next line of the record that is read."""
        if not self._raw:
            self._raw.append(self._first)
        elif len(self._raw) < MAX_RECORD and (line := self._pull()) is not None:
            self._raw.append(line)
        else:
            return None
        text = self._raw[-1][1]
        return self._null.sub(r"\1\\\\N", text) if self._escape else text

    def __iter__(self) -> Iterator[Record]:
        mark, escaped = self._mark, self._escape is not None
        while (line := self._pull()) is not None:
            number, text = line
            if mark and (escaped or mark in text):
                yield self._read(line)
                continue
            cells = self._shape.split(text)
            if len(cells) > 1 or cells[0].strip():
                yield self._record(number, cells)

    def _read(self, first: Line) -> Record:
        """Read the record that begins in a line, perhaps with quotes."""
        self._first, self._raw = first, []
        problem = ""
        try:
            cells = next(self._reader)
        except (csv.Error, StopIteration) as error:
            cells, self._reader = [], self._new_reader()
            problem = _NOT_DOUBLED if "expected after" in str(error) else _UNCLOSED
        raw, shape = self._raw, self._shape
        if len(raw) > 1 and not problem:
            separate = self._split_joined and all(shape.fits_plainly(line[1], True) for line in raw)
            problem = _UNCLOSED if separate or not shape.fits(cells) else ""
        if not problem and shape.fits(cells):
            return self._record(first[0], cells, raw)
        self._again.extendleft(reversed(raw[1:]))
        if shape.fits_plainly(first[1]):
            return self._record(first[0], shape.split(first[1]), [first], kind="stray")
        return self._record(first[0], cells, [first], problem)

    def _record(
        self, line: int, cells: list[str], raw: Sequence[Line] = (), why: str = "", kind: str = ""
    ) -> Record:
        shape = self._shape
        if cells in shape.repeats:
            return Record(line, cells, "repeated", raw)
        if not why and not shape.fits(cells):
            if shape.has_useful_start(cells):
                return Record(line, cells, "extra", raw)
            count, width = len(cells), shape.width
            why = _("has {count} fields where the first line has {width}", count=count, width=width)
        return Record(line, cells, "broken" if why else kind, raw, why)


@dataclass
class Survey:
    """Counts of how quotes are used in all lines of a file, and how they are to be read."""

    quote: str
    split_joined: bool = False
    rows: int = 0
    lines: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # kind -> lines
    enclosing: list[int] = field(default_factory=list)  # lines that fit only with quotes
    joining: list[int] = field(default_factory=list)  # ... but each line also fits without
    # Rows with quotes around a cell, by the cell's column, while no row needs quotes.
    quoted: Counter[int] = field(default_factory=Counter)
    needless: set[int] = field(default_factory=set)  # columns with quotes that enclose nothing
    needless_lines: list[int] = field(default_factory=list)
    doubled: bool = False  # True if quotes enclose quotes
    apostrophes: bool = False  # True if a cell begins with a single quote
    backslashes: bool = False  # True if one stands before a quote or a delimiter

    @property
    def against(self) -> list[int]:
        """The lines that contradict enclosing quotes."""
        return sorted(self.joining + self.lines["stray"])

    @property
    def broken(self) -> int:
        """The number of lines that fit in no way."""
        return len(self.lines["broken"]) + len(self.lines["extra"])


def survey(lines: Iterator[Line], shape: Shape, quote: str) -> Survey:
    """Count how quotes are used."""
    result = Survey(quote)
    for line, cells, kind, raw, _problem in Scanner(_noted(lines, shape, result), shape, quote):
        result.rows += bool(kind or any(cells))  # an empty row has no quotes
        if kind:
            result.lines[kind].append(line)
        elif len(raw) > 1 and all(shape.fits_plainly(text, True) for _line, text in raw):
            result.joining += [number for number, _text in raw]
        elif raw and (len(raw) > 1 or not shape.fits(shape.split(raw[0][1]))):
            result.enclosing.append(line)
        elif raw and not result.enclosing:
            _count_quoted_line(result, raw[0], shape, character(quote))
    return result


def _noted(lines: Iterator[Line], shape: Shape, result: Survey) -> Iterator[Line]:
    """Pass lines on, and note the marks that other ways to quote would explain."""
    apostrophe, escapes = shape.delimiter + "'", ('\\"', "\\" + shape.delimiter)
    for line in lines:
        text = line[1]
        if "'" in text and (apostrophe in text or text.startswith("'")):
            result.apostrophes = True
        if "\\" in text and any(escape in text for escape in escapes):
            result.backslashes = True
        yield line


def _count_quoted_line(result: Survey, line: Line, shape: Shape, mark: str) -> None:
    """Count the quotes around the cells of a row in a single line that enclose no delimiter."""
    number, text = line
    cells = shape.split(text)
    quoted = [column for column, cell in enumerate(cells) if cell[:1] == mark]
    result.quoted.update(quoted)
    needless = text.count(mark) == 2 * len(quoted) or any(
        mark not in cells[column][1:-1] for column in quoted
    )
    if not quoted:
        return
    if not needless:
        result.doubled = True
        return
    result.needless.update(quoted)
    result.needless_lines.append(number)


def choose(lines: Callable[[], Iterator[Line]], shape: Shape, requested: str = "") -> Survey:
    """Choose how the quotes of a file are read, from all of its lines."""
    if requested:
        return survey(lines(), shape, requested)
    double = survey(lines(), shape, DOUBLE)
    off = len(double.against) + double.broken
    if double.backslashes and off:
        escaped = survey(lines(), shape, ESCAPED)
        if not escaped.against and escaped.broken < off:
            return escaped
    if double.apostrophes:
        single = survey(lines(), shape, SINGLE)
        more_fit = single.enclosing and single.broken < off
        everywhere = single.rows > 1 and single.rows in single.quoted.values()  # in a column
        needed = single.doubled and not single.needless  # only around cells that need them
        possible = not single.against and single.broken <= off
        if possible and (more_fit or everywhere or needed):
            return single
        if single.rows > 1 and single.broken <= off and _around_a_column(single):
            return _in_doubt(single, shape)
    if double.against and not double.enclosing and not _around_a_column(double):
        return replace(double, quote=NONE)
    return _in_doubt(double, shape)


def _around_a_column(found: Survey) -> bool:
    return max(found.quoted.values(), default=0) >= _MOSTLY * found.rows


def _in_doubt(found: Survey, shape: Shape) -> Survey:
    """Read lines that quotes join, and that fit without them, as the others suggest."""
    rare = shape.delimiter in _RARE_IN_TEXTS
    return replace(found, split_joined=rare or len(found.joining) > len(found.enclosing))


def remarks(found: Survey, requested: bool) -> list[Finding]:
    """Remark on the quotes of a file if their reading is in doubt."""
    lines = list[int]()
    severity: Severity = "notes"
    value, text = NONE, _("They are part of the texts")
    if found.quote == NONE and not requested:
        lines = found.against
        title = _(
            "Quotation marks are read as part of the texts: line {lines}", lines=some(lines, 3)
        )
        action = _("There they do not enclose cells, while each line fits the header as it stands.")
        value, text = DOUBLE, _("They are marks around cells")
    elif found.against:
        lines = found.against if found.split_joined else found.lines["stray"]
        severity = "warns"
        title = _("Quotation marks that do not enclose cells: line {lines}", lines=some(lines, 3))
        action = _("These lines are read as they stand, the others with quotes around cells.")
        text = _("They are part of the texts everywhere")
    elif not (requested or found.enclosing) and any(
        found.quoted[column] < _MOSTLY * found.rows for column in found.needless
    ):  # no cell of a column needs quotes, and only some have them
        lines = found.needless_lines
        title = _("Quotation marks around some texts: line {lines}", lines=some(lines, 3))
        action = _("They are taken for marks around cells and left out.")
    if not lines:
        return []
    answers = [Remedy("quote", value, text)]
    return [remark("quotes", title, action, lines, answers, severity=severity)]
