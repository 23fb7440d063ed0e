"""The hyperparameter form, drawn from `RunConfig`: one control a field, its help beneath.

Knows how a field is asked for, not what is done with the answer.
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import gradio as gr

from finetune import config, uploads
from finetune.config import RunConfig, is_upload
from finetune.data import catalog
from finetune.hyperparameters import Knob
from finetune.runs.store import RunStore
from finetune.ui.i18n import gettext

# What the form asks for; the fields of the group Expert are set by a flag, a file or a program.
NAMES = tuple(name for name, knob in config.knobs().items() if knob.group != "Expert")


def draw(drawn: dict[str, gr.components.Component]) -> dict[str, gr.components.Component]:
    """All controls but those drawn elsewhere, inside the current layout.

    Args:
        drawn: what `draw_data` drew.

    Returns:
        All controls by field name, in the order of declaration, those of `drawn` included.
    """
    knobs = {name: config.knobs()[name] for name in NAMES if name not in drawn}
    controls = dict(drawn)
    common = [name for name, knob in knobs.items() if knob.group == "Common"]
    wide = [name for name in common if knobs[name].kind is str]
    for name in wide:
        controls[name] = _control(name, knobs[name])
    _draw_in_pairs([name for name in common if name not in wide], knobs, controls)
    rest = [name for name in knobs if name not in common]
    _draw_presets()
    with gr.Accordion("Advanced", open=False, elem_id="advanced"):
        _draw_search()
        for group in dict.fromkeys(knobs[name].group for name in rest):
            with gr.Column(elem_classes="ft-knobs"):
                gr.HTML(f'<h2 class="ft-group">{group}</h2>')
                _draw_in_pairs([n for n in rest if knobs[n].group == group], knobs, controls)
    return {name: controls[name] for name in NAMES}


def _draw_search() -> None:
    """The box that finds a setting, and what the browser says of them; `assets/page.js` does it."""
    gr.Textbox(
        label="Find a setting",
        info="One of those below, by its name or what it does; Esc shows all again.",
        elem_id="find-knob", max_lines=1,
    )  # fmt: skip
    gr.HTML('<p role="status">settings shown:</p>', elem_id="knobs-shown")


def _draw_presets() -> None:
    """What the browser compares the controls with, to mark those that differ from the preset."""
    gr.HTML("<p>preset:</p>", elem_id="preset-word", elem_classes="ft-unseen")
    for name, known in preset_values().items():  # by the name that is shown, in any language
        data = html.escape(json.dumps(known))
        gr.HTML(f'<p data-preset="{data}">{name}</p>', elem_classes="ft-unseen")


def preset_values() -> dict[str, dict[str, Any]]:
    """What each preset sets, for the browser, which marks what differs: the default preset whole,
    of the others what they have otherwise."""
    base = config.preset(config.DEFAULT_PRESET)
    return {
        name: base
        if name == config.DEFAULT_PRESET
        else {knob: value for knob, value in config.preset(name).items() if value != base[knob]}
        for name in config.PRESETS
    }


def choosing_preset() -> str:
    """What the browser does when a preset was chosen: its values, in the order of the form. No late
    answer of a server can take back what was typed since."""
    known = preset_values()
    base = json.dumps(known[config.DEFAULT_PRESET])
    return f"(name) => Object.values({{...{base}, ...{json.dumps(known)}[name]}})"


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
    """What a dataset chooser offers: label, name.

    Args:
        store: whose uploads are offered, the newest first after the bundled pairs; none for the
            page as everybody gets it.
        name: what is chosen; an upload is offered however old it is.

    Raises:
        DataError: when `name` is an upload that is not there.
    """
    offered = [(gettext(one.label), one.name) for one in catalog.DATASETS]
    if store is None:
        return offered
    mine = [(_upload(one), one.name) for one in store.uploads.newest(UPLOADS)]
    if is_upload(name) and name not in [one for _, one in mine]:
        mine.append((_files(store.uploads.called(name)), name))
    return [*offered[:1], *mine, *offered[1:]]


UPLOADS = 10  # offered; older ones are still found by the runs that were trained on them


def _files(called: dict[str, str]) -> str:
    said = gettext("Your files: {names}", names=", ".join(called.values()))
    return said if len(said) <= 60 else said[:59] + "\u2026"


def _upload(one: uploads.StoredUpload) -> str:
    """`Your files: tickets.csv · 1.2 MB · 2026-01-31 12:00`."""
    size = f"{one.size / 1e6:,.1f} MB" if one.size >= 100_000 else f"{one.size / 1e3:,.1f} KB"
    size = size if one.size >= 1000 else f"{one.size} B"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.when))
    return f"{_files(one.called)} \u00b7 {size} \u00b7 {when}"


def offered(store: RunStore) -> list[Any]:
    """Updates as `filled` gives them that offer the visitor's own uploads, if there are any, and
    choose nothing."""
    choices = datasets(store)
    untouched = [gr.skip()] * (len(NAMES) + 1)
    if len(choices) > len(catalog.DATASETS):
        for place in (NAMES.index("dataset"), -1):
            untouched[place] = gr.update(choices=choices)
    return untouched


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
    return [getattr(chosen, name) for name in NAMES]


def filled(store: RunStore, chosen: RunConfig) -> list[Any]:
    """Updates that put a configuration into the controls, in the order of `NAMES`, and into Data's
    chooser of pairs.

    Raises:
        DataError: when its pairs are an upload that is not there.
    """
    shown = dict(zip(NAMES, values(chosen), strict=True))
    choices = datasets(store, chosen.dataset)
    shown["dataset"] = gr.update(choices=choices, value=chosen.dataset)
    # Another update of the same: Gradio empties the one it has used.
    return [*shown.values(), gr.update(choices=choices, value=chosen.dataset)]


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
    kind = knob.kind
    if kind is bool:
        return gr.Checkbox(**common)
    if kind is str:
        return gr.Textbox(max_lines=1, **common)
    # No minimum and maximum here: RunConfig says all problems at once, in place.
    return gr.Number(step=1 if kind is int else default / 5 or 0.01, **common)
