"""Numbers typed with a comma: read where they are plain, refused at their field where in doubt."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from finetune.config import RunConfig
from finetune.engines.base import EngineSpec
from finetune.errors import ConfigError
from finetune.runs import grids
from finetune.search.space import Budget
from finetune.ui import elements, form, train_plan
from finetune.ui.engine_form import Choice
from tests.support.browser import App, new_page
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("0,0001", "0.0001"), ("0,001", "0.001"), (",5", ".5"), ("1,5", "1.5"),
        ("2,0e-5", "2.0e-5"), (" 0,05 ", "0.05"), ("0.0001", "0.0001"), ("1e-4", "1e-4"),
        (0.5, 0.5), (None, None),
        ("1,000", "1,000"), ("12,345", "12,345"), ("1,234.5", "1,234.5"), ("1.234,5", "1.234,5"),
        ("1,2,3", "1,2,3"), ("a,b", "a,b"), ("", ""),
    ],
)  # fmt: skip
def test_a_comma_is_a_decimal_sign_where_it_can_be_nothing_else(
    typed: object, read: object
) -> None:
    assert elements.decimal(typed) == read


def test_the_form_reads_both_signs_and_never_another_number() -> None:
    values = RunConfig().to_dict() | {"learning_rate": "0,0001", "dropout": "0,1"}
    assert form.read(list(values.values())) == RunConfig(learning_rate=1e-4, dropout=0.1)
    values |= {"max_grad_norm": "1,000", "seed": 7}
    with pytest.raises(ConfigError) as caught:
        form.read(list(values.values()))
    assert list(caught.value.problems) == ["max_grad_norm"]
    assert "'1,000'" in caught.value.problems["max_grad_norm"]


@pytest.mark.parametrize("typed", ["1.000", "1,000", "1.5", "1e3", "1_000", "ten"])
def test_what_may_be_a_thousand_is_no_whole_number(typed: str) -> None:
    values = RunConfig().to_dict() | {"max_steps": typed, "seed": " 7 "}
    with pytest.raises(ConfigError) as caught:
        form.read(list(values.values()))
    assert caught.value.problems == {"max_steps": f"must be a whole number, got {typed!r}"}
    controls = ["", *[""] * len(grids.GRID)]
    with pytest.raises(ConfigError, match="seeds must be a whole number"):
        train_plan.plan(["seeds", typed, *controls[1:], *RunConfig().to_dict().values()])
    assert len(train_plan.plan(["seeds", *controls, *RunConfig().to_dict().values()])) == 1
    boxes = [*[""] * (len(train_plan.FIELDS) - 1), "4, 8"]
    with pytest.raises(ConfigError, match="trials is"):
        train_plan.read_search([*boxes, typed, "0", "1", False], EngineSpec())
    with pytest.raises(ConfigError, match="minutes is"):
        Choice("hub-job", {"minutes": typed}).spec()


def test_limits_are_read_with_both_signs() -> None:
    boxes = [*[""] * (len(train_plan.FIELDS) - 1), "4, 8"]
    _, budget, options = train_plan.read_search([*boxes, "20", "1,5", " 2 ", False], EngineSpec())
    assert (budget, options["parallel"]) == (Budget(20, 1.5), 2)
    _, budget, _ = train_plan.read_search([*boxes, "3", None, "1", False], EngineSpec())
    assert budget == Budget(3)
    with pytest.raises(ConfigError, match="minutes is '1,500'"):
        train_plan.read_search([*boxes, "20", "1,500", "1", False], EngineSpec())
    spec = Choice("hub-job", {"minutes": "20", "dollars_a_run": "1,5"}).spec()
    assert (spec.options["dollars_a_run"], spec.options["minutes"]) == (1.5, 20)
    with pytest.raises(ConfigError, match="dollars_a_run is '1,500'"):
        Choice("hub-job", {"dollars_a_run": "1,500"}).spec()


@pytest.mark.long
@pytest.mark.parametrize("locale", ["de-DE", "en-US"])
def test_a_comma_is_read_in_a_browser_of_any_language(
    browser: Browser, app: App, locale: str
) -> None:
    page = new_page(browser, locale=locale, viewport={"width": 1280, "height": 900})
    page.goto(app.url)
    box = page.locator("#knob-learning_rate").locator("input, textarea")
    expect(box).to_have_value("")
    box.press_sequentially("0,0001")
    box.blur()
    page.locator("#train").click()
    until(lambda: bool(app.store.runs()))
    assert app.store.runs()[0].config().learning_rate == pytest.approx(1e-4)
    page.close()
