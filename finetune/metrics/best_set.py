"""The models that may be the best of several, judged on the same examples.

Arrays in, numbers out: models are rows, whatever made their answers.
"""

from __future__ import annotations

import numpy as np

from finetune.metrics import selection
from finetune.metrics.classification import Floats, Truths
from finetune.metrics.selection import Statistic


def bootstrap_scores(statistic: Statistic) -> tuple[Floats, Floats]:
    """Score all models on the examples, shape (models,), and on the same bootstrap samples of them,
    shape (models, samples)."""
    once = np.ones((statistic.terms.shape[1], 1), np.float32)
    samples = [statistic.of(weights) for weights in selection.resampled_weights(statistic)]
    return statistic.of(once)[:, 0], np.concatenate(samples, axis=1)


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
