"""An attempt's view of its run, on another machine, in a folder that all machines share.

A machine that was cut off may come back while a later attempt runs elsewhere. Its worker then
writes nothing more, and ends.
"""

from __future__ import annotations

import os
import threading
import time

from finetune import disk
from finetune.runs.run import SPEC, Run

ATTEMPT = "FINETUNE_ATTEMPT"  # tells the attempt to a worker started by an engine
LOST = 75  # exit status if another process of the run, or the worker's engine, has gone
_WATCH = 1.0  # seconds between two checks of the parent process


class Superseded(BaseException):
    """A later attempt owns the run. Not an `Exception`, so that no library swallows it."""


class AttemptRun(Run):
    """A run, as the worker of one attempt sees it."""

    def check_writable(self) -> None:
        """Raise `Superseded` if the run's engine spec is gone or belongs to another attempt."""
        # Read again each time: a shared folder may report only an opened file's age.
        attempt = disk.read_json(self.folder / SPEC).get("attempt")
        if str(attempt) != os.environ[ATTEMPT]:
            raise Superseded


def is_attempt() -> bool:
    """True if an engine started this process to carry out a run."""
    return ATTEMPT in os.environ


def as_attempt(run: Run) -> Run:
    """Return the run as this process may write it."""
    return AttemptRun(run.folder) if is_attempt() else run


def end_with_parent() -> None:
    """End this process in the background once its parent has gone. It may be waiting for other
    processes that nobody will start any more."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH)
        os._exit(LOST)

    threading.Thread(target=watch, name="parent", daemon=True).start()
