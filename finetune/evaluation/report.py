"""The evaluation of a run: how good its kept model is, how sure that is, and where it fails.

Everything is computed from the logits and examples in the run's `predictions/`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from finetune.errors import StoreError
from finetune.evaluation import saved_predictions, slices
from finetune.evaluation.saved_predictions import SavedLogits, SwappedLogits
from finetune.evaluation.slices import Slice, Traits
from finetune.metrics import calibration, classification, intervals
from finetune.metrics.calibration import Calibration, Reliability
from finetune.metrics.classification import ClassScores, Curve, ThresholdSweep
from finetune.metrics.intervals import Interval, McNemar
from finetune.runs.run import Run
from finetune.runs.summary import RunSummary

History = Literal["always right", "learned", "forgotten", "never learned"]
HISTORIES: tuple[History, ...] = ("always right", "learned", "forgotten", "never learned")
SUSPECT = 0.1  # mean probability of the given label below which the label is doubted
_MOST_EVALUATIONS = 20  # read for the histories; of more, evenly chosen ones
_MOST_NUMBERS = 200_000_000  # of all evaluations read for the histories together
_MOST_CURVES = 20  # classes that get an area of their own


@dataclass(frozen=True)
class OrderConsistency:
    """What changes when the sentences of a pair swap places.

    Args:
        pairs: how many were asked in both orders.
        flips: how many got another answer.
        difference: mean absolute difference of the given answer's probability.
        plain, averaged: scores in the order given, and of both orders' mean probabilities.
        worst: rows of the pairs whose probability changed most, those that flipped first.
        changes: the change of each of them.
    """

    pairs: int
    flips: int
    difference: float
    plain: dict[str, float]
    averaged: dict[str, float]
    worst: list[int]
    changes: list[float]


@dataclass(frozen=True)
class Analysis:
    """The kept model on the validation split, or on the opened test split.

    Args:
        step: optimizer steps it had taken.
        labels: names of the classes.
        positive: index of the class whose F1 is meant, of two.
        examples: how many were scored.
        broken: of how many a logit was not a number.
        scores: accuracy and F1 with their 95% intervals.
        confusion: counts, a row a true class, a column an answer.
        classes: precision, recall and F1 of each class, in order.
        matthews: Matthews' correlation, -1 to 1.
        roc, precision_recall: of the positive class of two; None for more, or where one class is
            missing.
        areas: class -> (area under ROC, average precision), for more than two; the most frequent.
        sweep: the scores at every threshold; for two classes.
        reliability: how far confidence and accuracy go together, as the model is.
        calibration: the same after temperature scaling; None for fewer than ten examples.
        order: what swapping the sentences changes; None where it was not measured.
        slices: scores of kinds of pairs; empty where the texts were not kept.
        histories: how many examples went which way from the first evaluation to the last.
        evaluations: how many the histories are of.
    """

    step: int
    labels: list[str]
    positive: int
    examples: int
    broken: int
    scores: dict[str, Interval]
    confusion: NDArray[np.int64]
    classes: list[ClassScores]
    matthews: float
    roc: Curve | None
    precision_recall: Curve | None
    areas: dict[str, tuple[float, float]]
    sweep: ThresholdSweep | None
    reliability: Reliability
    calibration: Calibration | None
    order: OrderConsistency | None
    slices: list[Slice]
    histories: dict[History, int]
    evaluations: int

    @property
    def binary(self) -> bool:
        """Whether there are two classes."""
        return len(self.labels) == 2


@dataclass(frozen=True, eq=False)
class RunEvaluation:
    """An analysis, and the figures of every example in arrays of shape (examples,).

    Args:
        analysis: the figures of all examples together.
        truth, answers: class indices.
        confidence: probability of the answer.
        doubt: 1 minus the label's mean probability over the evaluations.
        history: index into `HISTORIES`.
        traits: of the texts; None where those were not kept.
        table: the examples; None where they were not kept.
    """

    analysis: Analysis
    truth: NDArray[np.int64]
    answers: NDArray[np.int64]
    confidence: NDArray[np.float32]
    doubt: NDArray[np.float32]
    history: NDArray[np.int8]
    traits: Traits | None
    table: pa.Table | None

    @property
    def suspects(self) -> NDArray[np.int64]:
        """Rows whose label is doubted, the most doubted first: no evaluation got them right, and
        the label's probability stayed below a tenth.

        Sources: Swayamdipta et al. 2020, Dataset Cartography, https://arxiv.org/abs/2009.10795
        (hard-to-learn examples are often mislabelled); Northcutt et al. 2021, Confident Learning,
        https://arxiv.org/abs/1911.00068.
        """
        never = self.history == HISTORIES.index("never learned")
        rows = np.flatnonzero(never & (self.doubt > 1 - SUSPECT))
        return rows[np.argsort(-self.doubt[rows], kind="stable")]


_locks: dict[str, threading.Lock] = {}


def evaluate_run(run: Run, summary: RunSummary, split: str = "validation") -> RunEvaluation:
    """The evaluation of the kept model; computed again only when a file has changed.

    Args:
        split: `validation`, or `test` once it was opened.

    Raises:
        StoreError: when nothing was evaluated yet, or it cannot be read.
    """
    best = summary.best
    if best is None or summary.prepared is None:
        raise StoreError("Nothing was evaluated yet.", "The first evaluation ends an epoch.")
    names = summary.prepared.labels
    positive_label = summary.prepared.data.get("positive_label")
    positive = names.index(positive_label) if positive_label in names else min(1, len(names) - 1)
    steps = tuple(sorted({one.step for one in summary.validation} | {best.step}))
    with _locks.setdefault(str(run.folder), threading.Lock()):  # two tabs may ask at once
        return _cached_evaluation(
            str(run.folder), split, best.step, steps, tuple(names), positive,
            saved_predictions.files_version(run),
        )  # fmt: skip


@lru_cache(maxsize=6)
def _cached_evaluation(
    folder: str,
    split: str,
    best_step: int,
    steps: tuple[int, ...],
    names: tuple[str, ...],
    positive: int,
    version: object,
) -> RunEvaluation:
    run = Run(Path(folder))
    scored = saved_predictions.read_logits(run, best_step, split)
    table = saved_predictions.read_examples(run, split)
    if split == "test":
        return compute_evaluation(scored, list(names), positive, table)
    order = saved_predictions.read_swapped_logits(run)
    if order is not None and order.step != best_step:
        order = None  # of a model that was replaced since
    evaluations = _evaluations(run, steps, scored)
    return compute_evaluation(scored, list(names), positive, table, order, evaluations)


def _evaluations(run: Run, steps: Sequence[int], kept: SavedLogits) -> Iterator[SavedLogits]:
    """All evaluations of the same examples by step, or evenly chosen ones where they are many or
    large; the kept model's is always one of them."""
    most = min(_MOST_EVALUATIONS, max(1, _MOST_NUMBERS // max(1, kept.logits.size)))
    others = [step for step in steps if step != kept.step]
    if len(others) > most:
        others = [others[round(n)] for n in np.linspace(0, len(others) - 1, most)]
    for step in sorted({*others, kept.step}):
        if step == kept.step:
            yield kept
            continue
        try:
            logits = saved_predictions.read_logits(run, step)
        except StoreError:
            continue
        if np.array_equal(logits.labels, kept.labels):
            yield logits


def compute_evaluation(
    scored: SavedLogits,
    names: list[str],
    positive: int,
    table: pa.Table | None = None,
    order: SwappedLogits | None = None,
    evaluations: Iterable[SavedLogits] | None = None,
) -> RunEvaluation:
    """The evaluation of one model's logits.

    Args:
        positive: index of the class whose F1 is meant.
        table: the examples, in the order of the logits.
        evaluations: logits of the run's evaluations by step, `scored` among them.
    """
    truth, classes = scored.labels, scored.logits.shape[1]
    names = names if len(names) == classes else [str(index) for index in range(classes)]
    shares = calibration.probabilities(scored.logits)
    answers = shares.argmax(axis=1).astype(np.int64)
    confidence = shares[np.arange(len(truth)), answers]
    if table is not None and (
        table.num_rows != len(truth) or not np.array_equal(table.column("label").to_numpy(), truth)
    ):
        table = None
    traits = _traits(table)
    confusion = classification.confusion_matrix(truth, answers, classes)
    history, doubt, count = _histories(truth, evaluations or [scored])
    binary, scores, positives = classes == 2, shares[:, positive], truth == positive
    analysis = Analysis(
        step=scored.step,
        labels=names,
        positive=positive,
        examples=len(truth),
        broken=scored.broken,
        scores=intervals.bootstrap_from_confusion(confusion, positive),
        confusion=confusion,
        classes=classification.class_scores(confusion),
        matthews=classification.matthews_corrcoef(confusion),
        roc=classification.roc_curve(scores, positives) if binary else None,
        precision_recall=classification.precision_recall_curve(scores, positives)
        if binary
        else None,
        areas={} if binary else _areas(shares, truth, names),
        sweep=classification.threshold_sweep(scores, positives) if binary else None,
        reliability=calibration.reliability(confidence, answers == truth),
        calibration=calibration.calibrate(scored.logits, truth),
        order=_order_consistency(order, truth, positive) if order else None,
        slices=slices.score_slices(traits, truth, answers, positive, names) if traits else [],
        histories={name: int((history == index).sum()) for index, name in enumerate(HISTORIES)},
        evaluations=count,
    )
    return RunEvaluation(analysis, truth, answers, confidence, doubt, history, traits, table)


def _histories(
    truth: NDArray[np.int64], evaluations: Iterable[SavedLogits]
) -> tuple[NDArray[np.int8], NDArray[np.float32], int]:
    """Each example's index into `HISTORIES` and the doubt of its label, and of how many
    evaluations."""
    rows = np.arange(len(truth))
    always, ever = np.ones(len(truth), bool), np.zeros(len(truth), bool)
    right, total, count = ever, np.zeros(len(truth)), 0
    for one in evaluations:
        right = one.logits.argmax(axis=1) == truth
        always &= right
        ever |= right
        total += calibration.probabilities(one.logits)[rows, truth]
        count += 1
    history = np.select([always, right, ever], [0, 1, 2], 3).astype(np.int8)
    return history, (1 - total / count).astype(np.float32), count


def _traits(table: pa.Table | None) -> Traits | None:
    if table is None:
        return None
    second = table.column("sentence2").to_pylist() if "sentence2" in table.column_names else None
    return slices.pair_traits(table.column("sentence1").to_pylist(), second)


def _areas(
    shares: NDArray[np.float32], truth: NDArray[np.int64], names: list[str]
) -> dict[str, tuple[float, float]]:
    """Area under ROC and average precision of the most frequent classes, each against all."""
    areas = {}
    counts = np.bincount(truth, minlength=len(names))
    for index in np.argsort(-counts, kind="stable")[:_MOST_CURVES]:
        roc = classification.roc_curve(shares[:, index], truth == index)
        other = classification.precision_recall_curve(shares[:, index], truth == index)
        if roc is not None and other is not None:
            areas[names[index]] = (roc.area, other.area)
    return areas


def _order_consistency(
    order: SwappedLogits, truth: NDArray[np.int64], positive: int
) -> OrderConsistency | None:
    if not len(order.rows) or order.rows.max() >= len(truth):
        return None
    labels, classes = truth[order.rows], order.given.shape[1]
    given, swapped = (calibration.probabilities(one) for one in (order.given, order.swapped))
    rows, answers = np.arange(len(labels)), given.argmax(axis=1)
    flips = swapped.argmax(axis=1) != answers
    change = np.abs(given[rows, answers] - swapped[rows, answers])
    worst = np.lexsort((-change, ~flips))[:10]
    plain, averaged = (
        classification.accuracy_and_f1(
            classification.confusion_matrix(labels, shares.argmax(axis=1), classes), positive
        )
        for shares in (given, (given + swapped) / 2)
    )
    return OrderConsistency(
        pairs=len(labels),
        flips=int(flips.sum()),
        difference=float(change.mean()),
        plain=plain,
        averaged=averaged,
        worst=order.rows[worst].tolist(),
        changes=change[worst].tolist(),
    )


@dataclass(frozen=True)
class PairedComparison:
    """Two runs on the same validation examples.

    Args:
        difference: accuracy and F1 of the second minus the first.
        disagreements: rows that only one of them got right.
        first_right: of those, whether it was the first.
    """

    difference: dict[str, Interval]
    mcnemar: McNemar
    disagreements: list[int]
    first_right: list[bool]


@lru_cache(maxsize=6)
def compare_runs(first: RunEvaluation, second: RunEvaluation) -> PairedComparison | None:
    """Two models on the same examples; None where the examples differ."""
    same = first.analysis.labels == second.analysis.labels and np.array_equal(
        first.truth, second.truth
    )
    if same and first.table is not None and second.table is not None:
        same = first.table.equals(second.table)
    if not same:
        return None
    truth, classes = first.truth, len(first.analysis.labels)
    first_right, second_right = first.answers == truth, second.answers == truth
    disagreements = np.flatnonzero(first_right != second_right)
    return PairedComparison(
        difference=intervals.paired_bootstrap(
            truth, first.answers, second.answers, classes, first.analysis.positive
        ),
        mcnemar=intervals.mcnemar_test(truth, first.answers, second.answers),
        disagreements=disagreements.tolist(),
        first_right=first_right[disagreements].tolist(),
    )
