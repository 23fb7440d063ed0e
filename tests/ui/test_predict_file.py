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
import openpyxl  # type: ignore[import-untyped]
import pytest

from finetune.config import RunConfig
from finetune.inference.file_request import NONE, PredictionRequest
from finetune.inference.result_files import ShownRow
from finetune.jobs import predict
from finetune.jobs.predict import PredictionJob, PredictionState
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.job_folder import hold_lock
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui import auth, form
from finetune.ui.tabs import predict_file
from finetune.ui.tabs.predict_file import (
    ALL,
    CORRECTED,
    UNSURE_ONLY,
    FilePredictions,
    PredictedRows,
    blank,
)
from tests.support import toys
from tests.support.tabs import NOBODY, asks, data_tab, draw_train, predict_tab

SCORES = {"accuracy": [0.9, 0.85, 0.95], "f1": [0.8, 0.7, 0.9]}
NEW_SCORES = {"accuracy": [0.6, 0.4, 0.8], "f1": [0.5, 0.3, 0.7]}
REPORT = {
    "rows": 408, "errors": 0, "examples": [], "labels": ["no", "yes"], "choices": ["no", "yes"],
    "labelled": 408, "unknown_labels": 0, "scores": SCORES, "confusion": [[200, 4], [4, 200]],
    "trained_on": 312, "validated_on": 6, "seconds": 2.0,
    "answers": {"no": 102, "yes": 306}, "unsure": 31,
    "not_trained_on": {"labelled": 96, "scores": NEW_SCORES, "confusion": [[40, 8], [8, 40]]},
}  # fmt: skip
ANSWERS = {"prediction": "no"}, {"prediction": "yes"}
INPUT = "sentence1,sentence2\nthe first row,a\na nut,b\nten nuts,c\nthe last row,d\n"
POLL = gr.EventData(None, {"wait": "+abc"})


def add_job(store: RunStore, run: Run, file: str, ended: bool = True) -> PredictionJob:
    """A job as its process leaves it, or while it goes on."""
    job = PredictionJob(store.root / "batches" / secrets.token_urlsafe(15))
    job.folder.mkdir(parents=True)
    request = PredictionRequest(run.id, file, "sentence1", "sentence2", "label")
    job.describe_job("predict", store.visitor.name, asdict(request))
    (job.folder / "input.csv").write_text(INPUT)
    (job.folder / "result.csv").write_text("sentence1,prediction\na,no\n")
    texts = ("the first row", "a nut", "ten nuts", "the last row")
    rows = [
        ShownRow(
            row=n,
            margin=margin,
            unsure=margin < 0.3,
            cells={"sentence1": text, "n": 10 - n, **ANSWERS[n % 2]},
        )
        for n, (text, margin) in enumerate(zip(texts, (0.9, 0.2, 0.1, 0.8), strict=True))
    ]
    (job.folder / "shown.json").write_text(json.dumps({"rows": rows}))
    job.append(events.Progressed(done=7, total=408))
    if ended:
        (job.folder / "report.json").write_text(json.dumps(REPORT))
        job.append(events.Finished(step=0, seconds=2.0))
    else:
        hold_lock(job.lock_file)  # as its worker, to the end of the tests
    return job


@pytest.fixture
def tab(store: RunStore) -> FilePredictions:
    return predict_tab(store).files


