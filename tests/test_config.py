from __future__ import annotations

import argparse
import shlex
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finetune import arguments, config
from finetune.config import RunConfig
from finetune.errors import ConfigError


def parsed(words: list[str]) -> RunConfig:
    """The configuration of a command line's options."""
    parser = argparse.ArgumentParser()
    arguments.add_arguments(parser)
    assert all(f"--{name}" in parser.format_help() for name in config.knobs())
    return RunConfig.from_dict(arguments.arguments_given(parser.parse_args(words)))


def test_the_defaults_are_the_recommended_preset() -> None:
    assert config.PRESETS[config.DEFAULT_PRESET] == {}
    assert RunConfig().changed(**config.preset(config.DEFAULT_PRESET)) == RunConfig().check()
    for name in config.PRESETS:
        RunConfig().changed(**config.preset(name)).check()


def test_every_hyperparameter_has_a_line_of_help_and_a_range_its_default_lies_in() -> None:
    for name, knob in config.knobs().items():
        default: Any = RunConfig().to_dict()[name]
        assert "\n" not in knob.help, name
        assert 20 <= len(knob.help) <= 100, name
        assert knob.help.endswith("."), name
        assert knob.help[0].isupper() or knob.help.split()[0] in knob.choices, name
        assert knob.read(default) == default, name
        assert not knob.choices or default in knob.choices, name
        if knob.kind in (int, float):
            assert knob.low is not None, name
            assert knob.high is not None, name
            assert knob.low < knob.high, name
            usual: tuple[float, float] = knob.usual or (knob.low, knob.high)
            low, high = usual
            assert knob.low <= low <= default <= high <= knob.high, name
            presets = [preset[name] for preset in config.PRESETS.values() if name in preset]
            assert all(low <= value <= high for value in presets), name


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_dict(
            {"learning_rate": "fast", "num_train_epochs": 0, "lr_scheduler_type": "zigzag", "lr": 1}
        )
    assert caught.value.problems == {
        "learning_rate": "must be a number, got 'fast'",
        "num_train_epochs": "must be at least 1, got 0",
        "lr_scheduler_type": f"must be one of {', '.join(config.SCHEDULERS)}, got 'zigzag'",
        "lr": "is not a hyperparameter of this version",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", float("nan")),
        ("learning_rate", float("inf")),
        ("learning_rate", None),
        ("learning_rate", True),
        ("num_train_epochs", 2.5),
        ("num_train_epochs", "9" * 400),
        ("max_steps", 0),
        ("max_steps", -2),
        ("dropout", -0.5),
        ("seed", -1),
        ("dataset", ""),
        ("dataset", "x" * 301),
        ("checkpoint", "a\0b"),
        ("checkpoint", 7),
        ("decay_biases_and_norms", "perhaps"),
        ("warmup_ratio", 1.01),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_dict({name: value})
    assert list(caught.value.problems) == [name]


def test_values_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="use_lora already freezes the model"):
        RunConfig(use_lora=True, frozen_layers=1).check()


def test_numbers_may_come_as_text_and_as_floats() -> None:
    read = RunConfig.from_dict({"learning_rate": "5e-5", "num_train_epochs": 3.0, "seed": "7"})
    assert read == RunConfig(seed=7)
    assert isinstance(read.num_train_epochs, int)


def test_json_there_and_back() -> None:
    chosen = RunConfig(learning_rate=1e-4, name="na\u00efve")
    assert RunConfig.from_json(chosen.to_json()) == chosen


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '"x"'])
def test_json_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        RunConfig.from_json(text)


def test_the_command_line_has_every_field() -> None:
    words = ["--learning_rate", "1e-4", "--no-decay_biases_and_norms", "--dataset", "glue/mrpc"]
    assert parsed(words) == RunConfig(
        learning_rate=1e-4, decay_biases_and_norms=False, dataset="glue/mrpc"
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(list(config.knobs())),
    st.none() | st.integers() | st.floats() | st.text(max_size=20),
)
def test_any_value_is_read_or_refused(name: str, value: Any) -> None:
    problems: dict[str, str] = {}
    try:
        RunConfig.from_dict({name: value}).check()
    except ConfigError as error:
        problems = error.problems
    assert problems.keys() <= {name}
    assert all("got" in text or "is empty" in text for text in problems.values())


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"learning_rate": 3e-6, "seed": 7, "checkpoint": "owner/it's one"},
        {"freeze_embeddings": False, "gradient_checkpointing": True, "name": "--help me"},
        *(config.preset(name) for name in config.PRESETS),
    ],
)
def test_a_command_starts_the_same_run(values: dict[str, Any]) -> None:
    chosen = RunConfig().changed(**values)
    line = shlex.split(arguments.command(chosen))
    assert line[:4] == ["python", "-m", "finetune", "train"]
    assert parsed(line[4:]) == chosen


def test_a_command_names_ones_own_files() -> None:
    chosen = RunConfig(dataset="upload/" + "a" * 24, label_column="same")
    assert arguments.command(chosen, {"train": "my tickets.csv"}) == (
        "python -m finetune train --train_file 'my tickets.csv' --label_column same"
    )
