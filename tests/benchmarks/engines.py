"""What do the engines cost a run, and does the page bear a hundred of them?

*Training*: the default run, shortened, as the app starts it (the queue, the local engine) and as a
worker started by hand (`python -m finetune train --run FOLDER`), in turns: samples a second, the
median of a run's steps. The ratio is the one over the other. *Begin and delay*: from the click to
the first event of the worker, and from an event to its line in the run's folder, on this machine
and as a Hugging Face Job of a Hub on this machine (a local process in place of a container).
*Crowd*: 1,000 runs, of which 100 are at work on simulated jobs that send 10 events a second each,
in one process in place of their followers, while the page's table of runs and one run are asked for
again and again; how long an answer takes, and whether an event was lost.

    python -m tests.benchmarks.engines [--steps 150] [--rounds 3] [--seconds 30] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from finetune.config import RunConfig
from finetune.engines import supervisor
from finetune.engines.base import HERE, AttemptStatus, Engine, EngineSpec, write_spec
from finetune.engines.supervisor import LogLine
from finetune.jobs import scheduler, service
from finetune.runs import events
from finetune.runs.job_folder import hold_lock
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED
from tests.benchmarks import machine
from tests.benchmarks import page as pages

RATE = 10  # events a second of a simulated job
TOKEN = "a-token"
SIDES = ("by hand", "engine")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the crowd")
    parser.add_argument("--runs", type=int, default=1000, help="of the crowd")
    parser.add_argument("--jobs", type=int, default=100, help="of these, at work")
    args = machine.parsed(parser, steps=6, rounds=1, seconds=5.0, runs=20, jobs=5)
    print(machine.described())
    with tempfile.TemporaryDirectory() as folder:
        ratio = measure_training(RunStore(Path(folder) / "training"), args.steps, args.rounds)
        measure_beginning(RunStore(Path(folder) / "beginning"), args.rounds, min(args.steps, 60))
        measure_crowd(RunStore(Path(folder) / "crowd"), args.seconds, args.runs, args.jobs)
    print(f"engines: ratio {ratio:.2f}")


def measure_training(store: RunStore, steps: int, rounds: int) -> float:
    """The engine's samples a second over those of a worker started by hand."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    config = RunConfig(max_steps=steps, eval_steps=steps)

    def rate(side: str) -> float:
        if side == "engine":
            run = service.start_run(store, config)
            _until_ended(store, run)
        else:
            run = store.create(config)
            command = [sys.executable, "-m", "finetune", "train", "--run", str(run.folder)]
            subprocess.run(command, check=True, capture_output=True)
        taken = [e.samples_per_second for e in run.tail()[0] if isinstance(e, events.Stepped)]
        return statistics.median(taken[2:])

    rates = machine.alternate(SIDES, rounds, rate, "samples/s")
    del os.environ["HF_HUB_OFFLINE"]
    return statistics.median(rates["engine"]) / statistics.median(rates["by hand"])


def _until_ended(store: RunStore, run: Run) -> None:
    def ended() -> bool:
        scheduler.dispatch_queue(store)
        return run.state().status in ENDED and not run.is_alive()

    pages.wait(ended, 1.0, 300)  # seldom: it shares the processor with what it measures


