"""Translations of the page: gettext catalogues, one for each language in `LANGUAGES`.

Texts of the initial page are translated in the browser by Gradio's `I18n`: `browser_translations`
replaces each text that has a translation by a marker. What is drawn later is translated here by
`gettext`. Both follow the language in which the browser shows the page, stored in a cookie.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from numbers import Real
from pathlib import Path
from string import Formatter
from typing import Any

import gradio as gr
from babel import Locale
from babel.messages.pofile import read_po
from babel.numbers import get_decimal_symbol, get_group_symbol
from gradio.components.api_component import Api
from gradio.context import LocalContext
from markupsafe import EscapeFormatter, Markup, escape
from starlette.requests import cookie_parser

from finetune.config import hyperparameters
from finetune.messages import Message, message

FOLDER = Path(__file__).resolve().parent / "locale"
LANGUAGES = ("de", "ko", "zh-CN")  # as Gradio spells them
COOKIE = "finetune-language"  # set by `assets/page.js`
# A typed word may be a key; the browser translates only keys with this prefix.
_PREFIX = "finetune "
_MARKER = "__i18n__"
_OUTER = re.compile(  # the content of an outermost element that is neither hidden nor English
    r"\s*<(?P<tag>\w+)(?![^>]*(?:aria-hidden|lang=))[^>]*>(?P<inner>.+)</(?P=tag)>\s*", re.DOTALL
)
# Texts of Gradio's own that it lacks in a language: its key -> the text.
_GRADIO = {
    "common.complete": message("Done"),  # for screen readers
    "errors.use_via_api_or_mcp": message("Use via API or MCP"),
}
_FIELD_NAME = re.compile(r"^`\w+` ")  # before the help of a hyperparameter
# Names of fields that are no English words; not placeholders, and not flags of a command.
_FIELD_NAMES = [name for name in hyperparameters() if "_" in name]
_FIELDS = re.compile(rf"(?<![\w{{`-])({'|'.join(_FIELD_NAMES)})(?!\w)")
_marked: dict[str, None] = {}  # the texts of all markers


def gettext(text: str, /, **values: object) -> str:
    """Translate a text into the language of the current request: an English literal that `pybabel
    extract` can find, or a `Message`. `values` fill its placeholders."""
    if isinstance(text, Message):
        values |= text.values
        text = text.template
    translated = _FIELDS.sub(_label, catalogue(language()).get(text, text))
    return _Formatter().vformat(translated, (), _translated(values)) if values else translated


def gettext_html(text: str, /, **values: object) -> Markup:
    """Like `gettext`, for a text with HTML; the values are escaped."""
    return Markup(_HtmlFormatter(escape).vformat(gettext(text), (), _translated(values)))


def _label(name: re.Match[str]) -> str:
    """The label that the form has for a field, for a name out of a message: a message names the
    flag of the command line."""
    label = hyperparameters()[name[0]].label
    return gettext("\u201c{name}\u201d", name=gettext(label))


def number(text: str) -> str:
    """A number as Python writes it, `1,746.5`, with the separators of the request's language. What
    is rounded to zero has no sign."""
    text = re.sub(r"^[+-](0[.0]*)$", r"\1", text)
    return text.translate(_separators(language()))


@cache
def _separators(name: str) -> dict[int, str]:
    locale = Locale.parse(name or "en", sep="-")
    return {ord(","): get_group_symbol(locale), ord("."): get_decimal_symbol(locale)}


class _Formatter(Formatter):
    """Like `str.format`, with numbers in the language of the request."""

    def format_field(self, value: Any, format_spec: str) -> str:
        text: str = super().format_field(value, format_spec)
        return number(text) if isinstance(value, Real) else text


class _HtmlFormatter(_Formatter, EscapeFormatter):
    """Like `_Formatter`, escaped."""


def _translated(values: dict[str, object]) -> dict[str, object]:
    return {
        name: gettext(value) if isinstance(value, Message) or value in _FIELD_NAMES else value
        for name, value in values.items()
    }


def page_text(text: str) -> str:
    """A marker that the browser replaces by the translated text; at most one in a string."""
    _marked[text] = None
    return _MARKER + json.dumps({"__type__": "translation_metadata", "key": _PREFIX + text})


def language() -> str:
    """The language of the current request, one of `LANGUAGES`; empty for English."""
    headers = getattr(LocalContext.request.get(None), "headers", None) or {}
    return _negotiate(headers.get("cookie") or "", headers.get("accept-language") or "")


@lru_cache(maxsize=256)
def _negotiate(cookies: str, accepted: str) -> str:
    """The language in the cookie, or the first that the browser accepts, as Gradio does."""
    first = accepted.partition(",")[0].partition(";")[0]
    requested = (cookie_parser(cookies).get(COOKIE) or first).strip().lower()
    supported = {name.lower(): name for name in LANGUAGES}
    return supported.get(requested) or supported.get(requested.partition("-")[0], "")


@cache
def catalogue(name: str) -> dict[str, str]:
    """The translations into a language of `LANGUAGES`; none if it is empty."""
    if not name:
        return {}
    path = FOLDER / name.replace("-", "_") / "LC_MESSAGES" / "finetune.po"
    with path.open("rb") as file:
        return {str(entry.id): str(entry.string) for entry in read_po(file) if entry.id}


def browser_translations(page: gr.Blocks) -> gr.I18n:
    """Replace the page's texts by markers. Returns translations for `launch(i18n=...)`."""
    translated = catalogue(LANGUAGES[0])
    for block, name, text in list(texts(page)):
        if text not in translated:
            continue
        if name == "choices":
            block.choices = [  # type: ignore[attr-defined]
                (page_text(text) if label == text else label, value)
                for label, value in block.choices  # type: ignore[attr-defined]
            ]
        else:  # around the text is HTML, or a hyperparameter's name
            setattr(block, name, str(getattr(block, name)).replace(text, page_text(text)))
    keys = {_PREFIX + text: text for text in _marked} | _GRADIO
    tables = {
        name: {key: catalogue(name).get(text, text) for key, text in keys.items()}
        for name in LANGUAGES
    }
    return gr.I18n(en=keys, **tables)


def texts(page: gr.Blocks) -> Iterator[tuple[gr.blocks.Block, str, str]]:
    """Yield the texts of the initial page: block, attribute, text. For HTML, the text is the
    content of the outermost element, unless hidden, marked as English, or with a marker."""
    for block in page.blocks.values():
        if isinstance(block, Api):  # an argument of an endpoint; its name is part of a program
            continue
        for name in ("label", "info", "placeholder"):
            if isinstance(text := getattr(block, name, None), str) and text:
                yield block, name, _FIELD_NAME.sub("", text)
        value = getattr(block, "value", None)
        if isinstance(block, (gr.Button, gr.UploadButton, gr.Markdown)) and value:
            yield block, "value", str(value)
        elif isinstance(block, gr.HTML) and isinstance(value, str):
            if _MARKER not in value and (match := _OUTER.fullmatch(value)):
                yield block, "value", match["inner"]
        elif isinstance(block, (gr.Dropdown, gr.Radio)):
            of_field = str(block.elem_id).startswith(("knob-", "batch-"))
            for label, value in block.choices:
                if not (of_field and label == value):  # the name of a schedule, an optimizer
                    yield block, "choices", str(label)
