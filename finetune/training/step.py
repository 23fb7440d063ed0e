"""The computations on a batch: its gradient with the optimizer's step, and predictions."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator

from finetune.config import RunConfig
from finetune.tasks.base import Task
from finetune.training import cuda_graphs
from finetune.training.cuda_graphs import Batch, Outputs, Recorded, RecordedStep, Work


class Step:
    """The computations of a run. On a GPU they are recorded, so none of them may wait for it.

    Args:
        model, optimizer: as Accelerate prepared them.
        class_weights: in the loss, of shape (classes,); None: equal weights.
    """

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
            options: dict[str, Any] = {
                "log": print, "given_up": self._give_up_graphs,
                "close": cuda_graphs.closeness(accelerator.mixed_precision),
            }  # fmt: skip
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
        return self._task.loss(outputs, batch["labels"], self._class_weights, smoothing)
