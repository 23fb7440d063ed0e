"""Number of steps of a run, and steps between evaluations. Imports no torch, so that estimates can
use it."""

from __future__ import annotations

import math

from finetune.config import RunConfig

MOST_EVALUATIONS = 10  # of one run
# Validation pairs that all evaluations of a run may score, per pair trained on. Scoring a pair
# takes a fifth to a half of the time of training on it, so evaluations take about a tenth.
SHARE = 0.2
FREE_PAIRS = 500  # pairs that may always be scored
_EPOCHS = 167  # epochs for one pair, if left open; 4 for the bundled pairs, 3 for MRPC
_MOST_EPOCHS = 10


def count_steps(config: RunConfig, batches_per_epoch: int, processes: int) -> tuple[int, int]:
    """Return optimizer steps per epoch and in all; `batches_per_epoch` are those of each
    process."""
    per_epoch = math.ceil(batches_per_epoch / config.gradient_accumulation_steps)
    if config.max_steps > 0:
        return per_epoch, config.max_steps
    pairs = batches_per_epoch * processes * config.per_device_train_batch_size
    return per_epoch, per_epoch * epochs(config, pairs)


def epochs(config: RunConfig, pairs: int) -> int:
    """Return the passes over this many training pairs; fewer for more pairs if left open."""
    chosen = min(_MOST_EPOCHS, max(1, round(_EPOCHS / math.sqrt(pairs))))
    return config.num_train_epochs or chosen


def eval_every(
    config: RunConfig, per_epoch: int, total: int, processes: int, validation_pairs: int
) -> int:
    """Return the optimizer steps between evaluations.

    If `eval_steps` leaves it open there are ten evaluations, or fewer if the validation split is
    large compared with the training pairs. No clock decides, so the same run keeps its best of
    the same models on any machine. There are ten if the scores decide on the rate or the end.

    Args:
        per_epoch, total: as `count_steps` returns them.
        validation_pairs: 0 if unknown.
    """
    if config.eval_steps >= 0:
        return config.eval_steps or per_epoch
    count = MOST_EVALUATIONS
    follows_scores = config.lr_scheduler_type == "reduce_lr_on_plateau"
    if validation_pairs and not (config.early_stopping_patience or follows_scores):
        batch = config.per_device_train_batch_size * config.gradient_accumulation_steps
        affordable = max(FREE_PAIRS, SHARE * total * batch * processes) // validation_pairs
        count = min(count, max(1, int(affordable)))
    return math.ceil(total / count)
