"""Calls that nobody should make are answered, and none is the app's fault."""

from __future__ import annotations

import pytest

from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support import odd_calls
from tests.support.server import Server


@pytest.fixture
def store(server: Server) -> RunStore:
    return server.store


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_odd_call_is_the_apps_fault(server: Server, finished: Run) -> None:
    sweep = odd_calls.Sweep(server.url, [finished.id])
    sweep()
    assert sweep.faults == []
    assert "probabilities" in sweep.call("run", "predict", finished.id, "the cat", "a dog")
