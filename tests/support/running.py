"""Runs that a test starts as the app does, and what they were told."""

from __future__ import annotations

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
