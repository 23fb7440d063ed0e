"""Bundles: the runs of one click, as a cross-validation, seeds, a grid or a search's trials.

Their names share the first part: `search 2 · trial 3`, `tickets-3 · fold 2`. Wherever a model is
chosen, a bundle is one entry: the run whose model stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from finetune.errors import StoreError
from finetune.metrics import catalog
from finetune.runs.run import Run
from finetune.tasks.registry import deciding_metric


@dataclass(frozen=True)
class Bundle:
    """The runs of one click, or a single run."""

    name: str
    runs: list[Run] = field(default_factory=list)  # the newest first

    def model(self) -> Run | None:
        """Return the run whose model stands for all: of a cross-validation the one on all rows, of
        a search the best trial, of other bundles the best run. None if there is none yet."""
        kept = [run for run in self.runs if run.has_model() and not _is_fold(run)]
        if not self.runs[0].bundle() or any(map(_is_fold, self.runs)):
            return next(iter(kept), None)
        trials = [run for run in kept if run.about().study]
        return max(trials or kept, key=_score, default=None)


def bundles(runs: Iterable[Run]) -> list[Bundle]:
    """Return the bundles of some runs, in the order of their first ones."""
    found: dict[tuple[str, str], Bundle] = {}
    for run in runs:
        name = run.bundle()
        key = (run.owner, name) if name else (run.id, "")
        found.setdefault(key, Bundle(name or run.title())).runs.append(run)
    return [*found.values()]


def _is_fold(run: Run) -> bool:
    """True if the run holds out a fold. A configuration that cannot be read says nothing."""
    try:
        return run.config().fold > 0
    except StoreError:
        return False


def _score(run: Run) -> float:
    """The score by which the run has chosen its best model, the greater the better; below all
    others if it has not finished."""
    summary = run.state()
    if summary.status != "finished" or summary.best is None:
        return float("-inf")
    name = deciding_metric(run.config(), summary.task)
    return catalog.find(name).rank(summary.best.metrics.get(name, float("nan")))
