"""The optimizer with its schedule, and what is computed of a batch: its gradient with the step, and
predictions."""

import importlib
import importlib.util
import math
from typing import Any

import torch
from accelerate import Accelerator
from transformers import get_scheduler

from finetune.config import RunConfig
from finetune.errors import ConfigError
from finetune.messages import message as _
from finetune.tasks.base import Task
from finetune.training import cuda_graphs
from finetune.training.cuda_graphs import Batch, Outputs, Recorded, RecordedStep, Work


class Step:
    """The computations of a run, with a model and an optimizer that Accelerate prepared. On a GPU
    they are recorded, so none of them may wait for it. `class_weights` are those of the loss, of
    shape (classes,); None: equal weights."""

    def __init__(
        self,
        config: RunConfig,
        accelerator: Accelerator,
        model: Any,
        optimizer: Any,
        task: Task,
        class_weights: torch.Tensor | None,
    ) -> None:
        self._config, self._accelerator, self._task = config, accelerator, task
        self._model, self._optimizer = model, optimizer
        self._class_weights = (
            None if class_weights is None else class_weights.to(accelerator.device)
        )
        self._keeps_gradients = False
        # Called with a batch, its share of the gradient, and whether it is a step's last. Adds its
        # gradient and, if it is the last, takes the step. Returns the loss, and the norm of the
        # step's gradient if it is clipped.
        self.add_gradient: Work = self._add_gradient
        # Returns the logits of a batch, in fp32.
        self.predict: Work = self._predict
        self.without_graphs = ""  # why steps are not recorded any more
        recorder = cuda_graphs.recorder_for(config, accelerator, model)
        if recorder is not None:
            self._keeps_gradients = config.gradient_accumulation_steps > 1
            half = accelerator.mixed_precision != "no"
            close = cuda_graphs.CLOSE_IN_HALF if half else cuda_graphs.CLOSE
            options: Any = {"log": print, "given_up": self._give_up_graphs, "close": close}
            self.predict = Recorded(self._predict, recorder, **options)
            self.add_gradient = RecordedStep(
                self._add_gradient, recorder, self._loss, optimizer, accelerator.scaler,
                self._keeps_gradients, **options,
            )  # fmt: skip

    def _give_up_graphs(self, reason: str) -> None:
        """Free all graphs: those of one kind may hold the memory that the other needs."""
        self.without_graphs = reason
        for work in (self.predict, self.add_gradient):
            if isinstance(work, Recorded):
                work.stop()

    def _add_gradient(self, batch: Batch, share: float, last: bool) -> Outputs:
        loss = self._loss(batch)
        self._accelerator.backward(loss * share)
        results = [loss.detach().float()]
        if last and self._config.max_grad_norm > 0:
            parameters = self._model.parameters()
            norm = self._accelerator.clip_grad_norm_(parameters, self._config.max_grad_norm)
            results.append(norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=not self._keeps_gradients)
        return tuple(results)

    def _predict(self, batch: Batch) -> Outputs:
        with torch.no_grad():
            return (self._model(**batch).logits.float(),)

    def _loss(self, batch: Batch) -> torch.Tensor:
        """Return the model's own loss, unless smoothed labels or class weights are requested."""
        outputs, smoothing = self._model(**batch), self._config.label_smoothing_factor
        loss: torch.Tensor = self._task.loss(
            outputs, batch["labels"], self._class_weights, smoothing
        )
        return loss


def build_optimizer(model: torch.nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    """Build the optimizer of all trained parameters. By default biases and norms do not decay."""
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
