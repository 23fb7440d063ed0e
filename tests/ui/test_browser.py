"""The whole road in a real Chromium, as a person clicks it: train, watch, try, publish."""

from __future__ import annotations

import contextlib
import re
import zipfile
from pathlib import Path
from urllib.parse import urlencode

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from finetune import config
from finetune.config import RunConfig
from finetune.jobs import workers
from finetune.runs.store import RunStore
from finetune.ui import charts, form
from finetune.ui.tabs.train import TrainTab
from tests.support import toys
from tests.support.browser import (
    App,
    choose_bundled,
    control,
    fill,
    fill_toy,
    new_page,
    own_file,
    pick,
    press_train,
)
from tests.support.hub import TOKEN, LoopbackHub
from tests.support.waiting import until


@pytest.mark.long
def test_the_whole_road_with_nothing_changed(app: App, hub: LoopbackHub, browser: Browser) -> None:
    """Bundled pairs, bundled checkpoint, every default: the real weights for the real number of
    steps would take minutes here, so the run is stopped once it has streamed; see the next test
    for a run that goes to its end."""
    hub.fail("HEAD", "^/$", 0, cut=True, times=2)  # no network while the page opens
    page = new_page(browser)
    page.goto(app.url)
    expect(page.locator("#hub-status")).to_contain_text("No connection")
    press_train(page)
    expect(page.locator("#run-phase")).to_have_text("Training", timeout=240_000)
    expect(page.locator("#status")).to_contain_text("samples/s")
    run = app.store.runs()[0]
    assert run.config() == RunConfig()
    shown = page.locator("#cards .ft-card b").first
    before = shown.inner_text()
    expect(shown).not_to_have_text(before)  # the loss streams in
    expect(page.locator("#loss-plot path.ft-loss:not(.ft-raw)")).to_have_count(1)
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator("#run-phase")).to_have_text("Stopped")
    assert run.has_model()
    page.close()


@pytest.mark.slow
def test_train_watch_try_and_publish(
    app: App, page: Page, hub: LoopbackHub, toy_checkpoint: Path
) -> None:
    fill_toy(page, toy_checkpoint, 1)
    choose_bundled(page)
    press_train(page)
    expect(page.locator("#run-phase")).to_have_text("Finished")
    cards = page.locator("#cards .ft-card")
    intervals = r"accuracy, best model\s*0\.\d{3}\s*95%: 0\.\d{3} to \d\.\d{3}\s*best baseline 0\."
    expect(cards.nth(1)).to_contain_text(re.compile(intervals))
    expect(page.locator("#loss-plot path.ft-loss:not(.ft-raw)")).to_have_count(1)
    summary = app.store.runs()[0].state()
    expect(page.locator("#score-plot .ft-dot")).to_have_count(2 * len(summary.curve))
    assert summary.best is not None
    expect(cards.nth(2)).to_contain_text(f"{summary.best.metrics['f1']:.3f}")
    for name in charts.SMALL:
        expect(page.locator(f"#{name} .ft-plot")).to_be_visible()
    page.get_by_label("Horizontal axis").select_option("time")
    expect(page.locator("#loss-plot .ft-plot")).to_have_attribute("data-across", "seconds")
    page.get_by_role("tab", name="The code").click()
    expect(page.locator("#code")).to_contain_text("accelerator.backward(loss")
    page.get_by_role("tab", name="Log").click()
    log = page.locator("#log textarea")
    expect(log).to_have_value(re.compile("finished"))
    assert log.evaluate("(log) => log.scrollHeight - log.scrollTop - log.clientHeight") < 9

    page.get_by_role("tab", name="Predict").click()
    expect(page.locator("#predict-run input")).to_have_value(re.compile("F1"))
    page.get_by_label("sentence1").fill("the cat sees a dog .")
    page.get_by_label("sentence2").fill("a cat sees the dog .")
    page.get_by_label("sentence2").press("Enter")
    expect(page.locator("#label")).to_have_text(re.compile("equivalent"))
    expect(page.locator("#answer")).to_contain_text(re.compile(r"\d ms"))

    page.get_by_role("tab", name="Publish").click()
    expect(page.locator("#card")).to_contain_text("How to use")
    expect(page.locator("#card img")).to_have_js_property("complete", True)
    page.get_by_label("Access token").fill(TOKEN)
    page.get_by_label("Repository").fill("my-pairs")
    plan = page.locator("#push-plan")
    for ready in (False, True):
        page.get_by_label("Private").check()
        page.get_by_role("button", name="Check", exact=True).click()
        expect(plan).to_contain_text("ada/my-pairs is a new private repository")
        if not ready:
            page.get_by_label("Private").uncheck()
            expect(plan).to_be_hidden()  # Push would do something else
    assert hub.repos == {}
    expect(page.locator("#publish-run input")).to_be_enabled()
    hub.delay("/lfs/objects/batch", 3)
    page.get_by_role("button", name="Push to Hub").click()
    expect(page.locator("#push-result")).to_contain_text("Sending")
    page.reload()  # the push is the app's, not the page's
    page.get_by_role("tab", name="Publish").click()
    link = page.locator("#push-result a")
    expect(link).to_have_attribute("href", f"{hub.url}/ada/my-pairs")
    expect(page.locator("#push-result")).to_contain_text("Verified")
    repo = hub.repos["model", "ada/my-pairs"]
    assert repo.private
    assert len(repo.commits) == 1
    assert {"model.safetensors", "training.png"} <= set(repo.files)
    assert TOKEN not in page.content()
    with page.expect_download() as taken:
        page.get_by_role("link", name="Script that repeats this run").click()
    assert "train.py" in str(zipfile.ZipFile(taken.value.path()).namelist())


