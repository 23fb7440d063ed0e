"""Tokenizer and classifier from a checkpoint's name; saving and loading them whole.

Weights are read from safetensors only (a pickle runs code when it is opened) and code that
comes with a checkpoint is never run.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from finetune import checkpoints
from finetune.errors import ModelError


def load(
    checkpoint: str, labels: list[str], max_length: int
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """A tokenizer, and a classifier with a new head of one output a label, in fp32.

    Args:
        checkpoint: an offered name, a Hub id, or a folder.
        labels: names of the classes, by index; written into the model's configuration.
        max_length: the longest input in tokens that will be asked of it.

    Raises:
        ModelError: when there is no such checkpoint, it has no safetensors weights, the Hub does
            not answer, or it reads fewer than `max_length` tokens.
    """
    source = checkpoints.resolve(checkpoint)
    try:
        config = AutoConfig.from_pretrained(source)
        limit = getattr(config, "max_position_embeddings", None)
        if limit and max_length > limit:
            raise ModelError(
                f"max_length is {max_length} but {checkpoint} reads at most {limit}.", "Lower it."
            )
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForSequenceClassification.from_pretrained(
            source,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={name: index for index, name in enumerate(labels)},
            problem_type="single_label_classification",
            use_safetensors=True,
            dtype="float32",
            ignore_mismatched_sizes=True,  # a head of another task is replaced
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"The checkpoint {checkpoint!r} cannot be loaded: {_first_line(error)}",
            "Check its name and the network; it must be a text encoder with safetensors "
            "weights. The bundled checkpoint needs no network.",
        ) from error
    return tokenizer, model


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a plain `from_pretrained` folder, aside first, so that a reader never sees a half.

    Raises:
        OSError: when the disk is full or the folder cannot be written; what was there stays.
    """
    aside, old = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
    for leftover in (aside, old):
        shutil.rmtree(leftover, ignore_errors=True)
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    if folder.exists():
        folder.rename(old)
    aside.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def load_saved(folder: Path | str) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """A classifier that `save` wrote, ready to answer.

    Raises:
        ModelError: when the folder is gone or damaged.
    """
    if not (Path(folder) / "config.json").is_file():
        raise ModelError(
            "This run has no saved model.", "Choose a run that was evaluated at least once."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForSequenceClassification.from_pretrained(folder, use_safetensors=True)
    except Exception as error:  # safetensors and tokenizers raise bare Exceptions on damage
        raise ModelError(
            f"The saved model cannot be loaded: {_first_line(error)}", "Train it again."
        ) from error
    return tokenizer, model.eval()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
