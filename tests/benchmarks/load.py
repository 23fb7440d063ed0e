"""What do the people who watch cost the training they watch?

One run, the default one with many epochs, and two sides in turns: `alone`, with the app held still
(SIGSTOP) and nobody there; and `crowd`, with `--clients` visitors of whom each polls the Train
tab's live view as often as the page does, and asks the Predict tab about a pair every `--asking`
seconds, all of them on this machine. What counts is the samples taken in each window over its
seconds, so that a halt counts as long as it lasts; the ratio is the median under the crowd over
that alone. Also printed: how long after an event of the run a visitor sees it, how long an answer
takes, what failed, the app's memory; and first the memory of an app of its own after each sweep of
odd calls (`odd_calls`), which ask four toys in turn, one more than are kept loaded.

    python -m tests.benchmarks.load [--clients 50] [--seconds 20] [--rounds 5] [--sweeps 3]
        [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import httpx
import numpy as np
import psutil

from finetune.config import RunConfig
from finetune.jobs import workers
from finetune.runs import events
from finetune.runs.queue import Queue
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.benchmarks import machine, odd_calls
from tests.benchmarks import page as pages
from tests.support import toys

SETTLE = 2.0  # seconds of each window that do not count
PAIR = ("The shop opens at nine on weekdays.", "On weekdays the shop does not open before nine.")
Steps = list[tuple[float, int]]  # when each step was told of, or seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--asking", type=float, default=20.0, help="seconds between questions")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each window")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sweeps", type=int, default=3, help="of odd calls")
    quick = {"clients": 5, "asking": 1.0, "seconds": 3.0, "rounds": 1, "sweeps": 0}
    args = machine.parsed(parser, **quick)
    print(machine.described())
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        if args.sweeps:
            sweep_memory(Path(folder), args.sweeps)
        config = RunConfig()
        if args.quick:
            tiny = machine.random_bert(Path(folder) / "tiny", **machine.TINY)
            config = config.changed(checkpoint=str(tiny))
        store = RunStore(Path(folder) / "runs")
        with pages.app(store) as (app, url):
            try:
                failures = _measure(store, app, url, config, args)
            finally:
                for run in store.runs():
                    workers.kill_worker(run)
    sys.exit(bool(failures))


def sweep_memory(folder: Path, sweeps: int) -> None:
    """Print an app's resident memory after each of some sweeps of odd calls."""
    store, checkpoint = RunStore(folder / "odd" / "runs"), toys.write_checkpoint(folder / "toy")
    runs = [toys.finished_run(store, checkpoint, f"toy {number}").id for number in range(4)]
    with pages.app(store) as (app, url):
        sweep = odd_calls.Sweep(url, runs)
        for _ in range(sweeps):
            sweep()
            memory = app.memory_info().rss / 2**20
            print(f"{f'after {sweep.calls} odd calls':<32}{memory:.0f} MiB", flush=True)


def _measure(
    store: RunStore, app: psutil.Process, url: str, config: RunConfig, args: argparse.Namespace
) -> list[str]:
    """Print what was measured; returns what failed."""
    model = _begin(store, config.changed(max_steps=5, name="a model to ask"))
    pages.wait(lambda: model.state().status == "finished", 0.05, 180)
    run = _begin(store, config.changed(num_train_epochs=1000, logging_steps=2, eval_steps=10**6))
    pages.wait(lambda: run.state().step > 60, 0.05, 180)
    first = Crowd(url, run.id, model.id, 1, 1.0)
    with first.there():  # the model is loaded
        pages.wait(lambda: bool(first.answers), 0.05, 120)
    crowd = Crowd(url, run.id, model.id, args.clients, args.asking)
    sides = {"alone": lambda: _held(app), "crowd": crowd.there}
    memory = []

    def rate(side: str) -> float:
        with sides[side]():
            time.sleep(SETTLE)
            samples = _rate(run, args.seconds)
        memory.append(app.memory_info().rss / 2**20)
        return samples

    rates = machine.alternate(list(sides), args.rounds, rate, "samples/s")
    alone, under = (statistics.median(rates[side]) for side in sides)
    rows = {
        "training alone": f"{alone:.1f} samples/s",
        "training under the crowd": f"{under:.1f} samples/s",
        "an event is seen after": _spread(_delays(run, crowd.sights)),
        "a poll is answered after": _spread(crowd.polls),
        "a question is answered after": _spread(crowd.answers),
        "polls, answers, failures": ", ".join(
            str(len(times)) for times in (crowd.polls, crowd.answers, crowd.failures)
        ),
        "the app's memory": f"{memory[0]:.0f} MiB at first, {memory[-1]:.0f} at last",
    }
    for name, value in rows.items():
        print(f"{name:<32}{value}")
    for failure in sorted(set(crowd.failures))[:5]:
        print("failed:", failure)
    print(f"load: ratio {under / alone:.2f}")
    return crowd.failures


