"""Errors and messages as HTML, and the options that many events share."""

from __future__ import annotations

import logging
import secrets
from typing import Any

from markupsafe import Markup

from finetune.errors import ConfigError, FinetuneError
from finetune.ui import theme
from finetune.ui.html import macro
from finetune.ui.i18n import gettext

_log = logging.getLogger("finetune.ui")
# Options of an event that only reads or notes something: at once, and for this page alone.
QUICK: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
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
