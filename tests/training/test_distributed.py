"""Several processes carry out one run: started by the form, ended by one's death, gone on with."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from finetune.config import PRESETS, RunConfig
from finetune.errors import ConfigError
from finetune.jobs import service, workers
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.training import distributed
from tests.jobs.test_service import start, until


@pytest.fixture
def shared(toy_checkpoint: Path) -> RunConfig:
    return RunConfig(
        checkpoint=str(toy_checkpoint), num_processes=2, per_device_train_batch_size=4,
        learning_rate=1e-3, max_length=32, max_steps=40, eval_steps=20, logging_steps=1,
        max_train_samples=200, max_eval_samples=30,
    ).changed(**PRESETS["As the course"])  # fmt: skip


def ranks(process: psutil.Process) -> dict[str, psutil.Process]:
    """The processes of a run by rank; the launcher is their parent."""
    found = {}
    for child in process.children(recursive=True):
        try:
            environment = child.environ()
        except psutil.Error:
            continue
        if "RANK" in environment:
            found[environment["RANK"]] = child
    return found


def ended(store: RunStore, run: Run, seconds: float = 120.0) -> str:
    until(lambda: service.run_summary(store, run).status not in ("running", "waiting"), seconds)
    return service.run_summary(store, run).status


@pytest.mark.long
def test_the_processes_share_the_work_and_end_early_together(
    store: RunStore, shared: RunConfig, processes: list[int]
) -> None:
    """Only the main process knows the scores; a rank that went on alone would wait for ever."""
    still = shared.changed(learning_rate=1e-8, eval_steps=5, early_stopping_patience=1)
    run, _ = start(store, still, processes)
    assert ended(store, run) == "finished", run.log_tail()
    happened = run.tail()[0]
    (started,) = [event for event in happened if isinstance(event, events.Started)]
    assert started.processes == 2
    assert [e.step for e in happened if isinstance(e, events.Evaluated)] == [5, 10]
    assert [e.step for e in happened if isinstance(e, events.Stepped)] == list(range(1, 11))
    last = happened[-1]
    assert isinstance(last, events.Finished)
    assert (last.early, last.step) == (True, 10)
    until(lambda: workers.worker_process(run) is None, 60)


@pytest.mark.long
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_dead_rank_ends_the_run_as_failed(
    store: RunStore, shared: RunConfig, processes: list[int], rank: str
) -> None:
    run, process = start(store, shared.changed(max_steps=100_000, eval_steps=50_000), processes)
    until(lambda: service.run_summary(store, run).step > 3, 120)
    members = ranks(process)
    processes += [member.pid for member in members.values()]
    members[rank].send_signal(signal.SIGKILL)
    began = time.monotonic()
    assert ended(store, run, 30) == "failed"
    assert time.monotonic() - began < 30
    assert "has ended without a word" in service.run_summary(store, run).error
    until(lambda: not any(one.is_running() for one in (process, *members.values())), 40)
    assert sum(isinstance(e, events.Failed) for e in run.tail()[0]) == 1


@pytest.mark.long
def test_two_processes_stopped_go_on_to_the_same_weights(
    store: RunStore, shared: RunConfig, processes: list[int]
) -> None:
    shared = shared.changed(max_steps=400, eval_steps=100, save_steps=10)
    whole, _ = start(store, shared, processes)
    assert ended(store, whole) == "finished", whole.log_tail()
    run, process = start(store, shared, processes)
    until(lambda: service.run_summary(store, run).step >= 25, 120)
    service.stop_run(store, run)
    assert ended(store, run) == "stopped"
    assert service.run_summary(store, run).step < 400
    until(lambda: not process.is_running(), 40)
    service.resume_run(store, run)
    assert ended(store, run) == "finished", run.log_tail()
    first, second = (load_file(one.best / "model.safetensors") for one in (whole, run))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_accelerate_configuration_is_passed_on(tmp_path: Path, store: RunStore) -> None:
    path = tmp_path / "fsdp.yaml"
    path.write_text("distributed_type: FSDP\n")
    run = store.create(RunConfig(accelerate_config=str(path)))
    words = distributed.launch_command(run)
    assert words[words.index("--config_file") + 1] == str(path)
    assert "--num_processes" not in words  # the file's
    assert words[-5:] == ["--module", "finetune", "train", "--run", str(run.folder)]


def test_an_accelerate_configuration_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chosen = RunConfig(accelerate_config=str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match=r"none\.yaml', and there is no such file"):
        distributed.check_accelerate_config(chosen)
    monkeypatch.setitem(os.environ, "SPACE_ID", "ada/space")
    with pytest.raises(ConfigError, match="cannot be named here"):
        distributed.check_accelerate_config(chosen)


@pytest.mark.long
def test_a_killed_launcher_leaves_no_process_behind(
    store: RunStore, shared: RunConfig, processes: list[int]
) -> None:
    run = service.start_run(store, shared.changed(num_train_epochs=1000))
    launcher = workers.worker_process(run)
    assert launcher is not None
    until(lambda: service.run_summary(store, run).step > 0, 90)
    ranks = launcher.children(recursive=True)
    processes += [launcher.pid, *(one.pid for one in ranks)]
    assert len(ranks) >= 2
    launcher.kill()
    until(lambda: not any(_lives(one) for one in ranks), 30)
    until(lambda: service.run_summary(store, run).status in ("failed", "interrupted"), 60)
    until(lambda: not run.is_alive(), 60)  # no app is there to look again
    service.resume_run(store, run)
    at = service.run_summary(store, run).step
    until(lambda: service.run_summary(store, run).step > at, 90)
    workers.kill_worker(run)


def _lives(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
