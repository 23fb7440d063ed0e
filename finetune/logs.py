"""What is written to logs holds no signed download address: whoever reads one could fetch the file.

Standard library only.
"""

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
    make = logging.getLogRecordFactory()
    if getattr(make, "hides_signatures", False):
        return

    def record(*given: Any, **named: Any) -> logging.LogRecord:
        made = make(*given, **named)
        if "://" in (text := made.getMessage()):
            made.msg, made.args = unsigned(text), ()
        return made

    record.hides_signatures = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(record)


def print_traceback() -> None:
    """As `traceback.print_exc`, without signatures."""
    print(unsigned(traceback.format_exc()), end="", file=sys.stderr, flush=True)
