"""How the page looks, as far as figures can say it: contrast, offline fonts, boxes that stay."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from finetune.runs import events
from finetune.runs.summary import Status, fold_events
from finetune.ui import run_view, theme
from tests.support.browser import App, choose_bundled, fill_toy, press_train

GROUNDS = ("page", "surface", "sunk", "wash")  # what anything stands on
# What is no text: between things, and around or behind what can be used.
SHAPES = ("line", "edge", "accent", "accent-deep", "filled")


def palettes() -> dict[str, dict[str, str]]:
    """The colours of the style sheet: selector -> name -> `#rrggbb`."""
    blocks = re.findall(r"^(:root|\.dark) {(.*?)}", theme.asset("palette.css"), re.M | re.S)
    return {where: dict(re.findall(r"--ft-([\w-]+): (#\w{6});", body)) for where, body in blocks}


LIGHT, DARK = palettes()[":root"], palettes()[".dark"]


def _luminance(colour: str) -> float:
    """Of `#rrggbb`, as WCAG 2.2 defines it (https://www.w3.org/TR/WCAG22/#dfn-relative-luminance)."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """From 1 to 21 (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio)."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_colour_can_be_read_on_every_ground(palette: dict[str, str]) -> None:
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)  # as WCAG has it
    for text in set(palette) - {*GROUNDS, *SHAPES}:
        for ground in GROUNDS:
            assert contrast(palette[text], palette[ground]) >= 4.5, (text, ground)
    assert contrast("#ffffff", palette["accent"]) >= 4.5  # the word on Train
    assert contrast("#ffffff", palette["accent-deep"]) >= 4.5
    for ground in ("page", "surface"):
        assert contrast(palette["edge"], palette[ground]) >= 3  # where a control ends
        assert contrast(palette["accent"], palette[ground]) >= 3  # how far the bar has come


def test_the_style_sheet_uses_the_palette_alone_and_nothing_of_the_network() -> None:
    assert set(LIGHT) == {*DARK, "filled"}
    sheet = theme.asset("page.css")
    assert re.findall(r":[^;{}]*(#[0-9a-fA-F]{3,8}\b|rgba?\()", sheet) == []
    named = set(re.findall(r"var\(--ft-([\w-]+)", sheet))
    assert named - set(LIGHT) == {"tone"}
    for words in ("url(", "@import"):
        assert words not in sheet + theme.asset("palette.css")
    assert theme.theme()._stylesheets == []  # a Google font would be one
    for file in ("logo.svg", "favicon.svg"):
        drawn = theme.asset(file).replace("http://www.w3.org/2000/svg", "")
        assert "http" not in drawn
        assert LIGHT["accent"] in drawn


def test_progress_is_told_aloud_by_quarters_only() -> None:
    ready = events.Prepared(
        train_examples=80, validation_examples=20, steps_per_epoch=10, total_steps=100,
        labels=["no", "yes"], parameters=1, precision="fp32",
    )  # fmt: skip

    def announced(step: int, state: Status = "running") -> str:
        taken = events.Stepped(
            step=step, epoch=1.0, loss=0.5, learning_rate=1e-5, samples_per_second=1.0
        )
        now = fold_events([ready, taken])
        return run_view.announcement(dataclasses.replace(now, status=state, phase="train"))

    assert "Training</" in announced(24)
    assert "Training, 25% of the steps" in announced(25)
    assert announced(25) == announced(49)
    assert "Training, 50% of the steps" in announced(74)
    assert "%" not in announced(74, "stopped")
    assert "%" not in announced(100)


_OBSERVE = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (entry.hadRecentInput) continue;
    const names = entry.sources.map(({node}) => node && (node.id || node.className));
    window.shifts.push([entry.value, names.join(' ')]);
  }
}).observe({type: 'layout-shift', buffered: false});
"""


@pytest.mark.long
@pytest.mark.parametrize("width", [375, 1280, 1920])
def test_nothing_jumps_while_a_run_streams(
    app: App, browser: Browser, toy_checkpoint: Path, width: int
) -> None:
    """Cumulative layout shift, from the click on Train to the end, is what the web calls good
    (https://web.dev/articles/cls), and the plots do not move but at a phone's end."""
    page = browser.new_page(viewport={"width": width, "height": 1600})
    page.goto(app.url)
    fill_toy(page, toy_checkpoint, 1)
    choose_bundled(page)
    press_train(page)
    expect(page.locator("#run-phase")).to_be_visible()
    page.evaluate(_OBSERVE)
    places = "['loss-plot', 'score-plot'].map((id) => document.getElementById(id).offsetTop)"
    before = page.evaluate(places)
    expect(page.locator("#run-phase")).to_have_text("Finished", timeout=120_000)
    expect(page.locator("#score-plot .ft-level")).not_to_have_count(0)
    page.wait_for_timeout(1500)
    shifts = page.evaluate("window.shifts")
    # There the box that ends a run has no room kept for it: a third of a screen.
    phone = width <= 640
    assert phone or page.evaluate(places) == before
    assert sum(value for value, _ in shifts) < (0.15 if phone else 0.02), shifts
    page.close()
