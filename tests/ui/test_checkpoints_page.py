"""The catalogue of checkpoints in the browser: filtered, chosen, sized, refused, removed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from playwright.sync_api import Page, expect

from finetune.config import RunConfig
from finetune.data import model_cache
from finetune.jobs.cost import Cut, Estimate
from finetune.runs.store import RunStore
from finetune.ui import train_plan
from finetune.ui.choosers import CheckpointList
from tests.support.browser import App, choose, fill, press_train
from tests.support.hub import LoopbackHub


def test_the_list_says_what_is_chosen_and_what_must_be_downloaded(store: RunStore) -> None:
    offered = CheckpointList(store)._listed(store, "roberta-base", "", "")
    assert offered.count("nothing to download") == 1  # the bundled one
    assert "at most 440 MB to download" in offered  # BERT base
    assert offered.count('aria-pressed="true"') == 1
    assert re.search(r'aria-pressed="true"[^>]+roberta-base', offered)


def test_the_line_and_the_card_agree_on_what_is_cut() -> None:
    for cut, said in ((Cut(0.0, 300), "nothing is cut"), (Cut(0.0, 300, True), "hardly anything")):
        assert train_plan.costs(Estimate(cut=cut), RunConfig()).count(said) == 2


@pytest.mark.long
def test_a_checkpoint_is_found_sized_downloaded_and_removed(
    app: App, page: Page, hub: LoopbackHub, toy_checkpoint: Path, tmp_path: Path
) -> None:
    files = {path.name: path.read_bytes() for path in toy_checkpoint.iterdir()}
    weights = safetensors.numpy.load(files["model.safetensors"])
    weights["more"] = np.zeros(5_000_000, np.float32)
    files["model.safetensors"] = safetensors.numpy.save(weights, {"format": "pt"})
    hub.add_repo("ada/downloaded", files=files)
    hub.add_repo("ada/pickled", files={"config.json": files["config.json"], "a.bin": b"x"})
    expect(page.locator("#hub-status")).to_contain_text("Hub")
    # 1. The catalogue
    page.get_by_role("button", name="Choose a checkpoint by size and language").click()
    listed = page.get_by_role("list", name="Checkpoints to begin from")
    expect(listed.get_by_role("button")).to_have_count(38)
    for label, option in (("Size", "Large"), ("Language of the texts", "Other languages")):
        page.get_by_role("combobox", name=label, exact=True).click()
        page.get_by_role("option", name=option).click()
    expect(listed.get_by_role("button")).to_have_count(3)
    if folder := os.environ.get("SCREENSHOTS"):
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            for width in (1280, 375):
                page.set_viewport_size({"width": width, "height": 900})
                page.screenshot(path=f"{folder}/{scheme}-{width}.png", full_page=True)
        page.set_viewport_size({"width": 1280, "height": 900})
    chosen = listed.get_by_role("button", name="XLM-RoBERTa large")
    chosen.click()
    expect(chosen).to_have_attribute("aria-pressed", "true")
    expect(chosen).to_be_focused()
    box = page.locator("#knob-checkpoint input")
    expect(box).to_have_value("XLM-RoBERTa large \u00b7 560M")
    expect(page.locator("#costs")).to_contain_text("2.2 GB to download")
    # 2. What cannot be fine-tuned
    choose(page, "checkpoint", "ada/pickled")
    expect(page.locator("#costs")).to_contain_text("has no safetensors weights")
    # 3. A download
    choose(page, "checkpoint", "ada/downloaded")
    expect(page.locator("#costs")).to_contain_text("20 MB to download")
    page.locator("#knob-dataset input").fill("bundled")
    page.get_by_role("option", name=re.compile("Bundled")).click()
    fill(page, "max_steps", "2")
    fill(page, "max_length", "48")
    press_train(page)
    expect(page.locator("#run-phase")).to_have_text("Finished")
    (run,) = app.store.runs()
    assert '"event":"progress"' in run.events_file.read_text()
    # 4. On this disk
    page.get_by_role("button", name="New run").click()
    page.get_by_role("combobox", name="Size", exact=True).click()
    page.get_by_role("option", name="Small").click()
    stored = page.get_by_role("list", name="On this disk").get_by_role("listitem")
    mine = stored.filter(has_text="ada/downloaded")
    expect(mine).to_contain_text("20 MB")
    mine.get_by_role("button", name="Remove").click()
    expect(page.locator("#checkpoint-message")).to_contain_text("ada/downloaded is removed: 20 MB")
    expect(mine).to_have_count(0)
    assert "ada/downloaded" not in {model.name for model in model_cache.list_models()}
