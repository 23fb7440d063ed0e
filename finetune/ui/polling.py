"""An invisible element that asks the server at intervals while an answer is awaited.

Each wait has a name, and an answer ends only the wait it was asked in. A `gr.Timer` has no such
names: a late answer to an earlier question would stop it for the next one too.
"""

from __future__ import annotations

import secrets
from typing import Any

import gradio as gr

from finetune.ui import theme

ALWAYS = "+"  # the value of an element that asks whenever it is visible


def polling_element(seconds: float, value: str = "") -> gr.HTML:
    """A polling element in the current layout; idle until its value is one of `start_polling`."""
    script = theme.asset("polling.js").replace("INTERVAL", str(round(1000 * seconds)))
    return gr.HTML(value, html_template="", js_on_load=script, elem_classes="ft-pulse")


def start_polling() -> str:
    """The value that begins a wait."""
    return f"+{secrets.token_hex(6)}"


def stop_polling(event: gr.EventData) -> str:
    """The value that ends the wait in which the question `event` was asked."""
    data: Any = event._data if isinstance(event._data, dict) else {}
    return f"-{str(data.get('wait', ''))[1:]}"


def polling_value(running: bool, event: gr.EventData | None = None) -> Any:
    """Begins a wait while something is `running`; else ends that of the question, if any."""
    if running:
        return start_polling()
    return gr.skip() if event is None else stop_polling(event)
