"""Files are read as they are (headers, titles, encodings, JSON, sheets); doubts become questions.
Also the report of the command line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import openpyxl  # type: ignore[import-untyped]
import pandas as pd
import pytest

from finetune.cli.prepare import check
from finetune.config import RunConfig
from finetune.data import checks, encodings, splits, table_formats
from finetune.data.table import ReadOptions
from finetune.errors import ConfigError, DataError
from tests.support.csv_files import CASES, GLUE, NAMES, join, kinds, plain_rows, read, write
from tests.support.uploads import upload_file

HEAD = ",".join(NAMES) + "\n"


def text(rows: list[list[str]], delimiter: str = ",") -> str:
    return "".join(delimiter.join(row) + "\n" for row in rows)


def as_read(path: Path, contents: str | bytes, **options: str) -> tuple[Any, Any, Any]:
    path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    return read(path, **options)


MRPC = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]


def write_mrpc(path: Path, pairs: list[tuple[str, str, int]]) -> list[list[str]]:
    """Write a file as MRPC is distributed: five columns, a byte order mark, no quoting."""
    rows = [[str(label), str(n), str(n + 7), a, b] for n, (a, b, label) in enumerate(pairs, 1)]
    path.write_text(text([MRPC, *rows], "\t"), "utf-8-sig", newline="")
    return rows


def test_a_file_without_quoting_comes_out_whole(tmp_path: Path) -> None:
    texts = ['"I am late", she said.', 'He called it "a day', 'a day" he said', '"Stop."', "Fine"]
    pairs = [(texts[n % 5], texts[n * 3 % 5] + f" {n}", n % 2) for n in range(200)]
    path = tmp_path / "msr_paraphrase_train.txt"
    rows = write_mrpc(path, pairs)
    found, bad, table = read(path)
    assert (table.columns, found, bad) == (MRPC, rows, [])
    assert "quotes" in kinds(table)


@pytest.mark.skipif(not GLUE.is_dir(), reason="needs the pairs of GLUE beside the project")
def test_mrpc_as_it_is_distributed_comes_out_whole(tmp_path: Path) -> None:
    files = [path for path in GLUE.rglob("*.parquet") if "mrpc" in str(path).lower()]
    frames = [pd.read_parquet(path) for path in files if "test" not in path.name]
    if sum(map(len, frames)) != 4076:
        pytest.skip("the train and validation pairs of MRPC are not there")
    frame = pd.concat(frames)
    columns = (frame["sentence1"], frame["sentence2"], frame["label"])
    rows = write_mrpc(tmp_path / "train.txt", list(zip(*columns, strict=True)))
    found, bad, _ = read(tmp_path / "train.txt")
    assert bad == []
    assert found == rows


@pytest.mark.parametrize(
    ("case", "names", "count"),
    [
        ("02/train.csv", "id label tweet", 240),
        ("03/short.tsv", "", 240),
        ("04/ag.csv", "", 240),
        ("06/excel.csv", "sentence1 sentence2 label", 240),
        ("10/span.tsv", "sentence1 sentence2 label", 240),
        ("10/spancells.tsv", "sentence1 sentence2 label", 240),
        ("21/data.json", "sentence1 sentence2 label", 240),
        ("21/colsl.json", "sentence1 sentence2 label", 240),
        ("26/extra.tsv", "sentence1 sentence2 label", 240),
        ("28/cat.csv", "sentence1 sentence2 label", 240),
        ("36/title.csv", "sentence1 sentence2 label", 120),
    ],
)
@pytest.mark.skipif(not CASES.is_dir(), reason="needs the small inputs beside the project")
def test_the_small_inputs_are_read(case: str, names: str, count: int) -> None:
    found, bad, table = read(CASES / case)
    assert (len(found), bad) == (count, [])
    assert table.columns == (names.split() or [f"column {n}" for n in range(1, len(found[0]) + 1)])
    if case.startswith("10/"):
        lines = (CASES / case).read_text().splitlines()[1:]
        assert found == [line.split("\t") for line in lines]


@pytest.mark.skipif(not CASES.is_dir(), reason="needs the small inputs beside the project")
def test_true_line_breaks_stay_in_their_cells() -> None:
    found, bad, _ = read(CASES / "10" / "pandas.tsv")
    frame = pd.read_csv(CASES / "10" / "pandas.tsv", sep="\t", dtype=str)
    assert (found, bad) == (frame.to_numpy().tolist(), [])


def test_what_stands_above_the_header_is_skipped_and_told(tmp_path: Path) -> None:
    rows, path = plain_rows(), tmp_path / "a.csv"
    for above in ("Notes of spring\n", "Notes of spring,,\n,,\n", "# by hand, in May\n# x\n"):
        found, bad, table = as_read(path, above + HEAD + text(rows))
        assert (found, bad, table.columns) == (rows, [], NAMES)
        assert "above-header" in kinds(table)
    found, bad, table = as_read(path, "sep=|\r\n" + text([NAMES, *rows], "|"))
    assert (found, bad, table.columns) == (rows, [], NAMES)
    assert not table.remarks
    found, _, table = as_read(path, text([["#id", *NAMES]] + [["7", *row] for row in rows]))
    assert (len(found), table.columns[0]) == (60, "#id")


def test_a_header_again_is_no_row(tmp_path: Path) -> None:
    rows, title = plain_rows(), "Notes of spring,,\n"
    joined = title + HEAD + text(rows[:30]) + "\ufeff" + title + "\ufeff" + HEAD + text(rows[30:])
    found, bad, table = as_read(tmp_path / "a.csv", joined)
    assert (found, bad) == (rows, [])
    (remark,) = [remark for remark in table.remarks if remark.kind == "repeated-header"]
    assert remark.rows == {"": [33, 34]}
    config = upload_file(tmp_path, "b.csv", joined)
    report = checks.check_pairs(config, tmp_path)
    assert (report.labels, report.read) == (["0", "1"], {"train": 60})
    finding = next(f for f in report.findings if f.kind == "repeated-header")
    assert (finding.count, finding.rows) == (2, {"train": [33, 34]})


def test_a_first_line_that_is_a_row_is_kept(tmp_path: Path) -> None:
    rows = [["spam" if n % 3 else "ham", f"{a.split()[0]} {n}"] for n, (a, _, _) in
            enumerate(plain_rows())]  # fmt: skip
    path = tmp_path / "a.tsv"
    found, _, table = as_read(path, text(rows, "\t"))
    assert (found, table.columns) == (rows, ["column 1", "column 2"])
    (remark,) = table.remarks
    assert [(answer.field, answer.value) for answer in remark.remedies] == [("header", "yes")]
    found, _, table = read(path, header="yes")
    assert (found, table.columns) == (rows[1:], rows[0])
    found, _, table = as_read(path, text([["v1", "v2"], *rows], "\t"))
    assert (found, table.columns, table.remarks) == (rows, ["v1", "v2"], [])
    short = [["good soup", "bad soup"], ["nice cat", "a dog"]]
    found, _, table = as_read(path, text(short, "\t"))
    assert "header" in kinds(table)
    assert read(path, header="no")[0] == short


def test_cells_beyond_the_last_column_are_told(tmp_path: Path) -> None:
    rows = plain_rows()
    lines = [[*row, "", ""] if n % 3 else row for n, row in enumerate(rows)]
    found, bad, table = as_read(tmp_path / "a.csv", HEAD + text(lines))
    assert (found, bad, table.remarks) == (rows, [], [])
    lines = [[*row, "x"] if n == 4 else row for n, row in enumerate(rows)]
    found, bad, table = as_read(tmp_path / "a.csv", HEAD + text(lines))
    assert (found, bad, kinds(table)) == (rows, [], {"extra-cells"})
    broken = [["one", "two", "three", "1"] if n == 4 else row for n, row in enumerate(rows)]
    found, bad, _ = as_read(tmp_path / "a.csv", HEAD + text(broken))  # a comma within a text
    assert (len(found), bad) == (59, [6])


def test_what_is_named_is_obeyed(tmp_path: Path) -> None:
    rows, path = plain_rows(), tmp_path / "a.txt"
    write(path, rows, delimiter="^", quotechar="~", quoting=csv.QUOTE_ALL)
    assert read(path, delimiter="^", quote="~")[0] == rows
    join(path, rows, "\t")
    assert read(path, delimiter="\t")[0] == rows
    config = RunConfig(delimiter="\t", quote="none", encoding="euc_jp", header="no")
    assert ReadOptions.of(config) == ReadOptions("", "tab", "none", "euc_jp", "no")
    for problem in ({"delimiter": ";;"}, {"quote": "both"}):
        with pytest.raises(ConfigError, match="must be one character"):
            RunConfig(**problem)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no encoding 'klingon'"):
        read(path, encoding="klingon")


@pytest.mark.parametrize("orient", ["records", "split", "index", "columns", "values", "table"])
def test_pandas_json_comes_back(tmp_path: Path, orient: Any) -> None:
    rows, path = plain_rows(), tmp_path / "a.json"
    frame = pd.DataFrame(rows, columns=NAMES)
    frame.to_json(path, orient=orient)
    found, bad, table = read(path)
    assert (found, bad) == (rows, [])
    assert table.columns == (NAMES if orient != "values" else ["column 1", "column 2", "column 3"])


def test_other_json_comes_back(tmp_path: Path) -> None:
    rows, path = plain_rows(), tmp_path / "a.json"
    records = [dict(zip(NAMES, row, strict=True)) for row in rows]
    for value in (
        {"version": 1, "data": records},
        {"pairs": records, "author": "nobody"},
        {name: [record[name] for record in records] for name in NAMES},
        [NAMES, *rows],
    ):
        for indent in (None, 2):
            found, bad, table = as_read(path, json.dumps(value, indent=indent))
            assert (found, bad, table.columns) == (rows, [], NAMES)
    lines = "".join(json.dumps(value) + "\n" for value in [NAMES, *rows])
    assert as_read(tmp_path / "a.jsonl", lines)[0] == rows


JAPANESE = ["猫が庭で遊んでいる", "駅までの道を教えてください"]
POLISH = ["Kot śpi w ogródku", "Przesyłka przyszła dziś, więc dziękuję"]
TURKISH = ["Kedi bahçede uyuyor, kapı kapalı", "Kargo iki gün geç geldi, teşekkürler"]
FRENCH = ["Le chat dort près de la fenêtre", "Le colis est arrivé déjà à Noël"]


@pytest.mark.parametrize(
    ("encoding", "texts"),
    [
        ("euc_jp", JAPANESE), ("cp932", JAPANESE[:1] * 2), ("cp1250", POLISH),
        ("iso8859_2", POLISH), ("cp1254", TURKISH), ("mac_roman", FRENCH), ("cp1252", FRENCH),
        ("utf-16-le", FRENCH), ("utf-16", POLISH), ("utf-32", POLISH),
    ],
)  # fmt: skip
def test_an_encoding_is_found_or_asked(tmp_path: Path, encoding: str, texts: list[str]) -> None:
    rows = [[f"{texts[n % 2]} {n}", texts[0], str(n % 2)] for n in range(40)]
    contents = text([NAMES, *rows], "\t").encode(encoding)
    found, _, table = as_read(tmp_path / "a.tsv", contents)
    asked = [remark for remark in table.remarks if remark.kind == "encoding"]
    if asked:
        assert encoding in [answer.value for answer in asked[0].remedies]
    else:
        assert found == rows
        assert table.notes
    assert read(tmp_path / "a.tsv", encoding=encoding)[0] == rows


@pytest.mark.parametrize(
    "words",
    [
        "Rückgabe möglich zurückgeben",
        "über größer",
        "für",
        "über",
        "30°C über 5 €",
        "Grüße aus Köln",
    ],
)
def test_a_german_windows_file_is_read_whatever_its_few_umlauts(words: str) -> None:
    """In other encodings these letters are signs, or Chinese within a word."""
    assert encodings._guess((words + "\n").encode("cp1252")) == ("cp1252", ())


def test_a_doubtful_encoding_holds_training_back(tmp_path: Path) -> None:
    rows = [[f"az ajtó zárva és két ló áll ott {n}", f"egy nappal később {n}", str(n % 2)] for n in
            range(40)]  # fmt: skip
    contents = text([NAMES, *rows]).encode("cp1250")
    config = upload_file(tmp_path, "a.csv", contents)
    report = checks.check_pairs(config, tmp_path)
    (question,) = report.blocked
    assert question.kind == "encoding"
    choices = {str(remedy.value): remedy.text for remedy in question.remedies}
    assert {"cp1250", "cp1252"} <= set(choices)
    assert "ajtó" in choices["cp1250"]
    with pytest.raises(DataError, match=r"in doubt.*cp1250"):
        splits.load_pairs(config, tmp_path)
    chosen = config.changed(encoding="cp1250")
    assert checks.check_pairs(chosen, tmp_path).blocked == []
    pairs = splits.load_pairs(chosen, tmp_path)
    assert "read as cp1250" in pairs.facts["reading"][0]


def workbook(**sheets: list[list[Any]]) -> bytes:
    book, buffer = openpyxl.Workbook(), io.BytesIO()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(buffer)
    return buffer.getvalue()


def test_the_sheet_with_the_pairs_is_read(tmp_path: Path) -> None:
    rows = plain_rows()
    note = [["Read me first"], ["Author", "somebody"], ["Date", "today"]]
    table = [["Notes of spring"], [], NAMES, *rows[:30], NAMES, *rows[30:]]
    path = tmp_path / "a.xlsx"
    path.write_bytes(workbook(Note=note, Pairs=table, More=[NAMES, *rows[:35]]))
    found, bad, opened = read(path)
    assert (found, bad, opened.columns) == (rows, [], NAMES)
    assert "'Pairs' is read" in opened.notes[0]
    assert {"repeated-header", "sheet"} <= kinds(opened)
    config = upload_file(tmp_path, "a.xlsx", path.read_bytes()).changed(sheet="Note")
    blocked = checks.check_pairs(config, tmp_path).blocked[0]
    assert "Read 'Pairs' (61 rows)" in [remedy.text for remedy in blocked.remedies]


def test_check_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text(HEAD + text(plain_rows()) + "broken\n" + HEAD)
    options = ["--runs", str(tmp_path), "--train_file", str(path), "--checkpoint", "none",
               "--sentence1_column", "first", "--sentence2_column", "second"]  # fmt: skip
    status = check(["--json", *options])
    report = json.loads(capsys.readouterr().out)
    assert status == 0
    assert report["columns"] == {"sentence1": "first", "sentence2": "second", "label": "label"}
    assert sum(split["rows"] for split in report["splits"].values()) == 60
    assert set(report["splits"]["train"]["classes"]) == {"0", "1"}
    assert [(row["split"], row["line"]) for row in report["unreadable"]] == [("train", 62)]
    findings = {finding["kind"]: finding for finding in report["findings"]}
    assert findings["repeated-header"]["lines"] == {"train": [63]}
    assert findings["unreadable"]["rows"] == 1
    assert report["blocks"] == []
    check(options)
    lines = capsys.readouterr().out.splitlines()
    assert "  first text 'first', second text 'second', answer 'label'" in lines
    path.write_text(HEAD + "a cat,a dog,1\n")
    assert check(["--json", *options]) == 1
    assert json.loads(capsys.readouterr().out)["blocks"]


def test_texts_are_no_classes(tmp_path: Path) -> None:
    lines = [[label, f"{first} {n}"] for n, (first, _, label) in enumerate(plain_rows())]
    config = upload_file(tmp_path, "a.csv", text([["kind", "text"], *lines]))
    config = config.changed(sentence1_column="kind", label_column="text")
    with pytest.raises(DataError, match="'text' has 59 different values in 59 training rows"):
        splits.load_pairs(config, tmp_path)


def test_tables_are_called_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "stored.csv"
    path.write_text("")
    with pytest.raises(DataError, match=r"mine\.csv is empty"):
        table_formats.open_table(path, "mine.csv")
