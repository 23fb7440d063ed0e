"""A pulse asks while something is awaited, and no late answer ends a later wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import gradio as gr
import pytest
from playwright.sync_api import Browser, Page, expect

from finetune.ui import feedback, polling, theme


def test_an_answer_ends_the_wait_it_was_asked_in() -> None:
    wait = polling.start_polling()
    assert wait != polling.start_polling()
    assert polling.stop_polling(gr.EventData(None, {"wait": wait})) == "-" + wait[1:]
    assert polling.polling_value(True)[0] == "+"
    assert polling.polling_value(False) == gr.skip()
    assert polling.polling_value(False, gr.EventData(None, {"wait": "+a"})) == "-a"
    for odd in (None, "x", {"wait": None}, {"wait": [1]}):  # any client can send anything
        assert polling.stop_polling(gr.EventData(None, odd)).startswith("-")


class Counted:
    """A page with one pulse in its second tab, whose first answer is as late as one likes."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.counted = 0
        self.late = threading.Event()
        with gr.Blocks() as self.blocks, gr.Tabs():
            with gr.Tab("one"):
                gr.Markdown("here")
            with gr.Tab("two"):
                beat = polling.polling_element(0.1)
                button = gr.Button("Begin")
                button.click(polling.start_polling, None, beat, **feedback.QUICK)
                beat.submit(self.answer, None, beat, **feedback.QUICK)
            with gr.Tab("three"):
                polling.polling_element(0.1, polling.ALWAYS).submit(
                    self.count, None, None, **feedback.QUICK
                )

    def answer(self, event: gr.EventData) -> str:
        """What was waited for is there; the first answer says so when `late` is set."""
        self.asked.append(event._data["wait"])
        if len(self.asked) == 1:
            self.late.wait(20)
        return polling.stop_polling(event)

    def count(self) -> None:
        """One more question of the pulse that never ends."""
        self.counted += 1


@pytest.fixture
def counted(browser: Browser) -> Iterator[tuple[Counted, Page]]:
    made = Counted()
    made.blocks.launch(prevent_thread_lock=True, quiet=True, css_paths=theme.CSS)
    opened = browser.new_page()
    opened.goto(made.blocks.local_url)
    yield made, opened
    opened.close()
    made.blocks.close()


def until_still(made: Counted) -> int:
    """How often it asked in all, once it has stopped."""
    deadline = time.monotonic() + 20
    while True:
        before = len(made.asked)
        time.sleep(0.4)
        if len(made.asked) == before:
            return before
        assert time.monotonic() < deadline


def test_a_late_answer_ends_no_later_wait(counted: tuple[Counted, Page]) -> None:
    made, opened = counted
    opened.get_by_role("tab", name="two").click()
    begin = opened.get_by_role("button", name="Begin")
    expect(begin).to_be_visible()
    assert until_still(made) == 0
    begin.click()
    while not made.asked:
        opened.wait_for_timeout(50)
    begin.click()  # the first question is not yet answered
    opened.wait_for_timeout(300)
    assert len(made.asked) == 1
    made.late.set()
    assert until_still(made) == 2
    assert len(set(made.asked)) == 2
    begin.click()
    assert until_still(made) == 3


@pytest.mark.long
def test_nothing_is_asked_for_what_is_out_of_sight(counted: tuple[Counted, Page]) -> None:
    made, opened = counted

    def wait_for_questions(least: int) -> None:
        deadline = time.monotonic() + 30
        while made.counted < least:
            assert time.monotonic() < deadline
            opened.wait_for_timeout(100)

    opened.wait_for_timeout(500)
    assert made.counted == 0
    opened.get_by_role("tab", name="three").click()
    wait_for_questions(3)
    opened.get_by_role("tab", name="one").click()
    opened.wait_for_timeout(500)
    before = made.counted
    opened.wait_for_timeout(600)
    assert made.counted == before
    opened.get_by_role("tab", name="three").click()
    wait_for_questions(before + 1)
