"""Charts: SVG lines with labels in HTML, thinned for display; and those of a run.

Unlike `gr.LinePlot` they have baselines. `assets/charts.js` shows their values at the pointer and
by the arrow keys, opens them large and saves them as PNG.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd
from markupsafe import Markup

from finetune.messages import message
from finetune.metrics.catalog import LOSS, Metric
from finetune.runs.events import Evaluated, Stepped
from finetune.runs.summary import RunSummary
from finetune.tasks.base import Task
from finetune.ui.html import fixed, in_words, render
from finetune.ui.i18n import gettext, number

POINTS = 250  # nobody sees more on this width, and the page is sent all of them
_LEAST_SPAN = 0.02  # of the axis of a score: smaller differences are chance
_NAME_HEIGHT = 10  # percent of a plot that a baseline's name takes
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str  # in the legend and beside its values
    style: str  # its class in the style sheet: `loss`, `headline`, `second`
    points: list[Point] = field(default_factory=list)  # (x, y), in order of x
    markers: bool = False  # draw each point; for a few measurements, not for a curve
    baselines: tuple[tuple[str, float], ...] = ()  # (name, level), drawn dashed for comparison
    latest: bool = True  # name its last value in the legend
    straight: bool = False  # values are interpolated between its two points


def thinned(points: Sequence[Any], most: int = POINTS) -> list[Any]:
    """Return about `most` points or fewer, evenly spaced, always with the first and the last."""
    stride = -(-len(points) // most) or 1
    return [*points[:-1:stride], *points[-1:]]


def chart(
    title: str,
    lines: Sequence[Series],
    last_x: float,  # keeps the axis still while points arrive
    empty: str,  # text while there is no point
    across: str = "",  # name of the horizontal axis; steps if empty
    reach: tuple[float, ...] = (),  # values that the vertical axis covers whatever the points are
    of: Metric | None = None,  # whose scores these are; a bounded one's axis is of that range
    log: bool = False,  # a logarithmic vertical axis, if all values are above 0
    look: str = "",  # one sentence that says what to look for
    cursor: float | None = None,  # x of a vertical line
    epoch: int = 0,  # steps in an epoch, shown beside the step; 0 to show none
    legend: bool = True,  # False: its latest values alone
) -> Markup:
    """Draw lines from x = 0 to `last_x`, or to the last point."""
    drawn = [line for line in lines if line.points]
    heights = [y for line in drawn for _, y in line.points]
    heights += [level for line in lines for _, level in line.baselines]
    if not heights:
        return render("chart.html", title=title, spoken=title, ticks=[], empty=empty)
    heights += reach
    least, most = of.range if of else (-math.inf, math.inf)
    if math.isfinite(most) and max(heights) - min(heights) < _LEAST_SPAN:
        middle = (max(heights) + min(heights)) / 2
        low = min(max(least, middle - _LEAST_SPAN / 2), most - _LEAST_SPAN)
        heights += [low, low + _LEAST_SPAN]
    log = log and min(heights) > 0
    place = math.log10 if log else float
    ticks = (_log_ticks if log else _ticks)(min(heights), max(heights))
    low, high = place(ticks[0]), place(ticks[-1])
    last = max((x for line in drawn for x, _ in line.points), default=0.0)
    right = max(last_x, last, 1.0)

    def left(x: float) -> float:  # percent
        return 100 * x / right

    def top(y: float) -> float:  # percent, as SVG counts
        return 100 * (high - place(y)) / (high - low)

    def path(line: Series) -> str:  # SVG's `d`
        return "M" + "L".join(f"{left(x):.2f} {top(y):.2f}" for x, y in line.points)

    told = [f"{line.name} {fixed(line.points[-1][1])}" for line in drawn if line.latest]
    told += [
        gettext("{name} of {baseline} {value:.4f}", name=line.name, baseline=name, value=level)
        for line in lines
        for name, level in line.baselines
    ]
    return render(
        "chart.html",
        title=title,
        spoken=f"{title}: {', '.join(told)}" if told else title,
        lines=lines,
        drawn=drawn,
        levels=_levels(lines, top),
        values=_values(drawn),
        last=last,
        right=right,
        left=left,
        top=top,
        path=path,
        ticks=ticks,
        ends=(low, high),
        log=log,
        tick_text=partial(_tick_text, step=0.0 if log else ticks[1] - ticks[0]),
        x_ticks=[x for x in _ticks(0, right) if x <= right and (right == 1 or x.is_integer())],
        across=across or gettext("step"),
        look=look,
        cursor=cursor,
        epoch=epoch,
        legend_shown=legend,
        position_text=position_text,
        value_text=value_text,
        short_text=_short_text,
    )


def _levels(
    lines: Sequence[Series], top: Callable[[float], float]
) -> list[tuple[float, dict[str, tuple[Series, float]]]]:
    """The baselines by height, in percent from the top: names too close to stand above each other
    share the height of the highest; the topmost may stand below its line. By name: the line and
    the level."""
    found = [(top(level), name, line, level) for line in lines for name, level in line.baselines]
    rows: list[tuple[float, dict[str, tuple[Series, float]]]] = []
    for height, name, line, level in sorted(found, key=lambda each: each[0]):
        room = _NAME_HEIGHT if rows and rows[-1][0] >= _NAME_HEIGHT else 2 * _NAME_HEIGHT
        if not rows or height - rows[-1][0] > room:
            rows.append((height, {}))
        rows[-1][1].setdefault(name, (line, level))
    return rows


def _values(lines: Sequence[Series]) -> str:
    """The points of lines as JSON, with the digits shown."""
    values = [
        {
            "name": line.name,
            "x": " ".join(position_text(x) for x, _ in line.points),
            "y": " ".join(value_text(y) for _, y in line.points),
            "straight": line.straight,
            "style": line.style,
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


def _tick_text(tick: float, step: float) -> str:
    """Format a tick with enough digits to tell it from the next. `step` is 0 on a log axis."""
    if not tick:
        return "0" if step < 1e-3 else fixed(tick, max(0, -math.floor(math.log10(step))))
    digits = max(0, -math.floor(math.log10(step or tick)))
    if (digits > 3 and abs(tick) < 100 * (step or tick)) or abs(tick) >= 1e5:
        return number(f"{tick:.1e}".replace(".0e", "e").replace("e-0", "e-").replace("e+0", "e"))
    return fixed(tick, digits)


def _short_text(y: float) -> str:
    """Format y with three digits."""
    return number(f"{y:,.0f}" if abs(y) >= 100 else f"{y:.3g}".replace("e-0", "e-"))


def _log_ticks(low: float, high: float) -> list[float]:
    """Multiples of powers of ten that enclose both ends; the wider the range, the sparser."""
    powers = math.log10(high / low)
    choices = ((0.5, range(1, 10)), (1.0, (1, 2, 3, 5, 7)), (2.5, (1, 2, 5)), (math.inf, (1,)))
    factors = next(factors for most, factors in choices if powers < most)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high) + 1e-9)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    start = max(n for n, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
    end = min(n for n, tick in enumerate(ticks) if tick >= high * (1 - 1e-9))
    return ticks[start : max(end, start + 1) + 1]


def _ticks(low: float, high: float) -> list[float]:
    """About five multiples of 1, 2 or 5 times a power of ten that enclose both ends."""
    span = (high - low or abs(high) or 1.0) / 5
    power = 10.0 ** math.floor(math.log10(span))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span * 0.999)
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [n * step for n in range(first, last + 1)]


SMOOTHED = 20  # a curve with so many points is smoothed
AXES = {"step": message("step"), "epoch": message("pass"), "time": message("time")}
# Span of the exponential moving average, in points.
SMOOTHINGS = {"none": 0, "some": 15, "much": 60}
SMOOTHING_NAMES = {"none": message("none"), "some": message("some"), "much": message("much")}
SMALL = ("learning-rate", "gradient-norm", "speed", "busy", "memory")  # charts of `small_charts`
_POINTS = 120  # of a small chart
_UNITS = (  # of time: from so many seconds on, its seconds, its name
    (7200, 3600, message("hours")), (180, 60, message("minutes")),
    (-math.inf, 1, message("seconds")),
)  # fmt: skip


@dataclass(frozen=True)
class ChartView:
    """A person's choices for the charts of a run."""

    across: str = "step"  # of `AXES`
    smoothing: str = "some"  # of `SMOOTHINGS`
    log: bool = False  # loss and speed on a logarithmic axis

    @classmethod
    def read(cls, query: Mapping[str, str]) -> ChartView:
        """Read a browser's question; what it does not know stays at its default."""
        across, smoothing = query.get("across", ""), query.get("smoothing", "")
        return cls(
            across if across in AXES else "step",
            smoothing if smoothing in SMOOTHINGS else "some",
            query.get("scale") == "1",
        )


