"""The tabs of the page and its views of runs in a browser, compared with what they were before."""

import os
import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.goldens import golden
from tests.goldens.conftest import words_of
from tests.support import toy_runs
from tests.support.browser import launch_browser, new_page, pick, unfold

OUTLINE = Path(__file__).with_name("outline.js").read_text(encoding="utf-8")
PATIENCE = 60.0  # seconds in which a view has to be as before
# So many looks in a row, a tenth of a second apart, must show the golden; a new one is what so many
# have shown.
LOOKS, NEW = 3, 40
ALL = "[role=tabpanel]:visible >> nth=0"


class Views:
    """A page, and how its views differ from the goldens."""

    def __init__(self, page, words):
        self.page, self.words = page, words
        self.problems = []

    def compare(self, name, selector=ALL):
        """Compare a part of the page with its golden, as soon as it is as that, or at last."""
        name, renew = f"page/{name}.html", bool(os.environ.get(golden.RENEW))
        deadline, text, looks = time.monotonic() + PATIENCE, "", 0
        while looks < (NEW if renew else LOOKS) and time.monotonic() < deadline:
            self.page.wait_for_timeout(100)
            before, outline = text, str(self.page.locator(selector).evaluate(OUTLINE))
            text = golden.masked(outline, self.words)
            same = text == before if renew else not golden.difference(name, text)
            looks = looks + 1 if same else 0
        problem = golden.difference(name, text)
        self.problems += [problem] if problem else []


@pytest.mark.long
def test_the_page_looks_as_before(server, trained, chromium):
    page = new_page(launch_browser(chromium), viewport={"width": 1280, "height": 900})
    views = Views(page, words_of(server.store, trained))
    page.goto(server.url)
    views.compare("head", ".ft-top")
    views.compare("train-newest")
    page.locator("#new-run").click()
    unfold(page)
    views.compare("train-form")
    page.get_by_role("tab", name="Data", exact=True).click()
    pick(page, page.locator("#pairs input"), "Bundled pairs")
    expect(page.locator("#rows table tbody tr")).to_have_count(10)
    expect(page.locator("#data-report .ft-unknown")).to_have_count(0)
    for fold in ("own-files", "part-reading", "part-rows", "part-hub"):
        page.locator(f"#{fold} > button").click()
    views.compare("data")
    see_runs(page, views)
    see_answers(page, views)
    page.get_by_role("tab", name="Publish", exact=True).click()
    views.compare("publish")
    page.close()
    assert not views.problems, "\n\n".join(views.problems)


def see_runs(page, views):
    """The table, each run's parts, and two compared."""
    page.get_by_role("tab", name="Runs", exact=True).click()
    views.compare("runs")
    for kind in toy_runs.KINDS:
        page.locator("#runs-table .ft-open", has_text=kind).click()
        views.compare(f"{kind}-evaluation")
        page.get_by_role("radio", name="Errors", exact=True).check()
        views.compare(f"{kind}-errors")
        if kind == toy_runs.CLASSES:
            page.get_by_role("radio", name="Progress and notes", exact=True).check()
            page.locator("#run-config-fold > button").click()
            views.compare("classes-progress")
        page.locator("#all-runs-again").click()
    for name in (toy_runs.CLASSES, toy_runs.AGAIN):
        page.get_by_role("checkbox", name=f"Choose {name}").check()
    page.locator("#compare-runs").click()
    views.compare("compare")


def see_answers(page, views):
    """A pair answered and explained, and the form of a file."""
    page.get_by_role("tab", name="Predict", exact=True).click()
    pick(page, page.locator("#predict-run input"), re.compile("^classes"))
    page.locator("#sentence1 textarea").fill("the cat sees a dog .")
    page.locator("#sentence2 textarea").fill("a cat fears the dog .")
    page.locator("#sentence2 textarea").press("Enter")
    page.locator("#ask-why").click()
    expect(page.locator("#reasons")).to_contain_text("cat")
    views.compare("predict-pair")
    page.get_by_role("radio", name="A file", exact=True).check()
    views.compare("predict-file")
