"""Charts: SVG lines with labels in HTML, thinned for display.

Unlike `gr.LinePlot` they have baselines. `assets/charts.js` shows their values at the pointer and
by the arrow keys, opens them large and saves them as PNG.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from markupsafe import Markup

from finetune.ui.html import fixed, render
from finetune.ui.i18n import gettext, number

POINTS = 250  # nobody sees more on this width, and the page is sent all of them
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str  # in the legend and beside its values
    style: (
        str  # the class of its colour and marker in the style sheet: `loss`, `headline`, `second`
    )
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
    most: float = math.inf,  # the vertical axis ends there
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
    log = log and min(heights) > 0
    place = math.log10 if log else float
    ticks = (_log_ticks if log else _ticks)(min(heights), max(heights))
    if ticks[-1] > most:  # only if all values equal `most`
        ticks = [tick - ticks[-1] + most for tick in ticks]
    low, high = place(ticks[0]), place(ticks[-1])
    last = max((x for line in drawn for x, _ in line.points), default=0.0)
    right = max(last_x, last, 1.0)

    def left(x: float) -> float:  # percent
        return 100 * x / right

    def top(y: float) -> float:  # percent, as SVG counts
        return 100 * (high - place(y)) / (high - low)

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
    if digits > 3 or abs(tick) >= 1e5:
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
