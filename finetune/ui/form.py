"""The hyperparameter form, drawn from `RunConfig`: one control for each field, with its help."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gradio as gr
from markupsafe import Markup

from finetune import config as run_config
from finetune import owners
from finetune.config import DATA_FIELDS, READING_FIELDS, SOURCE_FIELDS, RunConfig, is_upload
from finetune.data import catalog, checkpoint_catalog
from finetune.findings import shorten
from finetune.metrics.catalog import OPTIONAL
from finetune.runs.store import RunStore
from finetune.tasks.registry import TASKS
from finetune.ui import elements, html
from finetune.ui.i18n import gettext

NAMES = tuple(run_config.hyperparameters())
# Normally set by a flag, a file or a program. One is shown once a loaded configuration changes it.
EXPERT = run_config.fields_of("Expert")
READING = tuple(name for name in READING_FIELDS if name != "sheet")
_SUGGESTED = {
    "delimiter": (",", ";", "tab", "|"),
    "quote": ('"', "'", "none", "escaped"),
    "encoding": ("utf-8", "utf-16", "cp1252", "cp1250", "cp1251", "cp1254", "mac_roman", "cp932",
                 "euc_jp", "cp949", "gb18030", "big5"),
}  # fmt: skip
UPLOADS = 10  # the newest, offered by a dataset chooser
Controls = dict[str, gr.components.Component]  # by field name


def draw_common() -> Controls:
    """Draw the fields of the group Common."""
    common = run_config.fields_of("Common")
    wide = [name for name in common if run_config.hyperparameters()[name].kind is str]
    controls = {name: _control(name) for name in wide}
    return controls | draw_in_pairs([name for name in common if name not in wide])


def draw_search() -> None:
    """Draw the box that finds a setting; `assets/page.js` searches and says how many are left."""
    elements.text_box("Find a setting", "find-knob", placeholder="By its name or what it does")
    names = [f"{name} {run_config.hyperparameters()[name].label}" for name in DATA_FIELDS[1:]]
    text = Markup('<p role="status" hidden data-elsewhere="{}">{}</p>')
    gr.HTML(text.format(json.dumps(names), "settings shown:"), elem_id="knobs-shown")
    elsewhere = gr.Button("More under Data", elem_id="knobs-elsewhere", size="sm")
    script = "() => document.querySelector('#tabs [data-tab-id=data]').click()"
    elsewhere.click(None, js=script, api_visibility="private")


def draw_advanced(drawn: Controls) -> Controls:
    """Draw the controls not `drawn` yet. Returns all, in declared order."""
    groups: dict[str, list[str]] = {}
    for name, field in run_config.hyperparameters().items():
        if name not in drawn:
            groups.setdefault(field.group, []).append(name)
    # Hidden values with which the browser marks the controls that differ from the preset.
    word = Markup("<p>{}</p>").format("preset:")
    gr.HTML(word, elem_id="preset-word", elem_classes="ft-unseen")
    for name in run_config.PRESETS:  # the names are the same in every language
        preset = run_config.preset(name)
        values = json.dumps(
            {field: "" if _shown(field, value) == "" else value for field, value in preset.items()}
        )
        data = Markup('<p data-preset="{}">{}</p>').format(values, name)
        gr.HTML(data, elem_classes="ft-unseen")
    for name, field in run_config.hyperparameters().items():
        for meaning, value in _words(name) if len(field.words) > 1 else ():
            data = Markup('<p data-word-of="{}" data-value="{}">{}</p>').format(
                name, value, meaning
            )
            gr.HTML(data, elem_classes="ft-unseen")
    controls = dict(drawn)
    for group, names in groups.items():
        plain = len(names) == 1 or group == "Expert"
        with (
            gr.Column(elem_classes="ft-knobs")
            if plain
            else gr.Accordion(group, open=False, elem_classes="ft-knobs")
        ):
            controls |= draw_in_pairs(names)
    return {name: controls[name] for name in NAMES}


def draw_data() -> tuple[Controls, gr.Accordion]:
    """Draw the controls that choose what to read from a source and which rows to use. Returns them,
    and the accordion with the reading options."""
    columns = [
        name for name in DATA_FIELDS if name.endswith(("_column", "_label", "sheet", "task"))
    ]
    hub = [name for name in SOURCE_FIELDS[1:] if name not in (*columns, *READING)]
    rows = [name for name in DATA_FIELDS[1:] if name not in (*columns, *READING, *hub)]
    controls: Controls = {}
    boxes: dict[str, gr.Accordion] = {}
    for part, title, names in (
        ("columns", "Columns", columns),
        ("reading", "How the file is read", READING),
        ("rows", "Rows", rows),
        ("hub", "Hub dataset: configuration, revision, splits", hub),
    ):
        with gr.Accordion(title, open=part == "columns", elem_id=f"part-{part}") as boxes[part]:
            controls |= draw_in_pairs(names)
    return controls, boxes["reading"]


def draw_in_pairs(names: Sequence[str], prefix: str = "knob-") -> Controls:
    """Draw the controls of fields, two in a row, with ids that begin with `prefix`."""
    return {name: _control(name, prefix) for name in elements.two_in_a_row(names)}


def _control(name: str, prefix: str = "knob-") -> gr.components.Component:
    field, default = run_config.hyperparameters()[name], getattr(RunConfig(), name)
    is_column = name.endswith("_column")
    # Hidden until there are several sheets, or a configuration changes an expert field.
    hidden = (*EXPERT, "sheet")
    common: dict[str, Any] = {
        "value": default,
        "label": field.label,
        "info": f"`{name}` {field.help}",
        "elem_id": f"{prefix}{name}",
        "min_width": 190 if is_column else 165,  # names of columns are long
        "interactive": True,
        "visible": name not in hidden,
    }
    if name == "dataset":
        return gr.Dropdown(datasets(), allow_custom_value=True, **common)
    if name == "task":
        choices = [(gettext(task.title), task.name) for task in TASKS.values()]
        return gr.Dropdown([(gettext("guessed"), ""), *choices], **common)
    if name == "checkpoint":
        choices = [
            (checkpoint.label, checkpoint.name) for checkpoint in checkpoint_catalog.CHECKPOINTS
        ]
        return gr.Dropdown(choices, allow_custom_value=owners.policy().any_checkpoint, **common)
    if is_column or name in ("positive_label", "sheet", *_SUGGESTED):
        guessed = is_column or name in _SUGGESTED
        unset = gettext("guessed") if guessed else gettext("default")
        choices = [(value, value) for value in _SUGGESTED.get(name, ())]
        return gr.Dropdown([(unset, ""), *choices], allow_custom_value=True, **common)
    if field.choices:
        return gr.Dropdown(list(field.choices), **common)
    if field.kind is bool:
        return gr.Checkbox(**common)
    if field.kind is str:
        names = " ".join(metric.name for metric in OPTIONAL) if name == "metrics" else None
        return gr.Textbox(max_lines=1, placeholder=names, **common)
    # No minimum and maximum here: RunConfig names all problems at once, in place.
    if len(field.words) > 1:
        common["value"] = _shown(name, default)
        return gr.Dropdown(list(_words(name)), allow_custom_value=True, **common)
    word = next(iter(field.words.values()), "")  # of an empty box
    return elements.number_box(
        **common | {"value": _shown(name, default)}, placeholder=gettext(word) or None
    )


def _words(name: str) -> Iterator[tuple[str, str]]:
    """Yield what a field's values that are no amounts mean, and what its control has for each."""
    for value, word in run_config.hyperparameters()[name].words.items():
        yield gettext(word), _shown(name, value)


