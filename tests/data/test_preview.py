"""Previews of a cached dataset: chosen rows to look at."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from finetune.config import RunConfig
from finetune.data import dataset_cache
from finetune.errors import DataError
from tests.support.uploads import upload


def test_rows_of_a_cached_dataset_are_chosen(tmp_path: Path) -> None:
    rows = [(f"left {n}", f"right {n}", n % 2) for n in range(300)]
    config = RunConfig(dataset=upload(tmp_path, "sentence1,sentence2,label", rows, (), ()))
    folder = dataset_cache.read_dataset(config, tmp_path).folder

    def lines(seed: int | None = None) -> list[int]:
        return [row.line for row in dataset_cache.preview_rows(folder, "train", seed)]

    assert lines() == list(range(2, 12))
    assert len(lines(seed=1)) == 10
    assert lines(seed=1) != lines(seed=2)
    with pytest.raises(DataError, match="are gone"):
        dataset_cache.preview_rows(tmp_path, "train")


def test_rows_are_read_while_another_thread_imports_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(dataset=upload(tmp_path, "sentence1,label", [("a", 0), ("b", 1)], (), ()))
    folder = dataset_cache.read_dataset(config, tmp_path).folder
    monkeypatch.setitem(sys.modules, "transformers", types.ModuleType("transformers"))
    assert [row.sentence1 for row in dataset_cache.preview_rows(folder, "train")] == ["a", "b"]
