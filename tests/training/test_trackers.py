"""What a run reports to a tracker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from finetune.config import RunConfig
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.training.accelerator import Tracker
from tests.support.running import ROOT, command, losses


def in_tensorboard(run: Run) -> int:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run.folder / "tensorboard"))
    accumulator.Reload()
    values = [scalar.value for scalar in accumulator.Scalars("train/loss")]
    assert values == pytest.approx(losses(run))
    scores = {scalar.step: scalar.value for scalar in accumulator.Scalars("eval/f1")}
    assert scores == pytest.approx({one.step: one.metrics["f1"] for one in run.state().curve})
    return len(values)


def in_none(run: Run) -> int:
    assert run.state().error.startswith("report_to is wandb, which does not begin")
    return 4


@pytest.mark.long
@pytest.mark.parametrize(("tracker", "told"), [("tensorboard", in_tensorboard), ("wandb", in_none)])
def test_a_tracker_gets_every_number_or_the_run_says_why_not(
    store: RunStore, toy_checkpoint: Path, tmp_path: Path,
    tracker: str, told: Callable[[Run], int],
) -> None:  # fmt: skip
    config = RunConfig(
        checkpoint=str(toy_checkpoint), max_steps=4, logging_steps=1, max_length=32
    ).changed(report_to=tracker)
    words = command(store, config, [sys.executable])
    environment = os.environ | {"WANDB_MODE": "nowhere", "WANDB_DIR": str(tmp_path)}
    subprocess.run(words, cwd=ROOT, capture_output=True, env=environment)
    assert told(store.runs()[0]) == 4


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
