"""`RunConfig`: every hyperparameter, declared once, and the presets.

The form, the command line, `config.json` and the model card's table are drawn from these fields.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from finetune import disk
from finetune.errors import ConfigError
from finetune.hyperparameter import MOST_FOLDS, Hyperparameter, Range, declare, value_problem
from finetune.messages import message as _
from finetune.metrics.catalog import ALL, METRICS

BUNDLED_DATASET = "bundled"
BUNDLED_CHECKPOINT = "all-MiniLM-L6-v2 (bundled)"
UPLOAD_PREFIX = "upload/"  # before the name of uploaded files
NO_COLUMN = "(none)"  # explicitly no column or split; "" means guess
RETIRED = {"teacher": ""}  # fields of older versions -> the value that did nothing
# All of get_scheduler's except `greedy`, which needs the loss at every step.
Scheduler = Literal[
    "linear", "cosine", "cosine_with_restarts", "cosine_with_min_lr",
    "cosine_warmup_with_min_lr", "constant", "constant_with_warmup", "polynomial",
    "inverse_sqrt", "warmup_stable_decay", "reduce_lr_on_plateau",
]  # fmt: skip

if TYPE_CHECKING:
    MetricName = str
else:
    MetricName = Literal["auto", *ALL]

_BLANKS = {"\t": "tab", "\\t": "tab", " ": "space", "\n": "newline", "\\n": "newline"}
_AUTOMATIC, _OFF = {0: _("Automatic")}, {0: _("Off")}
# The groups of the form. Fields of `Expert` are shown only if a file, a flag or a program set them.
_common, _training, _model, _evaluation, _speed, _data, _expert = (
    partial(declare, group)
    for group in ("Common", "Training", "Model", "Evaluation", "Speed", "Data", "Expert")
)


class RunConfig(BaseModel):
    """The complete configuration of a run; the defaults are the preset Recommended.

    The text beneath a field is its help, which the form and the command line show. A number may be
    given as text.

    Raises:
        ConfigError: names every value of a wrong type or range and every unknown field.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        str_strip_whitespace=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    dataset: str = _common(BUNDLED_DATASET)
    """What to learn from: one offered, your files (see Data), or a Hub id as owner/name."""
    checkpoint: str = _common(BUNDLED_CHECKPOINT, label="Model to start from")
    """The pretrained model to start from: one offered, a Hub id, or a folder."""
    num_train_epochs: int = _common(
        0, 0, 1000, usual_range=(0, 20), label="Passes over the data", search=Range(1, 6),
        words=_AUTOMATIC,
    )  # fmt: skip
    """Passes over the training rows. Automatic: 1 to 10, fewer passes for more rows."""
    learning_rate: float = _common(
        0.0, 0.0, 1.0, usual_range=(1e-6, 0.001), label="Step size",
        search=Range(1e-5, 3e-4, log=True), words=_AUTOMATIC,
    )  # fmt: skip
    """The largest step. Lower it if the loss jumps. Automatic: by model and rows a step."""
    per_device_train_batch_size: int = _training(
        0, 0, 4096, label="Rows a step", search=(8, 16, 32), words=_AUTOMATIC
    )
    """Rows a step on each device. Automatic: 16; on a GPU up to 64, if there are many rows."""
    max_length: int = _training(128, 8, 8192, label="Longest text")
    """Longest row in word pieces (tokens); anything longer is cut. Shorter is faster."""
    seed: int = _training(42, 0, 2**31 - 1)
    """Fixes the order of the rows, the new classifier's weights and dropout."""
    max_steps: int = _training(-1, -1, 10_000_000, label="Maximum steps", words={-1: _("No limit")})
    """Stop after this many optimizer steps, however many passes are set."""
    gradient_accumulation_steps: int = _training(1, 1, 1024, label="Gradient accumulation")
    """Batches summed before each step: a larger batch in the same memory."""
    weight_decay: float = _training(0.01, 0.0, 1.0, usual_range=(0.0, 0.3), search=Range(0.0, 0.1))
    """How strongly AdamW pulls weights towards zero; its own default is 0.01."""
    decay_biases_and_norms: bool = _training(False)
    """Decay every parameter, as the course does; off spares biases and norms."""
    warmup_ratio: float = _training(0.2, 0.0, 1.0, usual_range=(0.0, 0.5), search=Range(0.0, 0.3))
    """Share of the steps in which the rate rises from 0. More when the start is unstable."""
    warmup_steps: int = _training(0, 0, 10_000_000, words={0: _("By the warmup ratio")})
    """Steps in which the rate rises from 0, in place of the warmup ratio."""
    lr_scheduler_type: Scheduler = _training(
        "linear",
        label="Learning rate schedule",
        search=("linear", "cosine", "constant_with_warmup"),
    )
    """How the rate goes on after the warm-up; linear and cosine suit most runs."""
    optim: Literal["adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adafactor"] = _training(
        "adamw_torch_fused", label="Optimizer"
    )
    """AdamW plain or fused (faster), with 8-bit states (CUDA, bitsandbytes), or Adafactor."""
    adam_beta1: float = _expert(0.9, 0.0, 0.9999, label="AdamW beta 1")
    """Memory of AdamW's mean of gradients. Seldom changed."""
    adam_beta2: float = _training(0.98, 0.0, 0.999999, label="AdamW beta 2")
    """Memory of AdamW's mean of squares. 0.98 reacts faster, with a larger batch."""
    adam_epsilon: float = _training(1e-6, 1e-16, 0.1, label="AdamW epsilon")
    """Keeps AdamW from dividing by nothing. 1e-6 is steadier."""
    max_grad_norm: float = _training(
        1.0, 0.0, 1000.0, label="Gradient clipping", search=Range(0.3, 3.0, log=True), words=_OFF
    )
    """Clip the gradient's norm to this, which tames sudden jumps."""
    label_smoothing_factor: float = _training(
        0.0, 0.0, 0.9, usual_range=(0.0, 0.3), label="Label smoothing"
    )
    """Train towards less than full certainty; 0.1 helps with noisy labels."""
    class_weights: Literal["none", "balanced"] = _training("none")
    """balanced weighs the loss of each class by its rarity: try it where one is rare."""
    swap_augmentation: bool = _training(False, label="Both orders")
    """Train on both orders of every pair, only if order means nothing; twice the steps."""
    sentence_order: Literal["auto", "random", "given"] = _training("auto")
    """random draws the order of each pair anew each pass; auto does so if order means nothing."""
    deterministic: bool = _training(False)
    """Forbid operations whose result varies from run to run; slower on a GPU."""
    dropout: float = _model(0.0, -1.0, 0.9, words={-1: _("As in the checkpoint")})
    """Dropout in the model. 0 is fastest, 0.1 serves many passes."""
    freeze_embeddings: bool = _model(True)
    """Keep the word embeddings as they are: less memory, faster. Turn it off for unusual words."""
    frozen_layers: int = _model(0, 0, 200, search=Range(0, 4))
    """Keep this many of the lowest layers as they are."""
    attn_implementation: Literal["auto", "sdpa", "eager", "flash_attention_2"] = _model(
        "auto", label="Attention"
    )
    """How attention is computed; auto takes the fastest the model has."""
    use_lora: bool = _model(False, label="LoRA")
    """Train small added matrices (LoRA), not all weights: less memory for large checkpoints."""
    lora_r: int = _model(16, 1, 1024, label="LoRA rank", search=(8, 16, 32, 64))
    """Rank of LoRA's matrices; more can learn more."""
    lora_alpha: int = _model(32, 1, 4096, label="LoRA alpha")
    """LoRA's scale; about twice the rank."""
    lora_dropout: float = _model(0.05, 0.0, 0.9, label="LoRA dropout")
    """Dropout before LoRA's matrices."""
    lora_target_modules: str = _model("", label="LoRA layers")
    """Names of the layers LoRA changes, with commas between; empty for all linear ones."""
    per_device_eval_batch_size: int = _evaluation(32, 1, 4096, label="Rows scored at once")
    """Rows that are scored together on the validation split."""
    eval_steps: int = _evaluation(
        -1, -1, 10_000_000, label="Steps between evaluations",
        words={-1: _("Automatic"), 0: _("Each pass")},
    )  # fmt: skip
    """Score after this many steps each, or after each pass. Automatic: ten times, or fewer."""
    save_steps: int = _evaluation(
        0, 0, 10_000_000, label="Steps between checkpoints", words=_AUTOMATIC
    )
    """Write a checkpoint to resume from. Automatic: at each evaluation, or each pass."""
    save_total_limit: int = _evaluation(1, 1, 1000, label="Checkpoints kept")
    """How many of the latest checkpoints a run keeps while it goes on; it resumes from the last."""
    logging_steps: int = _evaluation(5, 1, 100_000, label="Steps between reports")
    """Report the mean training loss after this many steps each."""
    metrics: str = _evaluation("", label="Further scores", several=True)
    """Measure these too, such as roc_auc. A folder or a module of the Hub is code, and is run."""
    metric_for_best_model: MetricName = _evaluation("auto", label="Best model by")
    """The validation score that decides which model is kept. auto: F1, or the task's own."""
    early_stopping_patience: int = _evaluation(0, 0, 1000, words=_OFF)
    """End after this many evaluations without a better score."""
    report_to: Literal["none", "tensorboard", "trackio", "wandb"] = _evaluation("none")
    """Also send what is measured to TensorBoard (files in the run's folder), Trackio or W&B."""
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = _speed("auto")
    """auto takes bf16 if the hardware has it, fp16 on older GPUs, or else fp32 (no)."""
    group_by_length: bool = _speed(True)
    """Batches of rows of about one length: less padding, faster; the order is less random."""
    padding: Literal["longest", "max_length"] = _expert("longest")
    """longest pads a batch to its longest row; max_length gives one shape, for TPUs."""
    pad_to_multiple_of: int = _speed(-1, -1, 1024, words={-1: _("Automatic"), 0: _("Off")})
    """Round lengths up to a multiple of this. Automatic: 8 in bf16 and fp16, not in fp32."""
    gradient_checkpointing: bool = _speed(False)
    """Compute activations twice rather than keep them: less memory, a third slower."""
    cuda_graphs: Literal["auto", "off"] = _speed("auto", label="CUDA graphs")
    """auto records each step on a GPU once and replays it: far faster, the same results."""
    torch_compile: bool = _speed(False, label="Compile the model")
    """Compile the model: minutes at the start, faster steps on a GPU afterwards."""
    num_processes: int = _speed(1, 1, 64, label="Processes")
    """Processes that share each batch's work, one for each GPU; each takes its own rows a step."""
    accelerate_config: str = _speed("", label="Accelerate configuration")
    """A file that `accelerate config` wrote, for FSDP or DeepSpeed; empty for none."""
    dataset_config_name: str = _data("", label="Configuration")
    """Which configuration of a Hub dataset; empty for its only or its default one."""
    dataset_revision: str = _data("", label="Revision")
    """Branch, tag or commit of a Hub dataset; empty for the newest."""
    train_split: str = _data("", label="Training split")
    """The split to train on; empty for train."""
    validation_split: str = _data("")
    """The split to score on; empty for validation or the like, else it is cut from train."""
    test_split: str = _data("")
    """The split kept for the very end; empty for test."""
    sentence1_column: str = _data("", label="First text")
    """Which column holds the first text; empty to guess it."""
    sentence2_column: str = _data("", label="Second text")
    """Which column holds the second text; (none) for single texts."""
    label_column: str = _data("", label="Answer")
    """Which column holds the answer; empty to guess it."""
    status_column: str = _data("", label="Review status")
    """Which column says that a row was rejected or skipped; empty to guess it, (none) for none."""
    task: str = _data("")
    """One class a row, several labels or a score; empty to see it from the answers."""
    positive_label: str = _data("", label="Positive class")
    """The answer you are looking for, of two, for F1; empty for the plain one, such as yes."""
    label_map: str = _data("", label="Changed labels")
    """Labels to merge (spamm=spam), leave out (spamm=) or keep apart (Spam=Spam)."""
    score_cut: str = _data("", label="Cut of scores")
    """Learn which scores are at least this number, as two classes; empty for the score itself."""
    decimal_mark: Literal["auto", ".", ","] = _data("auto")
    """The mark before decimals: with a point 1,022 is read as 1022, with a comma as 1.022."""
    label_separator: str = _data("auto")
    """What separates several labels of a row: a character, newline, tab, space, or none."""
    rare_classes: Literal["ask", "keep", "leave_out"] = _data("ask", label="Rare classes")
    """A class of fewer than five training rows: ask first, keep it, or leave its rows out."""
    lost_rows: Literal["ask", "leave_out"] = _data("ask", label="Half of the rows lost")
    """If half of the rows cannot be read or have no label: ask first, or leave them out."""
    sheet: str = _data("")
    """Which sheet of a workbook; empty for the first with data."""
    delimiter: str = _data("")
    """What separates the cells of a CSV or text file, one character or tab; empty to guess it."""
    quote: str = _data("", label="Quotation mark")
    """What encloses cells: a character, none, or escaped (" with backslashes); empty to guess."""
    encoding: str = _data("")
    """How a text file is encoded, such as utf-8, cp1252 or euc_jp; empty to guess it."""
    header: Literal["auto", "yes", "no"] = _data("auto", label="Names of the columns")
    """Whether the first line has the names of the columns (yes) or is a row (no)."""
    validation_share: float = _data(0.1, 0.01, 0.5)
    """Share of the training rows held out for validation if there is no validation split."""
    max_train_samples: int = _data(
        0, 0, 1_000_000_000, label="Most training rows", words={0: _("All")}
    )
    """Train on at most this many rows, drawn at random."""
    max_eval_samples: int = _data(
        0, 0, 1_000_000_000, label="Most validation rows", words={0: _("All")}
    )
    """Score on at most this many validation rows, drawn at random."""
    folds: int = _data(0, 0, MOST_FOLDS, label="Cross-validation folds", words=_OFF)
    """Train this many models, each scored on its own part of the rows, then one on all; 2 to 10."""
    data_seed: int = _data(42, 0, 2**31 - 1)
    """Fixes which of the same rows are drawn and held out; a changed file is drawn anew."""
    drop_duplicates: bool = _data(False, label="Leave out duplicates")
    """Keep only the first of equal rows in each split."""
    drop_leaked: bool = _data(False, label="Leave out leaked rows")
    """Leave out training rows that stand in validation or test too, swapped or not."""
    fold: int = _expert(0, 0, MOST_FOLDS, words={0: _("None")})
    """Of a cross-validation, train only the model that holds out this fold."""
    name: str = declare("Name", "")
    """A name to find the run by; empty for the data's name and a number."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_other_kinds(cls, value: Any, info: ValidationInfo) -> Any:
        if problem := hyperparameters()[str(info.field_name)].refusal_of_kind(value):
            raise ValueError(problem)
        return value

    @field_validator("delimiter", "label_separator", mode="before")
    @classmethod
    def _name_blank(cls, value: Any) -> Any:
        """Replace a blank by its name, because a blank would be stripped."""
        return _BLANKS.get(value, value) if isinstance(value, str) else value

    @field_validator("*")
    @classmethod
    def _check_value(cls, value: Any, info: ValidationInfo) -> Any:
        if problem := value_problem(str(info.field_name), value, info.data):
            raise ValueError(problem)
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _name_problems(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(_current(values) if isinstance(values, dict) else values)
        except ValidationError as error:
            known, other = hyperparameters(), _("is not a hyperparameter of this version")
            found = ((str(entry["loc"][0]), entry) for entry in error.errors())
            problems = {n: known[n].explain(entry) if n in known else other for n, entry in found}
            raise ConfigError(problems) from error

    @property
    def changed_labels(self) -> dict[str, str]:
        """`label_map` as label -> new label, "" to leave its rows out."""
        entries = [entry.rpartition("=") for entry in shlex.split(self.label_map)]
        return {old: new for old, _, new in entries}

    @property
    def added_metrics(self) -> list[str]:
        """`metrics` as names, folders and modules of the Hub."""
        return shlex.split(self.metrics)

    @property
    def foreign_metrics(self) -> list[str]:
        """Return the folders and Hub modules among `metrics`; a run executes their code."""
        return [name for name in self.added_metrics if name not in METRICS]

    @property
    def trains_on_all(self) -> bool:
        """True for the last run of a cross-validation, which holds out no rows."""
        return self.folds > 0 and not self.fold

    def follows(self, name: str) -> bool:
        """True if every value that a preset sets is the preset's."""
        return all(getattr(self, field) == value for field, value in PRESETS[name].items())

    def changed(self, **values: Any) -> RunConfig:
        """A copy with some values replaced."""
        return RunConfig(**self.to_dict() | values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values by field name, in the order of declaration."""
        return self.model_dump()

    def to_json(self) -> str:
        """The text of `config.json`."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> RunConfig:
        """Parse a `config.json`; ConfigError if it is invalid."""
        try:
            return cls.from_saved(disk.parse_json(text))
        except (AttributeError, TypeError, ValueError) as error:
            problem = _("must be a JSON object of names and values")
            raise ConfigError({"config.json": problem}) from error

    @classmethod
    def from_saved(cls, values: Mapping[str, Any]) -> RunConfig:
        """Read values that this or an older version has saved, without the retired fields."""
        return cls(**{name: value for name, value in values.items() if name not in RETIRED})


def retired_in(text: str | bytes) -> str:
    """Say which retired fields a `config.json` sets, and `from_json` leaves out; "" if none."""
    values = disk.parse_object(text)
    names = ", ".join(name for name in _current(values) if name in RETIRED)
    return (
        _("{names}: left out, since this version does not have it.", names=names) if names else ""
    )


def _current(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without retired ones that did nothing."""
    return {name: value for name, value in values.items() if (name, value) not in RETIRED.items()}


@cache
def hyperparameters() -> dict[str, Hyperparameter]:
    """Every hyperparameter by its name, in the order of declaration."""
    described = {}
    for name, declared in RunConfig.model_fields.items():
        choices, details = get_args(declared.annotation), declared.json_schema_extra
        own: Any = {"label": name.replace("_", " ").capitalize(), **cast(dict[str, Any], details)}
        kind: Any = str if choices else declared.annotation
        described[name] = Hyperparameter(str(declared.description), kind, choices, **own)
    return described


def fields_of(group: str) -> tuple[str, ...]:
    """The names of the fields in a group of the form."""
    return tuple(name for name, field in hyperparameters().items() if field.group == group)


READING_FIELDS = ("sheet", "delimiter", "quote", "encoding", "header")  # how a file is read
# What is read, and from which columns.
SOURCE_FIELDS: tuple[str, ...] = (
    "dataset", "dataset_config_name", "dataset_revision", "train_split", "validation_split",
    "test_split", "sentence1_column", "sentence2_column", "label_column", "status_column",
    "task", "score_cut", *READING_FIELDS,
)  # fmt: skip
DATA_FIELDS = ("dataset", *fields_of("Data"))

# Values that differ from the fields' defaults, which are Recommended.
PRESETS: dict[str, dict[str, Any]] = {
    "Recommended": {},
    "As the course": {
        "num_train_epochs": 3,
        "learning_rate": 5e-5,
        "per_device_train_batch_size": 8,
        "warmup_ratio": 0.0,
        "max_grad_norm": 0.0,
        "optim": "adamw_torch",
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "decay_biases_and_norms": True,
        "sentence_order": "given",
        "dropout": -1.0,
        "freeze_embeddings": False,
        "per_device_eval_batch_size": 8,
        "eval_steps": 0,
        "mixed_precision": "no",
        "group_by_length": False,
        "pad_to_multiple_of": 0,
    },
    "Fast": {
        "num_train_epochs": 3,
        "per_device_train_batch_size": 32,
        "per_device_eval_batch_size": 64,
        "max_length": 96,
    },
    "Small GPU (LoRA)": {
        "num_train_epochs": 3,
        "per_device_train_batch_size": 8,
        "learning_rate": 3e-4,
        "per_device_eval_batch_size": 16,
        "gradient_checkpointing": True,
        "use_lora": True,
    },
    "CPU": {"max_length": 64, "num_train_epochs": 2},
}
DEFAULT_PRESET = "Recommended"
# Fields of the data and of the machine, which no preset changes.
_NOT_PRESET = {
    "dataset", "checkpoint", "seed", "name", "report_to", "num_processes", "accelerate_config",
    *DATA_FIELDS, *fields_of("Expert"),
}  # fmt: skip


def preset(name: str) -> dict[str, Any]:
    """All values of a preset, including those at their default."""
    defaults = RunConfig().to_dict().items()
    return {field: value for field, value in defaults if field not in _NOT_PRESET} | PRESETS[name]


def is_upload(dataset: str) -> bool:
    """True if a configuration's `dataset` names an upload."""
    return dataset.startswith(UPLOAD_PREFIX)
