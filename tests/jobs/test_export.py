"""ONNX from the page: made in a process of its own, downloaded as a zip; failures are said."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from finetune.config import RunConfig
from finetune.errors import JobError, StoreError
from finetune.inference import decision_rule
from finetune.jobs.export import ExportJob
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder
from finetune.runs.store import RunStore
from finetune.tasks.base import SureRule
from tests.support import toys
from tests.support.waiting import until


@pytest.mark.long
def test_a_model_is_exported_in_a_process_of_its_own(store: RunStore, toy_checkpoint: Path) -> None:
    run = toys.finished_run(store, toy_checkpoint)
    ExportJob.of(run).start(store)
    assert ExportJob.of(run).state().running
    ExportJob.of(run).start(store)  # once, though asked for twice
    until(lambda: not ExportJob.of(run).state().running)
    state = ExportJob.of(run).state()
    assert state.error == ""
    assert state.size > 10_000
    zipped = b"".join(ExportJob.of(run).zipped())
    names = zipfile.ZipFile(io.BytesIO(zipped)).namelist()
    assert {f"{run.id}/model.onnx", f"{run.id}/tokenizer.json"} <= set(names)
    decision_rule.write_rule(run.best, sure=SureRule(0.02, 0.95, 0.9))  # the file has no such bound
    assert ExportJob.of(run).state().file is None
    decision_rule.write_rule(run.best, sure=None)
    assert ExportJob.of(run).state().file is not None
    run.append(events.Saved(step=9))  # a newer model: the file is of another one
    assert ExportJob.of(run).state().file is None
    with pytest.raises(StoreError, match="no ONNX file"):
        ExportJob.of(run).zipped()


def test_what_failed_died_or_has_no_model_is_said(store: RunStore, toy_checkpoint: Path) -> None:
    run = toys.finished_run(store, toy_checkpoint)
    assert ExportJob.of(run).state().status == "none"
    job = JobFolder(run.folder / "exports" / "onnx")
    job.folder.mkdir(parents=True)
    job.append(events.PhaseStarted(phase=Phase.EXPORT))
    assert "ended unexpectedly" in ExportJob.of(run).state().error
    (run.best / "model.safetensors").write_bytes(b"damaged")
    assert ExportJob(job.folder).carry_out() == 1
    state = ExportJob.of(run).state()
    assert (state.status, state.file) == ("failed", None)
    assert state.error
    blank = store.create(RunConfig())
    with pytest.raises(JobError, match="no model"):
        ExportJob.of(blank).start(store)
