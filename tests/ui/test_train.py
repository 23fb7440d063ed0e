"""The Train tab: costs, the next step after a run, and what a page that watches is told. Its form
is read back as it is shown, whatever is automatic, typed with a comma, or in doubt."""

import html
import json
import os
import re
import shlex
import shutil
import time

import gradio as gr
import pytest
from starlette.requests import Request

from finetune import config as configs
from finetune.config import (
    BUNDLED_CHECKPOINT,
    DATA_FIELDS,
    PRESETS,
    RunConfig,
    hyperparameters,
    preset,
)
from finetune.engines.base import EngineSpec
from finetune.engines.registry import make_spec
from finetune.environment import devices
from finetune.errors import ConfigError, DataError
from finetune.evaluation import report
from finetune.evaluation.report import Verdict
from finetune.inference import decision_rule
from finetune.jobs import probe
from finetune.metrics.intervals import Interval
from finetune.owners import Visitor
from finetune.runs import events, grids
from finetune.runs.events import Phase
from finetune.runs.queue import Queue
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.studies.space import Budget
from finetune.studies.study import studies
from finetune.ui import charts, form, live_updates, routes, run_view, train_plan
from finetune.ui import html as ui_html
from finetune.ui.engine_form import Choice
from finetune.ui.train_plan import SEARCH
from tests.support.browser import new_page
from tests.support.running import engine_values
from tests.support.tabs import NOBODY, draw_train, form_values
from tests.support.toys import story

ONE_RUN = ("once", "3", "1e-5, 2e-5", "", "")  # whatever stands in the boxes of the others
MARKUP = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def module_tab(tmp_path_factory):
    """The tab over a folder of runs; drawing it takes as long as many a test."""
    return draw_train(RunStore(tmp_path_factory.mktemp("tabs") / "runs"))


@pytest.fixture
def store(module_tab):
    yield module_tab.store
    shutil.rmtree(module_tab.store.root, ignore_errors=True)


@pytest.fixture
def tab(module_tab, store):
    return module_tab


def costs(tab, config):
    """What Train shows of a form's costs."""
    values = [*form_values(config), *engine_values(tab.engine, Choice())]
    return str(tab.on_costs(NOBODY, *ONE_RUN, *values)[tab.costs])


def test_costs_follow_the_checkpoint_and_count_seeds_and_a_grid(tab, toy_checkpoint):
    config = RunConfig(checkpoint=str(toy_checkpoint), max_length=64)
    values = [*form_values(config), *engine_values(tab.engine, Choice())]
    assert "A part of the rows is measured now." in costs(tab, config)
    assert tab.unmeasured in tab.on_costs(NOBODY, *ONE_RUN, *values)
    assert tab.cost_asked in tab.on_measure(NOBODY, *ONE_RUN, *values)
    assert "“Longest text” 64 cuts" in costs(tab, config)
    assert tab.unmeasured not in tab.on_costs(NOBODY, *ONE_RUN, *values)
    assert tab.on_measure(NOBODY, *ONE_RUN, *values) == gr.skip()
    for several, planned in (
        (("seeds", "3", "1e-5, 2e-5", "", ""), "A click queues 3 runs."),
        (("grid", "2", "1e-5, 2e-5", "", ""), "A click queues 4 runs."),
    ):  # fmt: skip
        assert planned in tab.on_costs(NOBODY, *several, *values)[tab.planned]
    assert tab.on_costs(NOBODY, *ONE_RUN, *values)[tab.planned] == ""
    wrong = tab.on_costs(NOBODY, "grid", "0", "high", "", "", *values)
    for words in ("from 1 to 100, got 0", "got &#39;high&#39;"):
        assert words in wrong[tab.costs]


def test_what_an_empty_box_comes_to_is_told_for_these_pairs(tab, monkeypatch):
    def told(**values):
        shown = html.unescape(costs(tab, RunConfig(**values)))
        return dict(json.loads(shown.split('data-automatic="')[1].split('">')[0]))

    assert told() == {
        "num_train_epochs": "Automatic (4)", "eval_steps": "Automatic (171)",
        "per_device_train_batch_size": "Automatic (16)", "learning_rate": "Automatic (7e-5)",
    }  # fmt: skip
    assert told(max_steps=30)["num_train_epochs"] == "Automatic"
    assert told(per_device_train_batch_size=8)["learning_rate"] == "Automatic (4.9e-5)"
    assert told(checkpoint="roberta-base")["learning_rate"] == "Automatic"  # not on this disk
    card = 80_000_000_000  # bytes
    monkeypatch.setattr(devices, "accelerator_memory", lambda: card)
    assert told(num_train_epochs=16)["per_device_train_batch_size"] == "Automatic (32)"
    unread = told(dataset="somebody/pairs")
    assert {unread.pop("per_device_train_batch_size"), *unread.values()} == {"Automatic"}


