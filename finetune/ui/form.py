"""The hyperparameter form, drawn from `RunConfig`: one control a field, its help beneath.

Knows how a field is asked for, not what is done with the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import gradio as gr

from finetune import catalog, config
from finetune.config import Knob, RunConfig

NAMES: tuple[str, ...] = tuple(config.knobs())


def draw() -> dict[str, gr.components.Component]:
    """All controls, inside the current layout; by field name, in the order of declaration."""
    knobs = config.knobs()
    controls: dict[str, gr.components.Component] = {}
    common = [name for name, knob in knobs.items() if knob.common]
    wide = [name for name in common if config.field_type(name) is str]
    for name in wide:
        controls[name] = _control(name, knobs[name])
    _draw_in_pairs([name for name in common if name not in wide], knobs, controls)
    with gr.Accordion("Advanced", open=False, elem_id="advanced"):
        _draw_in_pairs([name for name in knobs if name not in common], knobs, controls)
    return {name: controls[name] for name in NAMES}


def read(values: Sequence[Any]) -> RunConfig:
    """The configuration of the controls' values, in the order of `NAMES`.

    Raises:
        ConfigError: naming every value that cannot be used.
    """
    return RunConfig.from_dict(dict(zip(NAMES, values, strict=True)))


def values(chosen: RunConfig) -> list[Any]:
    """What the controls show for a configuration, in the order of `NAMES`."""
    return list(chosen.to_dict().values())


def _draw_in_pairs(
    names: Sequence[str], knobs: dict[str, Knob], controls: dict[str, gr.components.Component]
) -> None:
    for pair in zip_longest(names[::2], names[1::2]):
        with gr.Row(equal_height=False):
            for name in filter(None, pair):
                controls[name] = _control(name, knobs[name])


def _control(name: str, knob: Knob) -> gr.components.Component:
    default = getattr(RunConfig(), name)
    common: dict[str, Any] = {
        "value": default,
        "label": name,
        "info": knob.help,
        "elem_id": f"knob-{name}",
        "min_width": 140,
        "interactive": True,
    }
    if name == "dataset":
        return gr.Dropdown([(one.label, one.name) for one in catalog.DATASETS], **common)
    if name == "checkpoint":
        choices = [(one.label, one.name) for one in catalog.CHECKPOINTS]
        return gr.Dropdown(choices, allow_custom_value=True, **common)
    if knob.choices:
        return gr.Dropdown(list(knob.choices), **common)
    kind = config.field_type(name)
    if kind is bool:
        return gr.Checkbox(**common)
    if kind is str:
        return gr.Textbox(max_lines=1, **common)
    # No minimum and maximum here: RunConfig says all problems at once, in place.
    return gr.Number(step=1 if kind is int else default / 5 or 0.01, **common)
