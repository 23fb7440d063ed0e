"""A predicted file in a real Chromium: it says if the model holds, and takes labels of rows."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from finetune.data.sources import LABELS
from finetune.jobs import predict
from tests.support import monitored
from tests.support.browser import App, pick
from tests.support.judging import write_csv

pytestmark = pytest.mark.long


def test_rows_are_labelled_until_the_accuracy_is_measured(
    app: App, page: Page, toy_checkpoint: Path, tmp_path: Path
) -> None:
    monitored.monitored_run(app.store, toy_checkpoint)
    pairs = [
        (*texts, LABELS[number % 2])
        for number, (*texts, _) in enumerate(monitored.rows(150, 2, long=8))
    ]
    file = write_csv(tmp_path / "new.csv", [(*monitored.HEAD[:2], "gpt"), *pairs])
    page.reload()
    page.get_by_role("tab", name="Predict").click()
    page.get_by_role("radio", name="A file").check(force=True)
    page.locator("#batch-file input[type=file]").set_input_files(file)
    expect(page.locator("#batch-sentence2 input")).to_have_value("sentence2")
    page.locator("#batch-start").click()
    shown = page.locator("#batch-monitoring")
    expect(shown).to_contain_text("150 rows beside 200 validation pairs", timeout=120_000)
    expect(shown).to_contain_text("the file differs from the validation pairs in the lengths")
    expect(shown).to_contain_text("Answers in the column gpt")
    pick(page, page.locator("#batch-which input"), re.compile("to label"))
    boxes = page.locator("#batch-rows select")
    expect(boxes.first).to_have_value("")
    job = predict.newest_predictions(app.store)[0]
    for row in job.state().to_label[1:29]:  # two are given on the page
        predict.label_row(job, row["row"], LABELS[1])
    boxes.first.select_option(LABELS[0])
    expect(shown).to_contain_text("(29 are labelled)")
    page.get_by_role("button", name="Next →").click()
    unlabelled = page.locator('#batch-rows select:has(option[value=""][selected])')
    unlabelled.first.select_option(LABELS[0])
    expect(shown).to_contain_text("Measured on 30 of 100 random rows")
    if folder := os.environ.get("PICTURES"):
        for scheme in ("light", "dark"):
            for width in (1280, 375):
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                page.wait_for_timeout(800)
                page.screenshot(path=f"{folder}/{scheme}-{width}.png", full_page=True)
