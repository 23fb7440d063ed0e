"""The Hugging Face course's training loop on Accelerate: `Loop.fit` yields its progress as events.

Source: https://huggingface.co/learn/llm-course/chapter3/4
"""

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from transformers import PreTrainedModel

from finetune.config import RunConfig
from finetune.errors import TrainingError
from finetune.metrics import catalog
from finetune.metrics.calibration import Logits
from finetune.metrics.catalog import LOSS
from finetune.metrics.classification import Indices
from finetune.metrics.modules import ScoreModules
from finetune.runs import events
from finetune.runs.events import Event, Phase, PhaseStarted
from finetune.tasks.base import Task
from finetune.tasks.registry import deciding_metric
from finetune.training import recipe
from finetune.training.dataloaders import Loaders
from finetune.training.step import Step, build_optimizer, build_scheduler

Weights = dict[str, torch.Tensor]
_STATE = "loop.pt"  # of a checkpoint: the schedule's and the loop's own state


@dataclass(frozen=True)
class Hooks:
    """Callbacks of the loop with the step; every rank calls each of them."""

    should_stop: Callable[[], bool] = lambda: False  # asked after every step and evaluated batch
    # Also gets the weights if each rank's model has a part of them (FSDP, DeepSpeed).
    save_best: Callable[[int, PreTrainedModel, Weights | None], object] = lambda *_: None
    # Returns score -> the ends of its interval.
    save_predictions: Callable[[int, Logits, Indices], dict[str, list[float]]] = lambda *_: {}
    # Gets a function that writes a checkpoint into a folder.
    save_checkpoint: Callable[[int, Callable[[Path], None]], object] = lambda *_: None
    first_batch: Callable[[dict[str, torch.Tensor]], Iterable[Event]] = lambda batch: ()
    # If no rows are held out: logits and labels of the rows, by models that had not seen them.
    out_of_fold: tuple[Logits, Indices] | None = None


def is_sharded(accelerator: Accelerator) -> bool:
    """True if each rank holds only a part of the weights."""
    return accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED)


class LoopProgress:
    """Progress of the loop; all of it is in every checkpoint."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator  # generator of the training order
        self._began = time.monotonic()
        self.step = 0
        self.best: float | None = None  # best score so far; None before the first evaluation
        self.best_loss = math.inf  # of the best evaluation
        self.waited = 0  # evaluations since the score rose
        self.evaluated = 0  # the step of the last evaluation
        self.validation_loss = math.inf  # of that evaluation
        self.begin_epoch()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def begin_epoch(self) -> None:
        self.batch = 0  # batches of this epoch seen by each rank
        self.order = self._generator.get_state()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        state = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return state | {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore this state; the generator is as it was at the beginning of the epoch."""
        self._began = time.monotonic() - state.pop("seconds")
        vars(self).update(state)
        self._generator.set_state(self.order)


