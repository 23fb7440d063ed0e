"""A Hugging Face Job from the page: choose a machine, see the price, watch, stop, go on here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from finetune.config import RunConfig
from finetune.engines.base import EngineSpec, write_spec
from finetune.engines.registry import make_spec
from finetune.runs import events
from finetune.ui.engine_form import Choice
from tests.support.browser import App, choose_bundled, fill_toy, pick, press_train
from tests.support.engines import let_jobs_train
from tests.support.hub import TOKEN, LoopbackHub


@pytest.mark.long
def test_a_job_is_priced_agreed_to_watched_stopped_and_goes_on_here(
    app: App, page: Page, hub: LoopbackHub, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_jobs_train(hub, monkeypatch, TOKEN)
    fill_toy(page, toy_checkpoint, 60)
    choose_bundled(page)
    pick(page, page.locator("#engine input"), "Hugging Face Job")
    expect(page.locator("#job-price")).to_contain_text("not signed in")
    page.locator("#job-token input").fill(TOKEN)
    expect(page.locator("#flavor input")).to_have_value(re.compile(r"t4-small · \$0\.40/h"))
    expect(page.locator("#job-price")).to_contain_text(
        "$0.40 an hour; how long it takes is known after a run there"
    )
    expect(page.locator("#job-price")).to_contain_text("after 30 minutes, at most $0.21")
    page.locator("#job-minutes input").fill("20")
    page.locator("#job-minutes input").press("Tab")
    expect(page.locator("#job-price")).to_contain_text("after 20 minutes, at most $0.14")
    press_train(page)
    expect(page.locator("#train-message")).to_contain_text("tick that you agree to its price")
    assert not hub.jobs.all
    page.get_by_label(re.compile(r"I agree that Train may cost up to \$0\.14")).check()
    press_train(page)
    expect(page.locator("#run-phase")).to_have_text("Training", timeout=120_000)
    expect(page.locator("#status")).to_contain_text("Hugging Face Job t4-small")
    expect(page.locator("#status")).to_contain_text("at most $0.14")
    expect(page.locator("#loss-plot path.ft-loss:not(.ft-raw)")).to_have_count(1)
    run = app.store.runs()[0]
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator("#run-phase")).to_have_text("Stopped")
    assert run.has_model()
    assert hub.jobs.last.stage == "COMPLETED"
    page.get_by_role("button", name="Continue on this machine").click()
    goes_on = re.compile("Training|Evaluating|Saving|Finished")
    expect(page.locator("#run-phase")).to_have_text(goes_on)
    expect(page.locator("#status")).not_to_contain_text("Hugging Face Job")
    expect(page.locator("#run-phase")).to_have_text("Finished", timeout=240_000)
    page.get_by_role("tab", name="Predict").click()
    page.get_by_label("sentence1").fill("the cat sees a dog .")
    page.get_by_label("sentence2").fill("a cat sees the dog .")
    page.get_by_label("sentence2").press("Enter")
    expect(page.locator("#label")).to_contain_text("equivalent")


@pytest.mark.long
def test_the_price_of_a_new_job_is_asked_for_before_a_run_goes_on(app: App, page: Page) -> None:
    run = app.store.create(RunConfig(name="billed"))
    run.append(events.Stopped(step=1, seconds=1.0))
    options = {"flavor": "t4-small", "minutes": 30, "price": 0.4}
    write_spec(run, EngineSpec(engine="hub-job", options=options, attempt=1, submitted=1.0))
    page.goto(f"{app.url}?tab=runs&run={run.id}")
    page.locator("#run-resume").click()
    expect(page.locator("#resume-asked")).to_contain_text("t4-small, $0.40 an hour")
    expect(page.locator("#resume-asked")).to_contain_text("at most $0.20")
    page.locator("#resume-leave").click()
    expect(page.locator("#resume-asked")).to_be_hidden()
    page.goto(f"{app.url}?tab=train&run={run.id}")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#train-message")).to_contain_text("Choose the machine on which billed")
    expect(page.locator("#engine input")).to_have_value("Hugging Face Job")
    assert run.state().status == "stopped"


def test_a_run_goes_on_with_what_a_terminal_chose_for_its_job() -> None:
    """The page has no field for the image and for who pays."""
    own = {"image": "python:3.13", "namespace": "team", "flavor": "cpu-basic"}
    former = make_spec("hub-job", own)
    values = {"flavor": "t4-small", "minutes": "20", "dollars_a_run": "1", "dollars_a_day": "5"}
    choice = Choice("hub-job", values, prices={"t4-small": 0.4})
    options = choice.spec(former).options
    assert options == former.options | {"flavor": "t4-small", "minutes": 20, "price": 0.4}
    assert choice.spec(make_spec("ray", {"nodes": 2})) == choice.spec()
