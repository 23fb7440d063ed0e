"""An app without its page: `python -m tests.support.scheduling ROOT` starts queued runs.

Its workers are stand-ins. It says when it is there, and ends when it is killed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from finetune.jobs import scheduler, workers
from finetune.runs.store import RunStore

if __name__ == "__main__":
    workers.WORKER = "tests.support.stand_in"
    scheduler.Scheduler(RunStore(Path(sys.argv[1])), every=0.1).start()
    print("there", flush=True)
    while True:
        time.sleep(60)
