"""Curves of a run as the frames that Gradio's plots draw. Thinned for display only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pandas as pd

from finetune.summary import Summary

POINTS = 250  # a plot of 1,000 takes a browser's core; nobody sees more than this
T = TypeVar("T")


def loss_frame(summary: Summary) -> pd.DataFrame:
    """Columns `step` and `loss`: the training loss."""
    points = thinned(summary.train)
    return pd.DataFrame(
        {"step": [p.step for p in points], "loss": [p.loss for p in points]},
    ).astype({"step": "int64", "loss": "float64"})


def score_frame(summary: Summary) -> pd.DataFrame:
    """Columns `step`, `score` and `metric`, one row a metric: accuracy and F1 on validation."""
    names = {"accuracy": "accuracy", "f1": "F1"}
    rows = []
    for one in thinned(summary.validation):
        rows += [
            (one.step, one.metrics[k], shown) for k, shown in names.items() if k in one.metrics
        ]
    return pd.DataFrame(rows, columns=["step", "score", "metric"]).astype(
        {"step": "int64", "score": "float64"}
    )


def thinned(points: Sequence[T], most: int = POINTS) -> list[T]:
    """At most about `most` of the points, evenly, first and last included."""
    if len(points) <= most:
        return list(points)
    stride = -(-len(points) // most)
    kept = list(points[::stride])
    return kept if kept[-1] is points[-1] else [*kept, points[-1]]
