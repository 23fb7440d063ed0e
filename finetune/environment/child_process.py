"""Call a function in a child process with limits on time and memory.

Uploaded files are parsed this way: a file that unpacks to too much data, or that makes a parser
hang or crash, takes down the child and not the app. The child first confines itself to the files it
is given, then imports only the function's module. It exits after one call, when its time is up, or
when the app exits. Visitors take turns: each has one child at a time.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from finetune import messages
from finetune.environment import confinement as confined
from finetune.environment import project
from finetune.environment.confinement import Confinement, visible_environment, with_temporary_folder
from finetune.errors import DataError, FinetuneError
from finetune.messages import message

_LARGEST_RESULT = 2**24  # bytes
_SECONDS = 60.0
_BUSY, _BUSY_PER_BYTE = 10.0, 5 / 2**20  # seconds of a processor's time for reading files
asker: ContextVar[str] = ContextVar("asker", default="")  # the visitor that this thread works for


class _Line:
    """The calls for one visitor, which are carried out one after the other."""

    def __init__(self) -> None:
        self.turn, self.places = threading.Lock(), threading.BoundedSemaphore(3)


# Children at once; others wait. Those that may take long are no others' obstacle.
_quick, _long = threading.BoundedSemaphore(2), threading.BoundedSemaphore(1)
_lines: dict[str, _Line] = {}


def call(
    function: str,
    *arguments: Any,
    about: str,
    seconds: float = _SECONDS,
    memory: int = 2**30,
    confinement: Confinement | None = None,
) -> Any:
    """Call a function in a child process and return its result.

    Args:
        function: `module:name`. Its arguments and result must be JSON values.
        about: what the function reads, for errors.
        seconds: limit. Of a processor's time less, if `confinement` names only files to read: ten
            and five a megabyte.
        memory: limit in bytes.
        confinement: the files that the child may use; None for those that this process may use.
            Ignored if this process is itself confined, because its children inherit that.

    Raises:
        DataError: if the function raises one, exceeds a limit or crashes.
    """
    # Arrow's own pools, and the stacks of many threads, reserve more than they use.
    variables = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "2"}
    files, busy = confinement.reads if confinement else (), seconds
    if files and all(map(os.path.isfile, files)):
        busy = min(seconds, _BUSY + _BUSY_PER_BYTE * sum(map(os.path.getsize, files)))
    with contextlib.ExitStack() as stack:
        if confinement is None or confined.is_entered():
            confinement = None
            variables = os.environ | variables | {"PYTHONPATH": project.python_path()}
        else:
            confinement = stack.enter_context(with_temporary_folder(confinement))
            variables = visible_environment() | confinement.prepare() | variables
        limits = seconds, busy, memory
        request = [function, arguments, limits, confinement and confinement.to_json()]
        stack.enter_context(_turn(_long if seconds > _SECONDS else _quick))
        child = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "finetune.environment.child_process", json.dumps(request)],
                stdin=subprocess.PIPE,  # open while the app lives
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=variables,
            )
        )
        assert child.stdout is not None
        answer = child.stdout.read(_LARGEST_RESULT + 1)
        child.kill()
    with contextlib.suppress(ValueError):
        kind, value = json.loads(answer)
        if kind == "result":
            return value
        raise DataError(*map(messages.decode, value))
    fact = message(
        "{name} could not be read with {mib:,.0f} MiB of memory, or its reader crashed.",
        name=about,
        mib=memory / 2**20,
    )
    spent = {-signal.SIGALRM: seconds, -signal.SIGPROF: busy}.get(child.returncode)
    if spent is not None:
        fact = message("{name} took more than {seconds:.0f} s to read.", name=about, seconds=spent)
    raise DataError(fact, "Upload a part of it, or save it as CSV or JSONL.")


@contextlib.contextmanager
def _turn(places: threading.BoundedSemaphore) -> Iterator[None]:
    """Wait for the visitor's turn and a free place. DataError if several of their calls wait."""
    if not (owner := asker.get()):
        with places:
            yield
        return
    line = _lines.setdefault(owner, _Line())
    if not line.places.acquire(blocking=False):
        raise DataError("Several of your files are being read.", "Try again in a moment.")
    try:
        with line.turn, places:
            yield
    finally:
        line.places.release()


def main() -> None:
    """Run the requested function in the child, and write the result as JSON to standard output."""
    function, arguments, (seconds, busy, memory), confinement = json.loads(sys.argv[1])
    output = os.dup(1)
    os.dup2(2, 1)  # keeps prints of libraries out of the answer
    signal.setitimer(signal.ITIMER_REAL, seconds)  # ends the process
    signal.setitimer(signal.ITIMER_PROF, busy)
    confined.limit_memory(memory)
    if confinement:
        Confinement.from_json(confinement).enter()  # while there is one thread
    threading.Thread(target=_exit_with_app, daemon=True).start()
    module, name = function.split(":")
    try:
        answer = ["result", getattr(importlib.import_module(module), name)(*arguments)]
    except FinetuneError as error:
        answer = ["refused", [*map(messages.encode, (error.fact, error.remedy))]]
    with os.fdopen(output, "w", encoding="utf-8") as file:
        file.write(json.dumps(answer))


def _exit_with_app() -> None:
    with contextlib.suppress(OSError):
        os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