def test_the_command_starts_the_same_from_where_it_is_kept(tab, store, tmp_path, monkeypatch):
    file = tmp_path / "tickets.csv"
    file.write_text("sentence1,sentence2,label\na,b,0\n")
    upload = store.uploads.add({"train": file})
    shown = html.unescape(costs(tab, RunConfig(dataset=upload, seed=7)))
    line = shlex.split(shown.split("<code>")[1].split("</code>")[0])
    assert line[4:] == [
        "--runs", str(store.root.resolve()),
        "--train_file", str(store.uploads.files(upload)["train"].resolve()), "--seed", "7",
    ]  # fmt: skip
    monkeypatch.setenv("FINETUNE_VISITORS", "1")  # where is then nobody's business
    shown = costs(tab, RunConfig(seed=7))
    assert "<code>python -m finetune train --seed 7</code>" in shown


def test_the_buttons_of_a_verdict_keep_a_threshold_and_fill_the_form(tab, finished, monkeypatch):
    score, gain = Interval(0.8, 0.75, 0.85), Interval(0.1, 0.05, 0.15)
    verdict = Verdict("F1", score, "", 0.0, gain, None, 30, 60, None, None)
    monkeypatch.setattr(report, "run_verdict", lambda run, summary: verdict)

    def press(**sent):
        return tab.on_press(NOBODY, gr.EventData(None, sent), finished.id)

    press(do="threshold", what="0.465")
    assert decision_rule.read_rule(finished.best).threshold == 0.465
    drawn = run_view.verdict(tab.store, finished, finished.state())
    assert "Evaluate more often" in drawn  # once says nothing of its course
    assert press(do="advice")[tab.form["eval_steps"]] == "1"


def marks(parts):
    return {name: mark for name, (mark, _) in parts.items()}


def test_a_page_that_watches_is_told_what_is_new(store, monkeypatch, adopt):
    monkeypatch.setattr(live_updates, "FRESH", 0.0)
    run = store.create(RunConfig())
    for event in story()[:5]:
        run.append(event)
    adopt(run)
    first, _ = live_updates.changes(store, run, {})
    assert first["state"][1] == "running"
    assert live_updates.changes(store, run, marks(first))[0] == {}
    run.append(story()[5])
    second, _ = live_updates.changes(store, run, marks(first))
    # A quarter of the steps is told aloud; the scores, the log and the state have not changed.
    moving = {"bar", "progress", "cards", "loss", "announced"}
    assert set(second) == moving | set(charts.SMALL)
    assert "50% of the steps" in second["announced"][1]
    assert "training loss 0.250" in second["loss"][1]
    by_time, _ = live_updates.changes(store, run, marks(first | second) | {"across": "time"})
    assert set(by_time) == {"tools", "loss", "scores", *charts.SMALL}
    assert "step 4 of 8" in second["bar"][1]
    run.append(events.Finished(step=8, seconds=3.0))
    third, _ = live_updates.changes(store, run, marks(first | second))
    assert third["state"][1] == "finished"
    assert "Finished" in third["announced"][1]
    scores = {"accuracy": 0.7, "f1": 0.8, "loss": 0.5}
    run.append(events.Evaluated(step=8, epoch=1.0, metrics=scores, seconds=0.1, best=True))
    fourth, _ = live_updates.changes(store, run, marks(first | second | third))
    assert "F1 0.800" in fourth["scores"][1]
    run.append(events.KeptModelScored(step=8, metrics=scores | {"f1": 0.81}))
    fifth, _ = live_updates.changes(store, run, marks(first | second | third | fourth))
    assert "F1 0.810" in fifth["scores"][1]  # one score in all places


