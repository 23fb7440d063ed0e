"""Numbers typed with a comma: read where they are plain, refused at their field where in doubt."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from finetune.config import RunConfig
from finetune.errors import ConfigError
from finetune.ui import elements, form
from tests.jobs.test_service import until
from tests.support.browser import App, new_page


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


@pytest.mark.parametrize("locale", ["de-DE", "en-US"])
def test_a_comma_is_read_in_a_browser_of_any_language(
    browser: Browser, app: App, locale: str
) -> None:
    page = new_page(browser, locale=locale, viewport={"width": 1280, "height": 900})
    page.goto(app.url)
    box = page.locator("#knob-learning_rate").locator("input, textarea")
    expect(box).to_have_value("7e-05")
    box.fill("")
    box.press_sequentially("0,0001")
    box.blur()
    page.locator("#train").click()
    until(lambda: bool(app.store.runs()))
    assert app.store.runs()[0].config().learning_rate == pytest.approx(1e-4)
    page.close()
