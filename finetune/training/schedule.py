"""How many steps a run takes, and when it is scored. Loads no torch: estimates ask it too."""

from __future__ import annotations

import math

from finetune.config import RunConfig

COUNTS = (10, 7, 5, 3, 2, 1)  # evaluations of a run; few choices, so that two runs agree
SHARE = 0.1  # of the training time that evaluations may take together
_EPOCHS = 167  # of one pair, where they are left open: 4 of the bundled pairs, 3 of MRPC
_MOST_EPOCHS = 10
FREE_SECONDS = 1.0  # that they may always take: a tenth of what a run takes to load


def count_steps(config: RunConfig, batches_per_epoch: int, processes: int) -> tuple[int, int]:
    """Optimizer steps an epoch and in all; `batches_per_epoch` are those of each process."""
    per_epoch = math.ceil(batches_per_epoch / config.gradient_accumulation_steps)
    if config.max_steps > 0:
        return per_epoch, config.max_steps
    pairs = batches_per_epoch * processes * config.per_device_train_batch_size
    chosen = min(_MOST_EPOCHS, max(1, round(_EPOCHS / math.sqrt(pairs))))
    return per_epoch, per_epoch * (config.num_train_epochs or chosen)


def first_evaluation(total: int) -> int:
    """The first step at which an evaluation may be due where `eval_steps` is automatic."""
    return math.ceil(total / COUNTS[0])


def configured_interval(config: RunConfig, per_epoch: int, total: int) -> int:
    """Optimizer steps between evaluations; 0 where the run measures what it can afford.

    Where evaluations decide the learning rate or the end, no clock decides on them.
    """
    if config.eval_steps >= 0:
        return config.eval_steps or per_epoch
    follows_scores = config.lr_scheduler_type == "reduce_lr_on_plateau"
    fixed = config.deterministic or config.early_stopping_patience or follows_scores
    return first_evaluation(total) if fixed else 0


def affordable_interval(total: int, training_seconds: float, evaluation_seconds: float) -> int:
    """Optimizer steps between evaluations: ten in all, or as many as take a tenth of the time.

    Args:
        training_seconds: of all `total` steps without evaluations.
        evaluation_seconds: of one.
    """
    allowed = max(FREE_SECONDS, SHARE * training_seconds)
    count = next((n for n in COUNTS if n * evaluation_seconds <= allowed), 1)
    return math.ceil(total / count)
