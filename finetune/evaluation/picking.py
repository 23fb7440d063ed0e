"""Expected scores of a kept model on new pairs. The model was picked as the best of several
evaluations on the same pairs, which makes its score there too good."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from finetune.errors import StoreError
from finetune.evaluation import saved_predictions
from finetune.metrics import catalog, selection
from finetune.metrics.catalog import LOSS, Metric
from finetune.metrics.classification import Floats
from finetune.metrics.intervals import Interval
from finetune.metrics.shared_rows import rows_worth
from finetune.runs.run import Run
from finetune.tasks import comparison
from finetune.tasks.base import Target, Targets
from finetune.tasks.registry import deciding_metric, measured, task_of

_MOST_PREDICTIONS = 4_000_000  # read; if there are more, of the best evaluations


class Candidate(NamedTuple):
    """An evaluation whose model could have been kept."""

    folder: Path  # of its run
    step: int
    score: float  # by which it is picked; more is better

    def read(self, target: Target) -> saved_predictions.SavedLogits:
        return saved_predictions.read_logits(Run(self.folder), self.step, target)


@dataclass(frozen=True)
class Picking:
    """Selection bias in the scores of a kept model."""

    candidates: int  # evaluations that it was picked among
    bias: Mapping[str, float]  # score -> what is added to it; below 0 for a loss

    def expected(self, scores: Mapping[str, float]) -> dict[str, float]:
        """Return the scores expected on new pairs, if different after rounding."""
        lower = {
            name: max(score - self.bias.get(name, 0.0), catalog.find(name).range[0])
            for name, score in scores.items()
        }
        return {
            name: value for name, value in lower.items() if f"{value:.3f}" != f"{scores[name]:.3f}"
        }

    def expected_intervals(self, scores: Mapping[str, Interval]) -> dict[str, Interval]:
        """Return the same scores with their intervals."""
        changed = self.expected({name: score.value for name, score in scores.items()})
        found = {name: selection.lowered(scores[name], self.bias[name]) for name in changed}
        return {name: score.within(*catalog.find(name).range) for name, score in found.items()}


def run_picking(run: Run, others: Iterable[Run] = ()) -> Picking | None:
    """Return the selection bias of a run's kept model. None unless it was picked among several
    evaluations whose logits are saved. `others`: runs that it was picked among if its model is the
    best of all, such as the trials of a search."""
    summary, own = run.state(), run_candidates(run)
    best, prepared = summary.best, summary.prepared
    if best is None or prepared is None:
        return None
    metric = deciding_metric(run.config(), summary.task)
    rest = [each for other in others if other.id != run.id for each in run_candidates(other)]
    top = max((each.score for each in own), default=0.0)
    candidates = own + rest if all(each.score <= top for each in rest) else own
    kept = [each for each in own if each.step == best.step]
    if not kept or len(candidates) < 2:
        return None
    metrics = tuple(measured(run.config(), prepared.target))
    runs = map(Run, dict.fromkeys(candidate.folder for candidate in candidates))
    version = tuple(map(saved_predictions.files_version, runs))
    bias = _bias(kept[0], tuple(candidates), metric, prepared.target, metrics, version)
    return Picking(len(candidates), bias) if bias else None


def run_candidates(run: Run) -> list[Candidate]:
    """Return the evaluations of a run in order, from its first step on. None of a cross-validation:
    there nothing is picked."""
    summary = run.state()
    if summary.prepared is None or run.config().folds:
        return []
    metric = deciding_metric(run.config(), summary.task)
    rank = catalog.find(metric).rank
    return [
        Candidate(run.folder, scored.step, rank(scored.metrics[metric]))
        for scored in summary.validation
        if metric in scored.metrics
    ]


def difference(first: Picking | None, second: Picking | None) -> dict[str, float]:
    """Return by how much more the selection bias raises a first model's scores than a second's."""
    added, other = (picked.bias if picked else {} for picked in (first, second))
    return {name: added.get(name, 0.0) - other.get(name, 0.0) for name in {**added, **other}}


@lru_cache(maxsize=32)
def _bias(
    kept: Candidate,
    candidates: tuple[Candidate, ...],
    metric: str,
    target: Target,
    metrics: tuple[Metric, ...],
    version: object,  # of the files, for the cache
) -> dict[str, float]:
    """Return the selection bias. Empty if fewer than two candidates can be read, or answers do not
    suffice for the metric."""
    sampled = [found for found in metrics if found.of_answers]
    if metric not in (LOSS.name, *(found.name for found in sampled)):
        return {}
    with contextlib.suppress(StoreError):
        own = kept.read(target)
        most = max(2, _MOST_PREDICTIONS // max(1, len(own.labels)))
        leading = {kept, *sorted(candidates, key=lambda candidate: -candidate.score)[:most]}
        answers: list[Targets] = []
        losses: list[Floats] = []
        place = 0
        for candidate in [each for each in candidates if each in leading]:
            with contextlib.suppress(StoreError):
                read = own if candidate == kept else candidate.read(target)
                if np.array_equal(read.labels, own.labels):  # otherwise they are of other pairs
                    place = len(answers) if candidate == kept else place
                    answers.append(task_of(target).plain_answers(read.logits))
                    if metric == LOSS.name:
                        losses.append(task_of(target).losses(read.logits, read.labels))
        if len(answers) > 1:
            truth, each = own.labels, np.stack(answers)
            statistics = selection.statistics(sampled, truth, each, target.meant)
            if losses:
                statistics[LOSS.name] = selection.loss(np.stack(losses))
            shared = None  # unknown if their texts were not kept
            with contextlib.suppress(StoreError):
                examples = saved_predictions.read_examples(Run(kept.folder))
                shared = saved_predictions.shared_rows(examples)
            worth = rows_worth(comparison.misses(task_of(target), each[place], truth), shared)
            bias = selection.picking_bias(statistics[metric], statistics, place, worth)
            return {name: catalog.find(name).rank(added) for name, added in bias.items()}
    return {}
