"""Recorded steps: the same training as step by step, or a reason in the log."""

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from finetune.config import RunConfig
from finetune.runs import events
from finetune.tasks.base import Target
from finetune.training import cuda_graphs, model
from finetune.training.cuda_graphs import RecordedStep
from tests.support import tape, uploads
from tests.support.tape import TapeRecorder
from tests.support.toys import graded_rows, labelled_rows
from tests.support.training import evaluations, fit, losses


@pytest.fixture
def record(monkeypatch):
    """Let the following runs be recorded, on a tape."""

    def record(*args):
        recorder = TapeRecorder(*args)
        monkeypatch.setattr(cuda_graphs, "recorder_for", lambda *_: recorder)
        return recorder

    return record


@pytest.fixture
def short(toy_config):
    """Six batches an epoch, of which the last is smaller."""
    return toy_config.changed(
        optim="adamw_torch_fused", max_grad_norm=1.0, per_device_train_batch_size=12,
        max_steps=7, eval_steps=4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def by_hand():
    """What a run comes to step by step, carried out once for all that have its configuration."""
    known = {}

    def learn(config, pairs):
        name = f"{config.to_json()} {pairs.fingerprint}"
        if name not in known:
            known[name] = fit(config, pairs)
        return known[name]

    return learn


def reasons(happened):
    return [event.reason for event in happened if isinstance(event, events.GraphsGivenUp)]


# An epoch's last step has two batches.
TOGETHER = {"dropout": 0.2, "gradient_accumulation_steps": 4}


@pytest.mark.parametrize(
    ("values", "recording", "words"),
    [
        ({}, (), ""),
        (TOGETHER, (), ""),
        ({"dropout": 0.2, "max_grad_norm": 0.0}, (), ""),
        ({"use_lora": True}, (), ""),
        ({"class_weights": "balanced", "label_smoothing_factor": 0.1}, (), ""),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "learning_rate": 0.1}, (), ""),
        ({"mixed_precision": "bf16"}, (), ""),
        # What cannot be recorded is done step by step from the same state.
        *((TOGETHER, fails, "out of memory") for fails in ((0, 0), (2, 150))),
        # A graph that is wrong is found before it is used.
        *(pytest.param(
            TOGETHER, (-1, 0, wrong), "memory" if wrong == "an error" else "differ from its work",
            marks=() if wrong in ("a stale input", "an error") else pytest.mark.long)
          for wrong in tape.WRONG),
    ],
    ids=str,
)  # fmt: skip
def test_it_learns_the_same(short, toy_pairs, record, by_hand, capfd, values, recording, words):
    config = short.changed(**values)
    before, expected = by_hand(config, toy_pairs)
    recorder = record(*recording)
    happened, recorded = fit(config, toy_pairs)
    # The device reads rates in fp32.
    close = 2e-2 if config.mixed_precision == "bf16" else 1e-4
    assert losses(happened) == pytest.approx(losses(before), abs=close)
    norms, norms_before = (
        [event.grad_norm or 0 for event in side if isinstance(event, events.Stepped)]
        for side in (happened, before)
    )
    assert norms == pytest.approx(norms_before, rel=100 * close)
    for one, other in zip(evaluations(happened), evaluations(before), strict=True):
        assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], abs=close)
    weights = recorded.state_dict()
    for name, value in expected.state_dict().items():
        assert torch.allclose(weights[name], value, atol=10 * close), name
    if words:
        (reason,) = reasons(happened)
        assert words in reason
        assert f"going on without CUDA graphs: {reason[:12]}" in capfd.readouterr().out
    else:
        assert recorder.replayed > recorder.recorded >= 2
        assert [type(event) for event in happened] == [type(event) for event in before]


def test_a_resumed_run_is_bit_identical(short, toy_pairs, record, tmp_path):
    config = short.changed(dropout=0.2, save_steps=5, max_steps=9, gradient_accumulation_steps=2)
    record()
    whole, expected = fit(config, toy_pairs)
    folder = tmp_path / "checkpoint"
    fit(
        config, toy_pairs, save_checkpoint=lambda step, write: step == 5 and write(folder),
        should_stop=lambda: folder.exists(),
    )  # fmt: skip
    record()
    rest, resumed = fit(config, toy_pairs, resume=folder)
    assert losses(rest) == losses(whole)[5:]
    for name, weights in expected.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], weights), name


