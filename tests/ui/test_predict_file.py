"""A whole file on the page: what it says of rows that are not new, and what a reload finds again.

The handlers are called as Gradio calls them; what a job leaves behind is laid down by hand.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from finetune.config import RunConfig
from finetune.inference.file_request import PredictionRequest
from finetune.jobs import predict
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


class Request:
    """What a browser sends, with its identity where the app is shared."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}


ADA: Any = Request()
BOB: Any = Request()


@pytest.fixture
def shared(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    for one in (ADA, BOB):
        token = auth.identities(store).issue("192.0.2.1")
        one.headers = {"cookie": f"{auth.COOKIE}={token}"}


class Cells(HTMLParser):
    """The texts of a table's cells, row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data


def lay(
    store: RunStore, run: Run, file: str, age: float = 0.0, ended: bool = True, **report: Any
) -> PredictionJob:
    """A job as its process leaves it, or while it goes on."""
    made = PredictionJob(store.root / "batches" / secrets.token_urlsafe(15))
    made.folder.mkdir(parents=True)
    request = PredictionRequest(run.id, file, "sentence1", "sentence2", "label")
    made.describe_job("predict", store.visitor.name, asdict(request))
    then = time.time() - age
    os.utime(made.folder / "job.json", (then, then))
    (made.folder / "result.csv").write_text("sentence1,prediction\na,no\n")
    (made.folder / "head.json").write_text(json.dumps({"rows": [{"sentence1": "the first row"}]}))
    made.append(events.Progressed(done=7, total=408))
    if not ended:
        hold_lock(made.lock_file)  # as its worker, to the end of the tests
    if ended:
        (made.folder / "report.json").write_text(json.dumps(REPORT | report))
        made.append(events.Finished(step=0, seconds=2.0))
    return made


def of(store: RunStore, request: Any) -> RunStore:
    return auth.visitor_store(store, request)


@pytest.fixture
def tab(store: RunStore) -> FilePredictions:
    return predict_tab(store).files


def click(job_id: Any) -> gr.EventData:
    """A click on one of those kept."""
    return gr.EventData(None, {"what": job_id})


TICK = gr.EventData(None, {"wait": "+abc"})


# -- what was trained on -------------------------------------------------------------------------


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
    table = Cells(shown[shown.index("batch-scores") :]).rows
    assert table[0] == ["", "all rows", "95% interval", "not trained on", "95% interval"]
    assert table[1] == ["Accuracy", "0.900", "0.850 to 0.950", "0.600", "0.400 to 0.800"]
    assert table[2] == ["F1", "0.800", "0.700 to 0.900", "0.500", "0.300 to 0.700"]
    assert table[3:6] == [["", "no", "yes"], ["no", "200", "4"], ["yes", "4", "200"]]
    assert "On 408 labelled rows; 96 of them were not trained on" in shown


def test_too_few_new_rows_are_said_to_be_too_few(store: RunStore, job: PredictionJob) -> None:
    report = REPORT | {"not_trained_on": {"labelled": 1200}, "validated_on": 0}
    shown = predict_file.view(store, job, PredictionState("finished", report=report))
    assert "1,200 labelled rows were not trained on: too few to be scored apart." in shown
    assert "validation pairs" not in shown
    assert Cells(shown[shown.index("batch-scores") :]).rows[0] == ["", "score", "95% interval"]


@pytest.mark.parametrize("known", [{}, {"trained_on": 0, "validated_on": 0}])
def test_of_new_rows_and_of_an_old_run_nothing_is_said(
    store: RunStore, job: PredictionJob, known: dict[str, int]
) -> None:
    names = ("trained_on", "validated_on", "not_trained_on")
    report = {name: value for name, value in REPORT.items() if name not in names}
    shown = predict_file.view(store, job, PredictionState("finished", report=report | known))
    assert "trained on" not in shown
    assert "validation" not in shown


def test_it_is_said_while_the_file_is_predicted(store: RunStore, job: PredictionJob) -> None:
    report = {"rows": 20, "trained_on": 5, "validated_on": 0}
    shown = predict_file.view(
        store, job, PredictionState("running", done=20, total=408, report=report)
    )
    assert "20 of about 408 rows" in shown
    assert "5 of 20 rows were trained on" in shown
    assert "trained on" not in predict_file.view(
        store, job, PredictionState("running", done=20, total=408)
    )


def test_markup_in_a_file_is_shown(store: RunStore) -> None:
    job = lay(store, store.create(RunConfig()), "<b>.csv")
    report = REPORT | {"labels": ["<i>", "yes"], "errors": 2, "examples": ["<u>"]}
    rows = [{"<s>": "<script>", "long": "x" * 999, "seen": True, "none": None}]
    shown = predict_file.view(store, job, PredictionState("finished", head=rows, report=report))
    for tag in ("<b>.csv", "<i>", "<u>", "<s>", "<script>"):
        assert tag not in shown
        assert tag.replace("<", "&lt;").replace(">", "&gt;") in shown
    assert Cells(shown).rows[-1] == ["<script>", "x" * 200 + "\u2026", "true", ""]


# -- after a reload ------------------------------------------------------------------------------


def test_what_is_kept_is_listed_the_newest_first(store: RunStore, tab: FilePredictions) -> None:
    run = store.create(RunConfig(name="ours"))
    old = lay(store, run, "old.csv", age=7200, rows=12)
    new = lay(store, run, "<b>.csv", age=3600)
    listed = tab.on_open(NOBODY, "")[tab.kept]
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(new.created))
    assert Cells(listed).rows[1:] == [
        ["<b>.csv", "ours", "408", when, "finished", "Download"],
        ["old.csv", "ours", "12", Cells(listed).rows[2][3], "finished", "Download"],
    ]
    assert f'href="finetune/batches/{old.id}/result"' in listed
    assert f'data-what="{new.id}"' in listed
    store.delete(run)
    assert Cells(predict_file.kept(store)).rows[1][1] == "a deleted run"
    (old.folder / "job.json").write_text('{"owner": "browser:x"}')
    assert "old.csv" not in predict_file.kept(store)
    assert predict_file.kept(RunStore(store.root / "empty")) == ""


def test_a_kept_result_is_shown_again(tab: FilePredictions, job: PredictionJob) -> None:
    shown = tab.on_kept(NOBODY, click(job.id))
    assert (shown[tab.job_id], shown[tab.message]) == (job.id, "")
    for text in ("pairs.csv", "ours", "312 of 408 rows", "batch-scores", "the first row"):
        assert text in shown[tab.view]
    assert shown[tab.cancel]["interactive"] is False


@pytest.mark.parametrize("what", ["../x", "", None, 7, {}, "x" * 10**6])
def test_what_is_no_job_is_not_shown(tab: FilePredictions, what: Any) -> None:
    shown = tab.on_kept(NOBODY, click(what))
    assert set(shown) == {tab.message}
    assert "no such prediction" in shown[tab.message]


def test_after_a_reload_one_that_goes_on_has_its_progress_and_its_cancel(
    store: RunStore, tab: FilePredictions, job: PredictionJob
) -> None:
    going = lay(store, store.create(RunConfig(name="ours")), "long.csv", ended=False)
    opened = tab.on_open(NOBODY, "")
    assert (opened[tab.job_id], opened[tab.message]) == (going.id, "")
    assert "7 of about 408 rows" in opened[tab.view]
    assert opened[tab.cancel]["interactive"]
    assert opened[tab.poller].startswith("+")  # the page goes on asking
    assert opened[tab.fold]["open"]
    assert Cells(opened[tab.kept]).rows[1][4] == "running"
    # A page that shows one already is left alone.
    assert set(tab.on_open(NOBODY, "x")) == {tab.kept}
    going.append(events.Stopped(step=0, seconds=1.0))
    last = tab.on_tick(NOBODY, going.id, TICK)
    assert "cancelled" in last[tab.view]
    assert (last[tab.cancel]["interactive"], last[tab.poller]) == (False, "-abc")
    assert Cells(last[tab.kept]).rows[1][4] == "cancelled"
    assert set(tab.on_open(NOBODY, "")) == {tab.kept}


def test_anothers_results_are_neither_listed_nor_shown(
    store: RunStore, tab: FilePredictions, shared: None
) -> None:
    hers = of(store, ADA)
    made = lay(hers, hers.create(RunConfig(name="hers-alone")), "hers.csv", ended=False)
    assert "hers.csv" in tab.on_open(ADA, "")[tab.kept]
    for other in (BOB, NOBODY):
        assert tab.on_open(other, "") == {tab.kept: ""}
        assert tab.on_open(other, made.id) == {tab.kept: ""}
        shown = tab.on_kept(other, click(made.id))
        assert "no such prediction" in shown[tab.message]
        assert "hers" not in str(shown)
        assert "no such prediction" in tab.on_tick(other, made.id, TICK)[tab.view]
    # Nor is the model's name told to who has the file, but not the run.
    borrowed = lay(of(store, BOB), hers.runs()[0], "his.csv")
    assert "hers-alone" not in predict_file.kept(of(store, BOB))
    assert borrowed.id in predict_file.kept(of(store, BOB))


def test_of_each_visitors_the_oldest_make_room(store: RunStore) -> None:
    run = store.create(RunConfig())
    for n in range(predict.KEPT + 2):
        lay(store, run, f"{n}.csv", age=100 - n)
    files = [row[0] for row in Cells(predict_file.kept(store)).rows[1:]]
    newest = predict.KEPT + 1
    assert files == [f"{newest - n}.csv" for n in range(predict.KEPT)]


# -- uploads -------------------------------------------------------------------------------------


def bring(store: RunStore, folder: Path, name: str, age: float = 0.0) -> str:
    path = folder / name
    path.write_text(f"sentence1,sentence2,label\n{name},b,1\nc,d,0\n")
    made = store.uploads.add({"train": path})
    then = time.time() - age
    os.utime(store.root / "uploads" / made.removeprefix("upload/"), (then, then))
    return made


def offers(update: Any) -> dict[str, str]:
    return {name: label for label, name in update["choices"] if name.startswith("upload/")}


def test_what_was_uploaded_is_offered_after_a_reload(store: RunStore, tmp_path: Path) -> None:
    tab = draw_train(store)
    choosers = (tab.form["dataset"], tab.filled[-1])
    old = bring(store, tmp_path, "old.csv", age=3600)
    new = bring(store, tmp_path, "new.csv", age=60)
    opened = tab.on_restore(NOBODY, None)
    assert set(opened) == set(choosers)
    for update in opened.values():
        assert "value" not in update
        found = offers(update)
        assert list(found) == [new, old]
        folder = store.root / "uploads" / new.removeprefix("upload/")
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(folder.stat().st_mtime))
        assert found[new] == f"Your files: new.csv \u00b7 44 B \u00b7 {when}"
    assert bring(store, tmp_path, "old.csv") == old  # brought again: the newest
    assert list(offers(tab.on_restore(NOBODY, None)[choosers[0]])) == [old, new]


def test_at_most_ten_uploads_are_offered_and_the_chosen_one(
    store: RunStore, tmp_path: Path
) -> None:
    brought = [bring(store, tmp_path, f"{n}.csv", age=100 - n) for n in range(12)]
    assert list(offers({"choices": form.datasets(store)})) == brought[:1:-1]
    chosen = {"choices": form.datasets(store, brought[0])}
    assert list(offers(chosen)) == [*brought[:1:-1], brought[0]]
    assert form.datasets() == form.datasets(RunStore(tmp_path / "none"))


def test_an_upload_that_has_just_gone_is_not_offered(store: RunStore, tmp_path: Path) -> None:
    name = bring(store, tmp_path, "a.csv")
    (store.root / "uploads" / name.removeprefix("upload/") / "upload.json").unlink()
    assert form.datasets(store) == form.datasets()


def test_anothers_uploads_are_not_offered(store: RunStore, shared: None, tmp_path: Path) -> None:
    name = bring(of(store, ADA), tmp_path, "hers.csv")
    tabs = draw_train(store), data_tab(store)
    pairs = tabs[0].filled[-1]
    assert list(offers(tabs[0].on_restore(ADA, None)[pairs])) == [name]
    for other in (BOB, NOBODY):
        assert list(offers(tabs[0].on_restore(other, None)[pairs])) == []
        kept = RunConfig(dataset=name).to_dict()
        assert "hers" not in str(tabs[0].on_restore(other, kept))
    his = bring(of(store, BOB), tmp_path, "his.csv")
    assert list(offers(tabs[0].on_restore(BOB, None)[pairs])) == [his]
    sent = tabs[1].on_upload(BOB, str(tmp_path / "hers.csv"), None, None)  # which he did not bring
    assert set(sent) == {tabs[1].message}
    assert "not here any more" in sent[tabs[1].message]
    signed_in = store.for_visitor(Visitor(("user:ada", *of(store, ADA).visitor.names)))
    assert name in offers({"choices": form.datasets(signed_in)})
