"""ONNX from the page: a process of its own, a zip of what it made, and what is said if it fails."""

from __future__ import annotations

import io
import time
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from transformers import AutoTokenizer

from finetune.config import RunConfig
from finetune.errors import JobError, StoreError
from finetune.inference.scorer import Scorer
from finetune.jobs import export, export_jobs, workers
from finetune.runs import events
from finetune.runs.store import Run, RunStore
from tests.support import toys
from tests.support.toys import story


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    made = store.create(RunConfig(max_length=32))
    for event in story():
        made.append(event)
    toys.copy_model(toy_checkpoint, made.best)
    return made


@pytest.mark.long
def test_a_model_is_exported_in_a_process_of_its_own(
    store: RunStore, run: Run, processes: list[int], tmp_path: Path
) -> None:
    export_jobs.start_export(store, run, store.summary(run))
    worker = workers.worker_process(export_jobs.export_folder(run))
    assert worker is not None
    processes.append(worker.pid)
    export_jobs.start_export(store, run, store.summary(run))  # once, though asked for twice
    deadline = time.monotonic() + 120
    while (state := export_jobs.export_state(run, store.summary(run))).running:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert state.error == "", export_jobs.export_folder(run).log_tail()
    zipped = b"".join(export_jobs.export_zip(run, store.summary(run)))
    assert state.bytes > 10_000
    zipfile.ZipFile(io.BytesIO(zipped)).extractall(tmp_path)
    folder = tmp_path / run.id
    tokens = AutoTokenizer.from_pretrained(folder)("the cat", "a dog", return_tensors="np")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    given = {one.name: tokens[one.name].astype(np.int64) for one in session.get_inputs()}
    found = session.run(["logits"], given)[0]
    wanted = Scorer(run.best, 32, precision="fp32").scores(["the cat"], ["a dog"])
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    run.append(events.Saved(step=9))  # a newer model: the file is of another one
    assert export_jobs.export_state(run, store.summary(run)).file is None
    with pytest.raises(StoreError, match="no ONNX file"):
        export_jobs.export_zip(run, store.summary(run))


def test_a_failure_is_said(store: RunStore, run: Run) -> None:
    place = export_jobs.export_folder(run)
    place.folder.mkdir(parents=True)
    (run.best / "model.safetensors").write_bytes(b"damaged")
    assert export.main(["--folder", str(place.folder)]) == 1
    state = export_jobs.export_state(run, store.summary(run))
    assert not state.running
    assert state.error
    assert state.file is None


def test_one_that_died_is_said(store: RunStore, run: Run) -> None:
    assert export_jobs.export_state(run, store.summary(run)) == export_jobs.ExportState()
    place = export_jobs.export_folder(run)
    place.folder.mkdir(parents=True)
    place.append(events.PhaseStarted(phase="save", detail="loading PyTorch"))
    assert export_jobs.export_state(run, store.summary(run)).running  # its process is being started
    place.job_file.write_text('{"pid": 1, "born": "never"}')
    assert "without a word" in export_jobs.export_state(run, store.summary(run)).error


def test_what_cannot_be_exported_is_said_first(store: RunStore, run: Run) -> None:
    blank = store.create(RunConfig())
    with pytest.raises(JobError, match="still training"):
        export_jobs.start_export(store, blank, store.summary(blank))
    blank.append(events.Failed(error="x"))
    with pytest.raises(JobError, match="no model"):
        export_jobs.start_export(store, blank, store.summary(blank))
