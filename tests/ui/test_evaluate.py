"""The Evaluation and Errors parts of a run, also in a real Chromium."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from playwright.sync_api import Page, expect

from finetune import disk
from finetune.config import RunConfig
from finetune.inference import decision_rule
from finetune.runs.store import RunStore
from finetune.ui.tabs.evaluate import Evaluation
from tests.support.browser import App, pick
from tests.support.evaluated_runs import FILTERS, LABELS, evaluated
from tests.support.tabs import NOBODY


def open_part(page: Page, name: str) -> None:
    page.get_by_role("tab", name="Runs").click()
    page.locator("#runs-table .ft-open").first.click()
    # An answer that is still to come would choose its own part again.
    expect(page.locator("#evaluation-body")).to_contain_text(re.compile(r"\w"))
    page.get_by_role("radio", name=name, exact=True).check()


def bottom(page: Page) -> float:
    """Where the opened run ends on the page, in pixels."""
    box = page.locator("#one-run").bounding_box()
    assert box is not None
    return float(box["y"] + box["height"])


@pytest.fixture
def part(store: RunStore) -> Evaluation:
    evaluation = Evaluation(store)
    with gr.Blocks():
        evaluation.draw_choice()
        evaluation.draw(lambda: None)
    return evaluation


def test_what_is_not_evaluated_says_so_and_offers_nothing(
    part: Evaluation, store: RunStore
) -> None:
    view = {"opened": store.create(RunConfig()).id}
    updates = part.on_part(NOBODY, view, "Evaluation", *FILTERS.values())
    assert "Nothing was evaluated yet." in updates[part.body]
    assert "data-do" not in updates[part.body]
    updates = part.on_part(NOBODY, view, "Errors", *FILTERS.values())
    assert "Nothing was evaluated yet." in updates[part.table]
    assert not updates[part.start]["visible"]


def test_examples_are_filtered_and_an_unusable_threshold_is_refused(
    part: Evaluation, toy_checkpoint: Path
) -> None:
    run = evaluated(part, toy_checkpoint, 1, 9.0)  # all right but the sixth
    view = {"opened": run.id}
    filters: dict[str, Any]
    for filters, text in (
        ({"which": "suspected labels"}, "1 to 1 of 1"),
        ({"label": "equivalent"}, "1 to 20 of 36"),
        ({"search": "ZEBRA"}, "No example is like that."),
        ({"page": 40}, "41 to 60 of 60"),
        ({"page": 900}, "1 to 20 of 60"),
    ):
        updates = part.on_filter(NOBODY, view, *(FILTERS | filters).values())
        assert text in updates[part.table], filters
        assert "suspected label mistakes: <b>1</b>" in updates[part.counts]
    for value in ("0", "1.5"):
        click = gr.EventData(None, {"do": "save", "what": value, "run": run.id})
        message = part.on_choice(NOBODY, click, view)[part.message]
        assert "Choose one between 0 and 1." in message
    odd: Any
    for odd in ("1.5.0", [], {"a": 1}, True, "nan", "1e999", 10**400, "9" * 5000):
        for do in ("save", "temper", "page"):
            click = gr.EventData(None, {"do": do, "what": odd or "x", "run": run.id})
            answer = part.on_table if do == "page" else part.on_choice
            values = FILTERS.values() if do == "page" else ()
            message = answer(NOBODY, click, view, *values)[part.message]
            assert "is no number" in message
            assert len(message) < 500
    assert decision_rule.read_rule(run.best).threshold is None


@pytest.mark.parametrize("language", ["de"], indirect=True)
def test_a_temperature_is_saved_from_a_page_with_decimal_commas(
    part: Evaluation, toy_checkpoint: Path, language: str
) -> None:
    run = evaluated(part, toy_checkpoint, 1, 1.0, 4.0)
    view = {"opened": run.id}
    body = part.on_part(NOBODY, view, "Evaluation", *FILTERS.values())[part.body]
    button = re.search(r'<button[^>]*data-do="temper"[^>]*>', body)
    assert button is not None
    value = re.search(r'data-what="([^"]+)"', button[0])
    assert value is not None
    click = gr.EventData(None, {"do": "temper", "what": value[1], "run": run.id})
    part.on_choice(NOBODY, click, view)
    assert decision_rule.read_rule(run.best).temperature == pytest.approx(float(value[1]))


@pytest.mark.long
def test_an_evaluation_is_read_and_a_threshold_kept(
    app: App, page: Page, toy_checkpoint: Path
) -> None:
    run = evaluated(app, toy_checkpoint, 1, 1.0, 4.0)
    open_part(page, "Evaluation")
    verdict = page.locator("#verdict")
    expect(verdict).to_contain_text("Not surely better than the baselines")
    tabs = page.locator("#evaluation-body [role=tab]")
    tabs.first.focus()
    for n in range(1, tabs.count()):  # all of it on one screen, whichever tab is open
        page.keyboard.press("ArrowRight")
        expect(tabs.nth(n)).to_be_focused()
        expect(page.get_by_role("tabpanel", name=tabs.nth(n).inner_text())).to_be_visible()
        assert page.locator("#evaluation-body [role=tabpanel]:visible").count() == 1
        assert bottom(page) <= 900
    recall = page.locator('[data-score="recall"]')
    before = recall.inner_text()
    slider = page.locator("#threshold-slider")
    slider.focus()
    for _ in range(45):
        slider.press("ArrowRight")
    expect(recall).not_to_have_text(before)
    expect(page.locator(".ft-threshold output")).to_have_text("0.950")
    page.locator("#save-threshold").click()
    expect(page.locator("#evaluation-message")).to_contain_text("0.950 is saved")
    expect(page.locator("#forget-threshold")).to_be_visible()
    expect(verdict).to_contain_text("All figures are at the saved threshold 0.950")
    page.get_by_role("tab", name="Calibration").click()
    page.locator("#save-temperature").click()
    expect(page.locator("#forget-temperature")).to_be_visible()
    kept = decision_rule.read_rule(run.best)
    assert (kept.threshold, kept.positive) == (0.95, "equivalent")
    assert kept.temperature is not None
    page.locator("#forget-threshold").click()
    expect(page.locator("#forget-threshold")).to_be_hidden()
    expect(verdict).not_to_contain_text("threshold")
    assert decision_rule.read_rule(run.best).threshold is None
    tabs.last.click()
    expect(page.locator("#test-set")).to_contain_text("sealed")
    expect(page.locator("#open-sure")).to_be_hidden()
    page.locator("#open-test summary").click()
    expect(page.locator("#open-sure")).to_be_visible()
    assert run.state().opened == ()


@pytest.mark.long
def test_errors_are_listed_and_labels_corrected(app: App, page: Page, toy_checkpoint: Path) -> None:
    run = evaluated(app, toy_checkpoint, 1, 3.0)
    open_part(page, "Errors")
    expect(page.locator("#errors-table tbody tr").first).to_be_visible()
    expect(page.locator("#doubts")).to_contain_text("suspected label mistakes")
    pick(page, page.locator("#errors-which input"), "suspected labels")
    chooser = page.locator("#errors-table select[data-row='5']")
    expect(chooser).to_be_visible()
    former = chooser.input_value()
    chooser.select_option(next(name for name in LABELS if name != former))
    expect(page.locator("#corrections")).to_contain_text("1 label corrected")
    with page.expect_download() as download:
        page.get_by_role("link", name="Corrected validation pairs").click()
    text = Path(download.value.path()).read_text()
    assert len(text.splitlines()) == 61
    assert [n for n, line in enumerate(text.splitlines()[1:]) if line.endswith(former)] == [5]
    assert disk.read_json(run.folder / "corrections.json") != {}


def test_a_bound_is_kept_shown_and_forgotten(part: Evaluation, toy_checkpoint: Path) -> None:
    run = evaluated(part, toy_checkpoint, 1, 9.0)  # all right but the sixth
    view = {"opened": run.id}

    def click(**sent: Any) -> tuple[str, str]:
        event = gr.EventData(None, {"run": run.id, **sent})
        updates = part.on_choice(NOBODY, event, view)
        return str(updates.get(part.body, "")), str(updates[part.message])

    body = part.on_part(NOBODY, view, "Evaluation", *FILTERS.values())[part.body]
    assert 'id="sure-refused"' in body
    assert "without an error that takes 183 answers" in body  # ln(5% / 2 evaluations) / ln(98%)
    assert 'id="forget-sure"' not in body
    _, message = click(do="sure", error=0.02, confidence=0.95, per_class=False)
    assert "no threshold keeps the error at 2%" in message
    body, message = click(do="sure", error=0.2, confidence=0.9, per_class=False)
    assert "The bound is kept with the model: it answers" in message
    assert "At most 20% of its answers are wrong, with 90% confidence" in body
    assert '<option value="0.2" selected>20%</option>' in body
    rule = decision_rule.read_rule(run.best).sure
    assert rule is not None
    body, message = click(do="always")
    assert "answers every row again" in message
    assert decision_rule.read_rule(run.best).sure is None
    odd: Any
    for odd in (None, "0.02", [], 7, True, {"a": 1}, "9" * 5000):
        _, message = click(do="sure", error=odd, confidence=0.95)
        assert "Choose one between 0 and 0.5." in message
        assert len(message) < 600


@pytest.mark.long
def test_a_bound_goes_from_the_evaluation_to_the_answers(
    app: App, page: Page, toy_checkpoint: Path, tmp_path: Path
) -> None:
    run = evaluated(app, toy_checkpoint, 1, 9.0)  # all right but the sixth
    open_part(page, "Evaluation")
    page.get_by_role("tab", name="When sure").click()
    expect(page.locator("#sure-refused")).to_contain_text("no threshold keeps the error at 2%")
    page.get_by_label("wrong at most").select_option("10%")
    page.get_by_label("with confidence").select_option("90%")
    page.locator("#keep-sure").click()
    expect(page.locator("#evaluation-message")).to_contain_text("The bound is kept with the model")
    expect(page.locator("#sure-kept")).to_contain_text("At most 10% of its answers are wrong")
    rule = decision_rule.read_rule(run.best).sure
    assert rule is not None
    assert (rule.error, rule.confidence) == (0.1, 0.9)
    # The toy was not trained: it is sure of nothing above this.
    decision_rule.write_rule(run.best, sure=replace(rule, above=0.99))
    page.get_by_role("tab", name="Predict").click()
    page.get_by_label("sentence1").fill("the cat sees a dog .")
    page.get_by_label("sentence2").fill("a cat sees the dog .")
    page.get_by_label("sentence2").press("Enter")
    expect(page.locator("#label")).to_have_text("unsure")
    expect(page.locator("#answer")).to_contain_text("it would say")
    expect(page.locator("#bound")).to_contain_text("At most 10% of its answers are wrong")
    page.get_by_role("button", name="How the answer is made").click()
    page.get_by_label("Average both orders").check()
    page.get_by_label("sentence2").press("Enter")
    expect(page.locator("#bound")).to_contain_text("it says nothing of this one")
    expect(page.locator("#label")).to_have_text(re.compile("equivalent"))
    page.get_by_label("Average both orders").uncheck()
    page.get_by_role("radio", name="A file").check()
    file = tmp_path / "new.csv"
    file.write_text("sentence1,sentence2\nthe cat sees a dog .,a cat sees the dog .\n")
    page.locator("#batch-file input[type=file]").set_input_files(file)
    page.get_by_role("button", name="Predict the file").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Rows to review (1)").click()
    assert "unsure" in Path(download.value.path()).read_text()
    assert download.value.suggested_filename == "new-unsure.csv"
    expect(page.locator("#batch-view")).to_contain_text("Unsure of 1 of 1")
    expect(page.locator("#batch-rows tbody tr")).to_have_class("ft-weak")
    page.get_by_role("tab", name="Runs").click()
    page.locator("#forget-sure").click()
    expect(page.locator("#evaluation-message")).to_contain_text("answers every row again")
    assert decision_rule.read_rule(run.best).sure is None
