"""Counts the steps of a configuration, and the tokens that an example takes in its batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from finetune.config import RunConfig
from finetune.data.check_report import TokenLengths


@dataclass(frozen=True)
class Steps:
    """Optimizer steps and evaluations.

    Args:
        pairs: training examples, both orders counted where both are trained on.
        per_epoch, total: optimizer steps.
        evaluations: of the validation split.
        about: whether the number of pairs is not known exactly.
    """

    pairs: int
    per_epoch: int
    total: int
    evaluations: int
    about: bool = False

    @property
    def epochs(self) -> float:
        """Passes over the pairs, fractional where `max_steps` ends within one."""
        return self.total / self.per_epoch


@dataclass(frozen=True)
class Cut:
    """How many pairs are longer than `max_length`.

    Args:
        share: of the training pairs.
        longest: in tokens.
        about: whether only a part of the rows was measured, or a histogram was read.
    """

    share: float
    longest: int
    about: bool = False


def count_steps(config: RunConfig, pairs: int, about: bool = False) -> Steps:
    """How many steps so many training pairs make, as `loop.count_steps` counts them.

    Args:
        pairs: rows of the training split, each counted once.
        about: whether that number is not exact.
    """
    pairs *= 1 + config.swap_augmentation
    batches = math.ceil(pairs / config.per_device_train_batch_size)
    batches = math.ceil(batches / config.num_processes)
    per_epoch = max(1, math.ceil(batches / config.gradient_accumulation_steps))
    total = config.max_steps if config.max_steps > 0 else per_epoch * config.num_train_epochs
    evaluations = math.ceil(total / (config.eval_steps or per_epoch))
    return Steps(pairs, per_epoch, total, evaluations, about)


def padded_tokens(lengths: TokenLengths, config: RunConfig) -> float:
    """Tokens that an example takes in its batch on average, padding included; 0 where unknown.

    A batch is as long as its longest example: of n draws the largest is at most x with the n-th
    power of the share that is. Batches of like lengths hardly have padding.

    Args:
        lengths: of the training pairs.
    """
    if config.padding == "max_length":
        return float(config.max_length)
    rows = sum(count for _, _, count in lengths.bins)
    if not rows:
        return 0.0
    draws = 1 if config.group_by_length else config.per_device_train_batch_size
    multiple = config.pad_to_multiple_of
    if not multiple or config.max_length % multiple:
        multiple = 1
    below, expected = 0.0, 0.0
    for low, high, count in lengths.bins:
        upto = below + count / rows
        middle = min((low + high - 1) / 2, config.max_length)
        if multiple > 1:
            middle = multiple * math.ceil(middle / multiple)
        expected += middle * (upto**draws - below**draws)
        below = upto
    return expected
