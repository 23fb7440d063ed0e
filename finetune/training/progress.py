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
        step: optimizer steps taken.
        batch: batches of this epoch seen by each rank.
        order: state of the generator of the training order when this epoch began.
        best: the best score so far; None before the first evaluation.
        waited: evaluations since that one; scores are known to the main process alone.
        evaluated: the step of the last evaluation, and
        validation_loss: its loss.
        seconds: of training so far.
    """

    SAVED = ("step", "batch", "order", "best", "waited", "evaluated", "validation_loss", "seconds")

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._began = time.monotonic()
        self.step = 0
        self.best: float | None = None
        self.waited = 0
        self.evaluated = 0
        self.validation_loss = math.inf
        self.begin_epoch()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def begin_epoch(self) -> None:
        """An epoch begins: its order is drawn from the generator as it is now."""
        self.batch = 0
        self.order = self._generator.get_state()

    def state_dict(self) -> dict[str, Any]:
        """What Accelerate writes into a checkpoint."""
        return {name: getattr(self, name) for name in self.SAVED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What Accelerate reads from one; the generator is as it was when the epoch began."""
        self._began = time.monotonic() - state.pop("seconds")
        for name, value in state.items():
            setattr(self, name, value)
        self._generator.set_state(self.order)


class LossMeter:
    """Mean loss and speed since the last report, kept on the device until then."""

    def __init__(self, accelerator: Accelerator, every: int) -> None:
        self._accelerator = accelerator
        self._every = every
        self.reset()

    def reset(self) -> None:
        """Begin a new interval now; called after an evaluation, whose time is not training's."""
        self._loss = torch.zeros((), device=self._accelerator.device)
        self._batches = 0
        self._examples = 0
        self._began = time.monotonic()

    def add(self, loss: torch.Tensor, examples: int) -> None:
        self._loss = self._loss + loss.detach().float()
        self._batches += 1
        self._examples += examples

    def due(self, step: int, last: int) -> bool:
        return step == 1 or step == last or step % self._every == 0

    def read(self) -> tuple[float, float]:
        """The mean loss and the samples a second of all ranks since the last call. Waits for the
        device and for every rank, so that it is called on logging steps only."""
        mean = self._accelerator.reduce(self._loss / self._batches, reduction="mean").item()
        examples = self._examples * self._accelerator.num_processes
        speed = examples / max(1e-9, time.monotonic() - self._began)
        self.reset()
        return mean, speed
