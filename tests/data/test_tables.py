"""Files as people have them, good and bad: what is read, what is said, and that nothing hangs."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.config import RunConfig
from finetune.data import checks, csv_tables, splits, tables
from finetune.data.table_files import Row
from finetune.errors import DataError, FinetuneError
from finetune.uploads import Uploads
from tests.support import toys

HEAD = "sentence1,sentence2,label\n"
GOOD = HEAD + "".join(f"{one},{two},{label}\n" for one, two, label in toys.rows(40))


def table(**columns: object) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("pairs.csv", GOOD)
    return buffer.getvalue()


def lines(*records: object) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


ONES, TWOS, LABELS = map(list, zip(*toys.rows(40), strict=True))
COLUMNS = {"sentence1": ONES, "sentence2": TWOS, "label": LABELS}
RECORDS = [dict(zip(COLUMNS, row, strict=True)) for row in toys.rows(40)]


# Files that are refused: name, contents, message.
REFUSED: dict[str, tuple[str, bytes, str]] = {
    "empty": ("a.csv", b"", "is empty"),
    "blank": ("a.csv", b"\n \n\t\n", "is empty"),
    "zeros": ("a.csv", b"\0" * 200, "is empty"),
    "header only": ("a.csv", HEAD.encode(), "No row"),
    "one row": ("a.csv", (HEAD + "a cat,a dog,1\n").encode(), "one class"),
    "one class": ("a.csv", (HEAD + "a cat,a dog,1\nan owl,a fox,1\n").encode(), "one class, '1'"),
    "no label": ("a.csv", b"sentence1,sentence2,note,more\na,b,c,d\n", "clearly the label"),
    "no sentences": ("a.csv", b"label,p,q,r\n1,b,c,d\n", "clearly the sentences"),
    "one column": ("a.csv", b"sentence1\na cat\na dog\n", "clearly the label"),
    "labels of NaN": ("a.csv", (HEAD + "a,b,NaN\nc,d,nan\n").encode(), "No row"),
    "scores": (
        "a.csv", (HEAD + "a b,c,0.5\nd,e,1.25\nf,g,2.75\n").encode(),
        "fractions.*scores, not classes",
    ),
    "a thousand classes": (
        "a.csv", (HEAD + "".join(f"a,b,class{n}\n" for n in range(1001))).encode(),
        "more than 1,000 different values",
    ),
    "a label that is the sentence": (
        "a.csv", (HEAD + "".join(f"{a},{b},{b}\n" for a, b, _ in toys.rows(40))).encode(),
        "label column 'label' has the text of 'sentence2' in every row",
    ),
    "a zip": ("a.csv", archive(), "is a zip archive or an Excel workbook"),
    "a PNG": ("a.csv", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is a PNG image"),
    "a PDF": ("a.csv", b"%PDF-1.7 whatever", "is a PDF"),
    "no text": ("a.csv", bytes(range(1, 30)) * 50, "is not text"),
    "half a gzip": ("a.csv.gz", gzip.compress(GOOD.encode())[:60], "cannot be read"),
    "a gzip bomb": ("a.csv.gz", gzip.compress(b"a" * (80 * 2**20)), "unpacks to more than"),
    "broken quotes": ("a.csv", (HEAD + 'a,"b,1\n' * 300).encode(), "No row"),
    "too many columns": ("a.csv", ",".join(map(str, range(10_001))).encode(), "10,001 columns"),
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
        "a.json", json.dumps({"train": RECORDS, "version": 1, "test": RECORDS}).encode(),
        r"a\.json has 2 lists of rows: 'train', 'test'",
    ),
    "JSON that breaks off": ("a.json", json.dumps(RECORDS).encode()[:-9], "is not JSON"),
    "no JSON lines": ("a.jsonl", b"hello\nworld\n", "no line that is a JSON object"),
}  # fmt: skip


@dataclass(frozen=True)
class Readable:
    """A file that is read, and what is found in it."""

    contents: str | bytes
    name: str = "a.csv"
    rows: int = 40
    unreadable: int = 0
    kinds: tuple[str, ...] = ()


READ = {
    "plain": Readable(GOOD),
    "semicolons": Readable(GOOD.replace(",", ";")),
    "tabs": Readable(GOOD.replace(",", "\t"), "a.tsv"),
    "tabs named csv": Readable(GOOD.replace(",", "\t")),
    "bars": Readable(GOOD.replace(",", "|"), "a.txt"),
    "CRLF": Readable(GOOD.replace("\n", "\r\n")),
    "old Mac lines": Readable(GOOD.replace("\n", "\r")),
    "Excel's line of a separator": Readable("sep=,\r\n" + GOOD),
    "another separator": Readable('"sep=;"\n' + GOOD.replace(",", ";")),
    "a separator nobody guesses": Readable("sep=^\n" + GOOD.replace(",", "^")),
    "BOM": Readable(b"\xef\xbb\xbf" + GOOD.encode()),
    "UTF-16": Readable(GOOD.encode("utf-16")),
    "UTF-16 without BOM": Readable(GOOD.encode("utf-16-le")),
    "UTF-32": Readable(GOOD.encode("utf-32")),
    "Latin-1": Readable(GOOD.replace("cat", "ch\u00e2t").encode("latin-1")),
    "NUL bytes": Readable(GOOD.replace("cat", "c\0at")),
    "gzip": Readable(gzip.compress(GOOD.encode()), "a.csv.gz"),
    "spaces around headers": Readable(GOOD.replace("sentence1,", " sentence1 , ")),
    "duplicate headers": Readable(
        GOOD.replace("label", "label,label").replace("1\n", "1,1\n").replace("0\n", "0,0\n")
    ),
    "no header": Readable(GOOD.removeprefix(HEAD)),
    "ragged": Readable(GOOD + "one\na,b,c,d,e\n", unreadable=2),
    "trailing commas": Readable(GOOD.replace("0\n", "0,,\n")),
    "unclosed quote": Readable(GOOD.replace(HEAD, HEAD + 'a,"never closed,1\n'), unreadable=1),
    "unclosed quote in TSV": Readable(
        GOOD.replace(HEAD, HEAD + 'a,"never closed,1\n').replace(",", "\t"), "a.tsv", 41
    ),
    "a quoted line break": Readable(GOOD + '"two\nlines",b,1\n', rows=41),
    "a huge field": Readable(GOOD + "x" * 5_000_000 + ",b,1\n", unreadable=1),
    "a thousand columns": Readable(
        "\n".join(
            line + "," + ",".join(f"c{n}" if not at else "0" for n in range(1000))
            for at, line in enumerate(GOOD.strip().split("\n"))
        )
    ),
    "empty cells": Readable(
        GOOD + ",b,1\na,,0\n , ,1\na,b,\n", rows=44, kinds=("empty", "unlabelled")
    ),
    "numbers, dates and nulls": Readable(
        GOOD + "12,2026-11-20,1\nnull,N/A,0\n", rows=42, kinds=("wordless", "placeholder")
    ),
    "emoji and right to left": Readable(
        GOOD + "\U0001f600 yes,\u05e9\u05dc\u05d5\u05dd,1\n", rows=41
    ),
    "zero width": Readable(GOOD + "a\u200bcat,a dog,1\n", rows=41, kinds=("invisible",)),
    "markup": Readable(GOOD + "<script>alert(1)</script>,<b>x</b>,1\n", rows=41, kinds=("markup",)),
    "a formula": Readable(GOOD + "=cmd|' /C calc'!A0,b,1\n", rows=41),
    "wrong encoding": Readable(GOOD + "caf\u00c3\u00a9,b,1\n", rows=41, kinds=("encoding",)),
    "control characters": Readable(GOOD + "a\x07b,c,1\n", rows=41, kinds=("control",)),
    "words for labels": Readable(
        GOOD.replace(",1\n", ",duplicate\n").replace(",0\n", ",not_duplicate\n")
    ),
    "JSON lines": Readable(lines(*RECORDS), "a.jsonl"),
    "JSON lines of mixed types": Readable(
        lines(*RECORDS, 7, ["x"], {"sentence1": {"a": 1}, "label": 1},
              {"sentence1": 5, "sentence2": None, "label": 1}) + b"{broken\n",
        "a.jsonl", 41, 4, ("empty",),
    ),
    "JSON lines that are nested deep": Readable(
        lines(*RECORDS) + b'{"sentence1": ' + b"[" * 101 + b"]" * 101 + b', "label": 1}\n',
        "a.jsonl", unreadable=1,
    ),
    "half a surrogate": Readable(
        lines(*RECORDS) + b'{"sentence1": "a \\ud800 b", "sentence2": "c", "label": 1}\n',
        "a.jsonl", 41,
    ),
    "JSON": Readable(json.dumps(RECORDS), "a.json"),
    "JSON with rows that are none": Readable(
        json.dumps([*RECORDS, 7, {"sentence1": ["a"], "label": 1}]), "a.json", unreadable=2
    ),
    "JSON within an object": Readable(
        json.dumps({"version": 2, "notes": ["x"], "data": RECORDS}), "a.json"
    ),
    "JSON of columns": Readable(json.dumps(COLUMNS), "a.json"),
    "JSON lines named JSON": Readable(lines(*RECORDS), "a.json"),
    "Parquet": Readable(table(**COLUMNS), "a.parquet"),
    "Parquet with a nested column": Readable(table(**COLUMNS, more=[[1]] * 40), "a.parquet"),
    "Parquet of booleans": Readable(
        table(question1=ONES, question2=TWOS, is_duplicate=list(map(bool, LABELS))), "a.parquet"
    ),
    "Parquet of floats": Readable(
        table(text_a=ONES, text_b=TWOS, label=[*map(float, LABELS[:-1]), math.nan]), "a.parquet",
        kinds=("unlabelled",),
    ),
}  # fmt: skip


def config(folder: Path, name: str, contents: bytes) -> RunConfig:
    path = folder / name
    path.write_bytes(contents)
    upload = Uploads(folder / "uploads").add({"train": path})
    return RunConfig(dataset=upload, checkpoint=str(folder / "none"))


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_trained_on_is_said(tmp_path: Path, kind: str) -> None:
    name, contents, message = REFUSED[kind]
    with pytest.raises(DataError, match=message) as caught:
        splits.load_pairs(config(tmp_path, name, contents), tmp_path)
    assert caught.value.remedy
    with contextlib.suppress(FinetuneError):
        assert checks.check_pairs(config(tmp_path, name, contents), tmp_path).blocked


@pytest.mark.parametrize("kind", READ)
def test_what_can_be_read_is_read(tmp_path: Path, kind: str) -> None:
    file = READ[kind]
    contents = file.contents.encode() if isinstance(file.contents, str) else file.contents
    chosen = config(tmp_path, file.name, contents)
    report = checks.check_pairs(chosen, tmp_path)
    assert report.blocked == []
    assert report.read == {"train": file.rows}
    findings = {finding.kind: finding for finding in report.findings}
    assert set(file.kinds) <= set(findings)
    assert ("unreadable" in findings) == bool(file.unreadable)
    if file.unreadable:
        assert findings["unreadable"].count == file.unreadable
        assert all(row.line > 0 and row.note for row in findings["unreadable"].examples)
    assert splits.load_pairs(chosen, tmp_path).fingerprint == report.fingerprint


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
