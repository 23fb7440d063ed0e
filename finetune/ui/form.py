"""The hyperparameter form, drawn from `RunConfig`: one control a field, its help beneath.

Knows how a field is asked for, not what is done with the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import gradio as gr

from finetune import catalog, config, uploads
from finetune.config import Knob, RunConfig
from finetune.store import RunStore

NAMES: tuple[str, ...] = tuple(config.knobs())


def draw(drawn: dict[str, gr.components.Component]) -> dict[str, gr.components.Component]:
    """All controls but those drawn elsewhere, inside the current layout.

    Args:
        drawn: what `draw_data` drew.

    Returns:
        All controls by field name, in the order of declaration, those of `drawn` included.
    """
    knobs = {name: knob for name, knob in config.knobs().items() if name not in drawn}
    controls = dict(drawn)
    common = [name for name, knob in knobs.items() if knob.common]
    wide = [name for name in common if config.field_type(name) is str]
    for name in wide:
        controls[name] = _control(name, knobs[name])
    _draw_in_pairs([name for name in common if name not in wide], knobs, controls)
    rest = [name for name in knobs if name not in common]
    with gr.Accordion("Advanced", open=False, elem_id="advanced"):
        for group in dict.fromkeys(knobs[name].group for name in rest):
            gr.HTML(f'<h3 class="ft-group">{_HEADINGS.get(group, group)}</h3>')
            _draw_in_pairs([n for n in rest if knobs[n].group == group], knobs, controls)
    return {name: controls[name] for name in NAMES}


_HEADINGS = {"What": "Name"}


def draw_data() -> dict[str, gr.components.Component]:
    """The controls that say what is read of a source and which rows are used, by field name."""
    knobs = {name: knob for name, knob in config.knobs().items() if knob.group == "Data"}
    controls: dict[str, gr.components.Component] = {}
    for title, names in _DATA_PARTS:
        with gr.Accordion(
            title, open=title == "Columns", elem_id=f"part-{title.split()[0].lower()}"
        ):
            _draw_in_pairs(names, knobs, controls)
    return controls


def datasets(store: RunStore | None = None, name: str = "") -> list[tuple[str, str]]:
    """What a dataset chooser offers: label, name; an upload by what its files are called."""
    offered = [(one.label, one.name) for one in catalog.DATASETS]
    if store is not None and uploads.is_upload(name):
        called = uploads.Uploads(store.root / "uploads").called(name)
        offered.append((f"Your files: {', '.join(called.values())}"[:80], name))
    return offered


_DATA_PARTS = (
    ("Columns", ("sentence1_column", "sentence2_column", "label_column", "positive_label")),
    (
        "Rows",
        (
            "max_train_samples",
            "max_eval_samples",
            "drop_duplicates",
            "drop_leaked",
            "validation_share",
            "data_seed",
        ),
    ),
    (
        "Hub dataset: configuration, revision, splits",
        (
            "dataset_config_name",
            "dataset_revision",
            "train_split",
            "validation_split",
            "test_split",
        ),
    ),
)


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
        "min_width": 165,
        "interactive": True,
    }
    if name == "dataset":
        return gr.Dropdown(datasets(), allow_custom_value=True, **common)
    if name.endswith("_column") or name == "positive_label":
        common["min_width"] = 190  # names of columns are long
        guess = "guessed" if name.endswith("_column") else "default"
        return gr.Dropdown([(guess, "")], allow_custom_value=True, **common)
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
