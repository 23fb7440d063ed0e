"""What charts carry beside their picture: every point's values, and legends like the lines."""

from __future__ import annotations

import html
import itertools
import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Browser, Page, expect

from finetune.config import RunConfig
from finetune.jobs import run_table
from finetune.runs import events
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary, fold_events
from finetune.ui import charts, compare_view, theme
from finetune.ui.charts import Series
from tests.support.browser import fill
from tests.support.toys import story

SHEET = theme.CSS.read_text(encoding="utf-8")


def attribute(drawn: str, name: str) -> str:
    """An attribute of a chart's plot."""
    (value,) = re.findall(rf' {name}="([^"]*)"', drawn)
    return html.unescape(value)


def values(drawn: str) -> list[dict[str, Any]]:
    """The lines whose values a chart carries."""
    lines: list[dict[str, Any]] = json.loads(attribute(drawn, "data-lines"))
    return lines


def losses(*measured: float) -> RunSummary:
    """A run with these training losses."""
    return fold_events([
        events.Stepped(step=n, epoch=n, loss=loss, learning_rate=1e-5, samples_per_second=1.0)
        for n, loss in enumerate(measured, start=1)
    ])  # fmt: skip


def score_chart(baselines: int) -> str:
    levels = tuple((f"baseline <{n}>", 0.3 + n / 10) for n in range(baselines))
    points = [(1.0, 0.5), (2.0, 0.625)]
    lines = [Series(name, name.lower(), points, True, levels) for name in ("accuracy", "F1")]
    return charts.chart("Scores <b>", lines, 4, "")


def test_a_chart_carries_the_values_of_its_points() -> None:
    drawn = charts.loss_chart(fold_events(story()))
    (line,) = values(drawn)
    assert line["name"] == "training loss"
    assert line["x"] == "1 2 3 4 5 6 7 8"
    assert line["y"].startswith("1.0000 0.5000 0.3333")
    assert 'tabindex="0" role="slider"' in drawn
    assert attribute(drawn, "aria-valuenow") == "8"
    assert attribute(drawn, "aria-valuetext") == "step 8: training loss 0.1250"
    assert 'aria-label="Scores &lt;b&gt;: values' in score_chart(0)
    assert "slider" not in charts.loss_chart(RunSummary())  # there is nothing to read


def test_tiny_and_huge_values_keep_their_digits() -> None:
    points = [(0.125, 1.234e-5), (1.0, 0.0), (2.0, 123456.0)]
    (line,) = values(charts.chart("x", [Series("s", "loss", points)], 2, ""))
    assert line["x"].split() == ["0.1250", "1", "2"]
    assert [float(y) for y in line["y"].split()] == [1.234e-5, 0, 123500]


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
    drawn = charts.chart("x", [Series("s", "loss", points)], 0, "")
    positions = [float(p) for p in re.findall(r"(?:left|top):([-\d.]+)%", drawn)]
    assert positions
    assert all(-0.01 <= p <= 100.01 for p in positions)


def test_a_long_loss_is_smoothed_beside_the_measured_one() -> None:
    measured = [1 + 0.5 * (-1) ** n for n in range(60)]
    raw, mean = values(charts.loss_chart(losses(*measured)))
    assert (raw["name"], mean["name"]) == ("training loss", "smoothed")
    assert raw["x"] == mean["x"]
    assert [float(y) for y in raw["y"].split()] == measured
    averages = [float(y) for y in mean["y"].split()]
    assert averages[0] == measured[0]
    assert averages[-10:] == pytest.approx([1] * 10, abs=0.05)


def test_what_a_chart_carries_is_bounded_and_keeps_its_ends() -> None:
    drawn = charts.loss_chart(losses(*(1 / n for n in range(1, 50_001))))
    assert len(drawn) < 20_000
    for line in values(drawn):
        steps = line["x"].split()
        assert len(steps) == len(line["y"].split()) <= charts.POINTS + 1
        assert (steps[0], steps[-1]) == ("1", "50000")