@pytest.mark.long
def test_a_wrong_form_is_said_in_place_and_kept(page: Page, app: App) -> None:
    fill(page, "learning_rate", "-1")
    fill(page, "num_train_epochs", "-1")
    press_train(page)
    message = page.locator("#train-message [role=alert]")
    expect(message).to_contain_text("Learning rate must be at least")
    expect(message).to_contain_text("Epochs must be at least 1, got -1")
    expect(page.locator("#knob-learning_rate input")).to_have_value("-1")
    fill(page, "learning_rate", "1e-4")
    expect(message).not_to_contain_text("Learning rate", use_inner_text=True)
    expect(message).to_contain_text("Epochs must", use_inner_text=True)
    assert app.store.runs() == []


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 375])
def test_a_problem_of_a_search_has_room_at_its_box(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.locator("#train-how").get_by_role("radio", name="Search").check()
    box = page.locator("#search-learning_rate")
    for typed in ("3e-3..1e-4", "3e-3..1e-5"):
        box.locator("input").fill(typed)
        for _ in range(5):  # Gradio drops a click while an earlier one is answered
            page.locator("#begin-search").click()
            with contextlib.suppress(AssertionError):
                expect(box).to_have_attribute("data-problem", re.compile(typed), timeout=10_000)
                break
        expect(box).to_have_attribute("data-problem", re.compile(typed))
        expect(page.locator("#train-bar [role=alert]:visible")).to_have_count(1)
        label, text, whole = box.evaluate(
            "box => [box.querySelector('label').getBoundingClientRect().bottom,"
            " parseFloat(getComputedStyle(box, '::after').height),"
            " box.getBoundingClientRect().bottom]"
        )
        assert text > 10
        assert label + text <= whole
    box.locator("input").fill("1e-5..1e-4")
    expect(box).not_to_have_attribute("data-problem", re.compile("."))


@pytest.mark.long
def test_an_address_opens_what_it_names_and_follows_what_is_opened(
    app: App, page: Page, toy_checkpoint: Path
) -> None:
    first, second = (
        toys.finished_run(app.store, toy_checkpoint, name).id for name in ("one", "two")
    )
    page.goto(f"{app.url}?run={first}")
    expect(page.locator("#one-run")).to_be_visible()
    expect(page.locator("#run-title")).to_contain_text("one")
    expect(page).to_have_url(re.compile(rf"\?tab=runs&run={first}$"))
    page.get_by_role("tab", name="Data").click()
    expect(page).to_have_url(re.compile(r"\?tab=data$"))
    page.goto(f"{app.url}?compare={first},{second}")
    expect(page.locator("#comparison")).to_contain_text("two")
    expect(page.locator("#runs-table input[data-do=choose]:checked")).to_have_count(2)
    pair = {"tab": "predict", "run": first, "sentence1": "the cat .", "sentence2": "a cat & dog ."}
    page.goto(f"{app.url}?{urlencode(pair)}")
    expect(page.locator("#ask-why")).to_be_visible()  # it was asked
    expect(page.locator("#sentence2 textarea")).to_have_value("a cat & dog .")
    page.goto(f"{app.url}?tab=publish&run=gone")
    expect(page.locator("#push-plan")).to_contain_text("There is no such run")


@pytest.mark.long
def test_a_typed_name_is_kept_until_another_model_is_chosen(
    app: App, page: Page, toy_checkpoint: Path
) -> None:
    for title in ("one", "two"):
        toys.finished_run(app.store, toy_checkpoint, title)
    page.get_by_role("tab", name="Publish").click()
    name, card = page.get_by_label("Repository"), page.locator("#card")
    chooser = page.locator("#publish-run input")
    expect(chooser).to_have_value(re.compile("two"))
    name.fill("mine")  # at once
    expect(card).to_contain_text("How to use")
    name.blur()
    expect(card).to_contain_text("your-name/mine")
    page.get_by_role("tab", name="Runs").click()
    expect(page.locator("#runs-table")).to_contain_text("two")
    page.get_by_role("tab", name="Publish").click()
    chooser.focus()
    chooser.blur()  # it was left as it is
    page.get_by_label("Private").focus()
    expect(card).to_contain_text("your-name/mine")
    expect(name).to_have_value("mine")
    pick(page, chooser, "one")
    expect(name).to_have_value("all-minilm-l6-v2-bundled-pairs")
    expect(card).to_contain_text("your-name/all-minilm-l6-v2-bundled-pairs")
    expect(page).to_have_url(re.compile(rf"run={app.store.runs()[-1].id}"))


@pytest.mark.long
def test_reload_second_browser_and_restart_show_the_running_run(
    app: App, page: Page, browser: Browser, toy_checkpoint: Path
) -> None:
    working = re.compile("Training|Evaluating|Saving")
    fill_toy(page, toy_checkpoint, 500)
    choose_bundled(page)
    press_train(page)
    expect(page.locator("#run-phase")).to_have_text(working)
    page.reload()
    expect(page.locator("#knob-num_train_epochs input")).to_have_value("500")  # the form is kept
    expect(page.locator("#run-phase")).to_have_text(working)
    other = new_page(browser)
    other.goto(app.url)
    expect(other.locator("#run-phase")).to_have_text(working)
    expect(other.get_by_role("button", name="Stop", exact=True)).to_be_enabled()
    page.close()
    app.kill()
    worker = workers.worker_process(app.store.runs()[0])
    assert worker is not None
    other.goto("about:blank")
    app.start()
    other.goto(app.url)
    for button, phase in (("Stop", "Stopped"), ("Resume", "Training"), ("Stop", "Stopped")):
        expect(other.locator("#run-phase")).to_have_text(working if button == "Stop" else "Stopped")
        other.get_by_role("button", name=button, exact=True).click()
        expect(other.locator("#run-phase")).to_have_text(phase)
    other.close()
    assert len(app.store.runs()) == 1
    psutil.wait_procs([worker], timeout=60)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
def test_a_persons_own_file(app: App, page: Page, toy_checkpoint: Path, tmp_path: Path) -> None:
    """Upload, map the columns, see the findings, train on it, ask the model."""
    page.on("dialog", lambda dialog: pytest.fail(f"markup ran: {dialog.message}"))
    expect(page.locator("#knob-dataset input")).to_have_value(re.compile("MRPC"))
    page.get_by_role("tab", name="Data").click()
    expect(page.locator("#look-progress")).to_contain_text("nyu-mll/glue is not on the Hub")
    page.locator("#train-file input[type=file]").set_input_files(own_file(tmp_path))
    asked = page.locator("#overview [data-kind=single-or-pair]")
    expect(asked).to_contain_text("Columns with texts: 'ours', 'theirs'")
    expect(page.get_by_role("button", name="Train on these pairs")).to_have_count(0)
    page.get_by_label("Second text").select_option("theirs")
    page.get_by_role("button", name="Use these").click()
    for role, column in (("sentence1", "ours"), ("sentence2", "theirs"), ("label", "verdict")):
        expect(control(page, f"{role}_column")).to_have_value(column)
    expect(page.locator("#overview")).to_contain_text("can be trained on")
    expect(page.locator("#overview")).to_contain_text("cut from train")
    broken = page.locator("details", has_text="Rows that could not be read")
    broken.locator("summary").click()
    expect(broken).to_contain_text("has 1 fields where the first line has 4")
    expect(broken).to_contain_text("train\u00a0153")
    expect(page.locator("#rows table tbody tr")).to_have_count(10)
    page.get_by_role("tab", name="Train").click()
    expect(page.locator("#knob-dataset input")).to_have_value(re.compile("Your files: tickets.csv"))
    page.locator("#knob-checkpoint input").fill(str(toy_checkpoint))
    page.locator("#knob-checkpoint input").press("Enter")
    fill(page, "num_train_epochs", "2")
    fill(page, "max_length", "48")
    press_train(page)
    expect(page.locator("#run-phase")).to_have_text("Finished")
    run = app.store.runs()[0]
    prepared = run.state().prepared
    assert prepared is not None
    assert prepared.labels == ["no", "yes"]
    assert prepared.data["source"] == "tickets.csv"
    assert prepared.data["columns"]["label"] == "verdict"


@pytest.mark.long
def test_four_clicks_lead_from_a_file_to_the_first_loss(
    app: App, page: Page, toy_checkpoint: Path, tmp_path: Path
) -> None:
    fill_toy(page, toy_checkpoint, 1)
    page.get_by_role("tab", name="Data").click()
    page.evaluate("clicks = 1; addEventListener('click', (event) => clicks += event.isTrusted)")
    rows = [f"{first},{second},{'dup' if same else 'other'}" for first, second, same in
            toys.rows(150)]  # fmt: skip
    (tmp_path / "a.csv").write_text("\n".join(["ours,theirs,verdict", *rows]))
    page.locator("#train-file input[type=file]").set_input_files(tmp_path / "a.csv")  # the first
    page.get_by_role("button", name="It is 'dup'").click()
    expect(page.locator("#findings")).to_contain_text("The positive class is 'dup'")
    page.get_by_role("button", name="Train on these pairs").click()
    press_train(page)
    until(lambda: any(run.state().train for run in app.store.runs()))
    config = app.store.runs()[0].config()
    assert (config.positive_label, config.dataset[:7]) == ("dup", "upload/")
    assert page.evaluate("clicks") <= 4


def test_the_default_is_chosen_where_nothing_else_was(browser: Browser, store: RunStore) -> None:
    blank = RunConfig()
    pairs, base = blank.dataset, blank.checkpoint
    page = new_page(browser)
    script = TrainTab(store).choosing_default()
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
    page.close()


def test_a_preset_fills_the_form(browser: Browser) -> None:
    page = new_page(browser)
    for name in config.PRESETS:
        filled = page.evaluate(f"(name) => ({form.choosing_preset()})(name)", name)
        names = list(config.preset("As the course"))
        assert form.read(filled, names) == RunConfig(**config.preset(name))
    page.close()


@pytest.mark.long
def test_a_chooser_that_is_merely_left_takes_nothing_back(app: App, page: Page) -> None:
    """Gradio tells of a choice when a chooser is left, too."""

    def pass_through(chooser: str) -> None:
        page.locator(f"{chooser} input").focus()
        page.wait_for_timeout(300)
        page.keyboard.press("Tab")
        page.wait_for_timeout(700)

    expect(page.locator("#hub-status")).to_contain_text("Hub")
    rate, preset = page.locator("#knob-learning_rate input"), page.locator("#preset input")
    page.locator("#advanced > button").click()
    fill(page, "learning_rate", "0.003")
    pass_through("#preset")
    expect(rate).to_have_value("0.003")
    pick(page, preset, re.compile(f"^.? ?{preset.input_value()}"))  # the same again: its values
    expect(rate).to_have_value("")
    page.get_by_role("tab", name="Data").click()
    expect(page.locator("#look-progress")).to_contain_text("is not on the Hub")
    page.locator("#part-hub > button").click()
    fill(page, "dataset_revision", "abc")
    pass_through("#pairs")
    expect(page.locator("#knob-dataset_revision input")).to_have_value("abc")
    pick(page, page.locator("#pairs input"), re.compile("^.? ?Bundled"))
    expect(page.locator("#knob-dataset_revision input")).to_have_value("")
