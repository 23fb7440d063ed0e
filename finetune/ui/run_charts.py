"""The charts of a run: losses, scores, and how the training went."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

from finetune.messages import message
from finetune.metrics.catalog import LOSS
from finetune.runs.events import Evaluated, Stepped
from finetune.runs.summary import RunSummary
from finetune.tasks.base import Task
from finetune.ui.charts import Point, Series, chart, thinned
from finetune.ui.html import in_words
from finetune.ui.i18n import gettext

SMOOTHED = 20  # a curve with so many points is smoothed
AXES = {"step": message("step"), "epoch": message("epoch"), "time": message("time")}
# Span of the exponential moving average, in points.
SMOOTHINGS = {"none": 0, "some": 15, "much": 60}
SMOOTHING_NAMES = {"none": message("none"), "some": message("some"), "much": message("much")}
SMALL = ("learning-rate", "gradient-norm", "speed", "busy", "memory")  # charts of `small_charts`
_POINTS = 120  # of a small chart
_UNITS = ((7200, 3600, message("hours")), (180, 60, message("minutes")))


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
        return _Axis(gettext("epoch"), last, lambda event: event.epoch)
    if view.across == "time":
        length = summary.latest - summary.began
        unit, name = next(
            ((unit, name) for least, unit, name in _UNITS if length >= least),
            (1, message("seconds")),
        )
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
    scored = _scored(summary, LOSS.name, axis)
    if scored:
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
    """The validation scores with the baselines'.

    Args:
        threshold: saved with the kept model. The curves ignore it: they show the most probable
            class, and say so.
    """
    axis = _axis(summary, view)
    lines, scores = [], summary.baselines.items()
    # On one axis: without a task's errors in the unit of its target.
    drawn = [
        metric for metric in summary.measured
        if math.isfinite(metric.range[1]) or metric not in summary.task.metrics
    ]  # fmt: skip
    for n, metric in enumerate(drawn):
        levels = [(gettext(name), of[metric.name]) for name, of in scores if metric.name in of]
        lines.append(
            Series(
                in_words(metric.name, summary.classes),
                line_style(summary.task, metric.name, f"run{n}"),
                _scored(summary, metric.name, axis),
                markers=True,
                baselines=tuple(levels),
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
        most=max((metric.range[1] for metric in drawn), default=1.0),
        look=gettext(
            "Above the dashed baselines it has learned something; when the scores fall while the "
            "loss still falls, it learns by heart."
        ),
        epoch=axis.epoch,
    )


def line_style(task: Task, metric: str, other: str) -> str:
    """Return the style of a metric's line: the task's headline and its next metric have their own,
    others have `other`."""
    names = dict.fromkeys(own.name for own in (task.headline, *task.metrics))
    return dict(zip(names, ("headline", "second"), strict=False)).get(metric, other)


@dataclass(frozen=True)
class _Small:
    """A small chart: one measurement of the steps."""

    title: str
    of: Callable[[Stepped], float | None]  # None if it was not measured
    noisy: bool = False  # smoothed, and on a logarithmic axis on request
    reach: tuple[float, ...] = ()  # as of `chart`


def small_charts(summary: RunSummary, view: ChartView = DEFAULT) -> dict[str, Markup]:
    """Learning rate, gradient norm, speed, and use of the device; empty if not measured."""
    on_cpu = summary.started is not None and summary.started.device.startswith("CPU")
    charts = (
        _Small(gettext("Learning rate"), lambda step: step.learning_rate),
        _Small(gettext("Gradient norm"), lambda step: step.grad_norm, noisy=True),
        _Small(gettext("Samples/s"), lambda step: step.samples_per_second, True, (0.0,)),
        _Small(
            gettext("CPU, % in use") if on_cpu else gettext("GPU, % in use"),
            lambda step: None if step.busy is None else 100 * step.busy,
            reach=(0.0, 100.0),
        ),
        _Small(
            gettext("Memory, GB"),
            lambda step: None if step.memory is None else step.memory / 1e9,
            reach=(0.0,),
        ),
    )
    axis, steps = _axis(summary, view), thinned(summary.train, _POINTS)
    drawn = dict.fromkeys(SMALL, Markup())
    for name, small in zip(SMALL, charts, strict=True):
        points = [(axis.of(step), value) for step in steps if (value := small.of(step)) is not None]
        line, log = Series(small.title, "run0", points), small.noisy and view.log
        if points:
            drawn[name] = chart(
                small.title,
                _with_smoothed(line, view) if small.noisy else [line],
                axis.last,
                "",
                axis.name,
                reach=() if log else small.reach,
                log=log,
                epoch=axis.epoch,
                legend=False,
            )
    return drawn


def loss_points(summary: RunSummary) -> list[Point]:
    """The measured training loss: (step, loss)."""
    return [(float(point.step), point.loss) for point in thinned(summary.train)]


def metric_points(summary: RunSummary, metric: str) -> list[Point]:
    """A validation metric at each evaluation that has it: (step, value)."""
    return _scored(summary, metric, _axis(summary, DEFAULT))


def _scored(summary: RunSummary, metric: str, axis: _Axis) -> list[Point]:
    return [
        (axis.of(evaluation), evaluation.metrics[metric])
        for evaluation in thinned(summary.curve)
        if evaluation.metrics.get(metric) is not None
    ]


def steps_per_epoch(summary: RunSummary) -> int:
    """Number of steps in an epoch of the run; 0 if not yet known."""
    return summary.prepared.steps_per_epoch if summary.prepared else 0
