"""GLUE MRPC: from the Hub's layout over HTTP, and the real corpus where it is present."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finetune.config import RunConfig
from finetune.data import sources, splits
from finetune.errors import DataError
from finetune.jobs import service, train, workers
from finetune.runs import summary
from finetune.runs.store import RunStore
from tests.support import toys
from tests.support.hub import LoopbackHub
from tests.support.training import work_in_this_process

README = b"""---
configs:
- config_name: mrpc
  data_files:
  - split: train
    path: mrpc/train-*
  - split: validation
    path: mrpc/validation-*
  - split: test
    path: mrpc/test-*
- config_name: rte
  data_files:
  - split: train
    path: rte/train-*
---
"""
FEATURES = (
    b'{"info": {"features": {"sentence1": {"dtype": "string", "_type": "Value"}, "sentence2": '
    b'{"dtype": "string", "_type": "Value"}, "label": {"names": ["not_equivalent", "equivalent"],'
    b' "_type": "ClassLabel"}, "idx": {"dtype": "int32", "_type": "Value"}}}}'
)


def parquet(count: int, seed: int) -> bytes:
    """Toy rows in the layout of the Hub's MRPC files."""
    first, second, labels = zip(*toys.rows(count, seed), strict=True)
    columns = {"sentence1": first, "sentence2": second, "label": labels, "idx": range(count)}
    table = pa.table({name: list(column) for name, column in columns.items()})
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({b"huggingface": FEATURES}), buffer)
    return buffer.getvalue()


@pytest.fixture
def served(hub: LoopbackHub) -> LoopbackHub:
    name = "mrpc/{}-00000-of-00001.parquet"
    splits = {"train": 48, "validation": 16, "test": 8}
    files = {name.format(s): parquet(n, seed) for seed, (s, n) in enumerate(splits.items())}
    rte = {"rte/train-00000-of-00001.parquet": parquet(5, 9)}
    hub.add_repo("nyu-mll/glue", "dataset", {"README.md": README, **files, **rte})
    return hub


def test_it_is_loaded_from_the_hub_in_our_shape(served: LoopbackHub, tmp_path: Path) -> None:
    pairs = splits.load_pairs(RunConfig(dataset="glue/mrpc"), tmp_path)
    assert {name: len(split) for name, split in pairs.splits.items()} == {
        "train": 48,
        "validation": 16,
        "test": 8,
    }
    assert pairs.labels == sources.LABELS
    assert pairs.splits["train"].column_names == ["sentence1", "sentence2", "label"]
    first = pairs.splits["train"][0]
    assert (first["sentence1"], first["sentence2"], first["label"]) == toys.rows(48, 0)[0]


def test_a_hub_without_it_is_said(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", Path("/nonexistent"))
    with pytest.raises(DataError, match="no dataset 'nyu-mll/glue' on the Hub"):
        splits.load_pairs(RunConfig(dataset="glue/mrpc"), tmp_path)


def test_dataset_and_checkpoint_are_both_fetched(
    served: LoopbackHub, store: RunStore, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a renamed id."""
    served.add_repo("toys/bert-toy", files=toy_checkpoint)
    served.alias("bert-toy", "toys/bert-toy")
    run = store.create(
        RunConfig(dataset="glue/mrpc", checkpoint="bert-toy", max_length=32, max_steps=4)
    )
    work_in_this_process(monkeypatch)
    assert train.carry_out_run(run, lambda event: None) == 0
    ended = store.summary(run)
    assert ended.prepared is not None
    assert ended.prepared.train_examples == 48
    fetched = [path for method, path, _ in served.requests if method == "GET"]
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
