"""A file without answers, in a real Chromium: questions, answers by keys and by touch, training."""

import csv
import re
import urllib.request

import pytest
from playwright.sync_api import expect

from finetune.jobs import label
from finetune.ui.html import macro
from tests.support.browser import View
from tests.support.uploads import write_csv

THINGS = ("lamp", "chair", "kettle", "shelf", "towel")
COLOURS = ("red", "blue", "green", "white", "black", "grey")
WAYS = ("The {} {} of oak", "{} {} (oak)")


def dropped(visit, folder):
    """The Data tab with texts that nobody has labelled."""
    rows = [(way.format(c, t),) for t in THINGS for c in COLOURS for way in WAYS]
    visit.tab("Data")
    page, file = visit.page, write_csv(folder / "things.csv", [("text",), *rows])
    page.locator("#train-file input[type=file]").set_input_files(file)
    expect(page.locator("#label-texts")).to_be_visible()  # it opens by itself
    return page


def number(page):
    return str(page.locator(".ft-ask b").inner_text())


def answer(page, how, key=""):
    """Answer by a key, or by pressing a button."""
    before = number(page)
    page.keyboard.press(key) if key else page.locator(how).click()
    expect(page.locator(".ft-ask b")).not_to_have_text(before)


@pytest.mark.long
def test_pairs_are_answered_by_keys_and_trained_on(app, visit, toy_checkpoint, tmp_path):
    visit.fill_toy(toy_checkpoint, 1)
    page = dropped(visit, tmp_path)
    page.locator("#label-pairs").click()
    expect(page.locator(".ft-ask blockquote")).to_have_count(2)
    expect(page.locator("#label-progress .ft-bar")).to_have_count(0)  # all is prepared
    for count in range(34):
        texts = page.locator(".ft-ask blockquote").all_inner_texts()
        things = {frozenset(set(text.split()) & {*THINGS, *COLOURS}) for text in texts}
        answer(page, "", "1" if len(things) == 1 else "2")
        assert number(page) == str(count + 2)
    answer(page, "", "z")
    assert number(page) == "34"
    answer(page, "", "Space")
    expect(page.locator("#label-estimate")).to_contain_text("random rows; always")
    page.locator("#label-answer").click()
    expect(page.locator("#label-result")).to_contain_text("groups of two or more")
    page.locator("#label-train").click()
    expect(page.locator("#knob-dataset input")).to_have_value(re.compile("things-answers"))
    expect(page.locator("#planned-folds")).to_be_visible()
    (job,) = label.LabelJob.newest(app.store)
    assert len(job.labelling.settled()) == 33


@pytest.mark.long
@pytest.mark.parametrize("visit", [View(375, "dark", "de-DE")], ids=["phone"], indirect=True)
def test_texts_are_labelled_by_touch_and_gone_on_with(app, visit, toy_checkpoint, tmp_path):
    visit.fill_toy(toy_checkpoint, 1)
    page = dropped(visit, tmp_path)
    page.locator("#label-names input, #label-names textarea").fill("warm, cold")
    page.locator("#label-texts").click()
    for _ in range(3):
        answer(page, "[data-label=warm]")
    answer(page, "", "Space")  # skips, though a label was clicked last
    page.locator(".ft-add input").fill("both")
    page.keyboard.press("Enter")
    expect(page.locator("[data-label=both]")).to_be_visible()
    answer(page, "", "3")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.locator("#label-remove").click()
    expect(page.locator("#label-sure")).to_contain_text("both): 4")
    page.locator("#label-again").click()
    page.locator("#label-texts").click()
    expect(page.locator(".ft-ask b")).to_have_text("1")
    expect(page.locator("#label-sure")).to_be_hidden()  # it would delete the new one
    page.reload()
    visit.tab("Data")
    if not page.locator("#label-former").is_visible():
        page.locator("#labelling").get_by_role("button").first.click()
    page.locator("#label-former input").click()
    page.locator("[role=option]:visible").last.click()
    expect(page.locator(".ft-ask b")).to_have_text("6")
    address = page.locator("#label-estimate a").first.get_attribute("href")
    with urllib.request.urlopen(f"{app.url}/{address}") as response:
        rows = list(csv.DictReader(response.read().decode().splitlines()))
    assert [row["label"] for row in rows] == ["warm"] * 3 + ["both"]


def test_groups_say_on_what_they_were_measured():
    report = {
        "answers": 40, "groups": 2, "grouped": 5, "measured": 30, "precision": [0.9, 0.8, 0.98],
        "recall": [1.0, 0.21, 1.0], "doubtful": [[0.51, ["one", "two"]]],
        "largest": [[7, ["<b>", "c"]]], "contradicted": [["three", "four"]], "unread": ["line 3"],
    }  # fmt: skip
    drawn = macro("label.html", "result")("id", report, 2)
    figures = ["90% <small>(80%–98%)", "<b>21%–100%</b>", "30 random pairs", "51%", "four"]
    for part in (*figures, "5 rows are in one", "&lt;b&gt;", "result-1", "result-2", "line 3"):
        assert part in drawn
