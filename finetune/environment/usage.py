"""How busy the training device is, and how much of its memory is in use."""

from __future__ import annotations

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
        memory: bytes that PyTorch holds on a GPU, or that the process holds without one.
    """

    busy: float | None
    memory: int


class UsageMeter:
    """Measures one device, at most once a second, without waiting for its work."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._process, self._due = device, psutil.Process(), 0.0
        self._process.cpu_percent()  # from here on it is measured
        self._latest = Usage(None, 0)

    def read(self) -> Usage:
        """Return the latest measurement, a new one if it is older than a second."""
        if time.monotonic() >= self._due:
            self._latest = self._measure_gpu() if self._device.type == "cuda" else self._measure()
            self._due = time.monotonic() + _EVERY
        return self._latest

    def _measure(self) -> Usage:
        busy = self._process.cpu_percent() / 100 / (psutil.cpu_count() or 1)
        return Usage(min(1.0, busy), self._process.memory_info().rss)

    def _measure_gpu(self) -> Usage:
        import torch

        try:
            busy = torch.cuda.utilization(self._device) / 100
        except Exception:  # the driver's library is missing, or does not tell this device
            busy = None
        return Usage(busy, torch.cuda.memory_reserved(self._device))