def _shown(name: str, value: Any) -> Any:
    """Return a field's value as its control shows it."""
    field = run_config.hyperparameters()[name]
    if field.kind not in (int, float):
        return value
    return "" if value == next(iter(field.words), None) else str(value)


def choosing_preset() -> str:
    """JavaScript that turns a preset's name into its values, in the order of the form. It runs in
    the browser, so that no late answer of the server overwrites newer input."""
    presets = {
        name: {field: _shown(field, value) for field, value in run_config.preset(name).items()}
        for name in run_config.PRESETS
    }
    return f"(name) => Object.values({json.dumps(presets)}[name])"


def datasets(store: RunStore | None = None, name: str = "") -> list[tuple[str, str]]:
    """Return the choices of a dataset chooser as (label, name). With a `store`, they include the
    visitor's newest uploads, and the selected dataset `name` if it is an older one."""
    choices = [(gettext(dataset.label), dataset.name) for dataset in catalog.DATASETS]
    if store is None:
        return choices
    own = []
    for upload in store.uploads.newest(UPLOADS):
        parts = _file_names(upload.file_names), html.size(upload.size), html.when(upload.when)
        own.append((" \u00b7 ".join(parts), upload.name))
    if is_upload(name) and name not in dict(own).values():
        own.append((_file_names(store.uploads.file_names(name)), name))
    return [*choices[:1], *own, *choices[1:]]


def _file_names(files: Mapping[str, str]) -> str:
    return shorten(gettext("Your files: {names}", names=", ".join(files.values())), 60)


def read(values: Sequence[Any], names: Sequence[str] = NAMES) -> RunConfig:
    """Read the values of some controls. A ConfigError names each that cannot be read."""
    return RunConfig(
        **{name: _given(name, value) for name, value in zip(names, values, strict=True)}
    )


def _given(name: str, value: Any) -> Any:
    """Return a field's value from its control's value, the reverse of `_shown`."""
    field = run_config.hyperparameters()[name]
    if field.words and not str(value).strip():
        return next(iter(field.words))
    return elements.decimal(value) if field.kind is float else value


def filled(boxes: Sequence[Any], store: RunStore, config: RunConfig) -> dict[Any, Any]:
    """Updates that put a configuration into `boxes`: the form's controls, Data's chooser of pairs
    and, to show the form, the page's tabs."""
    choices = datasets(store, config.dataset)
    # Two updates: Gradio empties the one it has used.
    dataset, pairs = (gr.update(choices=choices, value=config.dataset) for _ in range(2))
    values = {name: _shown(name, value) for name, value in config.to_dict().items()}
    values |= {"dataset": dataset}
    for name in EXPERT:
        if getattr(config, name) != getattr(RunConfig(), name):
            values[name] = gr.update(value=values[name], visible=True)
    updates = [*(values[name] for name in NAMES), pairs, gr.Tabs(selected="train")]
    return dict(zip(boxes, updates, strict=False))
