"""A polling element asks while something is awaited, and no late answer ends a later wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import gradio as gr
import pytest
from playwright.sync_api import Browser, Page, expect

from finetune.ui import elements, feedback, theme
from tests.support.browser import new_page


def test_an_answer_ends_the_wait_it_was_asked_in() -> None:
    wait = elements.start_polling()
    assert wait != elements.start_polling()
    assert elements.stop_polling(gr.EventData(None, {"wait": wait})) == "-" + wait[1:]
    for odd in (None, "x", {"wait": None}, {"wait": [1]}):  # any client can send anything
        assert elements.stop_polling(gr.EventData(None, odd)).startswith("-")


class Questions:
    """A page with an element in its second tab, whose first answer is as late as one likes."""

    def __init__(self) -> None:
        self.waits: list[str] = []
        self.late = threading.Event()
        with gr.Blocks() as self.blocks, gr.Tabs():
            with gr.Tab("one"):
                gr.Markdown("here")
            with gr.Tab("two"):
                element = elements.polling_element(0.1)
                button = gr.Button("Begin")
                button.click(elements.start_polling, None, element, **feedback.QUICK)
                element.submit(self.answer, None, element, **feedback.QUICK)

    def answer(self, event: gr.EventData) -> str:
        """What was waited for is there; the first answer says so when `late` is set."""
        self.waits.append(event._data["wait"])
        if len(self.waits) == 1:
            self.late.wait(20)
        return elements.stop_polling(event)


@pytest.fixture
def asked(browser: Browser) -> Iterator[tuple[Questions, Page]]:
    questions = Questions()
    questions.blocks.launch(prevent_thread_lock=True, quiet=True, css_paths=theme.CSS)
    page = new_page(browser)
    page.goto(questions.blocks.local_url)
    yield questions, page
    page.close()
    questions.blocks.close()


def wait_until(page: Page, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)


def test_a_late_answer_ends_no_later_wait(asked: tuple[Questions, Page]) -> None:
    questions, page = asked
    page.get_by_role("tab", name="two").click()
    begin = page.get_by_role("button", name="Begin")
    expect(begin).to_be_visible()
    begin.click()
    wait_until(page, lambda: bool(questions.waits))
    begin.click()  # the first question is not yet answered
    page.wait_for_timeout(300)
    assert len(questions.waits) == 1
    questions.late.set()
    wait_until(page, lambda: len(questions.waits) == 2)
    page.wait_for_timeout(500)  # it has stopped
    assert len(set(questions.waits)) == len(questions.waits) == 2
