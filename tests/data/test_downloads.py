"""Downloads of checkpoints: their progress, an end by force, and what is fetched afterwards."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from finetune.data import checkpoint_files
from finetune.environment import confinement
from finetune.environment.project import ROOT
from finetune.errors import Cancelled, ModelError
from tests.support.hub import LoopbackHub

LARGE = 32 * 2**20  # bytes of weights
KILLED = """
import os, signal
from finetune.data import checkpoint_files
def die(done, total):
    if done > 15e6:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint_files.fetch("ada/large", on_progress=die)
"""


@pytest.fixture
def large(hub: LoopbackHub, toy_checkpoint: Path) -> LoopbackHub:
    """The Hub with a checkpoint whose weights take a while."""
    files = {path.name: path.read_bytes() for path in toy_checkpoint.iterdir()}
    weights = safetensors.numpy.load(files["model.safetensors"])
    weights["more"] = np.zeros(LARGE // 4, np.float32)
    files["model.safetensors"] = safetensors.numpy.save(weights, {"format": "pt"})
    hub.add_repo("ada/large", files=files)
    return hub


def answers(hub: LoopbackHub) -> list[int]:
    """How the storage answered each request for the weights."""
    return [s for method, path, s in hub.requests if method == "GET" and "/lfs/" in path]


@pytest.mark.long
def test_a_download_that_was_killed_goes_on_where_it_ended(
    large: LoopbackHub, tmp_path: Path
) -> None:
    home = large.environment(tmp_path / "home")
    command = [sys.executable, "-c", KILLED]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | home)
    assert done.returncode == -signal.SIGKILL
    assert answers(large) == [206]
    command[-1] = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "print(done, total)")
    again = subprocess.run(command, cwd=ROOT, env=os.environ | home, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert answers(large) == [206, 206]
    first, *_, last = [tuple(map(int, line.split())) for line in again.stdout.splitlines()]
    assert first[0] > 15e6  # the rest only
    assert last[0] == last[1] > LARGE


def test_a_download_tells_its_progress_and_can_be_ended(large: LoopbackHub) -> None:
    told: list[tuple[int, int]] = []

    def end(done: int, total: int) -> None:
        told.append((done, total))
        if done > 15e6:
            raise Cancelled("Enough.")

    with pytest.raises(Cancelled):
        checkpoint_files.fetch("ada/large", on_progress=end)
    folder = checkpoint_files.fetch("ada/large", on_progress=lambda *facts: told.append(facts))
    dones = [done for done, _ in told]
    assert dones == sorted(dones)
    assert told[-1][0] == told[-1][1] > LARGE
    assert (folder / "model.safetensors").stat().st_size == told[-1][1]
    count = len(told)
    checkpoint_files.fetch("ada/large", on_progress=lambda *facts: told.append(facts))
    assert len(told) == count  # it lies on the disk


def test_a_download_that_is_cut_off_goes_on(large: LoopbackHub) -> None:
    large.fail("GET", "/lfs/", cut=True, after=12_000_000, times=2)
    large.add_repo("ada/cut", files=large.repos["model", "ada/large"].files)
    folder = checkpoint_files.fetch("ada/cut")
    assert (folder / "model.safetensors").stat().st_size > LARGE
    assert answers(large) == [206, 206, 206]
    large.add_repo("ada/never", files=large.repos["model", "ada/large"].files)
    large.fail("GET", "/lfs/", cut=True, times=9)
    with pytest.raises(ModelError, match="could not be read: the Hub"):
        checkpoint_files.fetch("ada/never")


def test_a_part_of_another_file_is_not_taken_for_it(large: LoopbackHub) -> None:
    """What another program left where the part is kept."""
    files = large.repos["model", "ada/large"].files
    whole = files["model.safetensors"]
    blobs = confinement.hub_cache() / "models--ada--damaged" / "blobs"
    large.add_repo("ada/damaged", files=files)
    blobs.mkdir(parents=True)
    (blobs / f"{hashlib.sha256(whole).hexdigest()}.part").write_bytes(b"x" * 2**20)
    folder = checkpoint_files.fetch("ada/damaged")
    assert (folder / "model.safetensors").read_bytes() == whole
    assert not [*blobs.glob("*.part")]
