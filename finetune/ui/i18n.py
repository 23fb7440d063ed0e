"""The page's own texts in the language of whoever looks at it. The English text is the key.

What stands on the page from the start is translated in the browser, by Gradio's `I18n`: `i18n`
walks over the built page and puts a marker in the place of every text that a catalogue has. What
is drawn later is translated here, by `say`. Both follow the language that the browser shows the
page in: a script tells it in a cookie, so that Gradio's own choice under Settings counts as well.

English needs no catalogue. What the core says (errors, findings, logs, the model card) and all
names of hyperparameters and measures stay as they are: they are quoted, searched for and reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache, lru_cache
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components.api_component import Api
from gradio.context import LocalContext

FOLDER = Path(__file__).resolve().parent.parent.parent / "assets" / "words"
LANGUAGES = ("de", "es", "fr", "zh-CN", "ja", "ko")  # as Gradio's own texts spell them
COOKIE = "finetune-language"
# Gradio writes the language it has chosen into the document; in a frame of another site (a Space)
# a cookie needs more to be kept.
SCRIPT = f"""
<script>
(() => {{
  const safe = location.protocol === 'https:';
  const how = safe ? 'SameSite=None; Secure; Partitioned' : 'SameSite=Lax';
  const tell = () => {{
    document.cookie = `{COOKIE}=${{document.documentElement.lang}}; path=/; ${{how}}`;
  }};
  new MutationObserver(tell).observe(
    document.documentElement, {{attributes: true, attributeFilter: ['lang']}});
  tell();
}})();
</script>
"""
# A person may type a word that is a key; the browser translates those with this before them only.
_PREFIX = "finetune "
_MARK = "__i18n__"
_SHOWN = ("label", "info", "placeholder")  # of a component; what the browser translates
_asked: ContextVar[str] = ContextVar("language", default="")


def say(text: str, /, **values: object) -> str:
    """A text in the asker's language.

    Args:
        text: the English one, written where it is said: the catalogues' keys are read from there.
        values: for its placeholders, as `str.format` takes them.
    """
    said = _catalogue(language()).get(text, text)
    return said.format(**values) if values else said


def translate_term(text: str) -> str:
    """One of a list of words that are kept elsewhere, in the asker's language; else as it is."""
    return _catalogue(language()).get(text, text)


def page_text(text: str) -> str:
    """A marker that the browser puts the text in the place of; one at most in a string."""
    return _MARK + json.dumps({"__type__": "translation_metadata", "key": _PREFIX + text})


def language() -> str:
    """The asker's language, one of `LANGUAGES`; empty for English and where nobody asks."""
    request = LocalContext.request.get(None)
    return _of(request) if request is not None else _asked.get()


def use_language_of(request: Any) -> None:
    """From here on, in this context, speak to whoever sent a request that is no Gradio event."""
    _asked.set(_of(request))


def _of(request: Any) -> str:
    headers = getattr(request, "headers", None) or {}
    return _chosen(headers.get("cookie") or "", headers.get("accept-language") or "")


@lru_cache(maxsize=256)
def _chosen(cookies: str, accepted: str) -> str:
    """What the browser has told, or else the first language it accepts, as Gradio's page does."""
    try:
        told = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        told = None
    wanted = told.value if told else accepted.partition(",")[0].partition(";")[0]
    known = {one.lower(): one for one in LANGUAGES}
    exact = wanted.strip().lower()
    return known.get(exact) or known.get(exact.partition("-")[0], "")


@cache
def _catalogue(chosen: str) -> dict[str, str]:
    if not chosen:
        return {}
    found: dict[str, str] = json.loads((FOLDER / f"{chosen}.json").read_text(encoding="utf-8"))
    return found


def i18n(page: gr.Blocks) -> gr.I18n:
    """Mark the page's own texts; their translations, for `launch(i18n=...)`.

    Args:
        page: as it was built; a text that no catalogue has is left alone.
    """
    known = _catalogue(LANGUAGES[0])
    for block, name, text in list(texts(page)):
        if text in known:
            _replace(block, name, text)
    marked = dict.fromkeys(_marked(page))
    spoken = {one: {_PREFIX + text: _catalogue(one)[text] for text in marked} for one in LANGUAGES}
    return gr.I18n(en={_PREFIX + text: text for text in marked}, **spoken)


def texts(page: gr.Blocks) -> Iterator[tuple[gr.blocks.Block, str, str]]:
    """What a page shows from the start: the block, the attribute, the text.

    Of HTML it is what the outermost element holds, unless that is hidden or holds a marker, of a
    choice what is shown of it.
    """
    for block in page.blocks.values():
        if isinstance(block, Api):  # an argument of an endpoint; its name is part of a program
            continue
        for name in _SHOWN:
            if isinstance(text := getattr(block, name, None), str) and text:
                yield block, name, text
        value = getattr(block, "value", None)
        if isinstance(block, (gr.Button, gr.UploadButton, gr.Markdown)) and value:
            yield block, "value", str(value)
        elif isinstance(block, gr.HTML) and isinstance(value, str):
            if _MARK not in value and (found := _OUTER.fullmatch(value)):
                yield block, "value", found["inner"]
        elif isinstance(block, (gr.Dropdown, gr.Radio)):
            of_field = str(block.elem_id).startswith("knob-")
            for shown, value in block.choices:
                if not (of_field and shown == value):  # the name of a schedule, an optimizer
                    yield block, "choices", str(shown)


_HIDDEN = r"(?![^>]*aria-hidden)"
_OUTER = re.compile(rf"\s*<(?P<tag>\w+){_HIDDEN}[^>]*>(?P<inner>.+)</(?P=tag)>\s*", re.DOTALL)


def _replace(block: Any, name: str, text: str) -> None:
    if name == "choices":
        block.choices = [
            (page_text(text) if shown == text else shown, value) for shown, value in block.choices
        ]
    elif isinstance(block, gr.HTML) and name == "value":
        block.value = block.value.replace(text, page_text(text))
    else:
        setattr(block, name, page_text(text))


def _marked(page: gr.Blocks) -> Iterator[str]:
    """The texts that markers on the page stand for."""
    for block in page.blocks.values():
        shown = [getattr(block, name, None) for name in (*_SHOWN, "value")]
        shown += [name for name, _ in getattr(block, "choices", None) or []]
        shown += list(getattr(block, "props", {}).values()) if isinstance(block, gr.HTML) else []
        for text in shown:
            for found in _MARKER.findall(text) if isinstance(text, str) else ():
                yield json.loads(found)["key"].removeprefix(_PREFIX)


_MARKER = re.compile(_MARK + r"(\{.*?\})")  # no text that is marked has a brace
