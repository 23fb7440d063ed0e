"""Tokenizer and classifier from a checkpoint's name; saving and loading them whole.

Weights are read from safetensors only, because opening a pickle runs code. Code that comes with a
checkpoint is never run.

The output layer of a checkpoint that is already a classifier is kept if it knows the classes. An
NLI model, a reranker or a run's own model has an output layer with one row of weights per class.
Its rows have a meaning only under the names they were trained for. A single output is a score, or
the logit of a yes, as of rerankers and other cross-encoders (https://sbert.net).
"""

import copy
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from finetune import disk
from finetune.config import RunConfig
from finetune.data import checkpoint_files, checkpoints
from finetune.errors import ModelError, some
from finetune.runs.events import Head
from finetune.runs.run import NOTES
from finetune.tasks.base import REGRESSION, SINGLE_LABEL, Target
from finetune.tasks.registry import TASKS, task_of
from finetune.training import layers

_INITIAL = 0.02  # standard deviation of new weights if a configuration names none
# Slope of the line nearest to a sigmoid, by least squares over logits from -4 to 4.
_SLOPE = 0.153


def load_classifier(
    checkpoint: str,
    target: Target,
    max_length: int,
    dropout: float = -1.0,
    attn_implementation: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel, Head]:
    """Load a tokenizer, and a model in fp32 with the outputs that a target needs; and how its
    output layer was made.

    The model's output layer is new unless the checkpoint's own fits the target (`plan_head`).
    ConfigError if the checkpoint reads fewer than `max_length` tokens; ModelError if it cannot be
    fetched or used.

    Args:
        checkpoint: an offered name, a Hub id, or a folder.
        max_length: the longest input in tokens.
        dropout: replaces every dropout of the checkpoint; -1 keeps them.
        on_progress: as in `checkpoint_files.fetch`.
    """
    options = {} if attn_implementation == "auto" else {"attn_implementation": attn_implementation}
    folder = checkpoint_files.fetch(checkpoint, on_progress=on_progress)
    with checkpoint_files.open_files(folder, checkpoint) as files:
        config = files.load(AutoConfig)
        checkpoints.check_length(checkpoint, max_length, config.to_dict())
        # Families name their dropouts differently: numbers with the word in the name.
        for name, value in list(vars(config).items()) if dropout >= 0 else ():
            number = value is None or (isinstance(value, float | int) and value is not True)
            if number and ("dropout" in name or name.endswith("pdrop")):
                setattr(config, name, dropout)
        plan, outputs = plan_head(config, target), task_of(target).head(target)
        config.update(outputs)
        if plan.rows:
            config.num_labels = len(plan.known)  # until `fit_head`
        ends = {} if target.names else {"low": target.low, "high": target.high}
        setattr(config, NOTES, {"task": target.task, **ends})  # drops the checkpoint's threshold
        tokenizer = files.load(AutoTokenizer)
        checkpoints.check_tokenizer(checkpoint, tokenizer)
        tokenizer.model_max_length = max_length  # saved with the weights, as `length_of` reads it
        if tokenizer.pad_token is None:  # decoders of text have none
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = tokenizer.pad_token_id
        model, loading = files.load(
            AutoModelForSequenceClassification,
            config=config,
            use_safetensors=True,
            dtype="float32",
            ignore_mismatched_sizes=True,  # a head of another number of classes is replaced
            output_loading_info=True,
            **options,
        )
    _check_weights(checkpoint, model, loading)
    new = {*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])}
    head = fit_head(model, plan, target, new)
    answer_in_fp32(model)
    model.config.update(outputs)
    return tokenizer, model, head


def _check_weights(checkpoint: str, model: PreTrainedModel, loading: dict[str, Any]) -> None:
    """Raise ModelError if most of the encoder would keep random weights, because the file is of
    another kind of model or names its weights differently."""
    prefix = f"{model.base_model_prefix}."
    sizes = {name: weights.numel() for name, weights in model.named_parameters()}
    encoder = {name: size for name, size in sizes.items() if name.startswith(prefix)}
    missing = sum(encoder.get(name, 0) for name in loading["missing_keys"])
    if missing > sum(encoder.values()) / 2:
        raise ModelError(
            "The file of {checkpoint} has no weights for most of the model that its config.json "
            "describes.",
            "Choose another checkpoint: this one would begin with random weights.",
            checkpoint=checkpoint,
        )


