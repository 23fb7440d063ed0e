"""From sentence pairs to batches of tensors: tokenise, pad each batch to its longest, shuffle.

Source: https://huggingface.co/learn/llm-course/chapter3/2
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from torch.utils.data import DataLoader, RandomSampler, Sampler
from transformers import PreTrainedTokenizerBase
from transformers.trainer_pt_utils import LengthGroupedSampler

from finetune.config import RunConfig
from finetune.data import checkpoints, symmetry, truncation
from finetune.data.splits import Pairs
from finetune.errors import DataError, ModelError
from finetune.training import cuda_graphs
from finetune.training.accelerator import choose_precision
from finetune.training.token_batches import Padding, TokenizedSplit

_SAMPLE = 1000  # rows checked for tokens unknown to the tokenizer


@dataclass(frozen=True)
class Loaders:
    """The batches of a run."""

    train: DataLoader[Any]
    validation: DataLoader[Any]
    class_weights: torch.Tensor | None  # in the loss, of shape (classes,); None: equal weights
    either_order: bool = False  # True if each epoch draws the order of each pair anew


def build_loaders(
    pairs: Pairs,
    tokenizer: PreTrainedTokenizerBase,
    config: RunConfig,
    device: torch.device | None = None,
) -> Loaders:
    """Build the loaders of one run, which trains on `device`."""
    either_order = reads_either_order(pairs, config)
    if device is not None and device.type == "cuda" and config.cuda_graphs != "off":
        multiple: int | None = cuda_graphs.width_multiple(config)
    else:
        precision = choose_precision(config.mixed_precision)
        multiple = padding_multiple(config, precision, config.max_length)
    padding = Padding(config.max_length, config.padding == "max_length", multiple or 1)

    def split(texts: Dataset) -> TokenizedSplit:
        tokenized = tokenize(texts, tokenizer, config.max_length)
        return TokenizedSplit(tokenized, tokenizer, padding, device)

    training = split(both_orders(pairs, config, either_order))
    validation = split(pairs.splits["validation"])
    # Each loader has its own generator: other draws of random numbers, such as in an evaluation,
    # change neither the order nor dropout.
    order, evaluation = (torch.Generator().manual_seed(config.seed) for _ in range(2))
    size = config.per_device_train_batch_size
    rows = len(training) // (1 + either_order)
    sampler: Any = RandomSampler(range(rows), generator=order)
    if config.group_by_length and config.padding == "longest":
        lengths = training.lengths[:rows].tolist()
        sampler = LengthGroupedSampler(size, lengths=lengths, generator=order)
    if either_order:
        sampler = EitherOrderSampler(sampler, rows)
    return Loaders(
        _loader(training, size, order, device, sampler),
        _loader(validation, config.per_device_eval_batch_size, evaluation, device),
        balanced_class_weights(pairs.counts["train"]) if config.class_weights != "none" else None,
        either_order,
    )


def _loader(
    split: TokenizedSplit,
    size: int,
    generator: torch.Generator,
    device: torch.device | None,
    sampler: Any = None,
) -> DataLoader[Any]:
    """Build the loader of a split, from pinned memory if a GPU has no room for it."""
    pinned = device is not None and device.type == "cuda" and not split.on_device
    return DataLoader(
        split, size, sampler=sampler, collate_fn=_collated, generator=generator, pin_memory=pinned
    )


def _collated(batch: Any) -> Any:
    """Return a batch as `TokenizedSplit` has made it."""
    return batch


class EitherOrderSampler(Sampler[int]):
    """Draws each row of another sampler in the given order or in the other one, which is `rows`
    behind it. Each epoch is drawn anew."""

    def __init__(self, sampler: Any, rows: int) -> None:
        self.sampler, self.rows, self.generator = sampler, rows, sampler.generator

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        rows = list(self.sampler)
        swapped = torch.randint(0, 2, (len(rows),), generator=self.generator)
        return iter((torch.tensor(rows) + self.rows * swapped).tolist())


def reads_either_order(pairs: Pairs, config: RunConfig) -> bool:
    """True if a run draws each pair's order. False with `swap_augmentation`, which has both."""
    order = config.sentence_order
    if config.swap_augmentation or order == "given":
        return False
    return order == "random" or symmetry.is_symmetric(pairs)


def both_orders(pairs: Pairs, config: RunConfig, either_order: bool) -> Dataset:
    """Return the training pairs, followed by the swapped pairs if a run reads them.

    Raises:
        DataError: if swapped pairs are asked for single sentences.
    """
    train = pairs.splits["train"]
    if not (either_order or config.swap_augmentation):
        return train
    return concatenate_datasets([train, swap_sentences(train)])


def padding_multiple(config: RunConfig, precision: str, longest: int) -> int | None:
    """Return the multiple that batch lengths are rounded up to, if they may have `longest` tokens.
    None: no rounding."""
    multiple = config.pad_to_multiple_of
    if multiple < 0:
        multiple = 0 if precision == "no" else 8  # which tensor cores want
    # Otherwise rounding up could exceed the model's maximum length.
    return multiple if multiple and longest % multiple == 0 else None


def tokenize(split: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """Return token ids instead of sentences, cut to `max_length`, unpadded; `label` becomes
    `labels`."""
    texts = [name for name in ("sentence1", "sentence2") if name in split.column_names]

    longest = checkpoints.characters_read(max_length)

    def encode(rows: dict[str, list[Any]]) -> Any:
        columns = [[text[:longest] for text in rows[name]] for name in texts]
        sentences = truncation.cut_inputs(tokenizer, columns, max_length)
        return tokenizer(*sentences, truncation=True, max_length=max_length)

    size = checkpoints.rows_at_once(split, longest)
    tokenized = split.map(encode, batched=True, batch_size=size, remove_columns=texts)
    return tokenized.rename_column("label", "labels").with_format("torch")


def swap_sentences(split: Dataset) -> Dataset:
    """Return the same pairs in the other order."""
    if "sentence2" not in split.column_names:
        raise DataError(
            "swap_augmentation is on or sentence_order random, but these are single sentences.",
            "Turn it off, and let sentence_order be auto.",
        )
    names = {"sentence1": "sentence2", "sentence2": "sentence1"}
    return split.rename_columns(names).select_columns(split.column_names)


def balanced_class_weights(counts: list[int]) -> torch.Tensor:
    """Return weights inverse to frequency: rows / (classes x rows of the class); 0 for an empty
    class.

    Source: King and Zeng 2001, as scikit-learn's `class_weight="balanced"`.
    """
    present = sum(count > 0 for count in counts)
    return torch.tensor([sum(counts) / (present * count) if count else 0.0 for count in counts])


def check_tokens(
    batches: Loaders, tokenizer: PreTrainedTokenizerBase, checkpoint: str, embeddings: int
) -> None:
    """Check that the tokenizer knows the pairs, and the weights have embeddings for their
    tokens."""
    train: Any = batches.train.dataset
    validation: Any = batches.validation.dataset
    sample = np.random.default_rng(0).permutation(len(train))[:_SAMPLE]
    checkpoints.check_known(checkpoint, tokenizer, [train.token_ids(row) for row in sample])
    largest = max(train.largest_token, validation.largest_token)
    if largest >= embeddings:
        raise ModelError(
            "The tokenizer of {checkpoint} makes token {largest:,}, and its weights know "
            "{embeddings:,}, from 0.",
            "They do not belong together: choose another checkpoint, or bring the tokenizer "
            "that its weights were trained with.",
            checkpoint=checkpoint,
            largest=largest,
            embeddings=embeddings,
        )
