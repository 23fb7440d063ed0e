"""What people already use to follow runs: TensorBoard, Trackio and W&B, through Accelerate.

Turns the run's events into a tracker's scalars. Knows nothing of the loop; a tracker that breaks
while a run goes on is left behind with a word in the log, for it is not the run.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from finetune.config import RunConfig
from finetune.errors import ConfigError
from finetune.runs import events
from finetune.runs.events import Event


def tracker_settings(chosen: RunConfig, folder: Path) -> dict[str, Any]:
    """What `Accelerator` must be made with for `report_to`; TensorBoard writes into `folder`.

    Raises:
        ConfigError: when the tracker's package is not installed.
    """
    name = chosen.report_to
    if name == "none":
        return {}
    if importlib.util.find_spec(name) is None:
        problem = f"is {name}, which is not installed; pip install {name}, or set it to none"
        raise ConfigError({"report_to": problem})
    return {"log_with": name, "project_dir": str(folder)}


class Tracker:
    """Passes a run's events on; made on every rank, for Accelerate picks the one that writes.

    Args:
        accelerator: made with `settings`.
        chosen: its values are the tracked hyperparameters.
        title: what the tracker shall call the run, where it asks for a name.

    Raises:
        ConfigError: when the tracker does not begin, for want of a login or a network.
    """

    def __init__(self, accelerator: Accelerator, chosen: RunConfig, title: str) -> None:
        self._accelerator = accelerator
        self._tracking = chosen.report_to != "none"
        if not self._tracking:
            return
        named = {"name": title}
        try:
            accelerator.init_trackers(
                # TensorBoard's is a folder within the run's, the others' a project of all runs.
                "tensorboard" if chosen.report_to == "tensorboard" else "finetune",
                config=chosen.to_dict(),
                init_kwargs={"wandb": named, "trackio": named},
            )
        except Exception as error:  # each has exceptions of its own
            line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            problem = f"is {chosen.report_to}, which does not begin ({line}); set it to none"
            raise ConfigError({"report_to": problem}) from error

    def __call__(self, event: Event) -> None:
        """Log what the event measures, if it does."""
        if not self._tracking or not (values := event_scalars(event)):
            return
        try:
            self._accelerator.log(values, step=getattr(event, "step", None))
        except Exception as error:
            self._tracking = False
            print(f"the tracker has stopped: {type(error).__name__}: {error}", flush=True)


def event_scalars(event: Event) -> dict[str, float]:
    """The numbers of an event under the names that `Trainer` gives them."""
    match event:
        case events.Stepped():
            found = {
                "train/loss": event.loss,
                "train/learning_rate": event.learning_rate,
                "train/epoch": event.epoch,
                "train/samples_per_second": event.samples_per_second,
            }
            return found | ({} if event.grad_norm is None else {"train/grad_norm": event.grad_norm})
        case events.Evaluated():
            return {f"eval/{name}": value for name, value in event.metrics.items()}
    return {}