def count_layer_parameters(model: PreTrainedModel) -> int:
    """Count the parameters outside the word embeddings."""
    words: Any = model.get_input_embeddings().weight
    return int(model.num_parameters() - words.numel())


def choose_attention(requested: str, device: torch.device, half: bool, max_length: int) -> str:
    """Choose the attention implementation: the requested one, or for `auto` the fastest."""
    # The fused kernel's backward pass takes twice as long for short inputs in half precision on
    # a CPU.
    slow = half and device.type == "cpu" and max_length <= 256
    return "eager" if requested == "auto" and slow else requested


def apply_config(model: PreTrainedModel, config: RunConfig) -> Any:
    """Apply a configuration's gradient checkpointing, LoRA and freezing to a model. Returns it or
    a `PeftModel`. Without dropout, the last layer skips work that the head does not read."""
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.use_lora:
        return _with_lora(model, config)
    if config.freeze_embeddings or config.frozen_layers:
        model.get_input_embeddings().requires_grad_(False)
    if config.frozen_layers:
        stack = layers.layer_stack(model)
        if config.frozen_layers > len(stack):
            raise ModelError(
                "frozen_layers is {frozen_layers}, but {checkpoint} has {layers} layers to freeze.",
                "Lower frozen_layers.",
                frozen_layers=config.frozen_layers,
                checkpoint=config.checkpoint,
                layers=len(stack),
            )
        for layer in stack[: config.frozen_layers]:
            layer.requires_grad_(False)
    if config.dropout == 0:
        layers.compute_first_token_only(model)
    return model


def _with_lora(model: PreTrainedModel, config: RunConfig) -> Any:
    """Add LoRA by peft, Hu et al. 2021, https://arxiv.org/abs/2106.09685."""
    from peft import LoraConfig, get_peft_model

    targets = [name.strip() for name in config.lora_target_modules.split(",") if name.strip()]
    # The layers outside the pretrained encoder are new and trained whole; peft itself would find
    # `classifier` and `score` only.
    layers = (name for name, layer in model.named_children() if list(layer.parameters()))
    lora = LoraConfig(
        task_type="SEQ_CLS",
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=targets or "all-linear",
        modules_to_save=[name for name in layers if name != model.base_model_prefix],
    )
    try:
        return get_peft_model(model, lora)
    except ValueError as error:
        raise ModelError(
            "lora_target_modules is {lora_target_modules!r}, and {checkpoint} has no such layers.",
            "Leave lora_target_modules empty to use all linear layers.",
            lora_target_modules=config.lora_target_modules,
            checkpoint=config.checkpoint,
        ) from error


