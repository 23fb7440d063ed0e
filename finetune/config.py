"""`RunConfig`: every hyperparameter, declared once.

The form, the command line, `config.json` and the model card's table are all drawn from these
fields. Nothing here knows torch, a file or a page.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shlex
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from finetune import json_files
from finetune.errors import ConfigError


@dataclass(frozen=True)
class Knob:
    """How one field is explained and bounded; lives in the field's metadata.

    Args:
        help: one line: what it does and when to change it.
        group: the part of the form it belongs to.
        low, high: bounds of a number, both allowed.
        choices: the values allowed, for a text.
        common: drawn in sight rather than under Advanced.
        usual: between which values nearly all runs lie, both included; beyond is said, not refused.
    """

    help: str
    group: str = "Training"
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    common: bool = False
    usual: tuple[float, float] | None = None


def knob(default: Any, help: str, **details: Any) -> Any:
    """A dataclass field that carries its `Knob`."""
    return dataclasses.field(default=default, metadata={"knob": Knob(help, **details)})


BUNDLED_DATASET = "bundled"
BUNDLED_CHECKPOINT = "all-MiniLM-L6-v2 (bundled)"
UPLOAD_PREFIX = "upload/"  # before the name of files that a person brought
NO_COLUMN = "(none)"  # says outright that there is no such column or split; empty means: guess

# All of get_scheduler's but `greedy`, which wants the loss at every step.
SCHEDULERS = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "constant",
    "constant_with_warmup",
    "polynomial",
    "inverse_sqrt",
    "warmup_stable_decay",
    "reduce_lr_on_plateau",
)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, whole. The defaults are the preset Recommended; the Hugging Face course's own loop
    is the preset As the course.

    Raises:
        ConfigError: from `check`, naming every field that is wrong.
    """

    dataset: str = knob(
        BUNDLED_DATASET,
        "What to learn from: one offered, your files (see Data), or a Hub id as owner/name.",
        group="What",
        common=True,
    )
    checkpoint: str = knob(
        BUNDLED_CHECKPOINT,
        "The pretrained model to start from: one offered, a Hub id, or a folder.",
        group="What",
        common=True,
    )
    learning_rate: float = knob(
        5e-5,
        "Peak step size of AdamW. Lower it when the loss jumps, raise it when it hardly falls.",
        usual=(1e-6, 1e-3),
        low=1e-8,
        high=1.0,
        common=True,
    )
    num_train_epochs: int = knob(
        3,
        "Passes over the training pairs. A few thousand may need 5; the best one is kept.",
        usual=(1, 20),
        low=1,
        high=1000,
        common=True,
    )
    per_device_train_batch_size: int = knob(
        8,
        "Pairs a step on each device. Larger is faster on a GPU and takes more memory.",
        low=1,
        high=4096,
        common=True,
    )
    max_length: int = knob(
        128,
        "Longest pair in tokens; what is beyond is cut. Shorter is faster.",
        low=8,
        high=8192,
        common=True,
    )
    seed: int = knob(
        42,
        "Fixes the order of the pairs, the new classifier's weights and dropout.",
        low=0,
        high=2**31 - 1,
        common=True,
    )
    max_steps: int = knob(
        -1,
        "Stop after this many optimizer steps; -1 leaves it to num_train_epochs.",
        low=-1,
        high=10_000_000,
    )
    gradient_accumulation_steps: int = knob(
        1,
        "Batches summed before each step: a larger batch in the same memory.",
        low=1,
        high=1024,
    )
    weight_decay: float = knob(
        0.01,
        "Pull of AdamW towards zero. 0.01 is AdamW's own default.",
        usual=(0.0, 0.3),
        low=0.0,
        high=1.0,
    )
    decay_biases_and_norms: bool = knob(
        False,
        "Decay every parameter, as the course does; off spares biases and norms.",
    )
    warmup_ratio: float = knob(
        0.06,
        "Share of the steps in which the rate rises from 0. More when the start is unstable.",
        usual=(0.0, 0.5),
        low=0.0,
        high=1.0,
    )
    warmup_steps: int = knob(
        0,
        "Steps in which the rate rises from 0, in place of warmup_ratio; 0 leaves it to that.",
        low=0,
        high=10_000_000,
    )
    lr_scheduler_type: str = knob(
        "linear",
        "How the rate goes on after the warm-up; linear and cosine suit most runs.",
        choices=SCHEDULERS,
    )
    optim: str = knob(
        "adamw_torch_fused",
        "AdamW plain or fused (faster), with 8-bit states (CUDA, bitsandbytes), or Adafactor.",
        choices=("adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adafactor"),
    )
    adam_beta1: float = knob(
        0.9, "Memory of AdamW's mean of gradients. Seldom changed.", low=0.0, high=0.9999
    )
    adam_beta2: float = knob(
        0.999,
        "Memory of AdamW's mean of squares. 0.98 reacts faster, with a larger batch.",
        low=0.0,
        high=0.999999,
    )
    adam_epsilon: float = knob(
        1e-8, "Keeps AdamW from dividing by nothing. 1e-6 is steadier.", low=1e-16, high=0.1
    )
    max_grad_norm: float = knob(
        1.0,
        "Clip the gradient's norm to this, which tames sudden jumps; 0 does not clip.",
        low=0.0,
        high=1000.0,
    )
    label_smoothing_factor: float = knob(
        0.0,
        "Aim at less than certainty: 0.1 helps where labels are noisy.",
        usual=(0.0, 0.3),
        low=0.0,
        high=0.9,
    )
    class_weights: str = knob(
        "none",
        "balanced weighs the loss of each class by its rarity: try it where one is rare.",
        choices=("none", "balanced"),
    )
    swap_augmentation: bool = knob(
        False,
        "Train on both orders of every pair: twice the steps; where order means nothing only.",
    )
    deterministic: bool = knob(
        False,
        "Forbid operations whose result varies from run to run; slower on a GPU.",
    )
    dropout: float = knob(
        0.0,
        "Dropout in the model; -1 keeps the checkpoint's. 0 is fastest, 0.1 serves many epochs.",
        group="Model",
        low=-1.0,
        high=0.9,
    )
    freeze_embeddings: bool = knob(
        True,
        "Leave the word embeddings as they are: less memory, faster. Off for words of a new field.",
        group="Model",
    )
    frozen_layers: int = knob(
        0,
        "Leave so many of the lowest layers as they are.",
        group="Model",
        low=0,
        high=200,
    )
    attn_implementation: str = knob(
        "auto",
        "How attention is computed; auto takes the fastest the model has.",
        group="Model",
        choices=("auto", "sdpa", "eager", "flash_attention_2"),
    )
    use_lora: bool = knob(
        False,
        "Train small added matrices (LoRA), not all weights: less memory for large checkpoints.",
        group="Model",
    )
    lora_r: int = knob(
        16, "Rank of LoRA's matrices; more can learn more.", group="Model", low=1, high=1024
    )
    lora_alpha: int = knob(
        32, "LoRA's scale; about twice the rank.", group="Model", low=1, high=4096
    )
    lora_dropout: float = knob(
        0.05, "Dropout before LoRA's matrices.", group="Model", low=0.0, high=0.9
    )
    lora_target_modules: str = knob(
        "",
        "Names of the layers LoRA changes, with commas between; empty for all linear ones.",
        group="Model",
    )
    per_device_eval_batch_size: int = knob(
        32,
        "Pairs a batch when scoring the validation split.",
        group="Evaluation",
        low=1,
        high=4096,
    )
    eval_steps: int = knob(
        0,
        "Score the validation split every so many steps; 0 does it after each epoch.",
        group="Evaluation",
        low=0,
        high=10_000_000,
    )
    save_steps: int = knob(
        0,
        "Write a checkpoint to resume from every so many steps; 0 does it at each evaluation.",
        group="Evaluation",
        low=0,
        high=10_000_000,
    )
    save_total_limit: int = knob(
        1,
        "Keep so many of the latest checkpoints while the run goes on; it resumes from the last.",
        group="Evaluation",
        low=1,
        high=1000,
    )
    logging_steps: int = knob(
        5,
        "Report the mean training loss every so many steps.",
        group="Evaluation",
        low=1,
        high=100_000,
    )
    metric_for_best_model: str = knob(
        "f1",
        "The validation score that decides which model is kept.",
        group="Evaluation",
        choices=("f1", "accuracy", "loss"),
    )
    early_stopping_patience: int = knob(
        0,
        "End after so many evaluations without a better score; 0 goes to the end.",
        group="Evaluation",
        low=0,
        high=1000,
    )
    report_to: str = knob(
        "none",
        "Also send what is measured to TensorBoard (files in the run's folder), Trackio or W&B.",
        group="Evaluation",
        choices=("none", "tensorboard", "trackio", "wandb"),
    )
    mixed_precision: str = knob(
        "auto",
        "auto takes bf16 where the hardware has it, else fp32 (no); fp16 is for older GPUs.",
        group="Speed",
        choices=("auto", "no", "bf16", "fp16"),
    )
    group_by_length: bool = knob(
        True,
        "Batches of pairs of about one length: less padding, faster; the order is less random.",
        group="Speed",
    )
    padding: str = knob(
        "longest",
        "longest pads a batch to its longest pair; max_length gives one shape, for TPUs.",
        group="Speed",
        choices=("longest", "max_length"),
    )
    pad_to_multiple_of: int = knob(
        8,
        "Round lengths up to a multiple of this; 8 suits GPU tensor cores, 0 does not.",
        group="Speed",
        low=0,
        high=1024,
    )
    gradient_checkpointing: bool = knob(
        False,
        "Compute activations twice rather than keep them: less memory, a third slower.",
        group="Speed",
    )
    torch_compile: bool = knob(
        False,
        "Compile the model: minutes at the start, faster steps on a GPU afterwards.",
        group="Speed",
    )
    auto_find_batch_size: bool = knob(
        False,
        "Find the largest batch that fits the memory; the pairs a step stay the same.",
        group="Speed",
    )
    num_processes: int = knob(
        1,
        "Processes that share each batch's work, one for each GPU; the batch size is each one's.",
        group="Speed",
        low=1,
        high=64,
    )
    accelerate_config: str = knob(
        "",
        "A file that `accelerate config` wrote, for FSDP or DeepSpeed; empty for none.",
        group="Speed",
    )
    dataset_config_name: str = knob(
        "",
        "Which configuration of a Hub dataset; empty for its only or its default one.",
        group="Data",
    )
    dataset_revision: str = knob(
        "",
        "Branch, tag or commit of a Hub dataset; empty for the newest.",
        group="Data",
    )
    train_split: str = knob("", "The split to train on; empty for train.", group="Data")
    validation_split: str = knob(
        "",
        "The split to score on; empty for validation or the like, else it is cut from train.",
        group="Data",
    )
    test_split: str = knob("", "The split kept for the very end; empty for test.", group="Data")
    sentence1_column: str = knob(
        "", "The column of the first sentence; empty to guess it from the names.", group="Data"
    )
    sentence2_column: str = knob(
        "",
        f"The column of the second sentence; {NO_COLUMN} for single sentences.",
        group="Data",
    )
    label_column: str = knob("", "The column of the class; empty to guess it.", group="Data")
    positive_label: str = knob(
        "",
        "Of two classes the one whose F1 is meant; empty for the second, such as 1 or yes.",
        group="Data",
    )
    validation_share: float = knob(
        0.1,
        "Share of train cut off for validation where there is no such split.",
        group="Data",
        low=0.01,
        high=0.5,
    )
    max_train_samples: int = knob(
        0,
        "Train on so many rows at most, drawn at random; 0 takes all.",
        group="Data",
        low=0,
        high=1_000_000_000,
    )
    max_eval_samples: int = knob(
        0,
        "Score on so many validation rows at most, drawn at random; 0 takes all.",
        group="Data",
        low=0,
        high=1_000_000_000,
    )
    data_seed: int = knob(
        42,
        "Fixes which rows are drawn and cut off; apart from seed, so that runs can be compared.",
        group="Data",
        low=0,
        high=2**31 - 1,
    )
    drop_duplicates: bool = knob(
        False, "Keep only the first of equal pairs in each split.", group="Data"
    )
    drop_leaked: bool = knob(
        False,
        "Leave out training pairs that stand in validation or test too, swapped or not.",
        group="Data",
    )
    name: str = knob(
        "",
        "A name to find the run by; made from dataset and checkpoint when empty.",
        group="What",
    )

    def check(self) -> RunConfig:
        """This configuration, if every value can be used.

        Raises:
            ConfigError: naming all the values that cannot.
        """
        if problems := self.problems():
            raise ConfigError(problems)
        return self

    def problems(self) -> dict[str, str]:
        """Field -> what is wrong with its value and what is allowed; empty when all is well."""
        found = {}
        for field in dataclasses.fields(self):
            if text := _problem(field, getattr(self, field.name)):
                found[field.name] = text
        return self._together() | found

    def _together(self) -> dict[str, str]:
        """What is wrong with two values that are each allowed."""
        found = {}
        if self.use_lora and self.frozen_layers:
            found["use_lora"] = "already freezes the model; set frozen_layers to 0"
        if self.dropout < 0 and self.dropout != -1:
            found["dropout"] = f"must be -1 or from 0 to 0.9, got {self.dropout:g}"
        return found

    def changed(self, **values: Any) -> RunConfig:
        """A copy with some values replaced."""
        return dataclasses.replace(self, **values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values by field name, in the order of declaration."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """The text of `config.json`."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        """A checked configuration from names and values as a form or a file gives them.

        A number may come as text, a whole number as a float: both are read as the field's type.

        Raises:
            ConfigError: naming every value of a wrong type or range and every unknown name.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        problems = {
            str(name): "is not a hyperparameter of this version"
            for name in values
            if name not in known
        }
        read: dict[str, Any] = {}
        for name in values.keys() & known.keys():
            try:
                read[name] = _read(field_type(name), values[name])
            except ValueError as error:
                problems[name] = str(error)
        config = cls(**read)
        problems = config.problems() | problems
        if problems:
            in_order = [*(name for name in known if name in problems), *problems]
            raise ConfigError({name: problems[name] for name in in_order})
        return config

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """The configuration of a `config.json`.

        Raises:
            ConfigError: for text that is not a JSON object, and as `from_dict`.
        """
        try:
            values = json_files.parse(text)
        except ValueError as error:
            raise ConfigError({"config.json": f"is not JSON: {error}"}) from None
        if not isinstance(values, dict):
            raise ConfigError({"config.json": "must be a JSON object of names and values"})
        return cls.from_dict(values)


# Values that differ from the fields' defaults, which are Recommended. What to train on, what
# belongs to the data and what is the machine's is nobody's to preset.
PRESETS: dict[str, dict[str, Any]] = {
    "Recommended": {},
    "As the course": {
        "warmup_ratio": 0.0,
        "max_grad_norm": 0.0,
        "optim": "adamw_torch",
        "decay_biases_and_norms": True,
        "dropout": -1.0,
        "freeze_embeddings": False,
        "per_device_eval_batch_size": 8,
        "mixed_precision": "no",
        "group_by_length": False,
        "pad_to_multiple_of": 0,
    },
    "Fast": {
        "per_device_train_batch_size": 32,
        "per_device_eval_batch_size": 64,
        "learning_rate": 1e-4,
        "max_length": 96,
    },
    "Small GPU (LoRA)": {
        "learning_rate": 3e-4,
        "per_device_eval_batch_size": 16,
        "gradient_checkpointing": True,
        "use_lora": True,
    },
    "CPU": {"max_length": 64, "num_train_epochs": 2},
}
DEFAULT_PRESET = "Recommended"


def preset(name: str) -> dict[str, Any]:
    """Every value a preset sets, those at their default included.

    Raises:
        KeyError: when there is no such preset.
    """
    fields = {field.name: field.default for field in dataclasses.fields(RunConfig)}
    machine = {"report_to", "num_processes", "accelerate_config"}
    kept = {"dataset", "checkpoint", "seed", "name", *machine, *DATA_FIELDS}
    return {name_: value for name_, value in fields.items() if name_ not in kept} | PRESETS[name]


# What is read, and from which columns.
SOURCE_FIELDS: tuple[str, ...] = (
    "dataset",
    "dataset_config_name",
    "dataset_revision",
    "train_split",
    "validation_split",
    "test_split",
    "sentence1_column",
    "sentence2_column",
    "label_column",
)
DATA_FIELDS: tuple[str, ...] = (
    "dataset",
    *(f.name for f in dataclasses.fields(RunConfig) if f.metadata["knob"].group == "Data"),
)


def too_many_steps(config: RunConfig, total: int, most: int) -> ConfigError:
    """The error of a run that would take more steps than one may."""
    name = "max_steps" if config.max_steps > 0 else "num_train_epochs"
    problem = f"makes {total:,} steps, and a run may take {most:,} here; lower it"
    return ConfigError({name: problem})


def knobs() -> dict[str, Knob]:
    """Field name -> its knob, in the order of declaration."""
    return {field.name: field.metadata["knob"] for field in dataclasses.fields(RunConfig)}


@cache
def _types() -> dict[str, type]:
    return typing.get_type_hints(RunConfig)


def field_type(name: str) -> type:
    """The type of a field: bool, int, float or str."""
    return _types()[name]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One option a field, `--learning_rate 5e-5`; booleans as `--flag` and `--no-flag`."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for field in dataclasses.fields(RunConfig):
        knob = field.metadata["knob"]
        group = groups.get(knob.group) or parser.add_argument_group(knob.group)
        groups[knob.group] = group
        text = f"{knob.help} (default: {field.default!r})".replace("%", "%%")
        if field_type(field.name) is bool:
            group.add_argument(
                f"--{field.name}",
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=text,
            )
        else:
            group.add_argument(
                f"--{field.name}",
                default=argparse.SUPPRESS,
                metavar=field_type(field.name).__name__,
                help=text + (f" one of: {', '.join(knob.choices)}" if knob.choices else ""),
            )


def from_arguments(namespace: argparse.Namespace) -> RunConfig:
    """The configuration of the options given; the rest keep their defaults.

    Raises:
        ConfigError: as `RunConfig.from_dict`.
    """
    given = vars(namespace)
    return RunConfig.from_dict({name: given[name] for name in knobs() if name in given})


def command(chosen: RunConfig, files: Mapping[str, str] | None = None, runs: str = "") -> str:
    """The line that starts the same run from a terminal: what is not the default.

    Args:
        files: split -> file, where the pairs are files of a person's own.
        runs: the folder of runs, where it is not the default.
    """
    words = ["python", "-m", "finetune", "train", *(["--runs", runs] if runs else [])]
    for split, file in (files or {}).items():
        words += [f"--{split}_file", file]
    defaults = RunConfig()
    for name, value in chosen.to_dict().items():
        if value == getattr(defaults, name) or (name == "dataset" and files):
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif (text := str(value)).startswith("-") or not text:
            words.append(f"--{name}={text}")  # else it would be taken for an option
        else:
            words += [f"--{name}", text]
    return shlex.join(words)


def _read(wanted: type, value: Any) -> Any:
    if wanted is bool:
        return _read_bool(value)
    if wanted is str:
        if isinstance(value, str):
            return value.strip()
        raise ValueError(f"must be a text, got {_shown(value)}")
    noun = "a whole number" if wanted is int else "a number"
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"must be {noun}, got {_shown(value)}")
    try:
        number = float(value)
        if wanted is int:
            if not number.is_integer():
                raise ValueError
            return int(number)
    except (ValueError, OverflowError):
        raise ValueError(f"must be {noun}, got {_shown(value)}") from None
    return number


def _read_bool(value: Any) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    word = str(value).strip().lower()
    if word not in words:
        raise ValueError(f"must be true or false, got {_shown(value)}")
    return words[word]


def _problem(field: dataclasses.Field[Any], value: Any) -> str:
    knob: Knob = field.metadata["knob"]
    if knob.choices and value not in knob.choices:
        return f"must be one of {', '.join(knob.choices)}, got {_shown(value)}"
    if field.name in {"dataset", "checkpoint"} and not value:
        return "is empty; choose one"
    if isinstance(value, str) and (len(value) > 300 or not value.isprintable()):
        return f"must be printable text of at most 300 characters, got {_shown(value)}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            return f"must be a finite number, got {_shown(value)}"
        if knob.low is not None and value < knob.low:
            return f"must be at least {knob.low:g}, got {value:g}"
        if knob.high is not None and value > knob.high:
            return f"must be at most {knob.high:g}, got {value:g}"
    if field.name == "max_steps" and value == 0:
        return "must be -1 or at least 1, got 0"
    return ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def is_upload(dataset: str) -> bool:
    """Whether a configuration's `dataset` names an upload."""
    return dataset.startswith(UPLOAD_PREFIX)
