"""Who cannot see the page, cannot use a mouse or wants no motion can use all of it.

axe-core (https://github.com/dequelabs/axe-core) looks at every tab in both themes. What it cannot
see is asserted beside it: focus that shows and is never lost, and that nothing moves.
"""

import re
from pathlib import Path

import axe_playwright_python
import pytest
from playwright.sync_api import expect

from tests.support import toys
from tests.support.browser import new_page, pick, unfold
from tests.support.made_runs import evaluated

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
WALK = Path(__file__).with_name("walk.js")


def grave(page, where):
    """The violations axe reports on the page as it is now, those of colours in both themes: rule,
    selector and markup of each; and what Tab does not reach."""
    if not page.evaluate("() => 'axe' in window"):
        for script in (AXE, WALK):
            page.add_script_tag(content=script.read_text(encoding="utf-8"))
    violations, colours = [], set[str]()
    of_colours = ["color-contrast", "link-in-text-block"]
    for theme, rules in (("dark", {}), ("light", {"runOnly": of_colours})):
        colours.add(page.evaluate("(theme) => walk.turn(theme)", theme))
        page.wait_for_timeout(400)  # what was just drawn is tended to 150 ms later
        expect(page.locator(".pending")).to_have_count(0)  # Gradio fades what it waits for
        asked = {"resultTypes": ["violations"], **rules}
        result = page.evaluate("(asked) => axe.run(document, asked)", asked)
        assert len(result["passes"]) > (0 if rules else 10)  # it has looked
        violations += [
            f"{where}, {theme}: {rule['impact']} {rule['id']} {node['target']} {node['html'][:160]}"
            for rule in result["violations"]
            for node in rule["nodes"]
        ]
    assert len(colours) == 2
    for _ in range(4):  # an answer that comes late draws what has the focus anew
        if not (missed := missed_by_tab(page)):
            break
    return violations + [f"{where}: no Tab to {markup}" for markup in missed]


def missed_by_tab(page):
    """What Tab does not reach, from the start of the page on until nothing has the focus, which
    should be so at the end of the page and nowhere before."""
    page.evaluate("walk.begin()")
    for steps in range(500):
        page.keyboard.press("Tab")
        if page.evaluate("walk.ended()"):
            assert steps > 5
            expect(page.locator("[role=listbox]")).to_have_count(0)  # Tab leaves no list open
            return page.evaluate("walk.missed()")
    raise AssertionError("Tab comes to no end")


def open_tab(page, name):
    page.get_by_role("tab", name=name, exact=True).click()


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 375])
def test_every_tab_works_and_axe_finds_nothing(app, browser, toy_checkpoint, width):
    for seed, skill in ((1, 0.2), (2, 4.0)):
        evaluated(app.store, toy_checkpoint, seed, skill)
    page = new_page(browser, viewport={"width": width, "height": 900})
    page.goto(f"{app.url}?__theme=dark")
    expect(page.locator("#hub-status")).to_contain_text("Hub")
    assert page.evaluate("document.body.classList.contains('dark')")  # by which Gradio turns
    page.locator("#score-plot .ft-plot").focus()
    expect(page.locator("#score-plot .ft-readout")).to_be_visible()
    page.get_by_role("tab", name="Log").click()
    violations = grave(page, "Train, values of the chart read")
    page.locator("#new-run").click()
    unfold(page)
    page.locator("#train-how").get_by_role("radio", name="Grid").check()
    page.locator("#knob-weight_decay input").fill("0.2")
    expect(page.locator("#knob-weight_decay[data-differs]")).to_be_visible()
    page.locator("#knob-learning_rate input").fill("-1")
    page.get_by_role("button", name="Train", exact=True).click()
    expect(page.locator("#train-message [role=alert]")).to_be_visible()
    violations += grave(page, "Train, all unfolded, a wrong form")
    open_tab(page, "Data")
    pick(page, page.locator("#pairs input"), "Bundled pairs")
    expect(page.locator("#rows table tbody tr")).to_have_count(10)
    for fold in ("#own-files", "#part-rows", "#part-hub"):
        page.locator(f"{fold} > button").click()
    violations += grave(page, "Data, examined") + visit_runs(page) + visit_predict(page)
    open_tab(page, "Publish")
    expect(page.locator("#card")).to_contain_text("How to use")
    violations += grave(page, "Publish")
    page.close()
    assert violations == []


