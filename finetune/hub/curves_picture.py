"""A run's curves as a PNG, in the colours of Okabe and Ito: https://jfly.uni-koeln.de/color/."""

from __future__ import annotations

import io

from finetune.metrics.classification import metric_name
from finetune.runs.summary import RunSummary

_SCORES = (("accuracy", "#009e73", "o"), ("f1", "#d55e00", "D"))


def curves_png(summary: RunSummary) -> bytes | None:
    """Plot training loss, and accuracy and F1 on the validation split, by step; None before any
    step."""
    if not len(summary.train) and not summary.validation:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), dpi=120, layout="constrained")
    loss, scores = figure.subplots(1, 2)
    loss.set_title("Training loss", loc="left")
    loss.plot([e.step for e in summary.train], [e.loss for e in summary.train], color="#0072b2")
    loss.set_ylim(bottom=0)
    scores.set_title("Validation", loc="left")
    for name, colour, marker in _SCORES:
        label = metric_name(name, summary.classes)
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
