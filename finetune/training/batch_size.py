"""Finds the batch that fits the device's memory, and says what to change when one did not."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size

from finetune.config import RunConfig
from finetune.errors import TrainingError
from finetune.training.dataloaders import Loaders, example_lengths

_LESS = "Lower max_length, or turn gradient_checkpointing or use_lora on."


def find_batch_size(
    config: RunConfig, accelerator: Accelerator, model: torch.nn.Module, batches: Loaders
) -> RunConfig:
    """The configuration with the largest batch that fits, the pairs a step unchanged.

    Tries the whole step's pairs as one batch first, then each smaller divisor of their number: a
    forward and a backward pass of the longest training example, repeated. No random number is
    drawn and no weight changed, so that what is learned does not depend on having tried.

    Source: `accelerate.utils.find_executable_batch_size`.

    Raises:
        TrainingError: when not even one pair fits.
    """
    whole = config.per_device_train_batch_size * config.gradient_accumulation_steps
    divisors = iter([size for size in range(whole - 1, 0, -1) if whole % size == 0])
    lengths = example_lengths(batches.train.dataset)  # type: ignore[arg-type]
    longest = batches.train.dataset[lengths.index(max(lengths))]

    @find_executable_batch_size(  # type: ignore[untyped-decorator]
        starting_batch_size=whole, reduce_batch_size_fn=lambda: next(divisors, 0)
    )
    def attempt(size: int) -> int:
        batch = batches.train.collate_fn([longest] * size)  # type: ignore[misc]
        _try(accelerator, model, {name: t.to(accelerator.device) for name, t in batch.items()})
        return size

    try:
        size = attempt()
    except RuntimeError as error:
        if "No executable batch size" not in str(error):
            raise
        raise TrainingError(
            f"Not even one pair of {max(lengths)} tokens fits the device's memory.", _LESS
        ) from error
    sizes = accelerator.gather(torch.tensor([size], device=accelerator.device))
    size = int(sizes.min().item())  # type: ignore[union-attr]
    return config.changed(
        per_device_train_batch_size=size, gradient_accumulation_steps=whole // size
    )


def _try(accelerator: Accelerator, model: torch.nn.Module, batch: dict[str, Any]) -> None:
    """One pass with the memory that the optimizer and the other ranks' gradients will take."""
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    copies = 2 + (accelerator.num_processes > 1)
    try:
        with torch.random.fork_rng(devices):
            model.to(accelerator.device).train()
            reserved = torch.empty(copies * trained, device=accelerator.device)
            with accelerator.autocast():
                loss = model(**batch).loss
            loss.backward()
            del reserved
    finally:
        model.zero_grad(set_to_none=True)


def out_of_memory_remedy(config: RunConfig) -> str:
    """What to change after the device ran out of memory."""
    size, steps = config.per_device_train_batch_size, config.gradient_accumulation_steps
    if size == 1:
        return _LESS
    half = size // 2 if size % 2 == 0 else 1
    return (
        f"Set per_device_train_batch_size to {half} and gradient_accumulation_steps to "
        f"{steps * size // half}, which learns the same; or turn auto_find_batch_size on. "
        f"per_device_eval_batch_size, {config.per_device_eval_batch_size}, can be lowered too."
    )
