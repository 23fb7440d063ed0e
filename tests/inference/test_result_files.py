"""The result of a predicted file has all its rows and columns, in any format."""

from __future__ import annotations

import csv
import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import openpyxl  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finetune.config import RunConfig
from finetune.inference import files
from finetune.inference.file_request import PredictionRequest
from finetune.runs import pair_index
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support import toys
from tests.support.judging import PAIRS, SIDES

ADDED = ["prediction", "probability_not_equivalent", "probability_equivalent", "error"]


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    run = store.create(RunConfig(max_length=32))
    toys.copy_model(toy_checkpoint, run.best)
    return run


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows in the format of the ending; None is an empty cell."""
    names = [*rows[0]]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for line in (names, *([row.get(name) for name in names] for row in rows)):
            book.active.append(line)
        book.save(path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            writer = csv.DictWriter(file, names, delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    if path.suffix == ".json":
        return list(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def predict_to(run: Run, path: Path, out: Path, **columns: str) -> dict[str, Any]:
    first, second = (columns.get(name, name) for name in SIDES)
    request = PredictionRequest(run.id, path.name, first, second)
    report, complete = files.predict_file(run, request, path, out)
    assert complete
    return report


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "\n,,\nid,sentence1,sentence2\n,,\n1,cat,dog\n\n  \n,,\n2,owl,bee\n,,\n\n"),
        ("a.tsv", "id\tsentence1\tsentence2\n\t\t\n1\tcat\tdog\n\n\t\t\n2\towl\tbee\n\t\t\n"),
        ("one.csv", 'sentence1\n""\ncat\n\n""\nowl\n""\n'),
        ("a.xlsx", ""),
    ],
)
def test_rows_of_empty_cells_come_back_and_blank_lines_do_not(
    run: Run, tmp_path: Path, name: str, text: str
) -> None:
    """pandas reads such a file in the same way."""
    path = tmp_path / name
    if text:
        path.write_text(text)
    else:
        empty = dict.fromkeys(("id", *SIDES))
        known = [dict(zip(empty, cells, strict=True)) for cells in (("1", "cat", "dog"), "2ab")]
        write(path, [empty, known[0], empty, known[1], empty, {**empty, "id": "3"}])
    report = predict_to(run, path, tmp_path / "out.jsonl", **(
        {"sentence2": ""} if name == "one.csv" else {}
    ))  # fmt: skip
    rows = read(tmp_path / "out.jsonl")
    answered = [bool(row["prediction"]) for row in rows]
    assert answered == [False, True, False, True, False] + [False] * (not text)
    assert {row["error"] for row in rows if not row["prediction"]} == {"sentence1 is empty"}
    assert (report["rows"], report["errors"]) == (len(rows), len(rows) - 2)


@pytest.mark.parametrize("target", ["csv", "tsv", "jsonl", "json", "parquet"])
@pytest.mark.parametrize("source", ["csv", "tsv", "jsonl", "parquet", "xlsx"])
def test_any_file_becomes_any_format(run: Run, tmp_path: Path, source: str, target: str) -> None:
    text = 'tab\t, comma, "quote"\nand a line'
    rows = [
        {"id": number, "share": 0.5 + number, **dict(zip(SIDES, pair, strict=False)), "note": text}
        for number, pair in enumerate(PAIRS)
    ]
    path, out = write(tmp_path / f"in.{source}", rows), tmp_path / f"out.{target}"
    predict_to(run, path, out)
    result = read(out)
    assert [list(row) for row in result] == [[*rows[0], *ADDED]] * 3
    is_text = source in ("csv", "tsv") or target in ("csv", "tsv")
    for row, before in zip(result, rows, strict=True):
        assert {name: row[name] for name in before} == {
            name: str(cell) if is_text else cell for name, cell in before.items()
        }
        assert row["prediction"] in ("equivalent", "not_equivalent")
        assert sum(float(row[name]) for name in ADDED[1:3]) == pytest.approx(1)


def test_cells_that_a_format_has_no_type_for_become_text(run: Run, tmp_path: Path) -> None:
    odd = {"day": date(2024, 2, 29), "raw": b"ab", "share": math.nan, "yes": True, "none": None}
    rows = [{"sentence1": "=cat", "sentence2": "\u732b", **odd}]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{**rows[0], "parts": [1, 2]}]), path)
    for name in ("out.json", "out.csv"):
        assert predict_to(run, path, tmp_path / name)["left_out"] == ["parts"]
    (json_row,), (csv_row,) = read(tmp_path / "out.json"), read(tmp_path / "out.csv")
    texts = {"day": "2024-02-29", "raw": "ab"}
    assert json_row.items() >= ({**rows[0], **texts, "share": None}).items()
    texts |= {"share": "nan", "yes": "true", "none": ""}
    assert csv_row.items() >= ({**rows[0], **texts}).items()
    # And types that are known only once all rows are read.
    mixed: list[dict[str, Any]] = [
        {
            **dict(zip(SIDES, "ab", strict=True)),
            "n": 1,
            "big": 2**70,
            "list": [1],
            "lone": "\ud800",
        },
        {**dict(zip(SIDES, "cd", strict=True)), "n": 1.5, "flag": False, "lone": None},
    ]
    predict_to(run, write(tmp_path / "a.jsonl", mixed), tmp_path / "out.parquet")
    result = pq.read_table(tmp_path / "out.parquet")
    assert result.select(["n", "big", "list", "lone", "flag"]).to_pydict() == {
        "n": [1.0, 1.5], "big": [str(2**70), None], "list": ["[1]", None], "lone": ["?", None],
        "flag": [None, False],
    }  # fmt: skip
    predict_to(run, tmp_path / "a.jsonl", tmp_path / "out.csv")
    assert [row["list"] for row in read(tmp_path / "out.csv")] == ["[1]", ""]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "xlsx"])
@pytest.mark.parametrize("own", ["prediction", "Error", "PROBABILITY_EQUIVALENT", "trained_on"])
def test_a_column_of_the_files_own_is_kept(run: Run, tmp_path: Path, ending: str, own: str) -> None:
    """Even if it is the sentence column; all added columns then have other names."""
    hashes = pair_index.pair_hashes([PAIRS[0][0]], [PAIRS[0][1]])
    pair_index.write_pair_index(run, {"train": hashes, "validation": hashes[:0]})
    rows = [{own: first, "reference": second} for first, second, _ in PAIRS]
    path = write(tmp_path / f"in.{ending}", [*rows, {own: None, "reference": "a"}])
    out = tmp_path / ("out.csv" if ending == "xlsx" else f"out.{ending}")
    report = predict_to(run, path, out, sentence1=own, sentence2="reference")
    result = read(out)
    names = [f"{name}_2" for name in (*ADDED[:3], "trained_on", "error")]
    assert report["columns"] == names
    assert [list(row) for row in result] == [[own, "reference", *names]] * 4
    assert [{own: row[own], "reference": row["reference"]} for row in result[:3]] == rows
    assert all(row["prediction_2"] for row in result[:3])
    assert [str(row["trained_on_2"]).lower() for row in result[:3]] == ["true", "false", "false"]
    assert result[3]["error_2"] == f"{own} is empty"


def test_a_key_that_comes_late_in_a_file_is_kept_too(run: Run, tmp_path: Path) -> None:
    """Only the first thousand rows of JSON determine its columns."""
    rows: list[dict[str, Any]] = [{"sentence1": "cat", "sentence2": "dog"}] * 1100
    path = write(tmp_path / "in.jsonl", [*rows, {**rows[0], "prediction": "mine"}])
    for name in ("out.jsonl", "out.csv"):
        predict_to(run, path, tmp_path / name)
        last = read(tmp_path / name)[-1]
        assert last["prediction"] == "mine"
        assert last["prediction_2"] in ("equivalent", "not_equivalent")


def test_no_rows_are_a_list_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("sentence1,sentence2\n")
    predict_to(run, tmp_path / "in.csv", tmp_path / "out.json")
    assert read(tmp_path / "out.json") == []
