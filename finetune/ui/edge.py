"""Where the core's errors meet the page: what a person can mend is said in words, in place.

A bug is logged whole and shown as an apology with a reference, never as a traceback.
"""

from __future__ import annotations

import html
import logging
import secrets

from finetune.errors import ConfigError, FinetuneError

_log = logging.getLogger("finetune.ui")


def said(error: Exception) -> str:
    """An error as a block of HTML that assistive technology announces."""
    if isinstance(error, ConfigError):
        items = "".join(
            f"<li><b>{html.escape(name)}</b> {html.escape(text)}.</li>"
            for name, text in error.problems.items()
        )
        return f'<div class="ft-said" role="alert">Please correct:<ul>{items}</ul></div>'
    if isinstance(error, FinetuneError):
        fact, remedy = html.escape(error.fact), html.escape(error.remedy)
        return f'<div class="ft-said" role="alert"><b>{fact}</b> {remedy}</div>'
    reference = secrets.token_hex(4)
    _log.error("reference %s", reference, exc_info=error)
    return (
        '<div class="ft-said" role="alert"><b>Something went wrong here, and it is our fault.</b> '
        f"The app's log has the details under the reference {reference}.</div>"
    )


def good(text: str) -> str:
    """A block of HTML for what went well; `text` is HTML already."""
    return f'<div class="ft-said ft-good" role="status">{text}</div>'


def note(text: str) -> str:
    """A quiet line; `text` is plain."""
    return f'<p class="ft-note">{html.escape(text)}</p>'
