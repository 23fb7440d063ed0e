"""Where the training loop is, and its loss and speed since the last report."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from accelerate import Accelerator


class LoopProgress:
    """Where the loop is; all of it is in every checkpoint.

    Attributes:
        batch: batches of this epoch seen by each rank.
        order: state of the generator of the training order when this epoch began.
        best: the best score so far; None before the first evaluation.
        waited: evaluations since that one.
        evaluated: the step of the last evaluation, which had `validation_loss`.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._began = time.monotonic()
        self.step = self.waited = self.evaluated = 0
        self.best: float | None = None
        self.validation_loss = math.inf
        self.begin_epoch()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def begin_epoch(self) -> None:
        self.batch = 0
        self.order = self._generator.get_state()

    def state_dict(self) -> dict[str, Any]:
        """What Accelerate writes into a checkpoint."""
        state = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return state | {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What Accelerate reads from one; the generator is as it was when the epoch began."""
        self._began = time.monotonic() - state.pop("seconds")
        vars(self).update(state)
        self._generator.set_state(self.order)


class LossMeter:
    """Mean loss and speed since the last report, kept on the device until then."""

    def __init__(self, accelerator: Accelerator, every: int) -> None:
        self._accelerator = accelerator
        self._every = every
        self.reset()

    def reset(self) -> None:
        self._loss = torch.zeros((), device=self._accelerator.device)
        self._batches = self._examples = 0
        self._began = time.monotonic()

    def add(self, loss: torch.Tensor, examples: int) -> None:
        self._loss = self._loss + loss.detach().float()
        self._batches += 1
        self._examples += examples

    def due(self, step: int, last: int) -> bool:
        return step in (1, last) or step % self._every == 0

    def read(self) -> tuple[float, float]:
        """The mean loss and samples a second of all ranks since the last call; waits for them."""
        mean = self._accelerator.reduce(self._loss / self._batches, reduction="mean").item()
        examples = self._examples * self._accelerator.num_processes
        speed = examples / max(1e-9, time.monotonic() - self._began)
        self.reset()
        return mean, speed
