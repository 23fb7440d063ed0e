"""The use of the device while it works."""

from __future__ import annotations

import psutil
import pytest
import torch

from finetune.environment.devices import UsageMeter


def test_a_processor_has_a_share_in_use_and_the_process_its_memory() -> None:
    meter = UsageMeter(torch.device("cpu"))
    sum(range(10**6))
    first = meter.read()
    assert first.busy is not None
    assert 0 <= first.busy <= 1
    assert first.memory is not None
    assert 10**7 < first.memory < psutil.virtual_memory().total
    assert meter.read() is first  # it is measured once a second


def test_a_process_that_may_not_read_its_own_memory_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "memory_info", refused)
    measured = UsageMeter(torch.device("cpu")).read()
    assert measured.memory is None
    assert measured.busy is not None
