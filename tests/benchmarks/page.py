"""How fast is the page: to start, to open, and to show what has just happened?

*Start*: from the start of `python app.py` to the first 200 of `/`, beside a bare Gradio page (one
textbox), each a process of its own, in turns and in the other order every other round. *Opening*:
in a headless Chromium with an empty cache, from the first contentful paint to the moment the page
can be used: the Train button is there and enabled, and a click on a tab, tried at every frame, has
turned to it. Also said: when the last task of over 50 ms ended, for until then a click may wait.
*Event to screen*: this process stands in for a worker and writes steps into a run's events at
irregular times while a Chromium watches the run; from the time of an event to the frame that shows
its step. What a poll costs the server is its processor time while the run is asked about again and
again, each time read anew, less that while nobody asks; a question.

    python -m tests.benchmarks.page [--rounds 7] [--events 80]

The ratio is the bare page's median over the app's: 1 / 1.3 = 0.77 is as slow as it may be. A
Chromium must be installed.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil
from playwright.sync_api import Browser, sync_playwright

from finetune.config import RunConfig
from finetune.jobs import scheduler, workers
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui import live_updates
from tests.benchmarks import machine

ROOT = Path(__file__).resolve().parent.parent.parent
BARE = """
import sys
import gradio as gr
with gr.Blocks(analytics_enabled=False) as page:
    gr.Textbox()
page.launch(server_port=int(sys.argv[1]), ssr_mode=False, run_history=False)
"""
SIDES = ("bare", "app")
POLLS = 50  # whose cost is taken: 0.2 ms can be told

# Sees the page as a person would: what is there at a frame.
_OPENING = """
window.opened = {long: 0};
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) opened.long = one.startTime + one.duration;
}).observe({type: 'longtask', buffered: true});
const look = () => {
  const tab = [...document.querySelectorAll('[role=tab]')].find((one) => one.innerText === 'Runs');
  const train = document.querySelector('button#train, #train button');
  if (tab && tab.getAttribute('aria-selected') === 'true' && train && !train.disabled) {
    opened.usable = performance.now();
    return;
  }
  if (tab) tab.click();
  requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
_WATCHING = """
window.shown = [];
const look = () => {
  const found = /step ([\\d,]+) of/.exec(document.querySelector('#status')?.innerText ?? '');
  const step = found ? Number(found[1].replaceAll(',', '')) : 0;
  if (step > (shown.at(-1)?.[0] ?? 0)) shown.push([step, Date.now() / 1000]);
};
new MutationObserver(() => requestAnimationFrame(look))
  .observe(document.querySelector('#status'), {childList: true, subtree: true});
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="of starting, and of opening")
    parser.add_argument("--events", type=int, default=80, help="steps written while one watches")
    given = parser.parse_args()
    print(machine.described())
    os.environ |= {"HF_HUB_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "False"}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        took = _started(root, given.rounds)
        store = RunStore(root / "runs")
        with app(store) as (process, url), chromium() as browser:
            opened = [opening(browser, url) for _ in range(given.rounds + 1)][1:]
            with watched(store) as run:
                answered, cost = asking(url, run, process, POLLS)
                late = watching(browser, url, run, given.events)
    middle = {side: statistics.median(times) for side, times in took.items()}
    print(f"\n{'python to the first 200':<38}{'median':>9}{'least':>9}{'most':>9}")
    for side, name in zip(SIDES, ("a bare Gradio page", "python app.py"), strict=True):
        print(f"  {name:<36}{_figures(took[side])}")
    print(f"{'opening':<38}{'median':>9}{'least':>9}{'most':>9}")
    for number, name in enumerate(
        ("first contentful paint", "from it to usable", "from it to the last long task")
    ):
        print(f"  {name:<36}{_figures([one[number] for one in opened])}")
    cuts = statistics.quantiles(late, n=20)
    print(f"{'event to screen':<38}{'median':>9}{'95th':>9}{'most':>9}")
    print(f"  {f'{len(late)} steps':<36}{_seconds(cuts[9], cuts[18], max(late))}")
    print(
        f"  a poll is answered in {1000 * statistics.median(answered):.1f} ms "
        f"and costs the server {1000 * cost:.1f} ms of a core"
    )
    print(f"page: ratio {middle['bare'] / middle['app']:.2f}")


def _figures(seconds: Sequence[float]) -> str:
    return _seconds(statistics.median(seconds), min(seconds), max(seconds))


def _seconds(*values: float) -> str:
    return "".join(f"{value:>7.2f} s" for value in values)


def _started(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds to the first 200, by side; the first round of each fills caches and is not told."""
    took: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds + 1):
        for side in SIDES[:: 1 if number % 2 else -1]:
            seconds = starting(side, folder)
            if number:
                took[side].append(seconds)
                print(f"round {number} {side:<5}{seconds:>6.2f} s", flush=True)
    return took


