"""A run's curves as a PNG, for its model card; drawn without a browser.

Source of the colours: Okabe and Ito, https://jfly.uni-koeln.de/color/.
"""

from __future__ import annotations

import io

from finetune.runs.summary import RunSummary

_SCORES = (("accuracy", "accuracy", "#009e73", "o"), ("f1", "F1", "#d55e00", "D"))


def curves_png(summary: RunSummary) -> bytes | None:
    """Training loss, and accuracy and F1 on the validation split, by step; None before any step."""
    if not len(summary.train) and not summary.validation:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.set_title("Training loss", loc="left")
    steps = [event.step for event in summary.train]
    left.plot(steps, [event.loss for event in summary.train], color="#0072b2")
    left.set_ylim(bottom=0)
    right.set_title("Validation", loc="left")
    for score, label, colour, marker in _SCORES:
        events = [event for event in summary.validation if score in event.metrics]
        values = [event.metrics[score] for event in events]
        steps = [event.step for event in events]
        right.plot(steps, values, label=label, color=colour, marker=marker)
    if summary.best is not None:
        right.axvline(summary.best.step, color="#64748b", linestyle=":", label="kept")
    right.legend()
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.grid(color="#e2e8f0")
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
