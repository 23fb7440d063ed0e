"""Fixtures for more than one test module. No test reaches an outside host."""

import contextlib
import dataclasses
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.support.hub import LoopbackHub

gc.set_threshold(100_000)  # as the commands have it
# Before any Hugging Face library is imported: they read these once. Every test, and every
# process a test starts, sees this Hub and no other.
HUB = LoopbackHub()
HUB.__enter__()
os.environ |= HUB.environment(Path(tempfile.mkdtemp(prefix="finetune-tests-")))
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_XET"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Toys are faster on one thread than on two that wait for each other, the more so with other tests
# beside them. Read when torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "SPACE_ID", "SYSTEM"):
    os.environ.pop(name, None)

import psutil
import pytest

from finetune import config
from finetune.config import RunConfig
from finetune.data.sources import LABELS
from finetune.jobs import scheduler, workers
from finetune.runs.store import RunStore
from finetune.tasks.base import Target
from tests.support import toy_runs, toys
from tests.support.hub import TOKEN


@pytest.fixture
def hub():
    """The loopback Hub in its initial state, with one user who may write."""
    HUB.add_user(TOKEN, "ada", orgs=("lovelace",))
    yield HUB
    HUB.reset()


def pytest_xdist_auto_num_workers():
    """One more than processors: tests wait for the processes that they start."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(config, items):
    """Begin the long tests with those of an app or workers, which mostly take longest."""
    whole = {"ada", "app", "cluster", "kills", "processes", "server", "visit", "whole"}
    if config.option.markexpr == "long":
        items.sort(key=lambda item: whole.isdisjoint(item.fixturenames))


def pytest_collection_finish():
    """Spare every later collection of garbage the millions of objects that imports made."""
    gc.freeze()


def pytest_sessionfinish():
    HUB.__exit__()
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)


@pytest.fixture(autouse=True)
def own_accelerator():
    """Reset Accelerate, which keeps the first precision for as long as its process lives."""
    yield
    if (state := sys.modules.get("accelerate.state")) is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(autouse=True)
def own_environment():
    """Assert that a test leaves these variables as they were; a changed one would break other
    tests."""
    names = ("HF_ENDPOINT", "HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    before = {name: os.environ.get(name) for name in names}
    yield
    assert {name: os.environ.get(name) for name in names} == before


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


@pytest.fixture
def adopt():
    """Make this process the worker of a run for the rest of the test."""
    with contextlib.ExitStack() as held:
        yield lambda run: held.enter_context(workers.worker_lock(run))


@pytest.fixture
def nothing_begins(monkeypatch):
    monkeypatch.setattr(scheduler, "dispatch_queue", lambda store: None)


@pytest.fixture(scope="session")
def toy_checkpoint(tmp_path_factory):
    return toys.write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "toy")


@pytest.fixture(scope="session")
def still_checkpoint(tmp_path_factory):
    """The toy checkpoint without dropout: two processes would draw different masks."""
    folder = tmp_path_factory.mktemp("checkpoint") / "still"
    return toys.write_checkpoint(folder, dropout=0.0)


@pytest.fixture(scope="session")
def toy_pairs_folder(tmp_path_factory):
    return toys.write_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture
def toy_pairs(toy_pairs_folder):
    """Pairs with the toy checkpoint's classes, so that training begins with its own output
    layer."""
    return dataclasses.replace(toys.load(toy_pairs_folder), target=Target(tuple(LABELS)))


@pytest.fixture
def toy_config(toy_checkpoint):
    course = RunConfig(**config.PRESETS["As the course"])
    return course.changed(
        checkpoint=str(toy_checkpoint), learning_rate=1e-3, num_train_epochs=2, max_length=32,
        logging_steps=1, seed=7,
    )  # fmt: skip


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Runs that were trained once for all tests, and all processes that run them."""
    own = tmp_path_factory.getbasetemp()
    return toy_runs.shared(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


@pytest.fixture(scope="session")
def chromium():
    """The system's Chromium; on CI a missing one is a failure, not a skip."""
    from tests.support.browser import find_chromium

    path = find_chromium()
    if path is None:
        report = pytest.fail if os.environ.get("CI") else pytest.skip
        report("no chromium on the PATH (Debian: apt-get install chromium)")
    return path


@pytest.fixture
def processes():
    """Processes that a test started, ended after it. A process that now has the pid of an ended one
    is spared."""
    started = []
    yield started
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
