"""Several processes carry out one run: started by the form, ended by one's death, gone on with."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from finetune.config import PRESETS, RunConfig
from finetune.jobs import service, workers
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support.running import start
from tests.support.waiting import until


@pytest.fixture
def shared(toy_checkpoint: Path) -> RunConfig:
    return RunConfig(
        checkpoint=str(toy_checkpoint), num_processes=2, per_device_train_batch_size=4,
        learning_rate=1e-3, max_length=32, max_steps=40, eval_steps=20, logging_steps=1,
        max_train_samples=200, max_eval_samples=30,
    ).changed(**PRESETS["As the course"])  # fmt: skip


def ended(run: Run) -> str:
    until(lambda: run.state().status not in ("running", "waiting"))
    return run.state().status


@pytest.mark.long
def test_the_processes_end_early_together(
    store: RunStore, shared: RunConfig, processes: list[psutil.Process]
) -> None:
    """Only the main process knows the scores; a rank that went on alone would wait for ever."""
    still = shared.changed(learning_rate=1e-8, eval_steps=5, early_stopping_patience=1)
    run, _ = start(store, still, processes)
    assert ended(run) == "finished", run.log_tail()
    summary = run.state()
    assert summary.started is not None
    assert summary.started.processes == 2
    assert [event.step for event in summary.validation] == [5, 10]
    assert (summary.early, len(summary.train)) == (True, 10)
    until(lambda: workers.worker_process(run) is None)


@pytest.mark.long
def test_a_process_that_is_killed_or_stopped_ends_all_and_the_run_goes_on_to_the_same_weights(
    store: RunStore, shared: RunConfig, processes: list[psutil.Process]
) -> None:
    """Each of two ranks is killed, then their launcher; then the run is stopped. Each epoch draws
    the order of each pair."""
    config = shared.changed(max_steps=200, eval_steps=20, save_steps=10, sentence_order="random")
    whole, _ = start(store, config, processes)
    assert ended(whole) == "finished", whole.log_tail()
    run, launcher = start(store, config, processes)
    for victim in ("0", "1", "launcher", "stop"):
        reached = run.state().step + 3
        until(lambda reached=reached: run.state().step > reached)  # type: ignore[misc]
        members = {"launcher": launcher}
        for child in launcher.children(recursive=True):
            members[child.environ().get("RANK", str(child.pid))] = child
        processes += members.values()
        if victim == "stop":
            service.stop_run(store, run)
            assert ended(run) == "stopped"
        else:
            members[victim].send_signal(signal.SIGKILL)
            assert ended(run) in ("failed", "interrupted")
        until(lambda members=members: not any(map(lives, members.values())))  # type: ignore[misc]
        if victim in ("0", "1"):
            assert "has ended without a word" in run.state().error
        assert run.state().step < 200
        service.resume_run(store, run)
        until(lambda: workers.worker_process(run) is not None)
        launcher = workers.worker_process(run)  # type: ignore[assignment]
    assert ended(run) == "finished", run.log_tail()
    first, second = (load_file(one.best / "model.safetensors") for one in (whole, run))
    assert all(torch.equal(first[name], second[name]) for name in first)


def lives(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
