"""What a run reports to a tracker."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from finetune.config import RunConfig
from finetune.jobs.train import carry_out_run
from finetune.runs import events
from finetune.runs.store import RunStore
from finetune.training.accelerator import Tracker
from tests.support.training import work_in_this_process


def test_a_tracker_gets_every_number_or_the_run_says_why_not(
    store: RunStore, toy_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_measurements_have_trainers_names_and_a_tracker_that_breaks_ends_no_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
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
