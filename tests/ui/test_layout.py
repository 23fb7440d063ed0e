"""What stands where: during a run the status, both curves and Stop are in the first screen, after
it the verdict comes first."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.support.browser import App, choose_bundled, fill_toy, new_page, press_train
from tests.support.evaluated_runs import evaluated
from tests.support.waiting import until

SCREENS = [(1280, 900), (375, 800)]


def first_screen(page: Page, selector: str) -> None:
    """See that a part is drawn within the first screen; one in a row to swipe may be beside it."""
    part = page.locator(selector)
    until(lambda: part.bounding_box() is not None)  # a live part may be drawn anew at this moment
    box = part.bounding_box()
    assert box is not None, selector
    assert box["height"] > 10, selector
    height = page.viewport_size["height"]  # type: ignore[index]
    assert box["y"] >= 0, (selector, box)
    assert box["y"] + box["height"] <= height, (selector, box)


@pytest.mark.long
@pytest.mark.parametrize(("width", "height"), [*SCREENS, (1920, 1080)])
def test_train_stays_in_sight_whatever_is_unfolded(
    app: App, browser: Browser, width: int, height: int
) -> None:
    page = new_page(browser, viewport={"width": width, "height": height})
    page.goto(f"{app.url}?tab=train")
    costs = page.locator("#costs")
    expect(costs).to_contain_text("steps")
    first_screen(page, "#train")
    first_screen(page, "#train-how")
    choose_bundled(page)
    expect(page.locator("#pairs-card table")).to_be_visible()
    if width > 740:
        for selector in ("#pairs-card table", "#pairs-card .ft-classes"):
            first_screen(page, selector)
    for kind, button in (("Grid", "#train"), ("Search", "#begin-search"), ("Once", "#train")):
        page.locator("#train-how").get_by_role("radio", name=kind).check()
        expect(page.locator("#grid")).to_be_visible(visible=kind == "Grid")
        expect(page.locator("#search")).to_be_visible(visible=kind == "Search")
        first_screen(page, button)
    page.locator("#train-how").get_by_role("radio", name="Seeds").check()
    expect(page.locator("#planned")).to_contain_text("Train queues 3 runs")
    expect(page.locator("#knob-num_train_epochs input")).to_have_attribute(
        "placeholder", re.compile(r"Automatic \(\d+\)")
    )
    while (folds := page.locator("#setup button.label-wrap[aria-expanded=false]")).count():
        with contextlib.suppress(PlaywrightTimeout):  # the last click may show only now
            folds.first.click(timeout=5_000)
        page.wait_for_timeout(300)
    for name in ("per_device_train_batch_size", "eval_steps"):  # were folded away
        told = re.compile(r"Automatic \(\d+\)")
        expect(page.locator(f"#knob-{name} input")).to_have_attribute("placeholder", told)
    for share in (0.5, 1):
        page.evaluate("(share) => scrollTo(0, share * document.body.scrollHeight)", share)
        first_screen(page, "#train")
        first_screen(page, "#costs summary")
    page.close()


@pytest.mark.long
@pytest.mark.parametrize(("width", "height"), SCREENS)
def test_a_run_is_seen_and_stopped_without_scrolling(
    app: App, browser: Browser, toy_checkpoint: Path, width: int, height: int
) -> None:
    page = new_page(browser, viewport={"width": width, "height": height})
    page.goto(app.url)
    fill_toy(page, toy_checkpoint, 500)
    choose_bundled(page)
    press_train(page)
    expect(page.locator("#status")).to_contain_text(re.compile("step [1-9]"))
    page.evaluate("scrollTo(0, 0)")
    for selector in ("#status", "#stop", "#loss-plot .ft-plot", "#score-plot .ft-plot"):
        expect(page.locator(selector)).to_be_visible()
        first_screen(page, selector)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#stop").click()
    expect(page.locator("#run-phase")).to_have_text("Stopped")
    page.close()


@pytest.mark.long
@pytest.mark.parametrize(("width", "height"), SCREENS)
def test_the_verdict_is_the_first_thing_after_a_run(
    app: App, browser: Browser, toy_checkpoint: Path, width: int, height: int
) -> None:
    evaluated(app, toy_checkpoint, 1, 4.0)
    page = new_page(browser, viewport={"width": width, "height": height})
    page.goto(app.url)
    verdict = page.locator("#result")
    expect(verdict).to_be_visible()
    first_screen(page, "#result")
    assert verdict.get_by_role("button").or_(verdict.get_by_role("link")).count() >= 1
    top = verdict.bounding_box()["y"]  # type: ignore[index]
    for selector in ("#loss-plot .ft-plot", "#score-plot .ft-plot", "#lesson", "#log"):
        for part in page.locator(f"#watched {selector}").filter(visible=True).all():
            assert part.bounding_box()["y"] > top, selector  # type: ignore[index]
    page.close()
