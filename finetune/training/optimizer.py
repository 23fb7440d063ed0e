"""The optimizer and the learning-rate schedule of a configuration."""

from __future__ import annotations

import importlib
import importlib.util
import math
from typing import Any

import torch
from transformers import get_scheduler

from finetune.config import RunConfig
from finetune.errors import ConfigError
from finetune.messages import message as _


def build_optimizer(model: torch.nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    """Build the optimizer of all trained parameters. Biases and norms do not decay unless
    configured."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    least = 0 if config.decay_biases_and_norms else 2  # dimensions of weights that decay
    groups: list[dict[str, Any]] = [{"params": [p for p in trained if p.ndim >= least]}]
    if spared := [p for p in trained if p.ndim < least]:
        groups.append({"params": spared, "weight_decay": 0.0})
    settings: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.optim == "adafactor":
        return torch.optim.Adafactor(groups, **settings)
    settings |= {"betas": (config.adam_beta1, config.adam_beta2), "eps": config.adam_epsilon}
    if config.optim == "adamw_bnb_8bit":
        if not (torch.cuda.is_available() and importlib.util.find_spec("bitsandbytes")):
            problem = _(
                "is adamw_bnb_8bit, which needs a CUDA device and the package bitsandbytes; set it "
                "to adamw_torch_fused"
            )
            raise ConfigError({"optim": problem})
        bitsandbytes = importlib.import_module("bitsandbytes")
        return bitsandbytes.optim.AdamW8bit(groups, **settings)  # type: ignore[no-any-return]
    return torch.optim.AdamW(groups, fused=config.optim == "adamw_torch_fused", **settings)


def build_scheduler(optimizer: Any, config: RunConfig, total: int) -> Any:
    """Build the learning-rate schedule over `total` optimizer steps.

    It is not prepared by Accelerate, which would step it once per process: here a call is a step.
    """
    settings: dict[str, dict[str, Any]] = {
        "cosine_with_min_lr": {"min_lr_rate": 0.1},
        "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
        "warmup_stable_decay": {"num_decay_steps": max(1, total // 5)},
        "polynomial": {"lr_end": min(1e-7, config.learning_rate / 10)},
        "reduce_lr_on_plateau": {"mode": "min", "factor": 0.5, "patience": 0},
    }
    return get_scheduler(
        config.lr_scheduler_type,
        optimizer,
        num_warmup_steps=config.warmup_steps or math.ceil(total * config.warmup_ratio),
        num_training_steps=total,
        scheduler_specific_kwargs=settings.get(config.lr_scheduler_type),
    )
