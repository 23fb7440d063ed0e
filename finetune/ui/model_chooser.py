"""Models to ask or to publish: the choice among runs that have one, and those that are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr
from markupsafe import Markup

from finetune import owners
from finetune.data import catalog, checkpoints, hub_access
from finetune.errors import ModelError
from finetune.jobs import service
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary
from finetune.ui.html import macro
from finetune.ui.i18n import gettext

if TYPE_CHECKING:
    from finetune.inference.model_cache import ModelCache
    from finetune.inference.predictor import Predictor


def empty() -> Markup:
    """What stands in the place of a model's controls while there is no model."""
    return macro("model_chooser.html", "empty")()


def choices(store: RunStore, chosen: str | None) -> dict[str, Any]:
    """A dropdown's update: visible if there is a model, the newest chosen unless `chosen` is one.

    Of a run that goes on, its best model so far. Where several were scored on the same pairs, the
    best says so.
    """
    runs = [run for run in store.runs() if run.has_model()]
    summaries = {run.id: service.run_summary(store, run) for run in runs}
    best = _best_on_their_pairs(summaries)
    unscored, leader = gettext("not scored"), gettext("best on its pairs")
    options = []
    for run in runs:
        evaluation = summaries[run.id].best
        score = f"F1 {evaluation.metrics.get('f1', 0):.3f}" if evaluation else unscored
        score += f" ({leader})" if run.id in best else ""
        options.append((f"{run.title()} \u00b7 {score} \u00b7 {run.id[:15]}", run.id))
    value = chosen if chosen in summaries else next(iter(summaries), None)
    return gr.update(choices=options, value=value, visible=bool(runs))


def _best_on_their_pairs(summaries: Mapping[str, RunSummary]) -> set[str]:
    """Ids of the runs with a greater F1 than all others that were scored on the same pairs."""
    scores: dict[str, dict[str, float]] = {}  # fingerprint of the pairs -> run -> F1
    for run_id, summary in summaries.items():
        if summary.best and summary.prepared and summary.prepared.fingerprint:
            f1 = summary.best.metrics.get("f1", 0.0)
            scores.setdefault(summary.prepared.fingerprint, {})[run_id] = f1
    best = set()
    for by_run in scores.values():
        leaders = [run_id for run_id, f1 in by_run.items() if f1 == max(by_run.values())]
        if len(by_run) > 1 and len(leaders) == 1:
            best |= {*leaders}
    return best


@dataclass
class Models:
    """Loaded models, shared by the tab and the endpoints.

    Args:
        store: where runs are.
    """

    store: RunStore
    _cache: ModelCache | None = None

    def using(self, store: RunStore, name: str | None) -> AbstractContextManager[Predictor]:
        """The model of a run, or of the Hub, for the time of a `with`.

        Args:
            store: as the one who asks sees it.
            name: a run's id, or owner/name.

        Raises:
            NoSuchRun: when it is neither.
            ModelError: when it cannot be loaded, or a visitor without an identity asks for one of
                the Hub.
        """
        import torch

        from finetune.inference import model_cache

        if self._cache is None:
            self._cache = model_cache.ModelCache()
        # A training has the accelerator to itself.
        training = torch.cuda.is_available() and service.active_run(self.store.everyone)
        device = "cpu" if training else ""
        if catalog.is_hub_id(name):
            if not store.visitor.may_start:
                raise ModelError(*owners.NOBODY)
            hub_access.count_checkpoint(store.root, store.visitor.name, str(name))
            folder, max_length = model_cache.fetch_hub_model(
                str(name), anonymous=owners.is_shared()
            )
            return self._cache.using(folder, max_length, None, device)
        run = store.get(name)
        paired = service.run_summary(store, run).paired
        return self._cache.using(run.best, checkpoints.length_of(run.folder), paired, device)
