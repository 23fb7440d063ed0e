"""The loop: equal to the course's, to Trainer's, and well-behaved at its edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

from finetune.config import RunConfig
from finetune.data import splits
from finetune.errors import TrainingError
from finetune.runs import events, summary
from finetune.training import dataloaders, loop, metrics, model
from finetune.training.optimizer import build_optimizer
from finetune.ui import run_view
from tests.support import course, toys


def fit(
    config: RunConfig, pairs: splits.Pairs, hooks: loop.Hooks | None = None
) -> tuple[list[events.Event], PreTrainedModel]:
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=config.gradient_accumulation_steps
    )
    set_seed(config.seed)
    tokenizer, classifier = model.load_classifier(
        config.checkpoint, pairs.labels, config.max_length
    )
    batches = dataloaders.build_loaders(pairs, tokenizer, config)
    metric = metrics.AccuracyAndF1(pairs.labels)
    return list(loop.fit(config, accelerator, classifier, batches, metric, hooks)), classifier


def losses(stream: list[events.Event]) -> list[float]:
    return [e.loss for e in stream if isinstance(e, events.Stepped)]


def evaluations(stream: list[events.Event]) -> list[events.Evaluated]:
    return [e for e in stream if isinstance(e, events.Evaluated)]


def test_it_is_the_courses_loop(toy_config: RunConfig, toy_pairs: splits.Pairs) -> None:
    stream, classifier = fit(toy_config, toy_pairs)
    expected, scores, weights = course.train(
        toy_config.checkpoint, toy_pairs.splits, epochs=2, batch_size=8, rate=1e-3, seed=7
    )  # fmt: skip
    assert losses(stream) == pytest.approx(expected, abs=1e-5)
    final = evaluations(stream)[-1].metrics
    assert {name: final[name] for name in scores} == pytest.approx(scores, abs=1e-5)
    for name, value in classifier.state_dict().items():
        assert torch.allclose(value, weights[name], atol=1e-5), name


def trainer_on_the_same_batches(
    config: RunConfig, pairs: splits.Pairs, folder: Path
) -> tuple[Trainer, PreTrainedModel]:
    """transformers' `Trainer` with our optimizer (it spares biases and norms from decay, the
    course does not) and the batches of all epochs of a run in its order."""
    set_seed(config.seed)
    tokenizer, classifier = model.load_classifier(
        config.checkpoint, pairs.labels, config.max_length
    )
    loader = dataloaders.build_loaders(pairs, tokenizer, config).train
    epochs = [list(loader) for _ in range(config.num_train_epochs)]

    class SameBatches(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return Epochs(epochs)

    trainer = SameBatches(
        model=classifier,
        args=TrainingArguments(
            output_dir=str(folder),
            learning_rate=config.learning_rate,
            num_train_epochs=config.num_train_epochs,
            per_device_train_batch_size=config.per_device_train_batch_size,
            gradient_accumulation_steps=config.gradient_accumulation_steps,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            lr_scheduler_type="linear",
            optim="adamw_torch",
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    # It believes any `**kwargs` of a model's to divide the loss by the batches taken together,
    # which BERT's does not.
    trainer.loss_is_scaled_for_ga = False
    trainer.create_optimizer = lambda *_: setattr(  # type: ignore[method-assign]
        trainer, "optimizer", build_optimizer(classifier, config)
    )
    return trainer, classifier


class Epochs(DataLoader[Any]):
    """Batches made beforehand, the next epoch's each time."""

    def __init__(self, epochs: list[list[Any]]) -> None:
        super().__init__(epochs[0], batch_size=None)  # type: ignore[arg-type]
        self._epochs = iter(epochs)

    def __iter__(self) -> Any:
        return iter(next(self._epochs))


def test_trainer_gets_the_same(
    toy_config: RunConfig, toy_pairs: splits.Pairs, tmp_path: Path, still_checkpoint: Path
) -> None:
    config = toy_config.changed(checkpoint=str(still_checkpoint))
    stream, _ = fit(config, toy_pairs)
    trainer, _ = trainer_on_the_same_batches(config, toy_pairs, tmp_path)
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses(stream) == pytest.approx(logged, abs=1e-3)  # it logs rounded losses
    tokenizer, _ = model.load_classifier(config.checkpoint, toy_pairs.labels, config.max_length)
    output = trainer.predict(dataloaders.tokenize(toy_pairs.splits["validation"], tokenizer, 32))
    scores = metrics.AccuracyAndF1(toy_pairs.labels).compute(
        predictions=output.predictions.argmax(-1), references=output.label_ids
    )
    final = evaluations(stream)[-1].metrics
    assert {name: final[name] for name in scores} == pytest.approx(scores, abs=1e-5)
    assert final["loss"] == pytest.approx(output.metrics["test_loss"], abs=1e-5)


