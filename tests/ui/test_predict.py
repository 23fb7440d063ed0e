"""Pairs and whole files on the page: what is said of rows that are not new, if a model still holds
on them, and what a reload finds again.

The handlers are called as Gradio calls them; what a job leaves behind is laid down by hand.
"""

import itertools
import json
import os
import re
import secrets
import time
from dataclasses import asdict
from pathlib import Path

import gradio as gr
import pytest

from finetune.config import RunConfig
from finetune.data.sources import LABELS
from finetune.errors import DataError
from finetune.evaluation.file_shift import Monitoring
from finetune.inference import decision_rule
from finetune.inference.file_request import PredictionRequest
from finetune.inference.result_files import ShownRow
from finetune.jobs import predict
from finetune.jobs.predict import PredictionJob, PredictionState
from finetune.runs import events
from finetune.runs.job_folder import hold_lock
from finetune.ui import auth
from finetune.ui.html import macro
from finetune.ui.tabs import predict_file
from finetune.ui.tabs.predict_file import PredictedRows, blank
from tests.support import made_runs
from tests.support.made_runs import evaluated
from tests.support.tabs import NOBODY, asks, predict_tab
from tests.support.uploads import write_csv

TOLD = json.loads(Path(__file__).with_name("predicted.json").read_text("utf-8"))
REPORT = TOLD["report"]
ANSWERS = {"prediction": "no"}, {"prediction": "yes"}
INPUT = "sentence1,sentence2\nthe first row,a\na nut,b\nten nuts,c\nthe last row,d\n"
POLL = gr.EventData(None, {"wait": "+abc"})
PAIR = ("the cat sees a dog .", "a cat sees the dog .")


