"""What asks the server again and again while something is awaited, and while it can be seen.

Not `gr.Timer`: the answer that stops one may be late. Whoever waits for the next thing by then
would wait for ever, for a timer cannot tell whose answer stops it. Here each wait has a name, and
an answer ends only the wait it was asked in.
"""

from __future__ import annotations

import secrets
from typing import Any

import gradio as gr

# The value is what the server said last: `+name` begins a wait, `-name` ends it, and `+` alone is
# a wait without an end. `submit` asks, with the wait's name; Gradio lets one ask at a time.
_SCRIPT = """
let awaited = '';
const hear = () => {
  const told = String(props.value || '');
  if (told[0] === '+') awaited = told;
  else if (told.slice(1) === awaited.slice(1)) awaited = '';
};
watch('value', hear);
hear();
setInterval(() => {
  if (awaited && !document.hidden && element.offsetParent) trigger('submit', {wait: awaited});
}, %d);
"""
ALWAYS = "+"


def polling_element(seconds: float, value: str = "") -> gr.HTML:
    """A pulse in the current layout, still until it is told `begin` or given `ALWAYS`.

    Args:
        seconds: between two questions.
        value: `ALWAYS` for one that asks whenever it can be seen.
    """
    script = _SCRIPT % round(1000 * seconds)
    return gr.HTML(value, html_template="", js_on_load=script, elem_classes="ft-pulse")


def start_polling() -> str:
    """A value for a pulse: something is awaited from now on."""
    return f"+{secrets.token_hex(6)}"


def stop_polling(event: gr.EventData) -> str:
    """A value for a pulse: what it asked for in this wait is known.

    Args:
        event: of the question.
    """
    told: Any = event._data if isinstance(event._data, dict) else {}
    return f"-{str(told.get('wait', ''))[1:]}"


def polling_value(going: bool, event: gr.EventData | None = None) -> Any:
    """A value for a pulse: something goes on, or nothing does as far as is known.

    Args:
        going: whether there is something to wait for.
        event: of the question, where this answers one; only such an answer can end a wait.
    """
    if going:
        return start_polling()
    return gr.skip() if event is None else stop_polling(event)
