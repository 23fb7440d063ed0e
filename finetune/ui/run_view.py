"""Runs as HTML: the state of one, its configuration, the table of all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from finetune import config, owners
from finetune.config import RunConfig
from finetune.errors import StoreError
from finetune.jobs import run_table
from finetune.jobs.run_table import RunGroup, RunRow
from finetune.messages import message
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.ui import feedback
from finetune.ui.html import macro, phase_text, render
from finetune.ui.i18n import gettext

MAX_COMPARED = 8  # colours and dashes that can be told apart
MAX_ROWS = 300  # groups and runs in the table; a filter finds the rest
ENDINGS = {
    "finished": message("Finished"),
    "stopped": message("Stopped"),
    "failed": message("Failed"),
    "interrupted": message("Interrupted"),
}


def empty() -> Markup:
    """Shown while there is no run."""
    return render("run_empty.html")


def status_html(run: Run, summary: RunSummary, queue_place: tuple[int, int] = (0, 0)) -> Markup:
    """The upper part of the live view: phase, progress bar, scores, and how it ended.

    Args:
        queue_place: place in the queue, from 1, and how many wait; (0, 0) if it does not wait.
    """
    return render(
        "run.html",
        title=run.title(),
        headline=_headline(summary, queue_place),
        summary=summary,
        ended=summary.status in ENDED,
        seconds=run_table.training_seconds(summary) or 0.0,
        duration=duration,
    )


def announcement(summary: RunSummary, queue_place: tuple[int, int] = (0, 0)) -> Markup:
    """Text for a screen reader: phases, quarters and endings, not every step."""
    text = _headline(summary, queue_place)
    if summary.status == "running" and 0 < quarters(summary) < 4:
        text = gettext("{what}, {n}% of the steps", what=text, n=25 * quarters(summary))
    return Markup('<span id="announced">{}</span>').format(text)


def brief(summary: RunSummary) -> str:
    """How a run goes, in the few words of a browser's title."""
    if summary.status == "running" and summary.step and summary.total_steps:
        return f"{100 * summary.step // summary.total_steps}%"
    f1 = summary.best.metrics.get("f1") if summary.best else None
    if summary.status == "finished" and f1 is not None:
        return gettext("Done: F1 {f1:.2f}", f1=f1)
    if summary.status == "waiting":
        return gettext("Waiting")
    return _headline(replace(summary, detail=""), (0, 0))


def quarters(summary: RunSummary) -> int:
    """How many quarters of the steps are done."""
    return 4 * summary.step // summary.total_steps if summary.total_steps else 0


def duration(seconds: float) -> str:
    """`48 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def when(seconds: float) -> str:
    """The server's local time, to the minute."""
    with contextlib.suppress(ValueError, OverflowError, OSError):  # a damaged file's number
        if seconds:
            return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    return "\u2013"


def _headline(summary: RunSummary, queue_place: tuple[int, int]) -> str:
    place, waiting = queue_place
    if summary.status == "waiting" and place:
        return gettext("Waiting, no. {place} of {n} in the queue", place=place, n=waiting)
    if summary.status in ENDINGS:
        return gettext(ENDINGS[summary.status])
    text = phase_text(summary.phase, summary.detail)
    return text[:1].upper() + text[1:]


def configuration(run: Run) -> Markup:
    """Every hyperparameter of the run, or why they cannot be read."""
    try:
        values = run.config().to_dict()
    except StoreError as error:
        return feedback.show_errors(error)
    draw = macro("run_details.html", "configuration")
    return draw(values, RunConfig().to_dict(), config.knobs())


def rows(store: RunStore) -> list[RunRow]:
    """The rows of all runs; where an admin looks at everybody's, each with its owner as a tag."""
    listed = run_table.run_rows(store)
    if not is_everybodys(store):
        return listed
    owner_of = {row.id: Run(store.root / row.id).owner.removeprefix("user:") for row in listed}
    tags = {row.id: filter(None, (owner_of[row.id][:16], *row.tags)) for row in listed}
    return [replace(row, tags=tuple(tags[row.id])) for row in listed]


def is_everybodys(store: RunStore) -> bool:
    """Whether an admin looks at everybody's runs, to stop or delete them."""
    return store.visitor.alone and owners.is_shared()


def table(rows: Sequence[RunRow], opened: str, by: str, descending: bool, text: str = "") -> Markup:
    """The table, or what to do while it is empty; `assets/run_table.js` tells of clicks in it.

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
