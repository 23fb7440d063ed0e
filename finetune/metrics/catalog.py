"""Every metric by name: its titles, its range, and how it is computed.

Charts, tables, forms and cards are drawn from this list. `finetune/metrics/scores/` makes each a
module of `evaluate`; `intervals` and `selection` resample it. To add a metric, add it here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from finetune.messages import message
from finetune.metrics.classification import Floats, Indices, Probabilities, mean_f1, ratio


class Tally(NamedTuple):
    """Counts of examples by class, each of shape (classes, samples)."""

    hits: NDArray[Any]  # examples of the class that were answered rightly
    support: NDArray[Any]  # examples of the class
    predicted: NDArray[Any]  # examples that were assigned to the class

    @classmethod
    def of(
        cls, answers: Indices, truth: Indices, weights: NDArray[Any], positive: int | None = None
    ) -> Self:
        """Count examples, each as often as `weights` of shape (examples, samples) say."""
        from scipy.sparse import csr_array

        size = 1 + int(max(truth.max(initial=0), answers.max(initial=0), positive or 0))
        rows = len(truth)
        # Which examples count for which class, of shape (classes, examples).
        labelled, predicted = (
            csr_array((np.ones(rows, np.int64), (classes, np.arange(rows))), (size, rows))
            for classes in (truth, answers)
        )
        hits = labelled.multiply(truth == answers).tocsr()
        return cls(hits @ weights, labelled @ weights, predicted @ weights)


# A tally and the positive class (None for all classes) -> the metric, of shape (...).
OfTally = Callable[[Tally, int | None], Floats]
# Right examples, all examples, and the function from their proportion to the metric.
Share = tuple[int, int, Callable[[float], float]]
# Answers and truth of shape (examples, ...), and how often each example counts, of shape (examples,
# samples) -> the metric, of shape (samples,).
OfExamples = Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], Floats]
# Probabilities of shape (examples, classes), true classes, and the positive class -> the metric.
OfProbabilities = Callable[[Probabilities, Indices, int | None], float]


Scores = NDArray[np.floating[Any]]
Labels = NDArray[Any]


@dataclass(frozen=True)
class Metric:
    """A validation score."""

    name: str  # its key in events and files, and in `--metrics`
    title: str  # its name at the head of a column
    phrase: str  # its name in a sentence
    title_of_all: str = ""  # its names for more than two classes, if they differ
    phrase_of_all: str = ""
    plain: str = ""  # what a value means to anybody, with `{value}`; empty if that cannot be said
    greater_is_better: bool = True
    range: tuple[float, float] = (0.0, 1.0)
    # Of the answers; `any` of what other people's modules compute.
    kind: Literal["classes", "score", "labels", "any"] = "classes"
    of_tally: OfTally | None = None  # computes it from classes
    of_examples: OfExamples | None = None  # computes it from scores, or from several labels
    of_probabilities: OfProbabilities | None = None
    # If it is a proportion, or computed from one.
    as_share: Callable[[Tally, int], Share] | None = None
    # The function of scikit-learn or SciPy that computes it from the truth and the answers.
    library: str = ""
    average: str = ""  # how that averages over labels; `class`: over classes, or of two of one

    @property
    def of_answers(self) -> bool:
        """True if answers suffice for it."""
        return self.of_tally is not None or self.of_examples is not None

    def rank(self, value: float) -> float:
        """Convert a value so that greater is better."""
        return value if self.greater_is_better else -value

    def library_options(self, classes: int, positive: int = 1) -> dict[str, Any]:
        """The keywords that make the function of `library` compute this metric."""
        if not self.average:
            return {}
        if self.average != "class":
            return {"average": self.average, "zero_division": 0}
        meant = {"pos_label": positive} if classes == 2 else {"average": "macro"}
        return {"zero_division": 0, **meant}

    def measure(
        self, answers: NDArray[Any], truth: NDArray[Any], weights: NDArray[Any],
        positive: int | None,
    ) -> Floats:  # fmt: skip
        """The metric of answers, each of which counts as often as `weights` of shape (examples,
        samples) say; shape (samples,). ValueError if answers do not suffice for it."""
        if self.of_examples is not None:
            return self.of_examples(answers, truth, weights)
        if self.of_tally is None:
            raise ValueError(f"{self.name} needs probabilities")
        return self.of_tally(Tally.of(answers, truth, weights, positive), positive)


def _f1_as_share(tally: Tally, positive: int) -> Share:
    """F1 as 2 J / (1 + J), where J is the share of true positives among all examples that are
    positive or predicted to be."""
    hits = int(tally.hits[positive])
    union = int(tally.support[positive] + tally.predicted[positive]) - hits
    return hits, union, lambda share: 2 * share / (1 + share)


def _f1(tally: Tally, positive: int | None) -> Floats:
    meant = slice(None) if positive is None else slice(positive, positive + 1)
    return mean_f1(tally.hits[meant], (tally.support + tally.predicted)[meant])


def _over_classes(scores: Floats, tally: Tally, positive: int | None) -> Floats:
    """The score of the positive class, or the mean over the classes that occur or are predicted."""
    if positive is not None:
        return scores[positive]  # type: ignore[no-any-return]
    occurring = (tally.support + tally.predicted > 0).sum(axis=0)
    return scores.sum(axis=0) / np.maximum(1, occurring)  # type: ignore[no-any-return]


def _matthews_correlation(tally: Tally, positive: int | None) -> Floats:
    """Matthews' correlation (Gorodkin 2004, https://doi.org/10.1016/j.compbiolchem.2004.09.006)."""
    support, predicted = (np.asarray(n, np.float64) for n in (tally.support, tally.predicted))
    right, examples = tally.hits.sum(axis=0, dtype=np.float64), support.sum(axis=0)
    spread = examples**2 - (support**2).sum(axis=0)
    spread = spread * (examples**2 - (predicted**2).sum(axis=0))
    above = right * examples - (support * predicted).sum(axis=0)
    return ratio(above, np.sqrt(np.maximum(spread, 0)))


