"""The batch that fits is found, learns the same, and is kept when the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForSequenceClassification

from finetune.config import RunConfig
from finetune.data import splits
from finetune.errors import TrainingError
from finetune.evaluation import test_set
from finetune.jobs import train
from finetune.runs import events
from finetune.runs.store import RunStore
from finetune.training import accelerator as engine
from finetune.training import batch_size
from tests.support.training import prepared, work_in_this_process


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device on which 4 pairs fit and no more; the sizes tried."""
    tried: list[int] = []
    forward = BertForSequenceClassification.forward

    def limited(self: Any, *given: Any, **named: Any) -> Any:
        size = len(named["input_ids"])
        tried.append(size)
        if size > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(self, *given, **named)

    monkeypatch.setattr(BertForSequenceClassification, "forward", limited)
    return tried


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    work_in_this_process(monkeypatch)


def test_the_largest_that_fits_is_found_and_the_step_stays(
    toy_config: RunConfig, toy_pairs: splits.Pairs, small_device: list[int]
) -> None:
    chosen = toy_config.changed(per_device_train_batch_size=12)
    accelerator = engine.make_accelerator(chosen)
    _, classifier, batches = prepared(chosen, toy_pairs)
    before, weights = torch.get_rng_state(), [p.clone() for p in classifier.parameters()]
    found = batch_size.find_batch_size(chosen, accelerator, classifier, batches)
    assert small_device == [12, 6, 4]
    assert (found.per_device_train_batch_size, found.gradient_accumulation_steps) == (4, 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, weights, classifier.parameters()))
    assert all(p.grad is None for p in classifier.parameters())


def test_one_pair_too_many_is_said(
    toy_config: RunConfig, toy_pairs: splits.Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(self: Any, **named: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(BertForSequenceClassification, "forward", never)
    accelerator = engine.make_accelerator(toy_config)
    _, classifier, batches = prepared(toy_config, toy_pairs)
    with pytest.raises(TrainingError, match=r"Not even one pair of \d+ tokens fits .* max_length"):
        batch_size.find_batch_size(toy_config, accelerator, classifier, batches)


def test_a_run_trains_with_what_was_found(
    store: RunStore,
    toy_checkpoint: Path,
    small_device: list[int],
    in_this_process: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(test_set, "score_both_orders", lambda run, stop: None)  # batches of its own
    run = store.create(
        RunConfig(
            checkpoint=str(toy_checkpoint), max_length=32, max_steps=2, logging_steps=1,
            per_device_train_batch_size=8, per_device_eval_batch_size=4, auto_find_batch_size=True,
            max_eval_samples=8,
        )
    )  # fmt: skip
    assert train.carry_out_run(run, lambda event: None) == 0
    (prepared_,) = [e for e in run.tail()[0] if isinstance(e, events.Prepared)]
    assert prepared_.per_device_train_batch_size == 4
    assert prepared_.gradient_accumulation_steps == 2
    assert prepared_.steps_per_epoch == -(-prepared_.train_examples // 8)
    assert max(small_device[1:]) == 4


def test_too_large_a_batch_ends_with_the_one_to_set(
    store: RunStore, toy_checkpoint: Path, small_device: list[int], in_this_process: None
) -> None:
    run = store.create(
        RunConfig(checkpoint=str(toy_checkpoint), max_length=32, per_device_train_batch_size=16)
    )
    assert train.carry_out_run(run, lambda event: None) == 1
    last = run.tail()[0][-1]
    assert isinstance(last, events.Failed)
    assert "out of memory" in last.error
    assert "per_device_train_batch_size to 8 and gradient_accumulation_steps to 2" in last.remedy
    assert "auto_find_batch_size" in last.remedy