def test_the_queue_is_drawn_as_the_news_tell_it(tab, store, adopt):
    """By which a window learns what another has queued, started or taken out."""
    request = Request({"type": "http", "headers": [], "path_params": {"run_id": ""}})
    runs = [store.create(RunConfig(seed=seed)) for seed in range(3)]
    shown = []
    for change in (lambda: None, lambda: adopt(runs[0]), lambda: Queue(store.root).add(runs[1].id),
                   lambda: Queue(store.root).add(runs[2].id)):  # fmt: skip
        change()
        answer = routes.news(store, request)
        told = json.loads(bytes(answer.body))["queue"] if answer.body else "none"
        updates = tab.on_queue(NOBODY, "")
        assert f'data-queue="{told}"' in updates[tab.queue]
        shown.append(
            (updates[tab.start], "".join(re.findall("[12] runs? wait", updates[tab.queue])))
        )
    assert shown == [
        ("Train", ""),
        *(("Add to queue", n) for n in ("", "1 run wait", "2 runs wait")),
    ]
    assert tab.start not in tab.on_queue(NOBODY, runs[0].id)  # which says Continue


def test_every_phase_and_every_ending_has_a_lesson():
    states = [RunSummary(status="running", phase=phase) for phase in ("", "of later", *Phase)]
    states += [RunSummary(status=status) for status in (*ENDED, "waiting")]
    for summary in states:
        drawn = ui_html.render("lesson.html", moment=live_updates.moment(summary))
        assert drawn.count('aria-current="step"') == (summary.status == "running")


@pytest.mark.parametrize("token", [MARKUP, "\u05e9\u05dc\u05d5\u05dd", "\u202e", " cat", "\n"])
def test_any_token_of_a_batch_is_shown_and_never_obeyed(token):
    """Of a long one the middle is left out."""
    batch = events.FirstBatch(
        shapes={"input_ids": [2, 100], "attention_mask": [2, 100], "labels": [2]},
        lengths=[100, 98], padded=0.01, positions=[0, 1, 98, 99], tokens=[[token] * 4] * 2,
        ids=[[2, 5, 3, 0]] * 2, attention_mask=[[1, 1, 1, 0]] * 2, token_type_ids=[],
        labels=[MARKUP, MARKUP], special=[MARKUP], form=MARKUP,
    )  # fmt: skip
    drawn = live_updates.first_batch(batch)
    assert "<script" not in drawn
    assert "\u202e" not in drawn
    assert drawn.count('title="96 tokens are not shown"') == 2
    tokens = re.findall(r"<th scope=\"col\"[^>]*><bdi>(.*?)</bdi>", drawn)
    assert len(tokens) == 8
    assert "\n" not in tokens[0]


def search(tab, config, choice, **drawn):
    """What a search is sent, before its number of trials and after its limits."""
    others = [SEARCH, *[control.value for control in tab.several[1:]], *form_values(config)]
    boxes = [drawn.get(name, "") for name in train_plan.FIELDS]
    return [boxes, [*others, *engine_values(tab.engine, choice)]]


def test_a_search_on_jobs_needs_a_number_of_trials_and_says_its_price(tab, store, monkeypatch):
    monkeypatch.setattr("finetune.hub.client.stored_token", lambda: None)
    job = Choice("hub-job", {"flavor": "t4-small"}, True, {"t4-small": 0.4})
    boxes, others = search(tab, RunConfig(), job, **{train_plan.FIELDS[0]: "1..3"})
    for trials, said in ((0, "each trial is billed"), (3, "You are not signed in")):
        updates = tab.on_search(NOBODY, None, *boxes, trials, 9, 1, False, *others)
        assert said in str(updates[tab.message])
    assert studies(store) == []
    updates = tab.on_search_time(NOBODY, *boxes, 3, 0, 1, False, *others)
    assert "All its trials together cost at most $0.60." in str(updates[tab.planned])
    # What the form says is tried, too, if it lies outside of what is searched.
    for epochs, told in ((10, "Passes over the data 10"), (0, "data 4"), (3, "")):
        config = RunConfig(num_train_epochs=epochs)
        boxes, others = search(tab, config, Choice(), num_train_epochs="1..3")
        planned = str(tab.on_search_time(NOBODY, *boxes, 5, 0, 1, False, *others)[tab.planned])
        assert ("Your ranges leave out" in planned) == bool(told)
        assert told in planned
    boxes, others = search(tab, RunConfig(num_train_epochs=10), Choice(), num_train_epochs="1..6")
    planned = str(tab.on_search_time(NOBODY, *boxes, 5, 0, 1, False, *others)[tab.planned])
    assert "Passes over the data 5..15 in place of 1..6." in planned


