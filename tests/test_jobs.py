"""Workers as real processes: started, watched, stopped, killed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from finetune import events, jobs, publish, uploads
from finetune.config import RunConfig
from finetune.errors import ConfigError, JobError
from finetune.predict import Predictor
from finetune.store import Run, RunStore
from tests import toys


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def start(store: RunStore, config: RunConfig, processes: list[int]) -> tuple[Run, psutil.Process]:
    run = jobs.start(store, config)
    process = jobs.worker(run)
    assert process is not None
    processes.append(process.pid)
    return run, process


@pytest.fixture
def endless(toy_checkpoint: Path) -> RunConfig:
    return RunConfig(checkpoint=str(toy_checkpoint), num_train_epochs=1000, max_length=32)


def test_a_run_goes_from_start_to_finish(
    store: RunStore, toy_checkpoint: Path, processes: list[int]
) -> None:
    config = RunConfig(checkpoint=str(toy_checkpoint), max_steps=20, max_length=32)
    run, process = start(store, config, processes)
    assert jobs.summary(store, run).status == "running"
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    until(lambda: jobs.summary(store, run).status != "running")
    done = jobs.summary(store, run)
    assert done.status == "finished", run.log_tail()
    assert done.step == 20
    assert run.has_model()
    assert "finished 20 steps" in run.log_tail()
    assert "secret" not in (run.folder / "config.json").read_text()
    until(lambda: not psutil.pid_exists(process.pid))  # and no zombie stays


def test_single_sentences_in_three_classes_go_the_whole_road(
    store: RunStore, toy_checkpoint: Path, tmp_path: Path, processes: list[int]
) -> None:
    """An uploaded file of another shape: trained on, predicted, described in its card."""
    path = tmp_path / "moods.csv"
    moods = ("calm", "glad", "sad")
    both = itertools.product(toys.ANIMALS, toys.ANIMALS)
    lines = [f"the {one} sees a {two} .,{moods[n % 3]}" for n, (one, two) in enumerate(both)]
    path.write_text("text,mood\n" + "\n".join(lines) + "\n")
    dataset = uploads.Uploads(store.root / "uploads").add({"train": path})
    config = RunConfig(dataset=dataset, checkpoint=str(toy_checkpoint), max_steps=6, max_length=32)
    run, _ = start(store, config, processes)
    until(lambda: jobs.summary(store, run).status != "running")
    done = jobs.summary(store, run)
    assert done.status == "finished", run.log_tail()
    assert done.prepared is not None
    assert done.prepared.labels == ["calm", "glad", "sad"]
    assert not done.paired
    predictor = Predictor(run.best, config.max_length, done.paired)
    assert set(predictor.pair("the cat sees a dog .").probabilities) == set(moods)
    card = publish.card(run, done, "ada/moods")
    assert "a sentence into one of the classes `calm`, `glad`, `sad`" in card
    assert 'tokenizer("The shop opens at nine.", return_tensors' in card
    assert done.prepared.fingerprint in card
    assert "moods.csv" in card
    assert publish.suggested_name(run) == "toy-own-pairs"


def test_stop_ends_it_within_five_seconds_and_keeps_a_model(
    store: RunStore, endless: RunConfig, processes: list[int]
) -> None:
    run, process = start(store, endless, processes)
    until(lambda: jobs.summary(store, run).step > 0)
    with pytest.raises(JobError, match="still training"):
        jobs.start(store, endless)
    began = time.monotonic()
    jobs.stop(run)
    until(lambda: jobs.summary(store, run).status == "stopped")
    assert time.monotonic() - began < 5
    assert run.has_model()
    until(lambda: not process.is_running())
    assert jobs.active(store) is None


def test_stop_before_training_ends_it_too(
    store: RunStore, endless: RunConfig, processes: list[int]
) -> None:
    run, process = start(store, endless, processes)
    jobs.stop(run, patience=0.5)
    until(lambda: not process.is_running(), 15)
    assert jobs.summary(store, run).status == "stopped"


def test_a_worker_that_does_not_listen_is_killed(
    store: RunStore, endless: RunConfig, processes: list[int]
) -> None:
    run, process = start(store, endless, processes)
    process.suspend()
    jobs.stop(run, patience=0.2, limit=0.6)
    until(lambda: jobs.worker(run) is None, 10)
    assert jobs.summary(store, run).status == "stopped"


def test_a_killed_worker_is_shown_as_interrupted(
    store: RunStore, endless: RunConfig, processes: list[int]
) -> None:
    run, process = start(store, endless, processes)
    until(lambda: jobs.summary(store, run).step > 0)
    process.send_signal(signal.SIGKILL)
    until(lambda: jobs.summary(store, run).status == "interrupted", 5)
    assert jobs.summary(store, run).step > 0
    assert jobs.active(store) is None
    until(lambda: "memory runs out" in jobs.summary(store, run).error, 5)
    assert "per_device_train_batch_size" in jobs.summary(store, run).remedy


def test_a_reused_pid_is_not_our_worker(store: RunStore) -> None:
    run = store.create(RunConfig())
    own = psutil.Process()
    run.job_file.write_text(json.dumps({"pid": own.pid, "started": own.create_time() - 100}))
    assert jobs.worker(run) is None
    assert jobs.summary(store, run).status == "interrupted"
    jobs.stop(run)  # signals nobody: this test lives on
    assert own.is_running()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}', '{"pid": -5, "started": 0}']
)
def test_a_damaged_job_file_is_a_dead_worker(store: RunStore, text: str) -> None:
    run = store.create(RunConfig())
    run.job_file.write_text(text)
    assert jobs.worker(run) is None


def test_a_run_just_made_waits(store: RunStore) -> None:
    run = store.create(RunConfig())
    assert jobs.summary(store, run).status == "waiting"
    past = time.time() - 60
    os.utime(run.folder / "config.json", (past, past))
    assert jobs.summary(store, run).status == "interrupted"


def test_an_ended_run_stays_ended(store: RunStore) -> None:
    run = store.create(RunConfig())
    run.append(events.Finished(step=1, seconds=1.0))
    jobs.adopt(run)  # even while some process bears its name
    assert jobs.summary(store, run).status == "finished"


def test_a_wrong_configuration_starts_nothing(store: RunStore) -> None:
    with pytest.raises(ConfigError):
        jobs.start(store, RunConfig(num_train_epochs=0))
    assert store.runs() == []
