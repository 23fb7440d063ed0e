"""The choice of what a click on Train starts: one run, several seeds, a grid or a search."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gradio as gr

from finetune import config as run_config
from finetune.runs import grids
from finetune.runs.grids import PlannedRun
from finetune.ui import elements, feedback, form, theme
from finetune.ui.i18n import gettext

ONCE, SEEDS, GRID, SEARCH = KINDS = ("once", "seeds", "grid", "search")
COUNT = 2 + len(grids.GRID)  # of the controls
_EXAMPLES = ("3e-5, 7e-5, 2e-4", "8, 16, 32", "2, 4, 6")  # of a grid's values
HIDDEN = ["ft-unseen"]  # hides a part and keeps its controls' values


def draw_choice() -> gr.Radio:
    """Draw the choice of what a click starts."""
    labels = gettext("Once"), gettext("Seeds"), gettext("Grid"), gettext("Search")
    return gr.Radio(
        list(zip(labels, KINDS, strict=True)), value=ONCE, container=False, elem_id="train-how",
        show_label=False, label=gettext("What a click starts"),
    )  # fmt: skip


def draw(how: gr.Radio) -> list[Any]:
    """Draw the controls for seeds and a grid, shown or hidden according to the choice `how`.

    Returns `how` and these controls in the order in which `plan` expects their values.
    """
    with gr.Column(elem_id="grid", elem_classes=HIDDEN) as grid:
        elements.note(gettext("Separate values with commas. An empty box keeps the form value."))
        with gr.Row():
            boxes = [
                gr.Textbox(
                    label=run_config.hyperparameters()[name].label, elem_id=f"grid-{name}",
                    max_lines=1, min_width=130, placeholder=example,
                )
                for name, example in zip(grids.GRID, _EXAMPLES, strict=True)
            ]  # fmt: skip
    with gr.Column(elem_id="several", elem_classes=HIDDEN) as several:
        seeds = elements.number_box(
            1, label=gettext("Seeds"), elem_id="seeds", min_width=165,
            info=gettext("Number of times to repeat the run, with seed, seed + 1 and so on."),
        )  # fmt: skip
        text = gettext(
            "They run one after the other. Runs that differ by the seed alone are one group under "
            "Runs, with mean and standard deviation."
        )
        elements.note(text)
    for part, kinds in ((several, (SEEDS, GRID)), (grid, (GRID,))):
        how.change(None, how, part, js=shown_for(kinds), **feedback.QUICK)
    # Choosing Seeds changes 1 to 3; choosing Grid resets the number to 1.
    script = (
        f"(how, seeds) => ({{{SEEDS}: seeds === '1' ? '3' : seeds, {GRID}: '1'}})[how] ?? seeds"
    )
    how.change(None, [how, seeds], seeds, js=script, **feedback.QUICK)
    how.change(None, None, None, js=theme.asset("show_options.js"), **feedback.QUICK)
    return [how, seeds, *boxes]


def shown_for(kinds: Sequence[str]) -> str:
    """JavaScript that shows a part if the choice is one of `kinds`, and hides it otherwise."""
    updates = json.dumps([gr.update(elem_classes=HIDDEN), gr.update(elem_classes=[])])
    return f"(how) => {updates}[+{json.dumps([*kinds])}.includes(how)]"


def plan(values: Sequence[Any]) -> list[PlannedRun]:
    """Plan the runs that a click on Train starts.

    Args:
        values: of the controls that `draw` returns, followed by those of the form.

    Raises:
        ConfigError: if a value is invalid.
    """
    how, seeds, *grid = values[:COUNT]
    config = form.read(values[COUNT:])
    by_name = dict(zip(grids.GRID, grid, strict=True)) if how == GRID else {}
    several = elements.number(seeds or 1, whole=True) if how in (SEEDS, GRID) else 1
    return grids.plan_runs(config, several, by_name)
