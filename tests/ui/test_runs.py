"""The Runs tab in a real Chromium: a queue, one run, a comparison, and visitors apart."""

from __future__ import annotations

import json
import re
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import gradio as gr
import pytest
from playwright.sync_api import Browser, Page, expect

from finetune import owners
from finetune.config import RunConfig
from finetune.jobs import run_table
from finetune.jobs.queue import Queue
from finetune.phases import Phase
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui import auth, compare_view, run_table_view
from finetune.ui.tabs import runs
from tests.support import toys
from tests.support.browser import App, choose, fill, fill_toy, press_train
from tests.support.hub import LoopbackHub
from tests.support.toys import story
from tests.ui.test_app import NOBODY


def finished(store: RunStore, checkpoint: Path, f1: float = 0.8, **values: object) -> Run:
    """A run that has ended, its model the toy."""
    group = str(values.pop("group", ""))
    run = store.create(RunConfig(max_length=32).changed(**values), group=group)
    for event in story():
        if isinstance(event, events.Evaluated):
            event = events.Evaluated(
                step=8, epoch=1.0, metrics={"accuracy": f1 - 0.1, "f1": f1, "loss": 0.5},
                seconds=0.1, best=True,
            )  # fmt: skip
        run.append(event)
    toys.copy_model(checkpoint, run.best)
    return run


def table(store: RunStore, find: str = "") -> str:
    """The table of runs as a browser that finds these words is sent it."""
    tab = runs.RunsTab(store)
    with gr.Blocks():
        tab.draw()
    chosen = {"at": -1.0, "runs": [], "full": False}
    return str(tab.on_tick(NOBODY, runs.blank(), chosen, {}, find)[tab.table])


def test_a_filter_hides_members_and_changes_no_group(store: RunStore, toy_checkpoint: Path) -> None:
    for seed in range(4):
        score = 0.80 + seed / 100
        name = f"seeds, seed {seed}"
        run = finished(store, toy_checkpoint, score, seed=seed, name=name, group="seeds")
        run.describe(tags=("last",) if seed == 3 else ())
    for find, members in (("", 4), ("seed", 4), ("last", 1)):
        drawn = table(store, find)
        assert drawn.count("ft-member") == members
        assert "4 seeds, 4 finished" in drawn
        assert "0.815 \u00b1 0.013" in drawn


