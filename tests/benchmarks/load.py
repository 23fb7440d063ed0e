"""What do the people who watch cost the training they watch?

One run, the default one with many epochs, and three sides that alternate within it: `alone`, with
the app held still (SIGSTOP) and nobody there; `crowd`, with `--clients` visitors of whom each polls
the Train tab's live view as often as the page does, and asks the Predict tab about a pair every
`--asking` seconds; and `busy`, with the app held still and one other process that computes without
end. All of it on this machine and at its usual priority, the visitors included, whose own work
would be done elsewhere. What counts is the samples taken in each window over its seconds, so that a
halt counts as long as it lasts; the ratio is the median under the crowd over that alone. Beside the
busy process it should be at least 0.55 on two cores.

Also printed: how long after an event of the run a visitor sees it, how long an answer takes, what
failed, the app's memory; and, with `--browser`, the seconds from a click on Train to the first
step in a real Chromium, and the speed while it draws the page.

    python -m tests.benchmarks.load [--clients 50] [--seconds 20] [--rounds 5] [--browser]
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
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import httpx
import numpy as np
import psutil
from playwright.sync_api import Browser

from finetune.config import RunConfig
from finetune.jobs import service, workers
from finetune.jobs.queue import Queue
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.benchmarks import machine
from tests.benchmarks import page as pages

SETTLE = 2.0  # seconds of each window that do not count
PAIR = ("The shop opens at nine on weekdays.", "On weekdays the shop does not open before nine.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--asking", type=float, default=20.0, help="seconds between questions")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each window")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--browser", action="store_true")
    given = parser.parse_args()
    print(machine.described())
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder) / "runs")
        with pages.app(store) as (app, url):
            try:
                _measure(store, app, url, given)
            finally:
                for run in store.runs():
                    workers.kill_worker(run)


def _measure(store: RunStore, app: psutil.Process, url: str, given: argparse.Namespace) -> None:
    model = _begin(store, RunConfig(max_steps=5, name="a model to ask"))
    _until(lambda: service.run_summary(store, model).status == "finished", 180)
    watched = _begin(store, RunConfig(num_train_epochs=1000, logging_steps=2, eval_steps=10**6))
    _until(lambda: service.run_summary(store, watched).step > 60, 180)
    first = Crowd(url, watched.id, model.id, 1, 1.0)
    with first.there():  # the model is loaded
        _until(lambda: bool(first.answers), 120)
    crowd = Crowd(url, watched.id, model.id, given.clients, given.asking)
    rates: dict[str, list[float]] = {"alone": [], "crowd": [], "busy": []}
    there = {"alone": lambda: _held(app), "crowd": crowd.there, "busy": lambda: _beside(app)}
    sizes = []
    for number in range(given.rounds):
        for side in list(rates)[:: 1 if number % 2 else -1]:
            with there[side]():
                time.sleep(SETTLE)
                rates[side].append(_rate(watched, given.seconds))
            sizes.append(app.memory_info().rss / 2**20)
            print(f"round {number + 1} {side:<6}{rates[side][-1]:>8.1f} samples/s", flush=True)
    seen = _delays(watched, crowd.sights)
    asked = crowd.answers
    alone, under, beside = (statistics.median(rates[side]) for side in ("alone", "crowd", "busy"))
    rows = [
        ("training alone", f"{alone:.1f} samples/s"),
        ("training under the crowd", f"{under:.1f} samples/s"),
        ("training beside a busy one", f"{beside:.1f} samples/s, {beside / alone:.2f} of alone"),
        ("an event is seen after", _spread(seen)),
        ("a poll is answered after", _spread(crowd.polls)),
        ("a question is answered after", _spread(asked)),
        ("polls, questions, failures", f"{len(crowd.polls)}, {len(asked)}, {len(crowd.failures)}"),
        ("the app's memory", f"{sizes[0]:.0f} MiB at first, {sizes[-1]:.0f} at last"),
    ]
    if given.browser:
        with pages.chromium() as browser:
            drawn = _drawn(browser, watched, url, given.seconds)
            rows.append(("training under a Chromium here", f"{drawn:.1f} samples/s"))
            rows.append(("click on Train to first step", f"{_clicked(browser, store, url):.1f} s"))
    for name, value in rows:
        print(f"{name:<32}{value}")
    for failure in sorted(set(crowd.failures))[:5]:
        print("failed:", failure)
    print(f"load: ratio {under / alone:.2f}")


@dataclass
class Crowd:
    """Visitors that watch a run and ask a model.

    Args:
        url: the app's address.
        run_id, model_id: what they watch and whom they ask.
        clients: how many they are.
        asking: seconds between a visitor's questions.
    """

    url: str
    run_id: str
    model_id: str
    clients: int
    asking: float
    sights: list[list[tuple[float, int]]] = field(default_factory=list)
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
        ask = self._endpoint()
        tasks = [self._watch(leave) for _ in range(self.clients)]
        tasks += [self._ask(leave, ask) for _ in range(self.clients)]
        await asyncio.gather(*tasks)

    def _endpoint(self) -> int:
        """The Predict tab's question, by its index."""
        found = httpx.get(self.url + "config").json()["dependencies"]
        index: int = next(one["id"] for one in found if one["api_name"] == "on_ask")
        return index

    async def _watch(self, leave: threading.Event) -> None:
        await asyncio.sleep(random.random())
        mine: list[tuple[float, int]] = []
        self.sights.append(mine)
        visitor = _Connection(self.url)
        marks: dict[str, str] = {}
        while not leave.is_set():
            began = time.monotonic()
            path = f"/finetune/watch/{self.run_id}?{urlencode(marks)}"
            told = json.loads(await self._call(visitor, path) or "{}")
            self.polls.append(time.monotonic() - began)
            marks |= {name: mark for name, (mark, _) in told.items()}
            shown = told.get("status", ("", ""))[1]
            if found := re.search(r"step ([\d,]+) of", shown):
                mine.append((time.time(), int(found[1].replace(",", ""))))
            await asyncio.sleep(max(0.0, began + visitor.wait - time.monotonic()))
        visitor.close()

    async def _ask(self, leave: threading.Event, index: int) -> None:
        first = time.monotonic() + random.random() * self.asking
        while not leave.is_set() and time.monotonic() < first:
            await asyncio.sleep(0.2)
        visitor = _Connection(self.url)
        while not leave.is_set():
            began = time.monotonic()
            asked = {
                "data": [self.model_id, *PAIR, False, False, False],
                "fn_index": index,
                "session_hash": "x",
            }
            text = await self._call(visitor, "/gradio_api/run/predict", json.dumps(asked))
            self.answers.append(time.monotonic() - began)
            if "ft-answer" not in text:
                self.failures.append(text[:200])
            visitor.close()  # the server would, before the next question
            while not leave.is_set() and time.monotonic() < began + self.asking:
                await asyncio.sleep(0.2)

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
        found = re.match(r"http://([\d.]+):(\d+)/", url)
        assert found is not None
        self._host, self._port = found[1], int(found[2])
        self.wait = 1.0  # seconds that the app wants the page to let pass
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, path: str, body: str) -> tuple[int, str]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        data = body.encode()
        head = (
            f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\n"
            f"Host: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(answer.split()[1])
        if wanted := re.search(r"x-wait: (\d+)", answer):
            self.wait = int(wanted[1]) / 1000
        length = re.search(r"content-length: (\d+)", answer)
        if length is None and status != 204:
            raise ValueError(answer[:200])
        text = await reader.readexactly(int(length[1]) if length else 0)
        return status, text.decode()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _delays(run: Run, sights: list[list[tuple[float, int]]]) -> list[float]:
    """Seconds from each measurement of the run until a visitor who was there saw it or a later."""
    stepped = [(e.step, e.time) for e in run.tail()[0] if isinstance(e, events.Stepped)]
    found = []
    for mine in sights:
        for (before, _), (at, step) in itertools.pairwise(mine):
            told = [time_ for known, time_ in stepped if known <= step and before < time_]
            found += [at - time_ for time_ in told if time_ <= at]
    return found


def _spread(seconds: list[float]) -> str:
    if len(seconds) < 20:
        return "too few"
    cuts = statistics.quantiles(seconds, n=20)
    return f"{statistics.median(seconds):.2f} s in the median, {cuts[18]:.2f} s at the 95th"


def _rate(run: Run, seconds: float) -> float:
    """The samples that the run takes in the coming seconds, a second."""
    began = time.time()
    time.sleep(seconds)
    ended = time.time()
    _until(lambda: _steps(run)[-1][0] > ended, 60)
    return _taken(_steps(run), began, ended) * run.config().per_device_train_batch_size / seconds


def _steps(run: Run) -> list[tuple[float, int]]:
    """When each step was told of."""
    return [(e.time, e.step) for e in run.tail()[0] if isinstance(e, events.Stepped)]


def _taken(steps: list[tuple[float, int]], began: float, ended: float) -> float:
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


@contextlib.contextmanager
def _beside(app: psutil.Process) -> Iterator[None]:
    """The app stands still, and another process computes without end."""
    with _held(app), subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            yield
        finally:
            busy.kill()


def _begin(store: RunStore, config: RunConfig) -> Run:
    run = store.create(config)
    Queue(store.root).add(run.id)
    return run


def _drawn(browser: Browser, run: Run, url: str, seconds: float) -> float:
    """The samples a second of a run while a browser draws its page."""
    page = browser.new_page()
    page.goto(url)
    page.wait_for_timeout(5000)
    rate: list[float] = []
    thread = threading.Thread(target=lambda: rate.append(_rate(run, seconds)))
    thread.start()
    while thread.is_alive():
        page.wait_for_timeout(200)
    page.close()
    return rate[0]


def _clicked(browser: Browser, store: RunStore, url: str) -> float:
    """Seconds from a click on Train to the first step, while nothing else trains."""
    for run in store.runs():
        workers.kill_worker(run)
    before = {run.id for run in store.runs()}
    page = browser.new_page()
    page.goto(url)
    time.sleep(3)  # the Hub has been asked for, and the page is at rest
    page.click("#train")
    clicked = time.time()
    _until(lambda: bool({run.id for run in store.runs()} - before), 30)
    run = next(run for run in store.runs() if run.id not in before)
    _until(lambda: service.run_summary(store, run).step > 0, 120)
    page.close()
    workers.kill_worker(run)
    return service.run_summary(store, run).train[0].time - clicked


def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("it did not happen")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
