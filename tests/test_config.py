"""Configurations, whose machine the app is on, and the texts of both."""

import argparse
import math
import shlex
from dataclasses import astuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finetune import arguments, config, owners
from finetune.config import RunConfig
from finetune.errors import ConfigError
from finetune.owners import LOCAL_USER, Policy, SharedApp, Visitor


def test_all_problems_are_named_at_once():
    schedulers = config.hyperparameters()["lr_scheduler_type"].choices
    with pytest.raises(ConfigError) as caught:
        RunConfig().changed(
            learning_rate="fast", num_train_epochs=-1, lr_scheduler_type="zigzag", lr=1
        )
    assert caught.value.problems == {
        "learning_rate": "must be a number, got 'fast'",
        "num_train_epochs": "must be at least 1, got -1",
        "lr_scheduler_type": f"must be one of {', '.join(schedulers)}, got 'zigzag'",
        "lr": "is not a hyperparameter of this version",
    }
    with pytest.raises(ConfigError) as caught:
        RunConfig().changed(learning_rate=True, seed=False, dropout="0,1", max_steps="1,000")
    commas = "must be a number with a point before its decimals and no commas, got"
    assert caught.value.problems == {
        "learning_rate": "must be a number, got true",
        "seed": "must be a whole number, got false",
        "dropout": f"{commas} '0,1'",
        "max_steps": "must be a whole number, got '1,000'",
    }
    with pytest.raises(ConfigError, match=r"learning_rate must be 0 or at least 1e-08, got 1e-12"):
        RunConfig(learning_rate=1e-12)
    with pytest.raises(ConfigError, match="use_lora already freezes the model"):
        RunConfig(use_lora=True, frozen_layers=1)
    with pytest.raises(ConfigError, match="must be a JSON object"):
        RunConfig.from_json("[" * 100_000)
    read = RunConfig().changed(learning_rate="7e-5", num_train_epochs=3.0, seed="7")
    assert read == RunConfig(learning_rate=7e-5, seed=7, num_train_epochs=3)
    assert isinstance(read.num_train_epochs, int)
    assert RunConfig().changed(**config.preset(config.DEFAULT_PRESET)) == RunConfig()


def test_a_configuration_of_an_older_version_loads():
    """Without what is no longer there, which is told if it did anything."""
    plain, taught = '{"seed": 7, "teacher": ""}', '{"seed": 7, "teacher": "big"}'
    assert RunConfig.from_json(plain) == RunConfig.from_json(taught) == RunConfig(seed=7)
    assert config.retired_in(plain) == ""
    assert config.retired_in(taught).startswith("teacher: left out")
    assert RunConfig().changed(seed=7, teacher="") == RunConfig(seed=7)
    with pytest.raises(ConfigError, match="teacher is not a hyperparameter of this version"):
        RunConfig().changed(teacher="big")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(list(config.hyperparameters())),
    st.none() | st.integers() | st.floats() | st.text(max_size=20),
)
def test_any_value_is_read_or_refused(name, value):
    problems = {}
    try:
        RunConfig(**{name: value})
    except ConfigError as error:
        problems = error.problems
    assert problems.keys() <= {name}
    assert all("got" in text or "is empty" in text for text in problems.values())


@pytest.mark.parametrize(
    "values",
    [
        {"learning_rate": 3e-6, "seed": 7, "checkpoint": "owner/it's one", "adam_beta2": 0.98},
        {"freeze_embeddings": False, "gradient_checkpointing": True, "name": "--help na\u00efve"},
        config.preset("As the course"),
    ],
)
def test_a_command_and_a_file_start_the_same_run(values):
    original = RunConfig().changed(**values)
    assert RunConfig.from_json(original.to_json()) == original
    line = shlex.split(arguments.command(original))
    assert line[:4] == ["python", "-m", "finetune", "train"]
    parser = argparse.ArgumentParser()
    arguments.add_arguments(parser)
    assert all(f"--{name}" in parser.format_help() for name in config.hyperparameters())
    args = arguments.arguments_given(parser.parse_args(line[4:]))
    assert RunConfig(**args) == original
    own_files = original.changed(dataset="upload/" + "a" * 24)
    command = arguments.command(own_files, {"train": "my tickets.csv"})
    assert "--train_file 'my tickets.csv'" in command
    assert "--dataset" not in command


@pytest.mark.parametrize(
    ("variables", "kind"),
    [
        ({}, Policy),
        ({"FINETUNE_VISITORS": "0"}, Policy),
        ({"FINETUNE_VISITORS": "1"}, SharedApp),
        ({"SPACE_ID": "ada/app"}, SharedApp),
    ],
)
def test_the_environment_says_whose_machine_it_is(variables, kind, monkeypatch):
    for name in ("SPACE_ID", "FINETUNE_VISITORS"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert type(owners.policy()) is kind
    assert set(astuple(LOCAL_USER.policy.limits)) == {math.inf}
    assert LOCAL_USER.policy.worker_environment() == {}
    assert Policy().identify("ada", "browser:a") == LOCAL_USER


def test_a_visitor_is_limited_whatever_the_process_is(monkeypatch):
    monkeypatch.delenv(owners.ANY_CHECKPOINT, raising=False)
    monkeypatch.setenv("FINETUNE_MAX_RUNS", "3")
    monkeypatch.setenv("HF_TOKEN", "a secret")
    policy = Visitor(("user:ada",)).policy
    assert policy.limits.runs == 3
    assert [policy.owner_asks, policy.any_checkpoint, policy.stored_token] == [False] * 3
    assert policy.worker_environment() == {
        "FINETUNE_MAX_RUNS": "3", "FINETUNE_VISITORS": "1", "HF_TOKEN": "",
        "HUGGING_FACE_HUB_TOKEN": "", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    }  # fmt: skip
    monkeypatch.setenv(owners.ANY_CHECKPOINT, "1")
    assert Visitor().policy.any_checkpoint  # and so in the workers
    assert SharedApp().worker_environment()[owners.ANY_CHECKPOINT] == "1"
