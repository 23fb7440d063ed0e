"""The page in other languages: every text is translated, each visitor is spoken to in theirs. Who
brought single texts reads of no pairs, whatever is learned of them, in any language."""

import json
import re

import gradio as gr
import pyarrow as pa
import pytest

from finetune.errors import ConfigError, DataError
from finetune.evaluation import saved_predictions
from finetune.runs.job_folder import forget_state
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary
from finetune.ui import app as page
from finetune.ui import charts, feedback, html, i18n, live_updates
from finetune.ui.run_view import blank
from finetune.ui.tabs.evaluate import ERRORS, EVALUATION
from finetune.ui.tabs.runs import RunsTab
from tests.support import toy_runs, translations
from tests.support.made_runs import FILTERS
from tests.support.tabs import NOBODY, draw_train, drawn, predict_tab, publish_tab


@pytest.mark.parametrize("name", i18n.LANGUAGES)
def test_every_text_is_translated_and_no_translation_is_left_over(name):
    keys, catalogue = translations.keys(), translations.catalogue(name)
    assert [text for text in keys if not catalogue.get(text, "").strip()] == []
    assert [text for text in catalogue if text not in keys] == []
    for text, translated in catalogue.items():
        assert translations.placeholders(translated) == translations.placeholders(text), text
        assert translations.tags(translated) == translations.tags(text), text
        assert '"' not in translated, text  # it may stand in an attribute


def test_every_sentence_is_marked_for_translation_and_has_the_values_that_it_names():
    assert translations.unmarked() == []
    for path in translations.SOURCE.rglob("*.py"):
        for line, _, texts, values in translations.messages(path.read_text(encoding="utf-8")):
            names = {name for text in texts for name, _ in translations.placeholders(text)}
            assert not values or names == values, f"{path.name}:{line}"


def test_the_asker_is_answered_as_the_browser_shows_the_page():
    for accepted, cookie, expected in (
        ("", "", ""), ("*", "", ""), ("de-AT,de;q=0.9,en;q=0.8", "", "de"),
        ("zh-CN,zh;q=0.9", "", "zh-CN"), ("zh-TW", "", ""),  # Gradio has it, we do not
        ("sv-SE,de;q=0.9", "", ""),  # the browser's page speaks its first language only
        ("en-US", "other=1; finetune-language=ko", "ko"), ("de", "finetune-language=en", ""),
        ("de", "finetune-language=../../etc/passwd", ""),
    ):  # fmt: skip
        assert i18n._negotiate(cookie, accepted) == expected, (accepted, cookie)


@pytest.mark.parametrize("language", ["de"], indirect=True)
def test_a_text_is_in_the_language_of_the_request_and_its_values_inject_nothing(language):
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
    assert "Trainieren" in html.render("lesson.html", moment="waiting")


def test_the_browser_has_every_text_of_the_page_and_no_word_that_is_typed(tmp_path):
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


def test_the_page_names_a_field_by_its_label_and_a_terminal_by_its_flag():
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


PAIR = re.compile(
    r"\bpair(s|ed)?\b|(?<!\w)paar|textpaar|satzpaar|쌍|句对|文本对|成对|配对(?!自助)", re.IGNORECASE
)
# Of these alone a person reads the values.
UNREAD = re.compile(r'\s(?!aria-label|title|placeholder|alt)[\w-]+="[^"]*"')


def single(run):
    """Make a run's rows single texts."""
    lines = [json.loads(line) for line in run.events_file.read_text().splitlines()]
    for line in lines:
        if line["event"] == "prepared":
            line["data"]["columns"]["sentence2"] = ""
    run.events_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    forget_state(run)
    (run.predictions / "swapped.npz").unlink()
    table = saved_predictions.read_examples(run)
    none = pa.array([""] * table.num_rows)
    place = table.column_names.index("sentence2")
    table = table.set_column(place, "sentence2", none)
    saved_predictions.save_examples(run, "validation", table)


def texts(value):
    """What a person reads of updates."""
    if isinstance(value, dict):
        return "\n".join(map(texts, value.values()))
    if isinstance(value, list | tuple):
        return "\n".join(map(texts, value))
    return UNREAD.sub("", value) if isinstance(value, str) else ""


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_a_translation_speaks_of_pairs_only_where_the_english_does(language):
    for text, translated in translations.catalogue(language).items():
        assert PAIR.search(text) or not PAIR.search(translated), text


def test_no_view_of_single_texts_speaks_of_pairs(trained, tmp_path):
    store, found = trained.store(tmp_path / "runs"), []
    runs = toy_runs.runs_by_name(store)
    for kind in (toy_runs.CLASSES, toy_runs.SCORE):
        single(runs[kind])
    predict, publish, train = predict_tab(store), publish_tab(store), draw_train(store)
    tab = drawn(RunsTab(store))
    for kind in toy_runs.KINDS:
        run = runs[kind]
        asked, view = f"run={run.id}", blank() | {"opened": run.id}
        views = {
            "live": live_updates.changes(store, run, {})[0],
            "run": tab.on_open(NOBODY, blank(), {}, "", asked),
            "train": train.on_turn(NOBODY, run.id),
            "predict": predict.on_open(NOBODY, run.id, asked),
            "model": predict.on_run(NOBODY, run.id, ()),
            "answer": predict.on_ask(NOBODY, run.id, "the cat sees a dog .", ""),
            "publish": publish.on_open(NOBODY, None, asked),
            **{
                part: tab.evaluation.on_part(NOBODY, view, part, *FILTERS.values())
                for part in (EVALUATION, ERRORS)
            },
        }
        for name, updates in views.items():
            lines = texts(updates).splitlines()
            found += [(kind, name, line) for line in lines if PAIR.search(line)]
    assert not found, "\n".join(map(str, found))
