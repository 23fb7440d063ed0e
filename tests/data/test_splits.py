"""Splits of rows from any source: labels, omitted rows, and the validation cut."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel

from finetune import text_hashes
from finetune.config import RunConfig
from finetune.data import checks, sources, splits
from finetune.errors import DataError
from finetune.uploads import Uploads
from tests.support.uploads import Row, pairs, some, texts


def test_the_bundled_pairs_have_one_shape_and_come_from_the_cache_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = splits.load_pairs(RunConfig(), tmp_path)
    assert set(bundled.splits) == {"train", "validation", "test"}
    for split in bundled.splits.values():
        assert split.column_names == ["sentence1", "sentence2", "label"]
        assert isinstance(split.features["label"], ClassLabel)
    assert (
        [*bundled.target.names] == sources.LABELS == bundled.splits["train"].features["label"].names
    )
    assert bundled.counts["train"] == np.bincount(bundled.splits["train"]["label"][:]).tolist()
    assert bundled.facts["left_out"] == {"train": {}, "validation": {}, "test": {}}
    with monkeypatch.context() as patch:
        patch.setattr(sources, "open_source", None)
        assert splits.load_pairs(RunConfig(), tmp_path).fingerprint == bundled.fingerprint


def test_the_fingerprint_is_of_the_rows(tmp_path: Path) -> None:
    *rows, row = some(30)

    def fingerprint(last: Row, **values: Any) -> str:
        return pairs(tmp_path, train=[*rows, last], validation=some(4), **values).fingerprint

    first = fingerprint(row)
    assert fingerprint(row) == first
    others = [
        fingerprint(("left 29", "right 29.", 1)), fingerprint(("left 29", "right 29", 0)),
        fingerprint(row, max_train_samples=29), fingerprint(row, positive_label="0"),
    ]  # fmt: skip
    assert len({first, *others}) == 5


def test_what_is_incomplete_doubled_or_leaked_is_left_out(tmp_path: Path) -> None:
    rows = [*some(20), ("LEFT 3 ", "right 3.", 1), ("right 4", "left 4", 0)]
    held = [("left 1", "right 1", 1), ("Left 2!", "right  2", 0), ("right 3", "left 3", 1)]
    incomplete = [("", "b", 1), ("a", " ", 0), ("a", "b", "")]

    def left_out(**values: Any) -> tuple[list[tuple[str, str]], dict[str, int]]:
        loaded = pairs(tmp_path, **values)
        assert "test" not in loaded.splits  # one without labels is none
        return texts(loaded.splits["train"]), loaded.facts["left_out"]["train"]

    files = {"train": [*rows, *incomplete], "validation": held, "test": incomplete[2:]}
    missing = {"a sentence is missing": 2, "the label is missing": 1}
    every = [row[:2] for row in rows]
    assert left_out(**files) == (every, missing)
    # Of swapped pairs only leakage is counted.
    once = [*every[:20], every[21]]
    assert left_out(**files, drop_duplicates=True) == (once, missing | {"duplicates": 1})
    apart = [pair for n, pair in enumerate(every) if n not in {1, 2, 3, 20}]
    assert left_out(**files, drop_leaked=True) == (apart, missing | {"leaked": 4})


def test_the_maximum_draws_at_random_and_the_same_each_time(tmp_path: Path) -> None:
    def drawn(seed: int) -> list[tuple[str, str]]:
        values: dict[str, Any] = {"max_train_samples": 30, "max_eval_samples": 5, "data_seed": seed}
        loaded = pairs(tmp_path, train=some(200), validation=some(50), **values)
        assert len(loaded.splits["validation"]) == 5
        return texts(loaded.splits["train"])

    assert len(drawn(1)) == 30
    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1) != [row[:2] for row in some(30)]


def test_a_file_whose_label_column_has_another_name_is_not_ignored(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "uploads")
    for name, head in (("train", "label"), ("other", "gold")):
        with (tmp_path / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["sentence1", "sentence2", head], *some(40)])
    train, other = tmp_path / "train.csv", tmp_path / "other.csv"
    config = RunConfig(dataset=uploads.add({"train": train, "validation": other}))
    with pytest.raises(DataError, match=r"other.csv has no column 'label'; it has .*gold"):
        splits.load_pairs(config, tmp_path)
    config = RunConfig(dataset=uploads.add({"train": train, "test": other}))
    assert "test" not in splits.load_pairs(config, tmp_path).splits
    report = checks.check_pairs(config, tmp_path)
    unlabelled = next(finding for finding in report.findings if finding.kind == "unlabelled")
    assert (unlabelled.count, unlabelled.examples[0].split) == (40, "test")


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("The Cat.", "the  cat", True),
        ("caf\u00e9", "cafe\u0301", True),
        ("a\u200bcat", "acat", True),
        ("\u201cYes\u201d", "yes", True),
        ("1.5 metres", "15 metres", False),
        ("C# is good", "C++ is good", False),
        ("not it", "it", False),
    ],
)
def test_what_counts_as_the_same_sentence(first: str, second: str, equal: bool) -> None:
    assert (text_hashes.normalize(first) == text_hashes.normalize(second)) == equal
