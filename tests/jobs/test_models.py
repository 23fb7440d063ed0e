"""Checkpoints before, while and after they are downloaded: size, kind, list and removal."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import safetensors.torch
import torch

import finetune
from finetune.cli.prepare import models as command
from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.data import checkpoint_files
from finetune.errors import ConfigError, ModelError, StoreError
from finetune.jobs import cost, memory, service, workers
from finetune.jobs.check import CheckJob
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.job_folder import hold_lock
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED
from finetune.ui import train_plan
from tests.support.hub import LoopbackHub, Repo
from tests.support.waiting import until


def test_the_size_of_a_download_is_told_before_the_click(
    hub: LoopbackHub, store: RunStore, toy_checkpoint: Path
) -> None:
    repo = hub.add_repo("ada/before", files=toy_checkpoint)
    repo.files |= {"pytorch_model.bin": b"x" * 10**6, "onnx/model.safetensors": b"x" * 10**6}
    config = RunConfig(checkpoint="ada/before", max_length=32)
    assert cost.estimate_cost(store, config).download == cost.Download(unasked=True)
    assert cost.ask_hub(store, config)
    needed = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    size = sum(len(content) for name, content in repo.files.items() if name in needed)
    assert cost.estimate_cost(store, config).download == cost.Download(size)
    assert not cost.ask_hub(store, config)  # it is known
    assert "Download" in train_plan.costs(cost.estimate_cost(store, config), config)
    checkpoint_files.fetch("ada/before")
    assert cost.estimate_cost(store, config).download is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.safetensors": None}, "has no safetensors weights"),
        ({"config.json": {"model_type": "clip"}}, "is a clip model, of which transformers makes"),
        ({"config.json": {"model_type": "fnet"}}, "is a fnet model, which reads a batch's padding"),
    ],
)
def test_what_cannot_be_fine_tuned_is_refused_at_the_form(
    hub: LoopbackHub, store: RunStore, toy_checkpoint: Path,
    change: dict[str, dict[str, str] | None], words: str,
) -> None:  # fmt: skip
    name = f"ada/{words.split()[2]}"
    repo = hub.add_repo(name, files=toy_checkpoint)
    for file, content in change.items():
        repo.files[file] = json.dumps(content).encode()
        if content is None:
            del repo.files[file]
    config = RunConfig(checkpoint=name, max_length=32)
    assert cost.ask_hub(store, config)
    for ask in (service.start_run, cost.estimate_cost):
        with pytest.raises(ConfigError, match=words):
            ask(store, config)
    checkpoint_files.fetch(name, weights=False)  # as the check of the pairs does
    with pytest.raises(ConfigError, match=words):
        cost.estimate_cost(store, config)
    assert not store.runs()


@pytest.fixture
def fetched(hub: LoopbackHub, toy_checkpoint: Path) -> str:
    hub.add_repo("ada/fetched", files=toy_checkpoint)
    checkpoint_files.fetch("ada/fetched")
    return "ada/fetched"


def test_what_is_on_the_disk_is_listed_and_removed(fetched: str, store: RunStore) -> None:
    listed = {model.name: model for model in finetune.list_models()}
    assert listed[fetched].bytes > 10_000
    command(["--remove", fetched, "--runs", str(store.root)])
    assert fetched not in {model.name for model in finetune.list_models()}
    with pytest.raises(StoreError, match="is not among the downloaded checkpoints"):
        finetune.remove_model(fetched, store)
    for name in ("..", "../..", "", BUNDLED_CHECKPOINT):
        with pytest.raises(StoreError):
            finetune.remove_model(name, store)


def test_what_a_run_needs_stays(
    fetched: str, store: RunStore, adopt: Callable[[Run], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.create(RunConfig(checkpoint=fetched, name="busy"))
    run.append(events.Started(device="CPU"))
    adopt(run)
    with pytest.raises(StoreError, match=f"{fetched} is in use by the run busy"):
        memory.remove_model(store, fetched)
    with pytest.raises(StoreError, match="Visitors cannot remove"):
        memory.remove_model(store.for_visitor(Visitor(("browser:a",))), fetched)
    run.append(events.Finished(step=1, seconds=1.0))
    job = CheckJob(store.root / "checks" / ("0" * 24))
    job.folder.mkdir(parents=True)
    job.describe_job("check", "", {"checkpoint": fetched})
    handle = hold_lock(job.lock_file)  # it is at work
    assert handle is not None
    with pytest.raises(StoreError, match="is being read to check or compare it"):
        memory.remove_model(store, fetched)
    os.close(handle)
    monkeypatch.setenv("FINETUNE_ADMINS", "ada")
    admin = store.for_visitor(Visitor(("user:ada",)))
    assert memory.remove_model(admin, fetched).name == fetched


def large(repo: Repo) -> None:
    """Give a repository's weights a size that is fetched by parts."""
    weights = safetensors.torch.load(repo.files["model.safetensors"])
    weights["unused"] = torch.zeros(9 * 2**18)  # nine megabytes
    repo.files["model.safetensors"] = safetensors.torch.save(weights, {"format": "pt"})


