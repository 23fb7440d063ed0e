"""A Hugging Face Job from the page: choose a machine, see the price, watch, stop, go on here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from finetune.config import RunConfig
from finetune.engines.base import EngineSpec, write_spec
from finetune.runs import events
from tests.support.browser import App, Visit, pick
from tests.support.engines import let_jobs_train
from tests.support.hub import TOKEN, LoopbackHub


@pytest.mark.long
def test_a_job_is_priced_agreed_to_watched_stopped_and_goes_on_here(
    app: App, visit: Visit, hub: LoopbackHub, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_jobs_train(hub, monkeypatch, TOKEN)
    page = visit.page
    visit.fill_toy(toy_checkpoint, 60)
    pick(page, page.locator("#engine input"), "Hugging Face Job")
    expect(page.locator("#job-price")).to_contain_text("not signed in")
    page.locator("#job-token input").fill(TOKEN)
    expect(page.locator("#flavor input")).to_have_value(re.compile(r"t4-small · \$0\.40/h"))
    page.locator("#job-minutes input").fill("20")
    page.locator("#job-minutes input").press("Tab")
    expect(page.locator("#job-price")).to_contain_text("after 20 minutes, at most $0.14")
    page.locator("#train").click()
    expect(page.locator("#train-message")).to_contain_text("tick that you agree to its price")
    assert not hub.jobs.all
    page.get_by_label(re.compile(r"I agree that Train may cost up to \$0\.14")).check()
    page.locator("#train").click()
    expect(page.locator("#run-phase")).to_have_text("Training", timeout=120_000)
    expect(page.locator("#status")).to_contain_text("at most $0.14")
    (run,) = app.store.runs()
    page.locator("#stop").click()
    expect(page.locator("#run-phase")).to_have_text("Stopped")
    assert run.has_model()
    assert hub.jobs.last.stage == "COMPLETED"
    page.get_by_role("button", name="Continue on this machine").click()
    expect(page.locator("#run-phase")).to_have_text("Finished", timeout=240_000)
    expect(page.locator("#status")).not_to_contain_text("Hugging Face Job")


@pytest.mark.long
def test_the_price_of_a_new_job_is_asked_for_before_a_run_goes_on(app: App, visit: Visit) -> None:
    page, run = visit.page, app.store.create(RunConfig(name="billed"))
    run.append(events.Stopped(step=1, seconds=1.0))
    options = {"flavor": "t4-small", "minutes": 30, "price": 0.4}
    write_spec(run, EngineSpec(engine="hub-job", options=options, attempt=1, submitted=1.0))
    page.goto(f"{app.url}?tab=runs&run={run.id}")
    page.locator("#run-resume").click()
    expect(page.locator("#resume-asked")).to_contain_text("t4-small, $0.40 an hour, at most $0.20")
    page.locator("#resume-leave").click()
    expect(page.locator("#resume-asked")).to_be_hidden()
    assert run.state().status == "stopped"
