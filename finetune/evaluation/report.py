"""What a run's saved validation logits say: how good the kept model is, how sure that is, and where
it fails.

Everything here is computed from `predictions/`, offline, and kept for those who ask again. The
statistics themselves are in `intervals`, `curves`, `calibration` and `slices`; how they look is
the page's business.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from finetune.errors import StoreError
from finetune.evaluation import saved_predictions, slices
from finetune.evaluation.slices import Slice, Traits
from finetune.metrics import calibration, classification, intervals
from finetune.metrics.calibration import Calibration, Reliability
from finetune.metrics.classification import ClassScores, Curve, ThresholdSweep
from finetune.metrics.intervals import Interval, McNemar
from finetune.runs.run import Run
from finetune.runs.summary import RunSummary

HISTORIES = ("always right", "learned", "forgotten", "never learned")
History = Literal["always right", "learned", "forgotten", "never learned"]
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
        plain, averaged: scores in the order given, and of both orders' mean probabilities, on
            the same pairs.
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
        evaluations: how many that is told of.
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


@dataclass(frozen=True)
class RunEvaluation:
    """An analysis with what is known of every example; arrays of shape (examples,).

    Args:
        analysis: the figures.
        truth, answers: class indices.
        confidence: probability of the answer.
        given: probability of the label.
        doubt: 1 minus the label's mean probability over the evaluations.
        history: index into `HISTORIES`.
        traits: of the texts; None where those were not kept.
        table: the examples; None where they were not kept.
    """

    analysis: Analysis
    truth: NDArray[np.int64]
    answers: NDArray[np.int64]
    confidence: NDArray[np.float32]
    given: NDArray[np.float32]
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


_kept: OrderedDict[tuple[Any, ...], RunEvaluation] = OrderedDict()
_locks: dict[str, threading.Lock] = {}
_KEPT = 6


def evaluate_run(run: Run, summary: RunSummary, split: str = "validation") -> RunEvaluation:
    """What the saved logits of the kept model say; computed once, until something changes.

    Args:
        split: `validation`, or `test` once it was opened.

    Raises:
        StoreError: when nothing was evaluated yet, or it cannot be read.
    """
    best = summary.best
    if best is None or summary.prepared is None:
        raise StoreError("Nothing was evaluated yet.", "The first evaluation ends an epoch.")
    key = (
        str(run.folder),
        split,
        best.step,
        len(summary.validation),
        saved_predictions.files_version(run),
    )
    with _locks.setdefault(str(run.folder), threading.Lock()):
        if key not in _kept:
            steps = [one.step for one in summary.validation if one.step != best.step]
            scored = (
                saved_predictions.read_test_logits(run)
                if split == "test"
                else saved_predictions.read_logits(run, best.step)
            )
            names = summary.prepared.labels
            given = summary.prepared.data.get("positive_label")
            positive = names.index(given) if given in names else min(1, len(names) - 1)
            order = saved_predictions.read_swapped_logits(run) if split == "validation" else None
            if order is not None and order.step != best.step:
                order = None  # of a model that was replaced since
            others = steps if split == "validation" else []
            table = saved_predictions.read_examples(run, split)
            _kept[key] = compute_evaluation(
                scored,
                names,
                positive,
                table,
                order,
                lambda step: saved_predictions.read_logits(run, step),
                others,
            )
            while len(_kept) > _KEPT:
                _kept.popitem(last=False)
        _kept.move_to_end(key)
        return _kept[key]


def compute_evaluation(
    scored: saved_predictions.SavedLogits,
    names: list[str],
    positive: int,
    table: pa.Table | None = None,
    order: saved_predictions.SwappedLogits | None = None,
    other: Any = None,
    steps: Sequence[int] = (),
) -> RunEvaluation:
    """The study of one model's logits.

    Args:
        scored: its logits and the labels.
        names: of the classes.
        positive: index of the class whose F1 is meant.
        table: the examples, in the same order.
        order: logits in both orders.
        other: step -> the logits of another evaluation of the run.
        steps: of those.
    """
    truth, count = scored.labels, scored.logits.shape[1]
    names = names if len(names) == count else [str(index) for index in range(count)]
    probability = calibration.probabilities(scored.logits)
    answers = probability.argmax(axis=1).astype(np.int64)
    rows = np.arange(len(truth))
    confidence, given = probability[rows, answers], probability[rows, truth]
    right = answers == truth
    chosen = _chosen(steps, scored.logits.size)
    history, doubt, evaluations = _histories(truth, scored.step, right, given, other, chosen)
    if table is not None and (
        table.num_rows != len(truth) or not np.array_equal(table.column("label").to_numpy(), truth)
    ):
        table = None
    traits = _traits(table)
    confusion = classification.confusion_matrix(truth, answers, count)
    scores = intervals.bootstrap_intervals(truth, answers, count, positive)
    roc, precision_recall, sweep, areas = _curves(probability, truth, names, positive)
    analysis = Analysis(
        step=scored.step,
        labels=names,
        positive=positive,
        examples=len(truth),
        broken=scored.broken,
        scores=scores,
        confusion=confusion,
        classes=classification.per_class(confusion),
        matthews=classification.matthews_corrcoef(confusion),
        roc=roc,
        precision_recall=precision_recall,
        areas=areas,
        sweep=sweep,
        reliability=calibration.reliability(confidence, right),
        calibration=calibration.calibrate(scored.logits, truth),
        order=_order(order, truth, positive),
        slices=slices.score_slices(traits, truth, answers, count, positive, names)
        if traits
        else [],
        histories={name: int((history == index).sum()) for index, name in enumerate(HISTORIES)},  # type: ignore[misc]
        evaluations=evaluations,
    )
    return RunEvaluation(analysis, truth, answers, confidence, given, doubt, history, traits, table)


def _chosen(steps: Sequence[int], size: int) -> list[int]:
    """The other evaluations to read: all, or evenly chosen ones where they are many or large."""
    most = min(_MOST_EVALUATIONS, max(1, _MOST_NUMBERS // max(1, size)))
    if len(steps) <= most:
        return list(steps)
    return [steps[round(n)] for n in np.linspace(0, len(steps) - 1, most)]


def _histories(
    truth: NDArray[np.int64],
    kept: int,
    right: NDArray[np.bool_],
    given: NDArray[np.float32],
    other: Any,
    steps: Sequence[int],
) -> tuple[NDArray[np.int8], NDArray[np.float32], int]:
    """How each example went from the first evaluation to the last, how much its label is doubted,
    and of how many evaluations that is told. The kept model's is one of them, seldom the last."""
    rows = np.arange(len(truth))
    always, ever = np.ones(len(truth), bool), np.zeros(len(truth), bool)
    last, total, count = right, np.zeros(len(truth)), 0
    for step in sorted({*steps, kept}):
        then, sure = right, given
        if step != kept:
            try:
                found = other(step)
            except StoreError:
                continue
            if not np.array_equal(found.labels, truth):  # of other pairs, which must not count
                continue
            then = found.logits.argmax(axis=1) == truth
            sure = calibration.probabilities(found.logits)[rows, truth]
        always &= then
        ever |= then
        last, total, count = then, total + sure, count + 1
    kinds = np.select([always, last, ever], [0, 1, 2], 3).astype(np.int8)
    return kinds, (1 - total / count).astype(np.float32), count


