"""Runs that a test starts as the app does, and what they were told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from finetune.config import RunConfig
from finetune.jobs import scheduler, service, workers
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support.waiting import until


def start(
    store: RunStore, config: RunConfig, processes: list[psutil.Process]
) -> tuple[Run, psutil.Process]:
    run = service.start_run(store, config)

    def begun() -> bool:
        """A run that has just ended may still hold the place: no app is here to look again."""
        scheduler.dispatch_queue(store)
        return workers.worker_process(run) is not None

    until(begun)
    process = workers.worker_process(run)
    assert process is not None
    processes.append(process)
    return run, process


ROOT = Path(__file__).resolve().parent.parent.parent
# Libraries that a person does not wait for before there is something to train or predict.
SLOW = {"torch", "transformers", "datasets", "accelerate", "scipy", "sklearn", "matplotlib"}


def command(store: RunStore, config: RunConfig, launcher: list[str]) -> list[str]:
    options = []
    for name, value in config.to_dict().items():
        if isinstance(value, bool):
            options.append(f"--{name}" if value else f"--no-{name}")
        elif value != getattr(RunConfig(), name):
            options += [f"--{name}", str(value)]
    return [*launcher, "-m", "finetune", "train", "--runs", str(store.root), *options]


def losses(run: Run) -> list[float]:
    return [event.loss for event in run.tail()[0] if isinstance(event, events.Stepped)]


def loaded_by(code: str, watched: set[str]) -> str:
    """Return which of the watched libraries a piece of code loads, in a process of its own."""
    code += f"\nimport sys\nprint(sorted({watched!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip().splitlines()[-1]
