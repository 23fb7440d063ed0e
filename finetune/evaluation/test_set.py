"""Measures a run's kept model: against baselines, with the sentences swapped, on the test set."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from finetune.errors import DataError
from finetune.evaluation import cross_validation, saved_predictions
from finetune.evaluation.saved_predictions import SwappedLogits
from finetune.inference import decision_rule
from finetune.metrics.catalog import LOSS
from finetune.runs import events
from finetune.runs.run import Run
from finetune.tasks.base import PredictOptions
from finetune.tasks.registry import measured, task_of

if TYPE_CHECKING:
    from finetune.data.splits import Pairs

MOST_SWAPPED = 10_000  # pairs, drawn with a seed; each is scored twice


def score_kept_model(
    run: Run, stop: Callable[[], bool] = lambda: False
) -> events.KeptModelScored | None:
    """Score the kept model on the validation split as it answers files, so that both have the same
    scores, and pairs, or 10,000 of them, in the other order too. Of a model trained on all rows,
    keep the answers of the folds. Returns the new scores; None if stopped, or if they are those of
    the folds."""
    from finetune.inference.scorer import Scorer

    step = run.state().saved_step or 0
    if run.config().trains_on_all:
        if run.state().paired:
            cross_validation.keep_orders(run, step)
        return None
    table = validation_examples(run)
    columns = saved_predictions.sentences_of(table)
    scorer = Scorer.of_run(run, "own")
    given = scorer.scores(*columns)
    if stop():
        return None
    if len(columns) > 1:
        rows = np.arange(table.num_rows)
        if len(rows) > MOST_SWAPPED:
            rows = np.sort(np.random.default_rng(0).choice(rows, MOST_SWAPPED, replace=False))
        first, second = ([column[row] for row in rows] for column in columns)
        swapped = SwappedLogits(step, rows, given[rows], scorer.scores(second, first))
        saved_predictions.save_swapped_logits(run, swapped)
    summary, labels = run.state(), saved_predictions.targets_of(table)
    if summary.prepared is None or summary.best is None:
        return None
    # In place of those of its evaluation.
    saved_predictions.save_logits(run, step, given, labels)
    target, shared = summary.prepared.target, saved_predictions.shared_rows(table)
    task, metrics = task_of(target), measured(run.config(), target)
    if fitted := task.fitted_rule(given, labels, target):
        decision_rule.write_rule(run.best, **fitted)
    modules = task.score_modules(target, [metric for metric in metrics if metric.kind != "any"])
    modules.add_batch(predictions=given, references=labels)
    scores = {**modules.compute(), LOSS.name: float(task.losses(given, labels).mean())}
    found = task.intervals(task.plain_answers(given), labels, target, metrics, shared)
    ends = {name: [score.low, score.high] for name, score in found.items()}
    return events.KeptModelScored(step=step, metrics=summary.best.metrics | scores, intervals=ends)


def open_test_set(run: Run) -> None:
    """Score the kept model on the test split, and record in the run that it was opened. Raises a
    DataError if there is no test split, or the pairs are not those of the run."""
    from finetune.inference.scorer import Scorer

    pairs = _load_pairs(run)
    if "test" not in pairs.splits:
        raise DataError("This data has no test split.", "Bring a test file, or choose other data.")
    table = keep_examples(run, pairs, "test")
    scorer = Scorer.of_run(run, "own")
    logits = scorer.scores(*saved_predictions.sentences_of(table))
    labels = saved_predictions.targets_of(table)
    step = run.state().saved_step or 0
    saved_predictions.save_logits(run, step, logits, labels, "test")
    rule, metrics = decision_rule.read_rule(run.best), measured(run.config(), pairs.target)
    task = task_of(pairs.target)

    def scores(options: PredictOptions) -> dict[str, float]:
        answers = task.answers(logits, pairs.target, rule, options).values
        return task.scores(answers, labels, pairs.target, metrics)

    at_threshold = scores(PredictOptions()) if rule.threshold else {}
    plain, threshold = scores(PredictOptions(threshold=False)), rule.threshold
    run.append(
        events.TestSetOpened(
            step=step, metrics=plain, threshold=threshold, at_threshold=at_threshold
        )
    )


def _load_pairs(run: Run) -> Pairs:
    """Load the pairs of a run, if they are still those it was trained on."""
    from finetune.data import splits

    pairs = splits.load_pairs(run.pinned_config(), run.folder.parent)
    prepared = run.state().prepared
    if prepared is not None and prepared.fingerprint not in ("", pairs.fingerprint):
        raise DataError("The data has changed since this run began.", "Start a new run on it.")
    return pairs


def validation_examples(run: Run) -> pa.Table:
    """Return the run's validation examples. Raises a DataError if they have changed."""
    table = saved_predictions.read_examples(run)
    return keep_examples(run, _load_pairs(run), "validation") if table is None else table


def keep_examples(run: Run, pairs: Pairs, split: str) -> pa.Table:
    """Save the examples of a split beside their logits. Returns them."""
    table = pairs.splits[split].with_format("arrow")[:]
    saved_predictions.save_examples(run, split, table)
    return table