def _traits(table: pa.Table | None) -> Traits | None:
    if table is None:
        return None
    second = table.column("sentence2").to_pylist() if "sentence2" in table.column_names else None
    return slices.pair_traits(table.column("sentence1").to_pylist(), second)


def _curves(
    probability: NDArray[np.float32], truth: NDArray[np.int64], names: list[str], positive: int
) -> tuple[Curve | None, Curve | None, ThresholdSweep | None, dict[str, tuple[float, float]]]:
    if len(names) == 2:
        scores, positives = probability[:, positive], truth == positive
        return (
            classification.roc_curve(scores, positives),
            classification.precision_recall_curve(scores, positives),
            classification.threshold_sweep(scores, positives),
            {},
        )
    areas = {}
    counts = np.bincount(truth, minlength=len(names))
    for index in np.argsort(-counts, kind="stable")[:_MOST_CURVES]:
        one = classification.roc_curve(probability[:, index], truth == index)
        other = classification.precision_recall_curve(probability[:, index], truth == index)
        if one is not None and other is not None:
            areas[names[index]] = (one.area, other.area)
    return None, None, None, areas


def _order(
    order: saved_predictions.SwappedLogits | None, truth: NDArray[np.int64], positive: int
) -> OrderConsistency | None:
    if order is None or not len(order.rows) or order.rows.max(initial=0) >= len(truth):
        return None
    labels, classes = truth[order.rows], order.given.shape[1]
    given, other = (calibration.probabilities(one) for one in (order.given, order.other))
    rows, answers = np.arange(len(labels)), given.argmax(axis=1)
    flips = other.argmax(axis=1) != answers
    change = np.abs(given[rows, answers] - other[rows, answers])
    worst = np.lexsort((-change, ~flips))[:10]
    averaged = ((given + other) / 2).argmax(axis=1)
    return OrderConsistency(
        pairs=len(labels),
        flips=int(flips.sum()),
        difference=float(change.mean()),
        plain=intervals.scores(labels, answers, classes, positive),
        averaged=intervals.scores(labels, averaged, classes, positive),
        worst=[int(row) for row in order.rows[worst]],
        changes=[float(value) for value in change[worst]],
    )


