"""Make the README's picture anew from a real run: `python -m tests.support.screenshot RUNS_FOLDER`.

Shows the newest run of that folder as the page shows it, beside the form it was started with; it
draws nothing itself.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from finetune.runs.store import RunStore
from finetune.ui import app

TARGET = Path(__file__).resolve().parent.parent.parent / "assets" / "screenshot.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    store = RunStore(parser.parse_args().runs)
    made = app.build(store)
    app.launch(made, store, prevent_thread_lock=True, quiet=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-background-networking"],
        )
        shown = browser.new_page(viewport={"width": 1280, "height": 1010})
        shown.goto(made.local_url)
        shown.locator("#hub-status p").wait_for()
        shown.get_by_role("tab", name="Runs").click()
        shown.locator("#runs-table tbody button").first.click()
        shown.get_by_role("button", name="Copy into the form").click()
        shown.locator("#loss-plot path.ft-line:not(.ft-raw)").wait_for()
        shown.wait_for_timeout(2000)  # until what a click costs is told of the form
        shown.screenshot(path=TARGET)
        browser.close()
    made.close()


if __name__ == "__main__":
    main()
