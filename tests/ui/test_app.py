"""The page's callbacks as plain functions, its form, and what it does at start."""

from __future__ import annotations

import html
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import numpy as np
import pyarrow as pa
import pytest

from finetune import config, owners
from finetune.config import RunConfig
from finetune.environment import devices
from finetune.errors import ConfigError, DataError
from finetune.evaluation import report, saved_predictions
from finetune.evaluation.report import Verdict
from finetune.inference import decision_rule
from finetune.inference.predictor import Prediction
from finetune.metrics.intervals import Interval
from finetune.metrics.selection import CrossFittedThresholds
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui import charts, feedback, form, live_updates, run_view
from finetune.ui.engine_form import Choice
from finetune.ui.html import macro
from finetune.ui.tabs.predict import PredictTab
from finetune.ui.tabs.publish import PublishTab
from finetune.ui.tabs.train import TrainTab
from tests.support import toys
from tests.support.engines import engine_values
from tests.support.tabs import NOBODY, draw_train, form_values, predict_tab, publish_tab, push_form
from tests.support.toys import story

ROOT = Path(__file__).resolve().parent.parent.parent
ONE_RUN = ("once", "3", "1e-5, 2e-5", "", "")  # whatever stands in the boxes of the others
Tabs = tuple[TrainTab, PredictTab, PublishTab]
MARKUP = "<script>alert(1)</script>"
PAIR = ("the cat sees a dog .", "a cat sees the dog .")


@pytest.fixture(scope="module")
def module_tabs(tmp_path_factory: pytest.TempPathFactory) -> Tabs:
    """Tabs over a folder of runs; drawing them takes as long as many a test."""
    store = RunStore(tmp_path_factory.mktemp("tabs") / "runs")
    return draw_train(store), predict_tab(store), publish_tab(store)


@pytest.fixture
def store(module_tabs: Tabs) -> Iterator[RunStore]:
    yield module_tabs[0].store
    shutil.rmtree(module_tabs[0].store.root, ignore_errors=True)


@pytest.fixture
def train(module_tabs: Tabs, store: RunStore) -> TrainTab:
    return module_tabs[0]


@pytest.fixture
def predict(module_tabs: Tabs, store: RunStore) -> PredictTab:
    return module_tabs[1]


def record(store: RunStore, *history: events.Event) -> Run:
    """A run with these events."""
    run = store.create(RunConfig())
    for event in history:
        run.append(event)
    return run


def test_the_form_draws_every_field_and_reads_what_it_shows() -> None:
    with gr.Blocks():
        controls = form.draw_advanced(form.draw_data()[0] | form.draw_common())
    assert list(controls) == list(form.NAMES)
    for name, control in controls.items():
        field = config.hyperparameters()[name]
        assert (control.label, control.info) == (field.label, f"`{name}` {field.help}")
    assert form.read([control.value for control in controls.values()]) == RunConfig()
    changed = RunConfig(learning_rate=3e-4, num_train_epochs=7, lr_scheduler_type="cosine")
    assert form.read(form_values(changed)) == changed


def costs(train: TrainTab, config: RunConfig) -> str:
    """What Train shows of a form's costs."""
    values = [*form_values(config), *engine_values(train.engine, Choice())]
    return str(train.on_costs(NOBODY, *ONE_RUN, *values)[train.costs])


def test_costs_follow_the_checkpoint_and_count_seeds_and_a_grid(
    train: TrainTab, toy_checkpoint: Path
) -> None:
    config = RunConfig(checkpoint=str(toy_checkpoint), max_length=64)
    values = [*form_values(config), *engine_values(train.engine, Choice())]
    assert "A part of the pairs is measured now." in costs(train, config)
    assert train.unmeasured in train.on_costs(NOBODY, *ONE_RUN, *values)
    assert train.cost_asked in train.on_measure(NOBODY, *ONE_RUN, *values)
    assert "“Maximum length” 64 cuts" in costs(train, config)
    assert train.unmeasured not in train.on_costs(NOBODY, *ONE_RUN, *values)
    assert train.on_measure(NOBODY, *ONE_RUN, *values) == gr.skip()
    for several, words in (
        (("seeds", "3", "1e-5, 2e-5", "", ""), "Train queues 3 runs."),
        (("grid", "2", "1e-5, 2e-5", "", ""), "Train queues 4 runs."),
        (("grid", "", "1e-5, 2e-5", "8, 16", ""), "Train queues 4 runs."),
    ):
        assert words in train.on_costs(NOBODY, *several, *values)[train.planned]
    assert train.on_costs(NOBODY, *ONE_RUN, *values)[train.planned] == ""
    wrong = train.on_costs(NOBODY, "grid", "0", "high", "", "", *values)
    for words in ("from 1 to 100, got 0", "got &#39;high&#39;"):
        assert words in wrong[train.costs]


