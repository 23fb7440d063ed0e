"""The models that may be the best of several, judged on the same examples.

Arrays in, numbers out: models are rows, whatever made their answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics import selection
from finetune.metrics.catalog import Metric
from finetune.metrics.classification import Floats, Truths

_RESAMPLES = 2000
_FEWEST = 200  # resamples, however many answers there are
_BUDGET = 300_000_000  # answers x resamples
_AT_ONCE = 4_000_000  # examples x resamples, 32 MB

# How often each example counts, of shape (examples, resamples) -> the score of each model, of shape
# (models, resamples), of which more is better.
WeightedScores = Callable[[NDArray[Any]], Floats]


def weighted_scores(
    metric: Metric, truth: NDArray[Any], answers: NDArray[Any], classes: int, positive: int = 1
) -> WeightedScores:
    """Return the function that scores all models on weighted examples by one metric.

    Args:
        truth: classes, scores or labels, of shape (examples, ...).
        answers: of shape (models, examples, ...).
    """
    if metric.of_tally is not None:
        return selection.tallied([metric], truth, answers, classes, positive)[metric.name].of
    of, sign = metric.of_examples, 1 if metric.greater_is_better else -1
    if of is None:
        raise ValueError(f"{metric.name} needs more than answers")
    return lambda weights: sign * np.stack([of(each, truth, weights) for each in answers])


def bootstrap_scores(scores: WeightedScores, examples: int, models: int) -> tuple[Floats, Floats]:
    """Score all models on the examples, shape (models,), and on the same bootstrap resamples of
    them, shape (models, resamples)."""
    measured = scores(np.ones((examples, 1)))[:, 0]
    resamples = min(_RESAMPLES, max(_FEWEST, _BUDGET // max(1, examples * models)))
    rng, at_once = np.random.default_rng(0), max(1, _AT_ONCE // examples)
    parts = []
    for first in range(0, resamples, at_once):
        count = min(at_once, resamples - first)
        drawn = rng.multinomial(examples, np.full(examples, 1 / examples), count)
        parts.append(scores(np.ascontiguousarray(drawn.T, np.float32)))
    return measured, np.concatenate(parts, axis=1)


def best_set(
    measured: Floats, resampled: Floats, bias: Floats | float = 0.0, level: float = 0.95
) -> Truths:
    """Return which models are not shown to be worse than another one; the best is among them with
    a probability of `level`.

    Each model is compared with all others at once. It is left out if one of them leads by more
    standard errors than, in `level` of the resamples, any lead differs from the measured one. The
    differences are taken without their sign: with it, six equally good models on 60 to 200 examples
    would be kept in 93% of simulations only.

    Sources: Hsu 1996, Multiple Comparisons, chapter 4 (comparisons with the best); Romano and Wolf
    2005, Econometrica 73(4), 1237-1282 (the maximum of studentized differences, by the bootstrap).

    Args:
        measured, resampled: as `bootstrap_scores` returns them.
        bias: what being picked as the best of several evaluations has added to the score of each
            model, of shape (models,). A lead must hold with it and without.
    """
    added = np.broadcast_to(bias, measured.shape)
    kept = np.ones(len(measured), bool)
    for model in range(len(measured)):
        lead, leads = measured - measured[model], resampled - resampled[model]
        error = leads.std(axis=1)
        differs = error > 1e-12
        claimed = np.minimum(lead, lead - added + added[model])
        limit = np.full(len(measured), 1e-12)
        if differs.any():
            away = np.abs(leads - lead[:, None])[differs] / error[differs][:, None]
            limit[differs] = np.quantile(away.max(axis=0), level) * error[differs]
        kept[model] = not (claimed > limit).any()
    return kept
