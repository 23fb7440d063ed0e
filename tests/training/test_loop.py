"""The loop: equal to the course's, what it does at its edges, and what it tells a tracker."""

import math
from unittest.mock import Mock

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from finetune.config import RunConfig
from finetune.errors import TrainingError
from finetune.jobs import train
from finetune.jobs.train import carry_out_run
from finetune.runs import events, summary
from finetune.runs.events import Phase
from finetune.training import loop, recipe
from finetune.training.accelerator import Tracker
from tests.support import course, toys
from tests.support.training import evaluations, fit, losses, work_in_this_process


def test_it_is_the_courses_loop(toy_config, toy_pairs):
    happened, classifier = fit(toy_config, toy_pairs)
    expected, logits, weights = course.train(toy_config.checkpoint, toy_pairs.splits, num_labels=2)
    assert losses(happened) == pytest.approx(expected, abs=1e-5)
    final, answers = evaluations(happened)[-1].metrics, logits.argmax(axis=1)
    truth = toy_pairs.splits["validation"]["label"]
    assert final["accuracy"] == pytest.approx(accuracy_score(truth, answers), abs=1e-5)
    assert final["f1"] == pytest.approx(f1_score(truth, answers), abs=1e-5)
    for name, value in classifier.state_dict().items():
        assert torch.allclose(value, weights[name], atol=1e-5), name


def test_small_batches_are_as_one_large(
    toy_config, still_checkpoint, toy_pairs_folder, monkeypatch
):
    """The third step of an epoch has two batches of the four. Plain gradient descent, for AdamW
    hardly sees by what a gradient is divided."""
    sgd = torch.optim.SGD
    monkeypatch.setattr(torch.optim, "AdamW", lambda groups, **_: sgd(groups, lr=0.1))
    pairs = toys.load(toy_pairs_folder, max_train_samples=40)
    config = toy_config.changed(checkpoint=str(still_checkpoint))
    weights = []
    for size, together in ((16, 1), (4, 4)):
        values = {"per_device_train_batch_size": size, "gradient_accumulation_steps": together}
        happened, classifier = fit(config.changed(**values), pairs)
        assert len(losses(happened)) == 6
        weights.append(classifier.state_dict())
    for name, value in weights[0].items():
        assert torch.allclose(value, weights[1][name], atol=1e-6), name


@pytest.mark.parametrize("values", [{}, {"use_lora": True}], ids=str)
def test_evaluations_change_no_weight(toy_config, toy_pairs, monkeypatch, values):
    config = toy_config.changed(eval_steps=-1, dropout=0.1, **values)
    happened, classifier = fit(config, toy_pairs)
    untrained, *scored = [event for event in happened if isinstance(event, events.Evaluated)]
    assert [event.step for event in scored] == [2, 4, 6, 8, 10, 12, 14, 16]
    state = summary.RunSummary().fold(happened)
    assert state.curve == [untrained, *scored]
    assert (untrained.step, untrained.best, state.best in scored) == (0, False, True)
    monkeypatch.setattr(loop.Loop, "score_untrained", lambda self: iter(()))
    without, other = fit(config, toy_pairs, interval=9)
    assert [event.step for event in evaluations(without)] == [9, 16]
    assert losses(without) == losses(happened)
    weights = other.state_dict()
    assert all(torch.equal(value, weights[n]) for n, value in classifier.state_dict().items())


@pytest.mark.parametrize(
    ("values", "batches", "processes", "steps"),
    [
        # The last batch of an epoch is small.
        ({"gradient_accumulation_steps": 4, "num_train_epochs": 2}, 9, 1, (3, 6)),
        ({"gradient_accumulation_steps": 4, "max_steps": 4}, 9, 1, (3, 4)),
        # Epochs left open are fewer the more pairs there are.
        ({"num_train_epochs": 0}, 1, 1, (1, 10)), ({"num_train_epochs": 0}, 219, 1, (219, 876)),
        ({"num_train_epochs": 0}, 230, 2, (230, 690)),
        ({"num_train_epochs": 0}, 50_000, 4, (50_000, 50_000)),
    ],
)  # fmt: skip
def test_steps_are_counted(values, batches, processes, steps):
    config = RunConfig(per_device_train_batch_size=8, **values)
    assert recipe.count_steps(config, batches, processes) == steps


@pytest.mark.parametrize(
    ("values", "validation_pairs", "every"),
    [
        # 1,000 steps of 16 pairs, a fifth of which may be scored.
        ({}, 320, 100), ({}, 321, 112), ({}, 100_000, 1000), ({}, 0, 100),
        ({"gradient_accumulation_steps": 2}, 640, 100), ({"eval_steps": 7}, 100_000, 7),
        ({"eval_steps": 0}, 100_000, 20),
        # Where the scores decide on the rate or the end.
        ({"early_stopping_patience": 2}, 100_000, 100),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, 100_000, 100),
    ],
)  # fmt: skip
def test_evaluations_are_fewer_the_larger_the_validation_split_is(values, validation_pairs, every):
    config = RunConfig(per_device_train_batch_size=16, **values)
    assert recipe.eval_every(config, 20, 1000, 1, validation_pairs) == every


