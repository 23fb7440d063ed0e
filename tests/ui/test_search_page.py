"""A search from the form, through a restart of the app, to its best trial tried and published."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from finetune.config import RunConfig
from finetune.jobs import service
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.search.study import studies
from finetune.ui import train_plan
from finetune.ui.engine_form import Choice
from finetune.ui.train_plan import SEARCH
from tests.support import toys
from tests.support.browser import App, choose, fill
from tests.support.engines import engine_values
from tests.support.hub import LoopbackHub
from tests.support.tabs import NOBODY, draw_train, form_values
from tests.support.waiting import until


def _is_training(app: App, run: Run) -> bool:
    summary = run.state()
    return summary.status == "running" and 0 < summary.step < 0.5 * summary.total_steps


def test_a_search_on_jobs_needs_a_number_of_trials_and_a_token_and_says_its_price(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = draw_train(store)
    monkeypatch.setattr("finetune.hub.client.stored_token", lambda: None)
    others = [SEARCH, *[control.value for control in tab.several[1:]], *form_values(RunConfig())]
    prices = {"t4-small": 0.4}
    job = engine_values(tab.engine, Choice("hub-job", {"flavor": "t4-small"}, True, prices))

    boxes = ["1..3", *[""] * (len(train_plan.FIELDS) - 1)]

    def begin(trials: int) -> str:
        updates = tab.on_search(NOBODY, None, *boxes, trials, 9, 1, False, *others, *job)
        return str(updates[tab.message])

    assert "each trial is billed" in begin(0)
    assert "You are not signed in" in begin(3)
    assert studies(store) == []
    updates = tab.on_search_time(NOBODY, *boxes, 3, 0, 1, False, *others, *job)
    assert "All its trials together cost at most $0.60." in str(updates[tab.planned])


def test_the_page_says_that_the_form_lies_outside_of_what_is_searched(store: RunStore) -> None:
    tab = draw_train(store)

    def said(epochs: int, drawn: str) -> str:
        config = RunConfig(num_train_epochs=epochs)
        others = [SEARCH, *[control.value for control in tab.several[1:]], *form_values(config)]
        boxes = [drawn if name == "num_train_epochs" else "" for name in train_plan.FIELDS]
        engine = engine_values(tab.engine, Choice())
        updates = tab.on_search_time(NOBODY, *boxes, 5, 0, 1, False, *others, *engine)
        return str(updates[tab.planned])

    told = "as it is, outside of what is searched: Epochs 10 (1..3). Nothing else is"
    assert told in said(10, "1..3")
    assert "outside" not in said(10, "1..10")
    assert "Epochs 4 (1..3)" in said(0, "1..3")  # chosen by the pairs


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_search_goes_on_through_a_restart_and_its_best_trial_is_tried_and_published(
    app: App, page: Page, hub: LoopbackHub, toy_checkpoint: Path, toy_pairs_folder: Path
) -> None:
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    name = app.store.uploads.add(files)
    page.reload()
    choose(page, "dataset", name)
    choose(page, "checkpoint", str(toy_checkpoint))
    fill(page, "max_length", "48")
    fill(page, "num_train_epochs", "100")
    fill(page, "learning_rate", "0.001")
    fill(page, "seed", "449")  # the last that are drawn have low rates, and learn little
    choose(page, "metric_for_best_model", "loss")  # F1 is the same for all that learn nothing
    page.locator("#train-how").get_by_role("radio", name="Search").check()
    page.locator("#search-num_train_epochs").locator("input, textarea").fill("120..240")
    rate = page.locator("#search-learning_rate").locator("input, textarea")
    rate.fill("3e-3..1e-4")
    page.locator("#search-trials input").fill("8")
    page.locator("#search-trials input").press("Tab")
    search = page.locator("#begin-search")
    search.click()
    expect(page.locator("#train-message")).to_contain_text("its end must be above its beginning")
    expect(rate).to_be_focused()  # not the form's box of the same name
    expect(rate).to_have_attribute("aria-invalid", "true")
    rate.fill("1e-6..3e-3")
    expect(rate).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#train-message")).not_to_contain_text("beginning", use_inner_text=True)
    rate.press("Tab")
    search.click()
    view = page.locator("#comparison")
    expect(view.get_by_role("heading", name="search 1")).to_be_in_viewport()  # it opens by itself
    expect(view).to_contain_text(re.compile("[12] of at most 8 trials have ended"), timeout=240_000)
    # One is stopped by hand: its place is drawn again.
    training: list[Run] = []

    def one_trains() -> bool:
        training[:] = [run for run in app.store.runs() if _is_training(app, run)]
        return bool(training)

    until(one_trains)
    service.stop_run(app.store, training[0])
    expect(view).to_contain_text("1 failed or were stopped by hand")
    app.kill()
    page.goto("about:blank")
    app.start()
    page.goto(f"{app.url}?tab=runs&search={studies(app.store)[0].id}")
    expect(view).to_contain_text("The search is over", timeout=800_000)
    ended = re.compile("8 of at most 8 trials have ended. [1-9] of them ended early")
    expect(view).to_contain_text(ended)
    # Of all that ended but the first, which lies outside of what is searched.
    expect(view.locator("polyline").nth(6)).to_be_attached()
    with page.expect_download() as download:
        view.get_by_role("link", name="Trials (CSV)").click()
    assert download.value.path().read_text().count("\n") >= 9
    view.get_by_role("button", name="Publish it").click()
    expect(page.locator("#publish-run input")).to_have_value(re.compile(r"search 1 . trial \d"))
    page.get_by_role("tab", name="Runs").click()
    view.get_by_role("button", name="Try it").click()
    expect(page.locator("#predict-run input")).to_have_value(re.compile(r"search 1 . trial \d"))
    first, second, _ = toys.rows(1)[0]
    page.get_by_label("sentence1").fill(first)
    page.get_by_label("sentence2").fill(second)
    page.get_by_label("sentence2").press("Enter")
    expect(page.locator("#label")).to_be_visible()
    until(lambda: not any(run.is_alive() for run in app.store.runs()))
    page.get_by_role("tab", name="Runs").click()
    page.locator("#run-delete").click()
    expect(page.locator("#delete-question")).to_contain_text("this search with its")
    page.locator("#delete-sure").click()
    expect(page.locator("#runs-table")).to_contain_text("Nothing has been trained yet")
    expect(page.locator("#runs-table button[data-do=search]")).to_have_count(0)
    assert not studies(app.store)
    assert not app.store.runs()
