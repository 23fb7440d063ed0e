"""The evaluation of a run: how good its kept model is, how certain that is, and where it fails.

Everything is computed from the logits and examples in the run's `predictions/`.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from finetune.errors import StoreError
from finetune.evaluation import cross_validation, picking, saved_predictions, slices
from finetune.evaluation.picking import Picking
from finetune.evaluation.saved_predictions import Rows, SavedLogits
from finetune.evaluation.slices import Slice, Traits
from finetune.inference import decision_rule
from finetune.metrics import catalog, intervals
from finetune.metrics.catalog import Metric
from finetune.metrics.intervals import Interval
from finetune.metrics.selection import CrossFittedThresholds
from finetune.metrics.shared_rows import SharedRows, rows_worth
from finetune.runs.run import Run
from finetune.runs.summary import RunSummary
from finetune.tasks import comparison
from finetune.tasks.base import DecisionRule, Target, Targets
from finetune.tasks.registry import measured, task_of
from finetune.tasks.single_label import ClassDetails

SUSPECT = 0.1  # mean probability of the given label below which the label is doubted
_MOST_EVALUATIONS = 20  # read for the suspected labels; of more, evenly chosen ones
_MOST_NUMBERS = 200_000_000  # of all evaluations read for them together


@dataclass(frozen=True)
class OrderConsistency:
    """Effect of swapping the sentences of a pair."""

    pairs: int  # asked in both orders
    flips: int  # pairs that got another answer
    # Mean absolute difference of the given answer's probability, or of the score
    difference: float
    plain: dict[str, float]  # scores in the order given
    averaged: dict[str, float]  # scores of both orders' mean probabilities
    worst: list[int]  # rows of the pairs that changed most, flipped ones first
    changes: list[float]  # the change of each of these


@dataclass(frozen=True)
class Analysis:
    """The kept model on the validation split, or on the opened test split."""

    step: int  # optimizer steps it had taken
    target: Target
    examples: int  # how many were scored
    worth: float  # how many independent ones tell as much about the share of right answers
    broken: int  # examples of which a logit was not a number
    # The saved threshold, at which all answers are given; None for the most probable class.
    threshold: float | None
    scores: dict[str, Interval]  # the metrics of answers, by name
    most_probable: dict[str, float]  # the same of the most probable class
    picking: Picking | None  # their selection bias; None on the test split
    details: Any  # what the task measures besides, such as `ClassDetails`
    order: OrderConsistency | None  # None if it was not measured
    slices: list[Slice]  # empty if the texts were not kept
    folds: int = 0  # if each example was answered by one of so many models that had not seen it
    by_fold: Mapping[str, float] = field(default_factory=dict)  # the mean scores over the folds

    @property
    def at_threshold(self) -> dict[str, float] | None:
        """Scores at the saved threshold, by name; None without one."""
        if self.threshold is None:
            return None
        return {name: score.value for name, score in self.scores.items()}

    @property
    def expected(self) -> dict[str, Interval]:
        """Expected scores on new pairs, for the scores that selection made too good."""
        return self.picking.expected_intervals(self.scores) if self.picking else {}


@dataclass(frozen=True, eq=False)
class KeptAnswers:
    """The answers of a run's kept model to examples, by default its validation pairs."""

    run: Run
    target: Target
    truth: Targets  # such as class indices; shape (examples, ...)
    table: pa.Table | None  # the examples; None if they were not kept
    answers: Targets

    @cached_property
    def picking(self) -> Picking | None:
        """The selection bias of its scores."""
        return picking.run_picking(self.run)

    @cached_property
    def shared(self) -> SharedRows | None:
        """Which of the examples share a sentence; None if their texts were not kept."""
        return saved_predictions.shared_rows(self.table)


