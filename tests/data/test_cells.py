"""What a cell of a label column says, in the notations of tools, programs and people: `cells.json`
is a table of cells and of what a check reports. Another file with the same cells is read alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finetune.config import RunConfig
from finetune.data import check_report, checks, splits
from finetune.inference import files
from finetune.inference.file_request import PredictionRequest
from finetune.tasks.base import MULTI_LABEL, SINGLE_LABEL
from tests.support import toys
from tests.support.uploads import upload_file

ROWS = 48


class Case(NamedTuple):
    """The cells of label columns, which are repeated, and what is read of them."""

    cells: Sequence[Any]  # lists for several columns
    labels: Mapping[str, int] = {}  # label or class -> rows
    ending: str = "csv"
    columns: str = "label"  # their names, with blanks between them
    values: Mapping[str, str] = {}  # of the configuration
    task: str = MULTI_LABEL
    scores: tuple[float, ...] = ()  # the different ones
    asked: Sequence[Mapping[str, str]] = ()  # the choices of a question that blocks
    kinds: str = ""  # of findings, among others
    rows: int = ROWS  # that are trained on or validated with
    alone: bool = False  # the labels that are changed are not known in another file


CASES = {
    name: Case(**case)
    for name, case in json.loads(Path(__file__).with_name("cells.json").read_text("utf-8")).items()
}


def write_labelled(
    path: Path, columns: Sequence[str], cells: Sequence[Sequence[Any]], count: int = 48
) -> None:
    """Write texts beside the cells of these columns, which are repeated, by the path's ending."""
    texts = [f"{first} {n} and {second}" for n, (first, second, _) in enumerate(toys.rows(count))]
    rows = [[text, *own] for text, own in zip(texts, islice(cycle(cells), count), strict=True)]
    names = ["text", *columns]
    records = [dict(zip(names, row, strict=True)) for row in rows]
    frame = pd.DataFrame(rows, columns=names, dtype=object)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".xlsx":
        frame.to_excel(path, index=False)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")


def check(folder: Path, case: Case) -> tuple[Path, RunConfig, check_report.CheckReport]:
    several = " " in case.columns
    path = folder / f"a.{case.ending}"
    cells = case.cells if several else [[cell] for cell in case.cells]
    write_labelled(path, case.columns.split(), cells, ROWS)
    config = upload_file(folder, path.name, path.read_bytes()).changed(**case.values)
    return path, config, checks.check_pairs(config, folder)


@pytest.mark.parametrize("name", CASES)
def test_a_cell_says_what_its_writer_meant(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path, config, report = check(tmp_path, case)
    found = check_report.summarise(report)
    findings = {finding["kind"]: finding for finding in found["findings"]}
    assert set(case.kinds.split()) <= set(findings)
    if case.asked:
        choices = next(one for one in found["findings"] if one["severity"] == "blocks")["choices"]
        assert [{one["field"]: one["value"]} for one in choices] == [*case.asked]
        return
    assert found["blocks"] == []
    assert report.task == case.task
    assert sum(split["rows"] for split in found["splits"].values()) == case.rows
    counts = [split["classes"] for split in found["splits"].values()]
    labels = {label: sum(count[label] for count in counts) for label in counts[0]}
    assert labels == dict(case.labels)
    if case.task == SINGLE_LABEL:
        assert [*labels] == [*case.labels]  # the order of the classes
    if case.alone:
        return
    # The same cells in a file to predict
    target = splits.load_pairs(config, tmp_path).target
    asked = PredictionRequest("", path.name, "text", label=report.columns["label"])
    read = files.read_labelled(path, asked, target)
    if case.scores:
        assert np.unique(read.truth) == pytest.approx(np.array(case.scores))
    elif case.task == SINGLE_LABEL:
        assert np.bincount(read.truth).tolist() == [*labels.values()]
    else:
        assert read.truth.sum(axis=0).tolist() == [*labels.values()]
    assert len(read.truth) == case.rows
