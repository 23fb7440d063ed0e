"""What several tests of engines need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from finetune.config import RunConfig
from finetune.engines import hub_jobs, supervisor
from finetune.engines.base import EngineSpec, read_spec
from finetune.engines.registry import open_engine
from finetune.jobs import scheduler, workers
from finetune.runs.queue import Queue
from finetune.runs.store import RunStore
from tests.support.engines import let_jobs_train
from tests.support.hub import TOKEN, LoopbackHub
from tests.support.ray_nodes import Nodes, running_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A cluster of two nodes with a processor each."""
    with running_cluster(tmp_path_factory.mktemp("home")) as nodes:
        for _ in range(2):
            nodes.add()
        yield nodes


@pytest.fixture(autouse=True)
def nothing_left(store: RunStore) -> Iterator[None]:
    """End what is left of runs, here and on the cluster."""
    yield
    for run in store.runs():
        workers.kill_worker(run)
        if (spec := read_spec(run)).engine == "ray" and spec.options.get("address"):
            open_engine(spec).remove(run, spec)


@pytest.fixture
def job(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> EngineSpec:
    """Hugging Face Jobs on the cheapest machine."""
    return let_jobs_train(hub, monkeypatch, TOKEN)


@pytest.fixture
def sleeping_job(hub: LoopbackHub, job: EngineSpec) -> EngineSpec:
    """Jobs that sleep."""
    hub.jobs.prepare = lambda _command, variables: (["sleep", "60"], variables)
    return job


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let those who follow a job ask again soon."""
    monkeypatch.setattr(supervisor, "POLL", 0.1)
    monkeypatch.setattr(hub_jobs, "PAUSE", 0.01)


@pytest.fixture
def nothing_begins(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are resumed wait; the test takes the worker's part."""

    def leave(store: RunStore) -> None:
        for run_id in Queue(store.root).waiting():
            Queue(store.root).remove(run_id)

    monkeypatch.setattr(scheduler, "dispatch_queue", leave)


@pytest.fixture
def config(store: RunStore, toy_checkpoint: Path, toy_pairs_folder: Path) -> RunConfig:
    """A run of the toys whose steps take a moment, so that it is met at work."""
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    return RunConfig(
        dataset=store.uploads.add(files), checkpoint=str(toy_checkpoint), max_length=32,
        learning_rate=1e-3, logging_steps=1, max_steps=120, eval_steps=60, save_steps=10,
        per_device_train_batch_size=2, gradient_accumulation_steps=24, mixed_precision="no",
    )  # fmt: skip