@dataclass
class Crowd:
    """Visitors, `clients` many, of whom each watches a run and asks a model every `asking`
    seconds."""

    url: str
    run_id: str
    model_id: str
    clients: int
    asking: float
    sights: list[Steps] = field(default_factory=list)
    polls: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def there(self) -> Iterator[None]:
        """The visitors come, and leave at the end."""
        leave = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._all(leave)))
        thread.start()
        try:
            yield
        finally:
            leave.set()
            thread.join(60)

    async def _all(self, leave: threading.Event) -> None:
        endpoints = httpx.get(self.url + "config").json()["dependencies"]
        ask: int = next(end["id"] for end in endpoints if end["api_name"] == "on_ask")
        tasks = [self._watch(leave) for _ in range(self.clients)]
        tasks += [self._ask(leave, ask) for _ in range(self.clients)]
        await asyncio.gather(*tasks)

    async def _watch(self, leave: threading.Event) -> None:
        await asyncio.sleep(random.random())
        sights: Steps = []
        self.sights.append(sights)
        visitor = _Connection(self.url)
        marks: dict[str, str] = {}
        while not leave.is_set():
            began = time.monotonic()
            path = f"/finetune/watch/{self.run_id}?{urlencode(marks)}"
            parts = json.loads(await self._call(visitor, path) or "{}")
            self.polls.append(time.monotonic() - began)
            marks |= {name: mark for name, (mark, _) in parts.items()}
            if step := re.search(r"step ([\d,]+) of", parts.get("bar", ("", ""))[1]):
                sights.append((time.time(), int(step[1].replace(",", ""))))
            await asyncio.sleep(max(0.0, began + visitor.wait - time.monotonic()))
        visitor.close()

    async def _ask(self, leave: threading.Event, index: int) -> None:
        following = time.monotonic() + random.random() * self.asking
        visitor = _Connection(self.url)
        data = [self.model_id, *PAIR, False, False, False]
        question = json.dumps({"data": data, "fn_index": index, "session_hash": "x"})
        while not leave.is_set():
            await asyncio.sleep(0.2)
            began = time.monotonic()
            if began < following:
                continue
            text = await self._call(visitor, "/gradio_api/run/predict", question)
            self.answers.append(time.monotonic() - began)
            if "ft-answer" not in text:
                self.failures.append(text[:200])
            visitor.close()  # the server would, before the next question
            following = began + self.asking

    async def _call(self, visitor: _Connection, path: str, body: str = "") -> str:
        try:
            status, text = await visitor.send(path, body)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            self.failures.append(repr(error)[:200])
            visitor.close()
            return ""
        if status not in (200, 204):
            self.failures.append(f"{status} {text[:150]}")
            return ""
        return text


class _Connection:
    """A kept connection; light, for it shares the machine with what it measures."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self.wait = 1.0  # seconds that the app wants the page to let pass
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, path: str, body: str) -> tuple[int, str]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                self._address.hostname, self._address.port
            )
        reader, writer = self._streams
        data = body.encode()
        head = (
            f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: {self._address.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(answer.split()[1])
        if wait := re.search(r"x-wait: (\d+)", answer):
            self.wait = int(wait[1]) / 1000
        length = re.search(r"content-length: (\d+)", answer)
        if length is None and status != 204:
            raise ValueError(answer[:200])
        text = await reader.readexactly(int(length[1]) if length else 0)
        return status, text.decode()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _delays(run: Run, visitors: list[Steps]) -> list[float]:
    """Seconds from each measurement of the run until a visitor who was there saw it or a later."""
    delays = []
    steps = _steps(run)
    for sights in visitors:
        for (before, _), (seen_at, seen) in itertools.pairwise(sights):
            delays += [
                seen_at - told_at
                for told_at, step in steps
                if step <= seen and before < told_at <= seen_at
            ]
    return delays


def _spread(seconds: list[float]) -> str:
    middle, late = np.quantile(seconds or [np.nan], (0.5, 0.95))
    return f"{middle:.2f} s in the median, {late:.2f} s at the 95th"


def _rate(run: Run, seconds: float) -> float:
    """The samples that the run takes in the coming seconds, a second."""
    began = time.time()
    time.sleep(seconds)
    ended = time.time()
    pages.wait(lambda: _steps(run)[-1][0] > ended, 0.05, 60)
    taken = _taken(_steps(run), began, ended)
    prepared = run.state().prepared
    return taken * (prepared.per_device_train_batch_size if prepared else 0) / seconds


def _steps(run: Run) -> Steps:
    return [(e.time, e.step) for e in run.tail()[0] if isinstance(e, events.Stepped)]


def _taken(steps: Steps, began: float, ended: float) -> float:
    """How many steps were taken between two moments, parts of a step included."""
    times, numbers = zip(*steps, strict=True)
    first, last = np.interp([began, ended], times, numbers)
    return float(last - first)


@contextlib.contextmanager
def _held(app: psutil.Process) -> Iterator[None]:
    """The app stands still: its run goes on alone."""
    app.suspend()
    try:
        yield
    finally:
        app.resume()


def _begin(store: RunStore, config: RunConfig) -> Run:
    run = store.create(config)
    Queue(store.root).add(run.id)
    return run


if __name__ == "__main__":
    main()
