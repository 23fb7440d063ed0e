"""A whole file on the page: what it says of rows that are not new, and what a reload finds again.

The handlers are called as Gradio calls them; what a job leaves behind is laid down by hand.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from finetune.config import RunConfig
from finetune.inference.file_request import PredictionRequest
from finetune.jobs.predict import PredictionJob, PredictionState
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.job_folder import hold_lock
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui import auth, form
from finetune.ui.tabs import predict_file
from finetune.ui.tabs.predict_file import FilePredictions
from tests.support.tabs import data_tab, predict_tab
from tests.ui.test_app import NOBODY, draw_train

SCORES = {"accuracy": [0.9, 0.85, 0.95], "f1": [0.8, 0.7, 0.9]}
APART = {"accuracy": [0.6, 0.4, 0.8], "f1": [0.5, 0.3, 0.7]}
REPORT = {
    "rows": 408, "errors": 0, "examples": [], "labels": ["no", "yes"], "positive": 1,
    "labelled": 408, "unknown_labels": 0, "scores": SCORES, "confusion": [[200, 4], [4, 200]],
    "trained_on": 312, "validated_on": 6, "seconds": 2.0,
    "not_trained_on": {"labelled": 96, "scores": APART, "confusion": [[40, 8], [8, 40]]},
}  # fmt: skip
TICK = gr.EventData(None, {"wait": "+abc"})


class Request:
    """What a browser sends, with its identity where the app is shared."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}


ADA: Any = Request()
BOB: Any = Request()


