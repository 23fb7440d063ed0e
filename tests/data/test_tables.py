"""Files as people have them, good and bad: what is read, what is said, and that nothing hangs."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.config import RunConfig
from finetune.data import checks, csv_tables, splits, tables
from finetune.data.check_report import CheckReport
from finetune.data.table_files import Row
from finetune.data.uploads import Uploads
from finetune.errors import DataError, FinetuneError
from tests.support import toys

HEAD = "sentence1,sentence2,label\n"
GOOD = HEAD + "".join(f"{one},{two},{label}\n" for one, two, label in toys.rows(40))


def table(**columns: object) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def packed(text: str) -> bytes:
    return gzip.compress(text.encode())


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("pairs.csv", GOOD)
    return buffer.getvalue()


def lines(*records: object) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def records(count: int = 40) -> list[dict[str, object]]:
    return [{"sentence1": a, "sentence2": b, "label": c} for a, b, c in toys.rows(count)]


ONES = [a for a, _, _ in toys.rows(40)]
TWOS = [b for _, b, _ in toys.rows(40)]
LABELS = [c for _, _, c in toys.rows(40)]


# Files that are refused as a whole: name, contents, and what is said.
REFUSED: dict[str, tuple[str, bytes, str]] = {
    "empty": ("a.csv", b"", "is empty"),
    "blank": ("a.csv", b"\n \n\t\n", "is empty"),
    "zeros": ("a.csv", b"\0" * 200, "is empty"),
    "header only": ("a.csv", HEAD.encode(), "No row"),
    "one row": ("a.csv", (HEAD + "a cat,a dog,1\n").encode(), "one class"),
    "one class": ("a.csv", (HEAD + "a cat,a dog,1\nan owl,a fox,1\n").encode(), "one class, '1'"),
    "no label": ("a.csv", b"sentence1,sentence2,note,more\na,b,c,d\n", "clearly the label"),
    "no sentences": ("a.csv", b"label,p,q,r\n1,b,c,d\n", "clearly the sentences"),
    "one column": ("a.csv", b"sentence1\na cat\na dog\n", "clearly the sentences"),
    "labels of NaN": ("a.csv", (HEAD + "a,b,NaN\nc,d,nan\n").encode(), "No row"),
    "scores": (
        "a.csv",
        (HEAD + "a b,c,0.5\nd,e,1.25\nf,g,2.75\n").encode(),
        "fractions.*scores, not classes",
    ),
    "a thousand classes": (
        "a.csv",
        (HEAD + "".join(f"a,b,class{n}\n" for n in range(1001))).encode(),
        "more than 1,000 different values",
    ),
    "a zip": ("a.csv", archive(), "is a zip archive or an Excel workbook"),
    "a PNG": ("a.csv", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is a PNG image"),
    "a PDF": ("a.csv", b"%PDF-1.7 whatever", "is a PDF"),
    "no text": ("a.csv", bytes(range(1, 30)) * 50, "is not text"),
    "half a gzip": ("a.csv.gz", packed(GOOD)[:60], "cannot be read"),
    "a gzip bomb": ("a.csv.gz", gzip.compress(b"a" * (80 * 2**20)), "unpacks to more than"),
    "no Parquet": ("a.parquet", b"sentence1,sentence2,label\n", "is not a Parquet file"),
    "half a Parquet": ("a.parquet", table(a=[1])[:-8], "cannot be read"),
    "nested Parquet": (
        "a.parquet",
        table(sentence1=[["a"], ["b"]], sentence2=["c", "d"], label=[0, 1], more=[1, 2]),
        "'sentence1' is nested",
    ),
    "no JSON": ("a.json", b"[{", "is not JSON"),
    "JSON of a number": ("a.json", b"7", "has no list of objects"),
    "deep JSON": ("a.json", b"[" * 100_000, "is not JSON"),
    "several lists of rows": (
        "a.json", json.dumps({"train": records(), "version": 1, "test": records()}).encode(),
        r"a\.json has 2 lists of rows: 'train', 'test'",
    ),
    "JSON that breaks off": (
        "a.json", json.dumps(records(3000)).encode()[:-9], "is not JSON",
    ),
    "a label that is the sentence": (
        "a.csv", (HEAD + "".join(f"{a},{b},{b}\n" for a, b, _ in toys.rows(40))).encode(),
        "label column 'label' has the text of 'sentence2' in every row",
    ),
    "no JSON lines": ("a.jsonl", b"hello\nworld\n", "no line that is a JSON object"),
    "broken quotes": ("a.csv", (HEAD + 'a,"b,1\n' * 300).encode(), "No row"),
    "too many columns": ("a.csv", ",".join(map(str, range(10_001))).encode(), "10,001 columns"),
    "too many columns of Parquet": (
        "a.parquet", table(**{f"c{n}": [1] for n in range(10_001)}), "10,001 columns",
    ),
}  # fmt: skip

# Files that are read: name, contents, rows, rows that could not be read, kinds of findings.
READ: dict[str, tuple[str, bytes, int, int, set[str]]] = {
    "plain": ("a.csv", GOOD.encode(), 40, 0, set()),
    "semicolons": ("a.csv", GOOD.replace(",", ";").encode(), 40, 0, set()),
    "tabs": ("a.tsv", GOOD.replace(",", "\t").encode(), 40, 0, set()),
    "tabs named csv": ("a.csv", GOOD.replace(",", "\t").encode(), 40, 0, set()),
    "bars": ("a.txt", GOOD.replace(",", "|").encode(), 40, 0, set()),
    "CRLF": ("a.csv", GOOD.replace("\n", "\r\n").encode(), 40, 0, set()),
    "old Mac lines": ("a.csv", GOOD.replace("\n", "\r").encode(), 40, 0, set()),
    "Excel's line of a separator": ("a.csv", ("sep=,\r\n" + GOOD).encode(), 40, 0, set()),
    "another separator": ("a.csv", ('"sep=;"\n' + GOOD.replace(",", ";")).encode(), 40, 0, set()),
    "a separator nobody guesses": (
        "a.csv", ("sep=^\n" + GOOD.replace(",", "^")).encode(), 40, 0, set()
    ),
    "BOM": ("a.csv", b"\xef\xbb\xbf" + GOOD.encode(), 40, 0, set()),
    "UTF-16": ("a.csv", GOOD.encode("utf-16"), 40, 0, set()),
    "UTF-16 without BOM": ("a.csv", GOOD.encode("utf-16-le"), 40, 0, set()),
    "UTF-32": ("a.csv", GOOD.encode("utf-32"), 40, 0, set()),
    "Latin-1": ("a.csv", GOOD.replace("cat", "ch\u00e2t").encode("latin-1"), 40, 0, set()),
    "NUL bytes": ("a.csv", GOOD.replace("cat", "c\0at").encode(), 40, 0, set()),
    "gzip": ("a.csv.gz", packed(GOOD), 40, 0, set()),
    "spaces around headers": ("a.csv", GOOD.replace("sentence1,", " sentence1 , ").encode(), 40, 0,
                              set()),
    "duplicate headers": (
        "a.csv",
        GOOD.replace("label", "label,label").replace("1\n", "1,1\n").replace("0\n", "0,0\n")
        .encode(),
        40, 0, set(),
    ),
    "no header": ("a.csv", GOOD.removeprefix(HEAD).encode(), 40, 0, set()),
    "ragged": ("a.csv", (GOOD + "one\na,b,c,d,e\n").encode(), 40, 2, {"unreadable"}),
    "trailing commas": ("a.csv", GOOD.replace("0\n", "0,,\n").encode(), 40, 0, set()),
    "unclosed quote": (
        "a.csv", GOOD.replace(HEAD, HEAD + 'a,"never closed,1\n').encode(), 40, 1, {"unreadable"}
    ),
    "unclosed quote in TSV": (
        "a.tsv", GOOD.replace(HEAD, HEAD + 'a,"never closed,1\n').replace(",", "\t").encode(),
        41, 0, set(),
    ),
    "a quoted line break": ("a.csv", (GOOD + '"two\nlines",b,1\n').encode(), 41, 0, set()),
    "a huge field": ("a.csv", (GOOD + "x" * 5_000_000 + ",b,1\n").encode(), 40, 1, {"unreadable"}),
    "a thousand columns": (
        "a.csv",
        "\n".join(
            line + "," + ",".join(f"c{n}" if not at else "0" for n in range(1000))
            for at, line in enumerate(GOOD.strip().split("\n"))
        ).encode(),
        40, 0, set(),
    ),
    "empty cells": ("a.csv", (GOOD + ",b,1\na,,0\n , ,1\na,b,\n").encode(), 44, 0,
                    {"empty", "unlabelled"}),
    "numbers, dates and nulls": (
        "a.csv", (GOOD + "12,2026-11-20,1\nnull,N/A,0\n").encode(), 42, 0,
        {"wordless", "placeholder"},
    ),
    "emoji and right to left": (
        "a.csv", (GOOD + "\U0001f600 yes,\u05e9\u05dc\u05d5\u05dd,1\n").encode(), 41, 0, set()
    ),
    "zero width": ("a.csv", (GOOD + "a\u200bcat,a dog,1\n").encode(), 41, 0, {"invisible"}),
    "markup": ("a.csv", (GOOD + "<script>alert(1)</script>,<b>x</b>,1\n").encode(), 41, 0,
               {"markup"}),
    "a formula": ("a.csv", (GOOD + "=cmd|' /C calc'!A0,b,1\n").encode(), 41, 0, set()),
    "wrong encoding": ("a.csv", (GOOD + "caf\u00c3\u00a9,b,1\n").encode(), 41, 0, {"encoding"}),
    "control characters": ("a.csv", (GOOD + "a\x07b,c,1\n").encode(), 41, 0, {"control"}),
    "words for labels": (
        "a.csv", GOOD.replace(",1\n", ",duplicate\n").replace(",0\n", ",not_duplicate\n").encode(),
        40, 0, set(),
    ),
    "JSON lines": ("a.jsonl", lines(*records()), 40, 0, set()),
    "JSON lines of mixed types": (
        "a.jsonl", lines(*records(), 7, ["x"], {"sentence1": {"a": 1}, "label": 1},
                         {"sentence1": 5, "sentence2": None, "label": 1}) + b"{broken\n",
        41, 4, {"unreadable", "empty"},
    ),
    "JSON lines that are nested deep": (
        "a.jsonl",
        lines(*records()) + b'{"sentence1": ' + b"[" * 101 + b"]" * 101 + b', "label": 1}\n',
        40, 1, {"unreadable"},
    ),
    "JSON with rows that are none": (
        "a.json", json.dumps([*records(), 7, {"sentence1": ["a"], "label": 1}]).encode(),
        40, 2, {"unreadable"},
    ),
    "half a surrogate": (
        "a.jsonl",
        lines(*records()) + b'{"sentence1": "a \\ud800 b", "sentence2": "c", "label": 1}\n',
        41, 0, set(),
    ),
    "JSON": ("a.json", json.dumps(records()).encode(), 40, 0, set()),
    "JSON within an object": ("a.json", json.dumps({"data": records()}).encode(), 40, 0, set()),
    "JSON of columns": (
        "a.json", json.dumps({"sentence1": ONES, "sentence2": TWOS, "label": LABELS}).encode(),
        40, 0, set(),
    ),
    "JSON lines named JSON": ("a.json", lines(*records()), 40, 0, set()),
    "Parquet": ("a.parquet", table(sentence1=ONES, sentence2=TWOS, label=LABELS), 40, 0, set()),
    "Parquet with a nested column": (
        "a.parquet", table(sentence1=ONES, sentence2=TWOS, label=LABELS, more=[[1]] * 40),
        40, 0, set(),
    ),
    "Parquet of booleans": (
        "a.parquet", table(question1=ONES, question2=TWOS, is_duplicate=list(map(bool, LABELS))),
        40, 0, set(),
    ),
    "Parquet of floats": (
        "a.parquet", table(text_a=ONES, text_b=TWOS, label=[*map(float, LABELS[:-1]), math.nan]),
        40, 0, {"unlabelled"},
    ),
}  # fmt: skip


def config(folder: Path, name: str, contents: bytes, **values: object) -> RunConfig:
    path = folder / name
    path.write_bytes(contents)
    upload = Uploads(folder / "uploads").add({"train": path})
    return RunConfig(dataset=upload, checkpoint=str(folder / "none")).changed(**values)


def look(folder: Path, name: str, contents: bytes, **values: object) -> CheckReport:
    return checks.check_pairs(config(folder, name, contents, **values), folder)


def test_there_are_enough_bad_files() -> None:
    assert len(REFUSED) + len(READ) >= 60


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_trained_on_is_said(tmp_path: Path, kind: str) -> None:
    name, contents, said = REFUSED[kind]
    with pytest.raises(DataError, match=said) as caught:
        splits.load_pairs(config(tmp_path, name, contents), tmp_path)
    assert caught.value.remedy


@pytest.mark.parametrize("kind", REFUSED)
def test_an_examination_of_it_blocks_or_says_the_same(tmp_path: Path, kind: str) -> None:
    name, contents, _ = REFUSED[kind]
    try:
        report = look(tmp_path, name, contents)
    except FinetuneError:
        return
    assert report.blocked


@pytest.mark.parametrize("kind", READ)
def test_what_can_be_read_is_read(tmp_path: Path, kind: str) -> None:
    name, contents, rows, unreadable, kinds = READ[kind]
    report = look(tmp_path, name, contents)
    assert report.blocked == []
    assert report.read == {"train": rows}
    found = {one.kind: one for one in report.findings}
    assert kinds <= set(found)
    assert ("unreadable" in found) == bool(unreadable)
    if unreadable:
        assert found["unreadable"].count == unreadable
        assert all(row.line > 0 and row.note for row in found["unreadable"].examples)
    assert (
        splits.load_pairs(config(tmp_path, name, contents), tmp_path).fingerprint
        == report.fingerprint
    )


def read(path: Path, columns: list[str]) -> tuple[list[Row], list[tuple[int, str]]]:
    bad: list[tuple[int, str]] = []
    rows = list(tables.open_table(path).rows(columns, lambda line, why: bad.append((line, why))))
    return rows, bad


def test_lines_are_named_as_an_editor_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\n1,2\n"x\ny",3\nshort\n4,"open\n5,6\n')
    rows, bad = read(path, ["a", "b"])
    assert rows == [(2, ["1", "2"]), (3, ["x\ny", "3"]), (7, ["5", "6"])]
    assert [line for line, _ in bad] == [5, 6]
    assert "1 fields where the first line has 2" in bad[0][1]
    assert "quote" in bad[1][1]


def test_quotes_that_are_not_closed_do_not_read_a_file_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_tables, "MAX_REREAD", 2_000)
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + 'x,"open\n' + "1,2\n" * 300 + 'x,"open\n' + "1,2\n" * 300)
    with pytest.raises(DataError, match="too many quotes that are not closed, the last in line"):
        read(path, ["a", "b"])


def test_the_lines_after_a_separator_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sep=;\na;b\n1;2,5\n")
    assert read(path, ["a", "b"]) == ([(3, ["1", "2,5"])], [])


def test_the_same_contents_under_another_name_are_shown_under_that(tmp_path: Path) -> None:
    kept = Uploads(tmp_path / "uploads")
    paths = [tmp_path / name for name in ("first.csv", "second.csv", "third.tsv")]
    for path in paths:
        path.write_text(GOOD)
    named = [kept.add({"train": path}) for path in paths]
    assert [kept.file_names(name)["train"] for name in named] == [path.name for path in paths]
    assert kept.add({"train": paths[0]}) == named[0]


def test_a_file_whose_name_is_no_utf8_is_kept(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.csv"))
    path.write_text(GOOD)
    name = Uploads(tmp_path / "uploads").add({"train": path})
    report = checks.check_pairs(RunConfig(dataset=name, checkpoint="none"), tmp_path)
    assert (report.source, report.read) == ("caf?.csv", {"train": 40})
    assert [one.name for one in (tmp_path / "uploads").iterdir()] == [name.split("/")[1]]


def test_an_upload_that_breaks_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text(GOOD)

    def broken(*given: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(shutil, "copyfile", broken)
    with pytest.raises(KeyError):
        Uploads(tmp_path / "uploads").add({"train": tmp_path / "a.csv"})
    assert list((tmp_path / "uploads").iterdir()) == []


def test_quotes_escaped_by_a_backslash_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\n"he said \\"no\\", twice",1\n2,3\n')
    assert read(path, ["a", "b"]) == ([(2, ['he said "no", twice', "1"]), (3, ["2", "3"])], [])


def test_the_same_name_twice_is_numbered(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a, a ,,a\n1,2,3,4\n")
    found = tables.open_table(path)
    assert found.columns == ["a", "a (2)", "column 3", "a (3)"]
    assert any("two columns 'a'" in note for note in found.notes)


@pytest.mark.parametrize(
    ("make", "note"),
    [
        (lambda: "a,b\n\u00e9t\u00e9,1\n".encode("latin-1"), "Windows-1252"),
        (lambda: "a,b\nx,1\n".encode("utf-16"), "UTF-16"),
        (lambda: ("a,b\n" + "\u00e9," * 50 + "\n").encode() + b"\xff,1\n", "1 broken places"),
    ],
)
def test_how_it_was_read_is_noted(tmp_path: Path, make: Callable[[], bytes], note: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(make())
    assert any(note in text for text in tables.open_table(path).notes)


@settings(max_examples=150, deadline=None)
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
        found = tables.open_table(path)
        for line, cells in found.rows(found.columns[:2], lambda line, why: None):
            assert line > 0
            assert len(cells) == len(found.columns[:2])
    except DataError:
        return


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('\n\r",;\t'))


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=20))
def test_what_csv_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    import csv

    path = tmp_path_factory.mktemp("back") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["first", "second"])
        writer.writerows(rows)
    found, bad = read(path, ["first", "second"])
    assert [tuple(cells) for _, cells in found] == [row for row in rows if any(row)]
    assert bad == []
