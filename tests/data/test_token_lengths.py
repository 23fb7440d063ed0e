"""Lengths from a sample agree with those of the checkpoint's own tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.data import catalog, dataset_cache, token_lengths
from tests.support.uploads import upload


def test_they_are_those_of_the_checkpoints_own_tokenizer(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = token_lengths.tokenizer_file(RunConfig().checkpoint)
    assert tokenizer is not None
    dataset = dataset_cache.read_dataset(RunConfig(), tmp_path)
    own = AutoTokenizer.from_pretrained(str(tokenizer.parent))
    rows = dataset.texts("train")
    token_ids = own(list(rows["sentence1"]), list(rows["sentence2"]), truncation=False)["input_ids"]
    counted = np.array(list(map(len, token_ids)))
    for path in (dataset.folder / "train.arrow", catalog.BUNDLED_PAIRS / "train.csv"):
        lengths = token_lengths.measure_lengths(path, tokenizer)
        assert lengths.bins == token_lengths.length_histogram(counted)
        assert (lengths.rows, lengths.of, lengths.longest) == (2038, 2038, int(counted.max()))


def test_a_part_of_many_rows_is_measured_and_its_shape_is_theirs(
    tmp_path: Path, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short rows come first and long ones last, so a sample of the first rows would miss the long
    ones."""
    rows = [("the", "a", 1)] * 3000 + [("", "a", 1)] + [("the " * 9, "a", 0)] * 3000
    name = upload(tmp_path, "sentence1,sentence2,label", rows, rows[:9], ())
    tokenizer = token_lengths.tokenizer_file(str(toy_checkpoint))
    assert tokenizer is not None
    path = dataset_cache.read_dataset(RunConfig(dataset=name), tmp_path).folder / "train.arrow"
    for characters, fewest, most in ((2_000_000, 2499, 2500), (2000, 50, 500)):
        monkeypatch.setattr(token_lengths, "CHARACTERS", characters)
        token_lengths._estimates.clear()
        lengths = token_lengths.measure_lengths(path, tokenizer)
        assert token_lengths.cached_lengths(path, tokenizer) is lengths
        assert (lengths.of, lengths.longest) == (6001, 13)
        assert fewest <= lengths.rows <= most
        longer = sum(count for low, _, count in lengths.bins if low >= 10) / lengths.rows
        assert longer == pytest.approx(0.5, abs=0.15)
