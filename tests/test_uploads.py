"""Uploaded files are named by their contents."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from finetune.errors import DataError
from finetune.uploads import Uploads
from tests.support import toys

GOOD = "sentence1,sentence2,label\n" + "".join(
    f"{first},{second},{label}\n" for first, second, label in toys.rows(40)
)


def test_the_same_contents_under_another_name_are_another_upload(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "uploads")
    paths = [tmp_path / name for name in ("first.csv", "second.csv", "third.tsv.gz")]
    for path in paths:
        path.write_text(GOOD)
    names = [uploads.add({"train": path}) for path in paths]
    assert [uploads.file_names(name)["train"] for name in names] == [path.name for path in paths]
    assert [uploads.files(name)["train"].name for name in names] == [
        "train.csv", "train.csv", "train.tsv.gz",
    ]  # fmt: skip
    assert uploads.add({"train": paths[0]}) == names[0]


def test_the_last_upload_is_the_newest_though_the_clock_was_set_back(tmp_path: Path) -> None:
    uploads, path = Uploads(tmp_path / "uploads"), tmp_path / "mine.csv"
    names: list[str] = []
    for text in (GOOD, GOOD + "a,b,1\n", GOOD):
        path.write_text(text)
        names.insert(0, uploads.add({"train": path}))
        assert [upload.name for upload in uploads.newest(2)] == names[:2]
        for folder in (tmp_path / "uploads").iterdir():
            ahead = folder.stat().st_mtime + 10**6
            os.utime(folder, (ahead, ahead))


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (KeyError("a bug"), KeyError, "a bug"),
        (OSError(errno.EROFS, "Read-only"), DataError, r"the disk is read-only\. Make it writable"),
    ],
)
def test_an_upload_that_breaks_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    error: Exception, raised: type[Exception], message: str,
) -> None:  # fmt: skip
    (tmp_path / "a.csv").write_text(GOOD)

    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(shutil, "copyfile", broken)
    with pytest.raises(raised, match=message):
        Uploads(tmp_path / "uploads").add({"train": tmp_path / "a.csv"})
    assert list((tmp_path / "uploads").iterdir()) == []
