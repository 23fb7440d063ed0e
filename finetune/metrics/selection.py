"""What is picked or fitted on some examples, scored on others.

The picking bias is the part of a score that comes from picking the best of several models on the
same examples. Cross-fitting scores what is fitted to some examples on the others. Arrays in,
numbers out: models are rows of predictions or of losses, whatever made them.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics import classification, intervals
from finetune.metrics.catalog import F1, OF_LABELS, Metric
from finetune.metrics.classification import Floats, Indices, Probabilities, Truths, ratio
from finetune.metrics.intervals import Interval
from finetune.metrics.shared_rows import SharedRows

_RESAMPLES = 2000
_FEWEST = 100  # resamples, however many predictions there are
_BUDGET = 300_000_000  # predictions x resamples
_AT_ONCE = 4_000_000  # examples x resamples, 32 MB
FOLDS = 10
WORTHWHILE = 0.01  # of F1, for another threshold to be recommended


@dataclass(frozen=True)
class Statistic:
    """A score of several models on the same examples."""

    # Weights of shape (examples, samples) -> scores of shape (models, samples), more being better.
    of: Callable[[NDArray[Any]], Floats]
    examples: int
    work: int  # numbers that are read for one sample


def statistics(
    metrics: Iterable[Metric], truth: NDArray[Any], answers: NDArray[Any],
    positive: int | None = None,
) -> dict[str, Statistic]:  # fmt: skip
    """Metrics for which answers suffice, by name.

    Args:
        truth: of shape (examples, ...).
        answers: of shape (models, examples, ...).
        positive: as `intervals.score_intervals` takes it.
    """

    def scores(metric: Metric, weights: NDArray[Any]) -> Floats:
        each = [metric.measure(own, truth, weights, positive) for own in answers]
        return np.stack(each) if metric.greater_is_better else -np.stack(each)

    return {
        metric.name: Statistic(
            partial(scores, metric), len(truth), (8 if metric.of_examples else 2) * answers.size
        )
        for metric in metrics
        if metric.of_answers
    }


def loss(losses: Floats) -> Statistic:
    """The mean loss, negated so that more is better; `losses` of shape (models, examples)."""
    return Statistic(
        lambda weights: -ratio(losses @ weights, weights.sum(axis=0)), losses.shape[1], losses.size
    )


def picking_bias(
    picked_by: Statistic, reported: Mapping[str, Statistic], kept: int, worth: float | None = None
) -> dict[str, float]:
    """Estimate how much lower each reported score of the model `kept` will be on new examples,
    because it was picked as the best by `picked_by` on these; 0 if picking adds nothing.

    In each bootstrap sample of the examples the best model is picked, and scored on the examples
    outside of the sample. The bias is the score of the model `kept` there minus that score.

    Source: Tsamardinos, Greasidou and Borboudakis 2018, Bootstrapping the out-of-sample
    predictions for efficient and accurate cross-validation (BBC-CV),
    https://doi.org/10.1007/s10994-018-5714-4. The difference from the model kept has the same
    expectation as their estimate, and is exactly 0 if all samples pick it. `worth`: how many
    independent examples these are worth; all by default.
    """
    if picked_by.examples < 2:
        return dict.fromkeys(reported, 0.0)
    added: dict[str, list[Floats]] = {name: [] for name in reported}
    for weights in resampled_weights(worth, picked_by, *reported.values()):
        columns = np.arange(weights.shape[1])
        chosen, outside = picked_by.of(weights).argmax(axis=0), (weights == 0).astype(np.float32)
        for name, statistic in reported.items():
            scores = statistic.of(outside)
            added[name].append(scores[kept] - scores[chosen, columns])
    return {name: max(0.0, float(np.concatenate(each).mean())) for name, each in added.items()}


def resampled_weights(worth: float | None, *statistics: Statistic) -> Iterator[NDArray[np.float32]]:
    """Yield how often bootstrap samples draw each example, in arrays of shape (examples, samples):
    2,000 samples together, or fewer if a statistic takes much work. As many are drawn as the
    examples are worth."""
    examples, work = statistics[0].examples, max(each.work for each in statistics)
    resamples = min(_RESAMPLES, max(_FEWEST, _BUDGET // max(1, work)))
    most = examples if worth is None else max(1, round(worth))
    rng, at_once = np.random.default_rng(0), max(1, _AT_ONCE // examples)
    for first in range(0, resamples, at_once):
        columns = np.arange(min(at_once, resamples - first))
        drawn = rng.integers(0, examples, (most, len(columns)))
        drawn *= len(columns)
        drawn += columns
        counts = np.bincount(drawn.ravel(), minlength=examples * len(columns))
        yield counts.reshape(examples, -1).astype(np.float32)


def lowered(score: Interval, bias: float) -> Interval:
    """Subtract the picking bias from a score, or from a difference of two.

    The interval spans those with all of the bias and with none: models that really differ owe less
    to picking than the bootstrap finds, so that an interval that only moved would miss too much.
    """
    ends = [score.low, score.low - bias, score.high, score.high - bias]
    return replace(score, value=score.value - bias, low=min(ends), high=max(ends))


def bootstrap_scores(statistic: Statistic, worth: float | None = None) -> tuple[Floats, Floats]:
    """Score all models on the examples, shape (models,), and on the same bootstrap samples of them,
    shape (models, samples). `worth`: as above."""
    once = np.ones((statistic.examples, 1), np.float32)
    samples = [statistic.of(weights) for weights in resampled_weights(worth, statistic)]
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


@dataclass(frozen=True)
class CrossFittedThresholds:
    """The threshold of each label with its best F1, and their expected effect on new examples."""

    thresholds: tuple[float, ...]  # fitted to all examples; a half for labels with too few
    f1: Interval  # micro F1, each fold at the thresholds fitted to the other folds
    gain: Interval  # of that over a half for every label, or the most probable class of two

    @property
    def threshold(self) -> float:
        """The only one, if it is that of the positive class of two."""
        return self.thresholds[0]

    @property
    def is_recommended(self) -> bool:
        """True if the gain is worth a choice and is not due to chance."""
        return self.gain.value >= WORTHWHILE and self.gain.low > 0


def assign_folds(strata: Indices | Truths, folds: int, groups: Indices | None = None) -> Indices:
    """Put examples into folds of about equal size, each with its share of each stratum.

    The strata fix the random order: the same examples get the same folds on every machine. Examples
    of a group share a fold; by default each is its own. Returns the fold of each example, from 0.
    """
    strata = np.asarray(strata, np.int64)
    groups = np.arange(len(strata)) if groups is None else groups
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    order = np.random.default_rng(zlib.crc32(strata.tobytes())).permutation(len(first))
    order = order[np.argsort(strata[first][order], kind="stable")]
    fold_of_group = np.empty(len(first), np.int64)
    fold_of_group[order] = np.arange(len(first)) % folds
    return fold_of_group[group]


def cross_fit_thresholds(
    scores: Probabilities, truth: Truths, shared: SharedRows | None = None
) -> CrossFittedThresholds | None:
    """Fit the threshold of the best F1 for each label, and estimate their F1 on new examples. None
    if no label has ten examples, or groups, with it and ten without it.

    The best F1 on the examples that a threshold was fitted to is too good. Here each tenth of the
    examples is answered at the thresholds fitted to the other nine (Stone 1974,
    https://doi.org/10.1111/j.2517-6161.1974.tb00994.x).

    Args:
        scores: probabilities of shape (examples, labels); of two classes those of the positive
            one, shape (examples, 1).
        truth: which labels the examples have, of the same shape.
        shared: which examples share a sentence; linked ones are never on both sides of a fold.
    """
    exact: Floats = np.asarray(scores, np.float64)
    groups = np.arange(len(exact)) if shared is None else shared.fold_groups(FOLDS)
    labels = [
        label
        for label, own in enumerate(truth.T)
        if min(len(np.unique(groups[own])), len(np.unique(groups[~own]))) >= FOLDS
    ]
    if not labels:
        return None
    fold_of = assign_folds(np.unique(truth, axis=0, return_inverse=True)[1], FOLDS, groups)

    def fit(rows: Truths) -> Floats:
        levels = np.full(truth.shape[1], 0.5)
        for label in labels:
            levels[label] = classification.best_threshold(exact[rows, label], truth[rows, label])
        return levels

    answers = np.empty(truth.shape, bool)
    for fold in range(FOLDS):
        own = fold_of == fold
        answers[own] = exact[own] >= fit(~own)
    one = truth.shape[1] == 1
    plain = exact > 0.5 if one else exact >= 0.5
    fitted, half, true = (
        (each[:, 0] if one else each).astype(np.int64) for each in (answers, plain, truth)
    )
    metric, positive = (F1, 1) if one else (OF_LABELS[0], None)
    return CrossFittedThresholds(
        tuple(fit(np.ones(len(exact), bool)).tolist()),
        *intervals.score_intervals(fitted, true, [metric], positive, shared).values(),
        *intervals.difference_intervals(fitted, half, true, [metric], positive, shared).values(),
    )
