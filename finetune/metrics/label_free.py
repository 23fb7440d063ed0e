"""What can be said of a model on a file without labels, or with a few, from counts of the file and
of a reference with labels: its accuracy, the shares of the classes, and whether anything has
changed.

The functions resample counts of cells, so that nothing else of a file must be kept, and their time
does not grow with the rows. `parts` are what the rows of the reference and those of the file are
worth, as parts of their numbers, if some share a sentence (`SharedRows.worth`).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.classification import Counts, Floats, Truths, ratio
from finetune.metrics.intervals import Interval, wilson_interval

CONFIDENCE_BINS = 128
MOST_CLASSES = 20  # whose shares are estimated
LEAST_ROWS, LEAST_RECALL = 10, 0.6  # of each class; below, what is estimated of it is chance
_RESAMPLES = 2000
_PERMUTATIONS = 1999
_CLASSIFIERS = 500  # permutations, each of which is another classifier
_FOLDS = 5
Parts = tuple[float, float]


class TwoSample(NamedTuple):
    """A test of "both samples are of one distribution"."""

    distance: float
    p: float


def confidence_bins(confidence: NDArray[Any]) -> NDArray[np.int64]:
    """Return the bin of each confidence, from 0 to 1; shape (rows,). A bin holds an eighth of
    -log(1 - confidence), so that the many near 1 are told apart."""
    doubt = np.maximum(1 - np.asarray(confidence, np.float64), 1e-9)
    return np.asarray(np.minimum(-8 * np.log(doubt), CONFIDENCE_BINS - 1).clip(0), np.int64)


def estimated_accuracy(
    reference: Counts, file: Counts, parts: Parts = (1.0, 1.0)
) -> tuple[Interval, Interval]:
    """Estimate the accuracy on a file by average thresholded confidence (ATC), and its difference
    from the accuracy on the reference.

    The estimate is the share of the file above the confidence that as many rows of the reference
    exceed as are right. The intervals hold for a file like the reference; for another one the
    estimate is a rule of thumb, which came closest on many real shifts. A bootstrap of both samples
    gives the interval of the difference; that of the estimate adds the squares of its ends to those
    of the reference's Wilson interval.

    Args:
        reference: rows that are wrong and right by bin of confidence, shape (2, bins).
        file: rows by bin of confidence, shape (bins,).

    Source: Garg et al. 2022, Leveraging unlabeled data to predict out-of-distribution performance,
    https://arxiv.org/abs/2201.04234.
    """
    rng = np.random.default_rng(0)
    n, m = (part * float(rows.sum()) for part, rows in zip(parts, (reference, file), strict=True))
    # One wrong row more, of any confidence: otherwise a few errors, or none, would seem certain.
    cells = reference + np.outer((1, 0), reference.sum(axis=0) / n)
    drawn = rng.multinomial(round(n), (cells / cells.sum()).ravel(), _RESAMPLES)
    files = rng.multinomial(round(m), file / file.sum(), _RESAMPLES)
    changes = _change_of_share(drawn.T.reshape(2, -1, _RESAMPLES), files.T)
    change = float(_change_of_share(reference[..., None], file[:, None])[0])
    low, high = np.quantile(changes, (0.025, 0.975))
    low, high = min(float(low), change), max(float(high), change)
    known = wilson_interval(parts[0] * float(reference[1].sum()), n)
    value = known.value + change
    below = math.hypot(known.value - known.low, change - low)
    above = math.hypot(known.high - known.value, high - change)
    estimate = Interval(value, max(0.0, value - below), min(1.0, value + above), _RESAMPLES)
    return estimate, Interval(change, low, high, _RESAMPLES)


def _change_of_share(reference: Counts, file: Counts) -> Floats:
    """Return the file's share above the threshold minus the reference's, which is its accuracy. A
    bin at the threshold counts in part. Arguments as above, with a last axis of samples."""
    rows = reference.sum(axis=0)
    shares, accuracy = ratio(rows, rows.sum(axis=0)), ratio(reference[1].sum(axis=0), rows.sum(0))
    missing = accuracy - (shares[::-1].cumsum(axis=0)[::-1] - shares)  # above the bin: too few
    counted = np.where(shares > 0, missing / np.where(shares > 0, shares, 1), missing > 1e-12)
    return np.asarray((ratio(file, file.sum(axis=0)) * counted.clip(0, 1)).sum(axis=0) - accuracy)


def estimated_shares(
    reference: Counts, file: Counts, parts: Parts = (1.0, 1.0)
) -> list[Interval] | None:
    """Estimate the share of each class in a file from the model's answers (BBSE), shape (classes,).
    None if the reference does not suffice: a class has too few rows or is seldom found.

    It holds if the texts of each class are those of the reference, and only the shares differ.

    Args:
        reference: rows by class and answer, shape (classes, classes).
        file: rows by answer, shape (classes,).

    Source: Lipton, Wang and Smola 2018, Detecting and correcting for label shift with black box
    predictors, https://arxiv.org/abs/1802.03916.
    """
    classes, rows = len(file), reference.sum(axis=1)
    if (
        classes > MOST_CLASSES
        or rows.min() < LEAST_ROWS
        or (reference.diagonal() / rows).min() < LEAST_RECALL
    ):
        return None
    # A Bayesian bootstrap: with few rows of a class, resampled counts vary too little.
    rng = np.random.default_rng(0)
    drawn = rng.standard_gamma(parts[0] * reference + 0.5, (_RESAMPLES, classes, classes))
    draws = _class_shares(drawn, rng.standard_gamma(parts[1] * file + 0.5, (_RESAMPLES, classes)))
    values = _class_shares(reference[None], file[None])[0]
    ends = np.quantile(draws, (0.015, 0.985), axis=0)  # those of 95% hold in 92% at times
    return [
        Interval(float(value), float(min(low, value)), float(max(high, value)), _RESAMPLES)
        for value, low, high in zip(values, *ends, strict=True)
    ]


def _class_shares(reference: NDArray[Any], file: NDArray[Any]) -> Floats:
    """Solve for the shares; the first axis is that of samples. Shares below 0 are 0."""
    answered = reference / reference.sum(axis=2, keepdims=True)
    shares = np.linalg.solve(
        answered.transpose(0, 2, 1), ratio(file, file.sum(1, keepdims=True))[..., None]
    )
    shares = shares[..., 0].clip(0)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def counts_test(
    reference: Counts, file: Counts, ordered: bool, parts: Parts = (1.0, 1.0)
) -> TwoSample:
    """Test two samples by their counts of cells, both of shape (cells,), with random permutations
    of their rows.

    The distance is the largest difference of the shares up to a cell if cells are `ordered`
    (Kolmogorov-Smirnov), otherwise the share of rows that would have to change cells. Rows that are
    worth fewer lie further apart by chance, by the ratio of the standard errors (Rao and Scott
    1981, https://doi.org/10.1080/01621459.1981.10477633).
    """
    rows = np.array([reference.sum(), file.sum()])
    pooled = reference + file

    def distance(files: Counts) -> Floats:
        differences = files / rows[1] - (pooled - files) / rows[0]
        if ordered:
            return np.asarray(np.abs(differences.cumsum(axis=-1)).max(axis=-1))
        return np.asarray(np.abs(differences).sum(axis=-1) / 2)

    rng, cells = np.random.default_rng(0), pooled > 0
    drawn = np.zeros((_PERMUTATIONS, len(pooled)), np.int64)
    drawn[:, cells] = rng.multivariate_hypergeometric(pooled[cells], rows[1], _PERMUTATIONS)
    further = math.sqrt((1 / (rows * parts)).sum() / (1 / rows).sum())
    return _permuted(distance(file), further * distance(drawn))


def _permuted(measured: Floats, drawn: Floats) -> TwoSample:
    at_least = int((drawn >= measured - 1e-12).sum())
    return TwoSample(float(measured), (1 + at_least) / (1 + len(drawn)))


def classifier_test(similarity: NDArray[Any], is_file: Truths) -> TwoSample:
    """Test whether a classifier tells the rows of two samples apart. The distance is its area under
    the ROC curve (AUC) on rows it was not fitted to: 0.5 if it cannot, 1 if it always can.

    The classifier is a kernel ridge regression, whose answers are linear in what it is fitted to:
    all permutations cost little more than one. Each of 5 folds is ranked by a fit to the others.

    Args:
        similarity: a kernel of each two rows, of either sample, shape (rows, rows).
        is_file: the sample of each row, shape (rows,).

    Source: Lopez-Paz and Oquab 2017, Revisiting classifier two-sample tests,
    https://arxiv.org/abs/1610.06545.
    """
    from scipy.stats import rankdata

    rng, rows = np.random.default_rng(0), len(is_file)
    samples = np.repeat(is_file[:, None], 1 + _CLASSIFIERS, axis=1)
    samples[:, 1:] = rng.permuted(samples[:, 1:], axis=0)
    labels, folds = samples.astype(np.float32), rng.permutation(rows) % _FOLDS
    kernel = np.asarray(similarity, np.float32)
    wins, pairs = np.zeros((2, samples.shape[1]))
    for fold in range(_FOLDS):
        own, others = folds == fold, folds != fold
        fitted = kernel[np.ix_(others, others)] + np.eye(others.sum(), dtype=np.float32)
        aims = labels[others] - labels[others].mean(axis=0)
        answers = kernel[np.ix_(own, others)] @ np.linalg.solve(fitted, aims)
        # Rounded, since the last bits of equal texts differ by processor.
        ranks, positive = rankdata(answers.round(5), axis=0), samples[own].sum(axis=0)
        wins += (ranks * samples[own]).sum(axis=0) - positive * (positive + 1) / 2
        pairs += positive * (own.sum() - positive)
    areas = ratio(wins, pairs)
    return _permuted(areas[0], areas[1:])


def holm(ps: Sequence[float] | Floats, level: float = 0.05) -> list[bool]:
    """Return which of several tests reject, if at most a share `level` of all families of tests may
    reject anything that is true (Holm 1979)."""
    order = np.argsort(ps, kind="stable")
    rejected = np.cumprod(np.asarray(ps)[order] <= level / np.arange(len(ps), 0, -1)).astype(bool)
    result = np.zeros(len(ps), bool)
    result[order] = rejected
    return result.tolist()


def share_intervals(
    known: NDArray[Any], predicted: NDArray[Any], mean: Floats, variance: Floats, rows: float
) -> list[Interval]:
    """Estimate shares of rows, such as those answered rightly, each with a 95% interval, from a few
    labelled rows and what a model says of all (prediction-powered inference).

    The model's mean over all rows is corrected by its error on the labelled ones. How much it
    counts is chosen by these (PPI++): a model that knows nothing costs nothing. It does
    not count for a property that nearly all rows have, or none. With 50 labels a
    normal interval holds too seldom near 0 and 1. This is Clopper and Pearson's with as many rows
    as would be equally sure without a model, as for surveys (Korn and Graubard).

    Args:
        known: 0 or 1 for each labelled row and each share, shape (labelled, shares). The rows, 3 or
            more, are a random sample of all.
        predicted: what the model expects of these, of any scale; the same shape.
        mean, variance: of what it expects of all rows, shape (shares,).
        rows: the number of all rows, or how many they are worth.

    Sources: Angelopoulos et al. 2023, Prediction-powered inference,
    https://arxiv.org/abs/2301.09633; Angelopoulos, Duchi and Zrnic 2023, PPI++,
    https://arxiv.org/abs/2311.01453; Korn and Graubard 1998, Survey Methodology 24(2), 193-201.
    """
    from scipy.special import betaincinv, stdtrit

    n = len(known)
    y, f = np.asarray(known, np.float64), np.asarray(predicted, np.float64)
    common = ((y - y.mean(axis=0)) * (f - f.mean(axis=0))).mean(axis=0)
    rare = np.minimum(y.sum(axis=0), (1 - y).sum(axis=0)) < LEAST_ROWS
    weight = np.where(rare, 0, ratio(common, f.var(axis=0) * (1 + n / rows)))
    rest = y - weight * f
    share = (rest.mean(axis=0) + weight * mean).clip(0, 1)
    # Two degrees of freedom are spent, on the mean and on the weight.
    squared_error = rest.var(axis=0) / (n - 2) + weight**2 * variance / rows
    size = ratio(share * (1 - share), squared_error) * (1.959964 / stdtrit(n - 2, 0.975)) ** 2
    size = np.where(rare, n, np.maximum(size, 1))
    hits = share * size
    low = betaincinv(np.maximum(hits, 1e-9), size - hits + 1, 0.025)
    high = betaincinv(hits + 1, np.maximum(size - hits, 1e-9), 0.975)
    found = np.stack([share, np.minimum(low, share), np.maximum(high, share)], axis=1)
    return [Interval(*each) for each in found.tolist()]
