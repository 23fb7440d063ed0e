"""Files of all kinds, valid and invalid: each is read or refused, and none hangs."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import openpyxl  # type: ignore[import-untyped]
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.data import checks, csv_cells, quoting, splits, table_formats
from finetune.data.table import ReadOptions
from finetune.errors import DataError
from tests.support import toys
from tests.support.uploads import upload_file

HEAD = "sentence1,sentence2,label\n"
GOOD = HEAD + "".join(f"{first},{second},{label}\n" for first, second, label in toys.rows(40))


def table(**columns: object) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def workbook(ending: str = ".xlsx", above: int = 0, **sheets: dict[str, list[Any]]) -> bytes:
    """Make a workbook: an empty sheet, then the named ones, whose tables begin `above` rows
    lower."""
    buffer = io.BytesIO()
    engine: Any = "odf" if ending == ".ods" else "openpyxl"
    with pd.ExcelWriter(buffer, engine=engine) as writer:
        for name, columns in {"Cover": {}, **sheets}.items():
            frame = pd.DataFrame(columns)
            frame.to_excel(writer, sheet_name=name, index=False, startrow=above, startcol=1)
    return buffer.getvalue()


def far_cell() -> bytes:
    """Make a small workbook with a cell at the far corner of its sheet."""
    book = openpyxl.Workbook()
    book.active.append(["a", "b"])
    book.active["XFD1048576"] = "x"
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def open_document(manifest: str, **files: str) -> bytes:
    """Make an OpenDocument sheet of parts of its XML, without their namespaces."""
    buffer = io.BytesIO()
    urn = "urn:oasis:names:tc:opendocument:xmlns"
    spaces = " ".join(
        f'xmlns:{name}="{urn}:{name}:1.0"' for name in ("manifest", "office", "table", "text")
    )
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        whole = f"<manifest:manifest {spaces}>{manifest}</manifest:manifest>"
        packed.writestr("META-INF/manifest.xml", whole)
        for name, body in files.items():
            root = "office:document-content"
            packed.writestr(f"{name}.xml", f"<{root} {spaces}>{body}</{root}>")
    return buffer.getvalue()


def locked() -> bytes:
    """An OpenDocument file whose manifest says that it is encrypted."""
    return open_document("<manifest:file-entry><manifest:encryption-data/></manifest:file-entry>")


def repeated(rows: int = 1, cells: int = 1) -> bytes:
    """A sheet that stores a row, or a cell of each row, with the number of its repeats."""

    def row(texts: tuple[str, ...], repeats: int) -> str:
        columns = [f"<text:p>{text}</text:p></table:table-cell>" for text in texts]
        start = '<table:table-cell office:value-type="string"'
        last = f'{start} table:number-columns-repeated="{cells}">{columns.pop()}'
        body = "".join(f"{start}>{column}" for column in columns) + last
        return f'<table:table-row table:number-rows-repeated="{repeats}">{body}</table:table-row>'

    body = row(("sentence1", "label"), 1) + row(("the cat", "1"), rows)
    sheet = f'<table:table table:name="A">{body}</table:table>'
    spreadsheet = f"<office:spreadsheet>{sheet}</office:spreadsheet>"
    return open_document("", content=f"<office:body>{spreadsheet}</office:body>")


FIRST, SECOND, LABELS = map(list, zip(*toys.rows(40), strict=True))
COLUMNS = {"sentence1": FIRST, "sentence2": SECOND, "label": LABELS}
RECORDS = [dict(zip(COLUMNS, row, strict=True)) for row in toys.rows(40)]

# Files that are refused: name, contents, message.
REFUSED: dict[str, tuple[str, bytes, str]] = {
    "blank": ("a.csv", b"\n \n\t\n", "is empty"),
    "header only": ("a.csv", HEAD.encode(), "No row"),
    "one class": ("a.csv", (HEAD + "a cat,a dog,1\nan owl,a fox,1\n").encode(), "one class, '1'"),
    "no label": ("a.csv", b"sentence1,sentence2,note,more\na,b,c,d\n", "holds the answer"),
    "no sentences": ("a.csv", b"label,p,q,r\n1,b,c,d\n", "holds the first text"),
    "a thousand classes": (
        "a.csv", (HEAD + "".join(f"a,b,class{n}\n" for n in range(1001))).encode(),
        "more than 1,000 different values",
    ),
    "no workbook": ("a.csv", b"PK\x03\x04" + bytes(range(256)) * 2, "is no workbook"),
    "half a workbook": ("a.xlsx", workbook(Pairs=COLUMNS)[:-400], "is no workbook"),
    "a workbook of nothing": ("a.xlsx", workbook(), "no row of Cover has two cells"),
    "a locked workbook": ("a.ods", locked(), "protected by a password"),
    "a repeated row": ("a.ods", repeated(rows=1_048_575), "1,048,576 rows in a file of"),
    "a repeated cell": ("a.ods", repeated(cells=5000), "has 5,001 columns; at most 4,096"),
    "a wide table": ("a.csv", f"{'a,' * 5000}\n".encode() * 3, "5,001 columns; at most 4,096"),
    "a cell far away": ("a.xlsx", far_cell(), "could not be read with 1,024 MiB"),
    "an image": ("a.csv", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is not text"),
    "no text": ("a.csv", bytes(range(1, 30)) * 50, "is not text"),
    "half a gzip": ("a.csv.gz", gzip.compress(GOOD.encode())[:60], "cannot be read"),
    "a gzip bomb": ("a.csv.gz", gzip.compress(b"a" * (80 * 2**20)), "unpacks to more than"),
    "broken quotes": ("a.csv", (HEAD + 'a,"b"c,d,1\n' * 300).encode(), "No row"),
    "no Parquet": ("a.parquet", b"sentence1,sentence2,label\n", "cannot be read"),
    "half a Parquet": ("a.parquet", table(a=[1])[:-8], "cannot be read"),
    "nested Parquet": (
        "a.parquet", table(sentence1=[["a"], ["b"]], sentence2=["c", "d"], label=[0, 1]),
        "'sentence1' is nested",
    ),
    "JSON of a number": ("a.json", b"7", "has no line that is a JSON object"),
    "deep JSON": ("a.json", b"[" * 100_000, "is not JSON"),
    "JSON that breaks off": ("a.json", json.dumps(RECORDS).encode()[:-9], "is not JSON"),
    "no JSON lines": ("a.jsonl", b"hello\nworld\n", "no line that is a JSON object"),
}  # fmt: skip


class Readable(NamedTuple):
    """A readable file and its expected contents."""

    contents: str | bytes
    name: str = "a.csv"
    rows: int = 40
    unreadable: int = 0
    kinds: tuple[str, ...] = ()
    note: str = ""


JSON_LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
READ = {
    "semicolons": Readable(GOOD.replace(",", ";"), note="separated by ';'"),
    "BOM": Readable(b"\xef\xbb\xbf" + GOOD.encode()),
    "UTF-16": Readable(GOOD.encode("utf-16"), note="UTF-16"),
    "Latin-1": Readable(GOOD.replace("cat", "ch\u00e2t").encode("latin-1"), note="read as cp1252"),
    "UTF-8 with a broken byte": Readable(
        (GOOD + "\u00e9\u00e9,\u00e9,1\n").encode() + b"\xff,b,1\n", rows=42,
        note="1 broken places",
    ),
    "NUL bytes": Readable(GOOD.replace("cat", "c\0at")),
    "gzip": Readable(gzip.compress(GOOD.encode()), "a.csv.gz"),
    "spaces around headers": Readable(GOOD.replace("sentence1,", " sentence1 , ")),
    "duplicate headers": Readable(
        GOOD.replace("label", "label,label").replace("1\n", "1,1\n").replace("0\n", "0,0\n")
    ),
    "no header": Readable(GOOD.removeprefix(HEAD), note="looks like data"),
    "ragged": Readable(GOOD + "one\na,b,c,d,e\n", unreadable=2),
    "unclosed quote": Readable(
        GOOD.replace(HEAD, HEAD + 'a,"never closed,1\n'), rows=41, kinds=("quotes",)
    ),
    "unclosed quote that fits in no way": Readable(
        GOOD.replace(HEAD, HEAD + 'a,"never, closed,1\n'), unreadable=1
    ),
    "unclosed quote in TSV": Readable(
        GOOD.replace(HEAD, HEAD + 'a,"never closed,1\n').replace(",", "\t"), "a.tsv", 41
    ),
    "a huge field": Readable(GOOD + "x" * 5_000_000 + ",b,1\n", unreadable=1),
    "empty cells": Readable(
        GOOD + ",b,1\na,,0\n , ,1\na,b,\n", rows=44, kinds=("empty", "unlabelled")
    ),
    "JSON lines of mixed types": Readable(
        JSON_LINES + '7\n["x"]\n{"sentence1": {"a": 1}, "label": 1}\n{broken\n'
        '{"sentence1": 5, "sentence2": null, "label": 1}\n', "a.jsonl", 41, 4, ("empty",),
    ),
    "half a surrogate": Readable(
        JSON_LINES + '{"sentence1": "a \\ud800 b", "sentence2": "c", "label": 1}\n', "a.jsonl", 41
    ),
    "JSON with rows that are none": Readable(
        json.dumps([*RECORDS, 7, {"sentence1": ["a"], "label": 1}]), "a.json", unreadable=2
    ),
    "JSON lines named JSON": Readable(JSON_LINES, "a.json"),
    "a workbook": Readable(
        workbook(Pairs=COLUMNS, above=2), "a.xlsx", note="the sheets Cover, Pairs; 'Pairs' is read"
    ),
    "an OpenDocument sheet without a header": Readable(
        workbook(".ods", Pairs={f"{FIRST[0]} so to say": FIRST[1:], SECOND[0]: SECOND[1:],
                                LABELS[0]: LABELS[1:]}), "a.ods", note="looks like data",
    ),
    "Parquet with a nested column": Readable(table(**COLUMNS, more=[[1]] * 40), "a.parquet"),
    "Parquet of booleans, floats and nulls": Readable(
        table(text_a=[*FIRST[:-1], None], text_b=SECOND, label=[math.nan, *map(float, LABELS[1:])],
              more=[True] * 40),
        "a.parquet", kinds=("empty", "unlabelled"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_trained_on_is_said(tmp_path: Path, kind: str) -> None:
    name, contents, message = REFUSED[kind]
    with pytest.raises(DataError, match=message) as caught:
        splits.load_pairs(upload_file(tmp_path, name, contents), tmp_path)
    assert caught.value.remedy


def test_a_visitor_brings_no_more_by_packing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(GOOD.encode() + b"the cat,a cat,1\n" * 200_000))
    table_formats.open_table(path)
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_MAX_UPLOAD_MB", "1")
    with pytest.raises(DataError, match="unpacks to more than 2 MiB"):
        table_formats.open_table(path)


@pytest.mark.parametrize("kind", READ)
def test_what_can_be_read_is_read(tmp_path: Path, kind: str) -> None:
    file = READ[kind]
    config = upload_file(tmp_path, file.name, file.contents)
    report = checks.check_pairs(config, tmp_path)
    assert report.blocked == []
    assert report.read == {"train": file.rows}
    findings = {finding.kind: finding for finding in report.findings}
    assert file.note in " ".join([*report.notes, *(f.title for f in report.findings)])
    assert set(file.kinds) <= set(findings)
    assert ("unreadable" in findings) == bool(file.unreadable)
    if file.unreadable:
        assert findings["unreadable"].count == file.unreadable
        assert all(row.line > 0 and row.note for row in findings["unreadable"].examples)
    assert splits.load_pairs(config, tmp_path).fingerprint == report.fingerprint


def read(path: Path) -> tuple[list[tuple[int, list[Any]]], list[tuple[int, str]]]:
    bad: list[tuple[int, str]] = []
    rows = table_formats.open_table(path).rows(lambda line, reason: bad.append((line, reason)))
    return [(line, list(row.values())) for line, row in rows], bad


def test_lines_are_named_as_an_editor_counts_them(tmp_path: Path) -> None:
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


def test_a_sheet_is_chosen_and_its_rows_named_as_a_spreadsheet_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    other: dict[str, list[Any]] = {"first": ["=1", None], "second": [2.5, None], "y": [True, 0]}
    path.write_bytes(workbook(Pairs=COLUMNS, Other=other, above=1))
    table = table_formats.open_table(path, options=ReadOptions(sheet="Other"))
    assert (table.columns, table.row_count) == (["first", "second", "y"], 2)
    assert [(line, list(row.values())) for line, row in table.rows(lambda line, why: None)] == [
        (3, ["", 2.5, True]), (4, ["", "", 0]),
    ]  # fmt: skip
    with pytest.raises(DataError, match="no sheet 'None'; it has Cover, Pairs, Other"):
        table_formats.open_table(path, options=ReadOptions(sheet="None"))
    config = upload_file(tmp_path, "a.xlsx", path.read_bytes())
    report = checks.check_pairs(config.changed(sheet="Pairs"), tmp_path)
    assert (report.read, report.sheets) == ({"train": 40}, ["Cover", "Pairs", "Other"])


def test_a_quote_that_is_not_closed_costs_little(tmp_path: Path) -> None:
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
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, contents: bytes, ending: str
) -> None:
    path = tmp_path_factory.mktemp("any") / f"a{ending}"
    path.write_bytes(contents)
    try:
        opened = table_formats.open_table(path)
        for line, row in opened.rows(lambda line, reason: None, opened.columns[:2]):
            assert line > 0
            assert list(row) == opened.columns[:2]
    except DataError:
        return


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('\n\r",;\t'))


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=20))
def test_what_csv_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("back") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["first", "second"])
        writer.writerows(rows)
    good, bad = read(path)
    assert [tuple(cells) for _, cells in good] == [row for row in rows if any(row)]
    assert bad == []


def test_no_cell_of_a_sheet_is_a_formula() -> None:
    cells = ["=cmd|' /C calc'!A0", "@x", " -2 &amp;", "\t=1", "-1", "<b>+1</b>", 7]
    (row,) = csv.reader(csv_cells.to_csv([cells]).splitlines())
    assert row == [*(f"'{cell}" for cell in cells[:4]), "-1", "<b>+1</b>", "7"]


@pytest.mark.parametrize(
    ("encoding", "texts"),
    [
        ("cp1252", ["Die T\u00fcr f\u00e4llt zu", "L\u2019h\u00f4tel co\u00fbte 20 \u20ac"]),
        ("cp949", ["고양이가 자고 있다", "문이 열린다"]),
        ("gb18030", ["猫在院子里玩", "门今天不开"]),
        ("cp1251", ["Кошка спит", "Дверь открыта"]),
    ],
)  # fmt: skip
def test_a_file_that_is_not_utf_8_is_read_in_what_it_seems_to_be(
    tmp_path: Path, encoding: str, texts: list[str]
) -> None:
    lines = [f"spec {n},{texts[0]},{texts[n % 2]},{n % 2}" for n in range(40)]
    path = tmp_path / "pairs.csv"
    path.write_bytes("\n".join(["id,sentence1,sentence2,label", *lines]).encode(encoding))
    opened = table_formats.open_table(path, path.name)
    assert f"read as {encoding}" in opened.notes[0]
    rows = [record for _, record in opened.rows(lambda *_: None)]
    assert [list(row.values())[1:3] for row in rows[:2]] == [[texts[0]] * 2, texts]
