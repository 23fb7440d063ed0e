"""Answers to events: the wrapper of every tab's handlers, errors and messages as HTML."""

from __future__ import annotations

import inspect
import logging
import secrets
from typing import Any

import gradio as gr
from markupsafe import Markup
from starlette.exceptions import HTTPException

from finetune import disk
from finetune.errors import ConfigError, FinetuneError
from finetune.ui.html import asset, macro
from finetune.ui.i18n import gettext

_log = logging.getLogger("finetune.ui")
# Options of an event that only reads or notes something: unqueued, for this page alone.
QUICK: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
# Options of a control's event: the last choice counts. By default Gradio drops a choice made while
# an earlier one is answered. Not for events with data: Gradio would repeat them without it.
LATEST: dict[str, Any] = {**QUICK, "trigger_mode": "always_last"}
AS_DRAWN = asset("as_drawn.js")  # `js_on_load` of a `gr.HTML` with controls in it


def refuse_in_one_line(page: gr.Blocks) -> None:
    """Log refused input in one line instead of Gradio's traceback of 10 KB. Any client can send any
    value, as often as it likes."""
    take = page.preprocess_data

    async def preprocess(block_fn: Any, inputs: list[Any], *values: Any, **options: Any) -> Any:
        try:
            if block_fn.fn is None:
                raise ValueError("the browser alone does that")
            # Fill in the arguments left out at the end, which Gradio leaves to its own clients.
            parameters = list(inspect.signature(block_fn.fn).parameters.values())
            defaults = [each.default for each in parameters if each.name != "request"]
            left_out = defaults[len(inputs) : len(block_fn.inputs)]
            if block_fn.api_visibility == "public" and inspect.Parameter.empty not in left_out:
                inputs = [*inputs, *left_out]
            return await take(block_fn, inputs, *values, **options)
        except Exception as error:
            fact = " ".join(str(error).split())[:200]
            _log.warning("refused input to %s: %s: %s", block_fn.name, type(error).__name__, fact)
            text = gettext("This input cannot be read.")
            if isinstance(error, gr.Error):
                text = error.message
            raise gr.Error(text, print_exception=False) from error

    page.preprocess_data = preprocess  # type: ignore[method-assign]
    page.default_config.fns = _Functions(page.default_config.fns)


class _Functions(dict[int, Any]):
    """The page's functions by index; 404 for an unknown index."""

    def __missing__(self, index: object) -> Any:
        raise HTTPException(404, "There is no such function.")


def show_errors(error: Exception) -> Markup:
    """An error as a block of HTML that assistive technology announces."""
    error = disk.explained(error) or error
    if isinstance(error, ConfigError):
        return macro("feedback.html", "problems")(error.problems)
    if isinstance(error, FinetuneError):
        return macro("feedback.html", "error")(error.fact, error.remedy)
    return macro("feedback.html", "error")(apology(error))


def apology(error: Exception) -> str:
    """Log the traceback of a bug, and return a text with its reference in the log."""
    reference = secrets.token_hex(4)
    _log.error("reference %s", reference, exc_info=error)
    return gettext(
        "Something went wrong here, and it is our fault. The app\u2019s log has the details under "
        "the reference {reference}.",
        reference=reference,
    )


# Each takes a text, escaped unless it is `Markup`.
def good(text: str) -> Markup:
    """A block of HTML for what went well."""
    return macro("feedback.html", "good")(text)


def note(text: str) -> Markup:
    """A quiet line."""
    return macro("macros.html", "note")(text)
