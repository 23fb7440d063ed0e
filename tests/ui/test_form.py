"""The form shows what is automatic as that, and reads it back."""

from __future__ import annotations

import re
from pathlib import Path

import gradio as gr
import pytest

from finetune.config import PRESETS, RunConfig, hyperparameters, preset
from finetune.runs.store import RunStore
from finetune.ui import form, run_view


def shown(store: RunStore, config: RunConfig) -> dict[str, object]:
    values = form.filled(store, config)[:-1]
    return {
        name: value["value"] if isinstance(value, dict) else value
        for name, value in zip(form.NAMES, values, strict=True)
    }


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_shown_is_read_back(tmp_path: Path, name: str) -> None:
    config = RunConfig(**preset(name), dataset="glue/mrpc", adam_beta1=0.8)
    assert form.read(list(shown(RunStore(tmp_path), config).values())) == config


def test_no_box_shows_a_number_that_stands_for_automatic(tmp_path: Path) -> None:
    values = shown(RunStore(tmp_path), RunConfig(dropout=-1))
    automatic = ("learning_rate", "per_device_train_batch_size", "num_train_epochs",
                 "max_steps", "warmup_steps", "dropout", "eval_steps",
                 "save_steps", "early_stopping_patience", "pad_to_multiple_of")  # fmt: skip
    assert {values[name] for name in automatic} == {""}
    assert "-1" not in values.values()
    assert form.read(list(values.values())).dropout == -1


@pytest.mark.parametrize("preset_name", PRESETS)
def test_no_box_of_a_preset_shows_a_number_that_is_no_amount(
    tmp_path: Path, preset_name: str
) -> None:
    """A chooser shows the words that it has for a value."""
    with gr.Blocks():
        controls = form.draw_advanced(form.draw_common())
    values = shown(RunStore(tmp_path), RunConfig(**preset(preset_name)))
    for name, field in hyperparameters().items():
        if field.words:
            choices = getattr(controls[name], "choices", [])
            text = {value: label for label, value in choices}.get(values[name], values[name])
            assert text not in {str(value) for value in field.words}


@pytest.mark.parametrize("name", [n for n, f in hyperparameters().items() if f.words])
def test_a_value_that_is_no_amount_is_shown_in_words(name: str) -> None:
    field = hyperparameters()[name]
    for value, word in field.words.items():
        assert run_view.setting_text(name, value) == word
        assert not re.search(r"(?<![\w.])-1\b", field.help)
    empty = next(iter(field.words))
    assert form._shown(name, empty) == ""
    assert getattr(form.read([""], [name]), name) == empty
