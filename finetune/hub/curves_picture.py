"""A run's curves as a PNG, drawn without a browser: what a model card shows of its training.

matplotlib is imported with the first picture, not with the page. Source of the colours: Okabe and
Ito, https://jfly.uni-koeln.de/color/.
"""

from __future__ import annotations

import io
from typing import Any

from finetune.runs.summary import RunSummary

_COLOURS = {"loss": "#0072b2", "accuracy": "#009e73", "f1": "#d55e00"}
_NAMES = {"accuracy": "accuracy", "f1": "F1"}
_MARKS = {"accuracy": "o", "f1": "D"}


def curves_png(summary: RunSummary) -> bytes | None:
    """Training loss, and accuracy and F1 on the validation split, by step; None before any step."""
    if not len(summary.train) and not summary.validation:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # no pyplot: it keeps figures for all threads together
    left, right = figure.subplots(1, 2)
    left.set_title("Training loss", loc="left", fontsize=10)
    steps = [event.step for event in summary.train]
    left.plot(steps, [event.loss for event in summary.train], color=_COLOURS["loss"])
    left.set_ylim(bottom=0)
    _scores(right, summary)
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.set_xlim(0, 1.02 * max(1, summary.step, *(event.step for event in summary.validation)))
        axes.grid(color="#e2e8f0", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _scores(axes: Any, summary: RunSummary) -> None:
    axes.set_title("Validation", loc="left", fontsize=10)
    for score, name in _NAMES.items():
        points = [(e.step, e.metrics[score]) for e in summary.validation if score in e.metrics]
        axes.plot(
            [step for step, _ in points], [value for _, value in points], label=name,
            color=_COLOURS[score], marker=_MARKS[score], markersize=5, clip_on=False,
        )  # fmt: skip
    axes.set_ylim(top=min(1.0, axes.get_ylim()[1]))
    if summary.best is not None:
        axes.axvline(summary.best.step, color="#64748b", linestyle=":", label="kept")
    if summary.validation:
        axes.legend(frameon=False, fontsize=9)
