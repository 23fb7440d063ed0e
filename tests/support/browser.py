"""The app as its own process and what the browser tests do with its page again and again."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from finetune.jobs import workers
from finetune.runs.queue import Queue
from finetune.runs.store import RunStore
from tests.support import toys

ROOT = Path(__file__).resolve().parent.parent.parent
ARGUMENTS = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
# A busy machine is not a fault of the page; what never comes fails all the same.
PATIENCE = 120_000  # milliseconds
# `python app.py`, but with the priority of the tests: below them it would hardly get to answer.
PROGRAM = "import app; app.lower_priority = lambda: None; app.main()"
expect.set_options(timeout=PATIENCE)


@cache
def launch_browser(executable: str) -> Browser:
    """The one Chromium of this process; it ends with it."""
    return sync_playwright().start().chromium.launch(executable_path=executable, args=ARGUMENTS)


def new_page(browser: Browser, **options: Any) -> Page:
    """A page in a context of its own."""
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE)
    return page


class App:
    """The app as its own process, as `python app.py` starts it."""

    def __init__(self, runs: Path) -> None:
        self.store = RunStore(runs)
        self.log = runs.with_suffix(".log")
        self.start()

    def start(self) -> None:
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "--runs", str(self.store.root)],
                cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        deadline = time.monotonic() + 120
        while not (url := re.search(r"http://\S+", self.log.read_text())):
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        self.url = url[0]

    def kill(self) -> None:
        """End it at once. An open page loads itself anew when the app is back, so leave it first
        where another address is asked for then."""
        self.process.kill()
        self.process.wait(10)

    def end(self) -> None:
        self.kill()
        for run in self.store.runs():
            if (worker := workers.worker_process(run)) is not None:
                worker.kill()

    def empty(self) -> None:
        """End what it has started but the warm worker, and delete all runs and files."""
        queue = Queue(self.store.root)
        for name in queue.waiting():
            queue.remove(name)
        for run in self.store.runs():
            workers.kill_worker(run)
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if str(self.store.root.resolve() / ".warm") not in child.cmdline():
                    child.kill()
                    child.wait(10)
        for path in self.store.root.iterdir():
            while path.is_dir() and path.name != ".warm":  # the app may just write there
                shutil.rmtree(path, ignore_errors=True)


def control(page: Page, field: str) -> Locator:
    """The box of a hyperparameter; those under Advanced are not there before it is open. The page
    opens it too, if it marks a value there: two clicks would close it again."""
    expect(page.locator("#advanced > button[aria-expanded]")).to_be_attached()
    box = page.locator(f"#knob-{field} input")
    if not box.is_visible() and page.locator("#advanced > button").is_visible():
        page.evaluate("document.querySelector('#advanced > button:not(.open)')?.click()")
    return box


def fill(page: Page, field: str, value: str) -> None:
    """Type a hyperparameter."""
    box = control(page, field)
    box.fill(value)
    box.press("Tab")
    expect(box).to_have_value(value)


def pick(page: Page, box: Locator, option: str | re.Pattern[str]) -> None:
    """Choose from a list; open it again if Gradio closes it, as when it draws the chooser anew."""
    for _ in range(5):
        box.click()
        with contextlib.suppress(PlaywrightTimeout):
            page.get_by_role("option", name=option).click(timeout=20_000)
            return
        box.press("Escape")
    raise AssertionError(f"{option} cannot be chosen")


def choose(page: Page, field: str, value: str) -> None:
    """Type a value into a chooser."""
    box = control(page, field)
    box.fill(value)
    box.press("Enter")
    if field.endswith("_column"):  # others show a label for their value
        expect(box).to_have_value(value)


def choose_bundled(page: Page) -> None:
    """Choose the bundled pairs on the Train tab."""
    pick(page, page.locator("#knob-dataset input"), re.compile("Bundled"))


def fill_toy(page: Page, checkpoint: Path, epochs: int) -> None:
    """Choose a toy checkpoint, which trains in seconds."""
    status = page.locator("#hub-status")
    expect(status).to_contain_text("Hub")
    if "No connection" in status.inner_text():  # no answer in time from a busy machine
        page.reload()
        expect(status).to_contain_text("The Hub answers")
    expect(page.locator("#knob-dataset input")).to_have_value(re.compile("MRPC"))
    choose(page, "checkpoint", str(checkpoint))
    fill(page, "num_train_epochs", str(epochs))
    fill(page, "max_length", "48")


def press_train(page: Page) -> None:
    page.get_by_role("button", name="Train", exact=True).click()


def own_file(folder: Path) -> Path:
    """A file as people have them: columns of any name, a broken row, a repeated one, markup."""
    rows = [f"{n};{first};{second};{'yes' if same else 'no'}" for n, (first, second, same) in
            enumerate(toys.rows(150))]  # fmt: skip
    rows += ["7;<img src=x onerror=alert(1)>;<b>bold</b>;no", "broken", rows[3]]
    path = folder / "tickets.csv"
    path.write_text("number;ours;theirs;verdict\n" + "\n".join(rows) + "\n")
    return path
