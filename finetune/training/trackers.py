"""Sends a run's events to TensorBoard, Trackio or W&B, through Accelerate."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from finetune.config import RunConfig
from finetune.errors import ConfigError
from finetune.hub_errors import first_line
from finetune.messages import message as _
from finetune.runs import events
from finetune.runs.events import Event


def tracker_settings(config: RunConfig, folder: Path) -> dict[str, Any]:
    """The arguments of `Accelerator` for `report_to`; TensorBoard writes into `folder`.

    Raises:
        ConfigError: when the tracker's package is not installed.
    """
    name = config.report_to
    if name == "none":
        return {}
    if importlib.util.find_spec(name) is None:
        problem = _(
            "is {name}, which is not installed; pip install {name}, or set it to none", name=name
        )
        raise ConfigError({"report_to": problem})
    return {"log_with": name, "project_dir": str(folder)}


class Tracker:
    """Logs a run's events; made on every rank, for Accelerate picks the one that writes.

    A tracker that breaks while the run goes on is left behind with a line in the log.

    Raises:
        ConfigError: when the tracker does not begin, for want of a login or a network.
    """

    def __init__(self, accelerator: Accelerator, config: RunConfig, title: str) -> None:
        self._accelerator = accelerator
        self._tracking = config.report_to != "none"
        if not self._tracking:
            return
        # TensorBoard's project is a folder within the run's, the others' is one of all runs.
        project = "tensorboard" if config.report_to == "tensorboard" else "finetune"
        settings = {"wandb": {"name": title}, "trackio": {"name": title}}
        try:
            accelerator.init_trackers(project, config=config.to_dict(), init_kwargs=settings)
        except Exception as error:  # each has exceptions of its own
            problem = _(
                "is {name}, which does not begin ({reason}); set it to none",
                name=config.report_to,
                reason=first_line(error)[:200],
            )
            raise ConfigError({"report_to": problem}) from error

    def __call__(self, event: Event) -> None:
        """Log the event's numbers under the names that `Trainer` gives them."""
        if not self._tracking or not isinstance(event, events.Evaluated | events.Stepped):
            return
        if isinstance(event, events.Evaluated):
            values = {f"eval/{name}": value for name, value in event.metrics.items()}
        else:
            names = ("loss", "learning_rate", "epoch", "samples_per_second", "grad_norm")
            numbers = {f"train/{name}": getattr(event, name) for name in names}
            values = {name: value for name, value in numbers.items() if value is not None}
        try:
            self._accelerator.log(values, step=event.step)
        except Exception as error:
            self._tracking = False
            print(f"the tracker has stopped: {type(error).__name__}: {error}", flush=True)
