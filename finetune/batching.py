"""From sentence pairs to batches of tensors: tokenise, pad each batch to its longest, shuffle.

The course's steps by the course's means. Knows nothing of models or devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from finetune.config import RunConfig
from finetune.data import Pairs


@dataclass(frozen=True)
class Batches:
    """The two loaders of a run; each batch is a dict of tensors of shape (batch, length)."""

    train: DataLoader[Any]
    validation: DataLoader[Any]


def tokenise(split: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """Token ids instead of sentences, cut to `max_length`, unpadded; `label` becomes `labels`.

    The longer sentence of a pair is cut first (`truncation=True`).
    """

    texts = [name for name in ("sentence1", "sentence2") if name in split.column_names]

    def encode(rows: dict[str, list[Any]]) -> Any:
        return tokenizer(*(rows[name] for name in texts), truncation=True, max_length=max_length)

    tokenised = split.map(encode, batched=True, remove_columns=texts)
    return tokenised.rename_column("label", "labels").with_format("torch")


def build(pairs: Pairs, tokenizer: PreTrainedTokenizerBase, config: RunConfig) -> Batches:
    """The loaders of one run.

    The training order comes from a generator of its own, seeded with the run's seed, so that it
    does not depend on what else drew a random number before.
    """
    tokenised = {
        name: tokenise(pairs.splits[name], tokenizer, config.max_length)
        for name in ("train", "validation")
    }
    collator = DataCollatorWithPadding(tokenizer)
    return Batches(
        train=DataLoader(
            tokenised["train"],  # type: ignore[arg-type]
            shuffle=True,
            batch_size=config.per_device_train_batch_size,
            collate_fn=collator,
            generator=torch.Generator().manual_seed(config.seed),
        ),
        validation=DataLoader(
            tokenised["validation"],  # type: ignore[arg-type]
            batch_size=config.per_device_eval_batch_size,
            collate_fn=collator,
            # Without its own, each evaluation would draw from the generator that makes dropout,
            # and how often one evaluates would change what is learned.
            generator=torch.Generator().manual_seed(config.seed),
        ),
    )
