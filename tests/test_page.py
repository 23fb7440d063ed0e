"""The page's callbacks as plain functions, its form, and what it does at start."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
import pytest

from finetune import catalog, config, events, jobs
from finetune.config import RunConfig
from finetune.errors import ConfigError, DataError
from finetune.store import Run, RunStore
from finetune.summary import fold
from finetune.ui import charts, edge, form, page, status
from finetune.ui.predict import PredictTab, answer_html
from finetune.ui.publish import PublishTab
from finetune.ui.train import TrainTab
from tests import toys

ROOT = Path(__file__).resolve().parent.parent
MARKUP = "<script>alert(1)</script>"


@pytest.fixture
def tabs(store: RunStore) -> tuple[TrainTab, PredictTab, PublishTab]:
    made = TrainTab(store), PredictTab(store), PublishTab(store)
    with gr.Blocks():
        made[0].draw(form.draw_data())
        made[1].draw()
        made[2].draw()
    return made


@pytest.fixture
def finished(store: RunStore, toy_checkpoint: Path) -> Run:
    """A run that ended, its model the toy checkpoint."""
    run = store.create(RunConfig(checkpoint=str(toy_checkpoint), max_length=32, name="toy run"))
    for event in story():
        run.append(event)
    toys.copy_model(toy_checkpoint, run.best)
    return run


def story() -> list[events.Event]:
    return [
        events.Started(device="CPU (2 threads)", versions={"torch": "2.13.0"}),
        events.Prepared(
            train_examples=64, validation_examples=24, steps_per_epoch=8, total_steps=8,
            labels=["not_equivalent", "equivalent"], parameters=1000, precision="no",
            majority={"accuracy": 0.6, "f1": 0.75},
        ),
        *(
            events.Stepped(step=n, epoch=n / 8, loss=1 / n, learning_rate=1e-5,
                           samples_per_second=10.0)
            for n in range(1, 9)
        ),
        events.Evaluated(step=8, epoch=1.0, metrics={"accuracy": 0.7, "f1": 0.8, "loss": 0.5},
                         seconds=0.1, best=True),
        events.Saved(step=8),
        events.Finished(step=8, seconds=3.0),
    ]  # fmt: skip


def test_the_form_draws_every_field() -> None:
    with gr.Blocks():
        controls = form.draw(form.draw_data())
    assert list(controls) == [field.name for field in dataclasses.fields(RunConfig)]
    for name, control in controls.items():
        assert control.label == name
        assert control.info == config.knobs()[name].help
    assert form.read(form.values(RunConfig())) == RunConfig()


def test_the_form_reads_what_it_shows() -> None:
    chosen = RunConfig(learning_rate=3e-4, num_train_epochs=7, lr_scheduler_type="cosine")
    assert form.read(form.values(chosen)) == chosen


def test_a_wrong_form_names_the_fields_and_starts_nothing(
    tabs: tuple[TrainTab, PredictTab, PublishTab], store: RunStore
) -> None:
    values = form.values(RunConfig())
    values[form.NAMES.index("learning_rate")] = None
    values[form.NAMES.index("num_train_epochs")] = 0
    said = tabs[0].on_start(*values)[0]
    assert 'role="alert"' in said
    assert "learning_rate" in said
    assert "num_train_epochs" in said
    assert store.runs() == []


def test_a_form_once_trained_with_is_kept_in_the_browser(
    tabs: tuple[TrainTab, PredictTab, PublishTab], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = RunConfig(learning_rate=3e-4, num_train_epochs=7)
    monkeypatch.setattr(jobs, "start", lambda store, config: store.create(config))
    kept = tabs[0].on_start(*form.values(chosen))[-1]
    restored = dict(zip((*form.NAMES, "pairs"), tabs[0].on_restore(kept), strict=True))
    assert restored.pop("pairs") == restored["dataset"]
    assert restored["dataset"]["value"] == chosen.dataset
    restored["dataset"] = chosen.dataset
    assert list(restored.values()) == form.values(chosen)


@pytest.mark.parametrize("name", config.PRESETS)
def test_a_preset_fills_the_form(tabs: tuple[TrainTab, PredictTab, PublishTab], name: str) -> None:
    values = dict(zip(config.preset("As the course"), tabs[0].on_preset(name), strict=True))
    chosen = RunConfig().changed(**values).check()
    assert all(getattr(chosen, knob) == value for knob, value in config.PRESETS[name].items())


@pytest.mark.parametrize("kept", [None, 7, [], {"learning_rate": "x"}, {"of_another_version": 1}])
def test_what_cannot_be_restored_leaves_the_form(
    tabs: tuple[TrainTab, PredictTab, PublishTab], kept: Any
) -> None:
    assert tabs[0].on_restore(kept) == [gr.skip()] * (len(form.NAMES) + 1)


def test_an_untouched_page_sends_nothing_twice(
    tabs: tuple[TrainTab, PredictTab, PublishTab], finished: Run
) -> None:
    first = tabs[0].on_tick(finished.id, {})
    again = tabs[0].on_tick(finished.id, first[0])
    assert "Finished" in first[2]
    assert all(update == gr.skip() for update in again)


def test_a_tick_sends_only_what_is_new(
    tabs: tuple[TrainTab, PredictTab, PublishTab], store: RunStore
) -> None:
    run = store.create(RunConfig())
    told = story()
    for event in told[:5]:
        run.append(event)
    first = tabs[0].on_tick(run.id, {})
    run.append(told[5])
    second = tabs[0].on_tick(run.id, first[0])
    assert "Training loss" in second[4]  # it has a new point
    assert second[5] == gr.skip()  # the scores have none
    assert "step 4 of 8" in second[2]


def test_opening_the_page_finds_the_newest_run(
    tabs: tuple[TrainTab, PredictTab, PublishTab], finished: Run
) -> None:
    update, seen = tabs[0].on_open()
    assert update["value"] == finished.id
    assert seen == {}


def test_a_run_deleted_while_watched_is_no_error(
    tabs: tuple[TrainTab, PredictTab, PublishTab], finished: Run, store: RunStore
) -> None:
    store.delete(finished)
    assert all(update == gr.skip() for update in tabs[0].on_tick(finished.id, {}))
    assert "no such run" in tabs[0].on_stop(finished.id)[0]


@pytest.mark.parametrize("wrong", ["../x", "/etc/passwd", "x" * 10**6, 7, None])
def test_another_id_is_no_such_run(
    tabs: tuple[TrainTab, PredictTab, PublishTab], wrong: Any
) -> None:
    train, predict, publish = tabs
    assert "no such run" in train.on_stop(wrong)[0]
    assert "no such run" in predict.on_ask(wrong, "a", "b")
    assert "no such run" in publish.on_push(wrong, "name", False, "hub-token")


def test_the_default_is_what_can_run(
    tabs: tuple[TrainTab, PredictTab, PublishTab], monkeypatch: pytest.MonkeyPatch
) -> None:
    blank = RunConfig()
    default = (blank.dataset, blank.checkpoint)
    for answers, words in ((True, "The Hub answers"), (False, "does not answer")):
        monkeypatch.setattr(catalog, "hub_answers", lambda found=answers: found)
        said, found = tabs[0].on_hub()
        assert words in said
        assert found == answers
    assert tabs[0].on_default(True, *default) == (
        "glue/mrpc",
        "bert-base-uncased",
        "glue/mrpc",
    )
    assert tabs[0].on_default(True, blank.dataset, "roberta-base") == (gr.skip(),) * 3
    assert tabs[0].on_default(False, *default) == (gr.skip(),) * 3


def test_predicting_through_the_tab(
    tabs: tuple[TrainTab, PredictTab, PublishTab], finished: Run
) -> None:
    answer = tabs[1].on_ask(finished.id, "the cat sees a dog .", "a cat sees the dog .")
    assert 'id="label"' in answer
    assert "not_equivalent" in answer
    assert "sentence2 is empty" in tabs[1].on_ask(finished.id, "the cat", " ")


def test_markup_is_shown_not_run(
    tabs: tuple[TrainTab, PredictTab, PublishTab], store: RunStore
) -> None:
    run = store.create(RunConfig(name=MARKUP))
    run.append(events.Failed(error=MARKUP, remedy=MARKUP))
    for text in (
        status.status_html(run, store.summary(run)),
        edge.said(DataError(MARKUP, MARKUP)),
        edge.said(ConfigError({MARKUP: MARKUP})),
        edge.note(MARKUP),
    ):
        assert "<script" not in text
        assert "&lt;script" in text
    from finetune.predict import Prediction

    odd = Prediction(MARKUP, {MARKUP: 1.0}, [0.0], 1, 0, 0.1)
    assert "<script" not in answer_html(odd)


def test_a_bug_is_an_apology_with_a_reference(caplog: pytest.LogCaptureFixture) -> None:
    text = edge.said(RuntimeError("secret detail"))
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
    text = status.status_html(run, store.summary(run))
    assert all(word in text for word in words)


def test_curves_are_thinned_for_display_and_keep_their_ends() -> None:
    steps = [e for e in story() if isinstance(e, events.Stepped)]
    many = [dataclasses.replace(steps[0], step=n) for n in range(1, 100_001)]
    kept = charts.thinned(many)
    assert len(kept) <= charts.POINTS + 1
    assert (kept[0].step, kept[-1].step) == (1, 100_000)
    assert len(charts.loss_chart(fold(many))) < 20_000


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
    text = status.status_html(run, store.summary(run))
    assert "on 2 \u00d7 CPU" in text
    assert "3 batches of 4 a step" in text


def test_charts_say_what_they_show() -> None:
    scores = charts.score_chart(fold(story()))
    assert 'aria-label="Validation accuracy and F1: accuracy 0.700, F1 0.800"' in scores
    assert "majority class" in scores
    assert scores.count("ft-dot") == 2
    assert "appears with the first step" in charts.loss_chart(fold([]))


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
def test_any_points_lie_within_the_axis(points: list[charts.Point]) -> None:
    low, high = min(y for _, y in points), max(y for _, y in points)
    bottom, top, ticks = charts._axis(low, high)
    slack = 1e-6 * (top - bottom)
    assert bottom - slack <= low <= high <= top + slack
    assert 2 <= len(ticks) <= 12
    assert all(bottom - slack <= tick <= top + slack for tick in ticks)


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
    assert status.duration(seconds) == text


def test_the_page_is_made_of_four_tabs(store: RunStore) -> None:
    made = page.build(store)
    labels = [b.label for b in made.blocks.values() if isinstance(b, gr.Tab)]
    assert labels == ["Data", "Train", "Predict", "Publish"]


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
        import threading, time
        sys.argv = ["app.py", "--runs", {str(tmp_path)!r}, "--port", "0"]
        import app
        from finetune.ui import page
        page.launch.__kwdefaults__ = None
        real = page.launch
        def launch(made, **options):
            real(made, prevent_thread_lock=True, quiet=True)
            import urllib.request
            print(urllib.request.urlopen(made.local_url).status, "torch" in sys.modules)
            time.sleep(3)
        page.launch = launch
        app.main()
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "200 False" in done.stdout, done.stderr
    assert "OUTSIDE" not in done.stderr
    assert done.returncode == 0, done.stderr


def test_the_spy_sees_an_outside_host() -> None:
    code = SPY + "\ntry: socket.create_connection(('192.0.2.1', 9), 0.01)\nexcept OSError: pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "OUTSIDE" in done.stderr


def test_the_command_serves_the_page(tmp_path: Path, processes: list[int]) -> None:
    process = subprocess.Popen(
        [sys.executable, "app.py", "--runs", str(tmp_path / "runs")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    processes.append(process.pid)
    assert process.stdout is not None
    deadline = time.monotonic() + 60
    url = ""
    for line in process.stdout:
        if "http://" in line:
            url = line.split()[-1]
            break
        assert time.monotonic() < deadline
    assert urllib.request.urlopen(url).status == 200


def test_on_a_space_the_page_signs_in_and_asks_for_no_token() -> None:
    code = textwrap.dedent(
        """
        import gradio as gr
        from gradio.helpers import special_args
        from finetune.store import RunStore
        from finetune.ui import page
        made = page.build(RunStore("nowhere"))
        names = [type(block).__name__ for block in made.blocks.values()]
        ids = [getattr(block, "elem_id", None) for block in made.blocks.values()]
        push = next(f.fn for f in made.fns.values() if "on_push_on_space" in repr(f.fn))
        arguments = special_args(push, ["run", "name", False])[0]
        print("LoginButton" in names, "token" in ids, arguments[3])
        """
    )
    space = {"SYSTEM": "spaces", "SPACE_ID": "ada/x", "SPACE_HOST": "ada-x.hf.space"}
    oauth = {"OAUTH_CLIENT_ID": "i", "OAUTH_CLIENT_SECRET": "s", "OAUTH_SCOPES": "openid"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, **space, **oauth, "OPENID_PROVIDER_URL": os.environ["HF_ENDPOINT"]},
    )
    assert done.stdout.strip() == "True False None", done.stderr


def test_a_path_in_place_of_an_upload_reads_nothing(store: RunStore, tmp_path: Path) -> None:
    """A client may send any value to any endpoint: a path of the server's own is refused."""
    secret = tmp_path / "secret.csv"
    secret.write_text("sentence1,sentence2,label\na,b,1\nc,d,0\n")
    made = page.build(store)
    index = next(at for at, fn in made.fns.items() if fn.name == "on_upload")
    _, url, _ = made.launch(prevent_thread_lock=True, quiet=True)
    try:
        sent = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}
        body = {"data": [sent, None, None], "fn_index": index, "session_hash": "x"}
        answer = httpx.post(f"{url}gradio_api/run/predict", json=body, timeout=30)
        assert answer.status_code >= 400 or "error" in answer.json()
    finally:
        made.close()
    assert not (store.root / "uploads").exists()
