"""The owner's webhook: what it says to whom, and where it never goes."""

from __future__ import annotations

import json
import socket
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


@pytest.mark.parametrize(
    ("host", "field", "text"),
    [
        ("hooks.slack.com", "text", "&lt;!channel&gt; mine: finished, F1 0.800, accuracy 0.700"),
        ("discord.com", "content", "<!channel> mine: finished, F1 0.800, accuracy 0.700"),
        ("example.org", "status", "finished"),
    ],
)
def test_the_message_is_of_the_service(
    store: RunStore, run: Run, host: str, field: str, text: str
) -> None:
    message = webhook.message(host, run, run.state())
    assert message[field] == text
    assert "sentence" not in json.dumps(message)


@pytest.mark.parametrize(
    ("address", "resolved", "reason"),
    [
        ("http://example.org/x", "93.184.215.14", "begin with https"),
        ("https:///x", "93.184.215.14", "begin with https"),
        *(
            ("https://example.org/x", resolved, "not a public address")
            for resolved in ("127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1",
                             "::ffff:192.168.0.1", "100.64.0.1", "0.0.0.0", "224.0.0.1")
        ),
    ],
)  # fmt: skip
def test_an_address_that_is_not_public_is_refused(
    store: RunStore, run: Run, address: str, resolved: str, reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    public = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.215.14", 443))
    other = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (resolved, 443))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [public, other])
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("it connected"))
    with pytest.raises(ValueError, match=reason):
        webhook.send(address, run, run.state())


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