def test_a_run_goes_on_with_what_a_terminal_chose_for_its_job():
    """The page has no field for the image and for who pays."""
    own = {"image": "python:3.13", "namespace": "team", "flavor": "cpu-basic"}
    former = make_spec("hub-job", own)
    values = {"flavor": "t4-small", "minutes": "20", "dollars_a_run": "1", "dollars_a_day": "5"}
    choice = Choice("hub-job", values, prices={"t4-small": 0.4})
    options = choice.spec(former).options
    assert options == former.options | {"flavor": "t4-small", "minutes": 20, "price": 0.4}
    assert choice.spec(make_spec("ray", {"nodes": 2})) == choice.spec()


def test_checkpoints_are_compared_by_who_asked_and_one_is_chosen(tab, store, monkeypatch):
    form = tab.probe
    pressed = gr.EventData(None, {"field": "checkpoint", "value": "owner/good"})
    assert form.on_press(NOBODY, "", pressed)[form.checkpoint] == "owner/good"
    values = [getattr(RunConfig(), name) for name in (*DATA_FIELDS, "checkpoint", "max_length")]
    for chosen in ([BUNDLED_CHECKPOINT], None):
        assert "from 2 to 8" in form.on_start(NOBODY, chosen, *values)[form.message]
    for unknown in ("", "../..", "0" * 24):
        told = form.on_tick(NOBODY, unknown, gr.EventData(None, {"wait": "+x"}))[form.message]
        assert "no such comparison" in told
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    ada, bob = (store.for_visitor(Visitor(names=(f"browser:{name}",))) for name in ("ada", "bob"))
    names = [BUNDLED_CHECKPOINT, "bert-base-uncased"]
    job = probe.probe_of(ada, RunConfig(), names)
    assert probe.probe_of(bob, RunConfig(), names).folder != job.folder
    job.folder.mkdir(parents=True)
    job.describe_job("probe", ada.visitor.name, {})
    assert probe.ProbeJob.find(ada, job.id).folder == job.folder
    with pytest.raises(DataError, match="no such comparison"):
        probe.ProbeJob.find(bob, job.id)


FIELDS = [*[""] * (len(train_plan.FIELDS) - 1), "4, 8"]  # of a search


def shown(store, config):
    values = list(form.filled(form.NAMES, store, config).values())
    return {
        name: value["value"] if isinstance(value, dict) else value
        for name, value in zip(form.NAMES, values, strict=True)
    }


def test_what_is_shown_is_read_back_and_no_number_stands_for_automatic(store):
    for name in PRESETS:
        other = {"dataset": "glue/mrpc", "adam_beta1": 0.8, "padding": "max_length"}
        config = RunConfig(**preset(name) | other)
        assert form.read(list(shown(store, config).values())) == config
    values = shown(store, RunConfig(dropout=-1))
    automatic = ("learning_rate", "per_device_train_batch_size", "num_train_epochs",
                 "max_steps", "warmup_steps", "dropout", "eval_steps",
                 "save_steps", "early_stopping_patience", "pad_to_multiple_of")  # fmt: skip
    assert {values[name] for name in automatic} == {""}
    assert "-1" not in values.values()
    assert form.read(list(values.values())).dropout == -1
    for name, field in hyperparameters().items():
        if field.words:
            assert getattr(form.read([""], [name]), name) == next(iter(field.words))


@pytest.mark.parametrize("typed", ["1.000", "1,000", "1e3", "1_000", "ten"])
def test_what_may_be_a_thousand_is_no_whole_number(typed):
    values = RunConfig().to_dict() | {"max_steps": typed, "seed": " 7 "}
    with pytest.raises(ConfigError) as caught:
        form.read(list(values.values()))
    assert caught.value.problems == {"max_steps": f"must be a whole number, got {typed!r}"}
    controls = ["", *[""] * len(grids.GRID)]
    with pytest.raises(ConfigError, match="seeds must be a whole number"):
        train_plan.plan(["seeds", typed, *controls[1:], *RunConfig().to_dict().values()])
    assert len(train_plan.plan(["seeds", *controls, *RunConfig().to_dict().values()])) == 1
    with pytest.raises(ConfigError, match="trials is"):
        train_plan.read_search([*FIELDS, typed, "0", "1", False], EngineSpec())
    with pytest.raises(ConfigError, match="minutes is"):
        Choice("hub-job", {"minutes": typed}).spec()


