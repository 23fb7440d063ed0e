"""An engine that the project does not know: a process on this machine, billed by the minute.

`install` makes it known as an installed package would, to this process and to those it starts.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from finetune.engines import attempt, registry, spending
from finetune.engines.base import AttemptStatus, EngineSpec, Shown
from finetune.engines.billed import BilledEngine, BilledOptions, Machine
from finetune.runs.run import Run
from tests.support import installed

TRAINING = "OTHER_ENGINE_TRAINING"  # names what its processes run in place of `finetune train`
# The process and its exit code outlive the worker that follows them.
_SCRIPT = 'echo $$ >"$0/pid"; "$@" >"$0/log" 2>&1; echo $? >"$0/code"; mv "$0/code" "$0/exit"'


class OtherOptions(BilledOptions):
    """What a person chooses for another machine."""

    flavor: Annotated[str, Shown("Machine")] = "small"
    """Small or large."""
    queue: Annotated[str, Shown("Queue", "Where the process waits.", "short")] = "short"
    """The queue in which the process waits."""
    niceness: Annotated[int, Shown("Niceness")] = Field(0, ge=0, le=19)
    """How far the process lets others go first."""


class OtherEngine(BilledEngine):
    """Its processes write into the run's folder themselves."""

    name, label = "other", "Other machine"
    Options = OtherOptions
    places = 2
    usual_machine = "large"

    def machines(self) -> list[Machine]:
        return [Machine("small", "1 core", 0.36), Machine("large", "2 cores", 1.44)]

    def submit(self, run: Run, spec: EngineSpec) -> str:
        job = str(spec.attempt)
        place = _place(run, job)
        if not place.exists():
            self.reserve(run, spec)
            place.mkdir()
            command = os.environ.get(TRAINING, "finetune train").split()
            words = [sys.executable, "-m", *command, "--run", str(run.folder)]
            subprocess.run(
                ["setsid", "--fork", "sh", "-c", _SCRIPT, str(place), *words],
                env=os.environ | {attempt.ATTEMPT: job, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True,
            )  # fmt: skip
        return job

    def state(self, run: Run, spec: EngineSpec) -> AttemptStatus:
        place = _place(run, spec.job)
        if not (place / "exit").exists():
            return AttemptStatus("running" if (place / "log").exists() else "waiting")
        spending.note(run, spec.attempt, self.options(spec).price / 60)
        code = int((place / "exit").read_text())
        return AttemptStatus("ended", code, lost=code == attempt.LOST)

    def knows(self, run: Run, spec: EngineSpec) -> bool:
        return _place(run, spec.missing).exists()

    def follow(self, run: Run, spec: EngineSpec) -> Iterator[str]:
        place, told = _place(run, spec.job), 0
        while True:
            ended = (place / "exit").exists()
            with suppress(FileNotFoundError):
                lines = (place / "log").read_text(errors="replace").splitlines(keepends=True)
                whole = [line for line in lines if line.endswith("\n")]
                yield from whole[told:]
                told = len(whole)
            if ended:
                return
            time.sleep(0.2)

    def stop(self, run: Run, spec: EngineSpec, now: bool = False) -> None:
        """The process looks at the run's STOP file itself."""
        if now:
            _kill(_place(run, spec.job))

    def fetch(self, run: Run, spec: EngineSpec) -> bytes:
        return b""

    def remove(self, run: Run, spec: EngineSpec) -> None:
        for place in run.folder.glob(".other-*"):
            _kill(place)
            shutil.rmtree(place, ignore_errors=True)


def _place(run: Run, job: str) -> Path:
    return run.folder / f".other-{job}"


def _kill(place: Path) -> None:
    with suppress(FileNotFoundError, ProcessLookupError):
        if not (place / "exit").exists():
            os.killpg(int((place / "pid").read_text()), signal.SIGKILL)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the engine's entry point on the path of this process and of its children."""
    installed.install(folder, "finetune.engines", OtherEngine, monkeypatch)
    registry.engines.cache_clear()