@dataclass(frozen=True, eq=False)
class RunEvaluation(KeptAnswers):
    """Besides, an analysis, and the figures of every example in arrays of shape (examples,)."""

    analysis: Analysis
    errors: NDArray[np.float64]  # 0 for a right answer
    confidence: NDArray[np.float32]  # probability of the answer; nan if the task has none
    # 1 minus the label's mean probability over the evaluations
    label_error_score: NDArray[np.float32]
    never_right: NDArray[np.bool_]  # no evaluation got it right
    traits: Traits | None  # None if the texts were not kept

    @property
    def right(self) -> NDArray[np.bool_]:
        """Mask of the right answers, shape (examples,). A score is right by chance only."""
        return np.asarray(self.errors == 0)

    @property
    def suspected_labels(self) -> Rows:
        """Rows whose label is doubted, most doubted first: no evaluation got them right, and
        the label's probability stayed below a tenth.

        Source: Swayamdipta et al. 2020, Dataset Cartography, https://arxiv.org/abs/2009.10795.
        """
        rows = np.flatnonzero(self.never_right & (self.label_error_score > 1 - SUSPECT))
        return rows[np.argsort(-self.label_error_score[rows], kind="stable")]


def evaluate_run(run: Run, summary: RunSummary, split: str = "validation") -> RunEvaluation:
    """Evaluate the kept model, on the `test` split if it was opened. Cached until a file changes.
    Raises a StoreError if nothing was evaluated or kept yet."""
    best = summary.best
    if best is None:
        raise StoreError("Nothing was evaluated yet.", "Wait for the first evaluation.")
    if summary.prepared is None:
        raise StoreError(
            "events.jsonl of run {id} is damaged: it does not say what was trained on.",
            "Its model is still there; train it anew to have its figures.",
            id=run.id,
        )
    # A temperature and a bound change no answer.
    rule = replace(decision_rule.read_rule(run.best), temperature=None, sure=None)
    steps = {scores.step for scores in summary.validation if split == "validation"} - {best.step}
    target, version = summary.prepared.target, saved_predictions.files_version(run)
    others, metrics = tuple(sorted(steps)), tuple(measured(run.config(), target))
    return _evaluate(run.folder, split, best.step, others, target, rule, metrics, version)


@lru_cache(maxsize=6)
def _evaluate(
    folder: Path,
    split: str,
    best_step: int,
    other_steps: tuple[int, ...],
    target: Target,
    rule: DecisionRule,
    metrics: tuple[Metric, ...],
    version: object,  # of the files, for the cache
) -> RunEvaluation:
    run = Run(folder)
    scored = saved_predictions.read_logits(run, best_step, target, split)
    truth, task = scored.labels, task_of(target)
    answers = task.answers(scored.logits, target, rule)
    errors = task.errors(answers.values, truth)
    table = saved_predictions.read_examples(run, split, truth)
    shared, traits, groups = saved_predictions.shared_rows(table), None, []
    if table is not None:
        traits = slices.pair_traits(*saved_predictions.sentences_of(table))
        groups = slices.score_slices(traits, truth, errors, target.names, task.has_right, shared)
    error_score, never_right = _label_error_scores(run, scored, other_steps, target, rule)
    picked, order, folds = None, None, list[cross_validation.Fold]()
    if split == "validation":
        picked, folds = picking.run_picking(run), cross_validation.read_folds(run)
        order = _order_consistency(run, scored, target, rule, metrics)
    analysis = Analysis(
        step=scored.step,
        target=target,
        examples=len(truth),
        worth=rows_worth(comparison.misses(task, answers.values, truth), shared),
        broken=scored.broken,
        threshold=rule.threshold_for(target.names),
        scores=task.intervals(answers.values, truth, target, metrics, shared),
        most_probable=task.scores(task.plain_answers(scored.logits), truth, target, metrics),
        picking=picked,
        details=task.details(scored.logits, answers, truth, target, shared),
        order=order,
        slices=groups,
        folds=len(folds),
        by_fold=cross_validation.mean_over(folds),
    )
    return RunEvaluation(
        run, target, truth, table, answers.values, analysis, errors,
        answers.probability_of(answers.values), error_score, never_right, traits,
    )  # fmt: skip


