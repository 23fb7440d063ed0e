from __future__ import annotations

import argparse
import dataclasses
import shlex
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finetune import config
from finetune.config import RunConfig
from finetune.errors import ConfigError


def test_the_defaults_are_the_recommended_preset() -> None:
    assert config.PRESETS[config.DEFAULT_PRESET] == {}
    assert RunConfig().changed(**config.preset(config.DEFAULT_PRESET)) == RunConfig().check()
    for name in config.PRESETS:
        RunConfig().changed(**config.preset(name)).check()


def test_every_field_is_explained() -> None:
    for name, knob in config.knobs().items():
        assert knob.help.endswith("."), name
        if config.field_type(name) in (int, float):
            assert knob.low is not None, name
            assert knob.high is not None, name


def test_every_knob_has_a_line_of_help_and_a_range_its_default_lies_in() -> None:
    for name, knob in config.knobs().items():
        default = getattr(RunConfig(), name)
        assert "\n" not in knob.help, name
        assert 20 <= len(knob.help) <= 100, name
        assert knob.help[0].isupper() or knob.help.split()[0] in knob.choices, name
        if knob.choices:
            assert default in knob.choices, name
        if config.field_type(name) in (int, float):
            assert knob.low is not None, name
            assert knob.high is not None, name
            assert knob.low <= default <= knob.high, name
            assert knob.low < knob.high, name
        if knob.usual:
            low, high = knob.usual
            assert knob.low is not None, name
            assert knob.high is not None, name
            assert knob.low <= low <= default <= high <= knob.high, name
            for preset in config.PRESETS.values():
                assert low <= preset.get(name, default) <= high, name


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_dict(
            {"learning_rate": "fast", "num_train_epochs": 0, "lr_scheduler_type": "zigzag", "lr": 1}
        )
    assert list(caught.value.problems) == [
        "learning_rate",
        "num_train_epochs",
        "lr_scheduler_type",
        "lr",
    ]
    assert "must be at least 1, got 0" in str(caught.value)
    assert "'fast'" in str(caught.value)


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
    parser = argparse.ArgumentParser()
    config.add_arguments(parser)
    words = ["--learning_rate", "1e-4", "--no-decay_biases_and_norms", "--dataset", "glue/mrpc"]
    read = config.from_arguments(parser.parse_args(words))
    assert read == RunConfig(learning_rate=1e-4, decay_biases_and_norms=False, dataset="glue/mrpc")
    text = parser.format_help()
    assert all(f"--{f.name}" in text for f in dataclasses.fields(RunConfig))


VALUES = st.none() | st.integers() | st.floats() | st.text(max_size=20)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(list(config.knobs())), VALUES)
def test_any_value_is_read_or_refused(name: str, value: Any) -> None:
    problems = _problems({name: value})
    assert problems.keys() <= {name}
    assert all("got" in text or "is empty" in text for text in problems.values())


def _problems(values: dict[str, Any]) -> dict[str, str]:
    try:
        return RunConfig.from_dict(values).problems()
    except ConfigError as error:
        return error.problems


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
    line = shlex.split(config.command(chosen))
    assert line[:4] == ["python", "-m", "finetune", "train"]
    parser = argparse.ArgumentParser()
    config.add_arguments(parser)
    assert config.from_arguments(parser.parse_args(line[4:])) == chosen


def test_a_command_names_ones_own_files() -> None:
    chosen = RunConfig(dataset="upload/" + "a" * 24, label_column="same")
    assert config.command(chosen, {"train": "my tickets.csv"}) == (
        "python -m finetune train --train_file 'my tickets.csv' --label_column same"
    )
