"""Files that people uploaded: named by their contents, whatever they are called."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from finetune.config import RunConfig
from finetune.data import dataset_cache
from finetune.uploads import Uploads
from tests.support import toys

GOOD = "sentence1,sentence2,label\n" + "".join(
    f"{one},{two},{label}\n" for one, two, label in toys.rows(40)
)


def test_the_same_contents_under_another_name_are_shown_under_that(tmp_path: Path) -> None:
    kept = Uploads(tmp_path / "uploads")
    paths = [tmp_path / name for name in ("first.csv", "second.csv", "third.tsv")]
    for path in paths:
        path.write_text(GOOD)
    named = [kept.add({"train": path}) for path in paths]
    assert [kept.file_names(name)["train"] for name in named] == [path.name for path in paths]
    assert kept.add({"train": paths[0]}) == named[0]


def test_a_file_whose_name_is_no_utf8_is_kept(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.csv"))
    path.write_text(GOOD)
    name = Uploads(tmp_path / "uploads").add({"train": path})
    dataset = dataset_cache.read_dataset(RunConfig(dataset=name), tmp_path)
    assert (dataset.source, dataset.rows) == ("caf?.csv", {"train": 40})
    assert [one.name for one in (tmp_path / "uploads").iterdir()] == [name.split("/")[1]]


def test_an_upload_that_breaks_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text(GOOD)

    def broken(*given: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(shutil, "copyfile", broken)
    with pytest.raises(KeyError):
        Uploads(tmp_path / "uploads").add({"train": tmp_path / "a.csv"})
    assert list((tmp_path / "uploads").iterdir()) == []
