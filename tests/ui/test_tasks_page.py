"""Scores and several labels, from the drop of a file to the prediction and the card."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support import graded
from tests.support.browser import App, choose, fill, press_train


def _dropped(page: Page, path: Path, rows: list[tuple[object, ...]]) -> None:
    """Drop a file on the Data tab, and wait until it was examined."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    page.get_by_role("tab", name="Data").click()
    page.locator("input[type=file]").first.set_input_files(path)
    expect(page.get_by_role("button", name="Train on these pairs")).to_be_visible()


def _trained(page: Page, checkpoint: Path) -> None:
    page.get_by_role("button", name="Train on these pairs").click()
    choose(page, "checkpoint", str(checkpoint))
    fill(page, "num_train_epochs", "2")
    fill(page, "learning_rate", "0.001")
    fill(page, "max_length", "48")
    press_train(page)
    expect(page.locator("#run-phase")).to_have_text("Finished")


@pytest.mark.long
def test_scores_from_the_drop_to_the_card(
    app: App, page: Page, toy_checkpoint: Path, tmp_path: Path
) -> None:
    head = ("first", "second", "similarity")
    _dropped(page, tmp_path / "scores.csv", [head, *graded.graded_rows(300)])
    figure = page.get_by_role("group", name="Scores in train")
    expect(figure).to_contain_text("4.5 \u2013 5")
    figure.get_by_text("Learn two classes instead").click()
    cut = figure.get_by_role("button", name=re.compile(r"From 2\.5 on: \d+ of 270 rows"))
    expect(cut).to_be_visible()
    figure.get_by_role("slider").press("End")
    expect(figure.get_by_role("button", name=re.compile(r"From 4\.75 on: \d+ of"))).to_be_visible()
    _trained(page, toy_checkpoint)
    expect(page.locator("#cards")).to_contain_text("Pearson")
    page.get_by_role("tab", name="Runs").click()
    page.get_by_role("button", name="scores-1", exact=True).click()
    expect(page.get_by_role("heading", name="Answers against the truth")).to_be_visible()
    expect(page.locator(".ft-density rect").first).to_be_attached()
    expect(page.get_by_role("tab", name="When sure")).to_have_count(0)
    expect(page.locator("#evaluation-body")).to_contain_text("this model never answers “unsure”")
    page.get_by_role("tab", name="Predict").click()
    page.get_by_label("first", exact=True).fill("the cat sees a dog .")
    page.get_by_label("second", exact=True).fill("the cat sees a dog .")
    page.get_by_label("second", exact=True).press("Enter")
    expect(page.locator("#answer")).to_contain_text(
        re.compile(r"similarity = \s*-?\d+\.\d\d\s*95%:")
    )
    expect(page.get_by_label("use the saved threshold")).to_have_count(0)
    page.get_by_role("tab", name="Publish").click()
    expect(page.locator("#card")).to_contain_text("Gives two sentences a score")


@pytest.mark.long
def test_several_labels_from_the_drop_to_the_card(
    app: App, page: Page, toy_checkpoint: Path, tmp_path: Path
) -> None:
    _dropped(page, tmp_path / "labels.csv", [("text", "verbs"), *graded.labelled_rows(300)])
    expect(page.get_by_text("holds several labels per row").first).to_be_visible()
    _trained(page, toy_checkpoint)
    expect(page.locator("#cards")).to_contain_text("micro F1")
    page.get_by_role("tab", name="Runs").click()
    page.get_by_role("button", name="labels-1", exact=True).click()
    expect(page.get_by_label("Each label")).to_contain_text("hears")
    page.get_by_role("tab", name="Predict").click()
    page.get_by_label("text", exact=True).fill("the cat sees a fox")
    page.get_by_label("text", exact=True).press("Enter")
    expect(page.locator("#answer .ft-prob")).to_contain_text("likes")
    page.get_by_role("tab", name="Publish").click()
    expect(page.locator("#card")).to_contain_text("Gives a sentence any number of the labels")
