"""GLUE MRPC: a run from the Hub's files, and the real corpus where it is present."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from finetune.config import RunConfig
from finetune.jobs import service, train, workers
from finetune.runs import events, summary
from finetune.runs.store import RunStore
from tests.support.hub import LoopbackHub
from tests.support.training import work_in_this_process

README = b"""---
configs:
- config_name: mrpc
  data_files:
  - split: train
    path: train.csv
  - split: validation
    path: validation.csv
---
"""


def test_dataset_and_checkpoint_are_fetched_and_trained_on(
    hub: LoopbackHub, store: RunStore, toy_checkpoint: Path, toy_pairs_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The checkpoint under a renamed id."""
    files = {f"{name}.csv": (toy_pairs_folder / f"{name}.csv").read_bytes()
             for name in ("train", "validation")}  # fmt: skip
    hub.add_repo("nyu-mll/glue", "dataset", {"README.md": README, **files})
    hub.add_repo("toys/bert-toy", files=toy_checkpoint)
    hub.alias("bert-toy", "toys/bert-toy")
    run = store.create(
        RunConfig(dataset="glue/mrpc", checkpoint="bert-toy", max_length=32, max_steps=4)
    )
    work_in_this_process(monkeypatch)
    assert train.carry_out_run(run, lambda event: None) == 0
    ended = store.summary(run)
    assert ended.prepared is not None
    assert ended.prepared.train_examples == 64
    (batch,) = [event for event in run.tail()[0] if isinstance(event, events.FirstBatch)]
    assert ended.first_batch == batch
    assert set(batch.labels) <= set(ended.prepared.labels)
    fetched = [path for method, path, _ in hub.requests if method == "GET"]
    assert any("model.safetensors" in path or path.startswith("/lfs/") for path in fetched)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_epochs_of_the_bundled_checkpoint_learn_the_real_mrpc(
    glue: Path, hub: LoopbackHub, store: RunStore, processes: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("OMP_NUM_THREADS")  # of the toys
    hub.add_repo("nyu-mll/glue", "dataset", glue)
    run = service.start_run(store, RunConfig(dataset="glue/mrpc", num_train_epochs=2))
    worker = workers.worker_process(run)
    assert worker is not None
    processes.append(worker.pid)
    while (ended := service.run_summary(store, run)).status not in summary.ENDED:
        time.sleep(0.2)
    assert ended.status == "finished", ended.error
    assert ended.prepared is not None
    assert ended.prepared.validation_examples == 408
    assert ended.prepared.majority["accuracy"] == pytest.approx(279 / 408)
    assert ended.best is not None
    assert ended.best.metrics["accuracy"] >= 0.76
