"""The part of the Train tab that begins a search for hyperparameters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from finetune import config as run_config
from finetune.config import RunConfig
from finetune.engines import spending
from finetune.errors import ConfigError
from finetune.search.space import (
    DEFAULT,
    Budget,
    Space,
    describe,
    outside,
    read_space,
    searchable,
)
from finetune.ui import elements, feedback, several_runs
from finetune.ui.cost_view import rough_duration
from finetune.ui.i18n import gettext
from finetune.ui.run_view import setting_text

FIELDS = tuple(searchable())
COUNT = len(FIELDS) + 4  # of the controls


@dataclass(frozen=True)
class SearchForm:
    """The controls, and the part that holds them."""

    inputs: list[Any]
    trials: gr.Textbox
    part: gr.Column


def draw() -> SearchForm:
    """Draw the controls in the current block, hidden."""
    with gr.Column(elem_id="search", elem_classes=several_runs.HIDDEN) as part:
        elements.note(
            gettext(
                "Train many times with other hyperparameters; each run learns from those before "
                "it. The first run is the form as it is. The worst quarter is stopped early."
            )
        )
        with gr.Row():
            trials = elements.number_box(
                20, label=gettext("Trials at most"), elem_id="search-trials", min_width=150,
                placeholder=gettext("No limit"),
                info=gettext("20 are needed to say which settings matter."),
            )  # fmt: skip
            minutes = elements.number_box(
                "", label=gettext("Minutes of training"), elem_id="search-minutes", min_width=150,
                placeholder=gettext("No limit"), info=gettext("No trial begins after that."),
            )  # fmt: skip
        info = gettext(
            "A range such as 1..6, or values with commas between. Empty: as in the form."
        )
        elements.note(info)
        boxes: list[Any] = []
        for name in elements.two_in_a_row(FIELDS):
            usual = describe(searchable()[name])
            box = gr.Textbox(
                usual if name in DEFAULT else "", label=run_config.hyperparameters()[name].label,
                elem_id=f"search-{name}", max_lines=1, min_width=130, placeholder=usual,
            )  # fmt: skip
            boxes.append(box)
        parallel = elements.number_box(
            1, label=gettext("At a time"), elem_id="search-parallel", min_width=100
        )
        keep = gr.Checkbox(
            False, label=gettext("Keep the weights of trials that end early"),
            elem_id="search-keep",
        )  # fmt: skip
    return SearchForm([*boxes, trials, minutes, parallel, keep], trials, part)


def read(values: Sequence[Any]) -> tuple[Space, Budget, dict[str, Any]]:
    """Read the space, the budget, and options of `begin_search`. Raises ConfigError."""
    texts = dict(zip(FIELDS, values, strict=False))
    space = read_space({name: str(text) for name, text in texts.items() if str(text or "").strip()})
    trials, minutes, parallel, keep = values[len(FIELDS) : COUNT]
    options = {"parallel": elements.number(parallel, whole=True), "keep_pruned": bool(keep)}
    budget = Budget(elements.number(trials, whole=True), elements.number(minutes))
    return space, budget, options


@contextlib.contextmanager
def problems_at_its_boxes() -> Iterator[None]:
    """Name the search's box in place of the form's, which has the same field."""
    try:
        yield
    except ConfigError as error:
        boxes = {*FIELDS, "trials", "parallel"}
        problems = {
            f"search-{name}" if name in boxes else name: text
            for name, text in error.problems.items()
        }
        raise ConfigError(problems) from error


def outside_text(space: Space, config: RunConfig) -> str:
    """Describe the values of a configuration that a search does not draw: `Epochs 8 (1..6)`."""
    described = run_config.hyperparameters()
    return ", ".join(
        f"{gettext(described[name].label)} {setting_text(name, value)} ({describe(space[name])})"
        for name, value in outside(space, config.to_dict()).items()
    )


def expected(seconds: float | None, budget: Budget, price: float, apart: str = "") -> Markup:
    """Describe a search: its time, its price if billed, and the values of its first trial that lie
    outside of the search space.

    Args:
        seconds: of training, None if unknown.
        price: the most a trial costs, in US dollars; 0 if not billed.
        apart: the values that lie outside.
    """
    texts, limit = [], 60 * budget.minutes
    if limit and (seconds is None or seconds >= limit):
        text = gettext("No trial begins after {time} of training.", time=rough_duration(limit))
        texts.append(text)
    elif seconds is not None:
        text = gettext(
            "All trials: about {time} of training, less if some end early.",
            time=rough_duration(seconds),
        )
        texts.append(text)
    elif budget.trials:
        texts.append(gettext("How long it takes is known after a run like it."))
    if price:
        most = spending.rounded_up(budget.trials * price)
        texts.append(gettext("All its trials together cost at most ${most:.2f}.", most=most))
    if apart:
        text = gettext(
            "The first trial is the form as it is, outside of what is searched: {values}. Nothing "
            "else is drawn outside.", values=apart,
        )  # fmt: skip
        texts.append(text)
    return feedback.note(" ".join(texts)) if texts else Markup()