DEFAULT = ChartView()


@dataclass(frozen=True)
class _Axis:
    """A run's horizontal axis."""

    name: str
    last: float  # keeps the axis still while points arrive; 0 if unknown
    of: Callable[[Stepped | Evaluated], float]
    epoch: int = 0  # steps in an epoch, if steps are shown


def _axis(summary: RunSummary, view: ChartView) -> _Axis:
    per_epoch = steps_per_epoch(summary)
    if view.across == "epoch":
        last = summary.total_steps / per_epoch if per_epoch else 0.0
        return _Axis(gettext("pass"), last, lambda event: event.epoch)
    if view.across == "time":
        length = summary.latest - summary.began
        unit, name = next((unit, name) for least, unit, name in _UNITS if length >= least)
        return _Axis(gettext(name), 0.0, lambda event: (event.time - summary.began) / unit)
    return _Axis(gettext("step"), summary.total_steps, lambda event: float(event.step), per_epoch)


def loss_chart(summary: RunSummary, view: ChartView = DEFAULT) -> Markup:
    """The training loss and the validation loss."""
    axis = _axis(summary, view)
    points = [(axis.of(point), point.loss) for point in thinned(summary.train)]
    own, taught = gettext("training loss"), gettext("training loss with the teacher's")
    look = gettext(
        "Both should fall and then flatten. When the training loss jumps up and stays, lower "
        "learning_rate; when the validation loss rises, it learns by heart."
    )
    lines = _with_smoothed(Series(taught if summary.taught else own, "loss", points), view)
    if scored := metric_points(summary, LOSS.name, view):
        lines.append(Series(gettext("validation loss"), "validation", scored, markers=True))
    return chart(
        gettext("Loss"),
        lines,
        axis.last,
        gettext("The loss appears with the first step. It should fall, with jumps."),
        axis.name,
        log=view.log,
        look=look,
        epoch=axis.epoch,
    )


