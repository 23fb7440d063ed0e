"""JSON that others may have written: whatever is wrong with it is one thing to the reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

T = TypeVar("T")


def parse(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: when it is not JSON, or nested more deeply than Python reads.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty when it is missing, unreadable or something else."""
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_as(path: Path, parse: Callable[[str], T]) -> T:
    """A file's text, parsed once for each version of the file.

    Raises:
        OSError: when it cannot be read; and whatever `parse` raises.
    """
    status = path.stat()
    return cast(T, _parsed(parse, str(path), status.st_ino, status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=16_384)
def _parsed(parse: Callable[[str], Any], path: str, *version: int) -> Any:
    return parse(Path(path).read_text(encoding="utf-8", errors="replace"))
