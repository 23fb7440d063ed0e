"""What the tests of `child_process` have called in a child."""

import os
import sys
import time
from pathlib import Path

from finetune.data import table_formats


def fine(text):
    """The text, the child's pid, and the modules that it has loaded to read tables."""
    print("a library's chatter")
    return [text, os.getpid(), *sys.modules]


def endless():
    while True:
        time.sleep(1)


def hungry():
    return len([bytearray(2**24) for _ in range(1000)])


def parsed(path):
    """How many rows of a file could be read, and why others could not."""
    problems = []
    table = table_formats.open_table(Path(path))
    rows = sum(1 for _ in table.rows(lambda line, reason: problems.append(reason)))
    return rows, problems
