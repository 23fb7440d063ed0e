"""Charts of a run: SVG lines with labels in HTML, thinned for display.

Unlike `gr.LinePlot` they have baselines. `assets/page.js` shows their values at the pointer and by
the arrow keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from markupsafe import Markup

from finetune.metrics.catalog import HEADLINE, STANDARD
from finetune.runs.summary import RunSummary
from finetune.ui.html import fixed, in_words, render
from finetune.ui.i18n import gettext

POINTS = 250  # nobody sees more on this width, and the page is sent all of them
SMOOTHED = 20  # a loss with so many points is smoothed
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str  # in the legend and beside its values
    style: str  # the class of its colour and marker in the style sheet: `loss`, `accuracy`, `f1`
    points: list[Point] = field(default_factory=list)  # (x, y), in order of x
    markers: bool = False  # draw each point; for a few measurements, not for a curve
    baselines: tuple[tuple[str, float], ...] = ()  # (name, level), drawn dashed for comparison
    latest: bool = True  # name its last value in the legend
    straight: bool = False  # straight by definition: can be read off anywhere


def loss_chart(summary: RunSummary) -> Markup:
    """The training loss over steps."""
    points = loss_points(summary)
    lines = [Series(gettext("training loss"), "loss", points)]
    if len(points) >= SMOOTHED:
        raw = Series(gettext("training loss"), "loss ft-raw", points, latest=False)
        lines = [raw, Series(gettext("smoothed"), "loss", smoothed(points))]
    return chart(
        gettext("Training loss (nats)"),
        lines,
        summary.total_steps,
        gettext("The loss appears with the first step. It should fall, with jumps."),
        look=gettext(
            "It should fall and then flatten; when it jumps up and stays, lower learning_rate."
        ),
        epoch=steps_per_epoch(summary),
    )


def smoothed(points: Sequence[Point]) -> list[Point]:
    """A line's exponential moving average over a span of 15 points."""
    steps, losses = zip(*points, strict=True)
    return list(zip(steps, pd.Series(losses).ewm(span=15).mean(), strict=True))


def score_chart(summary: RunSummary, threshold: float | None = None) -> Markup:
    """The validation scores over steps, with the baselines'.

    Args:
        threshold: saved with the kept model. The curves ignore it: they show the most probable
            class, and say so.
    """
    lines, scores = [], summary.baselines.items()
    for n, metric in enumerate(summary.measured):
        levels = [(gettext(name), of[metric.name]) for name, of in scores if metric.name in of]
        lines.append(
            Series(
                in_words(metric.name, summary.classes),
                metric.name if metric in STANDARD else f"run{n}",
                metric_points(summary, metric.name),
                markers=True,
                baselines=tuple(levels),
            )
        )
    f1 = in_words(HEADLINE.name, summary.classes)
    if len(lines) > len(STANDARD):
        title = gettext("Validation scores")
        if threshold is not None:
            title = gettext("Validation scores, of the most probable class")
    elif threshold is not None:
        title = gettext("Validation accuracy and {f1}, of the most probable class", f1=f1)
    else:
        title = gettext("Validation accuracy and {f1}", f1=f1)
    return chart(
        title,
        lines,
        summary.total_steps,
        gettext("Scores appear once the model is scored, the first time before its first step."),
        look=gettext(
            "Above the dashed baselines it has learned something; when the scores fall while the "
            "loss still falls, it learns by heart."
        ),
        epoch=steps_per_epoch(summary),
    )


def loss_points(summary: RunSummary) -> list[Point]:
    """The measured training loss: (step, loss)."""
    return [(float(p.step), p.loss) for p in thinned(list(summary.train)) if p.loss is not None]


def metric_points(summary: RunSummary, metric: str) -> list[Point]:
    """A validation metric at each evaluation that has it: (step, value)."""
    return [
        (float(evaluation.step), evaluation.metrics[metric])
        for evaluation in thinned(summary.curve)
        if evaluation.metrics.get(metric) is not None
    ]


