"""Checkpoints on this disk: the memory that training one takes, estimated from its headers, and the
removal of those that no run needs."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from finetune import disk
from finetune.config import RunConfig
from finetune.data import checkpoint_catalog, checkpoints, model_cache
from finetune.environment import devices
from finetune.errors import ConfigError, StoreError
from finetune.messages import message as _
from finetune.runs.job_folder import JobFolder
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED

LIBRARIES = 650 * 2**20  # a worker's PyTorch and libraries; a CUDA context takes about as much
_OVERHEAD = 1.6  # all activations over those kept, as measured: tests/benchmarks/checkpoints.py
_WORD_EMBEDDINGS = (
    "word_embeddings.weight", "embed_tokens.weight", "wte.weight", "tok_embeddings.weight",
    "shared.weight",
)  # fmt: skip
# Names that configurations have for the width of the wide layer, the layers, and the heads.
_SIZES = (
    ("intermediate_size", "hidden_dim", "n_inner", "ffn_dim", "d_ff", "encoder_ffn_dim"),
    ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "encoder_layers"),
    ("num_attention_heads", "n_heads", "n_head", "num_heads", "encoder_attention_heads"),
)
_PRETRAINING_HEADS = ("cls.", "lm_head.", "vocab_", "generator_", "qa_outputs.")


@dataclass(frozen=True)
class Memory:
    """Maximum number of bytes for one process."""

    weights: int
    activations: int
    training: int  # gradients and the optimizer's means

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.training + LIBRARIES


@dataclass(frozen=True)
class Shape:
    """Sizes from a checkpoint's headers; 0 if missing."""

    parameters: int  # without the head of its pretraining
    embeddings: int  # those of the word embeddings
    edges: int  # rows and columns of the linear layers' weights, together
    layers: int
    hidden: int
    wide: int
    heads: int
    family: str = ""  # `model_type`

    @property
    def layer_parameters(self) -> int:
        """The parameters outside the word embeddings."""
        return self.parameters - self.embeddings


def estimate_memory(config: RunConfig, shape: Shape, longest: int = 0) -> Memory | None:
    """Estimate the most bytes that training takes; None if the checkpoint's layers are unknown.

    For each layer and token, the backward pass keeps the inputs of two norms, query, key, value,
    what they attend to and its projection (8 x hidden), and the wide layer before and after its
    nonlinearity (2 x wide). Dropout adds its output and a byte of mask; attention that is not fused
    a row of scores and one of probabilities for each head.

    Sources: https://huggingface.co/docs/transformers/model_memory_anatomy for the parameters;
    Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, section 4.1, for the activations.
    `longest` is the length of the longest pair in tokens; 0 while unknown.
    """
    if not shape.layers or not shape.hidden:
        return None
    length = config.max_length
    if longest and config.padding == "longest":
        length = min(length, longest)
    # 1. Bytes that a layer keeps for each token
    half = config.mixed_precision != "no"
    if config.mixed_precision == "auto":
        half = bool(devices.list_accelerators()) or devices.processor_prefers_bf16()
    width, drops = (2 if half else 4), config.dropout != 0
    layer = width * (8 * shape.hidden + 2 * shape.wide) + 4 * half * shape.hidden
    layer += drops * 2 * (width + 1) * shape.hidden
    if config.use_lora:  # peft drops out each linear layer's input again, in fp32
        layer += (5 + 2 * half) * (5 * shape.hidden + shape.wide)
    fused = config.attn_implementation != "eager"
    if not devices.list_accelerators():  # as `model.choose_attention` chooses
        plain = config.attn_implementation == "auto" and half and config.max_length <= 256
        fused = fused and not plain and config.dropout == 0
    if not fused:
        score = 2 * width + 2 * half + drops * (width + 1)  # the softmax is taken in fp32
        layer += score * shape.heads * length
    activations = shape.layers * layer
    if config.gradient_checkpointing:  # each layer's input, and one recomputed layer
        activations = shape.layers * 4 * shape.hidden + layer
    # 2. The parameters
    optimizer_bytes = {"adafactor": 0, "adamw_bnb_8bit": 2}.get(config.optim, 8)
    return Memory(
        weights=shape.parameters * 4 + half * 2 * (shape.parameters - shape.embeddings),
        activations=round(config.per_device_train_batch_size * length * activations * _OVERHEAD),
        training=(4 + optimizer_bytes) * trained_parameters(config, shape),
    )


