"""What the Runs tab shows of one run beside its live view, and of several compared, as HTML."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from finetune import config
from finetune.config import RunConfig
from finetune.errors import NoSuchRun, StoreError
from finetune.evaluation import report
from finetune.jobs import run_table, service
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.ui import compare_view, evaluation_view, feedback, routes
from finetune.ui.compare_view import Compared
from finetune.ui.html import macro
from finetune.ui.i18n import gettext

_TEMPLATE = "run_details.html"


def configuration(run: Run) -> Markup:
    """Every hyperparameter of the run, or why they cannot be read."""
    try:
        values = run.config().to_dict()
    except StoreError as error:
        return feedback.show_errors(error)
    return macro(_TEMPLATE, "configuration")(values, RunConfig().to_dict(), config.knobs())


def checkpoints(run: Run, summary: RunSummary) -> Markup:
    """The saved model and the points to resume from, with their sizes."""
    has_model = run.has_model() and summary.saved_step is not None
    resumable = [(int(path.name.rpartition("-")[2]), _size(path)) for path in run.checkpoints()]
    return macro(_TEMPLATE, "checkpoints")(
        summary.saved_step if has_model else None,
        _size(run.best) if has_model else 0,
        resumable,
        summary.status in ENDED,
    )


def downloads(run: Run) -> Markup:
    """Links to the run's model, configuration and events."""
    links = [
        ("config.json", gettext("Configuration (JSON)")),
        ("events.csv", gettext("Events (CSV)")),
    ]
    if run.has_model():
        links.insert(0, ("model.zip", gettext("Best model (zip)")))
    html = Markup("").join(Markup(routes.download_link(run, *link)) for link in links)
    return Markup('<div class="ft-links">{}</div>').format(html)


def delete_question(run: Run) -> Markup:
    """Whether the run shall be deleted."""
    return macro(_TEMPLATE, "question")(run.title())


def comparison(store: RunStore, run_ids: Sequence[str]) -> Markup:
    """Several runs beside each other; of two also what their saved logits say of the difference."""
    try:
        runs = [store.get(run_id) for run_id in run_ids]
        differing = run_table.differing_settings(runs)
    except (NoSuchRun, StoreError) as error:
        return feedback.show_errors(error)
    compared = [
        Compared(run_table.run_row(store, run), service.run_summary(store, run)) for run in runs
    ]
    return Markup(compare_view.view(compared, differing)) + _difference(runs, compared)


def _difference(runs: Sequence[Run], compared: Sequence[Compared]) -> Markup:
    if len(runs) != 2:
        return feedback.note(
            gettext("Choose two runs alone to see whether their difference can be chance.")
        )
    try:
        first, second = (
            report.evaluate_run(run, of_run.summary)
            for run, of_run in zip(runs, compared, strict=True)
        )
    except StoreError:
        return Markup("")
    return Markup(evaluation_view.versus(first, second, report.compare_runs(first, second)))


def _size(folder: Path) -> int:
    """Bytes of the files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # removed meanwhile
            total += path.stat().st_size
    return total
