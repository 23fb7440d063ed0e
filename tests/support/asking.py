"""What an app does when a person asks for a push, an export, an evaluation or a comparison of
checkpoints: `python -m tests.support.asking ROOT RUN push:NAME|export|orders|test|probe:NAME,NAME`.

It says when it is about to begin and when it has, and ends when it is killed. A push has the token
of HF_TOKEN.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from finetune.hub.publish import PushRequest
from finetune.jobs import probe, publish
from finetune.jobs.evaluate import EvaluationJob
from finetune.jobs.publish import ExportJob, PushJob
from finetune.runs.store import RunStore

if __name__ == "__main__":
    store = RunStore(Path(sys.argv[1]))
    run, (what, _, name) = store.get(sys.argv[2]), sys.argv[3].partition(":")
    print("there", flush=True)
    if what == "push":
        request = PushRequest(name, update=True)
        PushJob.of(run).start(store, request, os.environ["HF_TOKEN"], publish.Approvals())
    elif what == "export":
        ExportJob.of(run).start(store)
    elif what == "probe":
        probe.start_probe(store, run.config(), name.split(","))
    else:
        EvaluationJob.of(run, "test" if what == "test" else "orders").start(store)
    print("begun", flush=True)
    time.sleep(600)
