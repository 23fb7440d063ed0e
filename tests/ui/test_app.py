"""The page's callbacks as plain functions, its form, and what it does at start."""

from __future__ import annotations

import base64
import dataclasses
import html
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
import orjson
import pytest
from gradio import http_server, oauth
from gradio.exceptions import ServerFailedToStartError
from gradio.helpers import special_args

from finetune import config, uploads
from finetune.config import RunConfig
from finetune.data import splits
from finetune.environment import hub_connection
from finetune.errors import ConfigError, DataError
from finetune.inference import decision_rule
from finetune.jobs import service
from finetune.jobs.queue import Queue
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import fold_events
from finetune.ui import answer_view, app, charts, feedback, form, live_updates, run_view
from finetune.ui.tabs.predict import PredictTab
from finetune.ui.tabs.publish import PublishTab
from finetune.ui.tabs.train import TrainTab
from tests.support import toys
from tests.support.tabs import push_form
from tests.support.toys import story
from tests.ui.conftest import Server

ROOT = Path(__file__).resolve().parent.parent.parent
NOBODY: Any = None  # who calls a callback from here
ONE_RUN = (1, "", "", "")  # neither seeds nor a grid
Tabs = tuple[TrainTab, PredictTab, PublishTab]
MARKUP = "<script>alert(1)</script>"


def form_values(config: RunConfig) -> list[Any]:
    """What the form's controls show for a configuration."""
    return [getattr(config, name) for name in form.NAMES]


def draw_train(store: RunStore) -> TrainTab:
    """The Train tab on a page of its own, with Data's chooser of pairs."""
    tab = TrainTab(store)
    with gr.Blocks():
        tab.draw(form.draw_data())
        tab.filled = [*tab.form.values(), gr.Dropdown()]
    return tab


@pytest.fixture(scope="module")
def module_tabs(tmp_path_factory: pytest.TempPathFactory) -> Tabs:
    """Tabs over a folder of runs; drawing them takes as long as many a test."""
    store = RunStore(tmp_path_factory.mktemp("tabs") / "runs")
    tabs = draw_train(store), PredictTab(store), PublishTab(store)
    with gr.Blocks():
        tabs[1].draw_memory()
        tabs[1].draw()
        tabs[2].draw()
    return tabs


@pytest.fixture
def store(module_tabs: Tabs) -> Iterator[RunStore]:
    yield module_tabs[0].store
    shutil.rmtree(module_tabs[0].store.root, ignore_errors=True)


@pytest.fixture
def tabs(module_tabs: Tabs, store: RunStore) -> Tabs:
    return module_tabs


def test_the_form_draws_every_field_and_reads_what_it_shows() -> None:
    with gr.Blocks():
        controls = form.draw(form.draw_data())
    assert list(controls) == list(form.NAMES)
    for name, control in controls.items():
        assert control.label == name
        assert control.info == config.knobs()[name].help
    assert form.read([control.value for control in controls.values()]) == RunConfig()


def test_the_form_reads_what_it_shows() -> None:
    chosen = RunConfig(learning_rate=3e-4, num_train_epochs=7, lr_scheduler_type="cosine")
    assert form.read(form_values(chosen)) == chosen


def test_a_wrong_form_names_the_fields_and_starts_nothing(
    tabs: tuple[TrainTab, PredictTab, PublishTab], store: RunStore
) -> None:
    values = form_values(RunConfig())
    values[form.NAMES.index("learning_rate")] = None
    values[form.NAMES.index("num_train_epochs")] = 0
    message = tabs[0].on_start(NOBODY, *ONE_RUN, *values)[tabs[0].message]
    assert 'role="alert"' in message
    assert "learning_rate" in message
    assert "num_train_epochs" in message
    assert store.runs() == []


def costs(train: TrainTab, config: RunConfig) -> str:
    """What Train shows of a form's costs."""
    return str(train.on_costs(NOBODY, *ONE_RUN, *form_values(config))[train.costs])


