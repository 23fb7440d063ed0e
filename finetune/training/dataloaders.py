"""From sentence pairs to batches of tensors: tokenise, pad each batch to its longest, shuffle.

The course's steps by the course's means. Knows nothing of models or devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, concatenate_datasets
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase
from transformers.trainer_pt_utils import LengthGroupedSampler

from finetune.config import RunConfig
from finetune.data import checkpoints
from finetune.data.splits import Pairs
from finetune.errors import DataError, ModelError

_LOOKED_AT = 1000  # rows of which it is seen whether the tokenizer knows them


@dataclass(frozen=True)
class Loaders:
    """The two loaders of a run; each batch is a dict of tensors of shape (batch, length).

    Args:
        order: what the training order is drawn from, at the start of each epoch.
        class_weights: what each class counts in the training loss; None where all count the same.
    """

    train: DataLoader[Any]
    validation: DataLoader[Any]
    order: torch.Generator
    class_weights: list[float] | None = None


def tokenize(split: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """Token ids instead of sentences, cut to `max_length`, unpadded; `label` becomes `labels`.

    The longer sentence of a pair is cut first (`truncation=True`).
    """

    texts = [name for name in ("sentence1", "sentence2") if name in split.column_names]

    def encode(rows: dict[str, list[Any]]) -> Any:
        return tokenizer(*(rows[name] for name in texts), truncation=True, max_length=max_length)

    tokenised = split.map(encode, batched=True, remove_columns=texts)
    return tokenised.rename_column("label", "labels").with_format("torch")


def swap_sentences(split: Dataset) -> Dataset:
    """The same pairs in the other order, the same columns in the same places.

    Raises:
        DataError: when there is one sentence only.
    """
    if "sentence2" not in split.column_names:
        raise DataError("swap_augmentation is on, but these are single sentences.", "Turn it off.")
    names = {"sentence1": "sentence2", "sentence2": "sentence1"}
    return split.rename_columns(names).select_columns(split.column_names)


def example_lengths(tokenised: Dataset) -> list[int]:
    """Length of every example in tokens, in order; reads the lists' offsets, not the tokens."""
    found: list[int] = []
    for batch in tokenised.with_format("arrow").iter(10_000):
        found += pc.list_value_length(batch.column("input_ids")).to_pylist()
    return found


def check(
    batches: Loaders, tokenizer: PreTrainedTokenizerBase, checkpoint: str, embeddings: int
) -> None:
    """See that a checkpoint's tokenizer knows the pairs, and its weights all of their tokens.

    Args:
        checkpoint: what the configuration calls it.
        embeddings: of how many tokens its weights know.

    Raises:
        ModelError: when one does not.
    """
    train: Any = batches.train.dataset
    drawn = np.random.default_rng(0).permutation(len(train))[:_LOOKED_AT]
    rows = train.with_format("arrow")[np.sort(drawn)].column("input_ids").to_pylist()
    checkpoints.check_known(checkpoint, tokenizer, rows)
    validation: Any = batches.validation.dataset
    for split in (train, validation):
        for batch in split.with_format("arrow").iter(10_000):
            largest = pc.max(pc.list_flatten(batch.column("input_ids"))).as_py()
            if largest is not None and largest >= embeddings:
                raise ModelError(
                    f"The tokenizer of {checkpoint} makes token {largest:,}, and its weights know "
                    f"{embeddings:,}, from 0.",
                    "They do not belong together: choose another checkpoint, or bring the "
                    "tokenizer that its weights were trained with.",
                )


def build_loaders(pairs: Pairs, tokenizer: PreTrainedTokenizerBase, config: RunConfig) -> Loaders:
    """The loaders of one run.

    The training order comes from a generator of its own, seeded with the run's seed, so that it
    does not depend on what else drew a random number before.
    """
    train = pairs.splits["train"]
    if config.swap_augmentation:
        train = concatenate_datasets([train, swap_sentences(train)])
    tokenised = {
        "train": tokenize(train, tokenizer, config.max_length),
        "validation": tokenize(pairs.splits["validation"], tokenizer, config.max_length),
    }
    # Where max_length is no multiple, rounding up could pass what the model reads.
    multiple = config.pad_to_multiple_of
    rounded = bool(multiple) and config.max_length % multiple == 0
    collator = DataCollatorWithPadding(
        tokenizer,
        padding=config.padding,
        max_length=config.max_length,
        pad_to_multiple_of=multiple if rounded else None,
    )
    generator = torch.Generator().manual_seed(config.seed)
    order: dict[str, Any] = {"shuffle": True}
    if config.group_by_length and config.padding == "longest":
        size = config.per_device_train_batch_size
        order = {"sampler": LengthGroupedSampler(size, lengths=example_lengths(tokenised["train"]),
                                                 generator=generator)}  # fmt: skip
    return Loaders(
        train=DataLoader(
            tokenised["train"],  # type: ignore[arg-type]
            batch_size=config.per_device_train_batch_size,
            collate_fn=collator,
            generator=generator,
            **order,
        ),
        validation=DataLoader(
            tokenised["validation"],  # type: ignore[arg-type]
            batch_size=config.per_device_eval_batch_size,
            collate_fn=collator,
            # Without its own, each evaluation would draw from the generator that makes dropout,
            # and how often one evaluates would change what is learned.
            generator=torch.Generator().manual_seed(config.seed),
        ),
        order=generator,
        class_weights=balanced_class_weights(pairs.counts["train"])
        if config.class_weights != "none"
        else None,
    )


def balanced_class_weights(counts: list[int]) -> list[float]:
    """Weights inverse to frequency: rows / (classes x rows of the class); 0 for an empty class.

    Source: King and Zeng 2001, as scikit-learn's `class_weight="balanced"`.
    """
    present = sum(count > 0 for count in counts)
    return [sum(counts) / (present * count) if count else 0.0 for count in counts]
