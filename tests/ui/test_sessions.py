"""What the app keeps of a call, in the process that serves it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui import app
from tests.support.server import Server

LONG = "\u732b" * 500_000  # a megabyte


@pytest.fixture
def store(server: Server) -> RunStore:
    return server.store


def _kept(call: Callable[[int], None], calls: int) -> float:
    """Bytes that each of so many calls leaves behind, after a first one."""
    call(0)
    tracemalloc.start()
    try:
        for number in range(1, calls + 1):
            call(number)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / calls
    finally:
        tracemalloc.stop()


def test_a_visitor_who_comes_and_goes_leaves_little(server: Server, finished: Run) -> None:
    """Gradio keeps 0.8 MB of settings, and what was sent, for each of the last 10,000 sessions."""
    with server.client() as web:

        def visit(number: int) -> None:
            event = server.event("on_part")
            body = {"data": [None], "fn_index": event, "session_hash": f"v{number}"}
            assert web.post("gradio_api/run/predict", json=body).status_code == 200

        def ask(number: int) -> None:  # a program, in a session of its own each time
            values = [finished.id, f"{number}{LONG}", LONG]
            event = web.post("gradio_api/call/explain", json={"data": values}).json()["event_id"]
            assert "event: error" in web.get(f"gradio_api/call/explain/{event}").text

        assert _kept(visit, 30) < 300_000
        assert _kept(ask, 30) < 300_000


def test_a_lone_surrogate_is_answered(server: Server, finished: Run) -> None:
    """It has no place in the page's address."""
    head = {"content-type": "application/json"}
    values = f'["{finished.id}", "\\ud83d cat", "a cat", false, true, false]'
    body = f'{{"data": {values}, "fn_index": {server.event("on_ask")}, "session_hash": "odd"}}'
    with server.client() as web:
        answer = web.post("gradio_api/run/predict", content=body, headers=head).text
    assert "ft-answer" in answer
    assert "sentence1=%3F+cat" in answer


def test_what_was_asked_in_a_session_is_known_in_it_alone(server: Server, finished: Run) -> None:
    with server.client() as web:

        def why(session: str) -> str:
            body = {"data": [None], "fn_index": server.event("on_why"), "session_hash": session}
            web.post("gradio_api/queue/join", json=body)
            return web.get("gradio_api/queue/data", params={"session_hash": session}).text

        values = [finished.id, "the cat sees a dog .", "a cat sees the dog .", False, True, False]
        body = {"data": values, "fn_index": server.event("on_ask"), "session_hash": "asked"}
        assert "ft-answer" in web.post("gradio_api/run/predict", json=body).text
        assert "Nothing was asked yet" in why("another")
        assert "Nothing was asked yet" not in why("asked")


def test_the_session_used_longest_ago_is_forgotten(server: Server, store: RunStore) -> None:
    with server.client() as web:
        for number in range(app.MOST_SESSIONS + 5):
            body = {"data": [], "fn_index": 0, "session_hash": f"many{number}"}
            assert web.post("gradio_api/run/predict", json=body).status_code == 200
    assert len(server.blocks.state_holder.session_data) <= app.MOST_SESSIONS