def test_what_an_empty_box_comes_to_is_told_for_these_pairs(
    train: TrainTab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(**values: Any) -> dict[str, str]:
        shown = html.unescape(costs(train, RunConfig(**values)))
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
    train: TrainTab, store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tickets.csv"
    file.write_text("sentence1,sentence2,label\na,b,0\n")
    upload = store.uploads.add({"train": file})
    shown = html.unescape(costs(train, RunConfig(dataset=upload, seed=7)))
    line = shlex.split(shown.split("<code>")[1].split("</code>")[0])
    assert line[4:] == [
        "--runs", str(store.root.resolve()),
        "--train_file", str(store.uploads.files(upload)["train"].resolve()), "--seed", "7",
    ]  # fmt: skip
    monkeypatch.setenv("FINETUNE_VISITORS", "1")  # where is then nobody's business
    shown = costs(train, RunConfig(seed=7))
    assert "<code>python -m finetune train --seed 7</code>" in shown


def test_the_newest_run_is_shown_and_another_id_is_no_such_run(
    module_tabs: Tabs, finished: Run, store: RunStore
) -> None:
    train, predict, publish = module_tabs
    assert "no such run" in train.on_arrival(NOBODY, "run=gone")[train.message]
    shown = train.on_turn(NOBODY, "")
    assert shown[train.live] == finished.id
    assert finished.title() in shown[train.title]
    assert shown[train.start] == "Train"
    store.delete(finished)
    assert train.on_turn(NOBODY, finished.id)[train.live] == ""
    for wrong in (finished.id, "../x", "/etc/passwd", "x" * 10**6, 7, None):
        form = push_form(publish, wrong)
        for answer in (
            train.on_press(NOBODY, gr.EventData(None, {"do": "stop"}), wrong)[train.notice],
            predict.on_ask(NOBODY, wrong, "a", "b", False, False, False)[predict.answer],
            publish.on_push(NOBODY, form, None)[publish.plan],
            publish.on_check(NOBODY, form, None)[publish.plan],
        ):
            assert "no such run" in answer


@pytest.mark.parametrize(
    ("gain", "always", "words"),
    [
        ((0.10, 0.05, 0.15), None, "Better than the baselines: F1 0.800"),
        ((0.02, -0.03, 0.07), None, "Not surely better"),
        ((-0.2, -0.3, -0.1), None, "Worse than a baseline"),
        ((0.0, -0.1, 0.1), "equivalent", "It always answers equivalent"),
    ],
)
def test_the_verdict_says_whether_a_run_was_worth_it_and_what_to_do_next(
    train: TrainTab, finished: Run, monkeypatch: pytest.MonkeyPatch,
    gain: tuple[float, float, float], always: str | None, words: str,
) -> None:  # fmt: skip
    score = Interval(0.8, 0.75, 0.85)
    better = CrossFittedThresholds((0.465,), Interval(0.872, 0.83, 0.9), Interval(0.07, 0.02, 0.1))
    verdict = Verdict("F1", score, "TF-IDF", Interval(*gain), always, 12, 60, better, None)
    monkeypatch.setattr(report, "run_verdict", lambda run, summary: verdict)
    drawn = run_view.verdict(finished, finished.state())
    assert words in drawn
    assert ("ft-good" in drawn) == (gain[1] > 0)
    assert "threshold 0.465: on new pairs F1 0.800 becomes about 0.872 (0.830 to 0.900)" in drawn
    assert "Read the 12 errors" in drawn
    # The buttons.
    train.on_press(NOBODY, gr.EventData(None, {"do": "threshold", "what": "0.465"}), finished.id)
    assert decision_rule.read_rule(finished.best).threshold == 0.465
    once = not always and gain[2] > 0  # it was evaluated once, which says nothing of its course
    assert ("Evaluate more often" in drawn) == once
    assert ("Weigh rare classes more" in drawn) == bool(always)
    assert ("Try another “Learning rate”" in drawn) == (not once and not always)
    advised = train.on_press(NOBODY, gr.EventData(None, {"do": "advice"}), finished.id)
    assert advised[train.form["eval_steps"]] == ("1" if once else "")


@pytest.mark.parametrize(
    ("scores", "errors", "data", "button"),
    [
        ([0.6, 0.7], 30, {}, ("Train longer", {"num_train_epochs": "2"}, "1")),
        ([0.9, 0.1], 30, {}, ("End early", {"early_stopping_patience": "3"}, "1")),
        ([0.9, 0.9], 30, {}, ("Train with 3 other seeds", {"seed": "43"}, "3")),
        ([0.9, 0.9], 2, {}, ("Read the 2 errors", {}, "part=errors")),
        ([0.9, 1.0], 0, {"rows": {"test": 9}}, ("Open the test set", {}, "part=evaluation")),
    ],
)
def test_the_one_advice_after_a_run_has_a_button(
    train: TrainTab, finished: Run, monkeypatch: pytest.MonkeyPatch, scores: list[float],
    errors: int, data: dict[str, Any], button: tuple[str, dict[str, str], str],
) -> None:  # fmt: skip
    best = max(scores)
    for step, score in zip((4, 8), scores, strict=True):
        metrics = {"f1": score, "accuracy": score}
        better = score == best and scores.index(score) == (step == 8)
        finished.append(events.Evaluated(step=step, epoch=step / 8, metrics=metrics, seconds=1.0,
                                         best=better))  # fmt: skip
        if better:
            finished.append(events.Saved(step=step))
    prepared = finished.state().prepared
    assert prepared is not None
    finished.append(prepared.model_copy(update={"data": data}))
    finished.append(events.Finished(step=8, seconds=1.0))
    gain = Interval(0.1, 0.05, 0.15)
    verdict = Verdict("F1", Interval(0.8, 0.75, 0.85), "", gain, None, errors, 60, None, None)
    monkeypatch.setattr(report, "run_verdict", lambda run, summary: verdict)
    text, changes, way = button
    (first,) = re.findall(
        r'<button[^>]*ft-primary"([^>]*)>(.*?)<', run_view.verdict(finished, finished.state())
    )
    assert first[1] == text
    if not changes:
        assert way in first[0]
        return
    advised = train.on_press(NOBODY, gr.EventData(None, {"do": "advice"}), finished.id)
    assert {name: advised[train.form[name]] for name in changes} == changes
    assert advised[train.several[1]] == way
    assert advised[train.how] == ("seeds" if way == "3" else "once")


def marks(parts: live_updates.Parts) -> dict[str, str]:
    return {name: mark for name, (mark, _) in parts.items()}


def test_a_page_that_watches_is_told_what_is_new(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, adopt: Callable[[Run], None]
) -> None:
    monkeypatch.setattr(live_updates, "FRESH", 0.0)
    run = record(store, *story()[:5])
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
    assert second["speed"][1]
    assert not second["busy"][1]  # it was not measured
    by_time, _ = live_updates.changes(store, run, marks(first | second) | {"across": "time"})
    assert set(by_time) == {"tools", "loss", "scores", *charts.SMALL}
    assert 'data-across="seconds"' in by_time["loss"][1]
    assert "step 4 of 8" in second["bar"][1]
    run.append(events.Finished(step=8, seconds=3.0))
    third, _ = live_updates.changes(store, run, marks(first | second))
    assert third["state"][1] == "finished"
    assert "Finished" in third["announced"][1]


def test_a_pair_is_asked_and_explained_through_the_tab(predict: PredictTab, finished: Run) -> None:
    tab = predict
    for chosen in (None, finished.id):  # None: Compare was pressed before the tab had chosen
        shown = tab.on_ask(NOBODY, chosen, *PAIR, False, False, False)
        assert "not_equivalent" in shown[tab.answer]
        assert shown[tab.question][0] == finished.id
    decision_rule.write_rule(finished.best, threshold=0.001, positive="equivalent")
    for threshold, label in ((False, "not_equivalent"), (True, "equivalent")):
        shown = tab.on_ask(NOBODY, finished.id, *PAIR, False, threshold, False)
        assert f'id="label">{label}<' in shown[tab.answer]
        assert shown[tab.why]["visible"]
        question = shown[tab.question]
        # Whatever stands in the boxes by now.
        reasons = tab.on_why(NOBODY, question)[tab.reasons]
        assert f"Why \u201c{label}\u201d" in reasons
    assert "Nothing was asked yet" in tab.on_why(NOBODY, None)[tab.reasons]
    # Of another model nothing was asked.
    assert tab.answer not in tab.on_run(NOBODY, finished.id, question)  # the chooser was left
    other = tab.on_run(NOBODY, "another", question)
    assert "The answer appears here" in other[tab.answer]
    assert (other[tab.why]["visible"], other[tab.reasons]) == (False, "")
    for run in ("gone", None):
        assert tab.on_open(NOBODY, run, "")[tab.run]["value"] == finished.id


def test_validation_pairs_of_both_classes_are_offered(predict: PredictTab, finished: Run) -> None:
    tab, best = predict, finished.state().best
    assert best is not None
    labels = np.arange(40) % 2
    logits = np.eye(2, dtype=np.float32)[np.where(np.arange(40) < 30, labels, 1 - labels)]
    saved_predictions.save_logits(finished, best.step, logits, labels)
    texts = pa.table(
        {
            "sentence1": [f"cat {n}" for n in range(40)],
            "sentence2": ["dog"] * 40,
            "label": labels,
        }
    )
    saved_predictions.save_examples(finished, "validation", texts)
    offered = tab.on_run(NOBODY, finished.id, None)
    pairs = offered[tab.samples]
    kinds = {(pair.label, pair.right) for pair in pairs}
    assert kinds == set(itertools.product(("not_equivalent", "equivalent"), (True, False)))
    pick = gr.EventData(None, {"do": "ask", "what": "1"})
    asked = tab.on_sample(NOBODY, pick, finished.id, pairs, False, False, False)
    assert (asked[tab.first], asked[tab.second]) == (pairs[1].sentence1, pairs[1].sentence2)
    assert "label =</span>" in asked[tab.answer]
    wrong_rows: list[Any] = ["9", "-1", None, {}]
    for wrong_row in wrong_rows:
        pick = gr.EventData(None, {"do": "ask", "what": wrong_row})
        assert tab.on_sample(NOBODY, pick, finished.id, pairs) == gr.skip()
    assert tab.on_run(NOBODY, "gone", None)[tab.offered] == ""


def test_markup_is_shown_not_run(store: RunStore) -> None:
    run = store.create(RunConfig(name=MARKUP))
    run.append(events.Failed(error=MARKUP, remedy=MARKUP))
    for text in (
        run_view.verdict(run, run.state()),
        feedback.show_errors(DataError(MARKUP, MARKUP)),
        feedback.show_errors(ConfigError({MARKUP: MARKUP})),
        feedback.note(MARKUP),
        macro("answer/classes.html", "answer")(
            Prediction(MARKUP, {MARKUP: 1.0}, [0.0], 1, 0, 0.1), MARKUP
        ),
    ):
        assert "<script" not in text
        assert "&lt;script" in text
    assert "<code>hf &lt;b&gt;</code>" in feedback.note("Sign in with `hf <b>`.")


def test_a_bug_is_an_apology_with_a_reference(caplog: pytest.LogCaptureFixture) -> None:
    text = feedback.show_errors(RuntimeError("secret detail"))
    assert "secret detail" not in text
    assert text.split("reference ")[1][:8] in caplog.text
    assert "secret detail" in caplog.text


def test_the_app_starts_without_torch_and_asks_nobody_outside(tmp_path: Path) -> None:
    code = f"""
        import socket, sys
        def audit(event, args):
            place = args[1] if event == "socket.connect" else args
            if event in ("socket.getaddrinfo", "socket.connect") and isinstance(place, tuple):
                host = place[0]
                if host not in (None, "127.0.0.1", "::1", "localhost", "0.0.0.0"):
                    print("OUTSIDE", host, file=sys.stderr, flush=True)
        sys.addaudithook(audit)
        import time, urllib.request
        sys.argv = ["app.py", "--runs", {str(tmp_path)!r}, "--port", "0"]
        import app
        from finetune.ui import app as page
        real = page.launch
        def launch(built, store, **options):
            real(built, store, prevent_thread_lock=True, quiet=True)
            print(urllib.request.urlopen(built.local_url).status, "torch" in sys.modules)
            time.sleep(1)
            try:
                socket.create_connection(("192.0.2.1", 9), 0.01)
            except OSError:
                pass
        page.launch = launch
        app.main()
        """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "200 False" in done.stdout, done.stderr
    assert set(re.findall("OUTSIDE.*", done.stderr)) == {"OUTSIDE 192.0.2.1"}  # this test's own
    assert done.returncode == 0, done.stderr


def test_a_public_link_is_for_visitors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever has the link must not be the owner of the runs here."""
    import app as program
    from finetune.ui import app as page

    options: dict[str, Any] = {}
    monkeypatch.setenv("FINETUNE_VISITORS", "0")
    monkeypatch.setattr(sys, "argv", ["app.py", "--share", "--runs", str(tmp_path)])
    monkeypatch.setattr(program, "Scheduler", lambda *_, **__: SimpleNamespace(start=dict))
    monkeypatch.setattr(program, "lower_priority", dict)
    monkeypatch.setattr(program, "protect_owner", dict)
    monkeypatch.setattr(page, "launch", lambda *_, **named: options.update(named))
    program.main()
    assert options["share"]
    assert owners.policy().several_people


def test_publish_selects_no_run_that_still_trains(
    module_tabs: Tabs, store: RunStore, toy_checkpoint: Path, adopt: Callable[[Run], bool]
) -> None:
    """It is offered, and stays where a person has chosen it."""
    tab = module_tabs[2]
    older = toys.finished_run(store, toy_checkpoint)
    training = record(store, events.Started(device="CPU"))
    toys.copy_model(toy_checkpoint, training.best)
    assert adopt(training)
    update = tab.on_open(NOBODY, None, "")[tab.run]
    assert update["value"] == older.id
    assert training.id in dict(map(reversed, update["choices"]))  # type: ignore[arg-type]
    assert "value" not in tab.on_open(NOBODY, training.id, "")[tab.run]
