"""The Runs tab: a queue, the history, a comparison; also in a real Chromium."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import gradio as gr
import pytest
from playwright.sync_api import Page, expect

from finetune.config import RunConfig
from finetune.jobs import run_table
from finetune.jobs.scheduler import Queue
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui import form, run_view
from finetune.ui.tabs import runs
from tests.support import toys
from tests.support.browser import App, choose_bundled, fill_toy, press_train
from tests.support.toys import story
from tests.ui.test_app import NOBODY


def finished(store: RunStore, checkpoint: Path, f1: float = 0.8, **values: object) -> Run:
    """A run that has ended, its model the toy."""
    group = str(values.pop("group", ""))
    run = store.create(RunConfig(max_length=32).changed(**values), group=group)
    for event in story():
        if isinstance(event, events.Evaluated):
            metrics = {"metrics": {"accuracy": f1 - 0.1, "f1": f1, "loss": 0.5}}
            event = event.model_copy(update=metrics)
        run.append(event)
    toys.copy_model(checkpoint, run.best)
    return run


def test_an_expert_field_of_a_run_is_copied_into_the_form(store: RunStore) -> None:
    config = RunConfig(adam_beta1=0.5, padding="max_length")
    values = dict(zip(form.NAMES, form.filled(store, config)[:-1], strict=True))
    assert (values["adam_beta1"]["value"], values["adam_beta1"]["visible"]) == (0.5, True)
    shown = [value["value"] if isinstance(value, dict) else value for value in values.values()]
    assert form.read(shown) == config


def test_a_filter_hides_members_and_changes_no_group(
    store: RunStore, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = runs.RunsTab(store)
    with gr.Blocks():
        tab.draw()

    def draw(words: str) -> str:
        return str(tab.on_tick(NOBODY, runs.blank(), "", {}, words)[tab.table])

    for seed in range(4):
        score = 0.80 + seed / 100
        name = f"seeds, seed {seed}"
        run = finished(store, toy_checkpoint, score, seed=seed, name=name, group="seeds")
        run.describe(tags=("last",) if seed == 3 else ())
    for words, members in (("", 4), ("seed", 4), ("last", 1)):
        drawn = draw(words)
        assert drawn.count("ft-member") == members
        assert "4 seeds, 4 finished" in drawn
        assert "0.815 \u00b1 0.013" in drawn
        # Only then the boxes of deleted runs are taken for gone.
        assert ("data-whole" in drawn) == (members == 4)
    monkeypatch.setattr(run_view, "MAX_ROWS", 1)
    finished(store, toy_checkpoint)
    part = draw("")
    assert "data-whole" not in part
    assert "5 runs, the first 1 shown" in part


def test_only_what_has_changed_is_read_again(
    store: RunStore, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    run_row = run_table.run_row

    def counted(owner: RunStore, run: Run) -> run_table.RunRow:
        read.append(run.id)
        return run_row(owner, run)

    def reread() -> dict[str, run_table.RunRow]:
        read.clear()
        return {row.id: row for row in run_table.run_rows(store)}

    monkeypatch.setattr(run_table, "run_row", counted)
    ended, other = finished(store, toy_checkpoint), finished(store, toy_checkpoint)
    dead = store.create(RunConfig())  # no event tells of its end, so it is looked at each time
    assert len(reread()) == len(read) == 3
    assert len(reread()) == 3
    assert read == [dead.id]
    ended.describe(name="another name")
    assert reread()[ended.id].name == "another name"
    assert set(read) == {ended.id, dead.id}
    Queue(store.root).add(other.id)
    assert reread()[other.id].status == "waiting"
    Queue(store.root).remove(other.id)
    assert reread()[other.id].status == "finished"
    ended.append(events.Failed(error="x"))
    assert reread()[ended.id].status == "failed"
    (other.folder / "config.json").write_text("{")
    assert reread()[other.id].damaged
    store.delete(ended)
    assert ended.id not in reread()


def open_runs(page: Page) -> None:
    page.get_by_role("tab", name="Runs").click()
    expect(page.locator("#runs-table table")).to_be_visible()


def load_configuration(page: Page, path: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Load a configuration (JSON)").click()
    chooser.value.set_files(path)


def download(page: Page, link: str) -> Path:
    with page.expect_download() as event:
        page.get_by_role("link", name=link).click()
    return Path(event.value.path())


@pytest.fixture
def history(app: App, page: Page, toy_checkpoint: Path) -> list[Run]:
    """Three runs, two of them one group, and the tab open."""
    created = [
        finished(app.store, toy_checkpoint, f1, name=name, learning_rate=rate, group=group)
        for name, f1, rate, group in (
            ("pairs, seed 1", 0.80, 5e-5, "g"),
            ("pairs, seed 2", 0.90, 5e-5, "g"),
            ("another", 0.70, 1e-4, ""),
        )
    ]
    open_runs(page)
    return created


@pytest.mark.long
def test_the_history_is_sorted_found_named_and_taken_away(
    app: App, page: Page, history: list[Run], tmp_path: Path
) -> None:
    opener = page.locator("#runs-table .ft-open", has_text="another")
    opener.focus()
    newer = finished(app.store, history[0].best, 0.5, name="newer")
    expect(page.locator("#runs-table tbody tr")).to_have_count(5)
    expect(opener).to_be_focused()  # though a newer one came above it
    app.store.delete(newer)
    expect(page.locator("#runs-table tbody tr")).to_have_count(4)
    group = page.locator("#runs-table tr.ft-of-group")
    expect(group).to_contain_text("2 seeds, 2 finished")
    expect(group).to_contain_text("0.850 \u00b1 0.071")
    page.get_by_role("button", name="F1", exact=True).click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text(re.compile("F1"))
    expect(page.locator("#runs-table .ft-open").first).to_have_text("seed 2")
    page.get_by_role("button", name=re.compile("^F1")).click()
    expect(page.locator("#runs-table .ft-open").first).to_have_text("another")

    page.get_by_role("button", name="another").click()
    expect(page.locator("#run-status")).to_contain_text("Finished")
    page.locator("#run-name textarea, #run-name input").fill("<b>best of all</b>")
    page.locator("#run-tags textarea, #run-tags input").fill("tickets, short")
    page.locator("#run-note textarea").fill("try a lower rate")
    page.get_by_role("button", name="Save name, tags and note").click()
    expect(page.locator("#runs-table")).to_contain_text("<b>best of all</b>")
    expect(page.locator("#runs-table .ft-tag")).to_have_text(["tickets", "short"])
    assert history[2].about().note == "try a lower rate"
    assert history[2].config().name == "another"  # the configuration never changes
    find = page.locator("#runs-filter textarea, #runs-filter input")
    find.fill("TICKETS best")
    expect(page.locator("#runs-table tbody tr")).to_have_count(1)
    find.fill("nothing like it")
    expect(page.locator("#runs-table")).to_contain_text("No run has all of these words")
    find.fill("")

    with zipfile.ZipFile(download(page, "Best model (zip)")) as model:
        assert model.testzip() is None
        folder = model.namelist()[0].split("/")[0]
        weights = model.read(f"{folder}/model.safetensors")
    assert weights == (history[2].best / "model.safetensors").read_bytes()
    lines = download(page, "Events (CSV)").read_text().splitlines()
    assert lines[0].startswith("event,time,step,epoch,loss")
    assert len(lines) == len(story()) + 1
    path = tmp_path / "mine.json"
    path.write_text(download(page, "Configuration (JSON)").read_text())
    page.get_by_role("tab", name="Train").click()
    load_configuration(page, path)
    expect(page.locator("#train-message")).to_contain_text("The configuration is in the form")
    expect(page.locator("#knob-learning_rate input")).to_have_value("0.0001")
    path.write_text('{"learning_rate": "high", "colour": 1}')
    load_configuration(page, path)
    expect(page.locator("#train-message [role=alert]")).to_contain_text("got 'high'")
    expect(page.locator("#train-message [role=alert]")).to_contain_text("colour is not")


@pytest.mark.long
def test_runs_are_compared_copied_and_deleted(app: App, page: Page, history: list[Run]) -> None:
    expect(page.locator("#compare-runs")).to_be_disabled()
    boxes = page.locator("#runs-table input[type=checkbox]")
    boxes.nth(0).click()
    expect(boxes.nth(0)).to_be_checked()
    boxes.nth(2).click()
    page.get_by_role("button", name="Compare 2").click()
    shown = page.locator("#comparison")
    expect(shown).to_contain_text("Hyperparameters that differ")
    row = shown.get_by_role("row").filter(has_text="learning_rate")
    expect(row.get_by_role("cell")).to_have_text(["0.0001", "5e-05"])
    expect(shown.get_by_role("row").filter(has_text="F1, best model").locator("b")).to_have_count(1)
    expect(shown.locator("figure").first.locator("path.ft-line")).to_have_count(2)
    expect(page.locator("#one-run")).to_be_hidden()

    page.get_by_role("button", name="another").click()
    expect(shown).to_be_hidden()
    page.get_by_role("button", name="Copy into the form").click()
    expect(page.locator("#knob-learning_rate input")).to_have_value("0.0001")
    open_runs(page)
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Keep it").click()
    expect(page.locator("#delete-asked")).to_be_hidden()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("#delete-asked")).to_contain_text("It cannot be brought back")
    page.get_by_role("button", name="Delete for good").click()
    expect(page.locator("#runs-table tbody tr")).to_have_count(3)
    expect(page.locator("#one-run")).to_be_hidden()
    assert not history[2].folder.exists()


@pytest.mark.long
def test_several_runs_wait_and_end_as_one_group(app: App, page: Page, toy_checkpoint: Path) -> None:
    fill_toy(page, toy_checkpoint, 1)
    choose_bundled(page)
    page.get_by_role("button", name="Several runs: seeds and a grid").click()
    page.locator("#seeds input").fill("2")
    expect(page.locator("#planned")).to_contain_text("Train queues 2 runs")
    press_train(page)
    expect(page.locator("#train-message")).to_contain_text("1 run waits in the queue")
    open_runs(page)
    expect(page.locator("#runs-table")).to_contain_text("waiting, no. 1 in the queue")
    page.get_by_role("button", name="seed 43").click()
    expect(page.locator("#run-status")).to_contain_text("Waiting, no. 1 of 1 in the queue")
    expect(page.locator("tr.ft-of-group")).to_contain_text("2 seeds, 2 finished", timeout=180_000)
    expect(page.locator("tr.ft-of-group")).to_contain_text("\u00b1")
    expect(page.locator("#run-status")).to_contain_text("Finished")
    created = app.store.runs()
    assert len({run.about().group for run in created}) == 1
    assert sorted(run.config().seed for run in created) == [42, 43]