def measure_beginning(store: RunStore, rounds: int, steps: int) -> None:
    """Print how soon a run begins on each engine, and how late its events are."""
    from tests.support.engines import let_jobs_train
    from tests.support.hub import LoopbackHub

    with (
        LoopbackHub() as hub,
        tempfile.TemporaryDirectory() as home,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in hub.environment(Path(home)).items():
            patch.setenv(name, value)
        hub.add_user(TOKEN, "ada")
        tickets = {HERE: EngineSpec(), "hub-job": let_jobs_train(hub, patch, TOKEN)}
        for name, spec in tickets.items():
            begun, late = [], []
            for _ in range(rounds):
                begin, delays = _begun(store, spec, steps)
                begun.append(begin)
                late += delays
            middle, worst = statistics.median(late), sorted(late)[int(0.95 * len(late))]
            print(
                f"{name:<10}first event after {statistics.median(begun):.1f} s; an event is here "
                f"after {middle:.2f} s in the median, {worst:.2f} s at the 95th"
            )


def _begun(store: RunStore, spec: EngineSpec, steps: int) -> tuple[float, list[float]]:
    """Seconds until a worker's first event is here, and of each step's from when it was taken."""
    clicked, offset, first = time.time(), 0, 0.0
    delays: list[float] = []
    config = RunConfig(max_steps=steps, logging_steps=1, eval_steps=steps)
    run = service.start_run(store, config, spec)
    while run.state().status not in ENDED:
        news, offset = run.tail(offset)
        now = time.time()
        for event in news:
            if isinstance(event, events.Started):
                first = now - clicked
            elif isinstance(event, events.Stepped):
                delays.append(now - event.time)
        time.sleep(0.01)
    _until_ended(store, run)
    return first, delays


class SimulatedJob(Engine):
    """An engine whose attempts only write: ten steps a second, for some seconds."""

    name = "hub-job"

    def __init__(self, seconds: float) -> None:
        self.lines: list[bytes] = []
        self._seconds, self._ends = seconds, 0.0

    def price(self, spec: EngineSpec) -> float:
        return 0.0

    def submit(self, run: Run, spec: EngineSpec) -> str:
        self._ends = time.monotonic() + self._seconds
        return "simulated"

    def state(self, run: Run, spec: EngineSpec) -> AttemptStatus:
        return AttemptStatus("running" if time.monotonic() < self._ends else "ended", exit_code=0)

    def knows(self, run: Run, spec: EngineSpec) -> bool:
        return True

    def follow(self, run: Run, spec: EngineSpec) -> Iterator[str]:
        offset = spec.sent
        while time.monotonic() < self._ends:
            time.sleep(1 / RATE)
            step = len(self.lines) + 1
            event = events.Stepped(
                step=step, epoch=0.0, loss=1 / step, learning_rate=1e-5, samples_per_second=8.0
            )
            line = event.model_dump_json().encode()
            self.lines.append(line)
            log_line = LogLine(spec.attempt, offset, line)
            offset = log_line.end
            yield log_line.encode()

    def stop(self, run: Run, spec: EngineSpec, now: bool = False) -> None:
        self._ends = 0.0

    def fetch(self, run: Run, spec: EngineSpec) -> bytes:
        return b" " * (spec.sent - 1) + b"\n" + b"".join(line + b"\n" for line in self.lines)

    def remove(self, run: Run, spec: EngineSpec) -> None:
        self.stop(run, spec)


def measure_crowd(store: RunStore, seconds: float, runs: int, at_work: int) -> None:
    """Print how long the page's answers take beside many jobs, and what was lost."""
    config, jobs = RunConfig(), []
    for number in range(runs):
        run = store.create(config.changed(name=f"run {number}"))
        if number < at_work:
            write_spec(run, EngineSpec(engine="hub-job"))
            jobs.append((run, SimulatedJob(seconds), hold_lock(run.lock_file)))
        else:
            run.append(events.Finished(step=1, seconds=1.0))
    with pages.app(store) as (app, url):
        threads = [
            threading.Thread(target=supervisor.supervise, args=(run, lambda job=job: job))  # type: ignore[misc]
            for run, job, _ in jobs
        ]
        for thread in threads:
            thread.start()
        everything = Request(
            url + "gradio_api/run/list_runs", b'{"data": []}', {"content-type": "application/json"}
        )
        asked: dict[str, str | Request] = {
            "the page": url, "a run": f"{url}finetune/watch/{jobs[0][0].id}", "all": everything,
        }  # fmt: skip
        answers: dict[str, list[float]] = {name: [] for name in asked}
        until = time.monotonic() + seconds - 3
        while time.monotonic() < until:
            for name, question in asked.items():
                began = time.monotonic()
                with urlopen(question) as answer:
                    answer.read()
                answers[name].append(time.monotonic() - began)
            time.sleep(0.2)
        resident = app.memory_info().rss / 2**20
        for thread in threads:
            thread.join(60)
    sent = sum(len(job.lines) for _, job, _ in jobs)
    here = sum(isinstance(e, events.Stepped) for run, _, _ in jobs for e in run.tail()[0])
    for _, _, handle in jobs:
        os.close(handle or 0)
    for name, times in answers.items():
        late = sorted(times)[int(0.95 * len(times))]
        print(f"{name}: answered after {statistics.median(times):.2f} s, {late:.2f} at the 95th")
    print(json.dumps({"events sent": sent, "here": here, "lost": sent - here}))
    print(f"the app's memory: {resident:.0f} MiB")


if __name__ == "__main__":
    main()
