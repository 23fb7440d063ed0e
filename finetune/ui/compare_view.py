"""Two or more runs beside each other, as HTML: curves overlaid, what differs, what they reached."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from finetune.config import UPLOAD_PREFIX, is_upload
from finetune.jobs.run_table import RunRow
from finetune.runs.summary import RunSummary
from finetune.ui import charts, feedback
from finetune.ui.charts import Series
from finetune.ui.i18n import gettext
from finetune.ui.run_table_view import NONE, when
from finetune.ui.run_view import duration

MOST = 8  # colours and dashes that can be told apart


@dataclass(frozen=True)
class Compared:
    """One of the runs.

    Args:
        row: its figures.
        summary: its curves.
    """

    row: RunRow
    summary: RunSummary


def view(runs: Sequence[Compared], differing: dict[str, list[Any]]) -> str:
    """The whole comparison.

    Args:
        differing: hyperparameter -> its value in each run.
    """
    pieces = [
        _key(runs),
        '<div class="ft-two">',
        _chart(runs, gettext("Training loss, smoothed"), ""),
        _chart(runs, gettext("Validation F1"), "f1"),
        _chart(runs, gettext("Validation accuracy"), "accuracy"),
        _chart(runs, gettext("Validation loss"), "loss"),
        "</div>",
        _metrics(runs),
        _differences(runs, differing),
    ]
    return "".join(pieces)


def _key(runs: Sequence[Compared]) -> str:
    names = "".join(
        f"<li>{charts.swatch(f'run{n}')}{_letter(n)} {html.escape(one.row.name)}"
        f"<small>{html.escape(one.row.dataset)}, {when(one.row.created)}</small></li>"
        for n, one in enumerate(runs)
    )
    return f'<ol class="ft-runs-key">{names}</ol>'


def _letter(n: int) -> str:
    return "ABCDEFGH"[n]


def _chart(runs: Sequence[Compared], title: str, metric: str) -> str:
    lines = []
    for n, one in enumerate(runs):
        if metric:
            points = [
                (float(p.step), p.metrics[metric])
                for p in charts.thinned(one.summary.validation)
                if p.metrics.get(metric) is not None
            ]
        else:
            thinned = charts.thinned(list(one.summary.train))
            points = [(float(p.step), p.loss) for p in thinned if p.loss is not None]
            if len(points) >= charts.SMOOTHED:
                points = charts.smoothed(points)
        lines.append(Series(_letter(n), f"run{n}", points, markers=bool(metric)))
    last = max((one.summary.total_steps for one in runs), default=0)
    epochs = {charts.steps_an_epoch(one.summary) for one in runs}
    return charts.chart(
        title, lines, last, gettext("None of these runs has come so far."),
        epoch=epochs.pop() if len(epochs) == 1 else 0,
        most=1.0 if metric in ("f1", "accuracy") else math.inf,
    )  # fmt: skip


def _metrics(runs: Sequence[Compared]) -> str:
    def score(value: float | None) -> str:
        return NONE if value is None else f"{value:.4f}"

    def best(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return max(known) if len(known) > 1 and same else None

    pairs = {one.summary.prepared.fingerprint if one.summary.prepared else "" for one in runs}
    same = len(pairs) == 1  # a score on other pairs is neither better nor worse

    f1, accuracy = [r.row.f1 for r in runs], [r.row.accuracy for r in runs]
    rates = [one.row.samples_per_second for one in runs]
    table = {
        gettext("status"): [html.escape(gettext(one.row.status)) for one in runs],
        gettext("F1, best model"): [_marked(score(v), v is not None and v == best(f1)) for v in f1],
        gettext("accuracy, best model"): [
            _marked(score(v), v is not None and v == best(accuracy)) for v in accuracy
        ],
        gettext("best epoch"): [
            NONE if r.row.best_epoch is None else f"{r.row.best_epoch:.2f}" for r in runs
        ],
        gettext("steps"): [
            gettext("{done:,} of {total:,}", done=one.summary.step, total=one.summary.total_steps)
            for one in runs
        ],
        gettext("duration"): [
            NONE if r.row.seconds is None else duration(r.row.seconds) for r in runs
        ],
        gettext("samples/s"): [NONE if rate is None else f"{rate:,.0f}" for rate in rates],
    }
    note = ""
    if not same:
        note = feedback.note(
            gettext("They were scored on different pairs, so none is marked as the best.")
        )
    return _table(gettext("Results"), runs, table) + note


def _marked(text: str, is_best: bool) -> str:
    return f"<b>{text} \u2605</b>" if is_best else text


def _differences(runs: Sequence[Compared], differing: dict[str, list[Any]]) -> str:
    if not differing:
        return feedback.note(gettext("Their hyperparameters are the same."))
    table = {
        name: [_value(name, value, one.row) for value, one in zip(values, runs, strict=True)]
        for name, values in differing.items()
    }
    return _table(gettext("Hyperparameters that differ"), runs, table)


def _value(name: str, value: Any, row: RunRow) -> str:
    """A cell; an upload by what its files are called, and enough of its name to tell two apart."""
    if name == "dataset" and is_upload(str(value)):
        return html.escape(f"{row.dataset} ({str(value).removeprefix(UPLOAD_PREFIX)[:6]})")
    return html.escape(str(value)) or html.escape(gettext("(empty)"))


def _table(title: str, runs: Sequence[Compared], rows: dict[str, list[str]]) -> str:
    """A table of cells that are HTML already, a column a run."""
    heads = "".join(
        f'<th scope="col">{charts.swatch(f"run{n}")}{_letter(n)}</th>' for n in range(len(runs))
    )
    lines = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th>'
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + "</tr>"
        for name, cells in rows.items()
    )
    return (
        f'<h2 class="ft-h">{html.escape(title)}</h2><div class="ft-rows"><table><thead><tr>'
        f"<th></th>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )
