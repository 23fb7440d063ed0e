"""Measures a run's kept model: against baselines, with the sentences swapped, on the test set."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from finetune.data import checkpoints
from finetune.errors import DataError
from finetune.evaluation import cross_validation, saved_predictions
from finetune.evaluation.saved_predictions import SwappedLogits
from finetune.inference import decision_rule
from finetune.runs import events
from finetune.runs.run import Run
from finetune.tasks.base import PredictOptions
from finetune.tasks.registry import measured, task_of

if TYPE_CHECKING:
    from finetune.data.splits import Pairs

MOST_SWAPPED = 10_000  # pairs, drawn with a seed; each is scored twice


def score_both_orders(run: Run, stop: Callable[[], bool] = lambda: False) -> None:
    """Score the kept model in both orders on the validation pairs, or on 10,000 of them. Of a model
    trained on all rows, keep the answers of the folds. Raises a DataError for single sentences."""
    from finetune.inference.scorer import Scorer

    if run.config().trains_on_all:
        return cross_validation.keep_orders(run, run.state().saved_step or 0)
    table = validation_examples(run)
    if "sentence2" not in table.column_names:
        raise DataError("These are single sentences: they have no order.")
    rows = np.arange(table.num_rows)
    if len(rows) > MOST_SWAPPED:
        rows = np.sort(np.random.default_rng(0).choice(rows, MOST_SWAPPED, replace=False))
    texts = table.take(rows)
    first, second = (texts.column(name).to_pylist() for name in ("sentence1", "sentence2"))
    scorer = Scorer(run.best, checkpoints.length_of(run.folder))
    given = scorer.scores(first, second)
    if not stop():
        swapped = scorer.scores(second, first)
        logits = SwappedLogits(run.state().saved_step or 0, rows, given, swapped)
        saved_predictions.save_swapped_logits(run, logits)


def open_test_set(run: Run) -> None:
    """Score the kept model on the test split, and record in the run that it was opened. Raises a
    DataError if there is no test split, or the pairs are not those of the run."""
    from finetune.inference.scorer import Scorer

    pairs = _load_pairs(run)
    if "test" not in pairs.splits:
        raise DataError("These pairs have no test split.", "Bring a test file, or choose others.")
    table = keep_examples(run, pairs, "test")
    sentences = [name for name in ("sentence1", "sentence2") if name in table.column_names]
    scorer = Scorer(run.best, checkpoints.length_of(run.folder))
    logits = scorer.scores(*(table.column(name).to_pylist() for name in sentences))
    labels = saved_predictions.targets_of(table)
    step = run.state().saved_step or 0
    saved_predictions.save_logits(run, step, logits, labels, "test")
    rule, metrics = decision_rule.read_rule(run.best), measured(run.config(), pairs.target)
    task = task_of(pairs.target)

    def scores(options: PredictOptions) -> dict[str, float]:
        answers = task.answers(logits, pairs.target, rule, options).values
        return task.scores(answers, labels, pairs.target, metrics)

    run.append(
        events.TestSetOpened(
            step=step,
            metrics=scores(PredictOptions(threshold=False)),
            threshold=rule.threshold,
            at_threshold=scores(PredictOptions()) if rule.threshold else {},
        )
    )


def _load_pairs(run: Run) -> Pairs:
    """Load the pairs of a run, if they are still those it was trained on."""
    from finetune.data import splits

    pairs = splits.load_pairs(run.pinned_config(), run.folder.parent)
    prepared = run.state().prepared
    if prepared is not None and prepared.fingerprint not in ("", pairs.fingerprint):
        raise DataError("The pairs have changed since this run began.", "Start a new run on them.")
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
