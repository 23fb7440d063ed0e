"""The evaluation of a run: how good its kept model is, how sure that is, and where it fails.

Everything is computed from the logits and examples in the run's `predictions/`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from finetune.errors import StoreError
from finetune.evaluation import saved_predictions, slices
from finetune.evaluation.saved_predictions import Labels, SavedLogits
from finetune.evaluation.slices import Slice, Traits
from finetune.metrics import calibration, classification, intervals
from finetune.metrics.calibration import Calibration, Reliability
from finetune.metrics.classification import ClassScores, Counts, Curve, ThresholdSweep
from finetune.metrics.intervals import Interval, McNemar
from finetune.runs.run import Run
from finetune.runs.summary import RunSummary

SUSPECT = 0.1  # mean probability of the given label below which the label is doubted
WORTHWHILE = 0.01  # of F1, for another threshold to be named
_MOST_EVALUATIONS = 20  # read for the suspected labels; of more, evenly chosen ones
_MOST_NUMBERS = 200_000_000  # of all evaluations read for them together


@dataclass(frozen=True)
class OrderConsistency:
    """What changes when the sentences of a pair swap places."""

    pairs: int  # asked in both orders
    flips: int  # pairs that got another answer
    difference: float  # mean absolute difference of the given answer's probability
    plain: dict[str, float]  # scores in the order given
    averaged: dict[str, float]  # scores of both orders' mean probabilities
    worst: list[int]  # rows of the pairs whose probability changed most, flipped ones first
    changes: list[float]  # the change of each of these


@dataclass(frozen=True)
class Analysis:
    """The kept model on the validation split, or on the opened test split."""

    step: int  # optimizer steps it had taken
    labels: list[str]  # names of the classes
    positive: int  # index of the class whose F1 is meant, of two
    examples: int  # how many were scored
    broken: int  # examples of which a logit was not a number
    scores: dict[str, Interval]  # accuracy and F1
    confusion: Counts  # a row a true class, a column an answer
    classes: list[ClassScores]
    matthews: float  # Matthews' correlation, -1 to 1
    roc: Curve | None  # of the positive class of two; None too where one class is missing
    precision_recall: Curve | None
    sweep: ThresholdSweep | None  # the scores at every threshold; for two classes
    reliability: Reliability  # as the model is
    calibration: Calibration | None  # after temperature scaling; None for few examples
    order: OrderConsistency | None  # None where it was not measured
    slices: list[Slice]  # empty where the texts were not kept


@dataclass(frozen=True, eq=False)
class RunEvaluation:
    """An analysis, and the figures of every example in arrays of shape (examples,)."""

    analysis: Analysis
    truth: Labels  # class indices
    answers: Labels
    confidence: NDArray[np.float32]  # probability of the answer
    doubt: NDArray[np.float32]  # 1 minus the label's mean probability over the evaluations
    never_right: NDArray[np.bool_]  # no evaluation got it right
    traits: Traits | None  # None where the texts were not kept
    table: pa.Table | None  # the examples; None where they were not kept

    @property
    def suspects(self) -> Labels:
        """Rows whose label is doubted, the most doubted first: no evaluation got them right, and
        the label's probability stayed below a tenth.

        Source: Swayamdipta et al. 2020, Dataset Cartography, https://arxiv.org/abs/2009.10795.
        """
        rows = np.flatnonzero(self.never_right & (self.doubt > 1 - SUSPECT))
        return rows[np.argsort(-self.doubt[rows], kind="stable")]


def evaluate_run(run: Run, summary: RunSummary, split: str = "validation") -> RunEvaluation:
    """The evaluation of the kept model, on the `test` split once it was opened; computed again only
    when a file has changed. A StoreError when nothing was evaluated yet, or was not kept."""
    best = summary.best
    if best is None:
        raise StoreError("Nothing was evaluated yet.", "Wait for the first evaluation.")
    if summary.prepared is None:
        raise StoreError(
            "events.jsonl of run {id} is damaged: it does not say what was trained on.",
            "Its model is still there; train it anew to have its figures.",
            id=run.id,
        )
    names = summary.prepared.labels
    steps = {scores.step for scores in summary.validation if split == "validation"} - {best.step}
    version = saved_predictions.files_version(run)
    return _evaluate(
        run.folder,
        split,
        best.step,
        tuple(sorted(steps)),
        tuple(names),
        summary.prepared.positive,
        version,
    )


@lru_cache(maxsize=6)
def _evaluate(
    folder: Path,
    split: str,
    best_step: int,
    other_steps: tuple[int, ...],
    classes: tuple[str, ...],
    positive: int,
    version: object,  # of the files, for the cache
) -> RunEvaluation:
    run = Run(folder)
    scored = saved_predictions.read_logits(run, best_step, split, len(classes))
    truth, labels = scored.labels, list(classes)
    # 1. The answers.
    shares = calibration.probabilities(scored.logits)
    answers = shares.argmax(axis=1).astype(np.int64)
    confidence = shares[np.arange(len(truth)), answers]
    confusion = classification.confusion_matrix(truth, answers, len(labels))
    # 2. The texts, and how often each label was predicted.
    table, traits = saved_predictions.read_examples(run, split, truth), None
    if table is not None:
        names = [name for name in ("sentence1", "sentence2") if name in table.column_names]
        traits = slices.pair_traits(*(table.column(name).to_pylist() for name in names))
    doubt, never_right = _label_doubts(run, scored, other_steps)
    # 3. The curves, which only two classes have.
    curves, sweep = None, None
    if len(labels) == 2:
        scores, positives = shares[:, positive], truth == positive
        curves = classification.ranking_curves(scores, positives)
        sweep = classification.threshold_sweep(scores, positives)
    roc, precision_recall = curves or (None, None)
    analysis = Analysis(
        step=scored.step,
        labels=labels,
        positive=positive,
        examples=len(truth),
        broken=scored.broken,
        scores=intervals.bootstrap_intervals(confusion, positive),
        confusion=confusion,
        classes=classification.class_scores(confusion),
        matthews=classification.matthews_corrcoef(confusion),
        roc=roc,
        precision_recall=precision_recall,
        sweep=sweep,
        reliability=calibration.reliability(confidence, answers == truth),
        calibration=calibration.calibrate(scored.logits, truth),
        order=_order_consistency(run, scored, positive) if split == "validation" else None,
        slices=slices.score_slices(traits, truth, answers, labels) if traits else [],
    )
    return RunEvaluation(analysis, truth, answers, confidence, doubt, never_right, traits, table)


def _label_doubts(
    run: Run, best: SavedLogits, other_steps: tuple[int, ...]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The doubt of each example's label, and whether no evaluation got it right; of all
    evaluations, or evenly chosen ones where they are many."""
    most = min(_MOST_EVALUATIONS, max(1, _MOST_NUMBERS // best.logits.size), len(other_steps))
    positions = np.linspace(0, len(other_steps) - 1, most)
    truth = best.labels
    never_right, total, count = np.ones(len(truth), bool), np.zeros(len(truth)), 0
    for step in sorted({*(other_steps[round(position)] for position in positions), best.step}):
        with contextlib.suppress(StoreError):
            saved = best if step == best.step else _read_alike(run, step, best)
            never_right &= saved.logits.argmax(axis=1) != truth
            total += calibration.probabilities(saved.logits)[np.arange(len(truth)), truth]
            count += 1
    return (1 - total / count).astype(np.float32), never_right


def _read_alike(run: Run, step: int, best: SavedLogits) -> SavedLogits:
    """An evaluation of the same examples; a StoreError when there is none."""
    saved = saved_predictions.read_logits(run, step, classes=best.logits.shape[1])
    if not np.array_equal(saved.labels, best.labels):
        raise StoreError("Step {step} was evaluated on other examples.", step=step)
    return saved


def _order_consistency(run: Run, scored: SavedLogits, positive: int) -> OrderConsistency | None:
    """None when it was not measured, or of a model that was replaced since, or is damaged: the
    page offers to measure it then."""
    swapped = None
    with contextlib.suppress(StoreError):
        swapped = saved_predictions.read_swapped_logits(run, len(scored.labels))
    if swapped is None or swapped.step != scored.step:
        return None
    if swapped.given.shape[1] != scored.logits.shape[1]:
        return None
    labels, classes = scored.labels[swapped.rows], swapped.given.shape[1]
    given, other = map(calibration.probabilities, (swapped.given, swapped.swapped))
    rows, answers = np.arange(len(labels)), given.argmax(axis=1)
    flips = other.argmax(axis=1) != answers
    change = np.abs(given[rows, answers] - other[rows, answers])
    worst = np.lexsort((-change, ~flips))[:10]
    plain, averaged = (
        classification.accuracy_and_f1(
            classification.confusion_matrix(labels, shares.argmax(axis=1), classes), positive
        )
        for shares in (given, given + other)
    )
    return OrderConsistency(
        pairs=len(labels),
        flips=int(flips.sum()),
        difference=float(change.mean()),
        plain=plain,
        averaged=averaged,
        worst=swapped.rows[worst].tolist(),
        changes=change[worst].tolist(),
    )


@dataclass(frozen=True)
class Verdict:
    """What an evaluation comes to."""

    score: Interval  # F1
    baseline: str  # the best one's name; empty where none was measured
    gain: Interval | None  # of the model over the baseline
    always: str | None  # the class that it always answers, if so
    errors: int
    examples: int
    # A threshold with a better F1 on the same examples, and that F1; None where none is.
    better_threshold: tuple[float, float] | None


def run_verdict(run: Run, summary: RunSummary) -> Verdict:
    """The verdict on a run's kept model; quick, for its evaluation is cached. A StoreError as from
    `evaluate_run`."""
    return verdict(evaluate_run(run, summary).analysis, summary.baselines)


def verdict(analysis: Analysis, baselines: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Whether the model is better than the best baseline by more than chance, and what would
    better it."""
    score, examples = analysis.scores["f1"], analysis.examples
    levels = {name: scores["f1"] for name, scores in baselines.items() if "f1" in scores}
    baseline, level = max(levels.items(), key=lambda item: item[1], default=("", 0.0))
    gain = None
    if baseline:
        measured_on = int(baselines[baseline].get("examples", examples))
        gain = intervals.newcombe_interval(score, level, measured_on)
    answered = analysis.confusion.sum(axis=0).nonzero()[0]
    occurring = analysis.confusion.sum(axis=1).nonzero()[0]
    best = analysis.sweep.best if analysis.sweep is not None else {"f1": 0.0, "threshold": 0.5}
    better = best["f1"] - score.value >= WORTHWHILE
    return Verdict(
        score=score,
        baseline=baseline,
        gain=gain,
        always=analysis.labels[answered[0]] if len(answered) == 1 < len(occurring) else None,
        errors=examples - int(analysis.confusion.trace()),
        examples=examples,
        better_threshold=(best["threshold"], best["f1"]) if better else None,
    )


@dataclass(frozen=True)
class PairedComparison:
    """Two runs on the same validation examples."""

    difference: dict[str, Interval]  # accuracy and F1 of the first minus the second
    mcnemar: McNemar
    same_answers: bool  # on every example
    disagreements: list[int]  # rows that only one of them got right
    first_right: list[bool]  # of these, whether it was the first

    @property
    def is_better(self) -> bool:
        """Whether both tests say that the first is better by more than chance."""
        return self.difference["f1"].low > 0 and self.mcnemar.p < 0.05


@lru_cache(maxsize=6)
def compare_runs(first: RunEvaluation, second: RunEvaluation) -> PairedComparison | None:
    """Two models on the same examples; None where the examples differ."""
    same = first.analysis.labels == second.analysis.labels
    same = same and np.array_equal(first.truth, second.truth)
    if first.table is not None and second.table is not None:
        same = same and first.table.equals(second.table)
    if not same:
        return None
    truth, classes = first.truth, len(first.analysis.labels)
    first_right, second_right = first.answers == truth, second.answers == truth
    disagreements = np.flatnonzero(first_right != second_right)
    return PairedComparison(
        difference=intervals.paired_bootstrap(
            truth, second.answers, first.answers, classes, first.analysis.positive
        ),
        mcnemar=intervals.mcnemar_test(truth, first.answers, second.answers),
        same_answers=bool((first.answers == second.answers).all()),
        disagreements=disagreements.tolist(),
        first_right=first_right[disagreements].tolist(),
    )
