"""The Runs tab: a queue, the history, a comparison; also in a real Chromium."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from playwright.sync_api import Page, expect

from finetune.config import RunConfig
from finetune.jobs import run_table, workers
from finetune.runs import events
from finetune.runs.queue import Queue
from finetune.runs.run import Run
from finetune.runs.store import RunStore, named_run
from finetune.ui import compare_view, form, run_view
from finetune.ui.tabs import runs
from tests.support import toys
from tests.support.browser import App, choose_bundled, fill_toy, press_train
from tests.support.tabs import NOBODY, draw_train, predict_tab, publish_tab
from tests.support.toys import story


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
    assert (values["adam_beta1"]["value"], values["adam_beta1"]["visible"]) == ("0.5", True)
    shown = [value["value"] if isinstance(value, dict) else value for value in values.values()]
    assert form.read(shown) == config


def test_a_filter_hides_members_and_changes_no_group(
    store: RunStore, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = runs.RunsTab(store)
    with gr.Blocks():
        tab.draw()

    def draw(words: str) -> str:
        return str(tab.on_tick(NOBODY, runs.blank(), {}, words)[tab.table])

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
    monkeypatch.setattr(run_view, "PAGE", 3)
    newest = finished(store, toy_checkpoint)
    part = draw("")
    assert part.count("<tr") == 1 + 3
    assert "page 1 of 2" in part
    assert all(run.id in part for run in store.runs())  # a box of another page stays ticked
    last = str(tab.on_tick(NOBODY, runs.blank() | {"page": 9}, {}, "")[tab.table])
    assert "page 2 of 2" in last
    assert f'data-do="open" data-what="{newest.id}"' not in last


def test_what_differs_stands_in_columns_and_no_column_is_the_same_in_all(
    store: RunStore, toy_checkpoint: Path
) -> None:
    settings: tuple[dict[str, object], ...] = (
        {"learning_rate": 5e-4}, {"learning_rate": 5e-5, "seed": 7}, {"learning_rate": 5e-5},
        {"learning_rate": 5e-5}, {"learning_rate": 1e-3, "name": "my own"},
    )  # fmt: skip
    for n, values in enumerate(settings):
        finished(store, toy_checkpoint, 0.5 + n / 10, **values)
    rows = run_view.rows(store)
    assert {row.name for row in rows} == {
        "my own", "bundled-1", "bundled-2", "bundled-3", "bundled-4",
    }  # fmt: skip
    drawn = str(run_view.table(rows, "f1", True))
    heads = [text.strip() for text in re.findall(r'data-what="\w+">([^<]*)\n', drawn)]
    assert heads == ["Run", "F1", "Accuracy", "Learning rate", "Seed"]
    assert "The same in all: finished, bundled" in drawn
    assert "ft-spark" not in drawn  # of one evaluation there is no curve
    sorted_by_rate = str(run_view.table(rows, "learning_rate", True))
    assert sorted_by_rate.index("my own") < sorted_by_rate.index("bundled-1")


def test_what_is_automatic_is_not_a_number(store: RunStore, toy_checkpoint: Path) -> None:
    other: dict[str, Any] = {
        "num_train_epochs": 5, "dropout": -1, "eval_steps": 0, "learning_rate": 1e-4,
    }  # fmt: skip
    for values in ({}, other):
        finished(store, toy_checkpoint, **values)
    chosen, automatic = run_view.rows(store)
    epochs = automatic.resolved["num_train_epochs"]
    assert run_view.cell_text(automatic, "num_train_epochs") == f"{epochs} (auto)"
    cells = [run_view.cell_text(chosen, name) for name in other]
    assert cells == ["5", "As in the checkpoint", "Each epoch", "1e-4"]
    assert run_table.runs_csv([automatic]).count("4.9e-05") == 1
    table = str(run_view.table([chosen, automatic], "created", True))
    compared = str(compare_view.comparison(store, [chosen.id, automatic.id]))
    listed = str(run_view.configuration(store.get(automatic.id)))
    for drawn in (table, compared, listed):
        assert f"{epochs} (auto)</td>" in drawn
        assert "4.9e-5 (auto)</td>" in drawn
        assert not re.findall(r"<td[^>]*>(?:<b>)?-1(?:\.0)?<", drawn)


def test_a_run_has_one_name_wherever_it_is_shown(store: RunStore, toy_checkpoint: Path) -> None:
    first, second = (finished(store, toy_checkpoint, seed=seed) for seed in (1, 2))
    name, tab = "bundled-2", runs.RunsTab(store)
    with gr.Blocks():
        tab.draw()
    view_inputs: tuple[Any, ...] = runs.blank(), {}, ""
    train, predict, publish = draw_train(store), predict_tab(store), publish_tab(store)
    assert train.on_turn(NOBODY, second.id)[train.title] == f"<b>{name}</b>"
    table = str(tab.on_tick(NOBODY, *view_inputs)[tab.table])
    assert f'data-what="{second.id}">{name}</button>' in table
    compared = tab.on_open(NOBODY, *view_inputs, f"compare={first.id},{second.id}")
    assert f"<td>{name}</td>" in str(compared[tab.comparison]["value"])
    for other in (predict, publish):
        choices = other.on_open(NOBODY, None, "")[other.run]["choices"]
        assert [label for label, _ in choices] == [
            f"{name} \u00b7 F1 0.800",
            "bundled-1 \u00b7 F1 0.800",
        ]
    opened = tab.on_open(NOBODY, *view_inputs, f"run={second.id}")
    assert f">{name}</h2>" in opened[tab.title]
    asked = tab.on_delete(NOBODY, opened[tab.view])
    assert f"Delete <b>{name}</b>" in asked[tab.question]
    assert named_run(Path(name), store.root).id == second.id  # on the command line


def test_a_run_and_a_comparison_are_opened_by_their_ids(
    store: RunStore, toy_checkpoint: Path
) -> None:
    tab = runs.RunsTab(store)
    with gr.Blocks():
        tab.draw()
    first, second = (finished(store, toy_checkpoint, seed=seed) for seed in (1, 2))
    view_inputs: tuple[Any, ...] = runs.blank(), {}, ""
    opened = tab.on_open(NOBODY, *view_inputs, f"run={second.id}")
    assert opened[tab.view]["opened"] == second.id
    assert (opened[tab.part]["value"], opened[tab.head]["visible"]) == ("Evaluation", True)
    compared = tab.on_open(NOBODY, *view_inputs, f"compare={first.id},{second.id}")
    assert compared[tab.view]["compared"] == [first.id, second.id]
    assert re.search("<td>1</td><td>2</td>", str(compared[tab.comparison]["value"]), re.DOTALL)
    back = tab.on_back(NOBODY, compared[tab.view], "")
    assert not back[tab.head]["visible"]
    assert not back[tab.comparison]["visible"]
    assert "no such run" in tab.on_open(NOBODY, *view_inputs, "run=../x")[tab.message]


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
    heads = page.locator("#runs-table th")
    expect(heads.nth(1)).to_have_text(re.compile("F1"))
    page.set_viewport_size({"width": 375, "height": 800})
    box = heads.nth(1).bounding_box()
    assert box is not None
    assert box["x"] + box["width"] < 375 - 16
    page.set_viewport_size({"width": 1280, "height": 900})
    group = page.locator("#runs-table tr.ft-of-group")
    expect(group).to_contain_text("2 seeds, 2 finished")
    expect(group).to_contain_text("0.850 \u00b1 0.071")
    page.get_by_role("button", name="F1", exact=True).click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text(re.compile("F1"))
    expect(page.locator("#runs-table .ft-open").first).to_have_text("pairs, seed 2")
    page.get_by_role("button", name=re.compile("^F1")).click()
    expect(page.locator("#runs-table .ft-open").first).to_have_text("another")

    page.get_by_role("button", name="another").click()
    expect(page.locator("#runs-table")).to_be_hidden()
    page.get_by_role("radio", name="Progress and notes").check()
    expect(page.locator("#run-status")).to_contain_text("Finished")
    page.locator("#run-name textarea, #run-name input").fill("<b>best of all</b>")
    page.locator("#run-tags textarea, #run-tags input").fill("tickets, short")
    page.locator("#run-note textarea").fill("try a lower rate")
    page.get_by_role("button", name="Save name, tags and note").click()
    expect(page.locator("#run-title")).to_have_text("<b>best of all</b>")
    page.get_by_role("button", name="All runs").click()
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
    page.get_by_role("button", name="best of all").click()
    page.get_by_role("radio", name="Progress and notes").check()

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
    page.locator("#new-run").click()
    page.locator("#advanced > button").click()
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
    boxes = page.locator("#runs-table input[data-do=choose]")
    boxes.nth(0).click()
    expect(boxes.nth(0)).to_be_checked()
    boxes.nth(2).click()
    page.get_by_role("button", name="Compare 2").click()
    shown = page.locator("#comparison")
    expect(shown).to_contain_text("No comparison yet")
    row = shown.get_by_role("row").filter(has_text="Learning rate")
    expect(row.get_by_role("cell")).to_have_text(["5e-5", "1e-4"])  # the better one first
    expect(shown.locator("figure").nth(1).locator("path.ft-line")).to_have_count(2)
    expect(page.locator("#one-run")).to_be_hidden()

    page.get_by_role("button", name="All runs").click()
    expect(shown).to_be_hidden()
    expect(boxes.nth(0)).to_be_checked()
    page.get_by_role("button", name="another").click()
    page.get_by_role("button", name="Copy into the form").click()
    expect(page.locator("#knob-learning_rate input")).to_have_value("0.0001")
    page.get_by_role("tab", name="Runs").click()
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
    fill_toy(page, toy_checkpoint, 10)
    choose_bundled(page)
    page.locator("#train-how").get_by_role("radio", name="Seeds").check()
    expect(page.locator("#seeds input")).to_have_value("3")
    page.locator("#seeds input").fill("2")
    expect(page.locator("#planned")).to_contain_text("Train queues 2 runs")
    press_train(page)
    expect(page.locator("#run-message")).to_contain_text("1 run waits in the queue")
    (worker,) = filter(None, map(workers.worker_process, app.store.runs()))
    worker.suspend()  # so that the other run waits while the page is looked at
    open_runs(page)
    expect(page.locator("#runs-table")).to_contain_text("waiting, no. 1 in the queue")
    page.get_by_role("button", name="seed 43").click()
    expect(page.locator("#run-status")).to_contain_text("Waiting, no. 1 of 1 in the queue")
    worker.resume()
    expect(page.locator("#run-status")).to_contain_text("Finished", timeout=180_000)
    page.get_by_role("button", name="All runs").click()
    expect(page.locator("tr.ft-of-group")).to_contain_text("2 seeds, 2 finished")
    expect(page.locator("tr.ft-of-group")).to_contain_text("\u00b1")
    created = app.store.runs()
    assert len({run.about().group for run in created}) == 1
    assert sorted(run.config().seed for run in created) == [42, 43]


def test_runs_of_different_data_are_not_sorted_together(
    store: RunStore, toy_checkpoint: Path
) -> None:
    for f1, dataset in ((0.6, "owner/a"), (0.9, "owner/b"), (0.8, "owner/a"), (0.7, "owner/b")):
        finished(store, toy_checkpoint, f1, dataset=dataset)
    drawn = str(run_view.table(run_view.rows(store), "f1", True))
    order = re.findall(r'colspan="\d+">(.*?)<|<td class="ft-num">(0\.\d00)', drawn)
    shown = [heading or score for heading, score in order]
    assert [one for one in shown if one.startswith("owner")] == ["owner/b", "owner/a"]
    assert shown[shown.index("owner/b") + 1] == "0.900"
    assert shown[shown.index("owner/a") + 1] == "0.800"


def test_columns_are_chosen_and_all_runs_are_taken_away(
    store: RunStore, toy_checkpoint: Path
) -> None:
    one = finished(store, toy_checkpoint, learning_rate=1e-4, name="=one")
    finished(store, toy_checkpoint, learning_rate=2e-4)
    tab = runs.RunsTab(store)
    with gr.Blocks():
        tab.draw()

    def heads(names: str) -> list[str]:
        event = gr.EventData(None, {"do": "columns", "what": names, "at": 1})
        table = tab.on_table(NOBODY, event, None, runs.blank(), "")[tab.table]
        return re.findall(r'data-do="sort" data-what="(.*?)"', table)

    assert heads("weight_decay seconds <b>") == ["name", "weight_decay", "seconds"]
    assert {"f1", "learning_rate"} < set(heads(""))
    lines = list(csv.DictReader(io.StringIO(run_table.runs_csv(run_view.rows(store)))))
    assert [float(line["learning_rate"]) for line in lines] == [2e-4, 1e-4]
    assert (lines[1]["id"], lines[1]["name"]) == (one.id, "'=one")


def test_the_ticked_runs_are_deleted_together(store: RunStore, toy_checkpoint: Path) -> None:
    first, second, third = (finished(store, toy_checkpoint, name=name) for name in "abc")
    tab = runs.RunsTab(store)
    with gr.Blocks():
        tab.draw()
    asked = tab.on_delete_ticked(NOBODY, runs.blank(), f"{first.id} {third.id}")
    assert "Delete 2 runs" in asked[tab.question]
    ids = asked[tab.asked]
    tab.on_confirm(NOBODY, None, runs.blank(), "", ids)
    assert [run.id for run in store.runs()] == [second.id]
    assert "no such run" in tab.on_confirm(NOBODY, None, runs.blank(), "", ids)[tab.message]


def test_data_are_told_apart_by_their_contents(
    store: RunStore, toy_checkpoint: Path, tmp_path: Path
) -> None:
    """Two files of one name are two; a file under two names is one, once a run has read it."""

    def run_on(folder: str, name: str, contents: str, fingerprint: str, **values: Any) -> Run:
        (tmp_path / folder).mkdir(exist_ok=True)
        file = tmp_path / folder / name
        file.write_text(contents)
        run = finished(store, toy_checkpoint, dataset=store.uploads.add({"train": file}), **values)
        prepared = run.state().prepared
        assert prepared is not None
        run.append(prepared.model_copy(update={"fingerprint": fingerprint}))
        return run

    first = run_on("a", "pairs.csv", "a,b", "1")
    other = run_on("b", "pairs.csv", "c,d", "2")
    renamed = run_on("b", "again.csv", "a,b", "1")
    fewer = run_on("a", "pairs.csv", "a,b", "3", max_train_samples=5)
    cut = run_on("a", "pairs.csv", "a,b", "4", validation_share=0.3)
    name_of = {row.id: row.dataset for row in run_table.run_rows(store)}
    assert name_of == {
        first.id: "pairs.csv, again.csv",
        other.id: "pairs.csv",
        renamed.id: "pairs.csv, again.csv",
        fewer.id: "pairs.csv, again.csv",
        cut.id: "pairs.csv (2)",  # its scores are of other pairs
    }
    text = str(compare_view.comparison(store, [other.id, cut.id]))
    assert "pairs.csv (2)" in text
