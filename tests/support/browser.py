"""The app as its own process and what the browser tests do with its page again and again."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from playwright.sync_api import expect, sync_playwright

from finetune.jobs import workers
from finetune.runs.queue import Queue
from finetune.runs.store import RunStore
from tests.support import toys, translations

ROOT = Path(__file__).resolve().parent.parent.parent
BUNDLED = "Bundled pairs (no network needed)"
ARGUMENTS = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
# A busy machine is not a fault of the page; what never comes fails all the same.
PATIENCE = 120_000  # milliseconds
# `python app.py`, but with the priority of the tests: below them it would hardly get to answer.
PROGRAM = "import app; app.lower_priority = lambda: None; app.main()"
expect.set_options(timeout=PATIENCE)


def find_chromium():
    """Return the path of a Chromium, or None. The headless shell draws a page in a fifth less."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    return next(filter(None, map(shutil.which, names)), None)


@cache
def launch_browser(executable):
    """The one Chromium of this process; it ends with it."""
    return sync_playwright().start().chromium.launch(executable_path=executable, args=ARGUMENTS)


def new_page(browser, **options):
    """A page in a context of its own."""
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE)
    return page


class App:
    """The app as its own process, as `python app.py` starts it."""

    def __init__(self, runs):
        self.store = RunStore(runs)
        self.log = runs.with_suffix(".log")
        self.start()

    def start(self):
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

    def kill(self):
        """End it at once. An open page loads itself anew when the app is back, so leave it first
        where another address is asked for then."""
        self.process.kill()
        self.process.wait()

    def end(self):
        self.kill()
        for run in self.store.runs():
            if (worker := workers.worker_process(run)) is not None:
                worker.kill()

    def empty(self):
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
                    child.wait()
        for path in self.store.root.iterdir():
            while path.is_dir() and path.name != ".warm":  # the app may just write there
                shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class View:
    """In which way a person looks at the page."""

    width: int = 1280  # pixels
    theme: str = "light"
    locale: str = "en-US"

    @property
    def size(self):
        return {"width": self.width, "height": 900 if self.width > 740 else 800}


class Visit:
    """The app's page in a view; it may neither ask another host nor throw."""

    def __init__(self, browser, url, view):
        self.view = view
        self.page = new_page(browser, viewport=view.size, locale=view.locale)
        self.words = {} if view.locale[:2] == "en" else translations.catalogue(view.locale[:2])
        self.urls = []
        self.errors = []
        self.page.on("request", lambda request: self.urls.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(f"{url}?__theme={view.theme}")

    def end(self):
        """Close the page, and see that it behaved."""
        self.page.close()
        local = ("http://127.0.0.1", "http://localhost", "data:", "blob:")
        assert [url for url in self.urls if not url.startswith(local)] == []
        # A page may be left while it is still loading.
        left = re.compile("Failed to fetch dynamically imported module|Unable to preload CSS")
        assert [text for text in self.errors if not left.search(text)] == []

    def word(self, text):
        """A text of the page in the language of the view."""
        return self.words.get(text, text)

    def tab(self, name):
        self.page.get_by_role("tab", name=self.word(name), exact=True).click()

    def part(self, name):
        """Choose among radio buttons."""
        self.page.get_by_role("radio", name=self.word(name), exact=True).check(force=True)

    def fill_toy(self, checkpoint, epochs):
        """Choose a toy checkpoint, which trains in seconds, and the bundled pairs."""
        page, status = self.page, self.page.locator("#hub-status")
        expect(status).to_contain_text("Hub")
        if page.locator("#hub-status [data-answers]").count() == 0:  # a busy machine
            page.reload()
            expect(page.locator("#hub-status [data-answers]")).to_be_attached()
        expect(page.locator("#knob-dataset input")).to_have_value(re.compile("MRPC"))
        choose(page, "checkpoint", str(checkpoint))
        fill(page, "num_train_epochs", str(epochs))
        fill(page, "max_length", "48")
        pick(page, page.locator("#knob-dataset input"), self.word(BUNDLED))

    def first_screen(self, *selectors, wide=""):
        """See that parts are drawn within the first screen of a phone and of a wide page, one of
        them on the wide page only; one in a row to swipe may be beside it."""
        for width, height in ((375, 800), (1280, 900)):
            self.page.set_viewport_size({"width": width, "height": height})
            for selector in filter(None, (*selectors, wide if width > 400 else "")):
                expect(self.page.locator(selector)).to_be_visible()
                # In one call: live parts are drawn anew at any moment.
                top, tall = self.page.evaluate(
                    "(part) => (({top, height}) => [top, height])"
                    "(document.querySelector(part).getBoundingClientRect())",
                    selector,
                )
                assert tall > 10, selector
                assert top >= 0, (selector, top)
                assert top + tall <= height, (selector, top, tall)
            assert self.page.evaluate("document.documentElement.scrollWidth") <= width
        self.page.set_viewport_size(self.view.size)


def control(page, field):
    """The box of a hyperparameter; those under Advanced are not there before it is open. The page
    opens it too, if it marks a value there: two clicks would close it again."""
    expect(page.locator("#advanced > button[aria-expanded]")).to_be_attached()
    box = page.locator(f"#knob-{field} input")
    if not box.is_visible() and page.locator("#advanced > button").is_visible():
        unfold(page)
    return box


def unfold(page):
    """Open Advanced, then its groups, which are not there before it is open."""
    for folds in ("#advanced", "#advanced .ft-knobs"):
        expect(page.locator(f"{folds} > button").first).to_be_visible()
        page.wait_for_function(
            "(folds) => { const all = [...document.querySelectorAll(`${folds} > button`)];"
            "const closed = all.filter((fold) => !fold.classList.contains('open'));"
            "closed.forEach((fold) => fold.click()); return all.length && !closed.length; }",
            arg=folds, polling=300,
        )  # fmt: skip


def fill(page, field, value):
    """Type a hyperparameter."""
    box = control(page, field)
    box.fill(value)
    box.press("Tab")
    expect(box).to_have_value(value)


def pick(page, box, option):
    """Choose from a list; open it again if Gradio closes it, as when it draws the chooser anew."""
    for _ in range(5):
        box.click()
        with contextlib.suppress(PlaywrightTimeout):
            page.get_by_role("option", name=option).click(timeout=20_000)
            return
        box.press("Escape")
    raise AssertionError(f"{option} cannot be chosen")


def choose(page, field, value):
    """Type a value into a chooser."""
    box = control(page, field)
    box.fill(value)
    box.press("Enter")
    if field.endswith("_column"):  # others show a label for their value
        expect(box).to_have_value(value)


def own_file(folder):
    """A file as people have them: columns of any name, a broken row, a repeated one, markup."""
    rows = [f"{n};{first};{second};{'yes' if same else 'no'}" for n, (first, second, same) in
            enumerate(toys.rows(150))]  # fmt: skip
    rows += ["7;<img src=x onerror=alert(1)>;<b>bold</b>;no", "broken", rows[3]]
    path = folder / "tickets.csv"
    path.write_text("number;ours;theirs;verdict\n" + "\n".join(rows) + "\n")
    return path
