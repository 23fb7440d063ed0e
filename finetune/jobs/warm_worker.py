"""A worker that has imported everything and waits for a run: training begins at once.

Most of the time between Train and the first step goes into imports. `jobs` keeps one such process
while nothing trains, hands it a run by a file in its folder, and starts a worker the ordinary way
where there is none. It works without the Hub, which the libraries are told when they are imported,
so only runs that need nothing from there are given to it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from finetune.environment import caches
from finetune.jobs import workers
from finetune.runs.store import Run

WAIT = 3600.0  # seconds without work after which it ends
READY, RUN, TAKEN = "ready", "run", "taken"


def main() -> int:
    """Wait in a folder for the path of a run, and carry that run out."""
    caches.ensure_cache_folder()
    # Known from the start: an app that ends while this imports must not leave it waiting.
    parent = int(os.environ.get(workers.STARTED_BY) or os.getppid())
    parser = argparse.ArgumentParser(
        prog="python -m finetune.jobs.warm_worker", description=__doc__
    )
    parser.add_argument("--folder", type=Path, required=True, help="where to wait")
    folder: Path = parser.parse_args().folder
    _import_all()
    path = _wait(folder, parent)
    if path is None:
        return 0
    from finetune.jobs import train

    os.chdir(workers.empty_folder(Run(path)))  # its own is gone with the folder it waited in
    log = os.open(Run(path).log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    return train.main(["--run", str(path)])


def _import_all() -> None:
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch._dynamo  # what the first optimizer made would import

    from finetune.data import splits
    from finetune.training import batch_size, dataloaders, loop, metrics, model, trackers

    assert all((torch._dynamo, dataloaders, splits, loop, batch_size, metrics, model, trackers))
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    assert all((AutoModelForSequenceClassification, AutoTokenizer))  # imported when first named


def _wait(folder: Path, parent: int) -> Path | None:
    """The run that was given; None when nobody wants anything any more, or the parent has gone."""
    until = time.monotonic() + WAIT
    try:
        (folder / READY).touch()
        while os.getppid() == parent and time.monotonic() < until and folder.is_dir():
            if (folder / RUN).exists():
                path = (folder / RUN).read_text(encoding="utf-8")
                if workers.hold(Run(Path(path)).lock_file) is None:
                    return None
                os.environ[workers.LOCKED] = path
                os.replace(folder / RUN, folder / TAKEN)
                return Path(path)
            time.sleep(0.02)
    except OSError:  # the folder is gone, and with it who might ask
        pass
    return None


if __name__ == "__main__":
    sys.exit(main())
