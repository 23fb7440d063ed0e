"""The state of one run as HTML: its phase, a progress bar, its scores, and how it ended."""

from __future__ import annotations

import math

from markupsafe import Markup

from finetune.jobs import run_table
from finetune.messages import message
from finetune.runs.run import Run
from finetune.runs.summary import ENDED, RunSummary
from finetune.ui.html import phase_text, render
from finetune.ui.i18n import gettext

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
    """The upper part of the live view.

    Args:
        queue_place: place in the queue, from 1, and how many wait; (0, 0) if it does not wait.
    """
    scored = summary.best or (summary.validation[-1] if summary.validation else None)
    return render(
        "run.html",
        title=run.title(),
        headline=_headline(summary, queue_place),
        summary=summary,
        scored=scored,
        scores=scored.metrics if scored else {},
        baselines={name: _best_baseline(summary, name) for name in ("accuracy", "f1")},
        like_a_constant=_is_like_a_constant(summary),
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


def quarters(summary: RunSummary) -> int:
    """How many quarters of the steps are done."""
    return 4 * summary.step // summary.total_steps if summary.total_steps else 0


def duration(seconds: float) -> str:
    """`48 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _headline(summary: RunSummary, queue_place: tuple[int, int]) -> str:
    place, waiting = queue_place
    if summary.status == "waiting" and place:
        return gettext("Waiting, no. {place} of {n} in the queue", place=place, n=waiting)
    if summary.status in ENDINGS:
        return gettext(ENDINGS[summary.status])
    text = phase_text(summary.phase, summary.detail)
    return text[:1].upper() + text[1:]


def _best_baseline(summary: RunSummary, metric: str) -> float | None:
    values = (scores[metric] for scores in summary.baselines.values() if metric in scores)
    return max(values, default=None)


def _is_like_a_constant(summary: RunSummary) -> bool:
    """Whether the best scores are exactly those of always answering the most frequent class."""
    majority = summary.prepared.majority if summary.prepared else {}
    scores = summary.best.metrics if summary.best else {}
    return all(
        name in majority
        and name in scores
        and math.isclose(majority[name], scores[name], abs_tol=1e-9)
        for name in ("accuracy", "f1")
    )
