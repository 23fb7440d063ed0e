"""Accelerate's engine for a configuration, and facts about its device."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.config import RunConfig
from finetune.environment import devices
from finetune.errors import ConfigError
from finetune.messages import message as _

if TYPE_CHECKING:
    from accelerate import Accelerator


def make_accelerator(config: RunConfig, folder: Path | None = None) -> Accelerator:
    """Accelerate's engine for a configuration, every random generator seeded; with the trackers
    asked for where a folder for their files is named.

    Raises:
        ConfigError: when the hardware lacks the precision asked for, or a tracker its package.
    """
    import torch
    from accelerate import Accelerator
    from accelerate.utils import TorchDynamoPlugin, set_seed

    from finetune.training import trackers

    compiled = TorchDynamoPlugin(backend="inductor", dynamic=True) if config.torch_compile else None
    try:
        accelerator = Accelerator(
            **(trackers.tracker_settings(config, folder) if folder is not None else {}),
            # Said outright, or several processes without a GPU would each train alone.
            cpu=not torch.accelerator.is_available(),
            mixed_precision=choose_precision(config.mixed_precision),
            gradient_accumulation_steps=config.gradient_accumulation_steps,
            dynamo_plugin=compiled,
        )
    except ValueError as error:
        problem = _(
            "is {mixed_precision}, which this hardware lacks ({error}); set it to no",
            mixed_precision=config.mixed_precision,
            error=error,
        )
        raise ConfigError({"mixed_precision": problem}) from error
    set_seed(config.seed, deterministic=config.deterministic)
    return accelerator


def choose_precision(setting: str) -> str:
    """Accelerate's word for a `mixed_precision`; `auto` takes bf16 where the hardware computes in
    it: GPUs from Ampere on, CPUs with AVX512-BF16 or AMX."""
    if setting != "auto":
        return setting
    return "bf16" if devices.computes_bf16() else "no"


def device_name(accelerator: Accelerator) -> str:
    """What to call the device on a page: `NVIDIA H100`, `CPU (2 threads)`."""
    import torch

    device = accelerator.device
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = f" ({torch.get_num_threads()} threads)" if device.type == "cpu" else ""
    return f"{device.type.upper()}{threads}"


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the process: each step takes and frees the same hundreds of
    megabytes on a CPU, and a tenth of it would be page faults."""
    max_mappings, trim_threshold = -4, -1  # M_MMAP_MAX and M_TRIM_THRESHOLD of malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another system, another C library
        library = ctypes.CDLL(None)
        library.mallopt(max_mappings, 0)
        library.mallopt(trim_threshold, 2**31 - 1)
