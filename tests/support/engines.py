"""Hugging Face Jobs on this machine: what a container of the tests' Hub needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from finetune.jobs.engines.base import Ticket
from tests.support.hub import LoopbackHub

_BIN = str(Path(sys.executable).parent)


def let_jobs_train(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, token: str) -> Ticket:
    """Let the Hub's containers have this environment, for they reach no index of packages; the
    ticket of a run on its cheapest machine. The token is that of `hf auth login` here."""

    def prepare(command: list[str], variables: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        script = command[-1].replace("python -m pip install", "true")
        path = os.pathsep.join([_BIN, variables["PATH"]])
        return [*command[:-1], script], variables | {"PATH": path, "OMP_NUM_THREADS": "1"}

    hub.jobs.prepare = prepare
    monkeypatch.setenv("HF_TOKEN", token)
    price = (hub.jobs.hardware["cpu-basic"].cost or 0) * 60 / 1e6
    return Ticket(engine="hub-job", options={"flavor": "cpu-basic", "minutes": 10, "price": price})
