"""The use of the device while it works."""

from __future__ import annotations

import psutil
import torch

from finetune.environment.usage import UsageMeter


def test_a_processor_has_a_share_in_use_and_the_process_its_memory() -> None:
    meter = UsageMeter(torch.device("cpu"))
    sum(range(10**6))
    first = meter.read()
    assert first.busy is not None
    assert 0 <= first.busy <= 1
    assert 10**7 < first.memory < psutil.virtual_memory().total
    assert meter.read() is first  # it is measured once a second