def test_the_whole_table_is_known_to_be_whole(
    store: RunStore, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then the boxes of deleted runs are taken for gone."""
    for seed in range(3):
        run = finished(store, toy_checkpoint, seed=seed, group="seeds" if seed else "")
    run.describe(tags=("last",))
    whole = table(store)
    assert "data-whole" in whole
    assert "3 runs" in whole
    assert "data-whole" not in table(store, "last")
    monkeypatch.setattr(run_table_view, "MAX_ROWS", 1)  # the group, which is the newest
    part = table(store)
    assert "data-whole" not in part
    assert "3 runs, the first 2 shown" in part


def test_only_what_has_changed_is_read_again(
    store: RunStore, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = run_table.run_row

    def counted(of: RunStore, run: Run) -> run_table.RunRow:
        read.append(run.id)
        return real(of, run)

    def again() -> list[run_table.RunRow]:
        read.clear()
        found = run_table.run_rows(store)
        assert found == [real(store, run) for run in store.runs()]
        return found

    monkeypatch.setattr(run_table, "run_row", counted)
    ended, other = finished(store, toy_checkpoint), finished(store, toy_checkpoint)
    dead = store.create(RunConfig())  # no event tells of its end, so it is looked at each time
    assert len(again()) == len(read) == 3
    assert again()
    assert read == [dead.id]
    ended.describe(name="another name")
    assert "another name" in {one.name for one in again()}
    assert set(read) == {ended.id, dead.id}
    Queue(store.root).add(other.id)
    states = {one.id: (one.status, one.place) for one in again()}
    assert states[other.id] == ("waiting", 1)
    Queue(store.root).remove(other.id)
    assert {one.id: one.status for one in again()}[other.id] == "finished"
    ended.append(events.Failed(error="x"))
    assert {one.id: one.status for one in again()}[ended.id] == "failed"
    (other.folder / "config.json").write_text("{")
    assert {one.id: one.damaged for one in again()}[other.id]
    store.delete(ended)
    assert ended.id not in {one.id for one in again()}


def open_runs(page: Page) -> None:
    page.get_by_role("tab", name="Runs").click()
    expect(page.locator("#runs-table table")).to_be_visible()


def bring(page: Page, path: Path) -> None:
    with page.expect_file_chooser() as chosen:
        page.get_by_role("button", name="Load a configuration (JSON)").click()
    chosen.value.set_files(path)


def names(page: Page) -> list[str]:
    found: list[str] = page.locator("#runs-table .ft-open").all_inner_texts()
    return found


@pytest.fixture
def history(app: App, page: Page, toy_checkpoint: Path) -> list[Run]:
    """Three runs, two of them one group, and the tab open."""
    made = [
        finished(app.store, toy_checkpoint, f1, name=name, learning_rate=rate, group=group)
        for name, f1, rate, group in (
            ("pairs, seed 1", 0.80, 5e-5, "g"),
            ("pairs, seed 2", 0.90, 5e-5, "g"),
            ("another", 0.70, 1e-4, ""),
        )
    ]
    open_runs(page)
    return made


@pytest.mark.long
def test_the_focus_stays_with_its_run_when_a_newer_one_comes(
    app: App, page: Page, history: list[Run], toy_checkpoint: Path
) -> None:
    opener = page.locator("#runs-table .ft-open", has_text="another")
    opener.focus()
    finished(app.store, toy_checkpoint, 0.5, name="newer")
    expect(page.locator("#runs-table tbody tr")).to_have_count(5)
    expect(opener).to_be_focused()


@pytest.mark.long
def test_the_history_is_sorted_found_named_and_taken_away(
    app: App, page: Page, history: list[Run], tmp_path: Path
) -> None:
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
    expect(page.locator("#runs-table tbody tr")).to_have_count(4)

    with page.expect_download() as taken:
        page.get_by_role("link", name="Best model (zip)").click()
    with zipfile.ZipFile(taken.value.path()) as model:
        assert model.testzip() is None
        folder = model.namelist()[0].split("/")[0]
        weights = model.read(f"{folder}/model.safetensors")
    assert weights == (history[2].best / "model.safetensors").read_bytes()
    with page.expect_download() as taken:
        page.get_by_role("link", name="Events (CSV)").click()
    lines = Path(taken.value.path()).read_text().splitlines()
    assert lines[0].startswith("event,time,step,epoch,loss")
    assert len(lines) == len(story()) + 1
    with page.expect_download() as taken:
        page.get_by_role("link", name="Configuration (JSON)").click()
    mine = tmp_path / "mine.json"
    mine.write_text(Path(taken.value.path()).read_text())
    assert json.loads(mine.read_text())["learning_rate"] == 1e-4
    page.get_by_role("tab", name="Train").click()
    bring(page, mine)
    expect(page.locator("#train-message")).to_contain_text("The configuration is in the form")
    expect(page.locator("#knob-learning_rate input")).to_have_value("0.0001")
    mine.write_text('{"learning_rate": "high", "colour": 1}')
    bring(page, mine)
    expect(page.locator("#train-message [role=alert]")).to_contain_text("got 'high'")
    expect(page.locator("#train-message [role=alert]")).to_contain_text("colour is not")


@pytest.mark.long
def test_runs_are_compared_copied_and_deleted(app: App, page: Page, history: list[Run]) -> None:
    button = page.locator("#compare-runs")
    expect(button).to_be_disabled()
    boxes = page.locator("#runs-table input[type=checkbox]")
    boxes.nth(0).click()
    expect(boxes.nth(0)).to_be_checked()
    boxes.nth(2).click()
    expect(button).to_have_text("Compare 2")
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
    expect(page.get_by_role("button", name="Train", exact=True)).to_be_visible()
    open_runs(page)
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("#delete-asked")).to_contain_text("It cannot be brought back")
    page.get_by_role("button", name="Keep it").click()
    expect(page.locator("#delete-asked")).to_be_hidden()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete for good").click()
    expect(page.locator("#runs-table tbody tr")).to_have_count(3)
    expect(page.locator("#one-run")).to_be_hidden()
    assert not history[2].folder.exists()


@pytest.mark.long
def test_boxes_ticked_quickly_all_count_and_stay_ticked(
    app: App, page: Page, toy_checkpoint: Path
) -> None:
    for place in range(compare_view.MOST + 1):
        finished(app.store, toy_checkpoint, name=f"run {place}")
    open_runs(page)
    boxes = page.locator("#runs-table input[type=checkbox]")
    button = page.locator("#compare-runs")
    page.evaluate(
        "() => document.querySelectorAll('#runs-table input').forEach((box) => box.click())"
    )
    expect(button).to_have_text(f"Compare {compare_view.MOST}")
    expect(page.locator("#runs-message [role=alert]")).to_contain_text("Take one away first")
    expect(boxes.last).not_to_be_checked()
    page.get_by_role("button", name="When").click()  # drawn anew, the other way round
    expect(page.locator("th[aria-sort=ascending]")).to_have_text(re.compile("When"))
    expect(boxes.first).not_to_be_checked()
    expect(boxes.last).to_be_checked()
    expect(button).to_have_text(f"Compare {compare_view.MOST}")
    for box in boxes.all()[3:]:
        box.uncheck()
    expect(button).to_have_text("Compare 2")
    expect(page.locator("#runs-message [role=alert]")).to_have_count(0)


@pytest.mark.long
def test_several_runs_wait_and_end_as_one_group(app: App, page: Page, toy_checkpoint: Path) -> None:
    fill_toy(page, toy_checkpoint, 1)
    page.locator("#knob-dataset input").click()
    page.get_by_role("option", name=re.compile("Bundled")).click()
    page.get_by_role("button", name="Several runs: seeds and a grid").click()
    page.locator("#seeds input").fill("2")
    expect(page.locator("#planned")).to_contain_text("Train queues 2 runs")
    press_train(page)
    expect(page.locator("#train-message")).to_contain_text("1 run waits in the queue")
    open_runs(page)
    expect(page.locator("#runs-table")).to_contain_text("waiting, no. 1 in the queue")
    page.get_by_role("button", name="seed 43").click()
    expect(page.locator("#run-status")).to_contain_text("Waiting, no. 1 of 1 in the queue")
    expect(page.locator("tr.ft-of-group")).to_contain_text("2 seeds, 2 finished", timeout=90_000)
    expect(page.locator("tr.ft-of-group")).to_contain_text("\u00b1")
    expect(page.locator("#run-status")).to_contain_text("Finished", timeout=10_000)
    runs = app.store.runs()
    assert len({run.about().group for run in runs}) == 1
    assert sorted(run.config().seed for run in runs) == [42, 43]


@pytest.mark.long
def test_a_run_of_a_hundred_thousand_steps_is_drawn_thinned(app: App, page: Page) -> None:
    run = app.store.create(RunConfig(name="long"))
    lines = [
        events.to_json(
            events.Stepped(
                step=n, epoch=n / 1000, loss=1 / n, learning_rate=1e-5, samples_per_second=10.0
            )
        )
        for n in range(1, 100_001)
    ]
    for event in story()[:2]:
        run.append(event)
    run.append(events.PhaseStarted(phase=Phase.TRAIN))
    with run.events_file.open("a") as file:
        file.write("\n".join(lines) + "\n")
    run.append(events.Finished(step=100_000, seconds=9.0))
    app.kill()
    app.start()
    time.sleep(1)  # a person's browser is not faster
    began = time.monotonic()
    page.goto(app.url)
    page.wait_for_selector("#loss-plot path.ft-line:not(.ft-raw)")
    print(f"the page in {time.monotonic() - began:.2f} s")
    page.get_by_role("tab", name="Runs").click()
    page.wait_for_selector("#runs-table .ft-open")
    began = time.monotonic()
    page.get_by_role("button", name="long").click()
    page.wait_for_selector("#run-loss-plot path.ft-line:not(.ft-raw)")
    print(f"the run in {time.monotonic() - began:.2f} s")
    expect(page.locator("#run-status")).to_contain_text("step 100,000")
    expect(page.locator("#run-loss-plot path.ft-line:not(.ft-raw)")).to_have_count(1)
    assert len(page.locator("#run-loss-plot").inner_html()) < 20_000
    assert len(run.events_file.read_bytes().splitlines()) == 100_004  # kept whole on disk


@pytest.fixture
def shared_app(tmp_path: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    made = App(tmp_path / "runs")
    yield made
    made.end()


@pytest.mark.long
@pytest.mark.slow
def test_two_browsers_never_see_each_others_runs(
    shared_app: App, browser: Browser, hub: LoopbackHub, toy_checkpoint: Path
) -> None:
    """Ada trains; Bob, in another browser, sees nothing of it but that he waits."""
    hub.add_repo("ada/toy", files={p.name: p.read_bytes() for p in toy_checkpoint.iterdir()})
    app = shared_app
    ada, bob = (browser.new_context(viewport={"width": 1280, "height": 900}) for _ in range(2))
    hers, his = ada.new_page(), bob.new_page()
    for shown in (hers, his):
        shown.goto(app.url)
        expect(shown.locator("#hub-status")).to_contain_text("Hub")
    secret = {one: next(c["value"] for c in who.cookies() if c["name"] == auth.COOKIE)
              for one, who in (("ada", ada), ("bob", bob))}  # fmt: skip
    choose(hers, "dataset", "bundled")
    choose(hers, "checkpoint", str(toy_checkpoint))
    fill(hers, "max_length", "48")
    press_train(hers)  # a folder of the server's own is nobody's checkpoint here
    expect(hers.locator("#train-message [role=alert]")).to_contain_text("on this machine's disk")
    browser_of_ada = auth.identities(app.store).owner(secret["ada"])
    mine = app.store.for_visitor(owners.identify(browser=browser_of_ada))
    run = mine.create(RunConfig(checkpoint="ada/toy", num_train_epochs=400,
                                max_length=48, name="Adas pairs"))  # fmt: skip
    Queue(app.store.root).add(run.id)
    hers.reload()
    expect(hers.locator("#run-phase")).to_have_text(
        re.compile("Training|Evaluating|Saving"), timeout=60_000
    )
    his.reload()
    expect(his.locator("#hub-status")).to_contain_text("Hub")
    choose(his, "dataset", "bundled")
    choose(his, "checkpoint", "all-MiniLM-L6-v2 (bundled)")
    press_train(his)
    expect(his.locator("#run-phase")).to_contain_text("Waiting, no. 1 of 1 in the queue")
    his.get_by_role("tab", name="Runs").click()
    expect(his.locator("#runs-table tbody tr")).to_have_count(1)
    open_runs(hers)
    expect(hers.locator("#runs-table tbody tr")).to_have_count(1)
    assert names(hers) == ["Adas pairs"]
    assert "Adas pairs" not in his.content()
    his.locator("#runs-table .ft-open").click()
    expect(his.get_by_role("button", name="Move to the front")).to_be_hidden()
    his.get_by_role("button", name="Take out of the queue").click()
    expect(his.locator("#run-status")).to_contain_text("Stopped")
    hers.get_by_role("button", name="Adas pairs").click()
    hers.get_by_role("button", name="Stop, discard").click()
    expect(hers.locator("#run-status")).to_contain_text("its model was discarded")
    assert not run.has_model()
    for context in (ada, bob):
        context.close()
