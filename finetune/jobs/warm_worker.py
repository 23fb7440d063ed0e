"""A worker that has imported everything and waits for a run: training begins at once.

Most of the time between Train and the first step goes into imports. The scheduler keeps one such
process while nothing trains, and hands it a run by a file in its folder. It works without the Hub,
which the libraries are told when they are imported, so only runs that need nothing from there are
given to it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from importlib import import_module
from pathlib import Path

import psutil

from finetune.data import catalog
from finetune.disk import write_atomically
from finetune.environment import caches
from finetune.errors import JobError, StoreError
from finetune.jobs import workers
from finetune.runs.job_folder import JobFolder, hold_lock
from finetune.runs.run import Run
from finetune.runs.store import RunStore

LIFETIME = 3600.0  # seconds without work after which it ends
_IMPORTED = (  # the first is what the first optimizer would import
    "torch._dynamo", "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto", "finetune.data.splits", "finetune.jobs.train",
    "finetune.training.dataloaders", "finetune.training.loop", "finetune.training.model",
    "sklearn.metrics",
)  # fmt: skip
READY, RUN, TAKEN = "ready", "run", "taken"  # files by which app and worker talk


def start_warm_worker(store: RunStore) -> None:
    """See to it that a worker waits; once, though often called. Without one a run starts later."""
    waiting = _folder(store)
    with contextlib.suppress(JobError, StoreError, OSError):
        if not waiting.is_alive():
            shutil.rmtree(waiting.folder, ignore_errors=True)
            waiting.folder.mkdir(parents=True)
            workers.spawn_worker(waiting, __name__, stdin=str(os.getpid()).encode())


def give_to_warm_worker(store: RunStore, run: Run, patience: float = 1.0) -> bool:
    """Hand the run to the waiting worker if it can do it; whether it was taken.

    Once it has taken the run it holds its lock. One that still imports, or hangs, is ended: two
    would only be in each other's way.
    """
    waiting, config = _folder(store), run.config()
    several = config.num_processes > 1 or config.accelerate_config
    worker = workers.worker_process(waiting)
    if worker is None or several or catalog.needs_hub(config.dataset, config.checkpoint):
        return False
    taken = False
    if (waiting.folder / READY).exists():
        workers.record_worker(run, worker.pid)
        write_atomically(waiting.folder / RUN, str(run.folder.resolve()))
        deadline = time.monotonic() + patience
        while not (taken := (waiting.folder / TAKEN).exists()) and time.monotonic() < deadline:
            time.sleep(0.01)
    if not taken:
        run.process_file.unlink(missing_ok=True)
        with contextlib.suppress(psutil.Error):
            worker.kill()
            worker.wait(2)
    shutil.rmtree(waiting.folder, ignore_errors=True)
    return taken


def _folder(store: RunStore) -> JobFolder:
    return JobFolder(store.root / ".warm")


def main(folder: Path, parent: int) -> int:
    """Wait in a folder for the path of a run, and carry that run out; `parent` is the app's pid."""
    caches.ensure_cache_folder()
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in _IMPORTED:
        import_module(name)
    from finetune.jobs import train

    run = _wait(folder, parent)
    if run is None:
        return 0
    os.chdir(workers.empty_folder(run))  # its own is gone with the folder it waited in
    log = os.open(run.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    return train.train_job(run)


def _wait(folder: Path, parent: int) -> Run | None:
    """The run to carry out; None when there is none any more, or the parent has gone."""
    deadline = time.monotonic() + LIFETIME
    with contextlib.suppress(OSError):  # the folder is gone, and with it who might ask
        (folder / READY).touch()
        while os.getppid() == parent and time.monotonic() < deadline and folder.is_dir():
            if (folder / RUN).exists():
                run = Run(Path((folder / RUN).read_text(encoding="utf-8")))
                if hold_lock(run.lock_file) is None:
                    return None
                os.environ[workers.LOCKED] = str(run.folder)
                os.replace(folder / RUN, folder / TAKEN)
                return run
            time.sleep(0.02)
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.stdin.read())))
