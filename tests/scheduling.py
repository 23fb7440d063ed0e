"""An app without its page: `python -m tests.scheduling ROOT` lets the queue of a store go on.

Its workers are stand-ins. It says when it is there, and ends when it is killed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from finetune import scheduler, workers
from finetune.store import RunStore

if __name__ == "__main__":
    workers.TRAIN = "tests.stand_in"
    scheduler.Scheduler(RunStore(Path(sys.argv[1])), every=0.1).start()
    print("there", flush=True)
    while True:
        time.sleep(60)
