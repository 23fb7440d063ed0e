"""ONNX from the page: made in a process of its own, downloaded as a zip; failures are said."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from finetune.config import RunConfig
from finetune.errors import JobError, StoreError
from finetune.jobs import export
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder
from finetune.runs.store import RunStore
from tests.jobs.test_service import until
from tests.support import toys


@pytest.mark.long
def test_a_model_is_exported_in_a_process_of_its_own(store: RunStore, toy_checkpoint: Path) -> None:
    run = toys.finished_run(store, toy_checkpoint)
    export.start_export(store, run, run.state())
    assert export.export_state(run, run.state()).running
    export.start_export(store, run, run.state())  # once, though asked for twice
    until(lambda: not export.export_state(run, run.state()).running)
    state = export.export_state(run, run.state())
    assert state.error == ""
    assert state.size > 10_000
    zipped = b"".join(export.export_zip(run, run.state()))
    names = zipfile.ZipFile(io.BytesIO(zipped)).namelist()
    assert {f"{run.id}/model.onnx", f"{run.id}/tokenizer.json"} <= set(names)
    run.append(events.Saved(step=9))  # a newer model: the file is of another one
    assert export.export_state(run, run.state()).file is None
    with pytest.raises(StoreError, match="no ONNX file"):
        export.export_zip(run, run.state())


def test_what_failed_died_or_has_no_model_is_said(store: RunStore, toy_checkpoint: Path) -> None:
    run = toys.finished_run(store, toy_checkpoint)
    assert export.export_state(run, run.state()).status == "none"
    job = JobFolder(run.folder / "exports" / "onnx")
    job.folder.mkdir(parents=True)
    job.append(events.PhaseStarted(phase=Phase.EXPORT))
    assert "ended unexpectedly" in export.export_state(run, run.state()).error
    (run.best / "model.safetensors").write_bytes(b"damaged")
    assert export.export_job(job) == 1
    state = export.export_state(run, run.state())
    assert (state.status, state.file) == ("failed", None)
    assert state.error
    blank = store.create(RunConfig())
    with pytest.raises(JobError, match="no model"):
        export.start_export(store, blank, blank.state())
