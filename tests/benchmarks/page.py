"""How fast is the page: to start, to open, and to show what has just happened?

*Start*: from the start of `python app.py` to the first 200 of `/`, beside a bare Gradio page (one
textbox), each a process of its own, in turns. *Opening*: in a headless Chromium with an empty
cache, from the first contentful paint to the moment the page can be used: the Train button is there
and enabled, and a click on a tab, tried at every frame, has turned to it. *Event to screen*: this
process stands in for a worker and writes steps into a run's events at irregular times while a
Chromium watches the run; from the time of an event to the frame that shows its step.

    python -m tests.benchmarks.page [--rounds 7] [--events 80] [--quick]

The ratio is the bare page's median over the app's: 1 / 1.25 = 0.80 is as slow as it may be. A
Chromium must be installed.
"""

import contextlib
import os
import random
import re
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import psutil

from finetune.config import RunConfig
from finetune.jobs import workers
from finetune.runs import events
from finetune.runs.store import RunStore
from tests.benchmarks import machine
from tests.support.browser import ROOT, find_chromium, launch_browser
from tests.support.waiting import until

BARE = """
import sys
import gradio as gr
with gr.Blocks(analytics_enabled=False) as page:
    gr.Textbox()
page.launch(server_port=int(sys.argv[1]), ssr_mode=False, run_history=False)
"""
SIDES = ("bare", "app")

# Sees the page as a person would: what is there at a frame.
_OPENING = """
window.usable = 0;
const look = () => {
  const tab = [...document.querySelectorAll('[role=tab]')].find((one) => one.innerText === 'Runs');
  const train = document.querySelector('button#train, #train button');
  if (tab && tab.getAttribute('aria-selected') === 'true' && train && !train.disabled) {
    usable = performance.now();
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


def main():
    args = machine.parsed(__doc__, rounds=(7, 1), events=(80, 3))
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    with machine.begun() as folder:
        for side in () if args.quick else SIDES:  # the first one fills caches
            starting(side, folder)
        starts = machine.medians(SIDES, args.rounds, lambda side: starting(side, folder), "s")
        store = RunStore(folder / "runs")
        browser = launch_browser(find_chromium() or "chromium")
        with app(store, at_rest=not args.quick) as (_, url):
            openings = [opening(browser, url) for _ in range(args.rounds + 1)][1:]
            with watched(store) as run:
                delays = watching(browser, url, run, args.events)
    first, usable = zip(*openings, strict=True)
    figures = {
        "opened, to the first contentful paint": first,
        "from it to usable": usable,
        "event to screen": delays,
    }
    print(f"\n{'':<38}{'median':>9}{'95th':>9}{'most':>9}")
    for name, seconds in figures.items():
        row = np.quantile(seconds, (0.5, 0.95, 1))
        print(f"{name:<38}{''.join(f'{value:>7.2f} s' for value in row)}")
    print(f"page: ratio {starts['bare'] / starts['app']:.2f}")


@contextlib.contextmanager
def _started(side, runs):
    """A side's process once it answers, and its address; it ends with all that it started, as a
    worker that still imports would slow the next side."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    command = [sys.executable, "-c", BARE, str(port)]
    if side == "app":
        command = [sys.executable, "app.py", "--runs", str(runs), "--port", str(port)]
    process = psutil.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _answers(url), 120, pause=0.005)
        yield process, url
    finally:
        family = [*process.children(recursive=True), process]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=10)


def _answers(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def starting(side, folder):
    """Seconds from the start of a side's process to its first 200 of `/`."""
    began = time.perf_counter()
    with _started(side, folder / "runs"):
        return time.perf_counter() - began


@contextlib.contextmanager
def app(store, at_rest):
    """The app over a store; `at_rest`, once its spare worker has imported all."""
    with _started("app", store.root) as (process, url):
        if at_rest:
            until((store.root / ".warm" / "ready").exists, 120)
        yield process, url


def opening(browser, url):
    """Seconds to the first contentful paint, and from it to usable."""
    page = browser.new_page()  # in a context of its own: nothing is cached
    page.add_init_script(_OPENING)
    page.goto(url)
    page.wait_for_function("usable", timeout=60_000)
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    first, usable = page.evaluate(f"[{paint}, usable]")
    page.close()
    return first / 1000, (usable - first) / 1000


@contextlib.contextmanager
def watched(store):
    """A run whose worker is this process."""
    run = store.create(RunConfig(max_steps=100_000))
    run.append(events.Started(device="CPU", versions={}))
    run.append(
        events.Prepared(
            train_examples=800_000, validation_examples=100, steps_per_epoch=100_000,
            total_steps=100_000, labels=["no", "yes"], parameters=1000, precision="no",
            per_device_train_batch_size=8,
        )
    )  # fmt: skip
    with workers.worker_lock(run):
        yield run


def step(run, number):
    """Write a step into a run's events. Returns when it was."""
    event = events.Stepped(
        step=number, epoch=0.0, loss=1 / number, learning_rate=1e-5, samples_per_second=10.0
    )
    run.append(event)
    return event.time


def watching(browser, url, run, count):
    """Seconds from each of `count` events to the screen."""
    page = browser.new_page()
    page.goto(url)
    page.locator("#status").get_by_text(re.compile("step 0 of")).wait_for(timeout=30_000)
    page.evaluate(_WATCHING)
    page.wait_for_timeout(1000)  # what opening the page asked for has been answered
    irregular = random.Random(0)
    written = []
    for number in range(1, count + 1):
        written.append(step(run, number))
        page.wait_for_timeout(irregular.uniform(300, 1100))
    page.wait_for_function(f"shown.at(-1)?.[0] === {count}", timeout=30_000)
    shown = page.evaluate("shown")
    page.close()
    return [
        min(at for known, at in shown if known >= number) - time_
        for number, time_ in enumerate(written, 1)
    ]


if __name__ == "__main__":
    main()
