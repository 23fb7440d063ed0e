"""How many processes carry out a run, which of them this is, and how several are started.

`accelerate launch` starts them; knows no torch, so that it can be asked before anything heavy is
imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import psutil

from finetune import owners
from finetune.config import RunConfig
from finetune.errors import ConfigError
from finetune.runs.run import Run

_SOURCE = Path(__file__).resolve().parent.parent.parent
# Set for each process by torch's launcher, or by the MPI that started it.
_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")


def is_single_process() -> bool:
    """Whether no other process shares this run."""
    return not any(name in os.environ for name in _SIZES)


def is_main_process() -> bool:
    """Whether this is the process that writes; known before torch is."""
    return next((os.environ[name] for name in _RANKS if name in os.environ), "0") == "0"


def process_count(chosen: RunConfig) -> int:
    """How many processes were asked for, by the configuration or on Accelerate's command line.

    Raises:
        ConfigError: when the Accelerate configuration file cannot be used.
    """
    name = chosen.accelerate_config
    if name and owners.is_shared():
        problem = "cannot be named here, where the files are not the visitors'; leave it empty"
        raise ConfigError({"accelerate_config": problem})
    if name and not Path(name).is_file():
        raise ConfigError({"accelerate_config": f"is {name!r}, and there is no such file"})
    return max(chosen.num_processes, _told_accelerate())


def _told_accelerate() -> int:
    """What `accelerate launch --cpu --num_processes N` was told.

    It starts one process only unless MPI is there, sets no variable that says N, and leaves the
    rest to nobody; so its own command line is read.
    """
    if os.environ.get("ACCELERATE_USE_CPU") != "True" or "MASTER_ADDR" not in os.environ:
        return 1
    try:
        words = psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        return 1
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, _, value = word.partition("=")
        if name.replace("-", "_") == "__num_processes":
            number = value or following
            return int(number) if number.isdigit() else 1
    return 1


def launch_command(run: Run, wanted: int) -> list[str]:
    """The command line that carries out `run` in several processes."""
    chosen = run.config()
    words = [sys.executable, "-m", "accelerate.commands.launch"]
    if chosen.accelerate_config:
        words += ["--config_file", chosen.accelerate_config]
        words += ["--num_processes", str(wanted)] if wanted > 1 else []
    else:
        # --multi_gpu is Accelerate's word for torch's own launcher, with or without a GPU.
        words += ["--multi_gpu", "--num_processes", str(wanted), "--num_machines", "1"]
        words += ["--mixed_precision", "no", "--dynamo_backend", "no"]  # RunConfig decides
    words += ["--main_process_port", "0"]  # any free one
    return [*words, "--module", "finetune", "train", "--run", str(run.folder.resolve())]


def exec_launcher(run: Run, wanted: int) -> NoReturn:
    """Turn this process into the launcher of several; its pid, noted as the worker's, stays.

    Raises:
        OSError: when no Python can be started.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        # What an outer `accelerate launch` said of one process is not true of several.
        if not name.startswith(("ACCELERATE_", "MASTER_"))
    }
    path = os.pathsep.join(filter(None, [str(_SOURCE), environment.get("PYTHONPATH", "")]))
    threads = max(1, (os.cpu_count() or 1) // max(1, wanted))
    words = launch_command(run, wanted)
    environment = {"OMP_NUM_THREADS": str(threads)} | environment | {"PYTHONPATH": path}
    os.execve(words[0], words, environment)


def is_lost_rank_error(error: BaseException) -> bool:
    """Whether an error says that another process of the run has gone."""
    if is_single_process():
        return False
    words = ("closed by peer", "reset by peer", "connection refused", "remote process exited")
    text = str(error).lower()
    return type(error).__name__.startswith("Dist") or any(one in text for one in words)
