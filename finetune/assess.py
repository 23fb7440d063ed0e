"""`python -m finetune.assess`: score a run's kept model anew, on pairs in the other order or on the
sealed test set.

The page starts it as a process of its own, and a worker calls the same functions when it has
trained. What the scores mean is `analysis`' business.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from finetune import caches, catalog, checkpoints, decision, errands, events, outcomes
from finetune.config import RunConfig
from finetune.errors import DataError, FinetuneError, StoreError
from finetune.outcomes import Swapped
from finetune.store import Run
from finetune.summary import fold

MOST_SWAPPED = 10_000  # pairs, drawn with a seed; each is scored twice


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 measured, 1 failed."""
    caches.ensure()
    parser = argparse.ArgumentParser(prog="python -m finetune.assess", description=__doc__)
    parser.add_argument("--folder", type=Path, help="an assessment's folder, as the page makes it")
    parser.add_argument("--run", type=Path, help="a run folder")
    parser.add_argument("--open_test", action="store_true", help="open the test set")
    asked = parser.parse_args(arguments)
    _set_environment(Run(asked.folder.parent.parent if asked.folder else asked.run))
    if asked.folder:
        return _carry_out(Run(asked.folder), Run(asked.folder.parent.parent))
    try:
        (open_test if asked.open_test else both_orders)(Run(asked.run))
    except FinetuneError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    return 0


def _set_environment(run: Run) -> None:
    """Ask the Hub only for pairs that are its own, and only where it answers: the libraries read
    this when they are imported."""
    with contextlib.suppress(StoreError):
        needed = catalog.needs_hub(run.config().dataset, catalog.BUNDLED_CHECKPOINT)
        if not needed or not catalog.hub_answers():
            os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"


def _carry_out(place: Run, run: Run) -> int:
    def work() -> events.Event:
        (open_test if place.id == "test" else both_orders)(run)
        return events.Finished(step=0, seconds=0.0)

    return errands.carry_out(place, "evaluate", work)


def beside(
    run: Run, chosen: RunConfig, half: bool, stop: Callable[[], bool]
) -> dict[str, dict[str, float]]:
    """Keep the validation examples, and score the baselines on them.

    Args:
        half: whether to encode in bf16.
        stop: asked between two batches.

    Returns:
        Baseline -> score -> value.

    Raises:
        DataError: when the pairs cannot be read any more.
    """
    from finetune import baselines

    pairs = _pairs(run)
    return baselines.measure(pairs, chosen.checkpoint, chosen.max_length, half, stop)


def both_orders(run: Run, stop: Callable[[], bool] = lambda: False) -> None:
    """Score the kept model on the validation pairs in both orders, or on 10,000 of them.

    Raises:
        DataError: when they are single sentences, or cannot be read any more.
        ModelError: when there is no model.
    """
    from finetune.scoring import Scorer

    if outcomes.examples(run) is None:
        _pairs(run)
    table = outcomes.examples(run)
    if table is None or "sentence2" not in table.column_names:
        raise DataError("These are single sentences: they have no order.")
    rows = np.arange(table.num_rows)
    if len(rows) > MOST_SWAPPED:
        rows = np.sort(np.random.default_rng(0).choice(rows, MOST_SWAPPED, replace=False))
    chosen = table.take(rows)
    first, second = (chosen.column(name).to_pylist() for name in ("sentence1", "sentence2"))
    step = run.summary().saved_step or 0
    scorer = Scorer(run.best, checkpoints.length_of(run))
    given = scorer.scores(first, second)
    if stop():
        return
    other = scorer.scores(second, first)
    outcomes.save_swapped(run, Swapped(step, rows, given, other))


def open_test(run: Run) -> events.Opened:
    """Score the kept model on the test split, and write into the run that it was opened.

    Raises:
        DataError: when there is no test split, or the pairs are not those of the run.
        ModelError: when there is no model.
    """
    from finetune import data, intervals
    from finetune.scoring import Scorer

    summary = run.summary()
    pairs = data.load(run.config_as_begun(), run.folder.parent)
    if summary.prepared and pairs.fingerprint != summary.prepared.fingerprint:
        raise DataError(
            "The pairs have changed since this run was trained.", "Start a new run on them."
        )
    if "test" not in pairs.splits:
        raise DataError("These pairs have no test split.", "Bring a test file, or choose others.")
    table = pairs.splits["test"].with_format("arrow")[:]
    second = table.column("sentence2").to_pylist() if "sentence2" in table.column_names else None
    scorer = Scorer(run.best, checkpoints.length_of(run), paired=second is not None)
    logits = scorer.scores(table.column("sentence1").to_pylist(), second)
    labels = np.asarray(table.column("label").to_numpy(), np.int64)
    step = summary.saved_step or 0
    outcomes.save_examples(run, "test", table)
    outcomes.save_test(run, step, logits, labels)
    classes, positive = len(pairs.labels), pairs.positive
    chosen, at_threshold = decision.read(run.best), {}
    if chosen.threshold is not None and classes == 2:
        from finetune.calibration import probabilities

        answers = np.where(
            probabilities(logits)[:, positive] >= chosen.threshold, positive, 1 - positive
        )
        at_threshold = intervals.scores(labels, answers, classes, positive)
    opened = events.Opened(
        step=step,
        metrics=intervals.scores(labels, logits.argmax(axis=1), classes, positive),
        threshold=chosen.threshold,
        at_threshold=at_threshold,
    )
    run.append(opened)
    return opened


def _pairs(run: Run) -> Any:
    """The run's pairs, whose validation examples are kept beside their logits."""
    from finetune import data

    pairs = data.load(run.config_as_begun(), run.folder.parent)
    prepared = fold(run.tail()[0]).prepared
    if prepared is not None and prepared.fingerprint not in ("", pairs.fingerprint):
        raise DataError("The pairs have changed since this run began.", "Start a new run on them.")
    table = pairs.splits["validation"].with_format("arrow")[:]
    outcomes.save_examples(run, "validation", table)
    return pairs


if __name__ == "__main__":
    sys.exit(main())