@pytest.mark.parametrize(
    ("status", "changes", "texts", "absent"),
    [
        ("finished", {},
         ["The model was trained on 312 of the 408 rows: their scores say nothing about new pairs.",
          "6 of the 408 rows are pairs by which the model was chosen",
          "Accuracy 0.900 0.850 to 0.950 0.600 0.400 to 0.800 F1 0.800 0.700 to 0.900",
          "no yes no 200 4 yes 4 200", "On 408 labelled rows; 96 of them were not trained on"],
         "too few"),
        # Too few new rows to be scored apart.
        ("finished", {"not_trained_on": {"labelled": 1200}, "validated_on": 0},
         ["1,200 labelled rows were not trained on: too few to be scored apart."],
         "pairs by which"),
        # New rows only, and an old run of which that is unknown.
        ("finished", {"trained_on": 0, "validated_on": 0, "not_trained_on": None},
         ["408 rows"], "trained on"),
        ("finished", {"trained_on": None, "validated_on": None, "not_trained_on": None},
         ["408 rows"], "trained on"),
        # The file has columns of the names that are added.
        ("finished",
         {"errors": 2, "columns": ["prediction_2", "error_2"], "left_out": ["parts"]},
         ["are left out: parts.",
          "keeps it as it was; added are prediction_2, error_2.",
          "the column error_2 says why"],
         "could be read"),
        # A bound kept with the model decides, or is of other answers.
        ("finished",
         {"sure": {"error": 0.02, "confidence": 0.95, "column": "decision"}, "unsure": 9,
          "precision": "int8", "answers": {"no": 200, "yes": 208}},
         ["Unsure of 9 of 408: the column decision says so of each. At most 2% of the others",
          "Rows to review (9)", "in int8 a few answers differ"],
         "nothing is decided"),
        ("finished", {"undecided": True}, ["with these options nothing is decided"], "to review"),
        ("running", {"rows": 20, "trained_on": 5}, ["trained on 5 of the 20 rows"], "Download"),
        ("running", {"trained_on": None, "validated_on": None}, ["20 of about 408 rows"],
         "trained on"),
        ("waiting", {}, ["Waiting for the machine"], "Loading"),
        ("stopped", {}, ["as long as a job may be. · 408 rows"], "cancelled"),
    ],
)  # fmt: skip
def test_rows_that_are_not_new_are_told_and_scored_apart(
    store: RunStore, status: Any, changes: dict[str, Any], texts: list[str], absent: str
) -> None:
    job = add_job(store, store.create(RunConfig()), "pairs.csv")
    report = {name: value for name, value in (REPORT | changes).items() if value is not None}
    state = PredictionState(status, "wait", done=20, total=408, report=report)
    state.error = "It took as long as a job may be." if status == "stopped" else ""
    shown = predict_file.view(store, job, state)
    plain = " ".join(re.sub("<.*?>", " ", shown).split())
    for text in texts:
        assert text in plain
    assert absent not in plain


def test_markup_in_a_file_is_shown(store: RunStore) -> None:
    job = add_job(store, store.create(RunConfig()), "<b>.csv")
    report = REPORT | {
        "labels": ["<i>", "yes"],
        "choices": ["<i>", "yes"],
        "errors": 2,
        "examples": ["<u>"],
    }
    cells = {"<s>": "<script>", "long": "x" * 999}
    rows = [ShownRow(row=0, margin=None, unsure=False, cells=cells)]
    state = PredictionState("finished", rows=rows, report=report)
    table = PredictedRows(store)
    with gr.Blocks():
        table.draw(gr.State())
    shown = predict_file.view(store, job, state) + table.shown(job, state)[table.table]
    for tag in ("<b>.csv", "<i>", "<u>", "<s>", "<script>"):
        assert tag not in shown
        assert tag.replace("<", "&lt;").replace(">", "&gt;") in shown
    assert "x" * 200 + "\u2026" in shown
    assert "x" * 201 not in shown


def test_a_predicted_file_says_how_many_have_each_answer(store: RunStore) -> None:
    job = add_job(store, store.create(RunConfig()), "pairs.csv")
    shown = predict_file.view(store, job, job.state())
    plain = " ".join(re.sub("<.*?>", " ", shown).split())
    assert "yes 306 75.0% no 102 25.0% Unsure of 31:" in plain
    assert "Download predictions (CSV, 408 rows)" in plain


@pytest.mark.long
def test_rows_are_sorted_filtered_and_corrected_into_training_pairs(
    store: RunStore, tab: FilePredictions, tmp_path: Path
) -> None:
    pairs = tmp_path / "pairs.csv"
    lines = [f"one {n},two {n},{('no', 'yes')[n % 2]}" for n in range(60)]
    pairs.write_text("\n".join(["sentence1,sentence2,label", *lines]) + "\n")
    run = store.create(RunConfig(dataset=store.uploads.add({"train": pairs})))
    job = add_job(store, run, "pairs.csv")
    rows = tab.rows

    def listed(updates: Any) -> list[str]:
        return re.findall(r"(the first row|a nut|ten nuts|the last row)", updates[rows.table])

    def clicked(**data: Any) -> Any:
        event = gr.EventData(None, {"run": job.id} | data)
        return rows.on_table(NOBODY, event, job.id, blank(), ALL, "")

    opened = tab.on_open(NOBODY, "")
    assert listed(opened) == ["the first row", "a nut", "ten nuts", "the last row"]
    names = [name for name, _ in opened[rows.which]["choices"]]
    assert names == ["all rows", "unsure (31)", "no (102)", "yes (306)", "corrected"]
    for which, words, expected in (
        (UNSURE_ONLY, "", ["ten nuts", "a nut"]), ("answer:no", "", ["the first row", "ten nuts"]),
        (ALL, "NUT", ["a nut", "ten nuts"]), (CORRECTED, "", []),
    ):  # fmt: skip
        assert listed(rows.on_filter(NOBODY, job.id, blank(), which, words)) == expected
    order = ["the last row", "ten nuts", "a nut", "the first row"]
    assert listed(clicked(do="sort", what="n")) == order  # as numbers: 7, 8, 9, 10
    assert not opened[rows.start]["visible"]
    for wrong in ({"what": 99, "label": "no"}, {"what": 2, "label": "<b>"}):
        assert "no such row or class" in clicked(do="label", **wrong)[rows.message]
    corrected = clicked(do="label", what=2, label="yes")
    assert "1 answer corrected" in corrected[rows.corrected]
    assert "was no" in corrected[rows.table]
    assert corrected[rows.start]["visible"]
    config = predict.corrected_run(store, job)
    train = store.uploads.files(config.dataset)["train"].read_text()
    assert '"ten nuts","c","yes"' in train
    assert train.count("\n") > 40
    assert "nothing" not in clicked(do="label", what=2, label="no")[rows.corrected]
    assert not clicked(do="label", what=2, label="no")[rows.start]["visible"]