def test_fields_and_limits_are_read_with_both_signs_and_never_as_another_number():
    values = RunConfig().to_dict() | {"learning_rate": "0,0001", "dropout": "0,1"}
    assert form.read(list(values.values())) == RunConfig(learning_rate=1e-4, dropout=0.1)
    for typed, read in ((",5", 0.5), ("2,0e-5", 2e-5), (" 0,05 ", 0.05), ("0.0001", 1e-4), (1, 1)):
        assert form.read([typed], ["weight_decay"]).weight_decay == read
    for typed in ("1,000", "12,345", "1,234.5", "1.234,5", "1,2,3", "a,b"):
        with pytest.raises(ConfigError, match=f"max_grad_norm.*'{typed}'"):
            form.read([typed], ["max_grad_norm"])
    for limits, budget, parallel in (
        (("20", "1,5", " 2 "), Budget(20, 1.5), 2), (("3", None, "1"), Budget(3), 1)
    ):  # fmt: skip
        _, limit, options = train_plan.read_search([*FIELDS, *limits, False], EngineSpec())
        assert (limit, options["parallel"]) == (budget, parallel)
    with pytest.raises(ConfigError, match="minutes is '1,500'"):
        train_plan.read_search([*FIELDS, "20", "1,500", "1", False], EngineSpec())
    spec = Choice("hub-job", {"minutes": "20", "dollars_a_run": "1,5"}).spec()
    assert (spec.options["dollars_a_run"], spec.options["minutes"]) == (1.5, 20)
    with pytest.raises(ConfigError, match="dollars_a_run is '1,500'"):
        Choice("hub-job", {"dollars_a_run": "1,500"}).spec()


def test_the_page_chooses_defaults_and_presets_by_itself(browser, tab):
    blank = RunConfig()
    pairs, base = blank.dataset, blank.checkpoint
    page = new_page(browser)
    script = tab.choosing_default()
    for answer, kept, dataset, checkpoint, expected in (
        ("<p data-answers>", None, pairs, base, ["glue/mrpc", "bert-base-uncased", "glue/mrpc"]),
        ("<p>", None, pairs, base, [pairs, base, pairs]),  # the Hub does not answer
        ("<p data-answers>", None, "upload/1", base, ["upload/1", base, "upload/1"]),
        ("<p data-answers>", None, pairs, "roberta-base", [pairs, "roberta-base", pairs]),
        # Who has trained on the bundled pairs before finds them again after a reload.
        ("<p data-answers>", blank.to_dict(), pairs, base, [pairs, base, pairs]),
    ):
        values = [answer, kept, dataset, checkpoint]
        assert page.evaluate(f"(values) => ({script})(...values)", values) == expected
    for name in PRESETS:
        filled = page.evaluate(f"(name) => ({form.choosing_preset()})(name)", name)
        names = list(configs.preset("As the course"))
        assert form.read(filled, names) == RunConfig(**preset(name))
    page.close()


def test_the_ten_newest_uploads_and_the_current_one_are_offered_on_reload(tab, store, tmp_path):
    def add(number, age=0.0):
        path = tmp_path / f"{number}.csv"
        path.write_text(f"sentence1,sentence2,label\n{number},b,1\nc,d,0\n")
        name = store.uploads.add({"train": path})
        when = time.time() - age
        os.utime(store.root / "uploads" / name.removeprefix("upload/"), (when, when))
        return name

    def offered(choices):
        return [name for _, name in choices if name.startswith("upload/")]

    names = [add(n, 100.0 - n) for n in range(12)]
    newest = names[:1:-1]
    for update in tab.on_restore(NOBODY, None).values():
        assert "value" not in update
        assert offered(update["choices"]) == newest
    assert offered(form.datasets(store, names[0])) == [*newest, names[0]]
    assert add(5) == names[5]  # brought again: the newest
    assert offered(form.datasets(store))[0] == names[5]
