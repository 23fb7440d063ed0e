"""Models to ask or to publish: the choice of a run with a model, and the loaded models."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

import gradio as gr
from markupsafe import Markup

from finetune.data import checkpoints
from finetune.errors import FinetuneError
from finetune.evaluation import report
from finetune.jobs import service
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, ColumnNames
from finetune.ui.html import fixed, in_words, macro
from finetune.ui.i18n import gettext

if TYPE_CHECKING:
    from finetune.inference.model_cache import ModelCache
    from finetune.inference.predictor import Predictor


def empty() -> Markup:
    """Hint in place of a model's controls while there is no model."""
    return macro("model_chooser.html", "empty")()


def choices(
    store: RunStore, current: str | None, asked: str | None = None, ended: bool = False
) -> tuple[dict[str, Any], str | None]:
    """Return the update of a dropdown of the runs with a model, and the run it selects: the one
    `asked` for by an address, else `current`, else the newest. An unchanged selection is not sent,
    since the person may choose another meanwhile. With `ended`, a run that still trains is offered
    but not selected by default.

    Raises:
        NoSuchRun: if `asked` is no run.
    """
    wanted = store.get(asked).id if asked else current
    options, settled = [], []
    for run in store.runs():
        if run.has_model():
            summary = run.state()
            if summary.status in ENDED:
                settled.append(run.id)
            metric, score = summary.headline.name, gettext("not scored")
            kept = report.kept_metrics(run, summary).get(metric)
            if kept is not None:
                score = f"{in_words(metric, summary.classes)} {fixed(kept)}"
            options.append((f"{run.title()} \u00b7 {score}", run.id))
    ids = [run_id for _, run_id in options]
    value = wanted if wanted in ids else next(iter(settled if ended else ids), None)
    changed = {} if value == current else {"value": value}
    return gr.update(choices=options, visible=bool(ids), **changed), value


def newest(store: RunStore) -> str | None:
    """The newest run with a model, the default of `choices`; else None."""
    return next((run.id for run in store.runs() if run.has_model()), None)


def columns(store: RunStore, run_id: str | None) -> ColumnNames:
    """The columns a visitor's run was trained on; default names if it is gone."""
    with suppress(FinetuneError):
        return store.get(run_id).state().columns
    return ColumnNames()


class Models:
    """Loaded models of all runs of a store, shared by the tab and the endpoints."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self._cache: ModelCache | None = None

    def using(self, store: RunStore, run_id: str | None) -> AbstractContextManager[Predictor]:
        """Lend the model of a run in the visitor's `store` to a `with` block."""
        import torch

        from finetune.inference.model_cache import ModelCache

        if self._cache is None:
            self._cache = ModelCache()
        # A training has the accelerator to itself.
        training = torch.cuda.is_available() and service.active_run(self.store.everyone)
        device = "cpu" if training else ""
        run = store.get(run_id)
        paired = run.state().paired
        return self._cache.using(run.best, checkpoints.length_of(run.folder), paired, device)
