"""The worker that waits: it takes a run at once, leaves nothing behind, and is never needed."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from finetune.config import RunConfig
from finetune.jobs import service, worker, workers
from finetune.runs.job_folder import JobFolder
from finetune.runs.store import RunStore
from tests.support import stand_in
from tests.support.waiting import until


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it import nothing, for it will not train."""
    stand_in.use(monkeypatch)


@pytest.fixture
def waiting(store: RunStore, processes: list[psutil.Process]) -> psutil.Process:
    """A warm worker of the store, ready."""
    workers.start_warm_worker(store)
    folder = JobFolder(store.root / ".warm")
    process = workers.worker_process(folder)
    assert process is not None
    processes.append(process)
    until(lambda: (folder.folder / workers.READY).exists())
    return process


@pytest.mark.long
def test_it_carries_out_a_run_as_any_worker_but_not_every_run(
    store: RunStore, toy_checkpoint: Path, waiting: psutil.Process
) -> None:
    workers.start_warm_worker(store)  # there is one already
    folder = store.root / ".warm"
    children = [child.cmdline() for child in psutil.Process().children()]
    assert len([command for command in children if str(folder.resolve()) in command]) == 1
    config = RunConfig(checkpoint=str(toy_checkpoint), max_steps=3, max_length=32)
    for values in ({"num_processes": 2}, {"dataset": "glue/mrpc"}):  # which needs the Hub
        assert not workers.give_to_warm_worker(store, store.create(config.changed(**values)))
    run = service.start_run(store, config)
    assert workers.worker_process(run) == waiting
    until(lambda: run.state().status == "finished")
    assert "finished 3 steps" in run.log_tail()
    assert run.has_model()
    assert not folder.exists()
    until(lambda: not psutil.pid_exists(waiting.pid))


def test_one_that_hangs_is_ended_not_waited_for(
    light: None, store: RunStore, waiting: psutil.Process
) -> None:
    waiting.suspend()
    run = store.create(RunConfig())
    assert not workers.give_to_warm_worker(store, run, patience=0.2)
    assert not run.process_file.exists()
    until(lambda: not waiting.is_running() or waiting.status() == psutil.STATUS_ZOMBIE)


def test_it_ends_when_nobody_comes_or_its_folder_or_app_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worker.wait_for_run(tmp_path / "gone", os.getppid()) is None
    # The app ended while it imported: its parent is another process by now.
    assert worker.wait_for_run(tmp_path, os.getppid() + 1) is None
    monkeypatch.setattr(worker, "LIFETIME", 0.1)
    assert worker.wait_for_run(tmp_path, os.getppid()) is None
