"""Small pieces of the page that several tabs draw, and the data of their scripts' events."""

from __future__ import annotations

import contextlib
import math
import re
import reprlib
import secrets
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import gradio as gr
from gradio.blocks import Block

from finetune import uploads
from finetune.errors import FinetuneError
from finetune.ui import feedback, model_chooser, theme
from finetune.ui.html import macro

ALWAYS = "+"  # the value of a polling element that asks whenever it is visible
TAB_LINKS = theme.asset("tab_links.js")  # `js_on_load` of a `gr.HTML` with buttons that open a tab
CHOICES = theme.asset("choices.js")  # of one with buttons that choose (macros.html: choice)


def note(text: str) -> gr.HTML:
    """A quiet line."""
    return gr.HTML(feedback.note(text))


def heading(text: str) -> gr.HTML:
    """A heading within a tab."""
    return gr.HTML(macro("macros.html", "heading")(text))


def notice(elem_id: str) -> gr.HTML:
    """Takes no room until its tab has something to say."""
    return gr.HTML(elem_id=elem_id, elem_classes="ft-if-said")


def browser_value() -> gr.HTML:
    """An invisible value that the browser keeps and sends with its events."""
    return gr.HTML("", html_template="", elem_classes="ft-pulse")


def address(tab: str) -> gr.HTML:
    """An invisible element whose value, made by `query`, is the part of the page's address behind
    the name of its tab (assets/address.js)."""
    script = f"watch('value', () => finetune.shows('{tab}', props.value || ''));"
    return gr.HTML("", html_template="", js_on_load=script, elem_classes="ft-pulse")


def query(**values: str) -> str:
    """What a tab shows, for its `address`."""
    told = {name: value for name, value in values.items() if value}
    return urlencode(told, errors="replace")  # JSON can spell lone surrogates


def opening(tab: str, address: gr.HTML, inputs: Sequence[Block] = ()) -> dict[str, Any]:
    """Options of the event that opens a tab: its handler gets the values of `inputs`, and then what
    the page's address asks of the tab, for `asked`."""
    script = f"(...values) => [...values.slice(0, {len(inputs)}), finetune.asked('{tab}')]"
    return {"inputs": [*inputs, address], "js": script}


def asked(query: object) -> dict[str, str]:
    """What an address asks of a tab, by name; any client can send anything."""
    return dict(parse_qsl(str(query or "")))


def button(text: str, elem_id: str, min_width: int = 90, **options: Any) -> gr.Button:
    """A button of Gradio's."""
    return gr.Button(text, elem_id=elem_id, min_width=min_width, **options)


def number_box(value: float | str, **options: Any) -> gr.Textbox:
    """A box for a number, as the person types it. A number field would read "1,000" as 1 in a
    German browser and say nothing, and "0,0001" as 1 in an English one."""
    return gr.Textbox(str(value), max_lines=1, **options)


def number(value: Any, whole: bool = False) -> Any:
    """The number that a person typed into a box, 0 for nothing; if it is none, what they typed, for
    whoever checks it to refuse."""
    value = decimal(value or 0)
    if isinstance(value, str) and "_" not in value:  # which Python reads over
        with contextlib.suppress(ValueError):
            return int(value) if whole else float(value)
    return value


def decimal(value: Any) -> Any:
    """What a person typed into a box for a number, with a point before its decimals. A comma counts
    as that if it cannot separate thousands: "0,001" and "1,5", not "1,500" or "1,234.5", which stay
    as they are and are refused where they are read."""
    text = str(value).replace("\u00a0", "").replace(" ", "")
    match = re.fullmatch(r"([+-]?\d*),(\d+)(e[+-]?\d+)?", text, re.IGNORECASE)
    if not isinstance(value, str) or match is None:
        return value
    whole, decimals, exponent = match.groups("")
    in_doubt = len(decimals) == 3 and whole.strip("+-").strip("0") and not exponent
    return value if in_doubt else f"{whole}.{decimals}{exponent}"


def pairs_file(label: str, elem_id: str, height: int = 92) -> gr.File:
    """A place to drop a file of pairs."""
    return gr.File(
        label=label, height=height, elem_id=elem_id, elem_classes="ft-file",
        file_types=[*uploads.ENDINGS, ".gz"],
    )  # fmt: skip


def no_model(elem_id: str) -> gr.HTML:
    """Stands in the place of a model's controls while there is no model."""
    return gr.HTML(model_chooser.empty(), elem_id=elem_id, js_on_load=TAB_LINKS, visible=False)


def event_data(event: gr.EventData) -> dict[str, Any]:
    """What a script of ours sent with its event; any client can send anything."""
    return event._data if isinstance(event._data, dict) else {}


def sent_number(event: gr.EventData) -> float:
    """The number of what was pressed, 0 if there is none; a `FinetuneError` if it is no number."""
    value = event_data(event).get("what") or 0
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise FinetuneError(
            "{value} is no number.", "Load the page again.", value=reprlib.repr(value)
        )
    return number


def components(tab: object) -> list[Any]:
    """All components that a tab keeps as its attributes: what its events may update."""
    blocks: list[Any] = []
    for value in vars(tab).values():
        values = value if isinstance(value, list | tuple) else [value]
        blocks += [block for block in values if isinstance(block, Block)]
    return list(dict.fromkeys(blocks))


# Each wait has a name, and an answer ends only the wait it was asked in. A `gr.Timer` has no such
# names: a late answer to an earlier question would stop it for the next one too.
def polling_element(seconds: float, value: str = "") -> gr.HTML:
    """An invisible element that asks the server at intervals while an answer is awaited; idle until
    its value is one of `start_polling`."""
    script = theme.asset("polling.js").replace("INTERVAL", str(round(1000 * seconds)))
    return gr.HTML(value, html_template="", js_on_load=script, elem_classes="ft-pulse")


def start_polling() -> str:
    """The value that begins a wait."""
    return f"+{secrets.token_hex(6)}"


def stop_polling(event: gr.EventData) -> str:
    """The value that ends the wait in which the question `event` was asked."""
    return f"-{str(event_data(event).get('wait', ''))[1:]}"


def polling_value(running: bool, event: gr.EventData | None = None) -> Any:
    """Begins a wait while something is `running`; else ends that of the question, if any."""
    if running:
        return start_polling()
    return gr.skip() if event is None else stop_polling(event)
