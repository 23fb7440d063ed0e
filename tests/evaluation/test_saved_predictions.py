"""What lies in `predictions/` comes back as it went in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from finetune.config import RunConfig
from finetune.errors import StoreError
from finetune.evaluation import saved_predictions
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.base import Target

ZEROS = np.zeros((3, 2), np.float32)


@pytest.fixture
def run(store: RunStore) -> Run:
    return store.create(RunConfig())


def test_logits_come_back_and_what_is_no_number_becomes_no_answer(run: Run) -> None:
    before = saved_predictions.files_version(run)
    logits = np.array([[np.nan, 1.0], [np.inf, 0.0], [1e9, 0.0], [-1.0, 2.5]], np.float32)
    saved_predictions.save_logits(run, 1_234_567, logits, np.array([0, 1, 0, 1]))
    saved = saved_predictions.read_logits(run, 1_234_567, Target(("no", "yes")))
    assert (saved.step, saved.broken) == (1_234_567, 2)
    assert np.isfinite(saved.logits).all()
    assert saved.logits[[0, 3]].tolist() == [[0, 0], [-1.0, 2.5]]
    assert saved.labels.tolist() == [0, 1, 0, 1]
    assert saved_predictions.files_version(run) != before


def test_examples_and_both_orders_come_back(run: Run) -> None:
    with pytest.raises(StoreError, match=r"step 7 of run .* was not kept"):
        saved_predictions.read_logits(run, 7, Target(("no", "yes")))
    assert saved_predictions.read_swapped_logits(run) is None
    assert saved_predictions.read_examples(run) is None
    table = pa.table({"sentence1": ["a", "b"], "sentence2": ["c", "\u65e5"], "label": [0, 1]})
    saved_predictions.save_examples(run, "validation", table)
    assert table.equals(saved_predictions.read_examples(run))
    both = saved_predictions.SwappedLogits(3, np.array([1]), ZEROS[:1] + 1, ZEROS[:1])
    saved_predictions.save_swapped_logits(run, both)
    again = saved_predictions.read_swapped_logits(run)
    assert again is not None
    assert (again.step, again.rows.tolist(), again.given.tolist()) == (3, [1], [[1, 1]])
