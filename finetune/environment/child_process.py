"""Calls a function in a child process that has limits of time and memory.

For what parses a file that a person brought: what a small file unpacks to, or a parser that hangs
or crashes on it, then costs the child and not the app. The child imports the module of the function
and nothing else; it ends with the app, with its time, and after one call. Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from finetune.errors import DataError, FinetuneError

SECONDS = 60
MEMORY = 2**30  # bytes
_AT_ONCE = 2  # children; more wait for their turn
_LARGEST = 2**24  # bytes of a result
_SOURCE = Path(__file__).resolve().parent.parent
_turn = threading.BoundedSemaphore(_AT_ONCE)


def call(
    function: str, *arguments: Any, about: str, seconds: float = SECONDS, memory: int = MEMORY
) -> Any:
    """What a function returns.

    Args:
        function: `module:name`; it takes and returns what JSON can say.
        about: what it reads, for errors.
        seconds: it may take.
        memory: bytes it may hold, where the system can limit that.

    Raises:
        DataError: as the function does, and when it went beyond a limit or broke.
    """
    asked = json.dumps([function, arguments, seconds, memory])
    path = os.pathsep.join(filter(None, [str(_SOURCE), os.environ.get("PYTHONPATH", "")]))
    # Arrow's own pools, and the stacks of many threads, reserve more than they use.
    told = {"PYTHONPATH": path, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "2"}
    with _turn:
        child = subprocess.Popen(
            [sys.executable, "-m", "finetune.environment.child_process", asked],
            stdin=subprocess.PIPE,  # open while the app lives
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | told,
        )
        late = threading.Event()

        def end() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        assert child.stdin is not None
        assert child.stdout is not None
        with child, child.stdin, child.stdout:
            answer = child.stdout.read(_LARGEST + 1)
            timer.cancel()
            child.kill()
    with contextlib.suppress(ValueError):
        kind, value = json.loads(answer)
        if kind == "result":
            return value
        if kind == "refused":
            raise DataError(*value)
    raise _broken(about, seconds if late.is_set() else 0, memory)


def _broken(about: str, seconds: float, memory: int) -> DataError:
    remedy = "Bring a part of it, or save it as CSV or JSONL."
    if seconds:
        return DataError(f"{about} took more than {seconds:g} s to read.", remedy)
    return DataError(
        f"{about} could not be read with {memory / 2**20:,.0f} MiB of memory, or breaks what reads "
        "it.",
        remedy,
    )


def main() -> None:
    """The child: what was asked for as JSON on the standard output."""
    function, arguments, seconds, memory = json.loads(sys.argv[1])
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    _limit(seconds, memory)
    threading.Thread(target=_end_with_the_app, daemon=True).start()
    module, name = function.split(":")
    try:
        answer = ["result", getattr(importlib.import_module(module), name)(*arguments)]
    except FinetuneError as error:
        answer = ["refused", [error.fact, error.remedy]]
    with os.fdopen(out, "w", encoding="utf-8") as file:
        file.write(json.dumps(answer))


def _limit(seconds: float, memory: int) -> None:
    """End this process when it has worked for so long; give it no more memory than so much."""
    with contextlib.suppress(ImportError, AttributeError, ValueError, OSError):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def _end_with_the_app() -> None:
    with contextlib.suppress(OSError):
        os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
