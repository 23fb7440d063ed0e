"""Models to ask or to publish: the choice among runs that have one, and those that are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from finetune import owners
from finetune.data import catalog, checkpoints, hub_access
from finetune.errors import ModelError
from finetune.jobs import service
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary
from finetune.ui import tab_links
from finetune.ui.i18n import gettext

if TYPE_CHECKING:
    from finetune.inference.model_cache import ModelCache
    from finetune.inference.predictor import Predictor


def empty() -> str:
    """What stands in the place of a model's controls while there is no model."""
    text = gettext(
        "There is no tuned model yet. Open the <b>Train</b> tab and press <b>Train</b>; the model "
        "appears here when the run has ended."
    )
    return f'<p class="ft-note">{text}</p>' + tab_links.link_row(
        tab_links.tab_link("train", gettext("Open Train"))
    )


def choices(store: RunStore, chosen: str | None) -> tuple[Any, bool]:
    """A dropdown's update, the newest model chosen unless `chosen` still is one; and whether
    there is any. Where several were scored on the same pairs, the best says so."""
    # Of a run that goes on too: its best so far.
    known = [(run, service.run_summary(store, run)) for run in store.runs() if run.has_model()]
    best = _best([summary for _, summary in known])
    found = []
    for run, summary in known:
        score = gettext("not scored")
        if summary.best:
            score = f"F1 {summary.best.metrics.get('f1', 0):.3f}"
            if best.get(_pairs(summary)) is summary:
                score += f" ({gettext('best on its pairs')})"
        found.append((f"{run.title()} \u00b7 {score} \u00b7 {run.id[:15]}", run.id))
    ids = [run_id for _, run_id in found]
    value = chosen if chosen in ids else (ids[0] if ids else None)
    return gr.update(choices=found, value=value, visible=bool(ids)), bool(ids)


def _best(summaries: Sequence[RunSummary]) -> dict[str, RunSummary | None]:
    """Pairs -> the run with the greatest F1 on them; None where no other was scored on them, or
    another has as much."""
    scored: dict[str, list[RunSummary]] = {}
    for one in summaries:
        if one.best and _pairs(one):
            scored.setdefault(_pairs(one), []).append(one)
    found: dict[str, RunSummary | None] = {}
    for pairs, ones in scored.items():
        f1 = [one.best.metrics.get("f1", 0.0) if one.best else 0.0 for one in ones]
        alone = len(ones) > 1 and f1.count(max(f1)) == 1
        found[pairs] = ones[f1.index(max(f1))] if alone else None
    return found


def _pairs(summary: RunSummary) -> str:
    return summary.prepared.fingerprint if summary.prepared else ""


@dataclass
class Models:
    """Loaded models, shared by the tab and the endpoints.

    Args:
        store: where runs are.
    """

    store: RunStore
    _shelf: ModelCache | None = None

    def using(self, store: RunStore, name: str | None) -> AbstractContextManager[Predictor]:
        """The model of a run, or of the Hub, for the time of a `with`.

        Args:
            store: as the one who asks sees it.
            name: a run's id, or owner/name.

        Raises:
            NoSuchRun: when it is neither.
            ModelError: when it cannot be loaded, or nobody known asks for one of the Hub.
        """
        from finetune.inference import model_cache

        if self._shelf is None:
            self._shelf = model_cache.ModelCache()
        device = "cpu" if self._busy() else ""
        if catalog.is_hub_id(name):
            if not store.visitor.may_start:
                raise ModelError(*owners.NOBODY)
            hub_access.count_checkpoint(store.root, store.visitor.name, str(name))
            folder, max_length = model_cache.fetch_hub_model(
                str(name), anonymous=owners.is_shared()
            )
            return self._shelf.using(folder, max_length, None, device)
        run = store.get(name)
        paired = service.run_summary(store, run).paired
        return self._shelf.using(run.best, checkpoints.length_of(run.folder), paired, device)

    def _busy(self) -> bool:
        """Whether a training has the accelerator, which must not be shared with it."""
        import torch

        return torch.cuda.is_available() and service.active_run(self.store.everyone) is not None
