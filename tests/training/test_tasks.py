"""A task is one object: another one, registered for a test, trains, scores and answers its way."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.data import splits
from finetune.evaluation import report
from finetune.hub import model_card
from finetune.jobs import pipeline
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks import registry
from finetune.tasks.single_label import SingleLabel
from finetune.training import accelerator


class Ordinal(SingleLabel):
    """Classes in an order: the answer is what the mean exceeds, and the loss how far it is off."""

    name = "ordinal"

    def plain_answers(self, scores: Any) -> Any:
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        places = np.arange(scores.shape[1])
        return np.floor((shares * places).sum(axis=1) + 0.45).astype(np.int64)

    def loss(
        self, outputs: Any, labels: Any, class_weights: Any = None, smoothing: float = 0
    ) -> Any:
        import torch

        places = torch.arange(outputs.logits.shape[1], dtype=torch.float32)
        return ((outputs.logits.softmax(-1) @ places - labels) ** 2).mean()

    def mean_loss(self, logits: Any, labels: Any) -> float:
        return float(((self.plain_answers(logits) - labels) ** 2).mean())


@pytest.fixture
def ordinal(monkeypatch: pytest.MonkeyPatch) -> Ordinal:
    task, load = Ordinal(), splits.load_pairs

    def as_ordinal(*arguments: Any) -> splits.Pairs:
        pairs = load(*arguments)
        return dataclasses.replace(pairs, target=dataclasses.replace(pairs.target, task=task.name))

    monkeypatch.setitem(registry.TASKS, task.name, task)
    monkeypatch.setattr(splits, "load_pairs", as_ordinal)
    return task


def test_another_task_trains_scores_and_answers(
    store: RunStore, toy_config: RunConfig, ordinal: Ordinal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "keep_freed_memory", lambda: None)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    run: Run = store.create(
        toy_config.changed(max_steps=4, eval_steps=2, max_train_samples=32, mixed_precision="no")
    )
    for event in pipeline.train_events(run, pipeline.StopSwitch(run)):
        run.append(event)
    state = run.state()
    assert state.status == "finished"
    assert state.prepared is not None
    assert state.prepared.target.task == ordinal.name
    found = report.evaluate_run(run, state)
    wrong = (found.answers - found.truth) ** 2
    assert state.best is not None
    assert state.best.metrics["loss"] == pytest.approx(wrong.mean())
    assert state.best.metrics["accuracy"] == pytest.approx((wrong == 0).mean())
    assert set(state.best.intervals) == {"accuracy", "f1"}
    assert "## Results" in model_card.card_text(run, state, "ada/texts")
