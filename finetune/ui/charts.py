"""Curves of a run, drawn as HTML and SVG from its summary. Thinned for display only.

Our own and not `gr.LinePlot`, which draws nothing when data and axis limits come in one update,
loses its axis titles after an empty start, and cannot draw a baseline. Lines are SVG stretched to
the box; words are HTML beside it, so that they keep their size on a phone. Colours come from the
page's style sheet and follow light and dark. Each chart carries the values of its points, which
`assets/page.js` shows at the pointer and by the arrow keys.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from finetune.runs.summary import RunSummary
from finetune.ui.i18n import gettext

POINTS = 250  # nobody sees more on this width, and the page is sent all of them
SMOOTHED = 20  # points from which on a loss is smoothed
_SPAN = 15  # of the smoothing, in points
T = TypeVar("T")
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Args:
        name: in the legend and beside its values.
        style: the class of its colour and marker in the style sheet: `loss`, `accuracy`, `f1`.
        points: (x, y), in order of x.
        markers: whether each point is drawn; for a few measurements, not for a curve.
        baselines: levels drawn dashed for comparison, each with its name.
        latest: whether its last value says something, and is named in the legend.
        straight: whether it is a straight line by definition, and can be read off anywhere.
    """

    name: str
    style: str
    points: list[Point] = field(default_factory=list)
    markers: bool = False
    baselines: tuple[tuple[str, float], ...] = ()
    latest: bool = True
    straight: bool = False


def loss_chart(summary: RunSummary) -> str:
    """The training loss over steps."""
    points = [(float(p.step), p.loss) for p in thinned(list(summary.train)) if p.loss is not None]
    if len(points) < SMOOTHED:
        lines = [Series(gettext("training loss"), "loss", points)]
    else:
        raw = Series(gettext("training loss"), "loss ft-raw", points, latest=False)
        lines = [raw, Series(gettext("smoothed"), "loss", smoothed(points))]
    empty = gettext("The loss appears with the first step. It should fall, with jumps.")
    look = gettext(
        "It should fall and then flatten; when it jumps up and stays, lower learning_rate."
    )
    return chart(
        gettext("Training loss (nats)"), lines, summary.total_steps, empty, look=look,
        epoch=steps_an_epoch(summary),
    )  # fmt: skip


def smoothed(points: Sequence[Point]) -> list[Point]:
    """A line's exponential moving average without the bias of its start.

    Each point counts 1 - 2 / (15 + 1) times as much as the next, as in the average of a span of 15.
    Source: Kingma and Ba 2015, section 3 (https://arxiv.org/abs/1412.6980), for the correction.
    """
    keep = 1 - 2 / (_SPAN + 1)
    mean, weight, found = 0.0, 0.0, []
    for x, y in points:
        mean, weight = keep * mean + (1 - keep) * y, keep * weight + (1 - keep)
        found.append((x, mean / weight))
    return found


def score_chart(summary: RunSummary) -> str:
    """Accuracy and F1 on the validation split over steps, with the baselines'."""
    lines = []
    for name, shown in (("accuracy", "accuracy"), ("f1", "F1")):
        points = [
            (float(one.step), one.metrics[name])
            for one in thinned(summary.validation)
            if name in one.metrics
        ]
        levels = tuple(
            (gettext(what), scores[name])
            for what, scores in summary.baselines.items()
            if name in scores
        )
        lines.append(Series(shown, name, points, markers=True, baselines=levels))
    empty = gettext(
        "Scores appear after the first evaluation, at the end of each epoch by default."
    )
    look = gettext(
        "Above the dashed baselines it has learned something; when the scores fall while the loss "
        "still falls, it learns by heart."
    )
    return chart(
        gettext("Validation accuracy and F1"), lines, summary.total_steps, empty, look=look,
        epoch=steps_an_epoch(summary), most=1.0,
    )  # fmt: skip


def steps_an_epoch(summary: RunSummary) -> int:
    """How many steps an epoch of the run has; 0 while that is not known."""
    return summary.prepared.steps_per_epoch if summary.prepared else 0