def _with_smoothed(line: Series, view: ChartView) -> list[Series]:
    span = SMOOTHINGS[view.smoothing]
    if not span or len(line.points) < SMOOTHED:
        return [line]
    raw = Series(line.name, f"{line.style} ft-raw", line.points, latest=False)
    return [raw, Series(gettext("smoothed"), line.style, smoothed(line.points, span))]


def smoothed(points: Sequence[Point], span: int = SMOOTHINGS["some"]) -> list[Point]:
    """A line's exponential moving average over a span of points."""
    places, values = zip(*points, strict=True)
    return list(zip(places, pd.Series(values).ewm(span=span).mean(), strict=True))


def score_chart(
    summary: RunSummary, threshold: float | None = None, view: ChartView = DEFAULT
) -> Markup:
    """The validation scores, and the best baseline of the one by which models are told apart. If a
    `threshold` is saved with the model, they say that they are of the most probable class."""
    axis = _axis(summary, view)
    lines, scores = [], summary.baselines.items()
    # On one axis: without a task's errors in the unit of its target.
    drawn = [
        metric for metric in summary.measured
        if math.isfinite(metric.range[1]) or metric not in summary.task.metrics
    ]  # fmt: skip
    for n, metric in enumerate(drawn):
        levels = [(gettext(name), of[metric.name]) for name, of in scores if metric.name in of]
        best = max(levels, key=lambda level: metric.rank(level[1]), default=None)
        lines.append(
            Series(
                in_words(metric.name, summary.classes),
                line_style(summary.task, metric.name, f"run{n}"),
                metric_points(summary, metric.name, view),
                markers=True,
                baselines=(best,) if best and metric == summary.task.headline else (),
            )
        )
    title = gettext("Validation scores")
    if threshold is not None:
        title = gettext("Validation scores, of the most probable class")
    return chart(
        title,
        lines,
        axis.last,
        gettext("Scores appear once the model is scored, the first time before its first step."),
        axis.name,
        of=max(drawn, key=lambda metric: metric.range[1], default=None),
        look=gettext(
            "Above the dashed baseline it has learned something; when the scores fall while the "
            "loss still falls, it learns by heart."
        ),
        epoch=axis.epoch,
    )