def test_lengths_follow_the_checkpoint(
    tabs: tuple[TrainTab, PredictTab, PublishTab], toy_checkpoint: Path
) -> None:
    config = RunConfig(checkpoint=str(toy_checkpoint), max_length=64)
    values = form_values(config)
    assert "A part of the pairs is measured now." in costs(tabs[0], config)
    tabs[0].on_measure(NOBODY, *ONE_RUN, *values)
    assert "max_length 64 cuts" in costs(tabs[0], config)
    values[form.NAMES.index("learning_rate")] = None
    assert tabs[0].on_measure(NOBODY, *ONE_RUN, *values) == gr.skip()


def test_seeds_and_a_grid_are_counted_before_they_are_queued(
    tabs: tuple[TrainTab, PredictTab, PublishTab],
) -> None:
    train, values = tabs[0], form_values(RunConfig())
    for several, words in (
        (ONE_RUN, ""),
        ((3.0, "", "", ""), "Train queues 3 runs."),
        ((2, "1e-5, 2e-5", "", ""), "Train queues 4 runs in 2 groups."),
        ((None, "1e-5, 2e-5", "8, 16", ""), "Train queues 4 runs."),
    ):
        planned = train.on_costs(NOBODY, *several, *values)[train.planned]
        assert words in planned
        assert bool(planned) == bool(words)
    wrong = train.on_costs(NOBODY, 0, "high", "", "", *values)
    for shown in (wrong[train.planned], wrong[train.costs]):
        assert "from 1 to 100, got 0" in shown
        assert "got &#39;high&#39;" in shown


