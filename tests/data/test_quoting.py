"""Delimited text as libraries and people write it: every row is read, or a doubt is reported."""

from __future__ import annotations

import csv
import random
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finetune.data import table_formats
from finetune.data.table import ReadOptions

Rows = list[list[str]]
NAMES = ["first", "second", "label"]
WORDS = ["the", "old", "clerk", "praised", "soup", "before", "noon", "her", "cousin", "film"]
# What stands in a cell of text: words, quotes of all kinds, delimiters, line breaks, spaces.
PARTS = ["soup", "a", "it's", '"', "'", '""', " ", ",", ";", "\t", "|", "\n", "\r\n", "ü", "猫"]
CELL = st.lists(st.sampled_from(PARTS), max_size=7).map("".join)
DOUBLED = re.compile('"(?:[^"]|"")*""(?:[^"]|"")*"')  # as only a writer of CSV makes it
INLINE = CELL.map(lambda text: text.translate(str.maketrans("\t\n\r|", "    "))).filter(
    lambda text: not DOUBLED.fullmatch(text)
)
MARKS = ",;\t|"
ALL, MINIMAL, TEXTS = csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC
# By what writes a file: the quote to choose in doubt, the cells that it can hold, its delimiters,
# and ways to write it.
WRITERS: dict[str, tuple[str, Any, str, list[dict[str, Any]]]] = {
    "csv": ('"', CELL, MARKS, [
        *({"quoting": quoting, "lineterminator": end}
          for quoting in (MINIMAL, ALL, TEXTS) for end in ("\n", "\r\n")),
        {"quoting": ALL, "lineterminator": "\r"},  # with others Python 3.11 writes no quotes
    ]),
    "pandas": ('"', CELL, MARKS, [{"lineterminator": "\n"}, {"lineterminator": "\r\n"}]),
    "joined": ("none", INLINE, "\t|", [{}]),
    "single quotes": ("'", CELL, MARKS, [{"quotechar": "'", "quoting": ALL},
                                         {"quotechar": "'", "quoting": MINIMAL}]),
    "backslashes": ("escaped", CELL, MARKS, [{"doublequote": False, "escapechar": "\\",
                                              "quoting": ALL}]),
}  # fmt: skip


def plain_rows(count: int) -> Rows:
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(4, 9))) for _ in range(2 * count)]
    return [[*texts[2 * n : 2 * n + 2], str(n % 2)] for n in range(count)]


def read(path: Path, **options: str) -> tuple[Rows, list[int], set[str]]:
    """The cells of all rows, the lines that cannot be read, and the kinds of remarks."""
    bad: list[int] = []
    table = table_formats.open_table(path, options=ReadOptions(**options))
    table.keep_empty_rows = True
    rows = [list(row.values()) for _, row in table.rows(lambda line, reason: bad.append(line))]
    return rows, bad, {remark.kind for remark in table.remarks}


def write(path: Path, rows: Rows, writer: str, delimiter: str, way: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        if writer == "pandas":
            pd.DataFrame(rows, columns=NAMES).to_csv(file, index=False, sep=delimiter, **way)
        elif writer == "joined":
            file.write("".join(delimiter.join(row) + "\n" for row in [NAMES, *rows]))
        else:
            csv.writer(file, delimiter=delimiter, **way).writerows([NAMES, *rows])


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_written_comes_back_or_is_told(
    writer: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All rows are read unchanged. If not, quotes are doubtful or lines unreadable, and all rows
    are read once their quote is chosen."""
    quote, cell, marks, ways = WRITERS[writer]

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        texts=st.lists(st.tuples(cell, cell), max_size=8),
        delimiter=st.sampled_from(marks),
        way=st.sampled_from(ways),
    )
    def comes_back(texts: list[tuple[str, str]], delimiter: str, way: dict[str, Any]) -> None:
        path, rows = tmp_path_factory.mktemp("written") / "a.csv", plain_rows(30)
        for n, pair in enumerate(texts):
            rows[(7 * n + 3) % 30][:2] = pair
        write(path, rows, writer, delimiter, way)
        found, bad, told = read(path)
        if found != rows or bad:
            assert bad or "quotes" in told, found
            found, bad, _ = read(path, quote=quote)
            assert (found, bad) == (rows, [])

    comes_back()