def test_a_reload_opens_the_newest_file_again(store: RunStore, tab: FilePredictions) -> None:
    assert tab.on_open(NOBODY, "") == gr.skip()
    run = store.create(RunConfig(name="ours"))
    old = add_job(store, run, "old.csv")
    os.utime(old.folder / "job.json", (time.time() - 60,) * 2)
    going = add_job(store, run, "long.csv", ended=False)
    opened = tab.on_open(NOBODY, "")
    assert (opened[tab.job_id], opened[tab.message]) == (going.id, "")
    assert "7 of about 408 rows" in opened[tab.view]
    assert opened[tab.cancel]["interactive"]
    assert opened[tab.poller].startswith("+")  # the page goes on asking
    assert opened[tab.part] == predict_file.FILE
    assert tab.on_open(NOBODY, "x") == gr.skip()  # a page that shows one already is left alone
    going.append(events.Stopped(step=0, seconds=1.0))
    last = tab.on_tick(NOBODY, going.id, POLL)
    assert "cancelled" in last[tab.view]
    assert (last[tab.cancel]["interactive"], last[tab.poller]) == (False, "-abc")
    store.delete(run)
    os.utime(going.folder / "job.json", (time.time() - 120,) * 2)
    shown = tab.on_open(NOBODY, "")[tab.view]
    for text in ("old.csv", "a deleted run", "312 of the 408 rows"):
        assert text in shown
    assert f'href="finetune/batches/{old.id}/result"' in shown


def test_a_file_is_matched_to_the_columns_of_the_model(
    store: RunStore, tab: FilePredictions, tmp_path: Path
) -> None:
    (prepared,) = [event for event in toys.story() if isinstance(event, events.Prepared)]
    names = {"sentence1": "frage 1", "sentence2": "frage 2", "label": "gleich?"}
    run = store.create(RunConfig())
    run.append(prepared.model_copy(update={"data": {"columns": names}}))
    file = tmp_path / "new.csv"
    file.write_text("id,Frage_2,Frage_1\n1,a,b\n")
    updates = tab.on_file(NOBODY, run.id, str(file), None)
    shown = [updates[column] for column in tab.columns]
    assert [update["value"] for update in shown] == ["Frage_1", "Frage_2", NONE]
    assert [update["label"] for update in shown] == [
        f"Column for {name}" for name in names.values()
    ]
    columns = ["Frage_1", "id", "id"]
    assert tab.on_sentence(NOBODY, *columns) == {tab.columns[2]: NONE}
    assert tab.on_sentence(NOBODY, "Frage_1", "Frage_2", "id") == gr.skip()


@pytest.mark.long
def test_a_sheet_of_a_workbook_is_chosen(
    store: RunStore, tab: FilePredictions, tmp_path: Path
) -> None:
    book = openpyxl.Workbook()
    for title, head in (("Cover", ["a", "b"]), ("Pairs", ["sentence1", "sentence2"])):
        sheet = book.create_sheet(title)
        sheet.append(head)
        sheet.append(["x", "y"])
    del book["Sheet"]
    book.save(tmp_path / "book.xlsx")
    file = str(tmp_path / "book.xlsx")
    run, trained = store.create(RunConfig()), store.create(RunConfig(sheet="Pairs"))
    for of, asked, read, first in (
        (run, None, "", "a"), (run, "Pairs", "Pairs", "sentence1"), (run, "gone", "", "a"),
        (trained, "", "Pairs", "sentence1"), (trained, "Cover", "Cover", "a"),
    ):  # fmt: skip
        updates = tab.on_file(NOBODY, of.id, file, asked)
        assert (updates[tab.sheet]["value"], updates[tab.sheet]["visible"]) == (read, True)
        assert (updates[tab.columns[0]]["value"] or "") == first
    updates = tab.on_file(NOBODY, run.id, None, "Pairs")
    assert not updates[tab.sheet]["visible"]


