"""The course's training loop on Accelerate: `fit` yields what happens.

Knows tensors and batches; nothing of files, processes, pages or where the data came from.
Source: https://huggingface.co/learn/llm-course/chapter3/4
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from numpy.typing import NDArray
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, get_scheduler

from finetune.config import RunConfig
from finetune.errors import ConfigError, TrainingError
from finetune.phases import Phase
from finetune.runs.events import (
    Evaluated,
    Event,
    Finished,
    PhaseStarted,
    Resumed,
    Saved,
    Stepped,
    Stopped,
)
from finetune.training.dataloaders import Loaders
from finetune.training.metrics import cross_entropy

Logits = NDArray[np.float32]
Labels = NDArray[np.int64]
Weights = dict[str, torch.Tensor]
# What is saved, where that is not the best model.


@dataclass(frozen=True)
class Hooks:
    """What the loop asks of the world around it; every rank calls each of them.

    Args:
        should_stop: whether someone asked for an end; asked after every step.
        save_best: takes the step and writes the unwrapped model; called when an evaluation was the
            best so far, with its whole weights where the ranks each hold a part (FSDP, DeepSpeed),
            else None.
        save_predictions: takes the step, logits (examples, classes) and labels (examples,); called
            before the evaluation is told of.
        intervals: takes the same logits and labels; score -> the ends of its interval.
        save_checkpoint: takes the step and a function that writes everything a later `fit` needs
            to go on from here into a folder; every rank calls both.
        peek: takes the run's first batch; what there is to tell of it.
    """

    should_stop: Callable[[], bool] = lambda: False
    save_best: Callable[[int, PreTrainedModel, Weights | None], None] = (
        lambda step, model, weights: None
    )
    save_predictions: Callable[[int, Logits, Labels], None] = lambda step, logits, labels: None
    intervals: Callable[[Logits, Labels], dict[str, list[float]]] = lambda logits, labels: {}
    save_checkpoint: Callable[[int, Callable[[Path], None]], None] = lambda step, write: None
    peek: Callable[[dict[str, torch.Tensor]], Iterable[Event]] = lambda batch: ()


class LoopProgress:
    """Where the loop is; all of it is in every checkpoint.

    Attributes:
        step: optimizer steps taken.
        batch: batches of this epoch seen by each rank.
        order: state of the order's generator when this epoch began.
        best: the best score so far; None before the first evaluation.
        waited: evaluations since that one; scores are known to the main process alone.
        evaluated: the step of the last evaluation, and
        validation_loss: its loss.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._began = time.monotonic()
        self.step = 0
        self.batch = 0
        self.order = generator.get_state()
        self.best: float | None = None
        self.waited = 0
        self.evaluated = 0
        self.validation_loss = math.inf

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def next_epoch(self) -> None:
        """An epoch begins: its order is drawn from the generator as it is now."""
        self.batch = 0
        self.order = self._generator.get_state()

    def state_dict(self) -> dict[str, Any]:
        """What Accelerate writes into a checkpoint."""
        return {
            "step": self.step,
            "batch": self.batch,
            "order": self.order,
            "best": self.best,
            "waited": self.waited,
            "evaluated": self.evaluated,
            "validation_loss": self.validation_loss,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What Accelerate reads from one; the generator is as it was when the epoch began."""
        self._began = time.monotonic() - state.pop("seconds")
        for name, value in state.items():
            setattr(self, name, value)
        self._generator.set_state(self.order)


class ThroughputMeter:
    """Mean loss and speed since the last report, kept on the device until then."""

    def __init__(self, accelerator: Accelerator, every: int) -> None:
        self._accelerator = accelerator
        self._every = every
        self.reset()

    def reset(self) -> None:
        """Begin a new interval now; called after an evaluation, whose time is not training's."""
        self._loss: torch.Tensor | None = None
        self._batches = 0
        self._examples = 0
        self._began = time.monotonic()

    def add(self, loss: torch.Tensor, examples: int) -> None:
        loss = loss.detach().float()
        self._loss = loss if self._loss is None else self._loss + loss
        self._batches += 1
        self._examples += examples

    def due(self, step: int, last: int) -> bool:
        return step == 1 or step == last or step % self._every == 0

    def report(self, step: int, epoch: float, rate: float, norm: Any) -> Stepped:
        """Waits for the device and for every rank, so only on logging steps."""
        assert self._loss is not None, "report before the first batch"
        loss = self._accelerator.reduce(self._loss / self._batches, reduction="mean").item()
        if not math.isfinite(loss):
            raise TrainingError(
                f"The training loss became {loss} at step {step}.",
                "Lower learning_rate, set max_grad_norm to 1.0, or turn mixed_precision off.",
            )
        examples = self._examples * self._accelerator.num_processes
        event = Stepped(
            step=step,
            epoch=epoch,
            loss=loss,
            learning_rate=rate,
            grad_norm=None if norm is None else float(norm),
            samples_per_second=examples / max(1e-9, time.monotonic() - self._began),
        )
        self.reset()
        return event


def count_steps(config: RunConfig, batches_per_epoch: int) -> tuple[int, int]:
    """Optimizer steps an epoch and in all.

    Args:
        batches_per_epoch: batches each process sees in one epoch.
    """
    per_epoch = math.ceil(batches_per_epoch / config.gradient_accumulation_steps)
    total = config.max_steps if config.max_steps > 0 else per_epoch * config.num_train_epochs
    return per_epoch, total


def build_optimizer(model: torch.nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    """The optimizer over every parameter that is trained; biases and norms are spared from decay
    when so configured.

    Raises:
        ConfigError: when the machine lacks what the optimizer needs.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    spared = [] if config.decay_biases_and_norms else [p for p in trained if p.ndim < 2]
    ids = {id(p) for p in spared}
    groups: list[dict[str, Any]] = [{"params": [p for p in trained if id(p) not in ids]}]
    if spared:
        groups.append({"params": spared, "weight_decay": 0.0})
    if config.optim == "adafactor":
        return torch.optim.Adafactor(
            groups, lr=config.learning_rate, weight_decay=config.weight_decay
        )
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "weight_decay": config.weight_decay,
        "betas": (config.adam_beta1, config.adam_beta2),
        "eps": config.adam_epsilon,
    }
    if config.optim == "adamw_bnb_8bit":
        return _eight_bit(groups, settings)
    return torch.optim.AdamW(groups, fused=config.optim == "adamw_torch_fused", **settings)


def _eight_bit(groups: list[dict[str, Any]], settings: dict[str, Any]) -> torch.optim.Optimizer:
    missing = ""
    if not torch.cuda.is_available():
        missing = "a CUDA device, and there is none"
    elif importlib.util.find_spec("bitsandbytes") is None:
        missing = "the package bitsandbytes, which is not installed"
    if missing:
        problem = f"is adamw_bnb_8bit, which needs {missing}; set it to adamw_torch_fused"
        raise ConfigError({"optim": problem})
    bitsandbytes = importlib.import_module("bitsandbytes")
    made: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(groups, **settings)
    return made


def build_scheduler(optimizer: Any, config: RunConfig, total: int) -> Any:
    """The schedule of the rate over `total` optimizer steps.

    Not prepared by Accelerate, which would step it once a process; here one call is one step.
    """
    extra: dict[str, dict[str, Any]] = {
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
        scheduler_specific_kwargs=extra.get(config.lr_scheduler_type),
    )


def training_loss(
    outputs: Any, labels: torch.Tensor, config: RunConfig, weights: torch.Tensor | None
) -> torch.Tensor:
    """The model's own loss, unless smoothed labels or weighed classes are asked for."""
    if weights is None and not config.label_smoothing_factor:
        return outputs.loss  # type: ignore[no-any-return]
    return torch.nn.functional.cross_entropy(
        outputs.logits.float(),
        labels,
        weight=weights,
        label_smoothing=config.label_smoothing_factor,
    )


def fit(
    config: RunConfig,
    accelerator: Accelerator,
    model: PreTrainedModel,
    batches: Loaders,
    metric: evaluate.Metric,
    hooks: Hooks | None = None,
    resume: Path | None = None,
) -> Iterator[Event]:
    """Train, and evaluate after each epoch or every `eval_steps`; yield what happens.

    Ends with `Finished`, or with `Stopped` when `hooks.should_stop` said so; then the model kept
    is the best evaluated, or the present one where none was evaluated yet.

    Args:
        config: the hyperparameters.
        accelerator: made with the configuration's mixed precision and accumulation.
        model: a classifier whose output has `loss` and `logits` of shape (batch, classes).
        batches: loaders of tokenised pairs with `labels` of shape (batch,).
        metric: scores predicted classes; its result's keys are the metrics' names.
        hooks: what to do with results, and when to stop.
        resume: a folder that `Hooks.save_checkpoint` was given by a run of the same
            configuration; the rest of the run is then the same as if it had never ended.

    Raises:
        TrainingError: when the loss is not a finite number, naming the step.
    """
    hooks = hooks or Hooks()
    optimizer = build_optimizer(model, config)
    model, optimizer, train, validation = accelerator.prepare(
        model, optimizer, batches.train, batches.validation
    )
    per_epoch, total = count_steps(config, len(train))
    scheduler = build_scheduler(optimizer, config, total)
    weights = None
    if batches.class_weights is not None:
        weights = torch.tensor(batches.class_weights, device=accelerator.device)
    progress = LoopProgress(batches.order)
    accelerator.register_for_checkpointing(scheduler, progress)
    loop = _Loop(config, accelerator, model, scheduler, validation, metric, hooks, progress)
    loop.per_epoch, loop.total = per_epoch, total
    if resume is not None:
        accelerator.load_state(str(resume))
        yield Resumed(step=progress.step)
        # Stopped between a step and the evaluation due after it, or between that and the end.
        if loop.evaluation_due() and progress.evaluated < progress.step:
            ended = yield from loop.score()
        else:
            ended = yield from loop.end_early()
        if ended:
            return
    meter = ThroughputMeter(accelerator, config.logging_steps)
    yield PhaseStarted(phase=Phase.TRAIN)
    while progress.step < total:
        model.train()
        seen = progress.batch
        for batch in accelerator.skip_first_batches(train, seen) if seen else train:
            if not progress.step and not progress.batch:
                yield from hooks.peek(batch)
            progress.batch += 1
            with accelerator.accumulate(model):
                rate = scheduler.get_last_lr()[0]
                loss = training_loss(model(**batch), batch["labels"], config, weights)
                accelerator.backward(loss * _window_scale(progress.batch, len(train), config))
                norm = _clip(accelerator, model, config.max_grad_norm)
                optimizer.step()
                stepped = accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped
                if stepped and not loop.plateau:
                    scheduler.step()
                optimizer.zero_grad()
            meter.add(loss, len(batch["labels"]))
            if not accelerator.sync_gradients:
                continue
            progress.step += 1
            if meter.due(progress.step, total):
                yield meter.report(progress.step, progress.step / per_epoch, rate, norm)
            if loop.stop_asked():
                yield from loop.stop()
                return
            if loop.evaluation_due():
                if (yield from loop.score()):
                    return
                model.train()
                meter.reset()
            if progress.step >= total:
                break
            if loop.checkpoint_due():
                yield from loop.checkpoint()
                meter.reset()
        else:
            progress.next_epoch()
    yield Finished(step=progress.step, seconds=progress.seconds)


def predict_split(
    accelerator: Accelerator,
    model: Any,
    loader: DataLoader[Any],
    metric: evaluate.Metric,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[dict[str, float], Logits, Labels] | None:
    """Metrics, logits (examples, classes) and labels (examples,) of a whole split.

    Every example counts once, however the ranks shared them. Only the main process gets
    metrics; the others get an empty dict. None when `should_stop` ended it early.
    """
    model.eval()
    logits: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    for batch in loader:
        with torch.no_grad():
            outputs = model(**batch)
        found, wanted = accelerator.gather_for_metrics((outputs.logits.float(), batch["labels"]))
        if accelerator.is_main_process:
            metric.add_batch(predictions=found.argmax(dim=-1), references=wanted)
        logits.append(found.cpu())
        labels.append(wanted.cpu())
        if _agreed(accelerator, should_stop()):
            if accelerator.is_main_process:
                metric.compute()  # empties it for the next evaluation
            return None
    scores = metric.compute() if accelerator.is_main_process else {}
    return scores or {}, torch.cat(logits).numpy(), torch.cat(labels).numpy()


@dataclass
class _Loop:
    """What one `fit` works with once it is prepared, and what it does between steps."""

    config: RunConfig
    accelerator: Accelerator
    model: Any
    scheduler: Any
    validation: DataLoader[Any]
    metric: evaluate.Metric
    hooks: Hooks
    progress: LoopProgress
    per_epoch: int = 0
    total: int = 0

    @property
    def plateau(self) -> bool:
        """Whether the rate follows the validation loss rather than the steps."""
        return self.config.lr_scheduler_type == "reduce_lr_on_plateau"

    def stop_asked(self) -> bool:
        return _agreed(self.accelerator, self.hooks.should_stop())

    def evaluation_due(self) -> bool:
        step = self.progress.step
        return step % (self.config.eval_steps or self.per_epoch) == 0 or step == self.total

    def checkpoint_due(self) -> bool:
        every = self.config.save_steps
        return self.progress.step % every == 0 if every else self.evaluation_due()

    def score(self) -> Generator[Event, None, bool]:
        """Evaluate, keep the model if it is the best; whether the run ends with that."""
        yield from self._evaluate()
        evaluated = self.progress.evaluated == self.progress.step  # or a stop has ended it
        if evaluated and self.plateau:  # first, so that the checkpoint of a stop has it
            self.scheduler.step(self.progress.validation_loss)
        if self.stop_asked():
            yield from self.stop()
            return True
        if (yield from self.end_early()):
            return True
        if self.progress.step < self.total:
            yield PhaseStarted(phase=Phase.TRAIN)
        return False

    def end_early(self) -> Generator[Event, None, bool]:
        """End the run where the score has stopped rising; whether it has."""
        progress, patience = self.progress, self.config.early_stopping_patience
        if not (patience and _agreed(self.accelerator, progress.waited >= patience)):
            return False
        yield Finished(step=progress.step, seconds=progress.seconds, early=True)
        return True

    def _evaluate(self) -> Iterator[Event]:
        yield PhaseStarted(phase=Phase.EVALUATE)
        progress, began = self.progress, time.monotonic()
        result = predict_split(
            self.accelerator, self.model, self.validation, self.metric, self.hooks.should_stop
        )
        if result is None:
            return
        scores, logits, labels = result
        progress.evaluated = progress.step
        progress.validation_loss = cross_entropy(logits, labels)
        scores = {**scores, "loss": progress.validation_loss} if scores else {}
        best = _is_better(self.config.metric_for_best_model, scores, progress)
        progress.waited = 0 if best else progress.waited + bool(scores)
        self.hooks.save_predictions(progress.step, logits, labels)
        yield Evaluated(
            step=progress.step,
            epoch=progress.step / self.per_epoch,
            metrics=scores,
            seconds=time.monotonic() - began,
            best=best,
            intervals=self.hooks.intervals(logits, labels) if scores else {},
        )
        if _agreed(self.accelerator, best):
            yield from self._save()

    def _save(self) -> Iterator[Event]:
        scored = self.progress.best is not None
        yield PhaseStarted(phase=Phase.SAVE_MODEL if scored else Phase.SAVE_UNSCORED_MODEL)
        # Every rank comes here, for each may hold a part of the weights.
        weights = (
            self.accelerator.get_state_dict(self.model) if is_sharded(self.accelerator) else None
        )
        plain = self.accelerator.unwrap_model(self.model)
        self.hooks.save_best(self.progress.step, plain, weights)
        yield Saved(step=self.progress.step)

    def checkpoint(self) -> Iterator[Event]:
        """Write everything needed to go on from here."""
        yield PhaseStarted(phase=Phase.SAVE_CHECKPOINT)
        self.hooks.save_checkpoint(self.progress.step, self._write)
        yield PhaseStarted(phase=Phase.TRAIN)

    def _write(self, folder: Path) -> None:
        self.accelerator.save_state(str(folder))

    def stop(self) -> Iterator[Event]:
        """End here, with a model and a checkpoint; nothing is evaluated any more."""
        unsaved = self.progress.best is None and self.accelerator.is_main_process
        if _agreed(self.accelerator, unsaved):
            yield from self._save()
        yield PhaseStarted(phase=Phase.SAVE_CHECKPOINT)
        self.hooks.save_checkpoint(self.progress.step, self._write)
        yield Stopped(step=self.progress.step, seconds=self.progress.seconds)


def _is_better(name: str, scores: dict[str, float], progress: LoopProgress) -> bool:
    """Only the main process has scores, and only its answer is written down."""
    if name not in scores:
        return False
    value = -scores[name] if name == "loss" else scores[name]
    if progress.best is not None and not value > progress.best:
        return False
    progress.best = value
    return True


def _window_scale(batch: int, per_epoch: int, config: RunConfig) -> float:
    """What Accelerate's division by `gradient_accumulation_steps` is corrected by, where the last
    window of an epoch holds fewer batches: its gradient is their mean, as in `Trainer`.

    Args:
        batch: number of the batch in its epoch, from 1.
        per_epoch: batches in an epoch.
    """
    size = config.gradient_accumulation_steps
    before = (batch - 1) // size * size
    return size / min(size, per_epoch - before)


def _clip(accelerator: Accelerator, model: Any, max_grad_norm: float) -> Any:
    if not (accelerator.sync_gradients and max_grad_norm > 0):
        return None
    return accelerator.clip_grad_norm_(model.parameters(), max_grad_norm)


def is_sharded(accelerator: Accelerator) -> bool:
    """Whether each rank holds only a part of the weights."""
    return accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED)


def _agreed(accelerator: Accelerator, mine: bool) -> bool:
    """Whether any rank wants to; one small all-reduce, and none where there is one process."""
    if accelerator.num_processes == 1:
        return mine
    if mine:
        accelerator.set_trigger()
    return bool(accelerator.check_trigger())
