from __future__ import annotations

import csv
from pathlib import Path

import pytest
from datasets import ClassLabel

from finetune import data
from finetune.errors import DataError
from tests import toys


def test_the_bundled_pairs_have_one_shape() -> None:
    pairs = data.load("bundled")
    assert set(pairs.splits) == {"train", "validation", "test"}
    for split in pairs.splits.values():
        assert split.column_names == list(data.COLUMNS)
        assert isinstance(split.features["label"], ClassLabel)
    assert pairs.labels == ["not_equivalent", "equivalent"]


def test_an_unknown_dataset_is_named_with_those_offered() -> None:
    with pytest.raises(DataError, match=r"'nonsense'.*bundled"):
        data.load("nonsense")


def test_the_fingerprint_changes_with_any_row(tmp_path: Path) -> None:
    same = [data.fingerprint(data.load_bundled(toys.write_pairs(tmp_path))) for _ in range(2)]
    assert same[0] == same[1]
    rows = list(csv.reader((tmp_path / "test.csv").open(newline="")))
    rows[-1][2] = str(1 - int(rows[-1][2]))
    with (tmp_path / "test.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert data.fingerprint(data.load_bundled(tmp_path)) != same[0]


@pytest.mark.parametrize(
    "text", ["", "sentence1,sentence2\na,b\n", "sentence1,sentence2,label\na,b,7\n",
             "sentence1,sentence2,label\na,b,x\n"]
)  # fmt: skip
def test_a_damaged_file_is_said(tmp_path: Path, text: str) -> None:
    toys.write_pairs(tmp_path)
    (tmp_path / "train.csv").write_text(text)
    if text:
        with pytest.raises(DataError, match=r"train\.csv"):
            data.load_bundled(tmp_path)
    else:
        assert len(data.load_bundled(tmp_path)["train"]) == 0