def upper_end(drawn: str) -> float:
    return float(attribute(drawn, "data-box").split()[2])


@pytest.mark.parametrize("baseline", [0.5, 0.97, 1.0])
def test_the_axis_of_scores_ends_at_one_at_the_latest(store: RunStore, baseline: float) -> None:
    run = store.create(RunConfig())
    for event in story()[:-2]:
        run.append(event)
    levels = {"constant": {"accuracy": baseline, "f1": baseline}}
    run.append(events.BaselinesMeasured(baselines=levels))
    for step, score in ((9, baseline), (10, 0.75)):
        metrics = {"accuracy": score, "f1": score, "loss": 1.4}
        run.append(events.Evaluated(step=step, epoch=1.0, metrics=metrics, seconds=0.1, best=False))
    summary = store.summary(run)
    drawn = charts.score_chart(summary)
    end = upper_end(drawn)
    assert baseline <= end <= 1
    assert float(re.findall(r'class="ft-y"[^>]*>([\d.]+)<', drawn)[-1]) <= end
    compared = compare_view.Compared(run_table.run_row(store, run), summary)
    ends = [upper_end(part) for part in compare_view.view([compared], {}).split("<figure")[1:]]
    assert len(ends) == 4
    assert max(ends[1], ends[2]) <= 1 < ends[3]  # a loss may be more


def test_each_baseline_has_the_dashes_and_the_mark_of_its_line() -> None:
    drawn = score_chart(3)
    legend = drawn.partition('<span class="ft-legend">')[2].partition("</figcaption>")[0]
    swatches = [
        ElementTree.fromstring(svg).find("line")
        for svg in re.findall(r"<svg.*?</svg>", legend, re.DOTALL)
    ]
    classes = [line.get("class") for line in swatches if line is not None]
    assert classes[2:] == [f"ft-line ft-dash ft-dash{n}" for n in range(3)]  # after two lines
    for n, style in itertools.product(range(3), ("accuracy", "f1")):
        assert f'<path class="ft-line ft-{style} ft-dash ft-dash{n}"' in drawn
        assert f'class="ft-level ft-{style}" style="top:' in drawn
    assert "F1 of baseline &lt;0&gt; 0.3000" in drawn
    dashes = re.findall(r"\.ft-line\.ft-dash\d? {[^}]*stroke-dasharray: ([\d ]+)", SHEET)
    assert len(set(dashes)) == 3
    # Inside the plot, each at its place.
    assert re.findall(r'class="ft-level ft-f1" style="[^"]*--place:(\d)"', drawn) == ["0", "1", "2"]
    left = re.search(r"\.ft-level {[^}]*left: calc\((\d+)px \+ (\d+)px \* var\(--place\)\)", SHEET)
    assert left is not None
    assert int(left[1]) >= 10  # clear of the axis
    assert int(left[2]) >= 12  # and of each other


@pytest.fixture
def bare(browser: Browser) -> Page:
    """Charts alone, with the page's script and style and without an app."""
    page = browser.new_page(viewport={"width": 600, "height": 800})
    curve = Series("model", "run0", [(0.0, 0.0), (0.0, 0.5), (1.0, 1.0)], latest=False)
    guess = Series("guess", "guess", [(0.0, 0.0), (1.0, 1.0)], latest=False, straight=True)
    page.set_content(
        f"<style>{theme.asset('palette.css')}{SHEET}</style><main><div id='loss'>"
        f"{charts.loss_chart(fold_events(story()))}</div>"
        f"<div id='roc'>{charts.chart('ROC', [curve, guess], 1, '', 'rate', share=True)}</div>"
        f"<p>elsewhere</p></main><script>{theme.asset('page.js')}</script>"
    )
    return page