def parts(hub: LoopbackHub) -> int:
    """The number of answers with a large file, or a part of it."""
    return sum(
        (method, status) == ("GET", 206) and path.startswith("/lfs/")
        for method, path, status in hub.requests
    )


def test_a_fault_of_the_storage_is_waited_for(hub: LoopbackHub, toy_checkpoint: Path) -> None:
    large(hub.add_repo("ada/faulty", files=toy_checkpoint))
    hub.fail("GET", "^/lfs/", status=503)
    hub.fail("GET", "^/lfs/", status=429, headers={"Retry-After": "1"})
    assert (checkpoint_files.fetch("ada/faulty") / "model.safetensors").is_file()
    assert parts(hub) == 1
    hub.add_repo("ada/closed", files=toy_checkpoint)
    large(hub.repos["model", "ada/closed"])
    hub.repos["model", "ada/closed"].files["model.safetensors"] += b" "  # another file
    hub.fail("GET", "^/lfs/", status=403, times=9)
    with pytest.raises(ModelError, match="ada/closed") as refused:
        checkpoint_files.fetch("ada/closed")
    assert "safetensors" not in str(refused.value)


def test_two_that_need_a_file_fetch_it_once(hub: LoopbackHub, toy_checkpoint: Path) -> None:
    large(hub.add_repo("ada/shared", files=toy_checkpoint))
    gate, told = threading.Event(), threading.Event()
    asked = hub.fail("GET", "^/lfs/", gate=gate)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(checkpoint_files.fetch, "ada/shared")
        until(lambda: not asked.times)
        second = pool.submit(
            checkpoint_files.fetch, "ada/shared", True, lambda done, total: told.set()
        )
        assert told.wait(60)  # whoever waits may stop
        gate.set()
        assert first.result() == second.result()
    assert parts(hub) == 1


@pytest.mark.long
def test_a_run_is_stopped_while_its_checkpoint_comes_and_begins_again(
    hub: LoopbackHub, store: RunStore, toy_checkpoint: Path, toy_config: RunConfig,
    toy_pairs_folder: Path, processes: list[psutil.Process],
) -> None:  # fmt: skip
    large(hub.add_repo("ada/slow", files=toy_checkpoint))
    gate = threading.Event()
    asked = hub.fail("GET", "^/lfs/", gate=gate)
    dataset = store.uploads.add({path.stem: path for path in toy_pairs_folder.glob("*.csv")})
    config = toy_config.changed(checkpoint="ada/slow", dataset=dataset, max_steps=2)
    run = service.start_run(store, config)
    until(lambda: not asked.times)
    worker = workers.worker_process(run)
    assert worker is not None
    processes.append(worker)
    service.stop_run(store, run)
    until(lambda: run.state().status == "stopped")
    assert psutil.wait_procs([worker], 60)[1] == []
    gate.set()
    service.resume_run(store, run)
    until(lambda: run.state().status in ENDED)
    assert run.state().status == "finished", run.state().error
