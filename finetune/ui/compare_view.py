"""Two or more runs beside each other: curves overlaid, what differs, what they reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from finetune.config import UPLOAD_PREFIX, is_upload
from finetune.jobs.run_table import RunRow
from finetune.runs.summary import RunSummary
from finetune.ui import charts
from finetune.ui.charts import Series
from finetune.ui.html import macro, render
from finetune.ui.i18n import gettext
from finetune.ui.run_table_view import when
from finetune.ui.run_view import duration

MOST = 8  # colours and dashes that can be told apart
_LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class Compared:
    """One of the runs.

    Args:
        row: its figures.
        summary: its curves.
    """

    row: RunRow
    summary: RunSummary


def view(runs: Sequence[Compared], differing: dict[str, list[Any]]) -> Markup:
    """The whole comparison.

    Args:
        differing: hyperparameter -> its value in each run.
    """
    swatch = macro("macros.html", "swatch")
    pairs = {run.summary.prepared.fingerprint if run.summary.prepared else "" for run in runs}
    comparable = len(pairs) == 1
    return render(
        "compare.html",
        runs=runs,
        names=[swatch(f"run{n}") + _LETTERS[n] for n in range(len(runs))],
        charts=[
            _chart(runs, gettext("Training loss, smoothed"), ""),
            _chart(runs, gettext("Validation F1"), "f1"),
            _chart(runs, gettext("Validation accuracy"), "accuracy"),
            _chart(runs, gettext("Validation loss"), "loss"),
        ],
        comparable=comparable,
        best={
            "f1": _best([run.row.f1 for run in runs]) if comparable else None,
            "accuracy": _best([run.row.accuracy for run in runs]) if comparable else None,
        },
        differing={
            name: [_setting(name, value, run.row) for value, run in zip(values, runs, strict=True)]
            for name, values in differing.items()
        },
        when=when,
        duration=duration,
    )


def _chart(runs: Sequence[Compared], title: str, metric: str) -> Markup:
    """One metric of all runs; the training loss where `metric` is empty."""
    lines = []
    for n, run in enumerate(runs):
        if metric:
            points = charts.metric_points(run.summary, metric)
        else:
            points = charts.loss_points(run.summary)
            if len(points) >= charts.SMOOTHED:
                points = charts.smoothed(points)
        lines.append(Series(_LETTERS[n], f"run{n}", points, markers=bool(metric)))
    last = max((run.summary.total_steps for run in runs), default=0)
    epochs = {charts.steps_per_epoch(run.summary) for run in runs}
    return charts.chart(
        title,
        lines,
        last,
        gettext("None of these runs has come so far."),
        epoch=epochs.pop() if len(epochs) == 1 else 0,
        most=1.0 if metric in ("f1", "accuracy") else math.inf,
    )


def _best(scores: Sequence[float | None]) -> float | None:
    measured = [score for score in scores if score is not None]
    return max(measured) if len(measured) > 1 else None


def _setting(name: str, value: Any, row: RunRow) -> str:
    """A cell; an upload by what its files are called, and enough of its name to tell two apart."""
    if name == "dataset" and is_upload(str(value)):
        return f"{row.dataset} ({str(value).removeprefix(UPLOAD_PREFIX)[:6]})"
    return str(value)