def starting(side: str, folder: Path) -> float:
    """Seconds from the start of a side's process to its first 200 of `/`."""
    port = _free_port()
    command = [sys.executable, "-c", BARE, str(port)]
    if side == "app":
        command = [sys.executable, "app.py", "--runs", str(folder / "runs"), "--port", str(port)]
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not _answers(port):
            if process.poll() is not None or time.perf_counter() - began > 120:
                raise RuntimeError(f"{side} did not start")
            time.sleep(0.005)
        return time.perf_counter() - began
    finally:
        _end(process)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        answer.read()
        return answer.status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _end(process: subprocess.Popen[Any]) -> None:
    """With what it started: a spare worker that still imports would slow the next side."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.kill()
    process.wait()
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(family, timeout=10)


@contextlib.contextmanager
def app(store: RunStore) -> Iterator[tuple[psutil.Process, str]]:
    """The app over a store, once its spare worker has imported all and is at rest."""
    port = _free_port()
    process = subprocess.Popen(
        [sys.executable, "app.py", "--runs", str(store.root), "--port", str(port)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not (_answers(port) and (store.root / ".warm" / "ready").exists()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the app did not start")
            time.sleep(0.1)
        yield psutil.Process(process.pid), f"http://127.0.0.1:{port}/"
    finally:
        _end(process)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium of this machine."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise RuntimeError("There is no Chromium here.")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", "--disable-background-networking", "--disable-gpu"],
        )
        yield found
        found.close()


def opening(browser: Browser, url: str) -> tuple[float, float, float]:
    """Seconds to the first contentful paint, and from it to usable and to the last long task."""
    page = browser.new_page()  # in a context of its own: nothing is cached
    page.add_init_script(_OPENING)
    page.goto(url)
    page.wait_for_function("opened.usable", timeout=60_000)
    page.wait_for_timeout(3000)
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    first, usable, long = page.evaluate(f"[{paint}, opened.usable, opened.long]")
    page.close()
    return first / 1000, (usable - first) / 1000, max(0.0, long - first) / 1000


@contextlib.contextmanager
def watched(store: RunStore) -> Iterator[Run]:
    """A run whose worker is this process."""
    run = store.create(RunConfig(max_steps=100_000))
    run.append(events.Started(device="CPU", versions={}))
    run.append(
        events.Prepared(
            train_examples=800_000, validation_examples=100, steps_per_epoch=100_000,
            total_steps=100_000, labels=["no", "yes"], parameters=1000, precision="no",
        )
    )  # fmt: skip
    with workers.worker_lock(run):
        scheduler.adopt_terminal_run(run)
        yield run


def asking(url: str, run: Run, process: psutil.Process, count: int) -> tuple[list[float], float]:
    """Seconds until each of `count` polls is answered, and what one takes of a core."""
    gap = live_updates.FRESH + 0.05
    alone = _used(process)
    time.sleep(count * gap)
    alone = _used(process) - alone
    host = url.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(host, timeout=30)
    marks: dict[str, str] = {}
    took = []
    before, began = _used(process), time.perf_counter()
    for number in range(count):
        asked = time.perf_counter()
        connection.request("GET", f"/finetune/watch/{run.id}?{urlencode(marks)}")
        told = json.loads(connection.getresponse().read() or "{}")
        took.append(time.perf_counter() - asked)
        marks |= {name: mark for name, (mark, _) in told.items()}
        time.sleep(max(0.0, began + (number + 1) * gap - time.perf_counter()))
    used = _used(process) - before
    connection.close()
    return took, max(0.0, used - alone) / count


def _used(process: psutil.Process) -> float:
    """Seconds of a core that a process has taken."""
    times = process.cpu_times()
    return float(times.user + times.system)


def watching(browser: Browser, url: str, run: Run, count: int) -> list[float]:
    """Seconds from each of `count` events to the screen."""
    page = browser.new_page()
    page.goto(url)
    page.locator("#status").get_by_text(re.compile("step 0 of")).wait_for(timeout=30_000)
    page.evaluate(_WATCHING)
    page.wait_for_timeout(1000)  # what opening the page asked for has been answered
    irregular = random.Random(0)
    written = []
    for step in range(1, count + 1):
        event = events.Stepped(
            step=step, epoch=0.0, loss=1 / step, learning_rate=1e-5, samples_per_second=10.0
        )
        run.append(event)
        written.append(event.time)
        page.wait_for_timeout(irregular.uniform(300, 1100))
    page.wait_for_function(f"shown.at(-1)?.[0] === {count}", timeout=30_000)
    shown: list[tuple[int, float]] = page.evaluate("shown")
    page.close()
    return [
        min(at for known, at in shown if known >= step) - time_
        for step, time_ in enumerate(written, 1)
    ]


if __name__ == "__main__":
    main()
