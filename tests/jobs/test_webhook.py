"""The owner's webhook: what it says to whom."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from finetune.config import RunConfig
from finetune.jobs import webhook
from finetune.jobs.scheduler import Scheduler
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support import toys


@pytest.fixture
def run(store: RunStore) -> Run:
    run = store.create(RunConfig(name="<!channel> mine"))
    for event in toys.story():
        run.append(event)
    return run


@pytest.fixture
def chat() -> Iterator[ThreadingHTTPServer]:
    """A chat server on the owner's network, and what it was sent; it redirects `/secret`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(302 if self.path == "/secret" else 204)
            self.send_header("Location", "/")
            self.end_headers()

        do_GET = do_POST

    sent: list[bytes] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.sent = sent  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("{chat}/secret", "HTTP Error 302: Found"),
        ("http://127.0.0.1:9/secret", "Connection refused"),
        ("file:///secret", "it is no address of https:// or http://"),
    ],
)
def test_what_could_not_be_sent_is_logged_without_the_address(
    store: RunStore, run: Run, chat: Any, address: str, reason: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    address = address.format(chat=f"http://127.0.0.1:{chat.server_port}")
    monkeypatch.setenv(webhook.VARIABLE, address)
    webhook.announce(run, run.state()).join()
    assert reason in caplog.text
    assert "secret" not in caplog.text
    chat.sent.clear()
    webhook.send(f"http://127.0.0.1:{chat.server_port}/hook", run, run.state())
    assert [json.loads(sent)["status"] for sent in chat.sent] == ["finished"]
    for host, field, name in (
        ("hooks.slack.com", "text", "&lt;!channel&gt; mine"),
        ("discord.com", "content", "<!channel> mine"),
    ):
        message = webhook.message(host, run, run.state())
        assert message[field] == f"{name}: finished, F1 0.800, accuracy 0.700"
        assert "sentence" not in json.dumps(message)


def test_the_scheduler_announces_each_run_that_was_at_work_and_ended_once(
    store: RunStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, str]] = []
    monkeypatch.setenv(webhook.VARIABLE, "https://example.org/x")
    monkeypatch.setattr(webhook, "announce", lambda run, state: sent.append((run.id, state.status)))
    alive: dict[str, Any] = {run.id: True}
    monkeypatch.setattr(Run, "is_alive", lambda self: alive.get(self.id, False))
    scheduler = Scheduler(store)
    scheduler._tick()
    assert sent == []
    alive.clear()
    scheduler._tick()
    scheduler._tick()
    assert sent == [(run.id, "finished")]
