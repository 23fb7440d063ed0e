"""The Train tab: costs, the next step after a run, and what a page that watches is told."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from finetune.config import BUNDLED_CHECKPOINT, DATA_FIELDS, RunConfig
from finetune.engines.registry import make_spec
from finetune.environment import devices
from finetune.errors import DataError
from finetune.evaluation import report
from finetune.evaluation.report import Verdict
from finetune.inference import decision_rule
from finetune.jobs import probe
from finetune.jobs.cost import Cut, Estimate
from finetune.metrics.intervals import Interval
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.search.study import studies
from finetune.ui import charts, live_updates, run_view, train_plan
from finetune.ui.engine_form import Choice
from finetune.ui.tabs.train import TrainTab
from finetune.ui.train_plan import SEARCH
from tests.support.engines import engine_values
from tests.support.tabs import NOBODY, draw_train, form_values
from tests.support.toys import story

ONE_RUN = ("once", "3", "1e-5, 2e-5", "", "")  # whatever stands in the boxes of the others
MARKUP = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def module_tab(tmp_path_factory: pytest.TempPathFactory) -> TrainTab:
    """The tab over a folder of runs; drawing it takes as long as many a test."""
    return draw_train(RunStore(tmp_path_factory.mktemp("tabs") / "runs"))


@pytest.fixture
def store(module_tab: TrainTab) -> Iterator[RunStore]:
    yield module_tab.store
    shutil.rmtree(module_tab.store.root, ignore_errors=True)


@pytest.fixture
def tab(module_tab: TrainTab, store: RunStore) -> TrainTab:
    return module_tab


def costs(tab: TrainTab, config: RunConfig) -> str:
    """What Train shows of a form's costs."""
    values = [*form_values(config), *engine_values(tab.engine, Choice())]
    return str(tab.on_costs(NOBODY, *ONE_RUN, *values)[tab.costs])


def test_costs_follow_the_checkpoint_and_count_seeds_and_a_grid(
    tab: TrainTab, toy_checkpoint: Path
) -> None:
    config = RunConfig(checkpoint=str(toy_checkpoint), max_length=64)
    values = [*form_values(config), *engine_values(tab.engine, Choice())]
    assert "A part of the rows is measured now." in costs(tab, config)
    assert tab.unmeasured in tab.on_costs(NOBODY, *ONE_RUN, *values)
    assert tab.cost_asked in tab.on_measure(NOBODY, *ONE_RUN, *values)
    assert "“Maximum length” 64 cuts" in costs(tab, config)
    assert tab.unmeasured not in tab.on_costs(NOBODY, *ONE_RUN, *values)
    assert tab.on_measure(NOBODY, *ONE_RUN, *values) == gr.skip()
    for several, runs in (
        (("seeds", "3", "1e-5, 2e-5", "", ""), 3), (("grid", "2", "1e-5, 2e-5", "", ""), 4),
        (("grid", "", "1e-5, 2e-5", "8, 16", ""), 4),
    ):  # fmt: skip
        words = f"Train queues {runs} runs."
        assert words in tab.on_costs(NOBODY, *several, *values)[tab.planned]
    assert tab.on_costs(NOBODY, *ONE_RUN, *values)[tab.planned] == ""
    wrong = tab.on_costs(NOBODY, "grid", "0", "high", "", "", *values)
    for words in ("from 1 to 100, got 0", "got &#39;high&#39;"):
        assert words in wrong[tab.costs]
    for cut, said in ((Cut(0.0, 300), "nothing is cut"), (Cut(0.0, 300, True), "hardly anything")):
        assert train_plan.costs(Estimate(cut=cut), RunConfig()).count(said) == 2


