"""A run's curves as a PNG, in the colours of Okabe and Ito: https://jfly.uni-koeln.de/color/."""

from __future__ import annotations

import io
from itertools import cycle

from finetune.metrics.catalog import metric_name
from finetune.runs.summary import RunSummary

# Colours and markers, in the order of the metrics; further ones begin anew.
_LOOKS = (("#009e73", "o"), ("#d55e00", "D"), ("#cc79a7", "s"), ("#56b4e9", "^"), ("#e69f00", "v"))


def curves_png(summary: RunSummary) -> bytes | None:
    """Plot training loss and validation scores by step; None before any step."""
    if not len(summary.train) and not summary.validation:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), dpi=120, layout="constrained")
    loss, scores = figure.subplots(1, 2)
    own = "Training loss with the teacher's" if summary.taught else "Training loss"
    loss.set_title(own, loc="left")
    loss.plot([e.step for e in summary.train], [e.loss for e in summary.train], color="#0072b2")
    loss.set_ylim(bottom=0)
    scores.set_title("Validation", loc="left")
    for metric, (colour, marker) in zip(summary.measured, cycle(_LOOKS), strict=False):
        name, label = metric.name, metric_name(metric.name, summary.classes)
        points = [(e.step, e.metrics[name]) for e in summary.curve if name in e.metrics]
        scores.plot(*zip(*points, strict=True), label=label, color=colour, marker=marker)
    if summary.best is not None:
        scores.axvline(summary.best.step, color="#64748b", linestyle=":", label="kept")
    scores.legend()
    for axes in (loss, scores):
        axes.set_xlabel("step")
        axes.grid(color="#e2e8f0")
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
