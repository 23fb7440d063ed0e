"""Lines, rows and quotes as editors, spreadsheets and libraries count and write them: every row is
read, or a doubt is reported. What no file of `test_files` can show."""

import csv
import gzip
import random
import re

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finetune.data import csv_cells, quoting, table_formats
from finetune.data.table import ReadOptions
from finetune.errors import DataError

GOOD = "sentence1,sentence2,label\n" + "the cat,a cat,1\nthe cat,no cat,0\n" * 20


def test_a_visitor_brings_no_more_by_packing_it(tmp_path, monkeypatch):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(GOOD.encode() + b"the cat,a cat,1\n" * 200_000))
    table_formats.open_table(path)
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_MAX_UPLOAD_MB", "1")
    with pytest.raises(DataError, match="unpacks to more than 2 MiB"):
        table_formats.open_table(path)


def read(path, **options):
    bad = []
    table = table_formats.open_table(path, options=ReadOptions(**options))
    rows = table.rows(lambda line, reason: bad.append((line, reason)))
    return [(line, list(row.values())) for line, row in rows], bad


def test_lines_and_rows_are_named_as_editors_and_spreadsheets_count_them(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('a,b\n1,2\n"x\ny",3\nshort\n"a"b,1,1\n4,"open,7\n5,6\n')
    rows, bad = read(path)
    assert rows == [(2, ["1", "2"]), (3, ["x\ny", "3"]), (8, ["5", "6"])]
    assert [line for line, _ in bad] == [5, 6, 7]
    for (_, reason), words in zip(bad, ("1 fields", "not doubled", "not closed"), strict=True):
        assert words in reason
    path.write_text("a; a ;\n1;2,5;\n")
    assert table_formats.open_table(path).columns == ["a", "a (2)", "column 3"]
    assert read(path) == ([(2, ["1", "2,5", ""])], [])
    path = tmp_path / "a.xlsx"
    other = pd.DataFrame({"first": ["=1", None], "second": [2.5, None], "y": [True, 0]})
    with pd.ExcelWriter(path) as writer:
        for name, frame in {"Cover": pd.DataFrame(), "Other": other}.items():
            frame.to_excel(writer, sheet_name=name, index=False, startrow=1, startcol=1)
    assert read(path, sheet="Other") == ([(3, ["", 2.5, True]), (4, ["", "", 0])], [])
    with pytest.raises(DataError, match="no sheet 'None'; it has Cover, Other"):
        read(path, sheet="None")


def test_a_quote_that_is_not_closed_costs_little(tmp_path):
    """The end of each quote is searched in a limited number of lines, not in the whole file."""
    rows = 3 * quoting.MAX_RECORD
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + 'x,"open,y\n' + "1,2\n" * rows + 'x,"open,y\n' + "1,2\n" * rows)
    good, bad = read(path)
    assert len(good) == 2 * rows
    assert [line for line, _ in bad] == [2, rows + 3]


@settings(max_examples=100, deadline=None)
@given(
    contents=st.binary(max_size=400),
    ending=st.sampled_from([".csv", ".tsv", ".jsonl", ".json", ".parquet", ".csv.gz"]),
)
def test_any_bytes_are_read_or_refused(tmp_path_factory, contents, ending):
    path = tmp_path_factory.mktemp("any") / f"a{ending}"
    path.write_bytes(contents)
    try:
        opened = table_formats.open_table(path)
        for line, row in opened.rows(lambda line, reason: None, opened.columns[:2]):
            assert line > 0
            assert list(row) == opened.columns[:2]
    except DataError:
        return


def test_no_cell_of_a_sheet_is_a_formula():
    cells = ["=cmd|' /C calc'!A0", "@x", " -2 &amp;", "\t=1", "-1", "<b>+1</b>", 7]
    (row,) = csv.reader(csv_cells.to_csv([cells]).splitlines())
    assert row == [*(f"'{cell}" for cell in cells[:4]), "-1", "<b>+1</b>", "7"]


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
WRITERS = {
    "csv": ('"', CELL, MARKS, [
        *({"quoting": quoting} for quoting in (MINIMAL, ALL, TEXTS)),  # ending lines with \r\n
        {"quoting": MINIMAL, "lineterminator": "\n"},
        {"quoting": ALL, "lineterminator": "\r"},  # with others Python 3.11 writes no quotes
    ]),
    "pandas": ('"', CELL, MARKS, [{"lineterminator": "\n"}, {"lineterminator": "\r\n"}]),
    "joined": ("none", INLINE, "\t|", [{}]),
    "single quotes": ("'", CELL, MARKS, [{"quotechar": "'", "quoting": ALL}]),
    # Of one such cell with a line break or a double quote nobody can say which quotes are text.
    "a few single quotes": ("'", INLINE.map(lambda text: text.replace('"', "")), MARKS,
                            [{"quotechar": "'", "quoting": MINIMAL}]),
    "backslashes": ("escaped", CELL, MARKS, [{"doublequote": False, "escapechar": "\\",
                                              "quoting": ALL}]),
}  # fmt: skip


def plain_rows(count):
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(4, 9))) for _ in range(2 * count)]
    return [[*texts[2 * n : 2 * n + 2], str(n % 2)] for n in range(count)]


def read_cells(path, **options):
    """The cells of all rows, the lines that cannot be read, and the kinds of remarks."""
    bad = []
    table = table_formats.open_table(path, options=ReadOptions(**options))
    table.keep_empty_rows = True
    rows = [list(row.values()) for _, row in table.rows(lambda line, reason: bad.append(line))]
    return rows, bad, {remark.kind for remark in table.remarks}


def write(path, rows, writer, delimiter, way):
    with path.open("w", encoding="utf-8", newline="") as file:
        if writer == "pandas":
            pd.DataFrame(rows, columns=NAMES).to_csv(file, index=False, sep=delimiter, **way)
        elif writer == "joined":
            file.write("".join(delimiter.join(row) + "\n" for row in [NAMES, *rows]))
        else:
            csv.writer(file, delimiter=delimiter, **way).writerows([NAMES, *rows])


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_written_comes_back_or_is_told(writer, tmp_path_factory):
    """All rows are read unchanged. If not, quotes are doubtful or lines unreadable, and all rows
    are read once their quote is chosen."""
    quote, cell, marks, ways = WRITERS[writer]

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        texts=st.lists(st.tuples(cell, cell), max_size=8),
        delimiter=st.sampled_from(marks),
        way=st.sampled_from(ways),
    )
    def comes_back(texts, delimiter, way):
        path, rows = tmp_path_factory.mktemp("written") / "a.csv", plain_rows(30)
        for n, pair in enumerate(texts):
            rows[(7 * n + 3) % 30][:2] = pair
        write(path, rows, writer, delimiter, way)
        found, bad, told = read_cells(path)
        if found != rows or bad:
            assert bad or "quotes" in told, found
            found, bad, _ = read_cells(path, quote=quote)
            assert (found, bad) == (rows, [])

    comes_back()