def thinned(points: Sequence[Any]) -> list[Any]:
    """About `POINTS` of the points at most, evenly spaced, with first and last."""
    stride = -(-len(points) // POINTS) or 1
    return [*points[:-1:stride], *points[-1:]]


def steps_per_epoch(summary: RunSummary) -> int:
    """Number of steps in an epoch of the run; 0 if not yet known."""
    return summary.prepared.steps_per_epoch if summary.prepared else 0


def chart(
    title: str,
    lines: Sequence[Series],
    last_x: float,  # keeps the axis still while points arrive
    empty: str,  # text while there is no point
    across: str = "",  # name of the horizontal axis; steps if empty
    share: bool = False,  # the vertical axis covers 0 to 1 whatever the points are
    look: str = "",  # one sentence that says what to look for
    cursor: float | None = None,  # x of a vertical line
    epoch: int = 0,  # steps in an epoch, shown beside the step; 0 to show none
    legend: bool = True,
) -> Markup:
    """Draw lines from x = 0 to `last_x`, or to the last point."""
    drawn = [line for line in lines if line.points]
    heights = [y for line in drawn for _, y in line.points]
    heights += [level for line in lines for _, level in line.baselines]
    if not heights:
        return render("chart.html", title=title, spoken=title, ticks=[], empty=empty)
    heights += [0.0, 1.0] if share else []
    ticks = _ticks(min(heights), max(heights))
    low, high = ticks[0], ticks[-1]
    last = max((x for line in drawn for x, _ in line.points), default=0.0)
    right = max(last_x, last, 1.0)

    def left(x: float) -> float:  # percent
        return 100 * x / right

    def top(y: float) -> float:  # percent, as SVG counts
        return 100 * (high - y) / (high - low)

    def path(line: Series) -> str:  # SVG's `d`
        return "M" + "L".join(f"{left(x):.2f} {top(y):.2f}" for x, y in line.points)

    latest = ", ".join(f"{line.name} {fixed(line.points[-1][1])}" for line in drawn if line.latest)
    return render(
        "chart.html",
        title=title,
        spoken=f"{title}: {latest}" if latest else title,
        lines=lines,
        drawn=drawn,
        baselines=list(dict.fromkeys(name for line in lines for name, _ in line.baselines)),
        values=_values(drawn),
        last=last,
        right=right,
        left=left,
        top=top,
        path=path,
        ticks=ticks,
        digits=max(0, -math.floor(math.log10(ticks[1] - ticks[0]))),
        x_ticks=[x for x in _ticks(0, right) if x <= right and (right == 1 or x.is_integer())],
        across=across or gettext("step"),
        look=look,
        cursor=cursor,
        epoch=epoch,
        legend_shown=legend,
        position_text=position_text,
        value_text=value_text,
    )


def _values(lines: Sequence[Series]) -> str:
    """The points of lines as JSON, with the digits shown."""
    values = [
        {
            "name": line.name,
            "x": " ".join(position_text(x) for x, _ in line.points),
            "y": " ".join(value_text(y) for _, y in line.points),
            "straight": line.straight,
        }
        for line in lines
    ]
    return json.dumps(values, ensure_ascii=False)


def position_text(x: float) -> str:
    """Format x for a program."""
    return f"{x:.0f}" if x == round(x) else f"{x:.4f}"


def value_text(y: float) -> str:
    """Format y with four decimals, or four digits if tiny or huge."""
    return f"{y:.4f}" if not y or 1e-3 <= abs(y) < 1e3 else f"{y:.4g}"


def _ticks(low: float, high: float) -> list[float]:
    """About five multiples of 1, 2 or 5 times a power of ten that enclose both ends."""
    span = (high - low or abs(high) or 1.0) / 5
    power = 10.0 ** math.floor(math.log10(span))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span * 0.999)
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [n * step for n in range(first, last + 1)]
