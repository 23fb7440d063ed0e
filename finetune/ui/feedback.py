"""Errors and messages as HTML, and the options that many events share."""

from __future__ import annotations

import logging
import secrets
from typing import Any

import gradio as gr
from markupsafe import Markup
from starlette.exceptions import HTTPException

from finetune.errors import ConfigError, FinetuneError
from finetune.ui import theme
from finetune.ui.html import macro
from finetune.ui.i18n import gettext

_log = logging.getLogger("finetune.ui")
# Options of an event that only reads or notes something: at once, and for this page alone.
QUICK: dict[str, Any] = {
    "queue": False,
    "show_progress": "hidden",
    "api_visibility": "private",
}

# Options of a control's event: what was chosen last counts. By itself Gradio drops what is chosen
# while an earlier choice is answered. Not for events with data, which would be repeated without it.
LATEST: dict[str, Any] = {**QUICK, "trigger_mode": "always_last"}

AS_DRAWN = theme.asset("as_drawn.js")  # `js_on_load` of a `gr.HTML` with controls in it


def show_errors(error: Exception) -> Markup:
    """An error as a block of HTML that assistive technology announces."""
    if isinstance(error, ConfigError):
        return macro("feedback.html", "problems")(error.problems)
    if isinstance(error, FinetuneError):
        return macro("feedback.html", "error")(error.fact, error.remedy)
    return macro("feedback.html", "error")(apology(error))


def apology(error: Exception) -> str:
    """The text for a bug, with the reference under which the log has its traceback."""
    reference = secrets.token_hex(4)
    _log.error("reference %s", reference, exc_info=error)
    return gettext(
        "Something went wrong here, and it is our fault. The app\u2019s log has the details under "
        "the reference {reference}.",
        reference=reference,
    )


def refuse_in_one_line(page: gr.Blocks) -> None:
    """Log input that a control refuses in one line instead of Gradio's traceback of 10 KB: any
    client can send any value, as often as it likes."""
    take = page.preprocess_data

    async def preprocess_data(block_fn: Any, *values: Any, **options: Any) -> Any:
        try:
            if block_fn.fn is None:
                raise ValueError("the browser alone does that")
            return await take(block_fn, *values, **options)
        except Exception as error:
            fact = " ".join(str(error).split())[:200]
            _log.warning("refused input to %s: %s: %s", block_fn.name, type(error).__name__, fact)
            text = error.message if isinstance(error, gr.Error) else "This input cannot be read."
            raise gr.Error(text, print_exception=False) from error

    page.preprocess_data = preprocess_data  # type: ignore[method-assign]
    page.default_config.fns = _Functions(page.default_config.fns)


class _Functions(dict[int, Any]):
    """The page's functions by index; 404 for one that is not there."""

    def __missing__(self, index: object) -> Any:
        raise HTTPException(404, "There is no such function.")


# Each takes a text, escaped unless it is `Markup`.
def good(text: str) -> Markup:
    """A block of HTML for what went well."""
    return macro("feedback.html", "good")(text)


def warning(text: str) -> Markup:
    """A block of HTML for what may go wrong."""
    return macro("feedback.html", "warning")(text)


def note(text: str) -> Markup:
    """A quiet line."""
    return macro("macros.html", "note")(text)


def heading(text: str) -> Markup:
    """A heading within a tab."""
    return macro("macros.html", "heading")(text)
