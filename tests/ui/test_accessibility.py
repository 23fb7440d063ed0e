"""Who cannot see the page, cannot use a mouse or wants no motion can use all of it.

axe-core (https://github.com/dequelabs/axe-core) looks at every tab in both themes; one road is gone
by keyboard alone. What axe cannot see is asserted here by itself: focus that shows, accordions that
say whether they are open, progress that is told politely.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, Page, expect

from finetune.runs.store import RunStore
from tests.support import toys
from tests.support.browser import App
from tests.support.hub import LoopbackHub

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
GRAVE = ("moderate", "serious", "critical")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs in a folder: two toys that have ended, with their predictions."""
    folder = tmp_path_factory.mktemp("trained")
    checkpoint = toys.write_checkpoint(folder / "toy")
    for rate in ("1e-4", "1e-3"):
        subprocess.run(
            [sys.executable, "-m", "finetune", "train", "--runs", str(folder / "runs"),
             "--checkpoint", str(checkpoint), "--num_train_epochs", "1", "--max_length", "48",
             "--learning_rate", rate],
            check=True, capture_output=True, timeout=200, env={**os.environ},
        )  # fmt: skip
    return folder / "runs"


def grave(page: Page, where: str) -> list[str]:
    """What axe finds on the page as it is now: rule, selector and markup of each."""
    page.wait_for_timeout(400)  # what was just drawn is tended to 150 ms later
    if not page.evaluate("() => 'axe' in window"):
        page.add_script_tag(content=AXE.read_text(encoding="utf-8"))
    result: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert len(result["passes"]) > 10  # it has looked
    return [
        f"{where}: {rule['impact']} {rule['id']} {node['target']} {node['html'][:160]}"
        for rule in result["violations"]
        for node in rule["nodes"]
        if rule["impact"] in GRAVE
    ]


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_any_tab(
    trained: Path, hub: LoopbackHub, browser: Browser, theme: str
) -> None:
    app = App(trained)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    found = []
    try:
        page.goto(f"{app.url}?__theme={theme}")
        expect(page.locator("#hub-status")).to_contain_text("Hub")
        dark = page.evaluate("document.querySelector('.dark') !== null")
        assert dark == (theme == "dark")
        expect(page.locator("#loss-plot path.ft-line:not(.ft-raw)")).to_have_count(1)
        page.locator("#loss-plot .ft-plot").focus()
        expect(page.locator("#loss-plot .ft-readout")).to_be_visible()
        found += grave(page, "Train, values of the chart read")
        page.locator("#advanced > button").click()
        page.locator("#several > button").click()
        page.locator("#log summary").click()
        page.locator("#knob-weight_decay input").fill("0.2")
        expect(page.locator("#knob-weight_decay[data-differs]")).to_be_visible()
        found += grave(page, "Train, all unfolded")
        page.locator("#advanced > button").click()
        page.locator("#knob-learning_rate input").fill("-1")
        page.get_by_role("button", name="Train", exact=True).click()
        expect(page.locator("#train-message [role=alert]")).to_be_visible()
        found += grave(page, "Train, a wrong form")
        open_tab(page, "Data")
        page.locator("#pairs input").click()
        page.get_by_role("option", name="Bundled pairs").click()
        expect(page.locator("#rows table tbody tr")).to_have_count(10, timeout=60_000)
        for fold in ("#own-files", "#part-rows", "#part-hub"):
            page.locator(f"{fold} > button").click()
        found += grave(page, "Data, examined")
        found += _of_runs(page)
        found += _of_predict(page)
        open_tab(page, "Publish")
        expect(page.locator("#card")).to_contain_text("How to use")
        found += grave(page, "Publish")
    finally:
        page.close()
        app.end()
    assert found == []


def _of_runs(page: Page) -> list[str]:
    open_tab(page, "Runs")
    first = page.locator("#runs-table .ft-open").first
    expect(first).to_be_visible()
    found = grave(page, "Runs")
    first.click()
    expect(page.locator("#run-loss-plot path.ft-line:not(.ft-raw)")).to_have_count(1)
    page.locator("#run-config-fold > button").click()
    page.locator("#run-checkpoints-fold > button").click()
    expect(page.locator("#run-config table")).to_be_visible()
    found += grave(page, "Runs, progress")
    page.get_by_role("radio", name="Evaluation").check(force=True)
    expect(page.locator("#verdict")).to_be_visible()
    found += grave(page, "Runs, evaluation")
    page.get_by_role("radio", name="Errors").check(force=True)
    expect(page.locator("#errors-table table")).to_be_visible()
    found += grave(page, "Runs, errors")
    for place in (0, 1):
        page.locator("#runs-table input[type=checkbox]").nth(place).click()
        expect(page.locator("#runs-table input[type=checkbox]").nth(place)).to_be_checked()
        page.wait_for_timeout(800)
    page.locator("#compare-runs").click()
    expect(page.locator("#comparison .ft-chart").first).to_be_visible()
    return found + grave(page, "Runs, compared")


def _of_predict(page: Page) -> list[str]:
    open_tab(page, "Predict")
    expect(page.locator("#predict-run input")).to_have_value(re.compile("F1"))
    page.locator("#sentence1 textarea").fill("the cat sees a dog .")
    page.locator("#sentence2 textarea").fill("a cat fears the dog .")
    page.locator("#compare").click()
    expect(page.locator("#label")).to_be_visible(timeout=60_000)
    page.locator("#ask-why").click()
    expect(page.locator("#why")).to_be_visible(timeout=60_000)
    page.locator("#ways > button").click()
    found = grave(page, "Predict, answered")
    page.locator("#batch-fold > button").click()
    file = {"name": "pairs.csv", "mimeType": "text/csv", "buffer": _csv()}
    page.locator("#batch-file input[type=file]").set_input_files(files=[file])
    expect(page.locator("#batch-file")).to_contain_text("pairs")
    page.locator("#batch-start").click()
    expect(page.locator("#batch-view .ft-links a")).to_be_visible(timeout=90_000)
    return found + grave(page, "Predict, a file")