def test_values_are_read_by_pointer_and_stay_while_the_chart_is_drawn_anew(bare: Page) -> None:
    plot, shown = bare.locator("#loss .ft-plot"), bare.locator("#loss .ft-readout")
    box = plot.bounding_box()
    assert box is not None
    before = bare.evaluate("document.body.scrollHeight")
    bare.mouse.move(box["x"] + box["width"] * 0.49, box["y"] + 20)
    expect(shown).to_have_text("step 4, epoch 0.50training loss0.2500")
    expect(shown.locator("svg.ft-swatch")).to_have_count(1)
    assert bare.evaluate("document.body.scrollHeight") == before
    bare.evaluate(
        "() => { const box = document.querySelector('#loss');"
        "box.innerHTML = box.innerHTML.replace(/<div class=\"ft-at\".*?<.div><.div>/, ''); }"
    )
    expect(shown).to_have_text("step 4, epoch 0.50training loss0.2500")
    expect(shown).to_have_count(1)
    # Another run's values in the same plot: Gradio keeps the element and changes what it carries.
    plot.evaluate("(plot) => plot.dataset.lines = plot.dataset.lines.replace('0.2500', '7.7500')")
    bare.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 25)
    expect(shown).to_have_text("step 4, epoch 0.50training loss7.7500")
    bare.locator("p", has_text="elsewhere").hover()
    expect(shown).to_have_count(0)
    bare.close()


def test_values_are_read_by_the_arrow_keys(bare: Page) -> None:
    plot = bare.locator("#roc .ft-plot")
    plot.focus()
    expect(plot).to_have_attribute("aria-valuetext", "rate 1: model 1.0000, guess 1.0000")
    plot.press("ArrowLeft")
    expect(plot).to_have_attribute("aria-valuetext", "rate 0: model 0.5000, guess 0.0000")
    plot.press("ArrowLeft")  # straight down
    expect(plot).to_have_attribute("aria-valuetext", "rate 0: model 0.0000, guess 0.0000")
    expect(plot.locator(".ft-readout")).to_be_visible()
    bare.evaluate("() => { const box = document.querySelector('#roc'); box.innerHTML += ''; }")
    expect(plot).to_be_focused()
    expect(plot.locator(".ft-readout")).to_have_count(1)
    plot.press("Escape")
    expect(plot.locator(".ft-readout")).to_have_count(0)
    plot.press("End")
    expect(plot).to_have_attribute("aria-valuenow", "1")
    plot.press("Tab")
    expect(plot.locator(".ft-readout")).to_have_count(0)
    bare.close()


@pytest.mark.long
def test_a_setting_is_found_and_what_differs_is_marked(page: Page) -> None:
    expect(page.locator("#hub-status")).to_contain_text("Hub")
    fill(page, "learning_rate", "0.001")
    expect(page.locator("#knob-learning_rate")).to_have_attribute(
        "data-differs", re.compile("preset: (0.00005|5e-05)")
    )
    page.locator("#advanced > button").click()
    box = page.locator("#find-knob").locator("input, textarea")
    expect(page.locator("#knobs-shown")).to_have_text(re.compile(r"settings shown:(\d+) / \1"))
    box.fill("Eval Batch")
    expect(page.locator("#knobs-shown")).to_contain_text("1 / ")
    expect(page.locator("#knob-per_device_eval_batch_size")).to_be_visible()
    expect(page.locator("#knob-weight_decay")).to_be_hidden()
    expect(page.locator("#advanced h2:visible")).to_have_text(["Evaluation"])
    box.press("Escape")
    expect(page.locator("#knob-weight_decay")).to_be_visible()
    fill(page, "learning_rate", "0.00005")
    expect(page.locator("[data-differs]")).to_have_count(0)
    page.locator("#preset input").click()
    page.get_by_role("option", name="Fast", exact=True).click()
    expect(page.locator("#knob-max_length input")).to_have_value("96")
    fill(page, "max_length", "97")
    expect(page.locator("[data-differs]")).to_have_count(1)
