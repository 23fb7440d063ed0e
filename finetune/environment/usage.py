"""How busy the training device is, and how much of its memory is in use."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple

import psutil

if TYPE_CHECKING:
    import torch

_EVERY = 1.0  # seconds between two measurements


class Usage(NamedTuple):
    """A measurement of the device.

    Attributes:
        busy: share of a GPU's time, or of all processor cores, that was in use; None if unknown.
        memory: bytes that PyTorch holds on a GPU, or that the process holds without one; None if
            unknown.
    """

    busy: float | None
    memory: int | None


class UsageMeter:
    """Measures one device, at most once a second, without waiting for its work."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._due = device, 0.0
        self._since = time.monotonic(), time.process_time()
        self._latest = Usage(None, None)

    def read(self) -> Usage:
        """Return the latest measurement, a new one if it is older than a second."""
        if time.monotonic() < self._due:
            return self._latest
        if self._device.type == "cuda":
            import torch

            try:
                busy = torch.cuda.utilization(self._device) / 100
            except Exception:  # the driver's library is missing, or does not tell this device
                busy = None
            self._latest = Usage(busy, torch.cuda.memory_reserved(self._device))
        else:
            now, memory = (time.monotonic(), time.process_time()), None
            passed, worked = (new - old for old, new in zip(self._since, now, strict=True))
            self._since = now
            with contextlib.suppress(psutil.Error, OSError):  # one of several confined processes
                memory = psutil.Process().memory_info().rss
            busy = min(1.0, worked / max(passed, 1e-6) / (os.cpu_count() or 1))
            self._latest = Usage(busy, memory)
        self._due = time.monotonic() + _EVERY
        return self._latest
