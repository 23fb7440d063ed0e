"""The processes of a run, Accelerate's engine for its configuration, and the trackers that it uses.
Imports no torch by itself, because jobs use it before any heavy import."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune import owners
from finetune.config import RunConfig
from finetune.environment import devices, logs
from finetune.errors import ConfigError
from finetune.messages import message as _
from finetune.runs import events

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator


def make_accelerator(config: RunConfig, folder: Path | None = None) -> Accelerator:
    """Create Accelerate's engine for a configuration and seed every random generator. Adds the
    requested trackers if a folder for their files is given. ConfigError if the hardware lacks the
    requested precision, or a tracker its package."""
    import torch
    from accelerate import Accelerator, utils

    on_gpu = torch.cuda.is_available()
    compiled = None
    if config.torch_compile:
        compiled = utils.TorchDynamoPlugin(backend="inductor", dynamic=True)
    try:
        accelerator = Accelerator(
            **(tracker_settings(config, folder) if folder is not None else {}),
            # Explicit; otherwise several processes without a GPU would each train alone.
            cpu=not torch.accelerator.is_available(),
            mixed_precision=choose_precision(config.mixed_precision),
            gradient_accumulation_steps=config.gradient_accumulation_steps,
            dynamo_plugin=compiled,
            # A model uses each weight once, and a recorded step may not read casts from a cache.
            kwargs_handlers=[utils.AutocastKwargs(cache_enabled=False)] if on_gpu else [],
            dataloader_config=utils.DataLoaderConfiguration(non_blocking=on_gpu),
        )
    except ValueError as error:
        problem = _(
            "is {mixed_precision}, which this hardware lacks ({error}); set it to no",
            mixed_precision=config.mixed_precision,
            error=error,
        )
        raise ConfigError({"mixed_precision": problem}) from error
    if accelerator.device.type == "cuda":
        torch.set_float32_matmul_precision(choose_tf32(config))
    utils.set_seed(config.seed, deterministic=config.deterministic)
    return accelerator


def choose_precision(setting: str) -> str:
    """Return Accelerate's word for a `mixed_precision`; `auto` is the hardware's fastest."""
    return devices.trains_in() if setting == "auto" else setting


def choose_tf32(config: RunConfig) -> str:
    """Return PyTorch's word for the precision of products in fp32 on a GPU: TF32, eight times as
    fast, unless the course's own loop is asked for exactly."""
    return "highest" if config.follows("As the course") else "high"


def device_name(accelerator: Accelerator) -> str:
    """Return the device's name for a page: `NVIDIA H100`, `CPU (2 threads)`."""
    import torch

    device = accelerator.device
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type != "cpu":
        return str(device.type).upper()
    threads = torch.get_num_threads()
    return f"CPU ({threads} thread{'s' if threads > 1 else ''})"


def gpu_memory(device: torch.device) -> int:
    """Return the bytes of a GPU's memory; 0 for another device."""
    import torch

    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the process. On a CPU each step takes and frees the same
    hundreds of megabytes, and page faults would cost a tenth of it."""
    max_mappings, trim_threshold = -4, -1  # M_MMAP_MAX and M_TRIM_THRESHOLD of malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another system or C library
        library = ctypes.CDLL(None)
        library.mallopt(max_mappings, 0)
        library.mallopt(trim_threshold, 2**31 - 1)


def tracker_settings(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Return the arguments of `Accelerator` for `report_to`; TensorBoard writes into `folder`."""
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
    """Logs a run's events. Created on every rank, because Accelerate picks the one that writes.

    A tracker that fails during the run is dropped with a line in the log. ConfigError if it cannot
    start for lack of a login or a network.
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
        except Exception as error:  # each has its own exceptions
            problem = _(
                "is {name}, which does not begin ({reason}); set it to none",
                name=config.report_to,
                reason=logs.first_line(error)[:200],
            )
            raise ConfigError({"report_to": problem}) from error

    def __call__(self, event: events.Event) -> None:
        """Log the event's numbers under the names that `Trainer` uses."""
        if not self._tracking or not isinstance(event, events.Evaluated | events.Stepped):
            return
        if isinstance(event, events.Evaluated):
            values = {f"eval/{name}": value for name, value in event.metrics.items()}
        else:
            numbers = event.model_dump(exclude={"time", "event", "step"}, exclude_none=True)
            values = {f"train/{name}": value for name, value in numbers.items()}
        try:
            self._accelerator.log(values, step=event.step)
        except Exception as error:
            self._tracking = False
            print(f"the tracker has stopped: {type(error).__name__}: {error}", flush=True)


def is_single_process() -> bool:
    """True if this run has a single process."""
    return "WORLD_SIZE" not in os.environ  # set by torch's launcher


def is_main_process() -> bool:
    """True if this is the process that writes."""
    return os.environ.get("RANK", "0") == "0"


def check_accelerate_config(config: RunConfig) -> None:
    """Check that the Accelerate configuration file can be used, if one is named."""
    problem, name = "", config.accelerate_config
    if name and not owners.policy().owner_asks:
        problem = _("cannot be named here, where the files are not the visitors'; leave it empty")
    elif name and not os.path.isfile(name):
        problem = _("is {name!r}, and there is no such file", name=name)
    elif name:
        from accelerate.commands.config.config_args import load_config_from_file

        try:
            load_config_from_file(name)
        except Exception as error:  # errors of YAML, JSON, or of a value unknown to Accelerate
            problem = _(
                "is {name!r}, which `accelerate config` has not written: {reason}",
                name=name,
                reason=logs.first_line(error).rstrip("."),
            )
    if problem:
        raise ConfigError({"accelerate_config": problem})


def is_lost_rank_error(error: BaseException) -> bool:
    """True if an error means that another process of the run has gone."""
    words = ("closed by peer", "reset by peer", "connection refused", "remote process exited")
    is_network = type(error).__name__.startswith("Dist")
    is_network = is_network or any(word in str(error).lower() for word in words)
    return is_network and not is_single_process()
