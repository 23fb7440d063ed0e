"""An engine whose attempts only write."""

from __future__ import annotations

import time
from collections.abc import Iterator

from finetune.engines import supervisor
from finetune.engines.base import AttemptStatus, Engine, EngineSpec
from finetune.engines.supervisor import LogLine
from finetune.runs import events
from finetune.runs.run import Run

RATE = 10  # events a second


def simulate(run: Run, engine: Engine) -> int:
    """Carry a run out on an engine; its exit status."""
    return supervisor.carry_out(run, open_engine=lambda spec, token: engine)


class SimulatedJob(Engine):
    """An engine whose attempts only write: ten steps a second, for some seconds."""

    name = "hub-job"

    def __init__(self, seconds: float) -> None:
        self.lines: list[bytes] = []
        self._seconds, self._ends = seconds, 0.0

    def line(self, step: int) -> bytes:
        event = events.Stepped(
            step=step, epoch=0.0, loss=1 / step, learning_rate=1e-5, samples_per_second=8.0
        )
        return event.model_dump_json().encode()

    def submit(self, run: Run, spec: EngineSpec) -> str:
        self._ends = time.monotonic() + self._seconds
        return "simulated"

    def state(self, run: Run, spec: EngineSpec) -> AttemptStatus:
        return AttemptStatus("running" if time.monotonic() < self._ends else "ended", exit_code=0)

    def follow(self, run: Run, spec: EngineSpec) -> Iterator[str]:
        offset = spec.sent
        while time.monotonic() < self._ends:
            time.sleep(1 / RATE)
            self.lines.append(self.line(len(self.lines) + 1))
            log_line = LogLine(spec.attempt, offset, self.lines[-1])
            offset = log_line.end
            yield log_line.encode()

    def stop(self, run: Run, spec: EngineSpec, now: bool = False) -> None:
        self._ends = 0.0

    def fetch(self, run: Run, spec: EngineSpec) -> bytes:
        return b" " * (spec.sent - 1) + b"\n" + b"".join(line + b"\n" for line in self.lines)

    def remove(self, run: Run, spec: EngineSpec) -> None:
        self.stop(run, spec)
