"""What several tests of engines need."""

import os

import pytest
from filelock import FileLock

from finetune.config import RunConfig
from finetune.engines import hub_jobs, supervisor
from finetune.engines.base import read_spec, write_spec
from finetune.engines.registry import open_engine
from finetune.jobs import scheduler, service, workers
from finetune.runs import events
from finetune.runs.queue import Queue
from finetune.runs.store import RunStore
from tests.support.hub import TOKEN
from tests.support.ray_nodes import running_cluster
from tests.support.running import let_jobs_train, slow_run, wait


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A cluster of two nodes with a processor each."""
    with running_cluster(tmp_path_factory.mktemp("home")) as nodes:
        for _ in range(2):
            nodes.add()
        yield nodes


@pytest.fixture(autouse=True)
def nothing_left(store):
    """End what is left of runs, here and on the cluster."""
    yield
    for run in store.runs():
        workers.kill_worker(run)
        if (spec := read_spec(run)).engine == "ray" and spec.options.get("address"):
            open_engine(spec).remove(run, spec)


@pytest.fixture
def job(hub, monkeypatch):
    """Hugging Face Jobs on the cheapest machine."""
    return let_jobs_train(hub, monkeypatch, TOKEN)


@pytest.fixture
def sleeping_job(hub, job):
    """Jobs that sleep."""
    hub.jobs.prepare = lambda _command, variables: (["sleep", "60"], variables)
    return job


@pytest.fixture
def sleeping(store, sleeping_job):
    """A run whose job sleeps, its engine spec and its engine."""
    run = store.create(RunConfig())
    spec = write_spec(run, sleeping_job.model_copy(update={"attempt": 1, "submitted": 1.0}))
    run.append(events.PhaseStarted(phase=events.Phase.SUBMIT))
    engine = open_engine(spec)
    name = engine.submit(run, spec)
    return run, write_spec(run, read_spec(run).model_copy(update={"job": name})), engine


@pytest.fixture
def quick(monkeypatch):
    """Let those who follow a job ask again soon."""
    monkeypatch.setattr(supervisor, "POLL", 0.1)
    monkeypatch.setattr(hub_jobs, "PAUSE", 0.01)


@pytest.fixture
def nothing_begins(store, monkeypatch):
    """Runs that are resumed wait; the test takes the worker's part."""

    def leave(store):
        for run_id in Queue(store.root).waiting():
            Queue(store.root).remove(run_id)

    monkeypatch.setattr(scheduler, "dispatch_queue", leave)


@pytest.fixture
def config(store, toy_checkpoint, toy_pairs_folder):
    return slow_run(store, toy_checkpoint, toy_pairs_folder)


@pytest.fixture(scope="session")
def whole(tmp_path_factory, toy_checkpoint, toy_pairs_folder):
    """The run of that configuration that nothing happened to, trained here once for all processes
    that run tests."""
    own = tmp_path_factory.getbasetemp()
    store = RunStore((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "whole")
    with FileLock(f"{store.root}.lock"):
        run = next(iter(store.runs()), None)
        run = run or service.start_run(store, slow_run(store, toy_checkpoint, toy_pairs_folder))
        wait(store, run, "finished")
    return run
