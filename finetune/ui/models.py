"""The choice among runs that have a model: what Predict and Publish begin with."""

from __future__ import annotations

from typing import Any

import gradio as gr

from finetune import jobs
from finetune.store import RunStore
from finetune.summary import ENDED

EMPTY = (
    '<p class="ft-note">There is no tuned model yet. Open the <b>Train</b> tab and press '
    "<b>Train</b>; the model appears here when the run has ended.</p>"
)


def choices(store: RunStore, chosen: str | None) -> tuple[Any, bool]:
    """A dropdown's update, the newest model chosen unless `chosen` still is one; and whether
    there is any."""
    found = []
    for run in store.runs():
        summary = jobs.summary(store, run)
        if summary.status in ENDED and run.has_model():
            score = f"F1 {summary.best.metrics.get('f1', 0):.3f}" if summary.best else "not scored"
            found.append((f"{run.title()} \u00b7 {score} \u00b7 {run.id[:15]}", run.id))
    ids = [run_id for _, run_id in found]
    value = chosen if chosen in ids else (ids[0] if ids else None)
    return gr.update(choices=found, value=value, visible=bool(ids)), bool(ids)
