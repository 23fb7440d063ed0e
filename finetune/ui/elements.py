"""Small pieces of the page that several tabs draw, and the values that they send."""

from __future__ import annotations

import contextlib
import math
import re
import reprlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import gradio as gr

from finetune import uploads
from finetune.errors import FinetuneError
from finetune.ui import feedback
from finetune.ui.html import asset, macro

ALWAYS = "+"  # the value of a polling element that asks whenever it is visible
TAB_LINKS = asset("tab_links.js")  # `js_on_load` of a `gr.HTML` with buttons that open a tab
CHOICES = asset("choices.js")  # the same with buttons that choose (macros.html: choice)


def two_in_a_row(names: Sequence[str]) -> Iterator[str]:
    """Yield names; what is drawn for them stands in rows of two in the current block."""
    for start in range(0, len(names), 2):
        with gr.Row():
            yield from names[start : start + 2]


def note(text: str) -> gr.HTML:
    """A quiet line."""
    return gr.HTML(feedback.note(text))


def heading(text: str) -> gr.HTML:
    """A heading within a tab."""
    return gr.HTML(macro("macros.html", "heading")(text))


def notice(elem_id: str, **options: Any) -> gr.HTML:
    """A message area that takes no room while empty."""
    return gr.HTML(elem_id=elem_id, elem_classes="ft-if-said", **options)


def browser_value() -> gr.HTML:
    """An invisible value that the browser keeps and sends with its events."""
    return gr.HTML("", html_template="", elem_classes="ft-pulse")


def address(tab: str) -> gr.HTML:
    """An invisible element with the part of the page's address behind the name of its tab
    (assets/address.js). `query` makes its value, and `asked` parses it."""
    script = f"watch('value', () => finetune.shows('{tab}', props.value || ''));"
    return gr.HTML("", html_template="", js_on_load=script, elem_classes="ft-pulse")


def query(**values: str) -> str:
    """Encode a tab's state for its `address`."""
    told = {name: value for name, value in values.items() if value}
    return urlencode(told, errors="replace")  # JSON can spell lone surrogates


def asked(query: object) -> dict[str, str]:
    """Parse an address into values by name. Any client can send anything."""
    return dict(parse_qsl(str(query or "")))


def button(text: str, elem_id: str, min_width: int = 90, **options: Any) -> gr.Button:
    return gr.Button(text, elem_id=elem_id, min_width=min_width, **options)


def text_box(label: str, elem_id: str, min_width: int = 160, **options: Any) -> gr.Textbox:
    """A text box of one line."""
    return gr.Textbox(label=label, elem_id=elem_id, min_width=min_width, max_lines=1, **options)


def dropdown(
    choices: Sequence[Any], label: str, elem_id: str, min_width: int = 160, **options: Any
) -> gr.Dropdown:
    return gr.Dropdown(choices, label=label, elem_id=elem_id, min_width=min_width, **options)


def parts(choices: Sequence[tuple[str, str]], label: str, elem_id: str) -> gr.Radio:
    """The choice of what is shown below it. Hidden `gr.Tabs` would show their tabs twice."""
    return gr.Radio(
        choices, value=choices[0][1], label=label, elem_id=elem_id, show_label=False,
        container=False,
    )  # fmt: skip


def number_box(value: float | str, label: str, elem_id: str, **options: Any) -> gr.Textbox:
    """A text box for a number. A number field would silently read "1,000" as 1 in a German browser,
    and "0,0001" as 1 in an English one."""
    return text_box(label, elem_id, value=str(value), **options)


def number(value: Any, whole: bool = False) -> Any:
    """Read a typed number, 0 for an empty text. A text that is no number is returned, for the
    caller's check to refuse."""
    value = decimal(value or 0)
    if isinstance(value, str) and "_" not in value:  # Python would ignore it
        with contextlib.suppress(ValueError):
            return int(value) if whole else float(value)
    return value


def decimal(value: Any) -> Any:
    """Turn a comma in a typed number into a decimal point if it cannot separate thousands: "0,001"
    and "1,5", not "1,500" or "1,234.5". The latter stay unchanged and are refused when read as
    numbers."""
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


def sent_number(pressed: Mapping[str, Any]) -> float:
    """The number sent by a pressed element, 0 if none. `FinetuneError` if not a number."""
    value = pressed.get("what") or 0
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and math.isfinite(number := float(value)):
            return number
    raise FinetuneError("{value} is no number.", "Load the page again.", value=reprlib.repr(value))


# Each wait has a name, and an answer ends only the wait of its own question. A `gr.Timer` has no
# names: a late answer to an earlier question would also stop the next wait.
def polling_element(seconds: float, value: str = "") -> gr.HTML:
    """An invisible element that polls the server while an answer is awaited. Idle until its value
    is that of a running wait."""
    script = asset("polling.js").replace("INTERVAL", str(round(1000 * seconds)))
    return gr.HTML(value, html_template="", js_on_load=script, elem_classes="ft-pulse")


def polling_value(running: bool, question: Mapping[str, Any] | None) -> Any:
    """Value that begins a wait if `running`, else ends the wait of the `question`, if any."""
    if running:
        return f"+{secrets.token_hex(6)}"
    if question is None:
        return gr.skip()
    return f"-{str(question.get('wait', ''))[1:]}"
