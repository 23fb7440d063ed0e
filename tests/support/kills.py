"""Ends an app, its workers, or both, at moments that a seed draws."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent.parent
SEED = int(os.environ.get("FINETUNE_TEST_SEED", "7"))


class Kills:
    """Kills of one test. The seed is printed; FINETUNE_TEST_SEED gives another one.

    Args:
        store: the folder that every process of the test names in its arguments.
        processes: those that the test has to end.
    """

    def __init__(self, store: Path, processes: list[psutil.Process]) -> None:
        print(f"FINETUNE_TEST_SEED={SEED}")
        self.draw = random.Random(SEED)
        self._store, self._processes = store, processes

    def start(self, module: str, *words: str) -> subprocess.Popen[str]:
        """Start a module of `tests.support` that plays an app, and wait until it is there."""
        command = [sys.executable, "-m", f"tests.support.{module}", str(self._store), *words]
        app = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._processes.append(psutil.Process(app.pid))
        assert app.stdout is not None
        assert app.stdout.readline() == "there\n"
        return app

    def at_random(self, app: subprocess.Popen[Any], seconds: float, with_workers: bool) -> None:
        """Kill an app within so many seconds; with its workers, in any order."""
        time.sleep(self.draw.uniform(0, seconds))
        killed = self.workers(app) if with_workers else []
        killed.insert(self.draw.randint(0, len(killed)), psutil.Process(app.pid))
        for process in killed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        app.wait(30)
        psutil.wait_procs(killed, 30)

    def workers(self, app: subprocess.Popen[Any] | None = None) -> list[psutil.Process]:
        """The processes of the store, beside an app."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = " ".join(process.cmdline())
                if str(self._store) in words and (app is None or process.pid != app.pid):
                    found.append(process)
        return found