def merged_model(model: Any) -> PreTrainedModel:
    """Return the model itself, or a copy with LoRA merged."""
    merges = hasattr(model, "merge_and_unload")
    return copy.deepcopy(model).merge_and_unload() if merges else model  # type: ignore[no-any-return]


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    weights: dict[str, torch.Tensor] | None = None,
    step: int | None = None,
    rule: Mapping[str, Any] | None = None,
) -> None:
    """Write a `from_pretrained` folder atomically: after a crash, `disk.standing` finds either the
    former model or this one.

    Args:
        weights: written instead of the model's own weights, which are incomplete if sharded.
        step: the model's optimizer steps, written into its `config.json`.
        rule: fields of its `DecisionRule`, written there too.
    """
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    if step is not None:
        fitted = {name: value for name, value in (rule or {}).items() if value is not None}
        setattr(model.config, NOTES, _notes(model) | {"step": step, **fitted})
    try:
        new.mkdir()
        model.save_pretrained(new, state_dict=weights)
        tokenizer.save_pretrained(new)
        disk.replace_folder(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _notes(model: PreTrainedModel) -> dict[str, Any]:
    notes = getattr(model.config, NOTES, None)
    return notes if isinstance(notes, dict) else {}


def saved_target(model: PreTrainedModel) -> Target:
    """Return the target of a saved model, from its configuration; classes if it names no task."""
    notes = _notes(model)
    task = TASKS.get(str(notes.get("task", "")), TASKS[SINGLE_LABEL])
    ends = {end: notes[end] for end in ("low", "high") if isinstance(notes.get(end), float)}
    return replace(task.target_of(model.config), **ends)


def load_saved_model(folder: Path | str) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load a classifier that `save_model` wrote, in evaluation mode."""
    if not (Path(folder) / "config.json").is_file():
        raise ModelError(
            "This run has no saved model.", "Choose a run that was evaluated at least once."
        )
    try:
        with checkpoint_files.open_files(Path(folder)) as files:
            tokenizer = files.load(AutoTokenizer)
            model, loading = files.load(
                AutoModelForSequenceClassification, use_safetensors=True, output_loading_info=True
            )
            checkpoints.check_tokenizer("this model", tokenizer)
    except ModelError as error:
        raise ModelError(
            "The saved model cannot be loaded: {error}", "Train it again.", error=error.fact
        ) from error
    if missing := sorted(loading["missing_keys"]):
        raise ModelError(
            "The saved model cannot be loaded: its file has no weights for {missing}.",
            "Train or download it again.",
            missing=some(missing, 3),
        )
    return tokenizer, model.eval()


class OutputLayer(nn.Linear):
    """A model's last layer, which computes in fp32 whatever the others do: of a score, the 8 bits
    of bf16 would leave a few different values."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.float()
        with torch.autocast(states.device.type, enabled=False):
            return nn.functional.linear(states.float(), self.weight.float(), bias)


def find_output_layer(model: Any, outputs: int) -> str:
    """Return the path of the last linear layer outside the encoder with so many outputs, or ""."""
    encoder, found = f"{model.base_model_prefix}.", ""
    for path, module in model.named_modules():
        of_head = isinstance(module, nn.Linear) and not path.startswith(encoder)
        if of_head and module.out_features == outputs:
            found = path
    return found


def answer_in_fp32(model: Any) -> None:
    """Make the last layer of a classifier an `OutputLayer`."""
    if name := find_output_layer(model, model.num_labels):
        model.get_submodule(name).__class__ = OutputLayer


def plan_head(config: Any, target: Target) -> Head:
    """Decide what a target keeps of a checkpoint's output layer, from its configuration. Rows of
    classes with the same names are kept, if each class of the target has one. A single logit
    becomes the log-odds of the positive of two classes. For a score it is mapped to the target's
    scale by the line nearest to a sigmoid, which keeps the order of all answers."""
    known = [str(name) for _, name in sorted(config.id2label.items())]
    is_score = getattr(config, "problem_type", None) == REGRESSION
    if len(known) == 1 and target.task == REGRESSION:
        span = target.high - target.low
        if is_score or span <= 0:
            return Head(rows=[0], known=known)
        return Head(
            rows=[0], known=known, scale=[_SLOPE * span], shift=[(target.low + target.high) / 2]
        )
    if len(known) == 1 and target.task == SINGLE_LABEL and target.size == 2 and not is_score:
        halves = [0.5 if index == target.positive else -0.5 for index in range(2)]
        return Head(rows=[0, 0], known=known, scale=halves)
    # Case and the characters between the words of a name do not count.
    names, wanted = (
        [re.sub(r"[\s_-]+", " ", name.casefold()) for name in x] for x in (known, target.names)
    )
    same = wanted and len(set(names)) == len(names) and set(wanted) <= set(names)
    return Head(rows=[names.index(name) for name in wanted] if same else [], known=known)


def fit_head(model: Any, plan: Head, target: Target, new: Collection[str]) -> Head:
    """Make the output layer of a loaded model one for a target, as planned; drawn anew if nothing
    can be kept. The model has the outputs of the checkpoint if the plan keeps some, otherwise of
    the target; `new` names weights that the checkpoint lacked or had in another shape."""
    loaded = len(plan.known) if plan.rows else target.size
    name = find_output_layer(model, loaded)
    if not name or (f"{name}.weight" in new and loaded == target.size):
        return Head(layer=name)
    layer = model.get_submodule(name)
    kept = f"{name}.weight" not in new
    rows = plan.rows if kept and (layer.bias is not None or not any(plan.shift)) else []
    fitted = nn.utils.skip_init(nn.Linear, layer.in_features, target.size, layer.bias is not None)
    with torch.no_grad():
        if rows:
            scale = torch.tensor(plan.scale or [1.0] * len(rows))
            fitted.weight.copy_(scale[:, None] * layer.weight[rows])
            if layer.bias is not None:
                shift = torch.tensor(plan.shift or [0.0] * len(rows))
                fitted.bias.copy_(scale * layer.bias[rows] + shift)
        else:
            std = getattr(model.config, "initializer_range", _INITIAL)
            nn.init.normal_(fitted.weight, std=std)
            if layer.bias is not None:
                nn.init.zeros_(fitted.bias)
    model.set_submodule(name, fitted)
    model.num_labels = target.size
    return plan.model_copy(
        update={"layer": name, "rows": rows, "known": plan.known if kept else []}
    )
