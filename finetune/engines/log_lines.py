"""Events as lines of a job's output: `@finetune ATTEMPT OFFSET JSON`.

The offset is the line's position in the job's own `events.jsonl`. It shows repeated and missing
lines. All other output of a job goes to the run's log.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MARK = "@finetune "
_LINE = re.compile(MARK + r"(\d+) (\d+) (\{.*\}|)")


class LogLine(NamedTuple):
    """A line of `events.jsonl` without its newline, perhaps empty, and its offset there in
    bytes."""

    attempt: int
    offset: int
    line: bytes

    @property
    def end(self) -> int:
        """Byte offset of the next line."""
        return self.offset + len(self.line) + 1

    def encode(self) -> str:
        """Return a line of output."""
        return f"{MARK}{self.attempt} {self.offset} {self.line.decode()}"


def decode(text: str) -> LogLine | None:
    """Parse the `LogLine` in a line of output; None for other or incomplete lines."""
    match = _LINE.fullmatch(text.rstrip("\r\n"))
    return LogLine(int(match[1]), int(match[2]), match[3].encode()) if match else None


def split(content: bytes, attempt: int, begin: int) -> list[LogLine]:
    """Split a part of `events.jsonl` that begins at byte `begin` into its whole lines."""
    lines = []
    for line in content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]:
        lines.append(LogLine(attempt, begin, line))
        begin = lines[-1].end
    return lines