def line_style(task: Task, metric: str, other: str) -> str:
    """Return the style of a metric's line: the task's headline and its next metric have their own,
    others have `other`."""
    names = dict.fromkeys(own.name for own in (task.headline, *task.metrics))
    return dict(zip(names, ("headline", "second"), strict=False)).get(metric, other)


def small_charts(summary: RunSummary, view: ChartView = DEFAULT) -> dict[str, Markup]:
    """Learning rate, gradient norm, speed, and use of the device; empty if not measured."""
    on_cpu = summary.started is not None and summary.started.device.startswith("CPU")
    use = gettext("CPU, % in use") if on_cpu else gettext("GPU, % in use")
    # Title; unit of a measurement, and its name in `Stepped`; values that the axis covers.
    charts: tuple[tuple[str, float, str, tuple[float, ...]], ...] = (
        (gettext("Step size"), 1, "learning_rate", ()),
        (gettext("Gradient norm"), 1, "grad_norm", ()),
        (gettext("Samples/s"), 1, "samples_per_second", (0.0,)),
        (use, 0.01, "busy", (0.0, 100.0)),
        (gettext("Memory, GB"), 1e9, "memory", (0.0,)),
    )
    axis, steps = _axis(summary, view), thinned(summary.train, _POINTS)
    drawn = dict.fromkeys(SMALL, Markup())
    for name, (title, unit, measured, reach) in zip(SMALL, charts, strict=True):
        values = [(axis.of(step), getattr(step, measured)) for step in steps]
        points = [(x, value / unit) for x, value in values if value is not None]
        line, noisy = Series(title, "run0", points), name in ("gradient-norm", "speed")
        if points:
            drawn[name] = chart(
                title, _with_smoothed(line, view) if noisy else [line], axis.last, "", axis.name,
                reach=() if noisy and view.log else reach, log=noisy and view.log,
                epoch=axis.epoch, legend=False,
            )  # fmt: skip
    return drawn


def metric_points(summary: RunSummary, metric: str, view: ChartView = DEFAULT) -> list[Point]:
    """A validation metric at each evaluation that has it: (place on the axis, value)."""
    axis = _axis(summary, view)
    return [
        (axis.of(evaluation), evaluation.metrics[metric])
        for evaluation in thinned(summary.curve)
        if evaluation.metrics.get(metric) is not None
    ]


def steps_per_epoch(summary: RunSummary) -> int:
    """Number of steps in an epoch of the run; 0 if not yet known."""
    return summary.prepared.steps_per_epoch if summary.prepared else 0
