"""Every metric by name: its titles, its range, and how it is computed.

Charts, tables, forms and cards are drawn from this list. `finetune/metrics/scores/` makes each a
module of `evaluate`; `intervals` and `selection` resample it. To add a metric, add it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from finetune.messages import message
from finetune.metrics import example_metrics
from finetune.metrics.classification import (
    Floats,
    Indices,
    Probabilities,
    confusion_matrix,
    mean_f1,
    ratio,
)


@dataclass(frozen=True)
class Tally:
    """Counts of examples by class, each of shape (classes, ...).

    Attributes:
        hits: examples of the class that were answered rightly.
        support: examples of the class.
        predicted: examples that were assigned to the class.
    """

    hits: NDArray[Any]
    support: NDArray[Any]
    predicted: NDArray[Any]

    @classmethod
    def of(cls, confusion: NDArray[Any]) -> Tally:
        """The tally of a confusion matrix, whose rows are the true classes."""
        return cls(confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0))


# A tally and the positive class (None for all classes) -> the metric, of shape (...).
OfTally = Callable[[Tally, int | None], Floats]
# Right examples, all examples, and the function from their proportion to the metric.
Share = tuple[int, int, Callable[[float], float]]
# Answers and truth of shape (examples, ...), and how often each example counts, of shape (examples,
# samples) -> the metric, of shape (samples,).
OfExamples = Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], Floats]
# Probabilities of shape (examples, classes), true classes, and the positive class -> the metric.
OfProbabilities = Callable[[Probabilities, Indices, int | None], float]


@dataclass(frozen=True)
class Metric:
    """A validation score.

    Attributes:
        name: its key in events and files, and in `--metrics`.
        title: its name at the head of a column.
        phrase: its name in a sentence.
        title_of_all, phrase_of_all: its names for more than two classes, if they differ.
        plain: what a value means to anybody, with `{value}`; empty if that cannot be said.
        range: its least and greatest value.
        kind: of the answers it is of: one of several classes, a score, or several labels; `any` of
            what other people's modules compute.
        of_tally: computes it from classes; None if it needs more than these.
        of_examples: computes it from scores, or from several labels.
        of_probabilities: computes it from probabilities.
        as_share: if it is a proportion, or computed from one: the counts of that proportion, and
            the function from the proportion to the metric.
        library: the function of scikit-learn or SciPy, with its module, that computes it from the
            truth and the answers.
        averaged: True if that function must be told which class is positive, or how to average.
        average: how that function averages over labels.
    """

    name: str
    title: str
    phrase: str
    title_of_all: str = ""
    phrase_of_all: str = ""
    plain: str = ""
    greater_is_better: bool = True
    range: tuple[float, float] = (0.0, 1.0)
    kind: Literal["classes", "score", "labels", "any"] = "classes"
    of_tally: OfTally | None = None
    of_examples: OfExamples | None = None
    of_probabilities: OfProbabilities | None = None
    as_share: Callable[[Tally, int], Share] | None = None
    library: str = ""
    averaged: bool = False
    average: str = ""

    def rank(self, value: float) -> float:
        """Convert a value so that greater is better."""
        return value if self.greater_is_better else -value

    def library_options(self, classes: int, positive: int = 1) -> dict[str, Any]:
        """The keywords that make the function of `library` compute this metric."""
        if self.average:
            return {"average": self.average, "zero_division": 0}
        if not self.averaged:
            return {}
        meant = {"pos_label": positive} if classes == 2 else {"average": "macro"}
        return {"zero_division": 0, **meant}

    def tallied(self, tally: Tally, positive: int | None) -> Floats:
        """The metric of a tally; ValueError if answers do not suffice for it."""
        if self.of_tally is None:
            raise ValueError(f"{self.name} needs probabilities")
        return self.of_tally(tally, positive)

    def score(self, confusion: NDArray[Any], positive: int = 1) -> float:
        """The metric of a confusion matrix; ValueError as above."""
        return float(self.tallied(Tally.of(confusion), positive if len(confusion) == 2 else None))

    def at_ends(self, tally: Tally, positive: int | None) -> Share:
        """The proportion whose interval is used at the ends of the metric's range; that of accuracy
        if the metric is no proportion."""
        if self.as_share is not None and positive is not None:
            return self.as_share(tally, positive)
        low, high = self.range
        right, examples = int(tally.hits.sum()), int(tally.support.sum())
        return right, examples, lambda share: low + share * (high - low)


def _f1_as_share(tally: Tally, positive: int) -> Share:
    """F1 as 2 J / (1 + J), where J is the share of true positives among all examples that are
    positive or predicted to be."""
    hits = int(tally.hits[positive])
    union = int(tally.support[positive] + tally.predicted[positive]) - hits
    return hits, union, lambda share: 2 * share / (1 + share)


def _f1(tally: Tally, positive: int | None) -> Floats:
    meant = slice(None) if positive is None else slice(positive, positive + 1)
    return mean_f1(tally.hits[meant], (tally.support + tally.predicted)[meant])


def _mean(scores: Floats, tally: Tally, positive: int | None) -> Floats:
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
    """The area under the receiver operating characteristic, by ranks (Mann and Whitney 1947). Of
    more than two classes, the mean over each class against all others; 0.5 if only one class
    occurs."""
    from scipy.stats import rankdata

    meant = range(probabilities.shape[1]) if positive is None else [positive]
    areas = []
    for label in meant:
        true = labels == label
        ours, others = int(true.sum()), int((~true).sum())
        if ours and others:
            ranks = rankdata(probabilities[:, label])[true].sum()
            areas.append((ranks - ours * (ours + 1) / 2) / (ours * others))
    return float(np.mean(areas)) if areas else 0.5


ACCURACY = Metric(
    "accuracy", message("Accuracy"), message("accuracy"), library="sklearn.metrics.accuracy_score",
    plain=message("right in {value:.0%}"),
    of_tally=lambda tally, _: ratio(tally.hits.sum(axis=0), tally.support.sum(axis=0)),
)  # fmt: skip
F1 = Metric(
    "f1", "F1", "F1", message("Macro F1"), message("macro F1"), of_tally=_f1,
    as_share=_f1_as_share, library="sklearn.metrics.f1_score", averaged=True,
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
        message("macro precision"), library="sklearn.metrics.precision_score", averaged=True,
        of_tally=lambda tally, of: _mean(ratio(tally.hits, tally.predicted), tally, of),
        as_share=lambda tally, of: (int(tally.hits[of]), int(tally.predicted[of]), float),
    ),
    Metric(
        "recall", message("Recall"), message("recall"), message("Macro recall"),
        message("macro recall"), library="sklearn.metrics.recall_score", averaged=True,
        of_tally=lambda tally, of: _mean(ratio(tally.hits, tally.support), tally, of),
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
        range=(-1.0, 1.0), kind="score", of_examples=example_metrics.pearson,
        library="scipy.stats.pearsonr",
    ),
    Metric(
        "spearmanr", "Spearman", message("Spearman correlation"),
        range=(-1.0, 1.0), kind="score", of_examples=example_metrics.spearman,
        library="scipy.stats.spearmanr",
    ),
    Metric(
        "mae", message("Mean error"), message("mean absolute error"),
        plain=message("off by {value:.2f} on average"),
        greater_is_better=False, range=(0.0, _INFINITE), kind="score",
        of_examples=example_metrics.mean_absolute_error,
        library="sklearn.metrics.mean_absolute_error",
    ),
    Metric(
        "rmse", "RMSE", message("root mean squared error"),
        greater_is_better=False, range=(0.0, _INFINITE), kind="score",
        of_examples=example_metrics.root_mean_squared_error,
        library="sklearn.metrics.root_mean_squared_error",
    ),
)  # fmt: skip
OF_LABELS = (  # measured wherever a row may have several labels
    Metric(
        "micro_f1", message("Micro F1"), message("micro F1"), kind="labels",
        of_examples=example_metrics.micro_f1, library="sklearn.metrics.f1_score", average="micro",
    ),
    Metric(
        "macro_f1", message("Macro F1"), message("macro F1"), kind="labels",
        of_examples=example_metrics.macro_f1, library="sklearn.metrics.f1_score", average="macro",
    ),
    Metric(
        "subset_accuracy", message("Subset accuracy"), message("subset accuracy"), kind="labels",
        plain=message("all labels right in {value:.0%}"),
        of_examples=example_metrics.subset_accuracy, library="sklearn.metrics.accuracy_score",
    ),
    Metric(
        "hamming_loss", message("Hamming loss"), message("Hamming loss"), kind="labels",
        greater_is_better=False, of_examples=example_metrics.hamming_loss,
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


def tallied_scores(
    labels: Indices,
    answers: Indices,
    classes: int,
    positive: int = 1,
    metrics: Iterable[Metric] = STANDARD,
) -> dict[str, float]:
    """Compute metrics of answers by name; `labels` and `answers` have shape (examples,). Metrics
    that need probabilities are left out."""
    confusion = confusion_matrix(labels, answers, classes)
    return scores_of(confusion, positive, metrics)


def scores_of(
    confusion: NDArray[Any], positive: int = 1, metrics: Iterable[Metric] = STANDARD
) -> dict[str, float]:
    """Compute metrics of a confusion matrix by name. Metrics that need probabilities are left
    out."""
    return {
        metric.name: metric.score(confusion, positive)
        for metric in metrics
        if metric.of_tally is not None
    }


def example_scores(
    answers: NDArray[Any], truth: NDArray[Any], metrics: Iterable[Metric]
) -> dict[str, float]:
    """Compute metrics of scores, or of several labels, by name; both arrays have the shape
    (examples, ...). Other metrics are left out."""
    once = np.ones((len(truth), 1))
    return {
        metric.name: float(metric.of_examples(answers, truth, once)[0])
        for metric in metrics
        if metric.of_examples is not None
    }


def metric_name(metric: str, classes: int) -> str:
    """The name of a metric in a sentence; `f1` of more than two classes is macro F1."""
    found = find(metric)
    return (found.phrase_of_all if classes > 2 else "") or found.phrase


def metric_title(metric: str, classes: int) -> str:
    """The name of a metric at the head of a column."""
    found = find(metric)
    return (found.title_of_all if classes > 2 else "") or found.title