def chart(
    title: str,
    lines: Sequence[Series],
    last_x: float,
    empty: str,
    across: str = "",
    share: bool = False,
    look: str = "",
    cursor: float | None = None,
    epoch: int = 0,
    most: float = math.inf,
) -> str:
    """A chart of some lines from 0 to `last_x` or to where the points end.

    Args:
        title: what is shown; also the accessible name, with the latest values.
        lines: what to draw.
        last_x: the right end of the axis, so that it does not move while points arrive.
        empty: what to say while there is no point.
        across: what the horizontal axis is; steps when empty.
        share: whether the vertical axis goes from 0 to 1 whatever the points are.
        look: one sentence that says what to look for.
        cursor: where an upright line stands.
        epoch: how many steps are one, to be told beside the step; 0 where that says nothing.
        most: the greatest value there can be, where the vertical axis ends at the latest.
    """  # fmt: skip
    across = across or gettext("step")
    heights = [y for line in lines for _, y in line.points]
    levels = [level for line in lines for _, level in line.baselines]
    if not heights:
        body = f'<p class="ft-note">{html.escape(empty)}</p>'
        return _figure(title, title, "", body)
    right = max([last_x, 1.0, *(x for line in lines for x, _ in line.points)])
    ends = (0.0, 1.0, _ticks(0, 1, 5)) if share else None
    low, high, ticks = ends or _axis(min(heights + levels), max(heights + levels), most)
    box = _Box(right, low, high)
    marks = "".join(_marks(line, box) for line in lines)
    drawn = "".join(_line(line, box) for line in lines)
    grid = "".join(f'<path class="ft-grid" d="M0 {box.y(t):.2f}H100"/>' for t in ticks)
    if cursor is not None:
        marks += f'<i class="ft-cursor" style="left:{box.x(cursor):.2f}%"></i>'
    latest = ", ".join(f"{s.name} {s.points[-1][1]:.3f}" for s in lines if s.points and s.latest)
    values = _values(title, lines, box, across, epoch)
    plot = (
        f'<div class="ft-plot" {values}><svg viewBox="0 0 100 100" '
        f'preserveAspectRatio="none" aria-hidden="true">{grid}{drawn}</svg>{marks}'
        f"{_words(box, ticks)}</div>"
        f'<div class="ft-axis">{html.escape(across)}</div>'
    )
    if look:
        plot += f'<p class="ft-look">{html.escape(look)}</p>'
    return _figure(title, f"{title}: {latest}" if latest else title, _legend(lines), plot)


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


def _values(title: str, lines: Sequence[Series], box: _Box, across: str, epoch: int) -> str:
    """Attributes with which the plot can be read point by point: a slider along its points.

    Values are texts, as they are shown; at most `POINTS` of a line, for lines come thinned.
    """
    shown = [
        {
            "name": line.name,
            "x": " ".join(_plain(x) for x, _ in line.points),
            "y": " ".join(_exact(y) for _, y in line.points),
            **({"straight": True} if line.straight else {}),
        }
        for line in lines
        if line.points
    ]
    data = html.escape(json.dumps(shown, ensure_ascii=False, separators=(",", ":")))
    last = max(x for line in lines for x, _ in line.points)
    latest = [f"{s.name} {_exact(s.points[-1][1])}" for s in lines if s.points]
    told = html.escape(f"{across} {_number(last)}: {', '.join(latest)}")
    # The browser puts the number in the place of the nought: the word is another in each language.
    turns = f' data-epoch="{epoch}" data-turn="{html.escape(gettext("epoch {n:.2f}", n=0))}"'
    label = html.escape(gettext("{title}: values at a point, by the arrow keys", title=title))
    return (
        f'tabindex="0" role="slider" aria-label="{label}" aria-valuemin="0" '
        f'aria-valuemax="{_plain(box.right)}" aria-valuenow="{_plain(last)}" '
        f'aria-valuetext="{told}" data-across="{html.escape(across)}" '
        f'data-box="{_plain(box.right)} {box.low:.6g} {box.high:.6g}" '
        f'data-lines="{data}"{turns if epoch else ""}'
    )


def _plain(x: float) -> str:
    """A place on the horizontal axis for a program."""
    return f"{x:.0f}" if x == round(x) else f"{x:.4f}"


