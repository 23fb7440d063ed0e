"""What does a page that watches cost the training it watches?

Sides, alternating: `alone`, the default run begun in a terminal with no app; `page`, begun by a
click on Train in a real Chromium whose page stays open and streams, all on the same machine; and
`polled`, the same with the browser closed after the click and its requests sent on by a plain
client, as when the person who watches sits at another machine. The median of the run's own samples
a second over steps 60 to `--steps` counts. Also printed: the seconds from the click to the first
step, once the page's spare worker waits, as it does for whoever looks at the form first. The ratio
is with the page open over alone.

    python -m tests.benchmarks.load [--steps 300] [--rounds 3]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import sync_playwright

from finetune import events, jobs
from finetune.store import Run, RunStore

ROOT = Path(__file__).resolve().parent.parent.parent
WARM = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    rates: dict[str, list[float]] = {"alone": [], "polled": [], "page": []}
    starts: list[float] = []
    for number in range(given.rounds):
        for side in list(rates)[:: 1 if number % 2 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                store = RunStore(Path(folder) / "runs")
                if side == "alone":
                    rates[side].append(_alone(store, given.steps))
                else:
                    rate, start = _watched(store, given.steps, browsing=side == "page")
                    rates[side].append(rate)
                    starts.append(start)
            print(f"round {number + 1} {side:<10}{rates[side][-1]:>8.1f} samples/s", flush=True)
    medians = {side: statistics.median(found) for side, found in rates.items()}
    print(f"\n{'side':<10}{'samples/s':>10}")
    for side, value in medians.items():
        print(f"{side:<10}{value:>10.1f}")
    print(f"from the click on Train to the first step: {statistics.median(starts):.1f} s")
    print(f"load: ratio {medians['page'] / medians['alone']:.2f}")


def _alone(store: RunStore, steps: int) -> float:
    command = [sys.executable, "-m", "finetune.train", "--runs", str(store.root)]
    with _process([*command, "--logging_steps", "5"]):
        return _rate(_first_run(store), steps)


def _watched(store: RunStore, steps: int, browsing: bool) -> tuple[float, float]:
    with _process([sys.executable, "app.py", "--runs", str(store.root)]) as app:
        assert app.stdout is not None
        url = next(found[0] for line in app.stdout if (found := re.search(r"http://\S+", line)))
        threading.Thread(target=app.stdout.read, daemon=True).start()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium") or shutil.which("chromium-browser"),
                args=["--no-sandbox", "--disable-background-networking", "--disable-gpu"],
            )
            page = browser.new_page()
            page.goto(url)
            _until(lambda: (store.root / ".spare" / "ready").exists(), 60)
            time.sleep(3)  # the Hub has been asked for, and the page is at rest
            page.click("#train")
            clicked = time.time()
            run = _first_run(store)
            first = _stepped(run, 1)[0].time - clicked
            with page.expect_request(lambda one: "predict" in one.url) as asked:
                pass
            poll = asked.value
            if browsing:
                rate = _rate(run, steps, lambda: page.wait_for_timeout(200))
                browser.close()
            else:
                browser.close()
                rate = _rate(run, steps, lambda: _poll(poll.url, poll.post_data or ""))
            if (worker := jobs.worker(run)) is not None:
                worker.kill()
            return rate, first


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _poll(url: str, body: str) -> None:
    """The page's own request, as often as the page sends it."""
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)) as answer:
        answer.read()
    time.sleep(1)


def _first_run(store: RunStore) -> Run:
    _until(lambda: bool(store.runs()), 60)
    return store.runs()[0]


def _stepped(run: Run, step: int) -> list[events.Stepped]:
    """The measurements up to a step, once it is taken."""
    found: list[events.Stepped] = []

    def taken() -> bool:
        found[:] = [e for e in run.tail()[0] if isinstance(e, events.Stepped)]
        return bool(found) and found[-1].step >= step

    _until(taken, 120)
    return found


def _rate(run: Run, steps: int, meanwhile: object = None) -> float:
    assert meanwhile is None or callable(meanwhile)
    _stepped(run, WARM)
    while _stepped(run, 1)[-1].step < steps:
        meanwhile() if meanwhile else time.sleep(0.5)
    counted = [e.samples_per_second for e in _stepped(run, steps) if WARM < e.step <= steps]
    return statistics.median(counted)


def _until(condition: object, seconds: float) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("it did not happen")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
