"""Whether a training run shall end: a file, a signal, or a launcher that is gone."""

from __future__ import annotations

import os
import signal
from types import FrameType

from finetune.runs.run import Run
from finetune.training import distributed


class Terminated(BaseException):
    """A signal came; not an `Exception`, so that no library swallows it on the way out."""


class StopSwitch:
    """Whether this run shall end: its STOP file, a SIGTERM, or Ctrl-C in a terminal.

    Before training a signal ends the work where it stands, for a download cannot be asked to;
    once the loop runs, it is only noted and the loop ends itself after its step. A second signal
    does not wait for that.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._signalled = False
        self._parent = os.getppid()
        self.looping = False

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again, self._signalled = self._signalled, True
        if again or not self.looping:
            raise Terminated

    def __call__(self) -> bool:
        if not distributed.is_single_process() and os.getppid() != self._parent:
            raise Terminated  # the launcher was killed, and nobody else would end its processes
        return self._signalled or self._run.stop_requested() or not self._run.exists()

    def check(self) -> None:
        """Raise `Terminated` when a stop was asked for, between two phases."""
        if self():
            raise Terminated
