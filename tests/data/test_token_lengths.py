"""Lengths from a sample, against those of the checkpoint's own tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.data import catalog, dataset_cache, token_lengths
from finetune.data.check_report import TokenLengths
from tests.data.test_splits import upload

BUNDLED = RunConfig().checkpoint


def spread(found: TokenLengths) -> tuple[list[tuple[int, int, int]], int, int]:
    return found.bins, found.rows, found.longest


def test_they_are_those_of_the_checkpoints_own_tokenizer(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = token_lengths.tokenizer_file(BUNDLED)
    assert tokenizer is not None
    read = dataset_cache.read_dataset(RunConfig(), tmp_path)
    own = AutoTokenizer.from_pretrained(str(tokenizer.parent))
    rows = read.split("train")
    whole = own(list(rows["sentence1"]), list(rows["sentence2"]), truncation=False)["input_ids"]
    counted = np.array([len(one) for one in whole])
    found = token_lengths.measure_lengths(read.folder / "train.arrow", tokenizer)
    assert spread(found) == (token_lengths.length_histogram(counted), 1746, int(counted.max()))
    assert spread(
        token_lengths.measure_lengths(catalog.BUNDLED_PAIRS / "train.csv", tokenizer)
    ) == spread(found)


def test_a_part_of_many_rows_is_measured_and_its_shape_is_theirs(
    tmp_path: Path, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short rows stand first, long ones last: a sample of the first would see no long one."""
    rows = [("the", "a", 1)] * 3000 + [("the " * 9, "a", 0)] * 3000
    name = upload(tmp_path, "sentence1,sentence2,label", rows, rows[:9], ())
    tokenizer = token_lengths.tokenizer_file(str(toy_checkpoint))
    assert tokenizer is not None
    path = dataset_cache.read_dataset(RunConfig(dataset=name), tmp_path).folder / "train.arrow"
    assert token_lengths.cached_lengths(path, tokenizer) is None
    found = token_lengths.measure_lengths(path, tokenizer)
    assert token_lengths.cached_lengths(path, tokenizer) is found
    assert (found.rows, found.of, found.longest) == (token_lengths.ESTIMATED_ROWS, 6000, 13)
    longer = sum(count for low, _, count in found.bins if low >= 10) / found.rows
    assert longer == pytest.approx(0.5, abs=0.05)
    monkeypatch.setattr(token_lengths, "CHARACTERS", 2000)
    token_lengths._estimates.clear()
    bounded = token_lengths.measure_lengths(path, tokenizer)
    assert 50 < bounded.rows < 500
    longer = sum(count for low, _, count in bounded.bins if low >= 10) / bounded.rows
    assert longer == pytest.approx(0.5, abs=0.15)


def test_single_sentences_and_empty_ones_are_counted(tmp_path: Path, toy_checkpoint: Path) -> None:
    name = upload(tmp_path, "sentence,label", [("the cat", 1), ("", 0), ("a", 0)], (), ())
    tokenizer = token_lengths.tokenizer_file(str(toy_checkpoint))
    assert tokenizer is not None
    read = dataset_cache.read_dataset(RunConfig(dataset=name), tmp_path)
    found = token_lengths.measure_lengths(read.folder / "train.arrow", tokenizer)
    assert (found.rows, found.longest) == (2, 4)


def test_what_cannot_be_read_is_noted_once(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("[]")
    found = token_lengths.measure_lengths(catalog.BUNDLED_PAIRS / "train.csv", tokenizer)
    assert found.note
    assert found.longest == 0
    assert token_lengths.measure_lengths(tmp_path / "gone.arrow", tokenizer).note
    assert token_lengths.tokenizer_file("somebody/nothing") is None
