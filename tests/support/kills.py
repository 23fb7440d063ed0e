"""Ends an app, its workers, or both, at moments that a seed draws."""

import contextlib
import os
import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil

from finetune.jobs import service
from finetune.runs import events

ROOT = Path(__file__).resolve().parent.parent.parent
SEED = int(os.environ.get("FINETUNE_TEST_SEED", "7"))


class Kills:
    """Kills of one test. The seed is printed; FINETUNE_TEST_SEED gives another one.

    Args:
        store: the folder that every process of the test names in its arguments.
        processes: those that the test has to end.
    """

    def __init__(self, store, processes):
        print(f"FINETUNE_TEST_SEED={SEED}")
        self.draw = random.Random(SEED)
        self._store, self._processes = store, processes

    def start(self, what, *words):
        """Start what plays an app, and wait until it is there; see `tests.support.apps`."""
        command = [sys.executable, "-m", "tests.support.apps", what, str(self._store), *words]
        app = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._processes.append(psutil.Process(app.pid))
        assert app.stdout.readline() == "there\n"
        return app

    def at_random(self, app, seconds, with_workers):
        """Kill an app within so many seconds; with its workers, in any order."""
        time.sleep(self.draw.uniform(0, seconds))
        killed = self.workers(app) if with_workers else []
        killed.insert(self.draw.randint(0, len(killed)), psutil.Process(app.pid))
        for process in killed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        app.wait()
        psutil.wait_procs(killed)

    def workers(self, app=None):
        """The processes of the store, beside an app."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = " ".join(process.cmdline())
                if str(self._store) in words and (app is None or process.pid != app.pid):
                    found.append(process)
        return found


def go_on(store):
    """Resume what was interrupted; whether runs are left to be finished."""
    for run in store.runs():
        if run.state().status == "interrupted":
            service.resume_run(store, run)
    return any(run.state().status != "finished" for run in store.runs())


def check_ended(run, total):
    """See that a run has ended once, its steps taken one after the other by one worker at a time,
    with every step once as the page shows them."""
    summary, taken = run.state(), 0
    assert summary.status == "finished"
    assert [point.step for point in summary.train] == list(range(1, total + 1)), run
    scored = [one.step for one in summary.validation]
    assert all(first < second for first, second in pairwise(scored))
    assert sum(isinstance(event, events.Finished) for event in run.tail()[0]) == 1
    for event in run.tail()[0]:
        if isinstance(event, events.Started | events.Resumed):
            taken = -1  # it goes on from a checkpoint, or from its beginning
        if isinstance(event, events.Stepped):
            assert taken in (-1, event.step - 1), run
            taken = event.step
