"""Which checkpoint first, on the page: compared in a process of its own, and chosen by a button."""

from __future__ import annotations

import json
from pathlib import Path

import gradio as gr
import pytest
from playwright.sync_api import Page, expect

from finetune.config import BUNDLED_CHECKPOINT, DATA_FIELDS, RunConfig
from finetune.data import checkpoint_catalog
from finetune.errors import DataError
from finetune.evaluation.probe import Probed, ProbeReport
from finetune.jobs import probe
from finetune.metrics.intervals import Interval
from finetune.owners import Visitor
from finetune.runs.store import RunStore
from finetune.ui.choosers import ProbeForm
from finetune.ui.html import macro
from tests.support import toys
from tests.support.tabs import NOBODY, draw_train

REPORT = ProbeReport(
    [
        Probed("owner/<good>", "", Interval(0.8, 0.75, 0.85), None, 5.5, 22_000_000, 90_000_000),
        Probed("owner/gone", "The checkpoint is not on the Hub."),
    ],
    Interval(0.7, 0.6, 0.8), "f1", 2, 1000, 12.0,
)  # fmt: skip


@pytest.fixture
def form(store: RunStore) -> ProbeForm:
    return draw_train(store).probe


def test_a_ranking_is_shown_with_a_button_for_each_that_was_read() -> None:
    html = macro("probe.html", "ranking")(REPORT)
    assert html.count('data-field="checkpoint"') == 1
    assert "&lt;good&gt;" in html
    assert "<good>" not in html
    for text in ("0.800", "0.750–0.850", "90.0 MB", "not on the Hub", "TF-IDF"):
        assert text in html


def test_a_pressed_checkpoint_is_put_into_the_form(form: ProbeForm) -> None:
    event = gr.EventData(None, {"field": "checkpoint", "value": "owner/good"})
    updates = form.on_press(NOBODY, "", event)
    assert updates[form.checkpoint] == "owner/good"


def test_what_cannot_be_compared_is_said_at_the_button(form: ProbeForm) -> None:
    values = [getattr(RunConfig(), name) for name in (*DATA_FIELDS, "checkpoint", "max_length")]
    assert "from 2 to 8" in form.on_start(NOBODY, [BUNDLED_CHECKPOINT], *values)[form.message]
    assert "from 2 to 8" in form.on_start(NOBODY, None, *values)[form.message]
    for unknown in ("", "../..", "0" * 24):
        told = form.on_tick(NOBODY, unknown, gr.EventData(None, {"wait": "+x"}))[form.message]
        assert "no such comparison" in told


def test_nobody_sees_anothers_probe(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    ada, bob = (store.for_visitor(Visitor(names=(f"browser:{name}",))) for name in ("ada", "bob"))
    names = [BUNDLED_CHECKPOINT, "bert-base-uncased"]
    job = probe.probe_of(ada, RunConfig(), names)
    assert probe.probe_of(bob, RunConfig(), names).folder != job.folder
    job.folder.mkdir(parents=True)
    job.describe_job("probe", ada.visitor.name, {})
    assert probe.ProbeJob.find(ada, job.id).folder == job.folder
    with pytest.raises(DataError, match="no such comparison"):
        probe.ProbeJob.find(bob, job.id)


@pytest.mark.long
def test_checkpoints_are_compared_and_one_is_chosen(
    page: Page, toy_checkpoint: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain-encoder"
    toys.copy_model(toy_checkpoint, plain)
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    page.get_by_role("tab", name="Data", exact=True).click()
    page.locator("#train-file input[type=file]").set_input_files(
        toys.write_pairs(tmp_path / "pairs", train=80) / "train.csv"
    )
    expect(page.locator("#overview")).to_contain_text("can be trained on")
    page.get_by_role("tab", name="Train", exact=True).click()
    page.get_by_role("button", name="Advanced").click()
    length = page.locator("#knob-max_length input")
    length.fill("32")
    length.press("Enter")
    page.get_by_role("button", name="Which checkpoint first?").click()
    box = page.locator("#probe-names input")
    box.fill(str(plain))
    box.press("Enter")
    expect(page.locator("#probe-names")).to_contain_text("plain-encoder")
    page.locator("#probe-start").click()
    result = page.locator("#probe-result")
    expect(result.get_by_role("row")).to_have_count(4)  # a head, both checkpoints, and words
    expect(result).to_contain_text("all-MiniLM-L6-v2")
    row = result.get_by_role("row").filter(has_text="plain-encoder")
    row.get_by_role("button", name="Train with this").click()
    expect(page.locator("#knob-checkpoint input")).to_have_value(str(plain))
    expect(page.locator("#probe-message")).to_contain_text("in the form")


@pytest.mark.long
def test_a_file_in_another_language_is_offered_another_checkpoint(
    page: Page, tmp_path: Path
) -> None:
    bundled = checkpoint_catalog.CHECKPOINTS[0].label
    text = "Der Vertrag wurde gestern von beiden Seiten unterzeichnet und tritt bald in Kraft"
    words = text.split(" ")
    rows = [f"{' '.join(words[n % 5 :])},{' '.join(words[n % 7 :])},{n % 2}\n" for n in range(60)]
    (tmp_path / "german.csv").write_text("first,second,label\n" + "".join(rows))
    page.get_by_role("tab", name="Train", exact=True).click()
    page.locator("#knob-checkpoint input").fill(bundled)
    page.locator("#knob-checkpoint input").press("Enter")
    page.get_by_role("tab", name="Data", exact=True).click()
    page.locator("#train-file input[type=file]").set_input_files(tmp_path / "german.csv")
    finding = page.locator('#findings [data-kind="language"]')
    expect(finding).to_contain_text("splits your words into")
    finding.get_by_role("button", name="Take Multilingual MiniLM").click()
    page.get_by_role("tab", name="Train", exact=True).click()
    expect(page.locator("#knob-checkpoint input")).to_have_value("Multilingual MiniLM \u00b7 118M")
