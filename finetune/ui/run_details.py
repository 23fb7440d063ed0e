"""The configuration and the checkpoints of one run under Runs, as HTML."""

from __future__ import annotations

import contextlib
from pathlib import Path

from markupsafe import Markup

from finetune import config
from finetune.config import RunConfig
from finetune.errors import StoreError
from finetune.runs.run import Run
from finetune.runs.summary import ENDED, RunSummary
from finetune.ui import feedback
from finetune.ui.html import macro

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
    model = (summary.saved_step, _size(run.best)) if run.has_model() else (None, 0)
    resumable = [(int(path.stem.rpartition("-")[2]), _size(path)) for path in run.checkpoints()]
    return macro(_TEMPLATE, "checkpoints")(*model, resumable, summary.status in ENDED)


def _size(folder: Path) -> int:
    """Bytes of the files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # removed meanwhile
            total += path.stat().st_size
    return total
