"""An app without its page: `python -m tests.support.scheduling ROOT [RUNS]` starts queued runs, and
begins runs itself until there are so many.

Its workers are stand-ins. It says when it is there, and ends when it is killed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from finetune.config import RunConfig
from finetune.jobs import scheduler, service, workers
from finetune.runs.store import RunStore
from finetune.search.driver import advance_all

STEPS = 25  # of the runs that it begins

if __name__ == "__main__":
    workers.WORKER = "tests.support.stand_in"
    store = RunStore(Path(sys.argv[1]))
    scheduler.Scheduler(store, every=0.1, periodic=[advance_all]).start()
    print("there", flush=True)
    while True:
        if len(store.runs()) < int(next(iter(sys.argv[2:]), 0)):
            service.start_run(store, RunConfig(max_steps=STEPS))
            time.sleep(0.05)
        else:
            time.sleep(1)