def test_the_command_starts_the_same_from_where_the_page_keeps_it(
    tabs: Tabs,
    store: RunStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "tickets.csv"
    file.write_text("sentence1,sentence2,label\na,b,0\n")
    upload = store.uploads.add({"train": file})
    shown = html.unescape(costs(tabs[0], RunConfig(dataset=upload, seed=7)))
    line = shlex.split(shown.split("<code>")[1].split("</code>")[0])
    assert line[4:] == [
        "--runs", str(store.root.resolve()),
        "--train_file", str(store.uploads.files(upload)["train"].resolve()), "--seed", "7",
    ]  # fmt: skip
    monkeypatch.setenv("FINETUNE_VISITORS", "1")  # where is then nobody's business
    shown = costs(tabs[0], RunConfig(seed=7))
    assert "<code>python -m finetune train --seed 7</code>" in shown


def test_a_run_that_waits_to_go_on_can_be_stopped(tabs: Tabs, store: RunStore) -> None:
    run = store.create(RunConfig())
    for event in [*story()[:-2], events.Stopped(step=8, seconds=1.0)]:
        run.append(event)
    run.request_stop()
    train = tabs[0]
    assert not train.on_turn(NOBODY, run.id)[train.stop]["interactive"]
    Queue(store.root).add(run.id)
    assert train.on_turn(NOBODY, run.id)[train.stop]["interactive"]


def test_a_run_that_learned_nothing_does_not_look_like_a_success(store: RunStore) -> None:
    run = store.create(RunConfig())

    def ending(**scores: float) -> str:
        history = [
            dataclasses.replace(
                event, metrics=event.metrics | scores, intervals={"f1": [0.7, 0.76]}
            )
            if isinstance(event, events.Evaluated)
            else event
            for event in story()
        ]
        return run_view.status_html(run, fold_events(history))

    assert "ft-good" in ending(f1=0.8)
    assert 'data-tab="publish"' in ending(f1=0.8)
    constant = ending(accuracy=0.6, f1=0.75)  # the majority's own
    assert "always giving the same answer" in constant
    below = ending(accuracy=0.6, f1=0.74)
    assert "always giving" not in below
    assert "is not above the best baseline" in below
    for ended in (constant, below):
        assert "ft-good" not in ended
        assert "ft-warn" in ended
        assert "more epochs" in ended
        assert 'data-tab="publish"' not in ended


@pytest.mark.parametrize(
    ("events_so_far", "words"),
    [(2, "no model to keep"), (6, "kept as it is"), (-1, "the best model is kept")],
)
def test_stop_says_what_it_will_keep(
    tabs: Tabs, store: RunStore, words: str,
    events_so_far: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(service, "stop_run", lambda *values: None)
    run = store.create(RunConfig())
    for event in story()[:events_so_far]:
        run.append(event)
    assert words in tabs[0].on_stop(NOBODY, run.id)[tabs[0].message]


def test_a_form_once_trained_with_is_kept_in_the_browser(
    tabs: Tabs, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = RunConfig(learning_rate=3e-4, num_train_epochs=7)
    monkeypatch.setattr(
        service, "start_runs", lambda store, configs, groups: [store.create(one) for one in configs]
    )
    train = tabs[0]
    kept = train.on_start(NOBODY, *ONE_RUN, *form_values(chosen))[train.kept]
    restored = train.on_restore(NOBODY, kept)
    for chooser in (train.form["dataset"], train.filled[-1]):
        assert restored[chooser]["value"] == chosen.dataset
    for name in form.NAMES:
        assert name == "dataset" or restored[train.form[name]] == getattr(chosen, name)


@pytest.mark.parametrize("kept", [None, 7, [], {"learning_rate": "x"}, {"of_another_version": 1}])
def test_what_cannot_be_restored_leaves_the_form(
    tabs: tuple[TrainTab, PredictTab, PublishTab], kept: Any
) -> None:
    train = tabs[0]
    restored = train.on_restore(NOBODY, kept)
    assert set(restored) == {train.form["dataset"], train.filled[-1]}
    assert not [update for update in restored.values() if "value" in update]


def marks(told: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {name: mark for name, (mark, _) in told.items()}


def test_an_untouched_page_is_told_nothing_twice(store: RunStore, finished: Run) -> None:
    first = live_updates.changes(store, finished, {})
    assert "Finished" in first["status"][1]
    assert live_updates.changes(store, finished, marks(first)) == {}


def test_a_page_that_watches_is_told_what_is_new(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, adopt: Callable[[Run], None]
) -> None:
    monkeypatch.setattr(live_updates, "FRESH", 0.0)
    run = store.create(RunConfig())
    told = story()
    for event in told[:5]:
        run.append(event)
    adopt(run)
    first = live_updates.changes(store, run, {})
    assert first["state"][1] == "running"
    run.append(told[5])
    second = live_updates.changes(store, run, marks(first))
    # A quarter of the steps is told aloud; the scores, the log and the state have not changed.
    assert set(second) == {"status", "loss", "announced"}
    assert "50% of the steps" in second["announced"][1]
    assert "Training loss" in second["loss"][1]
    assert "step 4 of 8" in second["status"][1]
    run.append(events.Finished(step=8, seconds=3.0))
    third = live_updates.changes(store, run, marks(first | second))
    assert third["state"][1] == "finished"
    assert "Finished" in third["announced"][1]


def test_a_damaged_configuration_hides_neither_curves_nor_cause(
    store: RunStore, finished: Run
) -> None:
    finished.append(events.Failed(error="The disk is full."))
    finished.log_file.write_text("what it printed")
    (finished.folder / "config.json").write_text("{")
    told = live_updates.changes(store, finished, {})
    assert "config.json" in told["status"][1]
    assert "cannot be read" in told["status"][1]
    assert "The disk is full." in told["status"][1]
    assert "Training loss" in told["loss"][1]
    assert told["log"][1] == "what it printed"


def test_what_many_watch_is_drawn_once(
    store: RunStore, finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = live_updates.changes(store, finished, {})
    monkeypatch.setattr(charts, "loss_chart", lambda summary: pytest.fail("drawn again"))
    for _ in range(50):
        assert live_updates.changes(store, finished, {}) == first


@pytest.mark.parametrize(("watchers", "wait"), [(1, 400), (8, 400), (20, 1000), (50, 1600)])
def test_the_more_watch_the_more_seldom_each_asks(
    store: RunStore, watchers: int, wait: int
) -> None:
    pace, run = live_updates.Pace(), store.create(RunConfig())
    due = [(number / watchers, number) for number in range(watchers)]
    told: list[list[int]] = [[] for _ in due]
    while (asked := min(due))[0] < 30:
        now, number = asked
        told[number].append(pace.wait(run, now))
        due[number] = (now + told[number][-1] / 1000, number)
    late = [ms for mine in told for ms in mine[-5:]]
    assert min(late) >= 0.9 * wait
    assert max(late) <= 1.15 * wait


def test_who_looks_at_a_run_that_has_ended_asks_more_seldom(
    store: RunStore, finished: Run, adopt: Callable[[Run], None]
) -> None:
    running = store.create(RunConfig())
    running.append(story()[0])
    adopt(running)
    for run, wait in ((running, 400), (finished, 1000)):
        live_updates.changes(store, run, {})
        assert live_updates.Pace().wait(run) == wait


def test_opening_the_page_finds_the_newest_run(
    tabs: tuple[TrainTab, PredictTab, PublishTab], finished: Run
) -> None:
    train = tabs[0]
    shown = train.on_open(NOBODY)
    assert shown[train.runs]["value"] == shown[train.live] == finished.id
    assert not shown[train.stop]["interactive"]
    assert not shown[train.resume]["visible"]


def test_a_run_deleted_while_watched_is_no_error(
    tabs: Tabs, finished: Run, store: RunStore
) -> None:
    store.delete(finished)
    train = tabs[0]
    assert train.on_turn(NOBODY, finished.id)[train.live] == ""
    assert "no such run" in train.on_stop(NOBODY, finished.id)[train.message]


@pytest.mark.parametrize("wrong", ["../x", "/etc/passwd", "x" * 10**6, 7, None])
def test_another_id_is_no_such_run(tabs: Tabs, wrong: Any) -> None:
    train, predict, publish = tabs
    assert "no such run" in train.on_stop(NOBODY, wrong)[train.message]
    answer = predict.on_ask(NOBODY, wrong, "a", "b", False, False, False)[predict.answer]
    assert "no such run" in answer
    asked = push_form(publish, wrong)
    for handler in (publish.on_push, publish.on_check):
        assert "no such run" in handler(NOBODY, asked, None)[publish.plan]


def test_the_default_is_what_can_run(tabs: Tabs, monkeypatch: pytest.MonkeyPatch) -> None:
    for is_there, words in ((True, "The Hub answers"), (False, "does not answer")):
        monkeypatch.setattr(hub_connection, "hub_is_reachable", lambda found=is_there: found)
        said = tabs[0].on_hub()
        assert words in said
        assert ("data-answers" in said) == is_there


def test_predicting_through_the_tab(
    tabs: tuple[TrainTab, PredictTab, PublishTab], finished: Run
) -> None:
    tab, pair = tabs[1], ("the cat sees a dog .", "a cat sees the dog .")
    shown = tab.on_ask(NOBODY, finished.id, *pair, False, False, False)
    assert 'id="label"' in shown[tab.answer]
    assert "not_equivalent" in shown[tab.answer]
    assert shown[tab.why]["visible"]
    entry = json.loads(shown[tab.entry])
    asked = (entry["sentence1"], entry["prediction"], entry["label"])
    assert asked == (pair[0], "not_equivalent", "")
    entries = [entry, entry | {"n": 7, "label": "equivalent"}, "nonsense"]
    history = tab.on_history(NOBODY, entries)[tab.history]
    assert "your verdict" in history
    assert re.findall(r'data-place="(\d+)"', history) == ["7", "0"]
    decision_rule.write_rule(finished.best, threshold=0.001, positive="equivalent")
    for threshold, label in ((False, "not_equivalent"), (True, "equivalent")):
        shown = tab.on_ask(NOBODY, finished.id, *pair, False, threshold, False)
        assert f'id="label">{label}<' in shown[tab.answer]
        question = shown[tab.question]
        # Whatever stands in the boxes by now.
        reasons = tab.on_why(NOBODY, question)[tab.reasons]
        assert f"Why \u201c{label}\u201d" in reasons
        assert f'data-of="{json.loads(question)["id"]}"' in reasons
    for wrong in ("", "7", "{}", '{"id": 1, "run": 1, "sentences": ["a"], "options": []}', None):
        assert "Nothing was asked yet" in tab.on_why(NOBODY, wrong)[tab.reasons]
    failed = tab.on_ask(NOBODY, finished.id, "cat", " ", False, False, False)
    assert failed[tab.question] == failed[tab.entry] == ""
    assert "sentence2 is empty" in failed[tab.answer]
    assert not failed[tab.why]["visible"]


def test_of_another_model_nothing_was_asked_yet(
    tabs: tuple[TrainTab, PredictTab, PublishTab], finished: Run
) -> None:
    tab = tabs[1]
    question = tab.on_ask(NOBODY, finished.id, "a cat", "a dog", False, False, False)[tab.question]
    assert tab.on_other_model(NOBODY, finished.id, question) == gr.skip()  # the chooser was left
    assert tab.on_other_model(NOBODY, "another", "") == gr.skip()
    shown = tab.on_other_model(NOBODY, "another", question)
    assert "The answer appears here" in shown[tab.answer]
    assert (shown[tab.why]["visible"], shown[tab.reasons]) == (False, "")


def test_a_sentence_that_cannot_be_sent_is_kept_as_one_that_can(tabs: Tabs, finished: Run) -> None:
    """Half of an emoji, pasted: what is remembered of it must not close the tab for good."""
    tab, asked = tabs[1], ("the cat \ud83d", "a dog")
    shown = tab.on_ask(NOBODY, finished.id, *asked, False, False, False)
    assert orjson.dumps(shown[tab.question])
    entry = json.loads(orjson.dumps(json.loads(shown[tab.entry])))  # as Gradio sends it
    assert entry["sentence1"] == "the cat ?"
    former = [entry | {"sentence1": asked[0], "labels": ["\ud800"]}]  # of an older version
    for drawn in (tab.on_history(NOBODY, former), tab.on_open(NOBODY, None, former)):
        assert orjson.dumps(str(drawn[tab.history]))


def test_a_typed_classifier_of_the_hub_stays_chosen(
    tabs: tuple[TrainTab, PredictTab, PublishTab], finished: Run
) -> None:
    tab = tabs[1]
    for chosen, kept in (("ada/judge", "ada/judge"), ("gone", finished.id), (None, finished.id)):
        assert tab.on_open(NOBODY, chosen, [])[tab.run]["value"] == kept


@pytest.mark.parametrize("second", ["", "a dog ."])
def test_what_was_tried_can_be_trained_on(second: str, tmp_path: Path) -> None:
    tried = [
        {
            "when": "2026-01-01 10:00", "model": "x", "sentence1": f"the {one} {verb} .",
            "sentence2": second and f"{second} {n}", "prediction": "calm", "probability": 0.9,
            "label": "glad" if n % 2 else "calm", "labels": ["calm", "glad"], "n": n,
        }
        for n, (one, verb) in enumerate(itertools.product(toys.ANIMALS, toys.VERBS))
    ]  # fmt: skip
    found = re.search(r'base64,([^"]+)"', answer_view.history(tried))
    assert found is not None
    path = tmp_path / "tried.csv"
    path.write_bytes(base64.b64decode(found[1]))
    dataset = uploads.Uploads(tmp_path / "uploads").add({"train": path})
    pairs = splits.load_pairs(RunConfig(dataset=dataset), tmp_path)
    columns = pairs.splits["train"].column_names
    assert ("sentence2" in columns) == bool(second)
    assert pairs.labels == ["calm", "glad"]
    assert sum(map(len, pairs.splits.values())) == len(tried)


def test_markup_is_shown_not_run(tabs: Tabs, store: RunStore) -> None:
    run = store.create(RunConfig(name=MARKUP))
    run.append(events.Failed(error=MARKUP, remedy=MARKUP))
    for text in (
        run_view.status_html(run, store.summary(run)),
        feedback.show_errors(DataError(MARKUP, MARKUP)),
        feedback.show_errors(ConfigError({MARKUP: MARKUP})),
        feedback.note(MARKUP),
    ):
        assert "<script" not in text
        assert "&lt;script" in text
    from finetune.inference.predictor import Prediction

    odd = Prediction(MARKUP, {MARKUP: 1.0}, [0.0], 1, 0, 0.1)
    assert "<script" not in answer_view.answer(odd)


def test_a_bug_is_an_apology_with_a_reference(caplog: pytest.LogCaptureFixture) -> None:
    text = feedback.show_errors(RuntimeError("secret detail"))
    assert "secret detail" not in text
    reference = text.split("reference ")[1][:8]
    assert reference in caplog.text
    assert "secret detail" in caplog.text


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (events.Finished(step=8, seconds=1.0), ["Finished", "Predict", "Publish"]),
        (events.Finished(step=4, seconds=1.0, early=True), ["ended early", "stopped rising"]),
        (events.Stopped(step=4, seconds=1.0), ["Stopped", "Resume"]),
        (events.Failed(error="It broke.", remedy="Mend it."), ["Failed", "It broke.", "Mend it."]),
    ],
)
def test_an_ending_says_what_to_do_next(
    store: RunStore, ending: events.Event, words: list[str]
) -> None:
    run = store.create(RunConfig())
    run.append(ending)
    text = run_view.status_html(run, store.summary(run))
    assert all(word in text for word in words)


def test_curves_are_thinned_for_display_and_keep_their_ends() -> None:
    steps = [e for e in story() if isinstance(e, events.Stepped)]
    many = [dataclasses.replace(steps[0], step=n) for n in range(1, 100_001)]
    kept = charts.thinned(many)
    assert len(kept) <= charts.POINTS + 1
    assert (kept[0].step, kept[-1].step) == (1, 100_000)
    assert len(charts.loss_chart(fold_events(many))) < 20_000


def test_the_facts_name_several_processes_and_summed_batches(store: RunStore) -> None:
    run = store.create(RunConfig())
    for event in story():
        if isinstance(event, events.Started):
            event = dataclasses.replace(event, device="CPU", processes=2)
        if isinstance(event, events.Prepared):
            event = dataclasses.replace(
                event, per_device_train_batch_size=4, gradient_accumulation_steps=3
            )
        run.append(event)
    text = run_view.status_html(run, store.summary(run))
    assert "on 2 \u00d7 CPU" in text
    assert "3 batches of 4 a step" in text


@pytest.mark.parametrize(
    "points",
    [
        [(1.0, 0.5)],
        [(1.0, 0.0), (2.0, 0.0)],
        [(1.0, 0.121), (2.0, 0.847)],
        [(1.0, 1e9), (2.0, 1e-9)],
        [(5.0, -3.0)],
    ],
)
def test_any_points_can_be_drawn(points: list[charts.Point]) -> None:
    drawn = charts.chart("x", [charts.Series("s", "loss", points)], 0, "")
    positions = [float(p) for p in re.findall(r"(?:left|top):([-\d.]+)%", drawn)]
    assert positions
    assert all(-0.01 <= p <= 100.01 for p in positions)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert run_view.duration(seconds) == text


def test_the_page_is_made_of_five_tabs(store: RunStore) -> None:
    made = app.build(store)
    labels = [b.label for b in made.blocks.values() if isinstance(b, gr.Tab)]
    assert labels == ["Data", "Train", "Runs", "Predict", "Publish"]


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


SPY = """
import socket, sys
allowed = {"127.0.0.1", "::1", "localhost", "0.0.0.0"}
def audit(event, args):
    if event == "socket.getaddrinfo" and args[0] not in allowed and args[0] is not None:
        print("OUTSIDE", args[0], file=sys.stderr, flush=True)
    if event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] not in allowed:
        print("OUTSIDE", args[1], file=sys.stderr, flush=True)
sys.addaudithook(audit)
"""


def test_the_app_starts_without_torch_and_asks_nobody_outside(tmp_path: Path) -> None:
    code = SPY + textwrap.dedent(
        f"""
        import time, urllib.request
        sys.argv = ["app.py", "--runs", {str(tmp_path)!r}, "--port", "0"]
        import app
        from finetune.ui import app as page
        real = page.launch
        def launch(made, store, **options):
            real(made, store, prevent_thread_lock=True, quiet=True)
            print(urllib.request.urlopen(made.local_url).status, "torch" in sys.modules)
            time.sleep(1)
        page.launch = launch
        app.main()
        """
    )
    done = python(code)
    assert "200 False" in done.stdout, done.stderr
    assert "OUTSIDE" not in done.stderr
    assert done.returncode == 0, done.stderr


def test_the_spy_sees_an_outside_host() -> None:
    code = SPY + "\ntry: socket.create_connection(('192.0.2.1', 9), 0.01)\nexcept OSError: pass"
    assert "OUTSIDE" in python(code).stderr


def test_on_a_space_the_page_signs_in_and_asks_for_no_token(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "SYSTEM": "spaces", "SPACE_ID": "ada/x", "SPACE_HOST": "ada-x.hf.space",
        "OAUTH_CLIENT_ID": "i", "OAUTH_CLIENT_SECRET": "s", "OAUTH_SCOPES": "openid",
        "OPENID_PROVIDER_URL": os.environ["HF_ENDPOINT"],
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
        monkeypatch.setattr(oauth, name, value, raising=False)  # read when it was imported
    blocks = app.build(store)
    assert any(isinstance(block, gr.LoginButton) for block in blocks.blocks.values())
    assert "token" not in [block.elem_id for block in blocks.blocks.values()]
    push = next(fn.fn for fn in blocks.fns.values() if fn.name == "on_push")
    assert push is not None
    assert special_args(push, [{}])[0][-1] is None  # nobody has signed in


def test_a_path_in_place_of_an_upload_reads_nothing(server: Server, tmp_path: Path) -> None:
    """A client may send any value to any endpoint: a path of the server's own is refused."""
    secret = tmp_path / "secret.csv"
    secret.write_text("sentence1,sentence2,label\na,b,1\nc,d,0\n")
    file = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}
    body = {"data": [file, None, None], "fn_index": server.event("on_upload"), "session_hash": "x"}
    answer = httpx.post(f"{server.url}gradio_api/run/predict", json=body, timeout=30)
    assert answer.status_code >= 400 or "error" in answer.json()
    assert not (server.store.root / "uploads").exists()


def test_an_app_that_loses_its_port_takes_another(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when two start at once: the server had begun before it found its port taken."""
    run = http_server.Server.run_in_thread
    begun: list[http_server.Server] = []

    def late(server: http_server.Server) -> None:
        begun.append(server)
        assert len(begun) <= 3  # not a hundred times
        run(server)
        if len(begun) == 1:
            server.close()
            raise ServerFailedToStartError("the port is taken")

    monkeypatch.setattr(http_server.Server, "run_in_thread", late)
    made = app.build(store)
    _, url, _ = app.launch(made, store, prevent_thread_lock=True, quiet=True)
    try:
        assert httpx.get(url).status_code == 200
    finally:
        made.close()
    assert len(begun) == 2