class Loop:
    """The loop of one run, spread over the devices; `fit` carries it out.

    Args:
        model: a classifier whose output has `loss` and `logits` of shape (batch, classes).
        task: defines the loss.
        metric: gets each batch of the validation split, and computes its scores.
        interval: steps between evaluations if decided before; 0 decides them.
    """

    def __init__(
        self,
        config: RunConfig,
        accelerator: Accelerator,
        model: PreTrainedModel,
        batches: Loaders,
        task: Task,
        metric: ScoreModules,
        hooks: Hooks,
        interval: int = 0,
    ) -> None:
        self.config, self.accelerator, self.hooks = config, accelerator, hooks
        self.task, self.metric = task, metric
        self.model, self.optimizer, self.train, self.validation = accelerator.prepare(
            model, build_optimizer(model, config), batches.train, batches.validation
        )
        self.per_epoch, self.total = recipe.count_steps(
            config, len(self.train), accelerator.num_processes
        )
        validation_pairs = len(batches.validation.dataset)  # type: ignore[arg-type]
        self.interval = interval or recipe.eval_every(  # steps between evaluations
            config, self.per_epoch, self.total, accelerator.num_processes, validation_pairs
        )
        if config.trains_on_all:
            self.interval = self.total
        self.scheduler = build_scheduler(self.optimizer, config, self.total)
        self.compute = Step(
            config, accelerator, self.model, self.optimizer, task, batches.class_weights
        )
        self.progress = LoopProgress(batches.train.generator)
        self.rate = 0.0  # of the step just taken, and
        self.norm: Any = None  # its gradient's norm, if it was clipped
        self.plateau = config.lr_scheduler_type == "reduce_lr_on_plateau"  # follows the scores
        self.reset_meter()

    def fit(self, resume: Path | None = None) -> Iterator[Event]:
        """Evaluate, then train, and evaluate as `eval_steps` says. Yields events.

        Ends with `Finished`, or with `Stopped` if `hooks.should_stop` returned True. A stop keeps
        the best evaluated model, or the present one if none was evaluated yet. TrainingError names
        the step at which the loss is not a finite number. From the checkpoint `resume`, of a run of
        the same configuration, the run continues exactly as if it had never ended.
        """
        config, progress = self.config, self.progress
        # 1. Resume from a checkpoint, which may be the run's last; or begin with a score.
        if (yield from self.resume(resume) if resume is not None else self.score_untrained()):
            return
        yield events.EvaluationsPlanned(interval=self.interval)
        yield PhaseStarted(phase=Phase.TRAIN)
        self.reset_meter()
        while progress.step < self.total:
            for batch in self.remaining_batches():
                if not progress.step and not progress.batch:
                    yield from self.hooks.first_batch(batch)
                # 2. Forward and backward; with the last batch of a step, the optimizer's step.
                if not self.train_batch(batch):
                    continue
                yield from self.graphs_given_up()
                # 3. After each step: report, stop, evaluate, write a checkpoint, if it is due.
                if progress.step in (1, self.total) or progress.step % config.logging_steps == 0:
                    yield self.report()
                if self.stop_requested():
                    yield from self.stop()
                    return
                if self.evaluation_due() and (yield from self.evaluate()):
                    return
                if progress.step >= self.total:
                    break
                if self.checkpoint_due():
                    yield from self.write_checkpoint()
                    yield PhaseStarted(phase=Phase.TRAIN)
                    self.reset_meter()
            else:
                progress.begin_epoch()
        yield events.Finished(step=progress.step, seconds=progress.seconds)

    def reset_meter(self) -> None:
        """Restart measuring loss and speed. The losses stay on the device until the report."""
        self.losses: list[torch.Tensor] = []
        self.examples, self.measured_from = 0, time.monotonic()

    def resume(self, folder: Path) -> Generator[Event, None, bool]:
        """Continue from a checkpoint. Returns True if the run ends with it."""
        self.accelerator.load_state(str(folder))
        # Not registered with Accelerate, which would let such a file run code.
        state = torch.load(folder / _STATE, weights_only=True)
        self.scheduler.load_state_dict(state["scheduler"])
        self.progress.load_state_dict(state["progress"])
        yield events.Resumed(step=self.progress.step)
        # It was written after a step, before or after the evaluation due there.
        if self.evaluation_due() and self.progress.evaluated < self.progress.step:
            return (yield from self.evaluate())
        return (yield from self.end_early())

    def remaining_batches(self) -> Iterable[dict[str, torch.Tensor]]:
        """Return the batches of this epoch that were not trained on yet."""
        self.model.train()
        skipped = self.progress.batch
        train = self.accelerator.skip_first_batches(self.train, skipped) if skipped else self.train
        return train  # type: ignore[no-any-return]

    def train_batch(self, batch: dict[str, torch.Tensor]) -> bool:
        """Add a batch's gradient. Returns True if the optimizer stepped with it."""
        config, accelerator, progress = self.config, self.accelerator, self.progress
        progress.batch += 1
        with accelerator.accumulate(self.model):
            self.rate = self.scheduler.get_last_lr()[0]
            # Accelerate divides by `gradient_accumulation_steps`, but the last step of an epoch may
            # have fewer batches; its gradient is their mean, as in `Trainer`.
            size = config.gradient_accumulation_steps
            before = (progress.batch - 1) // size * size
            share = size / min(size, len(self.train) - before)
            loss, *norm = self.compute.add_gradient(batch, share, accelerator.sync_gradients)
            self.norm = norm[0] if norm else self.norm
            stepped = accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped
            if stepped and not self.plateau:
                self.scheduler.step()
        self.losses.append(loss)
        self.examples += len(batch["labels"])
        progress.step += bool(accelerator.sync_gradients)
        return bool(accelerator.sync_gradients)

    def graphs_given_up(self) -> Iterator[Event]:
        """Yield an event, once, if steps are not recorded any more."""
        if reason := self.compute.without_graphs:
            self.compute.without_graphs = ""
            yield events.GraphsGivenUp(step=self.progress.step, reason=reason)

    def report(self) -> Event:
        """Return mean loss and speed since the last report, of all ranks, which it waits for."""
        step, accelerator = self.progress.step, self.accelerator
        loss = accelerator.reduce(torch.stack(self.losses).mean(), reduction="mean").item()
        examples = self.examples * accelerator.num_processes
        speed = examples / max(1e-9, time.monotonic() - self.measured_from)
        self.reset_meter()
        if not math.isfinite(loss):
            raise TrainingError(
                "The training loss became {loss} at step {step}.",
                "Lower learning_rate, set max_grad_norm to 1.0, or turn mixed_precision off.",
                loss=loss,
                step=step,
            )
        return events.Stepped(
            step=step,
            epoch=step / self.per_epoch,
            loss=loss,
            learning_rate=self.rate,
            grad_norm=None if self.norm is None else float(self.norm),
            samples_per_second=speed,
        )

    def stop_requested(self) -> bool:
        """True if any rank is to stop. Costs a small all-reduce if there are several processes."""
        requested = self.hooks.should_stop()
        if self.accelerator.num_processes == 1:
            return requested
        if requested:
            self.accelerator.set_trigger()
        return bool(self.accelerator.check_trigger())

    def evaluation_due(self) -> bool:
        step = self.progress.step
        return step == self.total or step % self.interval == 0

    def checkpoint_due(self) -> bool:
        every = self.config.save_steps or max(0, self.config.eval_steps) or self.per_epoch
        return self.progress.step % every == 0

    def evaluate(self) -> Generator[Event, None, bool]:
        """Score the validation split. Returns True if the run ends with that."""
        evaluated = yield from self._score()
        if evaluated and self.plateau:  # before a stop's checkpoint, which then has it
            self.scheduler.step(self.progress.validation_loss)
        if self.stop_requested():
            yield from self.stop()
            return True
        if (yield from self.end_early()):
            return True
        if self.progress.step < self.total:
            yield PhaseStarted(phase=Phase.TRAIN)
        self.model.train()
        self.reset_meter()
        return False

    def score_untrained(self) -> Generator[Event, None, bool]:
        """Score the model before its first step, where curves begin. Returns True if a stop ended
        the run there. It is no candidate for the best, and is not kept."""
        if self.hooks.out_of_fold is not None:
            return False
        yield PhaseStarted(phase=Phase.EVALUATE_UNTRAINED)
        began = time.monotonic()
        if (predictions := self._predict_validation()) is None:
            yield events.Stopped(step=0, seconds=self.progress.seconds)
            return True
        seconds, scores = time.monotonic() - began, self._scores(*predictions)
        yield events.Evaluated(step=0, epoch=0.0, metrics=scores, seconds=seconds, best=False)
        return False

    def _scores(self, logits: Logits, labels: Indices) -> dict[str, float]:
        """Return the metric of the batches it was given, and the mean loss."""
        return {**self.metric.compute(), LOSS.name: float(self.task.losses(logits, labels).mean())}

    def _score(self) -> Generator[Event, None, bool]:
        """Evaluate and keep the best model. Returns False if a stop interrupted it."""
        yield PhaseStarted(phase=Phase.EVALUATE)
        progress, began = self.progress, time.monotonic()
        predictions = self._predict_validation()
        if predictions is None:
            return False
        logits, labels = predictions
        scores = self._scores(logits, labels)
        progress.evaluated, progress.validation_loss = progress.step, scores[LOSS.name]
        name = deciding_metric(self.config, self.task)
        score = catalog.find(name).rank(scores[name])
        loss = progress.validation_loss
        risen = progress.best is None or score > progress.best
        # Of models that score the same, the surer one.
        best = risen or (score == progress.best and loss < progress.best_loss)
        if self.config.folds:  # nothing is picked by rows whose scores are reported
            risen = best = progress.step == self.total
        if best:
            progress.best, progress.best_loss = score, loss
        progress.waited = 0 if risen else progress.waited + 1
        seconds = time.monotonic() - began
        yield events.Evaluated(
            step=progress.step,
            epoch=progress.step / self.per_epoch,
            metrics=scores,
            seconds=seconds,
            best=best,
            intervals=self.hooks.save_predictions(progress.step, logits, labels),
        )
        if best:
            yield from self._save_model()
        return True

    def _predict_validation(self) -> tuple[Logits, Indices] | None:
        """Predict each validation example once. None if a stop was requested meanwhile."""
        self.model.eval()
        if self.hooks.out_of_fold is not None:
            logits, labels = self.hooks.out_of_fold
            self.metric.add_batch(predictions=logits, references=labels)
            return logits, labels
        batches = []
        for batch in self.validation:
            (predicted,) = self.compute.predict(batch)
            gathered = self.accelerator.gather_for_metrics((predicted, batch["labels"]))
            predictions, references = (tensor.cpu().numpy() for tensor in gathered)
            self.metric.add_batch(predictions=predictions, references=references)
            batches.append((predictions, references))
            if self.stop_requested():
                return None
        logits, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        return logits, labels

    def _save_model(self) -> Iterator[Event]:
        scored, accelerator = self.progress.best is not None, self.accelerator
        yield PhaseStarted(phase=Phase.SAVE_MODEL if scored else Phase.SAVE_UNSCORED_MODEL)
        # Every rank calls this, because each may hold a part of the weights.
        weights = accelerator.get_state_dict(self.model) if is_sharded(accelerator) else None
        self.hooks.save_best(self.progress.step, accelerator.unwrap_model(self.model), weights)
        yield events.Saved(step=self.progress.step)

    def write_checkpoint(self) -> Iterator[Event]:
        yield PhaseStarted(phase=Phase.SAVE_CHECKPOINT)
        self.hooks.save_checkpoint(self.progress.step, self._save_state)

    def _save_state(self, folder: Path) -> None:
        self.accelerator.save_state(str(folder))
        if self.accelerator.is_main_process:
            parts = {"scheduler": self.scheduler, "progress": self.progress}
            states = {name: part.state_dict() for name, part in parts.items()}
            torch.save(states, folder / _STATE)

    def stop(self) -> Iterator[Event]:
        """End the run with a model and a checkpoint, without another evaluation."""
        if self.progress.best is None:
            yield from self._save_model()
        yield from self.write_checkpoint()
        yield events.Stopped(step=self.progress.step, seconds=self.progress.seconds)

    def end_early(self) -> Generator[Event, None, bool]:
        """End the run if the score has stopped rising. Returns True if it has."""
        progress, patience = self.progress, self.config.early_stopping_patience
        ends = 0 < patience <= progress.waited
        if ends:
            yield events.Finished(step=progress.step, seconds=progress.seconds, early=True)
        return ends
