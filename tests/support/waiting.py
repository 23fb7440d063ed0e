"""Waiting for what another process does."""

import time


def until(condition, seconds=240.0, pause=0.05):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(pause)