def test_what_waits_for_it_is_not_recorded(short, toy_pairs, record, capfd, monkeypatch, by_hand):
    from finetune.tasks.single_label import SingleLabel

    def looking(self, outputs, *_):
        return outputs.loss * (2.0 if outputs.loss > 100 else 1.0)

    expected = losses(by_hand(short, toy_pairs)[0])
    monkeypatch.setattr(SingleLabel, "loss", looking)
    record()
    assert losses(fit(short, toy_pairs)[0]) == pytest.approx(expected, abs=1e-4)
    assert "without CUDA graphs: RuntimeError: operation not permitted" in capfd.readouterr().out
    monkeypatch.undo()
    recorder, replay = record(), tape._Tape.replay

    def failing(self):
        if recorder.replayed > 9:
            raise RuntimeError("CUDA error: out of memory")
        replay(self)

    monkeypatch.setattr(tape._Tape, "replay", failing)
    happened, _ = fit(short, toy_pairs)
    assert losses(happened) == pytest.approx(expected, abs=1e-4)
    assert reasons(happened)


def test_a_scaled_loss_skips_a_step_that_overflows_and_lowers_the_scale():
    """As in fp16. The second batch overflows."""

    def train(recorded):
        torch.manual_seed(0)
        layer = nn.Linear(4, 1)
        adamw = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
        optimizer = Accelerator(cpu=True).prepare(adamw)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

        def loss(batch):
            return layer(batch["x"]).square().mean()

        def work(batch):
            value = loss(batch)
            scaler.scale(value).backward()
            scaler.unscale_(adamw)
            norm = nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            scaler.step(adamw)
            scaler.update()
            adamw.zero_grad()
            return value.detach(), norm

        step = work
        if recorded:
            step = RecordedStep(work, TapeRecorder(), loss, optimizer, scaler, False)
        scales, weights = [], []
        for factor in (1.0, 1e30, 1.0):
            step({"x": factor * torch.ones(2, 4)})
            scales.append(scaler.get_scale())
            weights.append(layer.weight[0, 0].item())
        return scales, weights

    scales, weights = train(recorded=True)
    assert scales == [2.0**10, 2.0**9, 2.0**9]
    assert weights[0] == weights[1] != weights[2]
    assert weights == pytest.approx(train(recorded=False)[1], abs=1e-6)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ""),
        ({"cuda_graphs": "off"}, "cuda_graphs is off"),
        ({"optim": "adamw_torch"}, "optim is adamw_torch, and only adamw_torch_fused"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing is on"),
        ({"pad_to_multiple_of": 0, "max_length": 128}, "batches of 128 widths"),
        ({"pad_to_multiple_of": 8, "max_length": 128}, ""),
    ],
)
def test_why_steps_are_not_recorded(toy_config, values, words):
    _, classifier, _ = model.load_classifier(toy_config.checkpoint, Target(("no", "yes")), 32)
    config = RunConfig(**{"optim": "adamw_torch_fused"} | values)
    reason = cuda_graphs.obstacle(config, Accelerator(cpu=True), classifier)
    assert words in reason
    assert bool(reason) == bool(words)
    classifier.config.encoder_layerdrop = 0.1
    assert cuda_graphs.obstacle(config, Accelerator(cpu=True), classifier)


@pytest.mark.parametrize(
    ("head", "rows"),
    [("sentence1,sentence2,score", graded_rows), ("text,labels", labelled_rows)],
    ids=["a score", "several labels"],
)
def test_scores_and_several_labels_train_the_same_recorded(short, record, tmp_path, head, rows):
    pairs = uploads.pairs(tmp_path, head, train=rows(64), validation=rows(24, 1))
    smoothing = 0.1 if rows is labelled_rows else 0.0
    config = short.changed(
        metric_for_best_model="loss", label_smoothing_factor=smoothing, max_steps=4
    )
    expected, _ = fit(config, pairs)
    recorder = record()
    happened, _ = fit(config, pairs)
    assert recorder.replayed > recorder.recorded >= 2
    assert losses(happened) == pytest.approx(losses(expected), abs=1e-3)
