"""`RunConfig`: every hyperparameter, declared once.

The form, the command line, `config.json` and the model card's table are drawn from these fields.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from finetune import json_files
from finetune.errors import ConfigError
from finetune.hyperparameters import Between, Knob, describe_field, hyperparameter
from finetune.messages import message as _

BUNDLED_DATASET = "bundled"
BUNDLED_CHECKPOINT = "all-MiniLM-L6-v2 (bundled)"
UPLOAD_PREFIX = "upload/"  # before the name of uploaded files
NO_COLUMN = "(none)"  # there is no such column or split; an empty text means: guess it

# All of get_scheduler's but `greedy`, which needs the loss at every step.
Scheduler = Literal[
    "linear", "cosine", "cosine_with_restarts", "cosine_with_min_lr",
    "cosine_warmup_with_min_lr", "constant", "constant_with_warmup", "polynomial",
    "inverse_sqrt", "warmup_stable_decay", "reduce_lr_on_plateau",
]  # fmt: skip
SCHEDULERS: tuple[str, ...] = typing.get_args(Scheduler)

# The groups of the form. Those of `Expert` are shown where a file, a flag or a program set them.
_name = partial(hyperparameter, group="Name")
_common = partial(hyperparameter, group="Common")
_training = partial(hyperparameter, group="Training")
_model = partial(hyperparameter, group="Model")
_evaluation = partial(hyperparameter, group="Evaluation")
_speed = partial(hyperparameter, group="Speed")
_data = partial(hyperparameter, group="Data")
_expert = partial(hyperparameter, group="Expert")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The whole configuration of a run; the defaults are the preset Recommended.

    The text beneath a field is its help, which the form and the command line show.
    """

    dataset: str = _common(BUNDLED_DATASET)
    """What to learn from: one offered, your files (see Data), or a Hub id as owner/name."""
    checkpoint: str = _common(BUNDLED_CHECKPOINT)
    """The pretrained model to start from: one offered, a Hub id, or a folder."""
    learning_rate: Annotated[float, Between(1e-8, 1.0, usual=(1e-6, 0.001))] = _common(5e-5)
    """Peak step size of AdamW. Lower it when the loss jumps, raise it when it hardly falls."""
    num_train_epochs: Annotated[int, Between(1, 1000, usual=(1, 20))] = _common(3)
    """Passes over the training pairs. A few thousand may need 5; the best one is kept."""
    per_device_train_batch_size: Annotated[int, Between(1, 4096)] = _common(8)
    """Pairs a step on each device. Larger is faster on a GPU and takes more memory."""
    max_length: Annotated[int, Between(8, 8192)] = _common(128)
    """Longest pair in tokens; what is beyond is cut. Shorter is faster."""
    seed: Annotated[int, Between(0, 2**31 - 1)] = _common(42)
    """Fixes the order of the pairs, the new classifier's weights and dropout."""
    max_steps: Annotated[int, Between(-1, 10_000_000)] = _training(-1)
    """Stop after this many optimizer steps; -1 leaves it to num_train_epochs."""
    gradient_accumulation_steps: Annotated[int, Between(1, 1024)] = _training(1)
    """Batches summed before each step: a larger batch in the same memory."""
    weight_decay: Annotated[float, Between(0.0, 1.0, usual=(0.0, 0.3))] = _training(0.01)
    """Pull of AdamW towards zero. 0.01 is AdamW's own default."""
    decay_biases_and_norms: bool = _training(False)
    """Decay every parameter, as the course does; off spares biases and norms."""
    warmup_ratio: Annotated[float, Between(0.0, 1.0, usual=(0.0, 0.5))] = _training(0.06)
    """Share of the steps in which the rate rises from 0. More when the start is unstable."""
    warmup_steps: Annotated[int, Between(0, 10_000_000)] = _training(0)
    """Steps in which the rate rises from 0, in place of warmup_ratio; 0 leaves it to that."""
    lr_scheduler_type: Scheduler = _training("linear")  # noqa: RUF009
    """How the rate goes on after the warm-up; linear and cosine suit most runs."""
    optim: Literal["adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adafactor"] = _training(
        "adamw_torch_fused"
    )
    """AdamW plain or fused (faster), with 8-bit states (CUDA, bitsandbytes), or Adafactor."""
    adam_beta1: Annotated[float, Between(0.0, 0.9999)] = _expert(0.9)
    """Memory of AdamW's mean of gradients. Seldom changed."""
    adam_beta2: Annotated[float, Between(0.0, 0.999999)] = _expert(0.999)
    """Memory of AdamW's mean of squares. 0.98 reacts faster, with a larger batch."""
    adam_epsilon: Annotated[float, Between(1e-16, 0.1)] = _expert(1e-8)
    """Keeps AdamW from dividing by nothing. 1e-6 is steadier."""
    max_grad_norm: Annotated[float, Between(0.0, 1000.0)] = _training(1.0)
    """Clip the gradient's norm to this, which tames sudden jumps; 0 does not clip."""
    label_smoothing_factor: Annotated[float, Between(0.0, 0.9, usual=(0.0, 0.3))] = _training(0.0)
    """Aim at less than certainty: 0.1 helps where labels are noisy."""
    class_weights: Literal["none", "balanced"] = _training("none")
    """balanced weighs the loss of each class by its rarity: try it where one is rare."""
    swap_augmentation: bool = _training(False)
    """Train on both orders of every pair: twice the steps; where order means nothing only."""
    deterministic: bool = _training(False)
    """Forbid operations whose result varies from run to run; slower on a GPU."""
    dropout: Annotated[float, Between(-1.0, 0.9)] = _model(0.0)
    """Dropout in the model; -1 keeps the checkpoint's. 0 is fastest, 0.1 serves many epochs."""
    freeze_embeddings: bool = _model(True)
    """Leave the word embeddings as they are: less memory, faster. Off for words of a new field."""
    frozen_layers: Annotated[int, Between(0, 200)] = _model(0)
    """Leave so many of the lowest layers as they are."""
    attn_implementation: Literal["auto", "sdpa", "eager", "flash_attention_2"] = _model("auto")
    """How attention is computed; auto takes the fastest the model has."""
    use_lora: bool = _model(False)
    """Train small added matrices (LoRA), not all weights: less memory for large checkpoints."""
    lora_r: Annotated[int, Between(1, 1024)] = _model(16)
    """Rank of LoRA's matrices; more can learn more."""
    lora_alpha: Annotated[int, Between(1, 4096)] = _model(32)
    """LoRA's scale; about twice the rank."""
    lora_dropout: Annotated[float, Between(0.0, 0.9)] = _model(0.05)
    """Dropout before LoRA's matrices."""
    lora_target_modules: str = _model("")
    """Names of the layers LoRA changes, with commas between; empty for all linear ones."""
    per_device_eval_batch_size: Annotated[int, Between(1, 4096)] = _evaluation(32)
    """Pairs a batch when scoring the validation split."""
    eval_steps: Annotated[int, Between(0, 10_000_000)] = _evaluation(0)
    """Score the validation split every so many steps; 0 does it after each epoch."""
    save_steps: Annotated[int, Between(0, 10_000_000)] = _evaluation(0)
    """Write a checkpoint to resume from every so many steps; 0 does it at each evaluation."""
    save_total_limit: Annotated[int, Between(1, 1000)] = _evaluation(1)
    """Keep so many of the latest checkpoints while the run goes on; it resumes from the last."""
    logging_steps: Annotated[int, Between(1, 100_000)] = _evaluation(5)
    """Report the mean training loss every so many steps."""
    metric_for_best_model: Literal["f1", "accuracy", "loss"] = _evaluation("f1")
    """The validation score that decides which model is kept."""
    early_stopping_patience: Annotated[int, Between(0, 1000)] = _evaluation(0)
    """End after so many evaluations without a better score; 0 goes to the end."""
    report_to: Literal["none", "tensorboard", "trackio", "wandb"] = _evaluation("none")
    """Also send what is measured to TensorBoard (files in the run's folder), Trackio or W&B."""
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = _speed("auto")
    """auto takes bf16 where the hardware has it, else fp32 (no); fp16 is for older GPUs."""
    group_by_length: bool = _speed(True)
    """Batches of pairs of about one length: less padding, faster; the order is less random."""
    padding: Literal["longest", "max_length"] = _expert("longest")
    """longest pads a batch to its longest pair; max_length gives one shape, for TPUs."""
    pad_to_multiple_of: Annotated[int, Between(0, 1024)] = _speed(8)
    """Round lengths up to a multiple of this; 8 suits GPU tensor cores, 0 does not."""
    gradient_checkpointing: bool = _speed(False)
    """Compute activations twice rather than keep them: less memory, a third slower."""
    torch_compile: bool = _speed(False)
    """Compile the model: minutes at the start, faster steps on a GPU afterwards."""
    num_processes: Annotated[int, Between(1, 64)] = _speed(1)
    """Processes that share each batch's work, one for each GPU; the batch size is each one's."""
    accelerate_config: str = _speed("")
    """A file that `accelerate config` wrote, for FSDP or DeepSpeed; empty for none."""
    dataset_config_name: str = _data("")
    """Which configuration of a Hub dataset; empty for its only or its default one."""
    dataset_revision: str = _data("")
    """Branch, tag or commit of a Hub dataset; empty for the newest."""
    train_split: str = _data("")
    """The split to train on; empty for train."""
    validation_split: str = _data("")
    """The split to score on; empty for validation or the like, else it is cut from train."""
    test_split: str = _data("")
    """The split kept for the very end; empty for test."""
    sentence1_column: str = _data("")
    """The column of the first sentence; empty to guess it from the names."""
    sentence2_column: str = _data("")
    """The column of the second sentence; (none) for single sentences."""
    label_column: str = _data("")
    """The column of the class; empty to guess it."""
    positive_label: str = _data("")
    """Of two classes the one whose F1 is meant; empty for the second, such as 1 or yes."""
    validation_share: Annotated[float, Between(0.01, 0.5)] = _data(0.1)
    """Share of train cut off for validation where there is no such split."""
    max_train_samples: Annotated[int, Between(0, 1_000_000_000)] = _data(0)
    """Train on so many rows at most, drawn at random; 0 takes all."""
    max_eval_samples: Annotated[int, Between(0, 1_000_000_000)] = _data(0)
    """Score on so many validation rows at most, drawn at random; 0 takes all."""
    data_seed: Annotated[int, Between(0, 2**31 - 1)] = _data(42)
    """Fixes which rows are drawn and cut off; apart from seed, so that runs can be compared."""
    drop_duplicates: bool = _data(False)
    """Keep only the first of equal pairs in each split."""
    drop_leaked: bool = _data(False)
    """Leave out training pairs that stand in validation or test too, swapped or not."""
    name: str = _name("")
    """A name to find the run by; made from dataset and checkpoint when empty."""

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
        problems = {}
        if self.use_lora and self.frozen_layers:
            problems["use_lora"] = _("already freezes the model; set frozen_layers to 0")
        if -1 < self.dropout < 0:
            problems["dropout"] = _(
                "must be -1 or from 0 to 0.9, got {dropout:g}", dropout=self.dropout
            )
        if self.max_steps == 0:
            problems["max_steps"] = _("must be -1 or at least 1, got 0")
        for name in ("dataset", "checkpoint"):
            if not getattr(self, name):
                problems[name] = _("is empty; choose one")
        wrong = {name: knob.problem(getattr(self, name)) for name, knob in knobs().items()}
        return problems | {name: problem for name, problem in wrong.items() if problem}

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
        read: dict[str, Any] = {}
        problems: dict[str, str] = {}
        for name, value in values.items():
            if name not in knobs():
                problems[str(name)] = _("is not a hyperparameter of this version")
                continue
            try:
                read[name] = knobs()[name].read(value)
            except ValueError as error:
                problems[name] = str(error)
        config = cls(**read)
        if problems := config.problems() | problems:
            raise ConfigError(problems)
        return config

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """The configuration of a `config.json`.

        Raises:
            ConfigError: for text that is not a JSON object, and as `from_dict`.
        """
        try:
            values = json_files.parse(text)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise ConfigError({"config.json": _("must be a JSON object of names and values")})
        return cls.from_dict(values)


