"""What do the people who watch cost the training they watch?

One run, the default one with many epochs, and two sides in turns: `alone`, with the app held still
(SIGSTOP) and nobody there; and `crowd`, with `--clients` visitors of whom each polls the Train
tab's live view as often as the page does, and asks the Predict tab about a pair every `--asking`
seconds. Their browsers would be on other machines, so here they yield to what is measured (at nice
19). What counts is the samples taken in each window over its seconds, so that a halt counts as long
as it lasts; the ratio is the median under the crowd over that alone. Also printed: how long an
answer takes, what failed, and the app's memory.

    python -m tests.benchmarks.load [--clients 50] [--seconds 20] [--rounds 5] [--quick]
"""

import contextlib
import itertools
import json
import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlencode, urlsplit

import httpx
import numpy as np

from finetune.config import RunConfig
from finetune.jobs import workers
from finetune.runs import events
from finetune.runs.queue import Queue
from finetune.runs.store import RunStore
from tests.benchmarks import machine
from tests.benchmarks import page as pages
from tests.support import toys
from tests.support.waiting import until

SETTLE = 2.0  # seconds of each window that do not count
PAIR = ("The shop opens at nine on weekdays.", "On weekdays the shop does not open before nine.")


def main():
    args = machine.parsed(
        __doc__, clients=(50, 5), asking=(20.0, 1.0), seconds=(20.0, 1.0), rounds=(5, 1)
    )
    with machine.begun() as folder:
        store = RunStore(folder / "runs")
        with (
            pages.app(store, at_rest=not args.quick) as (app, url),
            contextlib.ExitStack() as stack,
        ):
            begin = _played if args.quick else _trained
            failures = _measure(app, url, *begin(store, stack), args)
    sys.exit(bool(failures))


def _trained(store, stack):
    """A model to ask, and a run at work, which ends with the stack."""
    stack.callback(_end, store)
    model = _begin(store, RunConfig(max_steps=5, name="a model to ask"))
    until(lambda: model.state().status == "finished")
    run = _begin(store, RunConfig(num_train_epochs=1000, logging_steps=2, eval_steps=10**6))
    until(lambda: run.state().step > 60)
    return model, run


def _played(store, stack):
    """The same with a toy for a model, and a run of which this process writes the steps."""
    model = toys.finished_run(store, machine.tiny_bert(store.root.parent))
    run = stack.enter_context(pages.watched(store))

    def play():
        numbers = itertools.count(1)
        while run.folder.exists():
            pages.step(run, next(numbers))
            time.sleep(0.1)

    threading.Thread(target=play, daemon=True).start()
    return model, run


def _end(store):
    for run in store.runs():
        workers.kill_worker(run)


def _begin(store, config):
    run = store.create(config)
    Queue(store.root).add(run.id)
    return run


def _measure(app, url, model, run, args):
    """Print what was measured; returns what failed."""
    first = Crowd(url, run.id, model.id, 1, 1.0)
    with first.there():  # the model is loaded
        until(lambda: bool(first.answers), 120)
    crowd = Crowd(url, run.id, model.id, args.clients, args.asking)
    sides = {"alone": lambda: _held(app), "crowd": crowd.there}
    memory = []

    def rate(side):
        with sides[side]():
            time.sleep(SETTLE)
            samples = _rate(run, args.seconds)
        memory.append(app.memory_info().rss / 2**20)
        return samples

    alone, under = machine.medians(list(sides), args.rounds, rate, "samples/s").values()
    counts = [len(times) for times in (crowd.polls, crowd.answers, crowd.failures)]
    print(f"training {alone:.1f} samples/s alone, {under:.1f} under the crowd")
    print(f"a poll is answered after {_spread(crowd.polls)}")
    print(f"a question is answered after {_spread(crowd.answers)}")
    print("{} polls, {} answers, {} failures".format(*counts))
    print(f"the app's memory: {memory[0]:.0f} MiB at first, {memory[-1]:.0f} at last")
    for failure in sorted(set(crowd.failures))[:5]:
        print("failed:", failure)
    print(f"load: ratio {under / alone:.2f}")
    return crowd.failures


def _yield():
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


@dataclass
class Crowd:
    """Visitors, `clients` many, of whom each watches a run and asks a model every `asking`
    seconds."""

    url: str
    run_id: str
    model_id: str
    clients: int
    asking: float
    polls: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    leave: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def there(self):
        """The visitors come, and leave at the end."""
        self.leave.clear()
        assert self._question  # the page's endpoints are read once, not by each visitor each time
        with ThreadPoolExecutor(2 * self.clients, initializer=_yield) as pool:
            for does in (self._watch, self._ask) * self.clients:
                pool.submit(does)
            try:
                yield
            finally:
                self.leave.set()

    def _watch(self):
        connection, pause = self._connection(), random.random()
        marks = {}
        while not self.leave.wait(pause):
            began = time.monotonic()
            path = f"/finetune/watch/{self.run_id}?{urlencode(marks)}"
            text, wait = self._call(connection, path)
            self.polls.append(time.monotonic() - began)
            parts = json.loads(text or "{}")
            marks |= {name: mark for name, (mark, _) in parts.items()}
            pause = max(0.0, began + wait - time.monotonic())
        connection.close()

    def _ask(self):
        pause = random.random() * self.asking
        while not self.leave.wait(pause):
            began = time.monotonic()
            text, _ = self._call(self._connection(), "/gradio_api/run/predict", self._question)
            self.answers.append(time.monotonic() - began)
            if "ft-answer" not in text:
                self.failures.append(text[:200])
            pause = max(0.0, began + self.asking - time.monotonic())

    @cached_property
    def _question(self):
        endpoints = httpx.get(self.url + "config", timeout=60).json()["dependencies"]
        index = int(next(end["id"] for end in endpoints if end["api_name"] == "on_ask"))
        data = [self.model_id, *PAIR, False, False, False]
        return json.dumps({"data": data, "fn_index": index, "session_hash": "x"})

    def _connection(self):
        """One that is kept, and light, for it shares the machine with what it measures."""
        return HTTPConnection(urlsplit(self.url).netloc, timeout=60)

    def _call(self, connection, path, body=""):
        """The text of an answer, empty if it failed; and the seconds until the page asks again."""
        head = {"Content-Type": "application/json"}
        try:
            connection.request("POST" if body else "GET", path, body or None, head)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, HTTPException) as error:
            self.failures.append(repr(error)[:200])
            connection.close()
            return "", 1.0
        if answer.status not in (200, 204):
            self.failures.append(f"{answer.status} {text[:150]}")
            return "", 1.0
        return text, int(answer.headers.get("x-wait") or 1000) / 1000


def _spread(seconds):
    middle, late = np.quantile(seconds or [np.nan], (0.5, 0.95))
    return f"{middle:.2f} s in the median, {late:.2f} s at the 95th"


def _rate(run, seconds):
    """The samples that the run takes in the coming seconds, a second; parts of a step included."""
    began = time.time()
    time.sleep(seconds)
    ended = time.time()

    def steps():
        return [(e.time, e.step) for e in run.tail()[0] if isinstance(e, events.Stepped)]

    until(lambda: steps()[-1][0] > ended, 60)
    times, numbers = zip(*steps(), strict=True)
    first, last = np.interp([began, ended], times, numbers)
    prepared = run.state().prepared
    batch = prepared.per_device_train_batch_size if prepared else 0
    return float(last - first) * batch / seconds


@contextlib.contextmanager
def _held(app):
    """The app stands still: its run goes on alone."""
    app.suspend()
    try:
        yield
    finally:
        app.resume()


if __name__ == "__main__":
    main()
