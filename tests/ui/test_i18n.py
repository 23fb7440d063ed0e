"""The page in other languages: every text is translated, each visitor is spoken to in theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from gradio.context import LocalContext
from playwright.sync_api import Browser, Page, expect

from finetune.config import RunConfig
from finetune.runs.store import RunStore
from finetune.ui import app as page
from finetune.ui import feedback, i18n, live_updates
from tests.support import toys, translations
from tests.support.browser import App
from tests.support.hub import LoopbackHub


@pytest.fixture(scope="module")
def keys() -> list[str]:
    return translations.keys()


def asks(accepted: str = "", cookie: str = "") -> Any:
    return SimpleNamespace(headers={"accept-language": accepted, "cookie": cookie})


@pytest.fixture
def german() -> Iterator[None]:
    former = LocalContext.request.set(asks("de-DE,de;q=0.9"))
    yield
    LocalContext.request.reset(former)


def test_there_is_a_catalogue_for_each_language_and_no_other() -> None:
    assert {path.parts[-3].replace("_", "-") for path in i18n.FOLDER.rglob("*.po")} == set(
        i18n.LANGUAGES
    )


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_every_text_is_translated_and_no_translation_is_left_over(
    language: str, keys: list[str]
) -> None:
    known = translations.catalogue(language)
    assert [text for text in keys if not known.get(text, "").strip()] == []
    assert [text for text in known if text not in keys] == []


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_a_translation_has_the_placeholders_and_the_tags_of_the_english(language: str) -> None:
    for text, said in translations.catalogue(language).items():
        assert set(translations.placeholders(said)) == set(translations.placeholders(text)), text
        assert translations.tags(said) == translations.tags(text), text
        assert '"' not in said, text  # it may stand in an attribute


def test_what_is_marked_on_the_page_can_be_sent_as_a_marker(tmp_path: Path) -> None:
    for text in translations.shown(tmp_path):
        assert "}" not in text, text  # the browser reads a marker up to the first
        assert not re.search(r"&[#\w]+;", text), text  # HTML escaped by `note` is no key


@pytest.mark.parametrize(
    ("accepted", "cookie", "expected"),
    [
        ("", "", ""),
        ("de-AT,de;q=0.9,en;q=0.8", "", "de"),
        ("fr", "", "fr"),
        ("zh-CN,zh;q=0.9", "", "zh-CN"),
        ("zh-TW", "", ""),  # Gradio has it, we do not
        ("sv-SE,de;q=0.9", "", ""),  # the browser's page speaks its first language only
        ("en-US,de;q=0.9", "", ""),
        ("en-US", "other=1; finetune-language=ja", "ja"),
        ("de", "finetune-language=en", ""),
        ("de", "finetune-language=../../etc/passwd", ""),
        ("*", "", ""),
    ],
)
def test_the_asker_is_answered_as_the_browser_shows_the_page(
    accepted: str, cookie: str, expected: str
) -> None:
    former = LocalContext.request.set(asks(accepted, cookie))
    try:
        assert i18n.language() == expected
    finally:
        LocalContext.request.reset(former)


def test_nobody_is_answered_in_english() -> None:
    assert i18n.language() == ""
    assert i18n.gettext("{n:,} rows", n=1234) == "1,234 rows"


def test_a_text_is_said_in_the_language_of_the_request(german: None) -> None:
    assert i18n.gettext("{n:,} rows", n=1234) == "1,234 Zeilen"
    assert i18n.gettext("finished") == "fertig"
    assert i18n.gettext("no word of ours") == "no word of ours"


def test_a_value_is_no_template_and_injects_nothing(german: None) -> None:
    assert i18n.gettext("Compare {name}", name="{n} <b>") == "{n} <b> vergleichen"
    assert "&lt;b&gt;" in feedback.note(i18n.gettext("Compare {name}", name="<b>"))


def test_a_word_that_is_typed_is_no_key_of_the_browsers_catalogue(tmp_path: Path) -> None:
    built = page.build(RunStore(tmp_path))
    tables = i18n.browser_translations(built).translations
    assert set(tables) == {"en", *i18n.LANGUAGES}
    for table in tables.values():
        assert set(table) == set(tables["en"])
        assert all(key.startswith("finetune ") for key in table)
    assert {text for key, text in tables["en"].items() if key != f"finetune {text}"} == set()


def test_hyperparameters_keep_their_names_on_every_page(tmp_path: Path) -> None:
    built = page.build(RunStore(tmp_path))
    i18n.browser_translations(built)
    labels = [getattr(one, "label", None) for one in built.blocks.values()]
    assert "learning_rate" in labels
    assert "Train" not in [one.label for one in built.blocks.values() if isinstance(one, gr.Tab)]


def test_a_run_is_drawn_in_the_language_of_whoever_watches(store: RunStore) -> None:
    run = store.create(RunConfig())
    english = live_updates.changes(store, run, {})
    assert "Log" in english["title"][1]
    former = LocalContext.request.set(asks("fr"))
    try:
        french = live_updates.changes(store, run, {})
    finally:
        LocalContext.request.reset(former)
    assert live_updates.changes(store, run, {}) == english
    assert set(french) == set(english)
    assert french["title"][1] == "Journal"
    assert "Ce qui se passe maintenant" in french["lesson"][1]


def test_what_stands_before_a_run_is_said_too(german: None) -> None:
    told = live_updates.blank()
    assert "Noch ist nichts trainiert" in told["status"][1]
    assert "Der Loss erscheint" in told["loss"][1]
    assert "Trainieren" in told["lesson"][1]


def test_what_a_click_takes_is_not_said_before_it_is_known_in_whose_language(
    tmp_path: Path,
) -> None:
    built = page.build(RunStore(tmp_path))
    drawn = next(one for one in built.blocks.values() if getattr(one, "elem_id", "") == "costs")
    assert 'style="visibility:hidden" aria-hidden="true"' in getattr(drawn, "value", "")


def visit(browser: Browser, app: App, locale: str) -> Page:
    made = browser.new_context(locale=locale, viewport={"width": 1280, "height": 900}).new_page()
    made.goto(app.url)
    expect(made.locator("#examine, #train").first).to_be_attached()
    return made


@pytest.mark.long
def test_a_german_browser_sees_german_and_an_unknown_one_english(
    app: App, browser: Browser, hub: LoopbackHub
) -> None:
    hub.fail("HEAD", "^/$", 0, cut=True, times=2)  # no network: the bundled pairs stay chosen
    german = visit(browser, app, "de-AT")
    expect(german.get_by_role("tab", name="Daten")).to_be_visible()
    expect(german.locator("#train")).to_have_text("Trainieren")
    expect(german.locator("header")).to_contain_text("wann zwei Sätze dasselbe bedeuten")
    expect(german.locator("#costs")).to_contain_text("Schritte je Epoche")
    expect(german.locator("#status")).to_contain_text("Noch ist nichts trainiert")
    expect(german.locator("#lesson")).to_contain_text("Was gerade geschieht")
    expect(german.locator("#knob-seed")).to_contain_text("Legt die Reihenfolge der Paare")
    expect(german.locator("#knob-learning_rate")).to_contain_text("learning_rate")
    german.get_by_role("tab", name="Läufe").click()
    expect(german.locator("#runs-table")).to_contain_text("Noch wurde nichts trainiert.")
    german.get_by_role("tab", name="Daten").click()
    german.get_by_role("button", name="Untersuchen").click()
    expect(german.locator("#overview")).to_contain_text("kann trainiert werden", timeout=60_000)
    expect(german.locator("#rows-way input")).to_have_value("erste")

    swedish = visit(browser, app, "sv-SE")
    expect(swedish.get_by_role("tab", name="Data")).to_be_visible()
    swedish.get_by_role("tab", name="Runs").click()
    expect(swedish.locator("#runs-table")).to_contain_text("Nothing has been trained yet.")


@pytest.mark.long
def test_a_german_browser_reads_of_a_run_in_german(
    app: App, browser: Browser, tmp_path: Path
) -> None:
    checkpoint = toys.write_checkpoint(tmp_path / "toy")
    german = visit(browser, app, "de-DE")
    expect(german.locator("#knob-dataset input")).to_have_value(re.compile("MRPC"))
    german.locator("#knob-checkpoint input").fill(str(checkpoint))
    german.locator("#knob-checkpoint input").press("Enter")
    german.locator("#knob-max_length input").fill("48")  # the toy reads 64 tokens
    german.locator("#knob-max_length input").press("Tab")
    german.locator("#train").click()
    expect(german.locator("#run-phase")).to_have_text(
        re.compile("Startet|Lädt|Tokenisiert|Training|Wertet|Speichert|Fertig|Arbeitsprozess"),
        timeout=60_000,
    )
    german.get_by_role("tab", name="Läufe").click()
    german.locator("#runs-table .ft-open").first.click()
    expect(german.locator("#runs-table .ft-state")).to_contain_text(re.compile("läuft|fertig"))
    expect(german.locator("#run-stop")).to_have_text("Anhalten, bestes behalten")
