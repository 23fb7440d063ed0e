"""What charts carry beside their picture: every point's values, and legends like the lines."""

import html
import json
import re

import pytest
from playwright.sync_api import expect

from finetune.metrics.catalog import find
from finetune.runs import events
from finetune.runs.summary import RunSummary
from finetune.ui import charts
from finetune.ui.charts import Series
from finetune.ui.html import asset
from tests.support.browser import new_page
from tests.support.toys import story

ACCURACY = find("accuracy")


def values(drawn):
    """The lines whose values a chart carries."""
    (text,) = re.findall(' data-lines="([^"]*)"', drawn)
    lines = json.loads(html.unescape(text))
    return lines


def test_any_points_are_drawn_within_the_plot_and_keep_their_digits():
    cases = [
        [(1.0, 0.5)], [(1.0, 0.0), (2.0, 0.0)], [(1.0, 0.121), (2.0, 0.847)],
        [(0.125, 1.234e-5), (1.0, 0.0), (2.0, 123500.0)], [(5.0, -3.0)],
    ]  # fmt: skip
    for points in cases:
        drawn = charts.chart("x", [Series("s", "loss", points)], 0, "")
        positions = [float(p) for p in re.findall(r"(?:left|top):([-\d.]+)%", drawn)]
        assert positions
        assert all(-0.01 <= position <= 100.01 for position in positions)
        (line,) = values(drawn)
        pairs = zip(line["x"].split(), line["y"].split(), strict=True)
        assert [(float(x), float(y)) for x, y in pairs] == points


def test_what_a_chart_carries_is_bounded_and_keeps_its_ends():
    summary = RunSummary().fold([
        events.Stepped(step=n, epoch=n, loss=1 / n, learning_rate=1e-5, samples_per_second=1.0)
        for n in range(1, 50_001)
    ])  # fmt: skip
    drawn = charts.loss_chart(summary)
    assert len(drawn) < 20_000
    for line in values(drawn):
        steps = line["x"].split()
        assert len(steps) == len(line["y"].split()) <= charts.POINTS + 1
        assert (steps[0], steps[-1]) == ("1", "50000")


@pytest.fixture
def bare(browser):
    """Charts alone, with the page's script and style and without an app."""
    page = new_page(browser, viewport={"width": 600, "height": 800})
    curve = Series("model", "run0", [(0.0, 0.0), (0.0, 0.5), (1.0, 1.0)], latest=False)
    guess = Series("guess", "guess", [(0.0, 0.0), (1.0, 1.0)], latest=False, straight=True)
    sheet = asset("palette.css") + asset("page.css")
    roc = charts.chart("ROC", [curve, guess], 1, "", "rate", reach=(0.0, 1.0))
    scripts = (f"<script>{asset(name)}</script>" for name in ("page.js", "charts.js"))
    many = [Series(f"trial {n}", "accuracy", [(1.0, n / 10)], latest=False) for n in range(10)]
    page.set_content(
        f"<style>{sheet}</style><main><div id='loss'>"
        f"{charts.loss_chart(RunSummary().fold(story()))}</div>"
        f"<div id='roc'>{roc}</div><p>elsewhere</p>"
        f"<div id='many'>{charts.chart('All', many, 1, '', legend=False)}</div></main>"
        + "".join(scripts)
    )
    return page


def test_values_are_read_while_the_chart_is_drawn_anew_and_it_is_opened_large(bare):
    import matplotlib.image

    plot, readout = bare.locator("#loss .ft-plot"), bare.locator("#loss .ft-readout")
    box = plot.bounding_box()
    bare.mouse.move(box["x"] + box["width"] * 0.49, box["y"] + 20)
    expect(readout).to_have_text("step 4, pass 0.50training loss0.2500validation loss0.5000(8)")
    bare.evaluate(
        "() => { const box = document.querySelector('#loss');"
        "box.innerHTML = box.innerHTML.replace(/<div class=\"ft-at\".*?<.div><.div>/, ''); }"
    )
    expect(readout).to_have_text("step 4, pass 0.50training loss0.2500validation loss0.5000(8)")
    # Another run's values in the same plot: Gradio keeps the element and changes what it carries.
    plot.evaluate("(plot) => plot.dataset.lines = plot.dataset.lines.replace('0.2500', '7.7500')")
    bare.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 25)
    expect(readout).to_have_text("step 4, pass 0.50training loss7.7500validation loss0.5000(8)")
    bare.locator("p", has_text="elsewhere").hover()
    expect(readout).to_have_count(0)
    plot, readout = bare.locator("#many .ft-plot"), bare.locator("#many .ft-readout")
    plot.hover(position={"x": 5, "y": 2})
    expect(readout).to_have_text("step 1trial 90.9000")  # of many lines the one at the pointer
    # By the arrow keys, too.
    plot = bare.locator("#roc .ft-plot")
    plot.focus()
    expect(plot).to_have_attribute("aria-valuetext", "rate 1: model 1.0000, guess 1.0000")
    for values in ("model 0.5000, guess 0.0000", "model 0.0000, guess 0.0000"):  # straight down
        plot.press("ArrowLeft")
        expect(plot).to_have_attribute("aria-valuetext", f"rate 0: {values}")
    bare.evaluate("() => { const box = document.querySelector('#roc'); box.innerHTML += ''; }")
    expect(plot).to_be_focused()
    expect(plot.locator(".ft-readout")).to_have_count(1)
    plot.press("Escape")
    expect(plot.locator(".ft-readout")).to_have_count(0)
    # A chart is opened large and saved as a picture.
    bare.get_by_role("button", name="Open it large: Loss").click()
    large = bare.get_by_role("dialog")
    expect(large.locator(".ft-plot")).to_be_visible()
    bare.evaluate("() => { const box = document.querySelector('#loss'); box.innerHTML += ''; }")
    large.locator(".ft-plot").hover()
    expect(large.locator(".ft-readout")).to_contain_text("training loss")
    with bare.expect_download() as taken:
        large.get_by_role("button", name="Save as PNG: Loss").click()
    assert taken.value.suggested_filename == "Loss.png"
    picture = matplotlib.image.imread(taken.value.path(), format="png")
    assert picture.shape == (1120, 2000, 4)
    assert picture.std() > 0.01
    bare.keyboard.press("Escape")
    expect(large).to_have_count(0)
    bare.close()
