"""Checks of pairs as processes of their own, and in a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from finetune.config import RunConfig
from finetune.data import checks
from finetune.errors import DataError, JobError
from finetune.jobs import check, service, workers
from finetune.runs.store import RunStore
from tests.support import toys

HEAD = "sentence1,sentence2,label"


def wait(folder: check.CheckJob, seconds: float = 60) -> check.CheckState:
    end = time.monotonic() + seconds
    while (state := check.check_state(folder)).running:
        assert time.monotonic() < end, state
        time.sleep(0.1)
    return state


def test_the_process_checks_once_for_all(store: RunStore, processes: list[int]) -> None:
    """One that is killed says so, and can be repeated."""
    config = RunConfig()
    first = check.start_check(store, config)
    worker = workers.worker_process(first)
    assert worker is not None
    worker.kill()
    psutil.wait_procs([worker], timeout=10)
    assert "ended unexpectedly" in wait(first, 15).error or "killed" in wait(first, 15).error
    assert check.start_check(store, config).folder == first.folder
    worker = workers.worker_process(first)
    assert worker is not None
    processes.append(worker.pid)
    assert check.start_check(store, config).folder == first.folder
    again = workers.worker_process(first)
    assert again is None or again.pid == worker.pid
    report = wait(first).report
    assert report is not None
    assert report.read == {"train": 1746, "validation": 372, "test": 390}
    assert report.lengths.rows == 1746
    psutil.wait_procs([worker], timeout=10)
    assert check.start_check(store, config).folder == first.folder
    assert workers.worker_process(first) is None
    assert check.check_folder(store, config.changed(learning_rate=1e-3)).folder == first.folder
    assert check.check_folder(store, config.changed(drop_leaked=True)).folder != first.folder


def test_a_source_that_cannot_be_opened_fails_in_words(
    store: RunStore, processes: list[int]
) -> None:
    state = wait(check.start_check(store, RunConfig(dataset="glue/stsb")))
    assert "no dataset" in state.error
    assert state.remedy


def test_only_so_many_go_on_at_once(store: RunStore, processes: list[int]) -> None:
    stopped = []
    for seed in range(3):
        worker = workers.worker_process(check.start_check(store, RunConfig(data_seed=seed)))
        assert worker is not None
        os.kill(worker.pid, signal.SIGSTOP)
        stopped.append(worker)
        processes.append(worker.pid)
    with pytest.raises(JobError, match="3 data checks are running"):
        check.start_check(store, RunConfig(data_seed=9))
    for worker in stopped:
        worker.kill()


def test_pairs_found_impossible_are_not_trained_on(store: RunStore, tmp_path: Path) -> None:
    files = {"train": tmp_path / "train.csv"}
    files["train"].write_text(f"{HEAD}\na,b,1\nc,d,1\n")
    config = RunConfig(dataset=store.uploads.add(files))
    folder = check.check_folder(store, config).folder
    folder.mkdir(parents=True)
    report = checks.check_pairs(config, store.root)
    (folder / "report.json").write_text(report.to_json())
    with pytest.raises(DataError, match="one class"):
        service.start_run(store, config)
    assert store.runs() == []


@pytest.mark.long
def test_the_terminal_gets_the_findings(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    lines = [f"{one},{two},{label}" for one, two, label in toys.rows(120)]
    path.write_text("\n".join([HEAD, *lines, "ragged", lines[0]]) + "\n")
    command = [sys.executable, "-m", "finetune", "check", "--runs", str(tmp_path / "runs")]
    done = subprocess.run(
        [*command, "--train_file", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "train line 122: has 1 fields where the first line has 3" in done.stdout
    assert "Rows that repeat an earlier pair" in done.stdout
    wrong = subprocess.run(
        [*command, "--train_file", str(tmp_path / "none.csv")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert wrong.returncode == 2
    assert "none.csv" in wrong.stderr