def _roc_auc(probabilities: Probabilities, labels: Indices, positive: int | None) -> float:
    """The area under the receiver operating characteristic. Of more than two classes, the mean over
    each class against all others; 0.5 if only one class occurs."""
    from sklearn.metrics import roc_auc_score

    meant = range(probabilities.shape[1]) if positive is None else [positive]
    areas = [
        roc_auc_score(labels == label, probabilities[:, label])
        for label in meant
        if 0 < (labels == label).sum() < len(labels)
    ]
    return float(np.mean(areas)) if areas else 0.5


# Metrics of scores, of shape (examples,), and of several labels: 0 and 1, of shape (examples,
# labels). `weights` have shape (examples, samples), the results shape (samples,).


def _mean_error(power: int, answers: Scores, truth: Scores, weights: NDArray[Any]) -> Floats:
    """The mean power of how far off the answers are."""
    errors = np.abs(np.asarray(answers, np.float64) - truth) ** power
    return errors @ weights / weights.sum(axis=0)  # type: ignore[no-any-return]


def _ranks(values: Scores, weights: NDArray[Any]) -> Floats:
    """The mid-rank of each example in each sample, shape (examples, samples): equal scores share
    the mean of their ranks."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    behind = np.cumsum(weights[np.argsort(group, kind="stable")], axis=0, dtype=np.float64)
    ends = behind[np.cumsum(sizes) - 1]
    middles = ends - np.diff(ends, axis=0, prepend=0) / 2
    return middles[group]  # type: ignore[no-any-return]


def _correlation(first: Scores, second: Scores, weights: NDArray[Any]) -> Floats:
    """The correlation of two arrays of shape (examples, samples) or (examples, 1)."""
    x, y = (_centred(np.asarray(values, np.float64), weights) for values in (first, second))
    squares = (x * x * weights).sum(axis=0) * (y * y * weights).sum(axis=0)
    return np.clip(ratio((x * y * weights).sum(axis=0), np.sqrt(squares)), -1, 1)


def _centred(values: Floats, weights: NDArray[Any]) -> Floats:
    """The distances from the mean of each sample, shape (examples, samples); 0 if they are no more
    than what rounding leaves of equal values."""
    away = values - (values * weights).sum(axis=0) / weights.sum(axis=0)
    return np.where(np.abs(away).max(axis=0) > 1e-12 * np.abs(values).max(), away, 0.0)


def micro_f1(answers: Labels, truth: Labels, weights: NDArray[Any]) -> Floats:
    """F1 of all decisions together, whichever label they are of."""
    hits, sizes = _sums(answers, truth, weights)
    return ratio(2 * hits.sum(axis=0), sizes.sum(axis=0))


def subset_accuracy(answers: Labels, truth: Labels, weights: NDArray[Any]) -> Floats:
    """The share of examples whose labels are all right."""
    right = ((answers > 0) == (truth > 0)).all(axis=1)
    return ratio(right @ weights, weights.sum(axis=0))


def hamming_loss(answers: Labels, truth: Labels, weights: NDArray[Any]) -> Floats:
    """The share of wrong decisions."""
    wrong = ((answers > 0) != (truth > 0)).sum(axis=1)
    return ratio(wrong @ weights, weights.sum(axis=0) * answers.shape[1])


def _sums(answers: Labels, truth: Labels, weights: NDArray[Any]) -> tuple[Floats, Floats]:
    """Examples that have a label and were given it, and examples that have it plus those that were
    given it; both of shape (labels, samples)."""
    from scipy.sparse import csr_array

    given, true = answers > 0, truth > 0
    hits, sizes = given & true, given.astype(np.float64) + true
    return tuple(csr_array(each.T.astype(np.float64)) @ weights for each in (hits, sizes))


ACCURACY = Metric(
    "accuracy", message("Accuracy"), message("accuracy"), library="sklearn.metrics.accuracy_score",
    plain=message("right in {value:.0%}"),
    of_tally=lambda tally, _: ratio(tally.hits.sum(axis=0), tally.support.sum(axis=0)),
)  # fmt: skip
F1 = Metric(
    "f1", "F1", "F1", message("Macro F1"), message("macro F1"), of_tally=_f1,
    as_share=_f1_as_share, library="sklearn.metrics.f1_score", average="class",
)  # fmt: skip
# The mean cross-entropy, which every evaluation has; the loop computes it.
LOSS = Metric(
    "loss", message("Loss"), message("loss"), greater_is_better=False, range=(0.0, float("inf"))
)
MATTHEWS = Metric(
    "matthews_correlation", message("Matthews correlation"), message("Matthews correlation"),
    range=(-1.0, 1.0), of_tally=_matthews_correlation, library="sklearn.metrics.matthews_corrcoef",
)  # fmt: skip
OPTIONAL = (  # may be added by name
    MATTHEWS,
    Metric(
        "precision", message("Precision"), message("precision"), message("Macro precision"),
        message("macro precision"), library="sklearn.metrics.precision_score", average="class",
        of_tally=lambda tally, of: _over_classes(ratio(tally.hits, tally.predicted), tally, of),
        as_share=lambda tally, of: (int(tally.hits[of]), int(tally.predicted[of]), float),
    ),
    Metric(
        "recall", message("Recall"), message("recall"), message("Macro recall"),
        message("macro recall"), library="sklearn.metrics.recall_score", average="class",
        of_tally=lambda tally, of: _over_classes(ratio(tally.hits, tally.support), tally, of),
        as_share=lambda tally, of: (int(tally.hits[of]), int(tally.support[of]), float),
    ),
    Metric("roc_auc", message("ROC area"), message("ROC area"), of_probabilities=_roc_auc),
    Metric(
        "balanced_accuracy", message("Balanced accuracy"), message("balanced accuracy"),
        of_tally=lambda tally, _: ratio(tally.hits, tally.support).sum(axis=0)
        / np.maximum(1, (tally.support > 0).sum(axis=0)),
        library="sklearn.metrics.balanced_accuracy_score",
    ),
)  # fmt: skip
STANDARD = (ACCURACY, F1)  # measured of every classifier
HEADLINE = F1  # by which the best model is chosen by default
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (*STANDARD, LOSS, *OPTIONAL)}
_INFINITE = float("inf")
OF_SCORES = (  # measured of every regression, by the names that GLUE's STS-B has for them
    Metric(
        "pearson", "Pearson", message("Pearson correlation"),
        range=(-1.0, 1.0), kind="score", library="scipy.stats.pearsonr",
        of_examples=lambda answers, truth, weights: _correlation(
            answers[:, None], truth[:, None], weights
        ),
    ),
    Metric(
        "spearmanr", "Spearman", message("Spearman correlation"),
        range=(-1.0, 1.0), kind="score", library="scipy.stats.spearmanr",
        of_examples=lambda answers, truth, weights: _correlation(
            _ranks(answers, weights), _ranks(truth, weights), weights
        ),
    ),
    Metric(
        "mae", message("Mean error"), message("mean absolute error"),
        plain=message("off by {value:.2f} on average"),
        greater_is_better=False, range=(0.0, _INFINITE), kind="score",
        of_examples=partial(_mean_error, 1),
        library="sklearn.metrics.mean_absolute_error",
    ),
    Metric(
        "rmse", "RMSE", message("root mean squared error"),
        greater_is_better=False, range=(0.0, _INFINITE), kind="score",
        of_examples=lambda *answers: np.sqrt(_mean_error(2, *answers)),
        library="sklearn.metrics.root_mean_squared_error",
    ),
)  # fmt: skip
OF_LABELS = (  # measured wherever a row may have several labels
    Metric(
        "micro_f1", message("Micro F1"), message("micro F1"), kind="labels",
        of_examples=micro_f1, library="sklearn.metrics.f1_score", average="micro",
    ),
    Metric(
        "macro_f1", message("Macro F1"), message("macro F1"), kind="labels",
        of_examples=lambda *answers: mean_f1(*_sums(*answers)),
        library="sklearn.metrics.f1_score", average="macro",
    ),
    Metric(
        "subset_accuracy", message("Subset accuracy"), message("subset accuracy"), kind="labels",
        plain=message("all labels right in {value:.0%}"),
        of_examples=subset_accuracy, library="sklearn.metrics.accuracy_score",
    ),
    Metric(
        "hamming_loss", message("Hamming loss"), message("Hamming loss"), kind="labels",
        greater_is_better=False, of_examples=hamming_loss,
        library="sklearn.metrics.hamming_loss",
    ),
)  # fmt: skip
# Every metric of every task.
ALL: Mapping[str, Metric] = {
    metric.name: metric for metric in (*METRICS.values(), *OF_SCORES, *OF_LABELS)
}


def find(name: str) -> Metric:
    """Return the metric with this name. Unlisted metrics come from other people's modules; greater
    counts as better."""
    anything = Metric(name, name, name, range=(-_INFINITE, _INFINITE), kind="any")
    return ALL.get(name, anything)


def named(names: Iterable[str]) -> list[Metric]:
    """Return metrics by name, the loss left out."""
    return [find(name) for name in names if name != LOSS.name]


def scores(
    answers: NDArray[Any], truth: NDArray[Any], metrics: Iterable[Metric] = STANDARD,
    positive: int | None = 1,
) -> dict[str, float]:  # fmt: skip
    """Compute metrics of answers by name; those for which answers do not suffice are left out.

    Args:
        answers, truth: of shape (examples, ...).
        positive: of two classes, the one that is meant; None for the mean over all classes.
    """
    once = np.ones((len(truth), 1))
    return {
        metric.name: float(metric.measure(answers, truth, once, positive)[0])
        for metric in metrics
        if metric.of_answers
    }


def metric_name(metric: str, classes: int) -> str:
    """The name of a metric in a sentence; `f1` of more than two classes is macro F1."""
    found = find(metric)
    return (found.phrase_of_all if classes > 2 else "") or found.phrase


def metric_title(metric: str, classes: int) -> str:
    """The name of a metric at the head of a column."""
    found = find(metric)
    return (found.title_of_all if classes > 2 else "") or found.title