def test_what_an_empty_box_comes_to_is_told_for_these_pairs(
    tab: TrainTab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(**values: Any) -> dict[str, str]:
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


def test_the_command_starts_the_same_from_where_the_page_keeps_it(
    tab: TrainTab, store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_buttons_of_a_verdict_keep_a_threshold_and_fill_the_form(
    tab: TrainTab, finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    score, gain = Interval(0.8, 0.75, 0.85), Interval(0.1, 0.05, 0.15)
    verdict = Verdict("F1", score, "", gain, None, 30, 60, None, None)
    monkeypatch.setattr(report, "run_verdict", lambda run, summary: verdict)

    def press(**sent: Any) -> Any:
        return tab.on_press(NOBODY, gr.EventData(None, sent), finished.id)

    press(do="threshold", what="0.465")
    assert decision_rule.read_rule(finished.best).threshold == 0.465
    drawn = run_view.verdict(finished, finished.state())
    assert "Evaluate more often" in drawn  # once says nothing of its course
    assert press(do="advice")[tab.form["eval_steps"]] == "1"


def marks(parts: live_updates.Parts) -> dict[str, str]:
    return {name: mark for name, (mark, _) in parts.items()}


def test_a_page_that_watches_is_told_what_is_new(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, adopt: Callable[[Run], None]
) -> None:
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


def test_every_phase_and_every_ending_has_a_lesson() -> None:
    running = [RunSummary(status="running", phase=phase) for phase in ("", "of later", *Phase)]
    ended = [RunSummary(status=status) for status in (*ENDED, "waiting")]  # type: ignore[arg-type]
    for summary in (*running, *ended):
        drawn = live_updates.lesson(live_updates.moment(summary))
        assert 'href="https://huggingface.co/learn/llm-course/chapter' in drawn
        assert 'target="_blank" rel="noopener"' in drawn
        assert drawn.count('aria-current="step"') == (summary.status == "running")
    for detail, lesson in (("glue/mrpc", "data"), ("bert-base-uncased", "checkpoint")):
        summary = RunSummary(status="running", phase=Phase.DOWNLOAD, detail=detail)
        assert live_updates.moment(summary, "glue/mrpc") == lesson


@pytest.mark.parametrize("token", [MARKUP, "\u05e9\u05dc\u05d5\u05dd", "\u202e", " cat", "\n"])
def test_any_token_of_a_batch_is_shown_and_never_obeyed(token: str) -> None:
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


def search(tab: TrainTab, config: RunConfig, choice: Choice, **drawn: str) -> list[Any]:
    """What a search is sent, before its number of trials and after its limits."""
    others = [SEARCH, *[control.value for control in tab.several[1:]], *form_values(config)]
    boxes = [drawn.get(name, "") for name in train_plan.FIELDS]
    return [boxes, [*others, *engine_values(tab.engine, choice)]]


def test_a_search_on_jobs_needs_a_number_of_trials_and_a_token_and_says_its_price(
    tab: TrainTab, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune.hub.client.stored_token", lambda: None)
    job = Choice("hub-job", {"flavor": "t4-small"}, True, {"t4-small": 0.4})
    boxes, others = search(tab, RunConfig(), job, **{train_plan.FIELDS[0]: "1..3"})
    for trials, said in ((0, "each trial is billed"), (3, "You are not signed in")):
        updates = tab.on_search(NOBODY, None, *boxes, trials, 9, 1, False, *others)
        assert said in str(updates[tab.message])
    assert studies(store) == []
    updates = tab.on_search_time(NOBODY, *boxes, 3, 0, 1, False, *others)
    assert "All its trials together cost at most $0.60." in str(updates[tab.planned])


def test_the_page_says_that_the_form_lies_outside_of_what_is_searched(tab: TrainTab) -> None:
    def said(epochs: int, drawn: str) -> str:
        config = RunConfig(num_train_epochs=epochs)
        boxes, others = search(tab, config, Choice(), num_train_epochs=drawn)
        updates = tab.on_search_time(NOBODY, *boxes, 5, 0, 1, False, *others)
        return str(updates[tab.planned])

    told = "own settings, outside of what is searched: Epochs 10 (1..3). Nothing else is"
    assert told in said(10, "1..3")
    assert "outside" not in said(10, "1..10")
    assert "Epochs 4 (1..3)" in said(0, "1..3")  # chosen by the pairs


def test_a_run_goes_on_with_what_a_terminal_chose_for_its_job() -> None:
    """The page has no field for the image and for who pays."""
    own = {"image": "python:3.13", "namespace": "team", "flavor": "cpu-basic"}
    former = make_spec("hub-job", own)
    values = {"flavor": "t4-small", "minutes": "20", "dollars_a_run": "1", "dollars_a_day": "5"}
    choice = Choice("hub-job", values, prices={"t4-small": 0.4})
    options = choice.spec(former).options
    assert options == former.options | {"flavor": "t4-small", "minutes": 20, "price": 0.4}
    assert choice.spec(make_spec("ray", {"nodes": 2})) == choice.spec()


def test_checkpoints_are_compared_by_who_asked_and_one_is_chosen(
    tab: TrainTab, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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
