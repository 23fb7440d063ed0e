"""What the modules of the loopback Hub share: its error answers and its way to write times."""

from __future__ import annotations

import time


class Refused(Exception):
    """An error answer: its status, and the code by which the clients know it."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message or code


def timestamp(seconds: float) -> str:
    """A time as the Hub writes it, in milliseconds and UTC: `2026-01-01T00:00:00.000Z`."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"