@dataclass(frozen=True)
class ExampleRow:
    """One example as a table shows it.

    Args:
        row: its place in the validation split, from 0.
        label, answer: names of classes.
        confidence: probability of the answer.
        history: one of `HISTORIES`.
        words: of both sentences together; 0 where unknown.
        overlap: share of words the sentences have in common; None where unknown.
    """

    row: int
    sentence1: str
    sentence2: str
    label: str
    answer: str
    confidence: float
    history: str
    words: int
    overlap: float | None


# What a person may sort examples by -> whether the greatest comes first.
SORTS = {"confidence": True, "words": True, "overlap": True, "row": False}
WHICH = ("wrong", "right", "suspected labels", "all")


def select_examples(
    study: RunEvaluation,
    which: str = "wrong",
    label: str = "",
    history: str = "",
    search: str = "",
    by: str = "confidence",
) -> NDArray[np.int64]:
    """Rows of the examples that are wanted, in order.

    Args:
        which: one of `WHICH`.
        label: the true class by name; any where empty.
        history: one of `HISTORIES`; any where empty.
        search: a text that stands in one of the sentences, in upper or lower case.
        by: one of `SORTS`; suspected labels come by their doubt.
    """
    kept = np.ones(len(study.truth), bool)
    if which in ("wrong", "right"):
        kept &= (study.answers == study.truth) == (which == "right")
    if label in study.analysis.labels:
        kept &= study.truth == study.analysis.labels.index(label)
    if history in HISTORIES:
        kept &= study.history == HISTORIES.index(history)  # type: ignore[arg-type]
    if search.strip() and study.table is not None:
        kept &= _with(study.table, search.strip())
    if which == "suspected labels":
        return np.array([row for row in study.suspects if kept[row]], np.int64)
    rows = np.flatnonzero(kept)
    values: dict[str, NDArray[Any]] = {
        "confidence": study.confidence, "row": np.arange(len(kept)),
    }  # fmt: skip
    if study.traits is not None:
        values |= {"words": study.traits.words, "overlap": study.traits.overlap}
    ranked = np.nan_to_num(values.get(by, study.confidence)[rows].astype(np.float64), nan=-1.0)
    return rows[np.argsort(-ranked if SORTS.get(by, True) else ranked, kind="stable")]


