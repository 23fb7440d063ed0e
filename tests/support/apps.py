"""What plays an app until it is killed: `python -m tests.support.apps WHAT ROOT [WORDS]`. It says
when it is there.

`schedule [RUNS]` starts queued runs, and begins runs itself until there are so many. `search STUDY`
carries a study out. Their workers are stand-ins. `ask RUN push:NAME|export|orders|test|probe:NAMES`
does what an app does when a person asks for a push, an export, an evaluation or a comparison of
checkpoints, and says when it has begun; a push has the token of HF_TOKEN.
"""

import os
import sys
import time
from pathlib import Path

from finetune.config import RunConfig
from finetune.jobs import scheduler, service, workers
from finetune.runs.store import RunStore

STEPS = 25  # of the runs that it begins


def schedule(store, runs="0"):
    from finetune.studies.driver import advance_all

    workers.WORKER = "tests.support.stand_in"
    scheduler.Scheduler(store, every=0.1, periodic=[advance_all]).start()
    print("there", flush=True)
    while True:
        if len(store.runs()) < int(runs):
            service.start_run(store, RunConfig(max_steps=STEPS))
            time.sleep(0.05)
        else:
            time.sleep(1)


def search(store, study):
    from finetune.cli import search

    workers.WORKER = "tests.support.stand_in"
    print("there", flush=True)
    return search.search(["--runs", str(store.root), "--study", study])


def ask(store, run_id, asked):
    from finetune.hub.publish import PushRequest
    from finetune.jobs import probe
    from finetune.jobs.evaluate import EvaluationJob
    from finetune.jobs.publish import Approvals, ExportJob, PushJob

    run, (what, _, name) = store.get(run_id), asked.partition(":")
    print("there", flush=True)
    if what == "push":
        request = PushRequest(name, update=True)
        PushJob.of(run).start(store, request, os.environ["HF_TOKEN"], Approvals())
    elif what == "export":
        ExportJob.of(run).start(store)
    elif what == "probe":
        probe.start_probe(store, run.config(), name.split(","))
    else:
        EvaluationJob.of(run, "test" if what == "test" else "orders").start(store)
    print("begun", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    what, root, *words = sys.argv[1:]
    played = {"schedule": schedule, "search": search, "ask": ask}
    sys.exit(played[what](RunStore(Path(root)), *words))
