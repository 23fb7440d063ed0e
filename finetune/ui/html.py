"""Renders HTML from the Jinja2 templates in `templates/`; strings are escaped, `Markup` is not.

In a template `_` translates a text (`i18n.gettext`) and `_html` one with HTML in it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from finetune.config import NO_COLUMN, hyperparameters, is_upload
from finetune.engines.spending import rounded_up
from finetune.environment import project
from finetune.findings import shorten
from finetune.messages import message
from finetune.metrics.catalog import metric_name, metric_title
from finetune.runs.events import Phase
from finetune.tasks.registry import find_task
from finetune.text_hashes import without_direction
from finetune.ui.i18n import gettext, gettext_html, number

FOLDER = Path(__file__).resolve().parent / "templates"
ASSETS = project.ROOT / "assets"
_PHASES = {phase.value: phase.text for phase in Phase} | {"": message("Starting the worker")}


class _BytecodeCache(FileSystemBytecodeCache):
    """Compiled templates in `__pycache__`, where Python keeps compiled modules."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError):  # it may not write there, or the disk is full
            Path(self.directory).mkdir(exist_ok=True)
            super().dump_bytecode(bucket)


@cache
def environment() -> Environment:
    """The environment of all templates."""
    templates = Environment(
        loader=FileSystemLoader(FOLDER),
        # The 2 stands for the options below, which are compiled in.
        bytecode_cache=_BytecodeCache(str(FOLDER / "__pycache__"), "__jinja2_2_%s.cache"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals.update(_=gettext, _html=gettext_html, phase_text=phase_text, zip=zip)
    templates.globals.update(NO_COLUMN=NO_COLUMN, find_task=find_task)
    filters = (
        fixed, exact, count, size, number, code, label, measure, in_words, explained, shorten,
        printable, rounded_up, duration, rough_duration, when,
    )  # fmt: skip
    templates.filters |= {function.__name__: function for function in filters}
    return templates


def _shown(value: Any) -> Any:
    return without_direction(value) if isinstance(value, str) else value


def asset(name: str) -> str:
    """The text of a file in `assets/`."""
    return (ASSETS / name).read_text(encoding="utf-8")


def render(template: str, **values: object) -> Markup:
    """The HTML of a file in `templates/`."""
    return Markup(environment().get_template(template).render(values).strip())


def macro(template: str, name: str) -> Callable[..., Markup]:
    """A macro of a template, to be called with its arguments."""
    return cast(Callable[..., Markup], getattr(environment().get_template(template).module, name))


def fixed(value: float, digits: int = 3, sign: str = "-") -> str:
    """Format a number with so many decimals: `0.842`. The sign `+` marks positive ones too."""
    return number(f"{value:{sign},.{digits}f}")


def exact(value: float, digits: int) -> str:
    """Like `fixed`, for a style or another program: in no language."""
    return f"{value:.{digits}f}"


def count(value: float) -> str:
    """A whole number with separators: `3,668`."""
    return fixed(value, 0)


def size(value: float) -> str:
    """Bytes as a person reads them: `90.9 MB`."""
    if value < 1000:
        return f"{value:.0f} B"
    return f"{fixed(value / 1e6, 1)} MB" if value >= 100_000 else f"{fixed(value / 1e3, 1)} KB"


def duration(seconds: float) -> str:
    """`48 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def when(seconds: float) -> str:
    """The server's local time, to the minute."""
    with contextlib.suppress(ValueError, OverflowError, OSError):  # a damaged file's number
        if seconds:
            return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    return "\u2013"


def rough_duration(seconds: float) -> str:
    """`10 s`, `2 min`, `1 h 30 min`."""
    if seconds < 50:
        return duration(max(5, 5 * round(seconds / 5)))
    if seconds < 3570:
        return f"{max(1, round(seconds / 60))} min"
    return duration(600 * round(seconds / 600))


def code(text: str) -> Markup:
    """Mark text between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def label(field: str) -> str:
    """The label of a field in the form; other names as they are."""
    described = hyperparameters().get(field)
    return described.label if described else field


def measure(metric: str, classes: int) -> str:
    """The title of a metric's column: `F1`, or `Macro F1` with more than two classes."""
    return gettext(metric_title(metric, classes))


def in_words(metric: str, classes: int) -> str:
    """A metric's name in a sentence: `F1`, `macro F1`, `accuracy`."""
    return gettext(metric_name(metric, classes))


def explained(metric: str, classes: int) -> str:
    """The name by which `macros.html: term` explains a metric."""
    return "macro" if metric == "f1" and classes > 2 else metric


def printable(text: str) -> str:
    """Make the spaces of a token visible and mark unprintable characters."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text.replace(" ", "\u2423"))


def phase_text(phase: str, detail: str = "") -> str:
    """Describe a job's phase in the language of the request. `detail` is the phase's dataset,
    checkpoint, split or number of pairs."""
    if phase == Phase.READ_ROWS:
        return gettext(f"reading {detail}")
    text = gettext(_PHASES.get(phase) or phase)
    if phase == Phase.TOKENIZE and detail:
        return text + " " + gettext("{n:,} rows", n=int(detail))
    is_named = phase == Phase.DOWNLOAD and not is_upload(detail)  # an upload's name says nothing
    return f"{text} {detail}" if is_named else text
