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


def hide_signatures() -> None:
    """Let no log record of this process hold a signed address, whichever library makes it."""
    make_record = logging.getLogRecordFactory()
    if getattr(make_record, "hides_signatures", False):
        return

    def make_unsigned(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        if "://" in (text := record.getMessage()):
            record.msg, record.args = unsigned(text), ()
        return record

    make_unsigned.hides_signatures = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_unsigned)


def print_traceback() -> None:
    """As `traceback.print_exc`, without signatures."""
    print(unsigned(traceback.format_exc()), end="", file=sys.stderr, flush=True)
