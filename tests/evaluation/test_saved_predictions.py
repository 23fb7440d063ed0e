"""What lies in `predictions/`: it comes back as it went in, and damage is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from finetune.config import RunConfig
from finetune.errors import StoreError
from finetune.evaluation import saved_predictions
from finetune.runs.run import Run
from finetune.runs.store import RunStore


@pytest.fixture
def run(store: RunStore) -> Run:
    return store.create(RunConfig())


def test_logits_come_back_as_they_went_in(run: Run) -> None:
    logits = np.array([[0.5, -1.0], [2.0, 3.0]], np.float32)
    saved_predictions.save_logits(run, 1_234_567, logits, np.array([0, 1]))
    found = saved_predictions.read_logits(run, 1_234_567)
    assert found.step == 1_234_567
    assert found.broken == 0
    np.testing.assert_array_equal(found.logits, logits)
    np.testing.assert_array_equal(found.labels, [0, 1])


def test_what_is_no_number_becomes_no_answer_and_is_counted(run: Run) -> None:
    logits = np.array([[np.nan, 1.0], [np.inf, 0.0], [1e9, 0.0], [1.0, 2.0]], np.float32)
    saved_predictions.save_logits(run, 1, logits, np.zeros(4, np.int64))
    found = saved_predictions.read_logits(run, 1)
    assert found.broken == 2
    assert np.isfinite(found.logits).all()
    np.testing.assert_array_equal(found.logits[0], [0, 0])
    np.testing.assert_array_equal(found.logits[3], [1, 2])


def test_what_is_missing_or_damaged_is_said(run: Run) -> None:
    with pytest.raises(StoreError, match=r"step 7 of run .* was not kept"):
        saved_predictions.read_logits(run, 7)
    saved_predictions.save_logits(run, 7, np.ones((3, 2), np.float32), np.zeros(3, np.int64))
    path = run.predictions / "step-000007.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StoreError, match="cannot be read"):
        saved_predictions.read_logits(run, 7)
    saved_predictions.save_logits(run, 7, np.ones((3, 2), np.float32), np.zeros(5, np.int64))
    with pytest.raises(StoreError, match="shapes"):
        saved_predictions.read_logits(run, 7)
    assert saved_predictions.read_swapped_logits(run) is None
    assert saved_predictions.read_examples(run) is None
    (run.predictions / "validation.parquet").write_text("none")
    assert saved_predictions.read_examples(run) is None


def test_examples_and_both_orders_come_back(run: Run) -> None:
    table = pa.table({"sentence1": ["a", "b"], "sentence2": ["c", "\u65e5"], "label": [0, 1]})
    saved_predictions.save_examples(run, "validation", table)
    found = saved_predictions.read_examples(run)
    assert found is not None
    assert found.equals(table)
    both = saved_predictions.SwappedLogits(
        3, np.array([1]), np.ones((1, 2), np.float32), np.zeros((1, 2), np.float32)
    )
    saved_predictions.save_swapped_logits(run, both)
    again = saved_predictions.read_swapped_logits(run)
    assert again is not None
    assert (again.step, again.rows.tolist(), again.given.tolist()) == (3, [1], [[1, 1]])


def test_any_change_is_another_version(run: Run) -> None:
    before = saved_predictions.files_version(run)
    saved_predictions.save_logits(run, 1, np.ones((1, 2), np.float32), np.zeros(1, np.int64))
    after = saved_predictions.files_version(run)
    assert before != after


def test_nothing_half_written_is_left(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, **arrays: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        saved_predictions.save_logits(run, 1, np.ones((1, 2), np.float32), np.zeros(1, np.int64))
    assert list(run.predictions.iterdir()) == []