def add_job(store, run, file, ended=True):
    """A job as its process leaves it, or while it goes on."""
    job = PredictionJob(store.root / "batches" / secrets.token_urlsafe(15))
    job.folder.mkdir(parents=True)
    request = PredictionRequest(run.id, file, "sentence1", "sentence2", "label")
    job.describe_job("predict", store.visitor.name, asdict(request))
    (job.folder / "input.csv").write_text(INPUT)
    (job.folder / "result.csv").write_text("sentence1,prediction\na,no\n")
    texts = ("the first row", "a nut", "ten nuts", "the last row")
    cells = [{"sentence1": text, "n": 10 - n, **ANSWERS[n % 2]} for n, text in enumerate(texts)]
    rows = [
        ShownRow(row=n, margin=margin, unsure=margin < 0.3, cells=cells[n])
        for n, margin in enumerate((0.9, 0.2, 0.1, 0.8))
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
def tab(store):
    return predict_tab(store).files


@pytest.mark.parametrize("told", TOLD["reports"], ids=[told["of"] for told in TOLD["reports"]])
def test_rows_that_are_not_new_are_told_and_scored_apart(store, told):
    """`predicted.json` has what a report says otherwise, and what the page then says or not."""
    job = add_job(store, store.create(RunConfig()), "pairs.csv")
    values = (REPORT | told.get("changes", {})).items()
    report = {name: value for name, value in values if value is not None}
    status = told.get("status", "finished")
    state = PredictionState(status, "wait", done=20, total=408, report=report)
    state.error = "It took as long as a job may be." if status == "stopped" else ""
    shown = macro("prediction_file.html", "view")(job, "pairs.csv", "a run", state)
    plain = " ".join(re.sub("<.*?>", " ", shown).split())
    for text in told["texts"]:
        assert text in plain
    assert told["absent"] not in plain


def test_markup_in_a_file_is_shown(store):
    job = add_job(store, store.create(RunConfig()), "<b>.csv")
    names = ["<i>", "yes"]
    report = REPORT | {"labels": names, "choices": names, "errors": 2, "examples": ["<u>"]}
    cells = {"<s>": "<script>", "long": "x" * 999}
    rows = [ShownRow(row=0, margin=None, unsure=False, cells=cells)]
    state = PredictionState("finished", rows=rows, report=report)
    table = PredictedRows(store)
    with gr.Blocks():
        table.draw(gr.State())
    shown = macro("prediction_file.html", "view")(job, "<b>.csv", "a run", state)
    shown += table.shown(job, state)[table.table]
    for tag in ("<b>.csv", "<i>", "<u>", "<s>", "<script>"):
        assert tag not in shown
        assert tag.replace("<", "&lt;").replace(">", "&gt;") in shown
    assert "x" * 200 + "\u2026" in shown
    assert "x" * 201 not in shown


@pytest.mark.long
def test_rows_are_sorted_filtered_and_corrected_into_training_pairs(store, tab, tmp_path):
    pairs = tmp_path / "pairs.csv"
    lines = [f"one {n},two {n},{('no', 'yes')[n % 2]}" for n in range(60)]
    pairs.write_text("\n".join(["sentence1,sentence2,label", *lines]) + "\n")
    run = store.create(RunConfig(dataset=store.uploads.add({"train": pairs})))
    job = add_job(store, run, "pairs.csv")
    rows = tab.rows

    def listed(updates):
        return re.findall(r"(the first row|a nut|ten nuts|the last row)", updates[rows.table])

    def clicked(**data):
        event = gr.EventData(None, {"run": job.id} | data)
        return rows.on_table(NOBODY, event, job.id, blank(), predict_file.ALL, "")

    opened = tab.on_open(NOBODY, "")
    assert listed(opened) == ["the first row", "a nut", "ten nuts", "the last row"]
    names = [name for name, _ in opened[rows.which]["choices"]]
    assert names == ["all rows", "nearly undecided (31)", "no (102)", "yes (306)", "corrected"]
    for which, words, expected in (
        (predict_file.UNSURE_ONLY, "", ["ten nuts", "a nut"]),
        ("answer:no", "", ["the first row", "ten nuts"]),
        (predict_file.ALL, "NUT", ["a nut", "ten nuts"]), (predict_file.CORRECTED, "", []),
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
    row = predict.corrected_csv(store, job).splitlines()[1]
    assert (row[:2], row[-4:]) == ("3,", ",yes")
    assert "ten nuts" in row
    config = predict.corrected_run(store, job)
    train = store.uploads.files(config.dataset)["train"].read_text()
    assert '"ten nuts","c","yes"' in train
    assert train.count("\n") > 40
    assert "nothing" not in clicked(do="label", what=2, label="no")[rows.corrected]
    assert not clicked(do="label", what=2, label="no")[rows.start]["visible"]


def test_a_reload_opens_the_newest_file_again(store, tab):
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
    assert tab.on_new(NOBODY, going.id) == gr.skip()  # what is being answered stays
    assert tab.on_other(NOBODY, "x", going.id, run.id) == (other := {tab.former: "x"})
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
    assert tab.on_other(NOBODY, run.id, old.id, "another") == {tab.former: run.id}  # its own
    assert tab.on_other(NOBODY, "x", old.id, None) == other  # the first one that is chosen
    for cleared in (tab.on_new(NOBODY, old.id), tab.on_other(NOBODY, "another", old.id, run.id)):
        assert (cleared[tab.view], cleared[tab.job_id], cleared[tab.rows.table]) == ("", "", "")


def test_anothers_results_are_not_shown(store, tab, ada, bob):
    hers = auth.visitor_store(store, asks(ada))
    job = add_job(hers, hers.create(RunConfig(name="hers-alone")), "hers.csv", ended=False)
    assert "hers.csv" in tab.on_open(asks(ada), "")[tab.view]
    for other in (asks(bob), NOBODY):
        assert tab.on_open(other, "") == tab.on_open(other, job.id) == gr.skip()
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


def test_a_file_tells_if_the_model_holds_by_labels(store, toy_checkpoint, tmp_path, monkeypatch):
    """A file is predicted in this process, beside a column of another's answers."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the job does
    run = made_runs.monitored_run(store, toy_checkpoint)
    job = add_job(store, run, "new.csv")
    pairs = [(*texts, LABELS[label], LABELS[0]) for *texts, label in made_runs.new_rows(120, 2)]
    pairs[0] = (*pairs[0][:3], LABELS[1])
    unlabelled = [(*made_runs.HEAD[:2], "gpt"), *((*pair[:2], pair[3]) for pair in pairs)]
    write_csv(job.folder / "input.csv", unlabelled)
    job.work(lambda *progress: None)
    job.append(events.Finished(step=0, seconds=2.0))
    table = PredictedRows(store)
    with gr.Blocks():
        table.draw(gr.State())
    shown = table.shown(job, job.state())
    plain = " ".join(re.sub("<.*?>", " ", shown[table.monitoring]).split())
    for text in ("120 rows beside 200 validation rows", "Answers in the column gpt"):
        assert text in plain
    choices = [value for _, value in shown[table.which]["choices"]]
    assert {predict_file.TO_LABEL, "differs:gpt"} <= {*choices}
    filters = (job.id, blank(), predict_file.TO_LABEL, "")
    rows = table.on_filter(NOBODY, *filters)[table.table]
    assert rows.count('<option value="" selected>') == 25  # the model's answer is not shown
    for row in job.state().to_label[:30]:
        event = {"do": "label", "what": str(row["row"]), "label": LABELS[0], "run": job.id}
        updates = table.on_table(NOBODY, gr.EventData(None, event), *filters)
    plain = re.sub("<.*?>", " ", updates[table.monitoring])
    assert "Measured on 30 of 100 random rows" in plain
    assert updates[table.table].count(f'<option value="{LABELS[0]}" selected>') == 25
    with pytest.raises(DataError, match="no such row"):
        predict.label_row(job, 10**6, LABELS[0])
    predict.label_row(job, row["row"], "")
    judged = predict.monitored(job)
    assert isinstance(judged, Monitoring)
    assert judged.measured is None


def test_a_pair_is_asked_and_explained_through_the_tab(store, finished):
    tab = predict_tab(store)
    decision_rule.write_rule(finished.best, threshold=0.001, positive="equivalent")
    # None: Compare was pressed before the tab had chosen.
    for chosen, threshold, label in (
        (None, False, "not_equivalent"), (finished.id, True, "equivalent")
    ):  # fmt: skip
        shown = tab.on_ask(NOBODY, chosen, *PAIR, False, threshold, False)
        assert f'id="label">{label}<' in shown[tab.answer]
        question = shown[tab.question]
        assert question[0] == finished.id
        # Whatever stands in the boxes by now.
        assert f"Why \u201c{label}\u201d" in tab.on_why(NOBODY, question)[tab.reasons]
    # Of another model nothing was asked.
    assert tab.answer not in tab.on_run(NOBODY, finished.id, question)  # the chooser was left
    other = tab.on_run(NOBODY, "another", question)
    assert "The answer appears here" in other[tab.answer]
    assert (other[tab.why]["interactive"], other[tab.reasons]) == (False, "")
    assert tab.on_open(NOBODY, "gone", "")[tab.run]["value"] == finished.id


def test_validation_pairs_of_both_classes_are_offered(store, toy_checkpoint):
    tab, run = predict_tab(store), evaluated(store, toy_checkpoint, 1, 1.0)
    pairs = tab.on_run(NOBODY, run.id, None)[tab.samples]
    kinds = {(pair.label, pair.right) for pair in pairs}
    assert kinds == set(itertools.product(("not_equivalent", "equivalent"), (True, False)))
    pick = gr.EventData(None, {"do": "ask", "what": "1"})
    asked = tab.on_sample(NOBODY, pick, run.id, pairs, False, False, False)
    assert (asked[tab.first], asked[tab.second]) == (pairs[1].sentence1, pairs[1].sentence2)
    assert "label =</span>" in asked[tab.answer]
    wrong_rows = ["9", "-1", None, {}]
    for wrong_row in wrong_rows:
        pick = gr.EventData(None, {"do": "ask", "what": wrong_row})
        assert tab.on_sample(NOBODY, pick, run.id, pairs) == gr.skip()
    assert tab.on_run(NOBODY, "gone", None)[tab.offered] == ""
