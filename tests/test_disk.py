"""Uploads, and files that cannot be written, whichever library writes them."""

import errno
import os
import resource
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from finetune import disk
from finetune.errors import DataError, StoreError
from finetune.jobs import train
from finetune.jobs.background import BackgroundJob
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.uploads import Uploads
from tests.support import toys

MANY = 1_000_000


@pytest.fixture
def little_room():
    """Limit files to 100 kB, so that a write ends in the middle, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _arrow(path):
    table = pa.table({"a": np.random.rand(MANY)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)


WRITERS = {
    "torch": lambda path: torch.save({"a": torch.zeros(MANY)}, path),
    "safetensors": lambda path: save_file({"a": torch.zeros(MANY)}, path),
    "numpy": lambda path: np.savez(path, a=np.random.rand(MANY)),
    "numpy, raw": lambda path: np.random.rand(MANY).tofile(path),
    "parquet": lambda path: pq.write_table(pa.table({"a": np.random.rand(MANY)}), path),
    "arrow": _arrow,
}


@pytest.mark.parametrize("library", WRITERS)
@pytest.mark.usefixtures("little_room")
def test_a_write_that_ends_in_the_middle_is_known(library, tmp_path):
    with pytest.raises(StoreError) as caught, disk.writing("The checkpoint"):
        WRITERS[library](tmp_path / "file.npz")
    assert caught.value.fact in {
        "The checkpoint cannot be written: the disk is full.",
        "The checkpoint cannot be written: it would be larger than this process may write.",
    }
    assert caught.value.remedy.startswith(("Free some space", "Raise that limit"))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "the disk is full. Free some space, and press Resume."),
        (errno.EDQUOT, "the disk quota is used up. Free some space, and press Resume."),
        (errno.EROFS, "the disk is read-only. Make it writable, and press Resume."),
        (errno.EACCES, "permission denied. Give this user the right to write there, and press"),
    ],
)
def test_each_cause_has_its_remedy(code, words):
    text = os.strerror(code)
    for error in (OSError(code, text), RuntimeError(f"I/O error: {text} (os error {code})")):
        with (
            pytest.raises(StoreError) as caught,
            disk.writing("It", StoreError, "and press Resume"),
        ):
            raise error
        assert str(caught.value).startswith(f"It cannot be written: {words}")
    assert not disk.is_full(RuntimeError("shape mismatch"))
    assert not disk.is_full(OSError(errno.EACCES, "Permission denied"))  # of reading, perhaps


GOOD = "sentence1,sentence2,label\n" + "".join(
    f"{first},{second},{label}\n" for first, second, label in toys.rows(40)
)


def test_the_same_contents_under_another_name_are_another_upload(tmp_path):
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


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (KeyError("a bug"), KeyError, "a bug"),
        (OSError(errno.EROFS, "Read-only"), DataError, r"the disk is read-only\. Make it writable"),
    ],
)
def test_an_upload_that_breaks_leaves_nothing(tmp_path, monkeypatch, error, raised, message):
    (tmp_path / "a.csv").write_text(GOOD)

    def broken(*_):
        raise error

    monkeypatch.setattr(shutil, "copyfile", broken)
    with pytest.raises(raised, match=message):
        Uploads(tmp_path / "uploads").add({"train": tmp_path / "a.csv"})
    assert list((tmp_path / "uploads").iterdir()) == []


def test_runs_and_jobs_say_that_the_disk_is_full(tmp_path):
    full = tmp_path / "model.bin"
    full.symlink_to("/dev/full")

    def work():
        torch.save({"a": torch.zeros(MANY)}, full)
        return events.Finished(step=0, seconds=0.0)

    class Job(BackgroundJob):
        phase = Phase.START

        def work(self, report):
            return work()

    job = Job(tmp_path)
    assert job.carry_out() == 1
    failed = job.tail()[0][-1]
    assert isinstance(failed, events.Failed)
    assert failed.error == "A file of the job cannot be written: the disk is full."
    assert failed.remedy.startswith("Free some space")
    with pytest.raises(RuntimeError) as caught:
        work()
    failed = train.failure_event(caught.value, Run(tmp_path))
    assert failed.error == "A file of the run cannot be written: the disk is full."
    assert failed.remedy == "Free some space, and press Resume: nothing saved is lost."
