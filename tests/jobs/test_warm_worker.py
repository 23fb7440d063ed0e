"""The worker that waits: it takes a run at once, leaves nothing behind, and is never needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from finetune.config import RunConfig
from finetune.data import catalog
from finetune.jobs import service, warm_worker, workers
from finetune.runs.job_folder import JobFolder
from finetune.runs.store import RunStore
from tests.jobs.test_service import until


@pytest.fixture
def waiting(store: RunStore) -> Iterator[psutil.Process]:
    """A spare worker of the store, ready."""
    warm_worker.start_warm_worker(store)
    folder = JobFolder(store.root / ".warm")
    process = workers.worker_process(folder)
    assert process is not None
    until(lambda: (folder.folder / warm_worker.READY).exists(), 120)
    yield process
    if process.is_running():
        process.kill()


@pytest.fixture
def brief(toy_checkpoint: Path) -> RunConfig:
    return RunConfig(checkpoint=str(toy_checkpoint), max_steps=3, max_length=32, logging_steps=1)


@pytest.mark.slow
def test_it_carries_out_a_run_as_any_worker(
    store: RunStore, brief: RunConfig, waiting: psutil.Process
) -> None:
    warm_worker.start_warm_worker(store)  # there is one already
    ours = str((store.root / ".warm").resolve())
    assert len([c for c in psutil.Process().children() if ours in c.cmdline()]) == 1
    run = service.start_run(store, brief)
    worker = workers.worker_process(run)
    assert worker is not None
    assert worker.pid == waiting.pid
    until(lambda: service.run_summary(store, run).status == "finished")
    assert "finished 3 steps" in run.log_tail()
    assert run.has_model()
    assert not (store.root / ".warm").exists()
    until(lambda: not psutil.pid_exists(waiting.pid))


@pytest.mark.slow
def test_what_it_cannot_do_goes_another_way(
    store: RunStore, brief: RunConfig, waiting: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.create(brief.changed(num_processes=2))
    assert not warm_worker.give_to_warm_worker(store, run)
    monkeypatch.setattr(catalog, "needs_hub", lambda dataset, checkpoint: True)
    assert not warm_worker.give_to_warm_worker(store, store.create(brief))
    monkeypatch.undo()
    assert waiting.is_running()
    waiting.suspend()  # hung: it is ended, not waited for
    assert not warm_worker.give_to_warm_worker(store, run := store.create(brief), patience=0.2)
    assert not run.process_file.exists()
    until(lambda: not waiting.is_running() or waiting.status() == psutil.STATUS_ZOMBIE, 60)


def test_it_ends_when_nobody_comes_or_its_folder_or_app_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warm_worker._wait(tmp_path / "gone", os.getppid()) is None
    # The app ended while it imported: its parent is another process by now.
    assert warm_worker._wait(tmp_path, os.getppid() + 1) is None
    monkeypatch.setattr(warm_worker, "LIFETIME", 0.1)
    assert warm_worker._wait(tmp_path, os.getppid()) is None
