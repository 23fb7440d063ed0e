"""The page in other languages: every text is translated, each visitor is spoken to in theirs."""

from __future__ import annotations

import re
from pathlib import Path

import gradio as gr
import pytest

from finetune.errors import ConfigError, DataError
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary
from finetune.ui import app as page
from finetune.ui import charts, feedback, html, i18n, live_updates
from tests.support import translations


@pytest.mark.parametrize("name", i18n.LANGUAGES)
def test_every_text_is_translated_and_no_translation_is_left_over(name: str) -> None:
    keys, catalogue = translations.keys(), translations.catalogue(name)
    assert [text for text in keys if not catalogue.get(text, "").strip()] == []
    assert [text for text in catalogue if text not in keys] == []
    for text, translated in catalogue.items():
        assert translations.placeholders(translated) == translations.placeholders(text), text
        assert translations.tags(translated) == translations.tags(text), text
        assert '"' not in translated, text  # it may stand in an attribute


def test_every_sentence_is_marked_for_translation_and_has_the_values_that_it_names() -> None:
    assert translations.unmarked() == []
    for path in translations.SOURCE.rglob("*.py"):
        for line, _, texts, values in translations.messages(path.read_text(encoding="utf-8")):
            names = {name for text in texts for name, _ in translations.placeholders(text)}
            assert not values or names == values, f"{path.name}:{line}"


def test_the_asker_is_answered_as_the_browser_shows_the_page() -> None:
    for accepted, cookie, expected in (
        ("", "", ""), ("*", "", ""), ("de-AT,de;q=0.9,en;q=0.8", "", "de"),
        ("zh-CN,zh;q=0.9", "", "zh-CN"), ("zh-TW", "", ""),  # Gradio has it, we do not
        ("sv-SE,de;q=0.9", "", ""),  # the browser's page speaks its first language only
        ("en-US", "other=1; finetune-language=ko", "ko"), ("de", "finetune-language=en", ""),
        ("de", "finetune-language=../../etc/passwd", ""),
    ):  # fmt: skip
        assert i18n._negotiate(cookie, accepted) == expected, (accepted, cookie)


@pytest.mark.parametrize("language", ["de"], indirect=True)
def test_a_text_is_in_the_language_of_the_request_and_its_values_inject_nothing(
    language: str,
) -> None:
    assert i18n.gettext("{n:,} rows", n=1234) == "1.234 Zeilen"
    assert i18n.gettext_html("<i>{f1:.3f}</i> {name}", f1=0.842, name="1,5<") == (
        "<i>0,842</i> 1,5&lt;"  # a person's own text stays as it is
    )
    assert (html.fixed(1746.5, 1), html.size(1.5e6)) == ("1.746,5", "1,5 MB")
    assert 'data-group="." data-decimal=","' in page.head_side()
    assert i18n.gettext("no word of ours") == "no word of ours"
    assert i18n.gettext("{name} is not text.", name="{n} <b>") == "{n} <b> ist kein Text."
    assert "&lt;b&gt;" in feedback.note(i18n.gettext("{name} is not text.", name="<b>"))
    assert "Der Loss erscheint" in charts.loss_chart(RunSummary())
    assert "Trainieren" in live_updates.lesson("waiting")


def test_the_browser_has_every_text_of_the_page_and_no_word_that_is_typed(tmp_path: Path) -> None:
    for text in translations.shown(tmp_path):
        assert "}" not in text, text  # the browser reads a marker up to the first
        assert not re.search(r"&[#\w]+;", text), text  # HTML escaped by `note` is no key
    built = page.build(RunStore(tmp_path))
    tables = i18n.browser_translations(built).translations
    assert set(tables) == {"en", *i18n.LANGUAGES}
    for table in tables.values():
        assert set(table) == set(tables["en"])
    own = {key: text for key, text in tables["en"].items() if key.startswith("finetune ")}
    assert all(key == f"finetune {text}" for key, text in own.items())
    # Gradio reads out the name of a key that it lacks, and this one after each answer.
    assert {*tables["en"]} - {*own} == {"common.complete", "errors.use_via_api_or_mcp"}
    blocks = list(built.blocks.values())
    (rate,) = [block for block in blocks if block.elem_id == "knob-learning_rate"]
    assert str(getattr(rate, "info", "")).startswith("`learning_rate` __i18n__")
    assert "Train" not in [block.label for block in blocks if isinstance(block, gr.Tab)]


def test_the_page_names_a_field_by_its_label_and_a_terminal_by_its_flag() -> None:
    error = DataError(
        "frozen_layers is {frozen_layers}, or --frozen_layers; {name!r} stays.",
        "Choose {field}.",
        frozen_layers=40, name="my frozen_layers", field="label_column",
    )  # fmt: skip
    said = "“Frozen layers” is 40, or --frozen_layers; 'my frozen_layers' stays."
    assert i18n.gettext(error.fact) == said
    assert i18n.gettext(error.remedy) == "Choose “Answer”."
    assert str(error).endswith("Choose label_column.")
    problem = ConfigError({"num_train_epochs": "is bad"})
    assert "<b>Passes over the data</b>" in str(feedback.show_errors(problem))