def test_anothers_results_are_not_shown(
    store: RunStore, tab: FilePredictions, ada: str, bob: str
) -> None:
    hers = auth.visitor_store(store, asks(ada))
    job = add_job(hers, hers.create(RunConfig(name="hers-alone")), "hers.csv", ended=False)
    assert "hers.csv" in tab.on_open(asks(ada), "")[tab.view]
    for other in (asks(bob), NOBODY):
        assert tab.on_open(other, "") == tab.on_open(other, job.id) == gr.skip()
        wrong: Any
        for wrong in (job.id, "../x", "", None, {}, "x" * 10**6):
            shown = tab.on_tick(other, wrong, POLL)[tab.view]
            refused = tab.on_cancel(other, wrong)[tab.message]
            assert "no such prediction" in shown
            assert "no such prediction" in refused
            assert "hers" not in shown + refused
    # Nor is the model's name told to who has the file, but not the run.
    add_job(auth.visitor_store(store, asks(bob)), hers.runs()[0], "his.csv")
    shown = tab.on_open(asks(bob), "")[tab.view]
    assert "his.csv" in shown
    assert "hers-alone" not in shown


def add_upload(store: RunStore, folder: Path, name: str, age: float = 0.0) -> str:
    """Upload a file; its name as a configuration has it."""
    path = folder / name
    path.write_text(f"sentence1,sentence2,label\n{name},b,1\nc,d,0\n")
    dataset = store.uploads.add({"train": path})
    uploaded = time.time() - age
    os.utime(store.root / "uploads" / dataset.removeprefix("upload/"), (uploaded, uploaded))
    return dataset


def upload_labels(choices: list[tuple[str, str]]) -> dict[str, str]:
    return {name: label for label, name in choices if name.startswith("upload/")}


def test_the_newest_ten_uploads_and_the_current_one_are_offered_after_a_reload(
    store: RunStore, tmp_path: Path
) -> None:
    tab = draw_train(store)
    names = [add_upload(store, tmp_path, f"{n}.csv", age=100 - n) for n in range(12)]
    newest = names[:1:-1]
    updates = tab.on_restore(NOBODY, None)
    assert set(updates) == {tab.form["dataset"], tab.filled[-1]}
    for update in updates.values():
        assert "value" not in update
        labels = upload_labels(update["choices"])
        assert list(labels) == newest
        assert labels[newest[0]].startswith("Your files: 11.csv \u00b7 43 B \u00b7 20")
    assert list(upload_labels(form.datasets(store, names[0]))) == [*newest, names[0]]
    assert add_upload(store, tmp_path, "5.csv") == names[5]  # brought again: the newest
    assert next(iter(upload_labels(form.datasets(store)))) == names[5]
    (store.root / "uploads" / names[5].removeprefix("upload/") / "upload.json").unlink()
    assert names[5] not in upload_labels(form.datasets(store))


def test_anothers_uploads_are_not_offered(
    store: RunStore, ada: str, bob: str, tmp_path: Path
) -> None:
    hers = auth.visitor_store(store, asks(ada))
    name = add_upload(hers, tmp_path, "hers.csv")
    train, data = draw_train(store), data_tab(store)

    def offered(visitor: gr.Request) -> list[str]:
        return list(upload_labels(train.on_restore(visitor, None)[train.filled[-1]]["choices"]))

    assert offered(asks(ada)) == [name]
    for other in (asks(bob), NOBODY):
        assert offered(other) == []
        kept = RunConfig(dataset=name).to_dict()
        assert "hers" not in str(train.on_restore(other, kept))
    his = add_upload(auth.visitor_store(store, asks(bob)), tmp_path, "his.csv")
    assert offered(asks(bob)) == [his]
    path = str(tmp_path / "hers.csv")  # which he did not bring
    updates = data.on_upload(asks(bob), path, None, None)
    assert set(updates) == {data.message}
    assert "no longer available" in updates[data.message]
    signed_in = store.for_visitor(Visitor(("user:ada", *hers.visitor.names)))
    assert name in upload_labels(form.datasets(signed_in))