def _csv() -> bytes:
    lines = [f"{first},{second},{label}" for first, second, label in toys.rows(30)]
    return "\n".join(["sentence1,sentence2,label", *lines]).encode()


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_where_there_is_nothing_yet(
    tmp_path: Path, hub: LoopbackHub, browser: Browser, theme: str
) -> None:
    app = App(tmp_path / "runs")
    page = browser.new_page(viewport={"width": 375, "height": 800}, reduced_motion="reduce")
    found = []
    try:
        page.goto(f"{app.url}?__theme={theme}")
        expect(page.locator("#hub-status")).to_contain_text("Hub")
        for name in ("Data", "Train", "Runs", "Predict", "Publish"):
            open_tab(page, name)
            page.wait_for_timeout(400)
            found += grave(page, f"{name}, empty, on a phone")
        moving = page.evaluate(
            "[...document.querySelectorAll('*')].map((one) => getComputedStyle(one))"
            ".filter((one) => one.animationName !== 'none' && one.animationDuration !== '0s')"
            ".length"
        )
    finally:
        page.close()
        app.end()
    assert found == []
    assert moving == 0


def tab_to(page: Page, selector: str, most: int = 80, back: bool = False) -> None:
    """See what is sought, then press Tab until the focus is there; it shows wherever it stands."""
    expect(page.locator(selector).filter(visible=True)).not_to_have_count(0)
    for _ in range(most):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        if page.evaluate("(what) => document.activeElement.matches(what)", selector):
            shown = page.evaluate(
                "() => { const c = getComputedStyle(document.activeElement);"
                " return [c.outlineStyle, parseFloat(c.outlineWidth), c.boxShadow]; }"
            )
            assert (shown[0] != "none" and shown[1] >= 2) or shown[2] != "none", (selector, shown)
            return
    raise AssertionError(f"{selector} cannot be reached with Tab")


@pytest.mark.long
def test_the_whole_road_by_keyboard_alone(
    tmp_path: Path, hub: LoopbackHub, browser: Browser, toy_checkpoint: Path
) -> None:
    """Choose, train, stop, look at the run, ask its model: no mouse."""
    app = App(tmp_path / "runs")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    keys = page.keyboard
    try:
        page.goto(app.url)
        expect(page.locator("#knob-dataset input")).to_have_value(re.compile("MRPC"))
        tab_to(page, "#knob-dataset input")
        keys.press("Control+A")
        keys.type("Bundled")
        keys.press("ArrowDown")
        keys.press("Enter")
        expect(page.locator("#knob-dataset input")).to_have_value(re.compile("Bundled pairs"))
        tab_to(page, "#knob-checkpoint input")
        keys.press("Control+A")
        keys.type(str(toy_checkpoint))
        keys.press("Enter")
        tab_to(page, "#knob-num_train_epochs input")
        keys.press("Control+A")
        keys.type("500")
        tab_to(page, "#knob-max_length input")
        keys.press("Control+A")
        keys.type("48")
        tab_to(page, "#advanced > button")
        expect(page.locator("#advanced > button")).to_have_attribute("aria-expanded", "false")
        keys.press("Enter")
        expect(page.locator("#advanced > button")).to_have_attribute("aria-expanded", "true")
        keys.press("Space")
        expect(page.locator("#advanced > button")).to_have_attribute("aria-expanded", "false")
        tab_to(page, "#train")
        keys.press("Enter")
        expect(page.locator("#run-phase")).to_have_text("Training", timeout=60_000)
        expect(page.locator("#live")).to_have_attribute("aria-live", "polite")
        expect(page.locator("#live")).to_contain_text(re.compile("Training|Evaluating|Saving"))
        store = RunStore(tmp_path / "runs")
        expect(page.locator("#score-plot .ft-dot").first).to_be_visible(timeout=60_000)
        tab_to(page, "#stop")
        keys.press("Space")
        expect(page.locator("#run-phase")).to_have_text("Stopped")
        expect(page.locator("#live")).to_contain_text("Stopped")
        tab_to(page, "[role=tab][aria-selected=true]", back=True)
        keys.press("ArrowRight")
        expect(page.get_by_role("tab", name="Runs")).to_have_attribute("aria-selected", "true")
        tab_to(page, "#runs-table .ft-open")
        keys.press("Enter")
        expect(page.locator("#run-loss-plot path.ft-line:not(.ft-raw)")).to_have_count(1)
        tab_to(page, "#run-parts input")
        keys.press("ArrowRight")
        expect(page.locator("#verdict")).to_be_visible()
        tab_to(page, "[role=tab][aria-selected=true]", back=True)
        keys.press("ArrowRight")
        expect(page.get_by_role("tab", name="Predict")).to_have_attribute("aria-selected", "true")
        expect(page.locator("#predict-run input")).to_have_value(re.compile("F1"))
        tab_to(page, "#sentence1 textarea")
        keys.type("the cat sees a dog .")
        tab_to(page, "#sentence2 textarea")
        keys.type("a cat sees the dog .")
        tab_to(page, "#compare")
        keys.press("Enter")
        expect(page.locator("#label")).to_have_text(re.compile("equivalent"), timeout=60_000)
        expect(page.locator("#answer [role=status]")).to_have_count(1)
        assert store.runs()[0].has_model()
    finally:
        page.close()
        app.end()