@pytest.mark.parametrize("rows", [40, 38], ids=["whole batches", "a small last batch"])
def test_the_last_window_of_an_epoch_is_the_mean_of_its_own_batches(
    toy_config: RunConfig,
    toy_pairs_folder: Path,
    tmp_path: Path,
    still_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
) -> None:
    """10 batches, 4 at a time: the third step of an epoch has two. Plain gradient descent, for
    AdamW hardly sees by what a gradient is divided."""
    pairs = toys.load(toy_pairs_folder, max_train_samples=rows)
    config = toy_config.changed(
        checkpoint=str(still_checkpoint), per_device_train_batch_size=4,
        gradient_accumulation_steps=4, learning_rate=0.1,
    )  # fmt: skip
    monkeypatch.setattr(torch.optim, "AdamW", lambda groups, **_: torch.optim.SGD(groups, lr=0.1))
    stream, ours = fit(config, pairs)
    assert len(losses(stream)) == 6
    trainer, its = trainer_on_the_same_batches(config, pairs, tmp_path)
    trainer.train()
    assert trainer.state.global_step == 6
    wanted = its.state_dict()
    for name, value in ours.state_dict().items():
        assert torch.allclose(value, wanted[name], atol=1e-6), name


def test_how_often_one_evaluates_does_not_change_what_is_learned(
    toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    seldom, _ = fit(toy_config, toy_pairs)
    often, _ = fit(toy_config.changed(eval_steps=2), toy_pairs)
    assert losses(often) == losses(seldom)


def test_it_learns(toy_config: RunConfig, toy_pairs: splits.Pairs) -> None:
    stream, _ = fit(toy_config.changed(num_train_epochs=24, learning_rate=3e-3), toy_pairs)
    assert losses(stream)[-1] < 0.7 * losses(stream)[0]


def test_the_stream_tells_the_whole_story(toy_config: RunConfig, toy_pairs: splits.Pairs) -> None:
    saved: list[int] = []
    kept: dict[int, Any] = {}
    hooks = loop.Hooks(
        save_best=lambda step, model, weights: saved.append(1),
        save_predictions=lambda step, logits, labels: kept.update({step: (logits, labels)}) or {},
    )
    stream, _ = fit(toy_config, toy_pairs, hooks)
    assert [e.step for e in evaluations(stream)] == [8, 16]
    assert isinstance(stream[-1], events.Finished)
    assert stream[-1].step == 16
    assert evaluations(stream)[0].best
    assert len(saved) == sum(e.best for e in evaluations(stream))
    assert list(kept) == [8, 16]
    for evaluation in evaluations(stream):
        logits, labels = kept[evaluation.step]
        assert logits.shape == (24, 2)
        assert np.mean(logits.argmax(1) == labels) == pytest.approx(evaluation.metrics["accuracy"])
    rates = [e.learning_rate for e in stream if isinstance(e, events.Stepped)]
    assert rates[0] == 1e-3
    assert rates == sorted(rates, reverse=True)


def test_accumulation_is_a_larger_batch(
    toy_config: RunConfig, toy_pairs: splits.Pairs, still_checkpoint: Path
) -> None:
    still = toy_config.changed(checkpoint=str(still_checkpoint))
    whole, _ = fit(still, toy_pairs)
    parts, _ = fit(
        still.changed(per_device_train_batch_size=2, gradient_accumulation_steps=4), toy_pairs
    )
    assert losses(parts) == pytest.approx(losses(whole), abs=1e-5)


def test_steps_are_counted_when_the_last_batch_is_small() -> None:
    config = RunConfig(gradient_accumulation_steps=4, num_train_epochs=2)
    assert loop.count_steps(config, 9) == (3, 6)
    assert loop.count_steps(config.changed(max_steps=4), 9) == (3, 4)


def test_max_steps_ends_within_an_epoch(toy_config: RunConfig, toy_pairs: splits.Pairs) -> None:
    stream, _ = fit(toy_config.changed(max_steps=3), toy_pairs)
    assert [e.step for e in evaluations(stream)] == [3]
    assert isinstance(stream[-1], events.Finished)


def test_clipping_bounds_the_step_and_reports_the_norm(
    toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    stream, _ = fit(toy_config.changed(max_grad_norm=0.5), toy_pairs)
    norms = [e.grad_norm for e in stream if isinstance(e, events.Stepped)]
    assert all(norm is not None and norm > 0 for norm in norms)


def test_biases_and_norms_can_be_spared(toy_config: RunConfig, toy_pairs: splits.Pairs) -> None:
    _, classifier = model.load_classifier(toy_config.checkpoint, toy_pairs.labels, 32)
    optimizer = build_optimizer(classifier, toy_config.changed(decay_biases_and_norms=False))
    spared = optimizer.param_groups[1]
    assert spared["weight_decay"] == 0.0
    assert all(p.ndim == 1 for p in spared["params"])
    assert all(p.ndim > 1 for p in optimizer.param_groups[0]["params"])
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    assert count == len(list(classifier.parameters()))


def stop_after(calls: int) -> Callable[[], bool]:
    asked = iter(range(10**9))
    return lambda: next(asked) >= calls


def test_stop_before_an_evaluation_keeps_the_present_model(
    toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    saved: list[Any] = []
    hooks = loop.Hooks(
        should_stop=stop_after(2), save_best=lambda step, model, weights: saved.append(model)
    )
    stream, _ = fit(toy_config, toy_pairs, hooks)
    end = [(type(e), getattr(e, "detail", getattr(e, "step", None))) for e in stream[-4:]]
    assert end == [
        (events.PhaseStarted, loop.UNSCORED),
        (events.Saved, 3),
        (events.PhaseStarted, loop.CHECKPOINT),
        (events.Stopped, 3),
    ]
    assert len(saved) == 1
    assert len(losses(stream)) == 3
    assert evaluations(stream) == []


def test_what_a_stop_saves_is_told_by_its_name(
    toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    """Losses are told every fifth step: the stop, the model and the page say the same step."""
    often = toy_config.changed(logging_steps=5)
    stream, _ = fit(often, toy_pairs, loop.Hooks(should_stop=stop_after(6)))
    told = [summary.fold_events(stream[: n + 1]) for n in range(len(stream))]
    saving = [run_view.announcement(one) for one in told if one.phase == "save"]
    assert len(saving) >= 2
    assert not [text for text in saving if "best" in text]
    said = run_view.announcement(summary.fold_events([e for e in stream if e.kind != "stopped"]))
    assert "Saving a checkpoint" in said
    ended = told[-1]
    assert (ended.train[-1].step, ended.step, ended.saved_step) == (5, 7, 7)


def test_a_stop_after_an_evaluation_saves_no_unscored_model(
    toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    stream, _ = fit(toy_config, toy_pairs, loop.Hooks(should_stop=stop_after(14)))
    saves = [e.detail for e in stream if isinstance(e, events.PhaseStarted) and e.phase == "save"]
    assert saves[0] == ""
    assert saves[-1] == loop.CHECKPOINT
    assert loop.UNSCORED not in saves
    ended = summary.fold_events(stream)
    assert ended.saved_step == 8
    assert ended.step == next(e.step for e in stream if isinstance(e, events.Stopped)) > 8


def test_stop_after_an_evaluation_keeps_the_best(
    toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    saved: list[Any] = []
    hooks = loop.Hooks(
        should_stop=stop_after(14), save_best=lambda step, model, weights: saved.append(model)
    )
    stream, _ = fit(toy_config, toy_pairs, hooks)
    assert isinstance(stream[-1], events.Stopped)
    assert len(saved) == len(evaluations(stream)) == 1


def test_stop_during_an_evaluation_ends_it(toy_config: RunConfig, toy_pairs: splits.Pairs) -> None:
    hooks = loop.Hooks(should_stop=stop_after(9))  # eight steps, then batches of the evaluation
    stream, _ = fit(toy_config, toy_pairs, hooks)
    assert isinstance(stream[-1], events.Stopped)
    assert evaluations(stream) == []


@pytest.mark.parametrize(("name", "sign"), [("f1", 1), ("accuracy", 1), ("loss", -1)])
def test_the_best_is_by_the_metric_chosen(
    toy_config: RunConfig, toy_pairs: splits.Pairs, name: str, sign: int
) -> None:
    chosen = toy_config.changed(metric_for_best_model=name, num_train_epochs=4, eval_steps=3)
    stream, _ = fit(chosen, toy_pairs)
    so_far = -math.inf
    for evaluation in evaluations(stream):
        value = sign * evaluation.metrics[name]
        assert evaluation.best == (value > so_far)
        so_far = max(so_far, value)


def test_a_loss_that_is_no_number_is_named_with_its_step(
    toy_config: RunConfig, toy_pairs: splits.Pairs, tmp_path: Path
) -> None:
    tokenizer, classifier = model.load_classifier(toy_config.checkpoint, toy_pairs.labels, 32)
    with torch.no_grad():
        classifier.classifier.weight.fill_(3e38)  # finite, but its products are not
        classifier.classifier.weight[1] *= -1
    model.save_model(classifier, tokenizer, tmp_path / "broken")
    with pytest.raises(TrainingError, match="became inf at step 1"):
        fit(toy_config.changed(checkpoint=str(tmp_path / "broken")), toy_pairs)