@pytest.mark.parametrize(
    ("asked", "kept", "evaluated"),
    # Asked for each batch of an evaluation and each step.
    [(9, 7, []), (17, 8, [8]), (12, 8, []), (0, 0, [])],
    ids=["before an evaluation", "after one", "during one", "before the first step"],
)
def test_a_stop_keeps_the_best_model_last_or_none(asked, kept, evaluated, toy_config, toy_pairs):
    """Losses are told every fifth step: the stop and the model say the same step."""
    saved = []
    calls = iter(range(10**9))
    happened, _ = fit(
        toy_config.changed(logging_steps=5), toy_pairs, should_stop=lambda: next(calls) >= asked,
        save_best=lambda step, model, weights: saved.append(step),
    )  # fmt: skip
    assert isinstance(happened[-1], events.Stopped)
    assert [event.step for event in evaluations(happened)] == evaluated
    assert saved == ([kept] if kept else [])
    phases = [event.phase for event in happened if isinstance(event, events.PhaseStarted)]
    assert (Phase.SAVE_UNSCORED_MODEL in phases) == bool(kept and not evaluated)
    assert (phases[-1] == Phase.SAVE_CHECKPOINT) == bool(kept)
    shown = summary.RunSummary().fold(happened)
    assert (shown.saved_step, shown.step) == (kept or None, happened[-1].step)


@pytest.mark.parametrize(
    ("name", "sign", "rate"), [("f1", 1, 1e-3), ("loss", -1, 1e-3), ("accuracy", 1, 1e-7)]
)
def test_the_best_is_by_the_chosen_metric_then_by_loss(toy_config, toy_pairs, name, sign, rate):
    config = toy_config.changed(metric_for_best_model=name, eval_steps=3, learning_rate=rate)
    happened, _ = fit(config, toy_pairs)
    scored = [evaluation.metrics for evaluation in evaluations(happened)]
    values = [(sign * metrics[name], -metrics["loss"]) for metrics in scored]
    for number, evaluation in enumerate(evaluations(happened)):
        before = max(values[:number], default=(-math.inf, 0.0))
        assert evaluation.best == (values[number] > before)
    if rate < 1e-6:  # it hardly learns
        assert len({value for value, _ in values}) < len(values)
        assert sum(evaluation.best for evaluation in evaluations(happened)) > 1


def test_no_number_names_its_step_and_a_full_device_the_batch(
    toy_config, toy_checkpoint, toy_pairs, store, tmp_path
):
    toys.copy_model(toy_checkpoint, tmp_path / "broken")
    # Finite, but its products are not.
    toys.overwrite(
        tmp_path / "broken",
        lambda weights: weights["classifier.weight"].copy_(torch.tensor([[3e38], [-3e38]])),
    )
    with pytest.raises(TrainingError, match="became inf at step 1"):
        fit(toy_config.changed(checkpoint=str(tmp_path / "broken")), toy_pairs)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    failed = train.failure_event(error, store.create(RunConfig(per_device_train_batch_size=16)))
    assert "out of memory" in failed.error
    assert "per_device_train_batch_size is 16" in failed.remedy


@pytest.mark.long
def test_a_tracker_gets_every_number_or_it_is_said(store, toy_checkpoint, tmp_path, monkeypatch):
    work_in_this_process(monkeypatch)
    monkeypatch.setenv("WANDB_MODE", "nowhere")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    config = RunConfig(
        checkpoint=str(toy_checkpoint), max_steps=4, logging_steps=1, max_length=32,
        max_eval_samples=8, mixed_precision="no",
    )  # fmt: skip
    told, refused = (store.create(config.changed(report_to=to)) for to in ("tensorboard", "wandb"))
    assert carry_out_run(told, lambda event: None) == 0
    accumulator = EventAccumulator(str(told.folder / "tensorboard"))
    accumulator.Reload()
    values = [scalar.value for scalar in accumulator.Scalars("train/loss")]
    assert values == pytest.approx([step.loss for step in told.state().train])
    assert len(values) == 4
    scores = {scalar.step: scalar.value for scalar in accumulator.Scalars("eval/f1")}
    assert scores == pytest.approx({one.step: one.metrics["f1"] for one in told.state().curve})
    assert carry_out_run(refused, lambda event: None) == 1
    assert refused.state().error.startswith("report_to is wandb, which does not begin")


def test_measurements_have_trainers_names_and_a_tracker_that_breaks_ends_no_run(capsys):
    accelerator = Mock()
    tracker = Tracker(accelerator, RunConfig(report_to="wandb"), "x")
    scored = events.Evaluated(step=4, epoch=1, metrics={"f1": 0.5}, seconds=1, best=True)
    tracker(scored)
    tracker(events.Saved(step=4))
    accelerator.log.assert_called_once_with({"eval/f1": 0.5}, step=4)
    accelerator.log.side_effect = ConnectionError("the tracker's server has gone")
    tracker(scored)
    tracker(scored)
    assert accelerator.log.call_count == 2
    assert "the tracker has stopped: ConnectionError" in capsys.readouterr().out
