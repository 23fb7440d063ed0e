"""Delimited text, such as CSV and TSV, as a table. A broken line does not affect the others."""

from __future__ import annotations

import contextlib
import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import dropwhile, islice
from operator import itemgetter
from pathlib import Path

from finetune.data import headers, quoting
from finetune.data.quoting import Line, Shape
from finetune.data.table import (
    MAX_FIELD,
    MAX_LINES,
    OnBadRow,
    ReadOptions,
    Remark,
    Rows,
)
from finetune.data.text_tables import TextTable
from finetune.errors import DataError, some
from finetune.messages import message as _

_DELIMITERS = {"tab": "\t", "space": " "}
_SAMPLE, _SAMPLE_CHARACTERS = 1000, 2**22  # lines that are looked at first
_EVEN = 0.9  # share of lines that shows the delimiter although the first line, a title, has none
_SEPARATOR = re.compile(r'\ufeff?"?sep=(.)"?[\r\n]*', re.I)  # as Excel writes and obeys it


class CsvTable(TextTable):
    """Delimited text. The delimiter is the requested one, the one of a line `sep=;`, or the one
    that splits most lines into equally many cells; a tab comes first of several if `tab`."""

    def __init__(self, path: Path, name: str, options: ReadOptions, tab: bool) -> None:
        super().__init__(path, name, options)
        csv.field_size_limit(MAX_FIELD)
        sample: list[Line] = []
        size = 0
        for line in islice(self._lines(), _SAMPLE):
            sample.append(line)
            size += len(line[1])
            if size > _SAMPLE_CHARACTERS:
                break
        first = sample[0][1] if sample else ""
        separator = _SEPARATOR.fullmatch(first)
        requested = _DELIMITERS.get(options.delimiter, options.delimiter)
        body = [line for line in sample[bool(separator) :] if line[1].strip()]
        self.delimiter = requested or (separator[1] if separator else "")
        self.delimiter = self.delimiter or _detect_delimiter(body, tab)
        if len(self.delimiter) != 1 or self.delimiter == options.quote:
            raise DataError(
                "{delimiter!r} cannot separate cells.",
                "Give one character as delimiter, or tab; another than quote.",
                delimiter=options.delimiter,
            )
        self._read_layout(body, options)
        # All lines are surveyed to choose how quotes are read.
        self._quoting = quoting.choose(
            lambda: self._lines_below(lambda line, reason: None), self._shape, options.quote
        )
        found = self._quoting.counted
        self.remarks += headers.repeat_remarks(found.repeats)
        self.remarks += quoting.remarks(self._quoting, bool(options.quote))
        if found.extra:
            title = _(
                "Rows with more cells than the header: line {lines}", lines=some(found.extra, 3)
            )
            action = _("Their first {width} cells are read.", width=self._shape.width)
            shown = [(line, "") for line in found.extra[:MAX_LINES]]
            self.remarks.append(
                Remark("extra-cells", "notes", title, action, len(found.extra), shown)
            )
        if self.delimiter != ",":
            self.notes.append(
                _("{name} is separated by {delimiter!r}.", name=name, delimiter=self.delimiter)
            )

    def _read_layout(self, body: list[Line], options: ReadOptions) -> None:
        """Find the names of the columns in the first lines, and the layout of a row."""
        _even, usual = max(_usual_widths(body, self.delimiter), key=itemgetter(0))
        shape = Shape(self.delimiter, usual, usual)
        comments = 0  # of another width; one of the usual width may be the header
        for _n, text in body:
            if not text.startswith("#") or text.count(self.delimiter) + 1 == usual:
                break
            comments += 1
        records = list(
            quoting.Scanner(iter(body[comments:]), shape, options.quote or quoting.DOUBLE)
        )
        hashed = 0
        for record in records:
            if not record.cells[:1] or not record.cells[0].startswith("#"):
                break
            hashed += 1
        rows = [record.cells for record in records]
        header = headers.find_header(rows[hashed:], options.header)
        if hashed and header.named and not header.doubtful:
            rows, records = rows[hashed:], records[hashed:]
        elif hashed:
            header = headers.find_header(rows, options.header)
        self.has_header = header.named
        names = rows[header.above] if rows else []
        rest = rows[header.above + header.named :]
        widths = Counter(map(len, rest)).most_common(1)
        if not header.named:
            names = [""] * (widths[0][0] if widths else len(names))
        width = len(names)
        names = list(map(headers.clean, names))
        self._name_columns(names)
        self._start = records[header.above].line if records else 0  # of the names, or the rows
        self._last_above = self._start - 1
        if header.named and records:
            lines = records[header.above].lines
            self._last_above = lines[-1][0] if lines else self._start
        if options.header == "auto":
            self.remarks += headers.remarks(self.name, self._start, header, self.columns)
        required = max((i for i, name in enumerate(names, 1) if name), default=width)
        self._shape = Shape(
            self.delimiter,
            width,
            required if header.named else width,
            quoting.few_values([row for row in rest if len(row) == width], width),
            headers.Repeats(names, self._remark_above(body)),
        )

    def _remark_above(self, body: list[Line]) -> list[list[str]]:
        """Report the lines above the header or the rows that are skipped; return their cells."""
        above = [line for line in body if line[0] < self._start]
        if above:
            shown = [(number, text.strip()[:200]) for number, text in above[:MAX_LINES]]
            title = _("Lines above the table")
            action = _("They are skipped.")
            remark = Remark("above-header", "notes", title, action, len(above), shown)
            self.remarks.append(remark)
        return [text.rstrip("\r\n").split(self.delimiter) for _n, text in above]

    def _lines_below(self, on_bad_row: OnBadRow) -> Iterator[Line]:
        """The lines below the names of the columns."""
        return dropwhile(lambda line: line[0] <= self._last_above, self._lines(on_bad_row))

    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        names, shape = self.columns if columns is None else columns, self._shape
        width = shape.width
        indices = [(name, self.columns.index(name)) for name in names]
        lines, chosen = self._lines_below(on_bad_row), self._quoting
        repeats = shape.repeats if chosen.counted.repeats else ()
        for line, cells, _raw, _plain, problem in quoting.Scanner(
            lines, shape, chosen.quote, chosen.split_joined
        ):
            if problem:
                on_bad_row(line, problem)
            elif (repeats and cells in repeats) or not (any(cells) or self.keep_empty_rows):
                continue
            elif len(cells) == width or shape.fits(cells) or shape.has_useful_start(cells):
                cells += [""] * (width - len(cells))
                yield line, {name: cells[index] for name, index in indices}
            else:
                reason = _(
                    "has {count} fields where the first line has {width}",
                    count=len(cells),
                    width=width,
                )
                on_bad_row(line, reason)


def _usual_widths(lines: list[Line], delimiter: str) -> list[tuple[float, int]]:
    """The share of lines with the commonest number of cells, and that number: with quotes around
    cells, and without."""
    texts, widths = [text for _n, text in lines], []
    with contextlib.suppress(csv.Error):
        widths.append([len(cells) for cells in csv.reader(texts, delimiter=delimiter) if cells])
    widths.append([text.count(delimiter) + 1 for text in texts])
    commonest = [(Counter(counts).most_common(1)[0], counts) for counts in widths if counts]
    return [(count / len(counts), width) for (width, count), counts in commonest] or [(0, 1)]


def _detect_delimiter(lines: list[Line], tab: bool) -> str:
    """The delimiter that splits most lines into equally many cells, with quotes or without."""
    lines = [line for line in lines if not line[1].startswith("#")] or lines
    scores = []
    for order, delimiter in enumerate("\t,;|" if tab else ",;\t|"):
        for even, width in _usual_widths(lines, delimiter):
            if width > 1 and (delimiter in lines[0][1] or even > _EVEN):
                scores.append((even, -order, delimiter))
    return max(scores)[2] if scores else ("\t" if tab else ",")
