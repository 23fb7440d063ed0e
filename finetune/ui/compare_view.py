"""Two or more runs beside each other: curves overlaid, what differs, what they reached."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from finetune.errors import NoSuchRun, StoreError
from finetune.evaluation import report
from finetune.jobs import run_table, service
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary
from finetune.ui import charts, evaluation_view, feedback
from finetune.ui.charts import Series
from finetune.ui.html import macro, render
from finetune.ui.i18n import gettext
from finetune.ui.run_view import duration, when

_LETTERS = "ABCDEFGH"


def comparison(store: RunStore, run_ids: Sequence[str]) -> Markup:
    """Several runs beside each other; of two also what their saved logits say of the difference."""
    try:
        runs = [store.get(run_id) for run_id in run_ids]
        differing = run_table.differing_settings(runs)
    except (NoSuchRun, StoreError) as error:
        return feedback.show_errors(error)
    summaries = [service.run_summary(store, run) for run in runs]
    rows = [run_table.run_row(store, run) for run in runs]
    if "dataset" in differing:  # a person's files by what they are called
        differing["dataset"] = [row.dataset for row in rows]
    fingerprints = {summary.prepared and summary.prepared.fingerprint for summary in summaries}
    swatch = macro("macros.html", "swatch")
    html = render(
        "compare.html",
        runs=rows,
        summaries=summaries,
        names=[swatch(f"run{n}") + _LETTERS[n] for n in range(len(runs))],
        charts=[
            _chart(summaries, gettext("Training loss, smoothed"), ""),
            _chart(summaries, gettext("Validation F1"), "f1"),
            _chart(summaries, gettext("Validation accuracy"), "accuracy"),
            _chart(summaries, gettext("Validation loss"), "loss"),
        ],
        comparable=len(fingerprints) == 1,
        differing=differing,
        when=when,
        duration=duration,
    )
    if len(runs) != 2:
        return html + feedback.note(
            gettext("Choose two runs alone to see whether their difference can be chance.")
        )
    try:
        first, second = map(report.evaluate_run, runs, summaries)
    except StoreError:
        return html
    return html + evaluation_view.versus(first, second, report.compare_runs(first, second))


def _chart(summaries: Sequence[RunSummary], title: str, metric: str) -> Markup:
    """One metric of all runs; the training loss where `metric` is empty."""
    lines = []
    for n, summary in enumerate(summaries):
        if metric:
            points = charts.metric_points(summary, metric)
        else:
            points = charts.loss_points(summary)
            if len(points) >= charts.SMOOTHED:
                points = charts.smoothed(points)
        lines.append(Series(_LETTERS[n], f"run{n}", points, markers=bool(metric)))
    last = max(summary.total_steps for summary in summaries)
    epochs = {charts.steps_per_epoch(summary) for summary in summaries}
    epoch = epochs.pop() if len(epochs) == 1 else 0
    empty = gettext("None of these runs has come so far.")
    return charts.chart(title, lines, last, empty, epoch=epoch)
