"""Delimited text, such as CSV and TSV, as a table. A broken line does not affect the others."""

import contextlib
import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import dropwhile, islice
from operator import itemgetter
from pathlib import Path

from finetune.data import headers, quoting
from finetune.data.quoting import Line, Shape
from finetune.data.table import MAX_FIELD, OnBadRow, ReadOptions, Rows, remark
from finetune.data.text_tables import TextTable
from finetune.errors import DataError, some
from finetune.messages import message as _

_DELIMITERS = {"tab": "\t", "space": " "}
_SAMPLE, _SAMPLE_CHARACTERS = 1000, 2**22  # lines that are looked at first
_EVEN = 0.9  # share of lines that shows the delimiter although the first line, a title, has none
_WORDY = 3  # words of an average text
_IN_TEXTS = "\"'.,!?_-()[]{}\u2013\u2014\u2019\u201c\u201d"  # separate no cells unless asked to
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
        found = self._quoting
        if found.quote == quoting.SINGLE:  # the names were read with double ones
            self._name_columns([name.strip(quoting.SINGLE) for name in self.columns])
        self.remarks += headers.repeat_remarks(found.lines["repeated"])
        self.remarks += quoting.remarks(found, bool(options.quote))
        if extra := found.lines["extra"]:
            title = _("Rows with more cells than the header: line {lines}", lines=some(extra, 3))
            action = _("Their first {width} cells are read.", width=self._shape.width)
            self.remarks.append(remark("extra-cells", title, action, extra))
        if self.delimiter != ",":
            self.notes.append(
                _("{name} is separated by {delimiter!r}.", name=name, delimiter=self.delimiter)
            )

    def _read_layout(self, body: list[Line], options: ReadOptions) -> None:
        """Find the names of the columns in the first lines, and the layout of a row."""
        delimiter, quote = self.delimiter, options.quote or quoting.DOUBLE
        _even, usual = max(_usual_widths(body, delimiter), key=itemgetter(0))
        blanks = _blanks_follow(body, delimiter, quoting.character(quote))
        shape = Shape(delimiter, usual, usual, blanks)
        records = list(quoting.Scanner(iter(body), shape, quote))
        rows = [record.cells for record in records]
        header = headers.find_header(rows, options.header)
        names = list(map(headers.clean, header.names(rows)))
        rest = rows[header.rows :]
        widths = Counter(map(len, rest)).most_common(1)
        if widths and not header.named:
            names = [""] * widths[0][0]
        elif {*map(len, rest)} == {len(names) + 1} and _count(row[0] for row in rest):
            names = ["", *names]  # R's row numbers have no name
        width = len(names)
        self._name_columns(names)
        start = records[header.above].line if records else 0  # of the names, or the first row
        self._last_above = records[header.rows - 1].last if header.named and records else start - 1
        self.remarks += headers.remarks(self.name, start, header, self.columns)
        named = {line[0] for line in records[header.above].raw} if records else set()
        skipped = [
            line for line in body if line[0] <= self._last_above and line[0] not in {start, *named}
        ]
        self.remarks += headers.skipped_remarks(skipped, start, header, rows)
        required = max((i for i, name in enumerate(names, 1) if name), default=width)
        self._shape = replace(
            shape,
            width=width,
            required=required if header.named else width,
            values=quoting.few_values([row for row in rest if len(row) == width], width),
            repeats=headers.Repeats(names, [shape.split(text) for _line, text in skipped]),
        )

    def _lines_below(self, on_bad_row: OnBadRow) -> Iterator[Line]:
        return dropwhile(lambda line: line[0] <= self._last_above, self._lines(on_bad_row))

    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        names, shape = self.columns if columns is None else columns, self._shape
        width = shape.width
        indices = [(name, self.columns.index(name)) for name in names]
        lines, chosen = self._lines_below(on_bad_row), self._quoting
        scanner = quoting.Scanner(lines, shape, chosen.quote, chosen.split_joined)
        for line, cells, kind, _raw, problem in scanner:
            if problem:
                on_bad_row(line, problem)
            elif kind != "repeated" and (self.keep_empty_rows or any(cells)):
                cells += [""] * (width - len(cells))
                yield line, {name: cells[index] for name, index in indices}


def _count(cells: Iterable[str]) -> bool:
    """True for 1, 2, 3 ..."""
    return all(cell == str(number) for number, cell in enumerate(cells, 1))


def _usual_widths(
    lines: list[Line], delimiter: str, blanks: bool = False
) -> list[tuple[float, int]]:
    """The share of lines with the commonest number of cells, and that number: with quotes around
    cells, perhaps behind `blanks`, and without."""
    texts, widths = [text for _n, text in lines], []
    with contextlib.suppress(csv.Error):
        rows = csv.reader(texts, delimiter=delimiter, skipinitialspace=blanks)
        widths.append([len(cells) for cells in rows if cells])
    widths.append([text.count(delimiter) + 1 for text in texts])
    commonest = [(Counter(counts).most_common(1)[0], counts) for counts in widths if counts]
    return [(count / len(counts), width) for (width, count), counts in commonest] or [(0, 1)]


def _blanks_follow(lines: list[Line], delimiter: str, quote: str) -> bool:
    """True if blanks stand between delimiters and quoted cells, as in `a, "b, c", d`."""
    if not quote or not any(f"{delimiter} {quote}" in text for _n, text in lines):
        return False
    mark, end = re.escape(quote), re.escape(delimiter)
    opened = re.compile(f"{end} +{mark}")
    whole = re.compile(f"{end} +{mark}(?:[^{mark}]|{mark}{mark})*{mark} *(?={end}|\\s*$)")
    begun = [len(opened.findall(text)) for _n, text in lines]
    closed = sum(len(whole.findall(text)) for _n, text in lines)
    even, before = (max(_usual_widths(lines, delimiter, blanks)) for blanks in (True, False))
    usual = 2 * sum(map(bool, begun)) > len(lines)
    return closed > _EVEN * sum(begun) and (even > before or (usual and even == before))


def _detect_delimiter(lines: list[Line], tab: bool) -> str:
    """The delimiter that splits most lines into equally many cells, with quotes or without; a rare
    one if it splits all of them into texts and few values."""
    lines = [line for line in lines if not line[1].startswith("#")] or lines
    scores = []
    for order, delimiter in enumerate("\t,;|" if tab else ",;\t|"):
        for even, width in _usual_widths(lines, delimiter):
            if width > 1 and (delimiter in lines[0][1] or even > _EVEN):
                scores.append((even, -order, delimiter))
    best = max(scores, default=(0, 0, "\t" if tab else ","))
    return best[2] if best[0] > _EVEN else _rare_delimiter(lines) or best[2]


def _rare_delimiter(lines: list[Line]) -> str:
    """A character that splits every line into equally many cells, of which one column has texts and
    one few values; "" if there is none."""
    texts = [text.strip("\r\n") for _n, text in lines]
    for character, count in Counter(texts[-1] if texts else "").items():
        if character.isalnum() or character.isspace() or character in _IN_TEXTS:
            continue
        if any(text.count(character) != count for text in texts):
            continue
        rows = [text.split(character) for text in texts]
        few = quoting.few_values(rows, count + 1)
        values = [sum(map(bool, found)) > 1 and "" not in found for found in few.values()]
        words = [sum(len(row[i].split()) for row in rows) for i in range(count + 1) if i not in few]
        if any(values) and max(words, default=0) >= _WORDY * len(rows):
            return character
    return ""
