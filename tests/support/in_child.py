"""What the tests of `child_process` have called in a child."""

from __future__ import annotations

import os
import signal
import sys
import time

import finetune.data.table_formats  # noqa: F401 - as a child does that reads a table
from finetune.errors import DataError


def fine(text: str) -> list[str | int]:
    """The text, the child's pid, and the modules that it has loaded to read tables."""
    print("a library's chatter")
    return [text, os.getpid(), *sys.modules]


def refused() -> None:
    raise DataError("It is no table.", "Bring one.")


def endless() -> None:
    while True:
        time.sleep(1)


def hungry() -> int:
    return len([bytearray(2**24) for _ in range(1000)])


def crashes() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
