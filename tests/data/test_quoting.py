"""Delimited text as libraries and people write it: every row is read, or a doubt is reported."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.csv_files import NAMES, join, kinds, plain_rows, read, write

fuzz = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


# What stands in a cell of text: words, quotes of all kinds, delimiters, line breaks, spaces.
PARTS = ["soup", "a", "it's", '"', "'", '""', " ", ",", ";", "\t", "|", "\n", "\r\n", "x"]
CELL = st.lists(st.sampled_from(PARTS), max_size=7).map("".join)
DOUBLED = re.compile('"(?:[^"]|"")*""(?:[^"]|"")*"')  # as only a writer of CSV makes it
INLINE = CELL.map(lambda text: text.translate(str.maketrans("\t\n\r|", "    "))).filter(
    lambda text: not DOUBLED.fullmatch(text)
)
PAIRS = st.lists(st.tuples(CELL, CELL), max_size=8)


def with_fuzz(texts: list[tuple[str, str]]) -> list[list[str]]:
    """Make rows of ordinary sentences, and replace some of their texts."""
    rows = plain_rows(30)
    for n, pair in enumerate(texts):
        rows[(7 * n + 3) % 30][:2] = pair
    return rows


def assert_read_or_told(path: Path, rows: list[list[str]], quote: str) -> None:
    """Assert that all rows are read unchanged. If not, the table must report doubtful quotes or
    unreadable lines, and read all rows once their quote is chosen."""
    found, bad, table = read(path)
    if found != rows or bad:
        assert bad or "quotes" in kinds(table), found
        found, bad, table = read(path, quote=quote)
        assert (found, bad) == (rows, [])


@fuzz
@given(
    texts=PAIRS,
    delimiter=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_what_csv_writes_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[tuple[str, str]],
    delimiter: str,
    quoting: Any,
    end: str,
) -> None:
    path, rows = tmp_path_factory.mktemp("csv") / "a.csv", with_fuzz(texts)
    if end == "\r":  # Python 3.11's writer does not quote a line feed then
        quoting = csv.QUOTE_ALL
    write(path, rows, delimiter=delimiter, quoting=quoting, lineterminator=end)
    assert_read_or_told(path, rows, '"')


@fuzz
@given(texts=PAIRS, delimiter=st.sampled_from(",;\t|"), end=st.sampled_from(["\n", "\r\n"]))
def test_what_pandas_writes_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[tuple[str, str]],
    delimiter: str,
    end: str,
) -> None:
    path, rows = tmp_path_factory.mktemp("pandas") / "a.csv", with_fuzz(texts)
    frame = pd.DataFrame(rows, columns=NAMES)
    frame.to_csv(path, index=False, sep=delimiter, lineterminator=end)
    assert_read_or_told(path, rows, '"')


@fuzz
@given(texts=st.lists(st.tuples(INLINE, INLINE), max_size=8), delimiter=st.sampled_from("\t|"))
@example(texts=[('"soup', "x"), ("a", 'x"')], delimiter="\t")
@example(texts=[('"soup x"', "x"), ("a", '"x"')], delimiter="\t")
@example(texts=[('"soup', 'x"')], delimiter="\t")
def test_what_is_joined_without_quoting_comes_back(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str]], delimiter: str
) -> None:
    path, rows = tmp_path_factory.mktemp("joined") / "a.tsv", with_fuzz(texts)
    join(path, rows, delimiter)
    assert_read_or_told(path, rows, "none")


@fuzz
@given(texts=PAIRS, delimiter=st.sampled_from(",;\t|"), everywhere=st.booleans())
def test_single_quotes_around_cells_are_seen(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[tuple[str, str]],
    delimiter: str,
    everywhere: bool,
) -> None:
    path, rows = tmp_path_factory.mktemp("single") / "a.csv", with_fuzz(texts)
    quoting: Any = csv.QUOTE_ALL if everywhere else csv.QUOTE_MINIMAL
    write(path, rows, delimiter=delimiter, quotechar="'", quoting=quoting)
    assert_read_or_told(path, rows, "'")


@fuzz
@given(texts=PAIRS, delimiter=st.sampled_from(",;\t|"))
def test_backslashes_before_quotes_are_seen(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str]], delimiter: str
) -> None:
    path, rows = tmp_path_factory.mktemp("escaped") / "a.csv", with_fuzz(texts)
    write(
        path, rows, delimiter=delimiter, doublequote=False, escapechar="\\", quoting=csv.QUOTE_ALL
    )
    assert_read_or_told(path, rows, "escaped")


@pytest.mark.parametrize("broken", ['"un" ', '"un""closed,"'])
def test_one_broken_line_does_not_make_quotation_marks_of_all_the_others_text(
    tmp_path: Path, broken: str
) -> None:
    rows = plain_rows(60)
    lines = [f'"{first}","{second}",{label}' for first, second, label in rows]
    lines[30] = broken + lines[30][1:]
    path = tmp_path / "a.csv"
    path.write_text("\n".join([",".join(NAMES), *lines]))
    found, bad, table = read(path)
    assert [row for row in found if row in rows] == rows[:30] + rows[31:]
    assert bad == [32] or "quotes" in kinds(table)
