"""Rows for a person to look at: the first of a file, or chosen ones of a cached dataset."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from finetune.config import RunConfig
from finetune.data import check_report, dataset_cache
from finetune.data.check_report import FirstRows
from finetune.errors import DataError
from finetune.runs.store import RunStore
from tests.data.test_splits import upload


def first_rows(store: RunStore, path: Path, contents: bytes) -> FirstRows | None:
    path.write_bytes(contents)
    config = RunConfig(dataset=store.uploads.add({"train": path}))
    return check_report.read_first_rows(config, store.root)


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl", "a.json", "a.csv.gz"])
def test_the_first_rows_are_those_of_the_file(store: RunStore, tmp_path: Path, name: str) -> None:
    cells = [("one", "two", "1"), ("<b>", "", "0"), *((f"s{n}", "t", "1") for n in range(20))]
    delimiter = "\t" if "tsv" in name else ","
    text = "\n".join(delimiter.join(row) for row in [("p", "q", "r"), *cells])
    if "json" in name:
        records = [dict(zip("pqr", row, strict=True)) for row in cells]
        text = "\n".join(map(json.dumps, records)) if "jsonl" in name else json.dumps(records)
    contents = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    first = first_rows(store, tmp_path / name, contents)
    assert first is not None
    assert (first.source, first.columns, first.more) == (name, ["p", "q", "r"], 0)
    assert [row for _, row in first.rows] == [list(row) for row in cells[: check_report.FIRST_ROWS]]
    assert FirstRows(**json.loads(first.to_json())) == first


def test_a_wide_file_is_cut_and_what_cannot_be_read_has_no_rows(
    store: RunStore, tmp_path: Path
) -> None:
    text = f"{','.join(f'c{n}' for n in range(40))}\n{','.join(['x' * 1000] * 40)}\n"
    first = first_rows(store, tmp_path / "a.csv", text.encode())
    assert first is not None
    assert len(first.columns) + first.more == 40
    assert first.more > 0
    assert all(len(cell) <= check_report.CELL_CHARACTERS for _, row in first.rows for cell in row)
    assert first_rows(store, tmp_path / "a.parquet", b"nonsense") is None
    for dataset in ("glue/mrpc", "upload/" + "0" * 24):
        assert check_report.read_first_rows(RunConfig(dataset=dataset), store.root) is None


def test_rows_of_a_cached_dataset_are_chosen(tmp_path: Path) -> None:
    rows = [*((f"left {n}", f"right {n}", n % 2) for n in range(300)), ("<b>Ene</b>", "mene", 1)]
    config = RunConfig(dataset=upload(tmp_path, "sentence1,sentence2,label", rows, (), ()))
    folder = dataset_cache.read_dataset(config, tmp_path).folder

    def lines(query: str = "", seed: int | None = None) -> list[int]:
        return [row.line for row in dataset_cache.preview_rows(folder, "train", query, seed)]

    assert lines() == list(range(2, 12))
    assert len(lines(seed=1)) == 10
    assert lines(seed=1) != lines(seed=2)
    assert lines("<B>ENE") == lines("<B>ENE", 1) == [302]
    assert lines("nowhere") == []
    with pytest.raises(DataError, match="no split 'dev'"):
        dataset_cache.preview_rows(folder, "dev")
