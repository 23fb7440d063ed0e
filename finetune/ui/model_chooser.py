"""Models to ask or to publish: the choice among runs that have one, and those that are loaded."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

import gradio as gr
from markupsafe import Markup

from finetune.data import checkpoints
from finetune.errors import FinetuneError
from finetune.evaluation import report
from finetune.jobs import service
from finetune.metrics.catalog import HEADLINE
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, ColumnNames
from finetune.ui.html import fixed, in_words, macro
from finetune.ui.i18n import gettext

if TYPE_CHECKING:
    from finetune.inference.model_cache import ModelCache
    from finetune.inference.predictor import Predictor


def empty() -> Markup:
    """What stands in the place of a model's controls while there is no model."""
    return macro("model_chooser.html", "empty")()


def choices(
    store: RunStore, current: str | None, asked: str | None = None, ended: bool = False
) -> tuple[dict[str, Any], str | None]:
    """A dropdown's update, and what it selects: of the runs with a model `current`, else the
    newest, or the one that an address has `asked` for. A selection that stays is not sent, for
    another may be chosen meanwhile. With `ended` a run that still trains is offered, and selected
    only by the person.

    Raises:
        NoSuchRun: when that is not there.
    """
    wanted = store.get(asked).id if asked else current
    options, settled = [], []
    for run in store.runs():
        if run.has_model():
            summary = run.state()
            if summary.status in ENDED:
                settled.append(run.id)
            metric, score = HEADLINE.name, gettext("not scored")
            kept = report.kept_metrics(run, summary).get(metric)
            if kept is not None:
                score = f"{in_words(metric, summary.classes)} {fixed(kept)}"
            options.append((f"{run.title()} \u00b7 {score} \u00b7 {run.id[:15]}", run.id))
    ids = [run_id for _, run_id in options]
    value = wanted if wanted in ids else next(iter(settled if ended else ids), None)
    changed = {} if value == current else {"value": value}
    return gr.update(choices=options, visible=bool(ids), **changed), value


def newest(store: RunStore) -> str | None:
    """The run that `choices` selects unasked; None where none has a model."""
    return next((run.id for run in store.runs() if run.has_model()), None)


def columns(store: RunStore, run_id: str | None) -> ColumnNames:
    """The columns that a run of the visitor's was trained on; ours where it is not there."""
    with suppress(FinetuneError):
        return store.get(run_id).state().columns
    return ColumnNames()


class Models:
    """Loaded models of all runs of a store, shared by the tab and the endpoints."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self._cache: ModelCache | None = None

    def using(self, store: RunStore, run_id: str | None) -> AbstractContextManager[Predictor]:
        """The model of a run of the visitor's `store`, for the time of a `with`."""
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
