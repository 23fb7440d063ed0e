"""JSON that others may have written: whatever is wrong with it is one thing to the reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


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
