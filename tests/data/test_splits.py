"""Splits of rows from any source: labels, omitted rows, and the validation cut."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel

from finetune import text_hashes
from finetune.config import NO_COLUMN, RunConfig
from finetune.data import checks, dataset_cache, sources, splits
from finetune.errors import DataError
from finetune.jobs import terminal
from finetune.runs import events
from finetune.tasks.classes import LabelEncoder
from finetune.tasks.single_label import SingleLabel
from finetune.uploads import Uploads
from tests.support.uploads import Row, pairs, some, texts, upload


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


def test_labels_are_kept_in_any_type_and_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Numbers(LabelEncoder):
        no_labels = np.zeros((0, 2), np.float32)

        def code(self, cell: Any) -> Any:
            return np.array([cell, 0.5], np.float32)

    monkeypatch.setattr(SingleLabel, "encoder", lambda self, *arguments: Numbers(*arguments))
    config = RunConfig(dataset=upload(tmp_path, "a,b,label", some(2500), some(3), ()))
    keys = dataset_cache.read_dataset(config, tmp_path).hashes("train")
    assert keys.label.dtype == np.float32
    np.testing.assert_array_equal(keys.label, [(n % 2, 0.5) for n in range(2500)])
    rows = keys[np.array([2499, 0])]
    assert rows.label.tolist() == [[1, 0.5], [0, 0.5]]
    assert rows.line.tolist() == [2501, 2]


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    rows = [(n % 2, f"x {n}", f"y {n}", f"z {n}") for n in range(20)]
    values: dict[str, Any] = {"sentence1_column": "r", "label_column": "w"}

    def train(sentence2_column: str) -> Any:
        values["sentence2_column"] = sentence2_column
        return pairs(tmp_path, "w,p,q,r", train=rows, **values).splits["train"]

    assert set(texts(train("p"))) < {(row[3], row[1]) for row in rows}
    assert train(NO_COLUMN).column_names == ["sentence1", "label"]
    for column, message in (("v", "train.* has no column 'v'; it has w, p, q, r"),
                            ("r", "chosen twice: r, r")):  # fmt: skip
        with pytest.raises(DataError, match=message):
            train(column)


def test_what_is_wrong_with_the_pairs_is_said_in_a_terminal(tmp_path: Path) -> None:
    rows = some(20)
    first, second, label = rows[0]
    loaded = pairs(
        tmp_path,
        train=rows,
        validation=[(second, f"{first}!".upper(), label), *some(24)[20:]],
    )
    event = events.Prepared(
        train_examples=20, validation_examples=5, steps_per_epoch=1, total_steps=1,
        labels=["0", "1"], parameters=1, precision="no", data=loaded.facts,
    )  # fmt: skip
    assert "warning: 1 training pairs stand in validation too" in terminal.describe_event(event)


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
