"""Several runs by one click on Train: seeds and a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from finetune import config as run_config
from finetune.runs import grids
from finetune.runs.grids import PlannedRun
from finetune.ui import elements, form
from finetune.ui.i18n import gettext

COUNT = 1 + len(grids.GRID)  # of the controls


def draw() -> list[Any]:
    """Draw the controls; in events their values come before the form's."""
    title = gettext("Several runs: seeds and a grid")
    with gr.Accordion(title, open=False, elem_id="several"):
        text = gettext(
            "They wait in the queue and run one after the other. Runs that differ by the seed "
            "alone are one group, with mean and standard deviation, under Runs."
        )
        elements.note(text)
        seeds = elements.number_box(
            1, label=gettext("Seeds"), elem_id="seeds", min_width=165,
            info=gettext("The same run so many times, with seed, seed + 1 and so on."),
        )  # fmt: skip
        grid = [
            gr.Textbox(
                label=run_config.hyperparameters()[name].label, elem_id=f"grid-{name}",
                max_lines=1, min_width=165,
                info=gettext("With commas between; empty for the form's own."),
            )
            for name in grids.GRID
        ]  # fmt: skip
    return [seeds, *grid]


def plan(values: Sequence[Any]) -> list[PlannedRun]:
    """Plan the runs of a click on Train from these controls' and the form's values. Raises
    `ConfigError`."""
    seeds, *grid = values[:COUNT]
    config = form.read(values[COUNT:])
    by_name = dict(zip(grids.GRID, grid, strict=True))
    return grids.plan_runs(config, elements.number(seeds or 1, whole=True), by_name)
