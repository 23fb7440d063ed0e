"""Two or more runs beside each other: curves overlaid, what differs, what they reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from finetune.config import UPLOAD_PREFIX, is_upload
from finetune.errors import NoSuchRun, StoreError
from finetune.evaluation import report
from finetune.jobs import run_table, service
from finetune.jobs.run_table import RunRow
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary
from finetune.ui import charts, evaluation_view, feedback
from finetune.ui.charts import Series
from finetune.ui.html import macro, render
from finetune.ui.i18n import gettext
from finetune.ui.run_table_view import when
from finetune.ui.run_view import duration

_LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class Compared:
    """One of the runs: its figures and its curves."""

    row: RunRow
    summary: RunSummary


def comparison(store: RunStore, run_ids: Sequence[str]) -> Markup:
    """Several runs beside each other; of two also what their saved logits say of the difference."""
    try:
        runs = [store.get(run_id) for run_id in run_ids]
        differing = run_table.differing_settings(runs)
    except (NoSuchRun, StoreError) as error:
        return feedback.show_errors(error)
    summaries = [service.run_summary(store, run) for run in runs]
    rows = [run_table.run_row(store, run) for run in runs]
    html = view(list(map(Compared, rows, summaries)), differing)
    if len(runs) != 2:
        return html + feedback.note(
            gettext("Choose two runs alone to see whether their difference can be chance.")
        )
    try:
        first, second = map(report.evaluate_run, runs, summaries)
    except StoreError:
        return html
    return html + evaluation_view.versus(first, second, report.compare_runs(first, second))


def view(runs: Sequence[Compared], differing: dict[str, list[Any]]) -> Markup:
    """The curves, the results and the settings that differ.

    Args:
        differing: hyperparameter -> its value in each run.
    """
    swatch = macro("macros.html", "swatch")
    prepared = [run.summary.prepared for run in runs]
    comparable = len({pairs.fingerprint if pairs else "" for pairs in prepared}) == 1
    scores = {"f1": [run.row.f1 for run in runs], "accuracy": [run.row.accuracy for run in runs]}
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
        best={name: _best(values) if comparable else None for name, values in scores.items()},
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
    epoch = epochs.pop() if len(epochs) == 1 else 0
    empty = gettext("None of these runs has come so far.")
    return charts.chart(title, lines, last, empty, epoch=epoch)


def _best(scores: Sequence[float | None]) -> float | None:
    measured = [score for score in scores if score is not None]
    return max(measured) if len(measured) > 1 else None


def _setting(name: str, value: Any, row: RunRow) -> str:
    """A cell; an upload by what its files are called, and enough of its name to tell two apart."""
    if name == "dataset" and is_upload(str(value)):
        return f"{row.dataset} ({str(value).removeprefix(UPLOAD_PREFIX)[:6]})"
    return str(value)
