"""The table of runs as HTML: sortable columns, a box to compare, a button that opens a run.

`assets/run_table.js` tells the page of clicks and of the boxes that are ticked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from finetune import owners
from finetune.jobs import run_table
from finetune.jobs.run_table import RunGroup, RunRow
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui.html import render
from finetune.ui.run_view import duration

MAX_COMPARED = 8  # colours and dashes that can be told apart
MAX_ROWS = 300  # groups and runs; a filter finds the rest


def table(rows: Sequence[RunRow], opened: str, by: str, descending: bool, text: str = "") -> Markup:
    """The table, or what to do while it is empty.

    Args:
        opened: id of the run shown below.
        by, descending: how it is sorted.
        text: words that each listed run must have.
    """
    matching = run_table.filter_rows(rows, text)
    ordered = run_table.sort_rows(matching, by, descending, rows)[:MAX_ROWS]
    return render(
        "run_table.html",
        rows=ordered,
        opened=opened,
        by=by,
        descending=descending,
        listed=sum(len(row.rows) if isinstance(row, RunGroup) else 1 for row in ordered),
        matching=len(matching),
        total=len(rows),
        most=MAX_COMPARED,
        duration=duration,
        when=when,
    )


def rows(store: RunStore) -> list[RunRow]:
    """The rows of all runs; where an admin looks at everybody's, each with its owner as a tag."""
    listed = run_table.run_rows(store)
    if not is_everybodys(store):
        return listed
    return [replace(row, tags=(*_owner(store, row.id), *row.tags)) for row in listed]


def is_everybodys(store: RunStore) -> bool:
    """Whether an admin looks at everybody's runs, to stop or delete them."""
    return store.visitor.alone and owners.is_shared()


def _owner(store: RunStore, run_id: str) -> list[str]:
    """The owner's user name, or the beginning of their browser's; empty if nobody's."""
    kind, _, name = Run(store.root / run_id).owner.partition(":")
    return [name if kind == "user" else f"{kind} {name[:8]}"] if name else []


def when(seconds: float) -> str:
    """The server's local time, to the minute."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "\u2013"
    except (ValueError, OverflowError, OSError):
        return "\u2013"