def nearest_training_pairs(
    study: RunEvaluation, label: str = "", history: str = "", search: str = "", most: int = 10
) -> NDArray[np.int64]:
    """Rows that come nearest to a suspected label where none is: wrong answers of the kept model,
    those whose label is doubted most first.

    Args:
        label, history, search: as for `found`.
        most: how many at most.
    """
    rows = select_examples(study, "wrong", label, history, search, "row")
    return rows[np.argsort(-study.doubt[rows], kind="stable")][:most]


def _with(table: pa.Table, text: str) -> NDArray[np.bool_]:
    columns = [name for name in ("sentence1", "sentence2") if name in table.column_names]
    inside = [
        pc.match_substring(table.column(name), text, ignore_case=True).fill_null(False)
        for name in columns
    ]
    either = inside[0] if len(inside) == 1 else pc.or_(*inside)
    answer: NDArray[np.bool_] = either.to_numpy()
    return answer


def shown(study: RunEvaluation, rows: Sequence[int]) -> list[ExampleRow]:
    """Some examples with all that is known of them, in the order of `rows`."""
    names = study.analysis.labels
    blank: list[dict[str, Any]] = [{} for _ in rows]
    texts = saved_predictions.example_texts(study.table, rows) if study.table is not None else blank
    lines = []
    for row, text in zip(rows, texts, strict=True):
        overlap = float(study.traits.overlap[row]) if study.traits is not None else float("nan")
        lines.append(
            ExampleRow(
                row=int(row),
                sentence1=text.get("sentence1") or "",
                sentence2=text.get("sentence2") or "",
                label=names[study.truth[row]],
                answer=names[study.answers[row]],
                confidence=float(study.confidence[row]),
                history=HISTORIES[study.history[row]],
                words=int(study.traits.words[row]) if study.traits is not None else 0,
                overlap=None if np.isnan(overlap) else overlap,
            )
        )
    return lines


@dataclass(frozen=True)
class PairedComparison:
    """Two runs on the same validation examples.

    Args:
        difference: accuracy and F1 of the second minus the first, with 95% intervals.
        mcnemar: pairs that only one of them got right, and whether that can be chance.
        disagreements: rows that only one of them got right.
        first_right: of those, whether it was the first.
    """

    difference: dict[str, Interval]
    mcnemar: McNemar
    disagreements: list[int]
    first_right: list[bool]


_between: OrderedDict[
    tuple[int, int], tuple[RunEvaluation, RunEvaluation, PairedComparison | None]
] = OrderedDict()


def compare_runs(first: RunEvaluation, second: RunEvaluation) -> PairedComparison | None:
    """As `versus`, computed once for two studies: a page asks again and again."""
    key = (id(first), id(second))
    found = _between.get(key)
    if found is None or found[0] is not first or found[1] is not second:
        found = _between[key] = (first, second, compare_predictions(first, second))
        while len(_between) > _KEPT:
            _between.popitem(last=False)
    return found[2]


def compare_predictions(first: RunEvaluation, second: RunEvaluation) -> PairedComparison | None:
    """Two models on the same examples; None where the examples differ.

    Sources: McNemar 1947; Dietterich 1998, https://doi.org/10.1162/089976698300017197.
    """
    same = first.analysis.labels == second.analysis.labels and np.array_equal(
        first.truth, second.truth
    )
    if not same or not _same_texts(first.table, second.table):
        return None
    classes, positive = len(first.analysis.labels), first.analysis.positive
    one, two = first.answers == first.truth, second.answers == second.truth
    apart = np.flatnonzero(one != two)
    return PairedComparison(
        difference=intervals.paired_bootstrap(
            first.truth, first.answers, second.answers, classes, positive
        ),
        mcnemar=intervals.mcnemar_test(first.truth, first.answers, second.answers),
        disagreements=[int(row) for row in apart],
        first_right=[bool(value) for value in one[apart]],
    )


def _same_texts(first: pa.Table | None, second: pa.Table | None) -> bool:
    if first is None or second is None:
        return True  # the labels are the same, and nothing says otherwise
    return bool(first.equals(second))
