"""Whether a model still holds on a predicted file, on the page: read, labelled, measured."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from dataclasses import asdict
from pathlib import Path

import gradio as gr
import pytest

from finetune import messages
from finetune.data.sources import LABELS
from finetune.errors import DataError
from finetune.evaluation.file_shift import Monitoring
from finetune.inference.file_request import PredictionRequest
from finetune.jobs import predict
from finetune.jobs.predict import PredictionJob, PredictionState
from finetune.runs import events
from finetune.runs.store import RunStore
from finetune.ui.tabs.predict_file import TO_LABEL, PredictedRows, blank, monitoring_view
from tests.support import monitored
from tests.support.judging import write_csv
from tests.support.tabs import NOBODY


def monitored_job(store: RunStore, checkpoint: Path, folder: Path) -> PredictionJob:
    """A file predicted in this process, beside a column of another's answers."""
    run = monitored.monitored_run(store, checkpoint)
    pairs = [(*texts, LABELS[label], LABELS[0]) for *texts, label in monitored.rows(120, 2)]
    pairs[0] = (*pairs[0][:3], LABELS[1])
    path = write_csv(folder / "new.csv", [(*monitored.HEAD, "gpt"), *pairs])
    request = PredictionRequest(run.id, "new.csv", "sentence1", "sentence2", "label")
    job = PredictionJob(store.root / "batches" / secrets.token_urlsafe(15))
    job.folder.mkdir(parents=True)
    job.describe_job("predict", store.visitor.name, asdict(request))
    shutil.copy(path, job.folder / "input.csv")
    job.work()
    job.append(events.Finished(step=0, seconds=2.0))
    return job


def test_a_file_tells_if_the_model_holds_and_labels_measure_it(
    store: RunStore, toy_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the job does
    job = monitored_job(store, toy_checkpoint, tmp_path)
    table = PredictedRows(store)
    with gr.Blocks():
        table.draw(gr.State())
    shown = table.shown(job, job.state())
    plain = " ".join(re.sub("<.*?>", " ", shown[table.monitoring]).split())
    for text in (
        "Does the model still hold on this file?", "120 rows beside 200 validation pairs",
        "right answers", "label at least 30 of 100 random rows (0 are labelled)",
        "Answers in the column gpt", "equal answers", "On 120 labelled rows",
    ):  # fmt: skip
        assert text in plain
    choices = [value for _, value in shown[table.which]["choices"]]
    assert {TO_LABEL, "differs:gpt"} <= {*choices}
    rows = table.on_filter(NOBODY, job.id, blank(), TO_LABEL, "")[table.table]
    assert rows.count('<option value="" selected>') == 25  # the model's answer is not shown
    for row in job.state().to_label[:30]:
        event = {"do": "label", "what": str(row["row"]), "label": LABELS[0], "run": job.id}
        updates = table.on_table(NOBODY, gr.EventData(None, event), job.id, blank(), TO_LABEL, "")
    plain = re.sub("<.*?>", " ", updates[table.monitoring])
    assert "Measured on 30 of 100 random rows" in plain
    assert updates[table.table].count(f'<option value="{LABELS[0]}" selected>') == 25
    with pytest.raises(DataError, match="no such row"):
        predict.label_row(job, 10**6, LABELS[0])
    predict.label_row(job, row["row"], "")
    judged = predict.monitored(job)
    assert isinstance(judged, Monitoring)
    assert judged.measured is None


def test_what_cannot_be_judged_is_told(store: RunStore, tmp_path: Path) -> None:
    job = PredictionJob(tmp_path)
    table = PredictedRows(store)
    with gr.Blocks():
        table.draw(gr.State())
    assert predict.monitored(job) is None
    assert "still hold" not in monitoring_view(job, PredictionState("finished"), 0)
    error = DataError("{n} rows of the file are new.", "Bring more.", n=4)
    told = {"reason": messages.encode(error.fact, True), "remedy": error.remedy}
    (tmp_path / "monitoring.json").write_text(json.dumps(told))
    shown = monitoring_view(job, PredictionState("finished"), 0)
    assert "4 rows of the file are new. Bring more." in shown
