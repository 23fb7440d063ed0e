"""A first visit in a real Chromium: what a click costs, what happens, and where to go next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import App, choose_bundled, fill, fill_toy, press_train


@pytest.mark.long
def test_a_first_visitor_is_led_from_an_empty_page_to_a_model(
    app: App, page: Page, toy_checkpoint: Path
) -> None:
    for tab in ("Runs", "Predict", "Publish"):
        page.get_by_role("tab", name=tab, exact=True).click()
        page.locator("[data-tab=train]:visible").click()
        expect(page.get_by_role("tab", name="Train", exact=True)).to_have_attribute(
            "aria-selected", "true"
        )
    fill_toy(page, toy_checkpoint, epochs=1)
    choose_bundled(page)
    costs = page.locator("#costs")
    expect(costs).to_contain_text("128 steps \u00b7 about")
    expect(page.locator("#pairs-card tbody tr")).to_have_count(3)
    costs.locator("summary").click()
    expect(costs).to_contain_text("2,038 pairs, 128 steps an epoch, 1 epoch.")
    fill(page, "num_train_epochs", "-1")
    expect(costs).to_contain_text("Epochs must be at least 1, got -1")
    fill(page, "num_train_epochs", "20")
    expect(costs).to_contain_text("2,560")
    fill(page, "learning_rate", "0.5")
    expect(costs).to_contain_text("0.001 is usual")
    rate, steps = page.locator("#knob-learning_rate"), page.locator("#knob-max_steps")
    expect(rate).to_have_attribute("data-problem", re.compile("0.001 is usual"))
    expect(rate.locator("input, textarea")).to_have_attribute("aria-invalid", "false")
    fill(page, "learning_rate", "0,001")
    expect(rate).not_to_have_attribute("data-problem", re.compile("."))
    fill(page, "max_steps", "1.000")  # a thousand where a point separates them, never 1
    expect(steps).to_have_attribute("data-problem", "must be a whole number, got '1.000'")
    expect(steps.locator("input, textarea")).to_have_attribute("aria-invalid", "true")
    fill(page, "max_steps", "-1")
    expect(steps).not_to_have_attribute("data-problem", re.compile("."))
    press_train(page)
    expect(page.locator("#lesson [aria-current=step]")).to_be_visible()
    page.get_by_role("tab", name="First batch").click()
    batch = page.locator("#first-batch")
    expect(batch).to_contain_text("[CLS] sentence1 [SEP] sentence2 [SEP]")
    expect(batch.get_by_role("row", name="input_ids").first).to_contain_text("16 \u00d7")
    expect(batch.locator("details").first.locator("td.ft-pad, td.ft-special").first).to_be_visible()
    expect(page.locator("#run-phase")).to_have_text("Finished", timeout=240_000)
    page.get_by_role("tab", name="What is happening").click()
    link = page.locator("#lesson a")
    expect(link).to_have_attribute("rel", "noopener")
    expect(link).to_have_attribute("target", "_blank")
    # The next run's time is known from this one's.
    page.locator("#new-run").click()
    expect(page.locator("#new-run")).to_be_hidden()
    expect(page.locator("#shown-run")).to_contain_text("-1")  # the name of the run below
    expect(costs).to_contain_text("on the same pairs")
    page.locator("#result [data-tab=predict]").click()
    expect(page.get_by_role("tab", name="Predict", exact=True)).to_have_attribute(
        "aria-selected", "true"
    )
