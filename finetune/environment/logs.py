"""Keeps signed download addresses out of logs: whoever reads one could fetch the file."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from typing import Any

_QUERY = re.compile(r"(https?://[^\s'\"<>?]+)\?[^\s'\"<>)]+")


def unsigned(text: str) -> str:
    """A text whose addresses have lost their queries, which hold the signatures."""
    return _QUERY.sub("\\1?\u2026", text)


class _UnsignedRecord(logging.LogRecord):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "://" in (text := self.getMessage()):
            self.msg, self.args = unsigned(text), ()


def hide_signatures() -> None:
    """Let no log record of this process hold a signed address, whichever library makes it."""
    logging.setLogRecordFactory(_UnsignedRecord)


def print_traceback() -> None:
    """As `traceback.print_exc`, without signatures."""
    print(unsigned(traceback.format_exc()), end="", file=sys.stderr, flush=True)
