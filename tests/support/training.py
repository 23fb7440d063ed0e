"""Toy runs in the process of the test."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.state import AcceleratorState

from finetune.config import RunConfig
from finetune.data import splits
from finetune.jobs import pipeline
from finetune.runs import events
from finetune.tasks.registry import measured, task_of
from finetune.training import accelerator as engine
from finetune.training import dataloaders, loop, model, recipe

if TYPE_CHECKING:  # benchmarks run without it
    import pytest


def resolved(config: RunConfig) -> RunConfig:
    """The configuration with the batch size and learning rate of a small model on a processor."""
    return recipe.resolve(config, parameters=0, pairs=0, gpu_memory=0, processes=1)


def prepared(
    config: RunConfig, pairs: splits.Pairs, device: torch.device | None = None
) -> tuple[Any, Any, dataloaders.Loaders]:
    """Tokenizer, model and batches of a configuration."""
    config = resolved(config)
    tokenizer, classifier, _ = model.load_classifier(
        config.checkpoint, pairs.target, config.max_length, config.dropout,
        config.attn_implementation,
    )  # fmt: skip
    classifier = model.apply_config(classifier, config)
    return tokenizer, classifier, dataloaders.build_loaders(pairs, tokenizer, config, device)


def stream(
    config: RunConfig, pairs: splits.Pairs, resume: Path | None = None, interval: int = 0,
    **hooks: Any,
) -> tuple[Iterator[events.Event], torch.nn.Module]:  # fmt: skip
    """The events of a run as they happen, and the model that it trains."""
    AcceleratorState._reset_state(reset_partial_state=True)  # of the run before, in this process
    config = resolved(config)
    accelerator = engine.make_accelerator(config)
    _, classifier, batches = prepared(config, pairs, accelerator.device)
    hooks_ = loop.Hooks(**hooks)
    task = task_of(pairs.target)
    metric = task.score_modules(pairs.target, measured(config, pairs.target))
    happening = loop.fit(
        config, accelerator, classifier, batches, task, metric, hooks_, resume, interval=interval
    )
    return happening, classifier


def fit(
    config: RunConfig, pairs: splits.Pairs, **options: Any
) -> tuple[list[events.Event], torch.nn.Module]:
    """All events of a run, and its model."""
    happening, classifier = stream(config, pairs, **options)
    return list(happening), classifier


def losses(happened: list[events.Event]) -> list[float]:
    return [event.loss for event in happened if isinstance(event, events.Stepped)]


def evaluations(happened: list[events.Event]) -> list[events.Evaluated]:
    """Those of the model in training, which has taken a step."""
    return [event for event in happened if isinstance(event, events.Evaluated) and event.step]


def work_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `jobs.train.carry_out_run` leave the test's process as it was."""
    monkeypatch.setattr(pipeline, "_set_environment", lambda config: None)
    monkeypatch.setattr(engine, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(pipeline.StopSwitch, "install", lambda self: None)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # takes long in a process of many tests
