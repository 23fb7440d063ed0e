"""Waiting for what another process does."""

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], seconds: float = 240.0, pause: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(pause)
