"""Start the page: `python app.py`. On a Hugging Face Space this file is the Space."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from pathlib import Path

from finetune.environment import caches

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported
caches.ensure_cache_folder()

try:
    import spaces  # a Space's own; where the hardware is ZeroGPU, before anything loads torch
except ImportError:
    pass
else:
    # ZeroGPU ends an app that has no function to lend its GPU to, and the page could not say that
    # training needs other hardware.
    @spaces.GPU
    def lent() -> None:
        """Nothing."""


from finetune.jobs.scheduler import Scheduler  # noqa: E402
from finetune.runs.store import RunStore, default_root  # noqa: E402
from finetune.ui import app  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=None, help="where runs are kept")
    parser.add_argument("--host", default=None, help="address to serve on (default: this machine)")
    parser.add_argument("--port", type=int, default=None, help="port (default: 7860 or the next)")
    given = parser.parse_args()
    store = RunStore(given.runs or default_root())
    print(f"Runs are kept in {store.root}", flush=True)
    made = app.build(store)
    Scheduler(store, warm=True, release=release).start()
    stand_aside()
    app.launch(made, store, server_name=given.host, server_port=given.port)


def release() -> None:
    """Give the page's models' device memory back; nothing is loaded before somebody asks one."""
    if (models := sys.modules.get("finetune.inference.model_cache")) is not None:
        models.release_models()


def stand_aside() -> None:
    """Let what trains on these processors go before the page and all who look at it.

    Linux gives each thread a priority of its own, which the threads it starts have too: the
    server's, but not the scheduler's, which is there already and starts the processes.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            # Batch: what wakes up does not push aside what computes.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


if __name__ == "__main__":
    main()
