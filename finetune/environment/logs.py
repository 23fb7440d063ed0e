"""Keep signed download addresses out of logs: anybody who has one can fetch the file."""

import logging
import re
import sys
import traceback
from typing import Any

# An address and its query. Addresses without one match too, so that the search never goes back.
_QUERY = re.compile(r"(https?://[^\s'\"<>?]++)(\?[^\s'\"<>)]+)?")


# Colours and moves of the cursor (ECMA-48), and what a bar in a terminal has written over.
_FOR_TERMINALS = re.compile(r"^[^\n]*\r(?!\n)|\x1b\[[0-?]*[ -/]*[@-~]", re.MULTILINE)


def without_codes(text: str) -> str:
    """Return what a terminal would show at last: no control codes, no overwritten lines."""
    return _FOR_TERMINALS.sub("", text)


def unsigned(text: str) -> str:
    """Remove the queries of addresses in a text, because they contain signatures."""
    return _QUERY.sub(lambda found: found[1] + ("?\u2026" if found[2] else ""), text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error, shortened and unsigned; its kind if it says nothing."""
    return unsigned((str(error).strip() or type(error).__name__).splitlines()[0])[:300]


class _UnsignedRecord(logging.LogRecord):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "://" in (text := self.getMessage()):
            self.msg, self.args = unsigned(text), ()


def hide_signatures() -> None:
    """Remove signed addresses from all log records of this process and its libraries."""
    logging.setLogRecordFactory(_UnsignedRecord)


def print_traceback() -> None:
    """Like `traceback.print_exc`, without signatures."""
    print(unsigned(traceback.format_exc()), end="", file=sys.stderr, flush=True)
