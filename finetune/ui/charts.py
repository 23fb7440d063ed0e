"""Curves of a run, drawn as HTML and SVG from its summary. Thinned for display only.

Our own and not `gr.LinePlot`, which draws nothing when data and axis limits come in one update,
loses its axis titles after an empty start, and cannot draw a baseline. Lines are SVG stretched to
the box; words are HTML beside it, so that they keep their size on a phone. Colours come from the
page's style sheet and follow light and dark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from finetune.summary import Summary

POINTS = 250  # nobody sees more on this width, and the page is sent all of them
T = TypeVar("T")
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Args:
        name: in the legend and in every point's tooltip.
        style: the class of its colour and marker in the style sheet: `loss`, `accuracy`, `f1`.
        points: (x, y), in order of x.
        markers: whether each point is drawn; for a few measurements, not for a curve.
        baseline: a level drawn dashed for comparison, with its name.
    """

    name: str
    style: str
    points: list[Point] = field(default_factory=list)
    markers: bool = False
    baseline: tuple[str, float] | None = None


def loss_chart(summary: Summary) -> str:
    """The training loss over steps."""
    points = [(float(p.step), p.loss) for p in thinned(summary.train) if p.loss is not None]
    line = Series("training loss", "loss", points)
    empty = "The loss appears with the first step. It should fall, with jumps."
    return chart("Training loss", [line], summary.total_steps, empty)


def score_chart(summary: Summary) -> str:
    """Accuracy and F1 on the validation split over steps, with the majority baseline's."""
    majority = summary.prepared.majority if summary.prepared else {}
    lines = []
    for name, shown in (("accuracy", "accuracy"), ("f1", "F1")):
        points = [
            (float(one.step), one.metrics[name])
            for one in thinned(summary.validation)
            if name in one.metrics
        ]
        level = ("majority class", majority[name]) if name in majority else None
        lines.append(Series(shown, name, points, markers=True, baseline=level))
    empty = "Scores appear after the first evaluation, at the end of each epoch by default."
    return chart("Validation accuracy and F1", lines, summary.total_steps, empty)


def chart(title: str, lines: Sequence[Series], last_x: float, empty: str) -> str:
    """A chart of some lines over steps, from 0 to `last_x` or to where the points end.

    Args:
        title: what is shown; also the accessible name, with the latest values.
        lines: what to draw.
        last_x: the right end of the axis, so that it does not move while points arrive.
        empty: what to say while there is no point.
    """
    values = [y for line in lines for _, y in line.points]
    levels = [line.baseline[1] for line in lines if line.baseline]
    if not values:
        body = f'<p class="ft-note">{html.escape(empty)}</p>'
        return _figure(title, title, "", body)
    right = max([last_x, 1.0, *(x for line in lines for x, _ in line.points)])
    low, high, ticks = _axis(min(values + levels), max(values + levels))
    box = _Box(right, low, high)
    marks = "".join(_marks(line, box) for line in lines)
    drawn = "".join(_line(line, box) for line in lines)
    grid = "".join(f'<path class="ft-grid" d="M0 {box.y(t):.2f}H100"/>' for t in ticks)
    latest = ", ".join(f"{s.name} {s.points[-1][1]:.3f}" for s in lines if s.points)
    plot = (
        f'<div class="ft-plot"><svg viewBox="0 0 100 100" preserveAspectRatio="none" '
        f'aria-hidden="true">{grid}{drawn}</svg>{marks}{_words(box, ticks)}</div>'
        f'<div class="ft-axis">step</div>'
    )
    return _figure(title, f"{title}: {latest}", _legend(lines), plot)


@dataclass(frozen=True)
class _Box:
    """From data to percent of the plot; y counts from the top, as SVG does."""

    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return 100 * value / self.right

    def y(self, value: float) -> float:
        return 100 * (self.high - value) / (self.high - self.low)


def _figure(title: str, spoken: str, legend: str, body: str) -> str:
    return (
        f'<figure class="ft-chart" role="group" aria-label="{html.escape(spoken)}">'
        f"<figcaption><b>{html.escape(title)}</b>{legend}</figcaption>{body}</figure>"
    )


def _legend(lines: Sequence[Series]) -> str:
    named = "".join(
        f'<span><i class="ft-key ft-{line.style}"></i>{html.escape(line.name)} '
        f"{line.points[-1][1]:.3f}</span>"
        for line in lines
        if line.points
    )
    names = {line.baseline[0] for line in lines if line.baseline}
    dashed = "".join(f'<span><i class="ft-key ft-dash"></i>{html.escape(n)}</span>' for n in names)
    return f'<span class="ft-legend">{named}{dashed}</span>'


def _line(line: Series, box: _Box) -> str:
    path = "L".join(f"{box.x(x):.2f} {box.y(y):.2f}" for x, y in line.points)
    drawn = f'<path class="ft-line ft-{line.style}" d="M{path}"/>' if len(line.points) > 1 else ""
    if line.baseline:
        level = box.y(line.baseline[1])
        drawn += f'<path class="ft-line ft-{line.style} ft-dash" d="M0 {level:.2f}H100"/>'
    return drawn


def _marks(line: Series, box: _Box) -> str:
    """A dot for every measurement, or for the latest point of a curve."""
    shown = line.points if line.markers else line.points[-1:]
    return "".join(
        f'<i class="ft-dot ft-{line.style}" style="left:{box.x(x):.2f}%;top:{box.y(y):.2f}%" '
        f'title="{html.escape(line.name)} {y:.4f} at step {x:,.0f}"></i>'
        for x, y in shown
    )


def _words(box: _Box, ticks: Sequence[float]) -> str:
    digits = max(0, -math.floor(math.log10(ticks[1] - ticks[0]))) if len(ticks) > 1 else 2
    beside = "".join(
        f'<span class="ft-y" style="top:{box.y(t):.2f}%">{t:.{digits}f}</span>' for t in ticks
    )
    below = "".join(
        f'<span class="ft-x" style="left:{box.x(t):.2f}%">{t:,.0f}</span>'
        for t in _ticks(0, box.right, 5)
    )
    return beside + below


def _axis(low: float, high: float) -> tuple[float, float, list[float]]:
    """Round bounds around the data, and round numbers between them."""
    room = (high - low) * 0.06 or abs(high) * 0.1 or 0.1
    step = _step(high - low + 2 * room, 4)
    bottom = math.floor((low - room / 2) / step + 1e-9) * step
    top = math.ceil((high + room / 2) / step - 1e-9) * step
    if low >= 0:  # no loss and no score is below
        bottom = max(0.0, bottom)
    return bottom, top, _ticks(bottom, top, 5)


def _ticks(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, about so many."""
    step = _step(high - low, about)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def _step(span: float, about: int) -> float:
    """The least 1, 2 or 5 times a power of ten of which `about` cover the span."""
    raw = span / about
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)


def thinned(points: Sequence[T], most: int = POINTS) -> list[T]:
    """At most about `most` of the points, evenly, first and last included."""
    if len(points) <= most:
        return list(points)
    stride = -(-len(points) // most)
    kept = list(points[::stride])
    return kept if kept[-1] is points[-1] else [*kept, points[-1]]