def _exact(y: float) -> str:
    """A value with four decimals, or where that says nothing, with four digits."""
    return f"{y:.4f}" if not y or 1e-3 <= abs(y) < 1e3 else f"{y:.4g}"


def swatch(style: str, markers: bool = False) -> str:
    """How a line is drawn, for a legend: its colour, its dashes and its marker.

    Args:
        style: as of a series; `dash ft-dash1` for the second baseline.
        markers: whether its points are marked.
    """
    turned = ' transform="rotate(45 14 5)"' if style == "f1" else ""
    round_ = ' rx="3.5"' if not turned else ""
    place = f'x="10.5" y="1.5" width="7" height="7"{round_}{turned}'
    mark = f'<rect class="ft-pointed ft-{style}" {place}/>'
    return (
        f'<svg class="ft-swatch ft-{style}" viewBox="0 0 28 10" aria-hidden="true">'
        f'<line class="ft-line ft-{style}" y1="5" x2="28" y2="5"/>{mark if markers else ""}</svg>'
    )


def _legend(lines: Sequence[Series]) -> str:
    named = "".join(
        f"<span>{swatch(line.style, line.markers)}{html.escape(line.name)}"
        f"{f' {line.points[-1][1]:.3f}' if line.latest else ''}</span>"
        for line in lines
        if line.points
    )
    names = list(dict.fromkeys(name for line in lines for name, _ in line.baselines))
    dashed = "".join(
        f"<span>{swatch(f'dash ft-dash{n}')}{html.escape(name)}</span>"
        for n, name in enumerate(names)
    )
    return f'<span class="ft-legend">{named}{dashed}</span>'


def _line(line: Series, box: _Box) -> str:
    path = "L".join(f"{box.x(x):.2f} {box.y(y):.2f}" for x, y in line.points)
    drawn = f'<path class="ft-line ft-{line.style}" d="M{path}"/>' if len(line.points) > 1 else ""
    for n, (_, level) in enumerate(line.baselines):
        drawn += (
            f'<path class="ft-line ft-{line.style} ft-dash ft-dash{n}" '
            f'd="M0 {box.y(level):.2f}H100"/>'
        )
    return drawn


def _marks(line: Series, box: _Box) -> str:
    """A dot for every measurement, or for the latest point of a curve."""
    shown = line.points if line.markers else line.points[-1:] if line.latest else []
    dots = "".join(
        f'<i class="ft-dot ft-{line.style}" style="left:{box.x(x):.2f}%;top:{box.y(y):.2f}%"></i>'
        for x, y in shown
    )
    # The line's own mark, hollow: which line a dashed level belongs to is not said by colour alone.
    # Inside the plot, each baseline's at a place of its own: nothing hides the axis or another.
    levels = "".join(
        f'<i class="ft-level ft-{line.style}" style="top:{box.y(level):.2f}%;--place:{place}" '
        f'title="{html.escape(_level(line.name, name, level))}"></i>'
        for place, (name, level) in enumerate(line.baselines)
    )
    return dots + levels


def _level(name: str, baseline: str, level: float) -> str:
    return gettext("{name} of {baseline} {value:.4f}", name=name, baseline=baseline, value=level)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:.3f}"


def _words(box: _Box, ticks: Sequence[float]) -> str:
    digits = max(0, -math.floor(math.log10(ticks[1] - ticks[0]))) if len(ticks) > 1 else 2
    beside = "".join(
        f'<span class="ft-y" style="top:{box.y(t):.2f}%">{t:.{digits}f}</span>' for t in ticks
    )
    below = "".join(
        f'<span class="ft-x" style="left:{box.x(t):.2f}%">{t:,.{0 if box.right > 4 else 1}f}</span>'
        for t in _ticks(0, box.right, 5)
    )
    return beside + below


def _axis(low: float, high: float, most: float = math.inf) -> tuple[float, float, list[float]]:
    """Round bounds around the data, the upper not above `most`, and round numbers between them."""
    room = (high - low) * 0.06 or abs(high) * 0.1 or 0.1
    step = _step(high - low + 2 * room, 4)
    bottom = math.floor((low - room / 2) / step + 1e-9) * step
    top = min(most, math.ceil((high + room / 2) / step - 1e-9) * step)
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
