"""Events as lines of a job's output: `@finetune ATTEMPT OFFSET JSON`.

The offset is that of the line in the job's own `events.jsonl`: a line that comes twice is known by
it, and one that is missing is noticed. All else that a job writes goes to the run's log.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MARK = "@finetune "
_LINE = re.compile(MARK + r"(\d+) (\d+) (\{.*\}|)")


class LogLine(NamedTuple):
    """A line of `events.jsonl` without its newline, perhaps empty, and where it stands there, in
    bytes."""

    attempt: int
    offset: int
    line: bytes

    @property
    def end(self) -> int:
        """Where the next line stands."""
        return self.offset + len(self.line) + 1

    def encode(self) -> str:
        """As a line of output."""
        return f"{MARK}{self.attempt} {self.offset} {self.line.decode()}"


def decode(text: str) -> LogLine | None:
    """The `LogLine` in a line of output; None if it is something else, or a part of one."""
    match = _LINE.fullmatch(text.rstrip("\r\n"))
    return LogLine(int(match[1]), int(match[2]), match[3].encode()) if match else None


def split(content: bytes, attempt: int, begin: int) -> list[LogLine]:
    """The whole lines of a part of `events.jsonl` that begins at the byte `begin`."""
    lines = []
    for line in content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]:
        lines.append(LogLine(attempt, begin, line))
        begin = lines[-1].end
    return lines