@cache
def knobs() -> dict[str, Knob]:
    """Every hyperparameter by its name, in the order of declaration."""
    annotations = typing.get_type_hints(RunConfig, include_extras=True)
    return {
        field.name: describe_field(field, annotations[field.name], _helps()[field.name])
        for field in dataclasses.fields(RunConfig)
    }


@cache
def _helps() -> dict[str, str]:
    """The texts beneath the fields, which Python itself does not keep."""
    module = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    (declaration,) = (node for node in module.body if isinstance(node, ast.ClassDef))
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split())
        for field, text in pairwise(declaration.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


# What is read, and from which columns.
SOURCE_FIELDS: tuple[str, ...] = (
    "dataset", "dataset_config_name", "dataset_revision", "train_split", "validation_split",
    "test_split", "sentence1_column", "sentence2_column", "label_column",
)  # fmt: skip
DATA_FIELDS = ("dataset", *(name for name, knob in knobs().items() if knob.group == "Data"))

# Values that differ from the fields' defaults, which are Recommended.
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
# What to train on and what the machine has are left as they are, whatever the preset.
_NOT_PRESET = {
    "dataset", "checkpoint", "seed", "name", "report_to", "num_processes", "accelerate_config",
    *DATA_FIELDS, *(name for name, knob in knobs().items() if knob.group == "Expert"),
}  # fmt: skip


def preset(name: str) -> dict[str, Any]:
    """Every value a preset sets, those at their default included.

    Raises:
        KeyError: when there is no such preset.
    """
    defaults = RunConfig().to_dict().items()
    return {field: value for field, value in defaults if field not in _NOT_PRESET} | PRESETS[name]


def is_upload(dataset: str) -> bool:
    """Whether a configuration's `dataset` names an upload."""
    return dataset.startswith(UPLOAD_PREFIX)


def too_many_steps(config: RunConfig, total: int, most: int) -> ConfigError:
    """The error of a run that would take more steps than one may."""
    name = "max_steps" if config.max_steps > 0 else "num_train_epochs"
    problem = _(
        "makes {total:,} steps, and a run may take {most:,} here; lower it", total=total, most=most
    )
    return ConfigError({name: problem})
