"""Who cannot see the page, cannot use a mouse or wants no motion can use all of it.

axe-core (https://github.com/dequelabs/axe-core) looks at every tab in both themes; one road is gone
by keyboard alone. What axe cannot see is asserted here by itself: focus that shows, accordions that
say whether they are open, progress that is told politely.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support import toys
from tests.support.browser import App
from tests.ui.test_evaluate import evaluated

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
GRAVE = ("moderate", "serious", "critical")


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
    app: App, browser: Browser, toy_checkpoint: Path, theme: str
) -> None:
    for seed in (1, 2):
        evaluated(app, toy_checkpoint, seed, 3.0)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{app.url}?__theme={theme}")
    expect(page.locator("#hub-status")).to_contain_text("Hub")
    assert page.evaluate("document.querySelector('.dark') !== null") == (theme == "dark")
    expect(page.locator("#score-plot .ft-dot").first).to_be_visible()
    page.locator("#score-plot .ft-plot").focus()
    expect(page.locator("#score-plot .ft-readout")).to_be_visible()
    violations = grave(page, "Train, values of the chart read")
    page.locator("#advanced > button").click()
    page.locator("#several > button").click()
    page.locator("#log summary").click()
    page.locator("#knob-weight_decay input").fill("0.2")
    expect(page.locator("#knob-weight_decay[data-differs]")).to_be_visible()
    violations += grave(page, "Train, all unfolded")
    page.locator("#advanced > button").click()
    page.locator("#knob-learning_rate input").fill("-1")
    page.get_by_role("button", name="Train", exact=True).click()
    expect(page.locator("#train-message [role=alert]")).to_be_visible()
    violations += grave(page, "Train, a wrong form")
    open_tab(page, "Data")
    page.locator("#pairs input").click()
    page.get_by_role("option", name="Bundled pairs").click()
    expect(page.locator("#rows table tbody tr")).to_have_count(10, timeout=60_000)
    for fold in ("#own-files", "#part-rows", "#part-hub"):
        page.locator(f"{fold} > button").click()
    violations += grave(page, "Data, examined") + _of_runs(page) + _of_predict(page)
    open_tab(page, "Publish")
    expect(page.locator("#card")).to_contain_text("How to use")
    violations += grave(page, "Publish")
    page.close()
    assert violations == []


def _of_runs(page: Page) -> list[str]:
    open_tab(page, "Runs")
    first = page.locator("#runs-table .ft-open").first
    expect(first).to_be_visible()
    violations = grave(page, "Runs")
    first.click()
    expect(page.locator("#run-score-plot .ft-dot").first).to_be_visible()
    page.locator("#run-config-fold > button").click()
    page.locator("#run-checkpoints-fold > button").click()
    expect(page.locator("#run-config table")).to_be_visible()
    violations += grave(page, "Runs, progress")
    page.get_by_role("radio", name="Evaluation").check(force=True)
    expect(page.locator("#verdict")).to_be_visible()
    violations += grave(page, "Runs, evaluation")
    page.get_by_role("radio", name="Errors").check(force=True)
    expect(page.locator("#errors-table table")).to_be_visible()
    violations += grave(page, "Runs, errors")
    for place in (0, 1):
        page.locator("#runs-table input[type=checkbox]").nth(place).click()
        expect(page.locator("#runs-table input[type=checkbox]").nth(place)).to_be_checked()
        page.wait_for_timeout(800)
    page.locator("#compare-runs").click()
    expect(page.locator("#comparison .ft-chart").first).to_be_visible()
    return violations + grave(page, "Runs, compared")


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
    violations = grave(page, "Predict, answered")
    page.locator("#batch-fold > button").click()
    lines = [f"{first},{second},{label}" for first, second, label in toys.rows(30)]
    text = "\n".join(["sentence1,sentence2,label", *lines])
    file = {"name": "pairs.csv", "mimeType": "text/csv", "buffer": text.encode()}
    page.locator("#batch-file input[type=file]").set_input_files(files=[file])
    expect(page.locator("#batch-file")).to_contain_text("pairs")
    page.locator("#batch-start").click()
    expect(page.locator("#batch-view .ft-links a")).to_be_visible(timeout=90_000)
    return violations + grave(page, "Predict, a file")


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_where_there_is_nothing_yet(
    app: App, browser: Browser, theme: str
) -> None:
    page = browser.new_page(viewport={"width": 375, "height": 800}, reduced_motion="reduce")
    page.goto(f"{app.url}?__theme={theme}")
    expect(page.locator("#hub-status")).to_contain_text("Hub")
    violations = []
    for name in ("Data", "Train", "Runs", "Predict", "Publish"):
        open_tab(page, name)
        page.wait_for_timeout(400)
        violations += grave(page, f"{name}, empty, on a phone")
    moving = page.evaluate(
        "[...document.querySelectorAll('*')].map((part) => getComputedStyle(part))"
        ".filter((style) => style.animationName !== 'none' && style.animationDuration !== '0s')"
        ".length"
    )
    page.close()
    assert violations == []
    assert moving == 0


def tab_to(page: Page, selector: str, most: int = 80, back: bool = False) -> None:
    """See what is sought, then press Tab until the focus is there; it shows wherever it stands."""
    expect(page.locator(selector).filter(visible=True)).not_to_have_count(0)
    for _ in range(most):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            shown = page.evaluate(
                "() => { const c = getComputedStyle(document.activeElement);"
                " return [c.outlineStyle, parseFloat(c.outlineWidth), c.boxShadow]; }"
            )
            assert (shown[0] != "none" and shown[1] >= 2) or shown[2] != "none", (selector, shown)
            return
    raise AssertionError(f"{selector} cannot be reached with Tab")


def replace_text(page: Page, selector: str, text: str) -> None:
    """By keyboard alone."""
    tab_to(page, selector)
    page.keyboard.press("Control+A")
    page.keyboard.type(text)


@pytest.mark.long
def test_the_whole_road_by_keyboard_alone(app: App, browser: Browser, toy_checkpoint: Path) -> None:
    """Choose, train, stop, look at the run, ask its model: no mouse."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    keys, advanced = page.keyboard, page.locator("#advanced > button")
    page.goto(app.url)
    expect(page.locator("#knob-dataset input")).to_have_value(re.compile("MRPC"))
    replace_text(page, "#knob-dataset input", "Bundled")
    keys.press("ArrowDown")
    keys.press("Enter")
    expect(page.locator("#knob-dataset input")).to_have_value(re.compile("Bundled pairs"))
    replace_text(page, "#knob-checkpoint input", str(toy_checkpoint))
    keys.press("Enter")
    replace_text(page, "#knob-num_train_epochs input", "500")
    replace_text(page, "#knob-max_length input", "48")
    tab_to(page, "#advanced > button")
    for key, expanded in (("", "false"), ("Enter", "true"), ("Space", "false")):
        if key:
            keys.press(key)
        expect(advanced).to_have_attribute("aria-expanded", expanded)
    tab_to(page, "#train")
    keys.press("Enter")
    expect(page.locator("#run-phase")).to_have_text("Training", timeout=60_000)
    expect(page.locator("#live")).to_have_attribute("aria-live", "polite")
    expect(page.locator("#live")).to_contain_text(re.compile("Training|Evaluating|Saving"))
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
    page.close()
