"""Make the README's picture anew from a real run: `python -m tests.support.screenshot RUNS_FOLDER`.

Shows the newest run of that folder as the page shows it, beside the form it was started with.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from finetune.runs.store import RunStore
from finetune.ui import app, theme
from tests.support.browser import launch_browser


def main() -> None:
    store = RunStore(Path(sys.argv[1]))
    blocks = app.build(store)
    app.launch(blocks, store, prevent_thread_lock=True, quiet=True)
    browser = launch_browser(shutil.which("chromium") or "chromium")
    page = browser.new_page(viewport={"width": 1280, "height": 1010})
    page.goto(blocks.local_url)
    page.locator("#hub-status p").wait_for()
    page.get_by_role("tab", name="Runs").click()
    page.locator("#runs-table tbody button").first.click()
    page.get_by_role("button", name="Copy into the form").click()
    page.locator("#loss-plot path.ft-line:not(.ft-raw)").wait_for()
    page.wait_for_timeout(2000)  # until the costs of the form are there
    page.screenshot(path=theme.ASSETS / "screenshot.png")
    browser.close()
    blocks.close()


if __name__ == "__main__":
    main()