def trained_parameters(config: RunConfig, shape: Shape) -> int:
    """Count the parameters that get a gradient."""
    if config.use_lora:
        return config.lora_r * shape.edges
    frozen = shape.embeddings * (config.freeze_embeddings or config.frozen_layers > 0)
    layer = 4 * shape.hidden**2 + 2 * shape.hidden * shape.wide  # its matrices
    layer += 9 * shape.hidden + shape.wide  # its biases and norms
    return max(0, shape.parameters - frozen - config.frozen_layers * layer)


def read_shape(checkpoint: str) -> Shape | None:
    """Read the headers of a checkpoint on this disk; None if they cannot be read."""
    folder = checkpoints.local_folder(checkpoint)
    files = sorted(folder.glob("*.safetensors")) if folder else []
    return _read_shape(tuple((path, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=32)  # a form calls it at every change
def _read_shape(files: tuple[tuple[Path, int], ...]) -> Shape | None:
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, list[int]] = {}
    try:
        for path, _ in files:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118
                    if not name.startswith(_PRETRAINING_HEADS) and not name.endswith("_ids"):
                        tensors[name] = file.get_slice(name).get_shape()
    except (OSError, SafetensorError):
        return None
    if not tensors:
        return None
    config = disk.read_json(files[0][0].parent / "config.json")
    sizes = {name: math.prod(shape) for name, shape in tensors.items()}
    words = [size for name, size in sizes.items() if name.endswith(_WORD_EMBEDDINGS)]
    layers = [shape for name, shape in tensors.items() if "embed" not in name]
    hidden = _first_number(config, "hidden_size", "dim", "n_embd", "d_model")
    wide, depth, heads = (_first_number(config, *names) for names in _SIZES)
    return Shape(
        parameters=sum(sizes.values()),
        embeddings=max(words, default=0),
        edges=sum(sum(shape) for shape in layers if len(shape) == 2),
        # A decoder beside an encoder mostly has as many layers.
        layers=depth * (2 if config.get("is_encoder_decoder") else 1),
        hidden=hidden,
        wide=wide or 4 * hidden,
        heads=heads,
        family=str(config.get("model_type", "")),
    )


def _first_number(config: Mapping[str, Any], *names: str) -> int:
    values = (config.get(name) for name in names)
    return next((value for value in values if isinstance(value, int)), 0)


def may_remove(store: RunStore) -> bool:
    """True if the store's visitor may see and remove what was downloaded: on one's own machine, or
    as an administrator of a shared app."""
    return store.visitor.policy.owner_asks or store.visitor.admin


def remove_model(store: RunStore, name: str) -> model_cache.CachedModel:
    """Remove a checkpoint from this disk, and return what it was. StoreError if it is not there, if
    the visitor may not, or if a run that has not ended trains it, or another job reads it."""
    if not may_remove(store):
        raise StoreError("Visitors cannot remove checkpoints.", "Ask the app's owner.")
    same = {name} | {entry.name for entry in checkpoint_catalog.CHECKPOINTS if entry.repo == name}
    readers = (store.root.glob(f"{jobs}/*/") for jobs in ("checks", "labels", "probes"))
    for job in map(JobFolder, chain(*readers)):
        named = {job.request.get("checkpoint"), *job.request.get("checkpoints", ())}
        if same & named and job.is_alive():
            fact = _("{name} is being read to check or compare it.")
            raise StoreError(fact, "Try again in a minute.", name=name)
    for run in store.everyone.runs():
        with contextlib.suppress(ConfigError):
            if run.config().checkpoint in same and run.state().status not in ENDED:
                raise StoreError(
                    "{name} is in use by the run {run}.", "Wait until that has ended, or stop it.",
                    name=name, run=run.title(),
                )  # fmt: skip
    return model_cache.remove_model(name)
