"""What a click on Train will cost, as HTML: steps, time, memory, cut pairs, and the command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import psutil
from markupsafe import Markup

from finetune import arguments
from finetune import config as run_config
from finetune.config import RunConfig
from finetune.environment import devices
from finetune.jobs.cost import Estimate
from finetune.ui.html import render
from finetune.ui.run_view import duration

# The command stays unfolded when the form is changed.
SCRIPT = """
let open = false;
element.addEventListener('toggle', (event) => {
  if (event.target.matches('.ft-command')) open = event.target.open;
}, true);
watch('value', () => {
  const command = element.querySelector('.ft-command');
  if (command && command.open !== open) command.open = open;
});
"""


class GridCost(NamedTuple):
    """How many runs one click queues, and the seconds of all; None where one is unknown."""

    runs: int
    seconds: float | None


def costs(
    estimate: Estimate,
    config: RunConfig,
    grid: GridCost | None = None,
    files: Mapping[str, str] | None = None,
    runs_folder: str = "",
) -> Markup:
    """The estimate a line each, values that are seldom right, and the command that does the same.

    Args:
        files: split -> a person's own file, where the pairs are some.
        runs_folder: for the command; empty for the default.
    """
    return render(
        "costs.html",
        estimate=estimate,
        config=config,
        grid=grid,
        machine_memory=0 if devices.list_accelerators() else psutil.virtual_memory().total,
        unusual=[
            (name, getattr(config, name), *knob.usual)
            for name, knob in run_config.knobs().items()
            if knob.usual and not knob.usual[0] <= getattr(config, name) <= knob.usual[1]
        ],
        command="" if grid else arguments.command(config, files, runs_folder),
        duration=duration,
        rough_duration=_rough_duration,
    )


def _rough_duration(seconds: float) -> str:
    """`10 s`, `2 min`, `1 h 30 min`."""
    if seconds < 50:
        return duration(max(5, 5 * round(seconds / 5)))
    if seconds < 3570:
        return f"{max(1, round(seconds / 60))} min"
    return duration(600 * round(seconds / 600))
