"""What a click on Train will cost, as HTML: steps, time, memory, cut pairs, and the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psutil
from markupsafe import Markup

from finetune import arguments
from finetune import config as run_config
from finetune.config import RunConfig
from finetune.environment import devices
from finetune.jobs.cost import Estimate
from finetune.ui.html import render
from finetune.ui.i18n import gettext
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
_TIGHT_MEMORY = 0.8  # share of the machine's memory from which on there is a warning
_MANY_CUT = 0.05  # share of the pairs


@dataclass(frozen=True)
class GridCost:
    """Several runs of one click.

    Args:
        runs: how many.
        seconds: for all of them; None where one is unknown.
    """

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
        grid: where one click queues several runs.
        files: split -> a person's own file, where the pairs are some.
        runs_folder: for the command; empty for the default.
    """
    cut, memory = estimate.cut, estimate.memory
    machine = 0 if devices.list_accelerators() else psutil.virtual_memory().total
    return render(
        "costs.html",
        estimate=estimate,
        config=config,
        grid=grid,
        machine_memory=machine,
        memory_is_tight=bool(memory and machine and memory.total > _TIGHT_MEMORY * machine),
        many_are_cut=bool(cut and cut.share > _MANY_CUT),
        unusual=[
            (name, getattr(config, name), *knob.usual)
            for name, knob in run_config.knobs().items()
            if knob.usual and not knob.usual[0] <= getattr(config, name) <= knob.usual[1]
        ],
        command="" if grid else arguments.command(config, files, runs_folder),
        duration=duration,
        rough_duration=_rough_duration,
        memory_size=_memory_size,
        parameters=_parameter_count(estimate.parameters) if estimate.parameters else "",
    )


def cost_placeholder(estimate: Estimate, config: RunConfig) -> Markup:
    """Takes the same room on the page, with nothing to see or to hear."""
    return Markup('<div style="visibility:hidden" aria-hidden="true">{}</div>').format(
        costs(estimate, config)
    )


def _rough_duration(seconds: float) -> str:
    """`10 s`, `2 min`, `1 h 30 min`."""
    if seconds < 50:
        return duration(max(5, 5 * round(seconds / 5)))
    if seconds < 3570:
        return f"{max(1, round(seconds / 60))} min"
    return duration(600 * round(seconds / 600))


def _memory_size(count: int) -> str:
    """`840 MB`, `1.4 GB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _parameter_count(number: int) -> str:
    """`23 million parameters`, `1.5 billion parameters`."""
    if number >= 1e9:
        return gettext("{n:.1f} billion parameters", n=number / 1e9)
    if number >= 1e6:
        return gettext("{n:.0f} million parameters", n=number / 1e6)
    return gettext("{n:,} parameters", n=number)
