"""Start the page: `python app.py`. On a Hugging Face Space this file is the Space."""

import argparse
import contextlib
import gc
import os
import sys
import threading
from pathlib import Path

from finetune.environment import caches

gc.disable()  # until the page is built: what the imports make stays, and looking at it takes 0.5 s
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
    def zero_gpu_function() -> None:
        """Does nothing."""


from finetune import owners  # noqa: E402
from finetune.environment import confinement  # noqa: E402
from finetune.jobs.scheduler import Scheduler  # noqa: E402
from finetune.runs.store import RunStore, default_root  # noqa: E402
from finetune.studies.driver import advance_all  # noqa: E402
from finetune.ui import app  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=None, help="where runs are kept")
    parser.add_argument("--host", default=None, help="address to serve on (default: this machine)")
    parser.add_argument("--port", type=int, default=None, help="port (default: 7860 or the next)")
    parser.add_argument("--share", action="store_true", help="a public link to this app")
    args = parser.parse_args()
    if args.share:  # whoever has the link is a visitor, with runs of their own and no token of ours
        os.environ["FINETUNE_VISITORS"] = "1"
    if owners.policy().several_people:
        protect_owner()
    store = RunStore(args.runs or default_root())
    print(f"Runs are kept in {store.root}", flush=True)
    page = app.build(store)
    Scheduler(store, warm=True, release=release_models, periodic=[advance_all]).start()
    lower_priority()
    gc.freeze()
    gc.enable()
    app.launch(page, store, server_name=args.host, server_port=args.port, share=args.share)


def protect_owner() -> None:
    """Keep the owner's token and this process's environment from visitors; say what confines them.

    A shared app never uses that token: a visitor must not read what is private by it.
    """
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        os.environ.pop(name, None)
    confinement.hide_process()
    print(confinement.describe(), flush=True)


def release_models() -> None:
    """Free the device memory of the models that the page has loaded for predictions, if any."""
    if (predictor := sys.modules.get("finetune.inference.predictor")) is not None:
        predictor.release_models()


def lower_priority() -> None:
    """Run the web server at a lower priority than training, where both share the processors.

    On Linux a thread passes its priority on to the threads it starts: the server's. The scheduler's
    thread, which starts the workers, runs already and keeps its own.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            # As batch work, a thread that wakes up does not interrupt one that computes.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


if __name__ == "__main__":
    main()