def visit_runs(page):
    open_tab(page, "Runs")
    page.locator("#runs-table .ft-open").first.click()
    expect(page.locator("#verdict")).to_be_visible()  # or the answer would choose its part again
    page.get_by_role("radio", name="Progress").check(force=True)
    expect(page.locator("#run-score-plot .ft-dot").first).to_be_visible()
    page.locator("#run-config-fold > button").click()
    expect(page.locator("#run-config table")).to_be_visible()
    violations = grave(page, "Runs, progress")
    for part, content in (("Evaluation", "#verdict"), ("Errors", "#errors-table table")):
        page.get_by_role("radio", name=part).check(force=True)
        expect(page.locator(content)).to_be_visible()
        violations += grave(page, f"Runs, {part}")
    page.get_by_role("button", name="All runs").click()
    for box in page.locator("#runs-table input[data-do=choose]").all():
        box.click()
        expect(box).to_be_checked()
    page.get_by_role("button", name="Compare 2").click()
    expect(page.locator("#comparison .ft-chart").first).to_be_visible()
    expect(page.locator("#versus")).to_contain_text("is better: F1 +")
    page.locator("#apart summary").click()
    expect(page.locator("#apart tbody tr").first).to_be_visible()
    return violations + grave(page, "Runs, compared")


def visit_predict(page):
    open_tab(page, "Predict")
    expect(page.locator("#predict-run input")).to_have_value(re.compile("F1"))
    page.locator("#samples button").first.click()
    expect(page.locator("#answer")).to_contain_text("label = ")
    expect(page.locator("#sentence1 textarea")).not_to_have_value("")
    page.locator("#sentence1 textarea").fill("the <b>cat</b> sees a dog .")
    page.locator("#sentence2 textarea").fill("a cat fears the dog .")
    page.locator("#compare").click()
    expect(page.locator("#label")).to_have_text(re.compile("equivalent"))
    page.locator("#ask-why").click()
    expect(page.locator("#why")).to_contain_text("add up to the change")
    expect(page.locator("#why .ft-weighed").first).to_contain_text("cat")
    page.locator("#ways > button").click()
    violations = grave(page, "Predict, answered")
    page.locator("#compare").click()
    expect(page.locator("#why")).to_have_count(0)  # of that answer nobody has asked why
    page.get_by_role("radio", name="A file").check(force=True)
    lines = [f"{first},{second},{label}" for first, second, label in toys.rows(40)]
    text = "\n".join(["sentence1,sentence2,label", *lines, "broken"])
    file = {"name": "tickets.csv", "mimeType": "text/csv", "buffer": text.encode()}
    page.locator("#batch-file input[type=file]").set_input_files(files=[file])
    expect(page.locator("#batch-file")).to_contain_text("tickets")
    page.locator("#batch-start").click()
    expect(page.locator("#batch-view")).to_contain_text("1 could not be judged")
    page.locator("#batch-rows").get_by_role("button", name="label").click()
    expect(page.locator("#batch-rows th[aria-sort=ascending]")).to_have_text("label \u2191")
    page.locator("#batch-rows select").first.select_option(index=0)
    page.locator("#batch-rows select").last.select_option(index=1)
    return violations + grave(page, "Predict, a file")


@pytest.mark.long
@pytest.mark.parametrize("width", [375, 1920])
def test_axe_finds_nothing_where_there_is_nothing_yet(app, browser, width):
    page = new_page(browser, viewport={"width": width, "height": 800}, reduced_motion="reduce")
    page.goto(f"{app.url}?__theme=light")
    expect(page.locator("#hub-status")).to_contain_text("Hub")
    violations = []
    for name in ("Data", "Train", "Runs", "Predict", "Publish"):
        open_tab(page, name)
        if name == "Data":  # what comes later is drawn over what has the focus
            expect(page.locator("#look-progress")).to_contain_text("is not on the Hub")
        violations += grave(page, f"{name}, empty")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    moving = page.evaluate(
        "[...document.querySelectorAll('*')].map((part) => getComputedStyle(part))"
        ".filter((style) => style.animationName !== 'none' && style.animationDuration !== '0s')"
        ".length"
    )
    page.close()
    assert (violations, moving) == ([], 0)