def _label_error_scores(
    run: Run, best: SavedLogits, other_steps: tuple[int, ...], target: Target, rule: DecisionRule
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the error score of each label, and whether no evaluation got it right. Reads all
    evaluations, or evenly chosen ones if there are many. Nothing is doubted without
    probabilities."""
    if not task_of(target).has_right:
        return np.zeros(len(best.labels), np.float32), np.zeros(len(best.labels), bool)
    most = min(_MOST_EVALUATIONS, max(1, _MOST_NUMBERS // best.logits.size), len(other_steps))
    positions = np.linspace(0, len(other_steps) - 1, most)
    truth = best.labels
    never_right, total, count = np.ones(len(truth), bool), np.zeros(len(truth)), 0
    for step in sorted({*(other_steps[round(position)] for position in positions), best.step}):
        with contextlib.suppress(StoreError):
            own = step == best.step
            saved = best if own else saved_predictions.read_logits(run, step, target)
            if np.array_equal(saved.labels, truth):  # otherwise it is of other examples
                answers = task_of(target).answers(saved.logits, target, rule)
                never_right &= task_of(target).errors(answers.values, truth) != 0
                total += answers.probability_of(truth)
                count += 1
    return (1 - total / count).astype(np.float32), never_right


def _order_consistency(
    run: Run, scored: SavedLogits, target: Target, rule: DecisionRule, metrics: Sequence[Metric]
) -> OrderConsistency | None:  # fmt: skip
    """Read the order consistency. None if it was not measured, is damaged, or belongs to a replaced
    model; the page then offers to measure it."""
    swapped = None
    with contextlib.suppress(StoreError):
        swapped = saved_predictions.read_swapped_logits(run, len(scored.labels))
    size = scored.logits.shape[1]
    if swapped is None or (swapped.step, swapped.given.shape[1]) != (scored.step, size):
        return None
    labels, task = scored.labels[swapped.rows], task_of(target)
    given = task.answers(swapped.given, target, rule)
    other = task.answers(swapped.swapped, target, rule)
    answers = given.values
    both = task.answers(swapped.given, target, rule, swapped=swapped.swapped).values
    change = task.errors(other.values, answers)
    flips = (change != 0) & task.has_right
    if task.has_right:
        change = np.abs(given.probability_of(answers) - other.probability_of(answers))
    worst = np.lexsort((-change, ~flips))[:10]
    plain, averaged = (task.scores(decided, labels, target, metrics) for decided in (answers, both))
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
    """Conclusion of an evaluation."""

    measure: str  # what the score is called: F1, or macro F1
    score: Interval
    baseline: str  # the best one's name; empty if none was measured
    level: float  # its score
    gain: Interval | None  # of the model's expected score over the baseline
    always: str | None  # the class, if it always answers the same
    errors: int
    examples: int
    # A threshold worth choosing; None if there is none, or one was chosen.
    better_threshold: CrossFittedThresholds | None
    threshold: float | None  # the saved one; None for the most probable class
    most_probable: float = 0.0  # F1 of the most probable class
    # F1 on new examples at the fitted threshold; None unless that is the saved one.
    fitted: Interval | None = None
    expected: Interval | None = None  # F1 that new pairs will show; None if that is the same
    candidates: int = 1  # evaluations that the model was picked among


def kept_metrics(run: Run, summary: RunSummary) -> dict[str, float]:
    """Return the kept model's validation scores at its saved threshold, or else of the most
    probable class. Empty before the first evaluation."""
    best, prepared = summary.best, summary.prepared
    if best is None:
        return {}
    rule, scores = decision_rule.read_rule(run.best), dict(best.metrics)
    if prepared is None or rule.threshold_for(prepared.labels) is None:
        return scores
    with contextlib.suppress(StoreError):
        target = prepared.target
        scored = saved_predictions.read_logits(run, best.step, target)
        task, metrics = task_of(target), measured(run.config(), target)
        answers = task.answers(scored.logits, target, rule).values
        scores |= task.scores(answers, scored.labels, target, metrics)
    return scores


def run_verdict(run: Run, summary: RunSummary) -> Verdict:
    """Return the verdict on a run's kept model. Fast, because its evaluation is cached. Raises a
    StoreError as `evaluate_run` does."""
    return verdict(evaluate_run(run, summary).analysis, summary.baselines)


def verdict(analysis: Analysis, baselines: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Test whether the model beats the best baseline by more than chance, and suggest what would
    improve it."""
    headline = task_of(analysis.target).headline
    metric = headline.name
    score, examples = analysis.scores[metric], analysis.examples
    expected = analysis.expected.get(metric)
    levels = {name: scores[metric] for name, scores in baselines.items() if metric in scores}
    baseline = max(levels, key=lambda name: headline.rank(levels[name]), default="")
    details, saved = analysis.details, analysis.threshold
    fitted = details.fitted
    is_fitted = saved is not None and fitted and math.isclose(saved, fitted.threshold)
    gain = None
    # Folds' baselines are means over the folds, which F1 of all rows is not.
    apart = analysis.by_fold.get(metric, score.value) - score.value
    if baseline:
        new = fitted.f1 if fitted and is_fitted else expected or score
        counted = examples
        if isinstance(details, ClassDetails):
            counted = details.behind_f1(analysis.target.positive)
        new = replace(new, value=new.value + apart, low=new.low + apart, high=new.high + apart)
        share = baselines[baseline].get("examples", examples) / examples
        measured_on = counted * share * analysis.worth / examples
        gain = intervals.unpaired_difference(
            new, levels[baseline], measured_on, headline.range[0] < 0
        )
    return Verdict(
        measure=catalog.metric_name(metric, len(analysis.target.names)),
        score=score,
        baseline=baseline,
        level=levels.get(baseline, 0.0),
        gain=gain,
        always=None if details.always is None else analysis.target.names[details.always],
        errors=details.errors,
        examples=examples,
        better_threshold=fitted if fitted and fitted.is_recommended and saved is None else None,
        threshold=saved,
        most_probable=analysis.most_probable[metric],
        fitted=fitted.f1 if is_fitted else None,
        expected=expected,
        candidates=analysis.picking.candidates if analysis.picking else 1,
    )


def kept_answers(run: Run) -> KeptAnswers:
    """Read the answers of a run's kept model. Raises a StoreError if they were not kept."""
    summary = run.state()
    if summary.best is None or summary.prepared is None:
        raise StoreError("Run {id} was not evaluated.", id=run.id)
    target = summary.prepared.target
    saved = saved_predictions.read_logits(run, summary.best.step, target)
    table = saved_predictions.read_examples(run, labels=saved.labels)
    rule = decision_rule.read_rule(run.best)
    values = task_of(target).answers(saved.logits, target, rule).values
    return KeptAnswers(run, target, saved.labels, table, values)


def same_pairs(first: KeptAnswers, second: KeptAnswers) -> bool:
    """Return True if two models were scored on the same examples, by what is learned, the true
    answers and, if they were kept, the texts. The range of a score is that of the training pairs,
    which may differ."""
    other = second.target
    like = replace(first.target, low=other.low, high=other.high, decimal=other.decimal)
    if like != other or not np.array_equal(first.truth, second.truth):
        return False
    return first.table is None or second.table is None or first.table.equals(second.table)


def compare_runs(
    first: KeptAnswers, second: KeptAnswers, metrics: Sequence[Metric],
    bias: Mapping[str, float] | None = None,
) -> comparison.Comparison | None:  # fmt: skip
    """Compare two models on the same examples; None if the examples differ. `bias`: as `compare`
    takes it; by default that of the two runs."""
    if not same_pairs(first, second):
        return None
    if bias is None:
        bias = picking.difference(first.picking, second.picking)
    return comparison.compare(
        first.answers, second.answers, first.truth, first.target, metrics,
        first.shared or second.shared, bias,
    )  # fmt: skip
