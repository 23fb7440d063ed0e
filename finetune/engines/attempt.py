"""A run as an attempt's worker on another machine sees it, in a folder that all machines share.

A machine that was cut off may come back while a later attempt is at work elsewhere: its worker then
writes nothing any more, and ends.
"""

from __future__ import annotations

import os
import threading
import time

from finetune import disk
from finetune.runs.run import TICKET, Run

ATTEMPT = "FINETUNE_ATTEMPT"  # names the attempt to the worker that an engine has started
LOST = 75  # its exit status where another process of the run, or its own engine, has gone
_WATCH = 1.0  # seconds between two looks for the process that started this one


class Superseded(BaseException):
    """A later attempt has the run; not an `Exception`, so that no library swallows it."""


class AttemptRun(Run):
    """The run, for the worker of one attempt."""

    def check_writable(self) -> None:
        """Raise `Superseded` where the run's ticket is another attempt's, or is gone."""
        # Read anew each time: a shared folder may tell an opened file's age only.
        attempt = disk.read_json(self.folder / TICKET).get("attempt")
        if str(attempt) != os.environ[ATTEMPT]:
            raise Superseded


def is_attempt() -> bool:
    """Whether an engine has started this process to carry a run out."""
    return ATTEMPT in os.environ


def as_attempt(run: Run) -> Run:
    """The run as this process may write it."""
    return AttemptRun(run.folder) if is_attempt() else run


def end_with_parent() -> None:
    """End this process, in the background, once the one that started it has gone: it may wait for
    other processes that nobody will start any more."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH)
        os._exit(LOST)

    threading.Thread(target=watch, name="parent", daemon=True).start()