@pytest.fixture
def shared(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    for request in (ADA, BOB):
        token = auth.identities(store).issue("192.0.2.1")
        request.headers = {"cookie": f"{auth.COOKIE}={token}"}


def cells(html: str) -> list[list[str]]:
    """The texts of the tables' cells, row by row."""
    rows = re.findall("<tr.*?</tr>", html, re.DOTALL)
    columns = [re.findall(r"<t[dh].*?>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]
    return [[re.sub("<.*?>", "", cell) for cell in row] for row in columns]


def lay(store: RunStore, run: Run, file: str, ended: bool = True) -> PredictionJob:
    """A job as its process leaves it, or while it goes on."""
    job = PredictionJob(store.root / "batches" / secrets.token_urlsafe(15))
    job.folder.mkdir(parents=True)
    request = PredictionRequest(run.id, file, "sentence1", "sentence2", "label")
    job.describe_job("predict", store.visitor.name, asdict(request))
    (job.folder / "result.csv").write_text("sentence1,prediction\na,no\n")
    (job.folder / "head.json").write_text(json.dumps({"rows": [{"sentence1": "the first row"}]}))
    job.append(events.Progressed(done=7, total=408))
    if ended:
        (job.folder / "report.json").write_text(json.dumps(REPORT))
        job.append(events.Finished(step=0, seconds=2.0))
    else:
        hold_lock(job.lock_file)  # as its worker, to the end of the tests
    return job


def of(store: RunStore, request: Any) -> RunStore:
    return auth.visitor_store(store, request)


@pytest.fixture
def tab(store: RunStore) -> FilePredictions:
    return predict_tab(store).files


@pytest.fixture
def job(store: RunStore) -> PredictionJob:
    return lay(store, store.create(RunConfig(name="ours")), "pairs.csv")


def test_a_file_that_was_trained_on_is_not_scored_without_a_word(
    store: RunStore, job: PredictionJob
) -> None:
    state = PredictionState("finished", done=408, total=408, report=dict(REPORT))
    shown = predict_file.view(store, job, state)
    assert "312 of 408 rows were trained on: their scores say nothing of new pairs." in shown
    assert "6 of 408 rows are validation pairs of the run" in shown
    assert 'role="note"' in shown
    assert cells(shown[shown.index("batch-scores") :])[:6] == [
        ["", "all rows", "95% interval", "not trained on", "95% interval"],
        ["Accuracy", "0.900", "0.850 to 0.950", "0.600", "0.400 to 0.800"],
        ["F1", "0.800", "0.700 to 0.900", "0.500", "0.300 to 0.700"],
        ["", "no", "yes"],
        ["no", "200", "4"],
        ["yes", "4", "200"],
    ]
    assert "On 408 labelled rows; 96 of them were not trained on" in shown


RUNNING: dict[str, Any] = {"status": "running", "done": 20, "total": 408}


@pytest.mark.parametrize(
    ("state", "report", "words", "absent"),
    [
        # Too few new rows to be scored apart.
        ({"status": "finished"}, {"not_trained_on": {"labelled": 1200}, "validated_on": 0},
         "1,200 labelled rows were not trained on: too few to be scored apart.",
         "validation pairs"),
        # New rows only, and an old run of which that is unknown.
        ({"status": "finished"}, {"trained_on": 0, "validated_on": 0, "not_trained_on": None},
         "408 rows", "trained on"),
        ({"status": "finished"}, {"trained_on": None, "validated_on": None,
                                  "not_trained_on": None}, "408 rows", "trained on"),
        # While it goes on.
        (RUNNING, {"rows": 20, "trained_on": 5}, "5 of 20 rows were trained on", "Download"),
        (RUNNING, {"trained_on": None, "validated_on": None}, "20 of about 408 rows",
         "trained on"),
    ],
)  # fmt: skip
def test_what_is_said_of_rows_that_are_not_new(
    store: RunStore, job: PredictionJob, state: Any, report: dict[str, Any], words: str, absent: str
) -> None:
    values = {name: value for name, value in (REPORT | report).items() if value is not None}
    shown = predict_file.view(store, job, PredictionState(**state, report=values))
    assert words in shown
    assert absent not in shown


def test_markup_in_a_file_is_shown(store: RunStore) -> None:
    job = lay(store, store.create(RunConfig()), "<b>.csv")
    report = REPORT | {"labels": ["<i>", "yes"], "errors": 2, "examples": ["<u>"]}
    rows = [{"<s>": "<script>", "long": "x" * 999, "seen": True, "none": None}]
    shown = predict_file.view(store, job, PredictionState("finished", head=rows, report=report))
    for tag in ("<b>.csv", "<i>", "<u>", "<s>", "<script>"):
        assert tag not in shown
        assert tag.replace("<", "&lt;").replace(">", "&gt;") in shown
    assert cells(shown)[-1] == ["&lt;script&gt;", "x" * 200 + "\u2026", "true", ""]


def test_a_reload_finds_the_newest_file_again(store: RunStore, tab: FilePredictions) -> None:
    assert tab.on_open(NOBODY, "") == gr.skip()
    run = store.create(RunConfig(name="ours"))
    old = lay(store, run, "old.csv")
    os.utime(old.folder / "job.json", (time.time() - 60,) * 2)
    going = lay(store, run, "long.csv", ended=False)
    opened = tab.on_open(NOBODY, "")
    assert (opened[tab.job_id], opened[tab.message]) == (going.id, "")
    assert "7 of about 408 rows" in opened[tab.view]
    assert opened[tab.cancel]["interactive"]
    assert opened[tab.poller].startswith("+")  # the page goes on asking
    assert opened[tab.fold]["open"]
    assert tab.on_open(NOBODY, "x") == gr.skip()  # a page that shows one already is left alone
    going.append(events.Stopped(step=0, seconds=1.0))
    last = tab.on_tick(NOBODY, going.id, TICK)
    assert "cancelled" in last[tab.view]
    assert (last[tab.cancel]["interactive"], last[tab.poller]) == (False, "-abc")
    store.delete(run)
    os.utime(going.folder / "job.json", (time.time() - 120,) * 2)
    shown = tab.on_open(NOBODY, "")[tab.view]
    for text in ("old.csv", "a deleted run", "312 of 408 rows", "batch-scores", "the first row"):
        assert text in shown
    assert f'href="finetune/batches/{old.id}/result"' in shown


@pytest.mark.parametrize("job_id", ["../x", "", None, 7, {}, "x" * 10**6])
def test_what_is_no_job_is_not_shown(tab: FilePredictions, job_id: Any) -> None:
    shown = tab.on_tick(NOBODY, job_id, TICK)
    assert set(shown) == {tab.view, tab.poller}
    assert "no such prediction" in shown[tab.view]


def test_anothers_results_are_not_shown(
    store: RunStore, tab: FilePredictions, shared: None
) -> None:
    hers = of(store, ADA)
    job = lay(hers, hers.create(RunConfig(name="hers-alone")), "hers.csv", ended=False)
    assert "hers.csv" in tab.on_open(ADA, "")[tab.view]
    for other in (BOB, NOBODY):
        assert tab.on_open(other, "") == tab.on_open(other, job.id) == gr.skip()
        for shown in (tab.on_tick(other, job.id, TICK)[tab.view],
                      tab.on_cancel(other, job.id)[tab.message]):  # fmt: skip
            assert "no such prediction" in shown
            assert "hers" not in shown
    # Nor is the model's name told to who has the file, but not the run.
    lay(of(store, BOB), hers.runs()[0], "his.csv")
    shown = tab.on_open(BOB, "")[tab.view]
    assert "his.csv" in shown
    assert "hers-alone" not in shown


def bring(store: RunStore, folder: Path, name: str, age: float = 0.0) -> str:
    """Upload a file; its name as a configuration has it."""
    path = folder / name
    path.write_text(f"sentence1,sentence2,label\n{name},b,1\nc,d,0\n")
    dataset = store.uploads.add({"train": path})
    then = time.time() - age
    os.utime(store.root / "uploads" / dataset.removeprefix("upload/"), (then, then))
    return dataset


def offers(choices: list[tuple[str, str]]) -> dict[str, str]:
    return {name: label for label, name in choices if name.startswith("upload/")}


def test_what_was_uploaded_is_offered_after_a_reload(store: RunStore, tmp_path: Path) -> None:
    tab = draw_train(store)
    choosers = (tab.form["dataset"], tab.filled[-1])
    old = bring(store, tmp_path, "old.csv", age=3600)
    new = bring(store, tmp_path, "new.csv", age=60)
    opened = tab.on_restore(NOBODY, None)
    assert set(opened) == set(choosers)
    for update in opened.values():
        assert "value" not in update
        offered = offers(update["choices"])
        assert list(offered) == [new, old]
        assert offered[new].startswith("Your files: new.csv \u00b7 44 B \u00b7 20")
    assert bring(store, tmp_path, "old.csv") == old  # brought again: the newest
    assert list(offers(tab.on_restore(NOBODY, None)[choosers[0]]["choices"])) == [old, new]


def test_at_most_ten_uploads_are_offered_and_the_chosen_one(
    store: RunStore, tmp_path: Path
) -> None:
    brought = [bring(store, tmp_path, f"{n}.csv", age=100 - n) for n in range(12)]
    assert list(offers(form.datasets(store))) == brought[:1:-1]
    assert list(offers(form.datasets(store, brought[0]))) == [*brought[:1:-1], brought[0]]
    folder = store.root / "uploads" / brought[-1].removeprefix("upload/")
    (folder / "upload.json").unlink()  # it has just gone
    assert brought[-1] not in offers(form.datasets(store))


def test_anothers_uploads_are_not_offered(store: RunStore, shared: None, tmp_path: Path) -> None:
    name = bring(of(store, ADA), tmp_path, "hers.csv")
    train, data = draw_train(store), data_tab(store)
    pairs = train.filled[-1]

    def offered(who: Any) -> list[str]:
        return list(offers(train.on_restore(who, None)[pairs]["choices"]))

    assert offered(ADA) == [name]
    for other in (BOB, NOBODY):
        assert offered(other) == []
        kept = RunConfig(dataset=name).to_dict()
        assert "hers" not in str(train.on_restore(other, kept))
    his = bring(of(store, BOB), tmp_path, "his.csv")
    assert offered(BOB) == [his]
    sent = data.on_upload(BOB, str(tmp_path / "hers.csv"), None, None)  # which he did not bring
    assert set(sent) == {data.message}
    assert "not here any more" in sent[data.message]
    signed_in = store.for_visitor(Visitor(("user:ada", *of(store, ADA).visitor.names)))
    assert name in offers(form.datasets(signed_in))
