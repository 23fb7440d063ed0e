"""Launches and ends a run in several processes (ranks)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from finetune.config import RunConfig
from finetune.environment import project
from finetune.runs import events
from finetune.runs.run import Run
from finetune.training.accelerator import is_single_process


def launch_if_several(run: Run) -> None:
    """Replace this process by the launcher if the run needs several. The pid, recorded as the
    worker's, stays the same."""
    config = run.config()
    if config.num_processes == 1 and not config.accelerate_config:
        return
    path, words = project.python_path(), launch_command(run)
    threads = max(1, (os.cpu_count() or 1) // config.num_processes)
    os.execve(words[0], words, {"OMP_NUM_THREADS": str(threads), **os.environ, "PYTHONPATH": path})


def launch_command(run: Run) -> list[str]:
    """Return the command line that carries out `run` in several processes."""
    config = run.config()
    words = [sys.executable, "-m", "accelerate.commands.launch"]
    if config.num_processes > 1:
        words += ["--num_processes", str(config.num_processes)]
    if config.accelerate_config:
        words += ["--config_file", config.accelerate_config]
    else:
        # --multi_gpu is Accelerate's word for torch's own launcher, with or without a GPU.
        words += ["--multi_gpu", "--num_machines", "1"]
        words += ["--mixed_precision", "no", "--dynamo_backend", "no"]  # RunConfig decides
    words += ["--main_process_port", "0"]  # any free port
    return [*words, "--module", "finetune", "train", "--run", str(run.folder.resolve())]


def leave(status: int) -> int:
    """End one of several processes at once: torch's threads can abort a process that winds up."""
    if not is_single_process():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


class RankView(Run):
    """A rank's view of a run whose folder belongs to the main process: it writes nothing."""

    def __init__(self, root: Path, config: RunConfig) -> None:
        super().__init__(root / "unwritten")
        self._config = config

    def config(self) -> RunConfig:
        return self._config

    def append(self, event: events.Event) -> None:
        pass

    def exists(self) -> bool:
        return True

    def stop_requested(self) -> bool:
        return False
