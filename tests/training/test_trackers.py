"""What a run reports to TensorBoard, Trackio and W&B, each by its own package."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from finetune.config import RunConfig
from finetune.errors import ConfigError
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.training.accelerator import Tracker, tracker_settings
from tests.support.running import ROOT, command, losses


def reported(store: RunStore, checkpoint: Path, tracker: str, **environment: str) -> Run:
    """A run that was carried out by a process of its own."""
    config = RunConfig(
        checkpoint=str(checkpoint), max_steps=4, logging_steps=1, max_length=32
    ).changed(report_to=tracker)
    words = command(store, config, [sys.executable])
    subprocess.run(words, cwd=ROOT, capture_output=True, env=os.environ | environment)
    return store.runs()[0]


@pytest.mark.long
def test_tensorboard_gets_every_number(store: RunStore, toy_checkpoint: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = reported(store, toy_checkpoint, "tensorboard")
    accumulator = EventAccumulator(str(run.folder / "tensorboard"))
    accumulator.Reload()
    values = [scalar.value for scalar in accumulator.Scalars("train/loss")]
    assert values == pytest.approx(losses(run))
    scores = {scalar.step: scalar.value for scalar in accumulator.Scalars("eval/f1")}
    evaluated = {one.step: one.metrics["f1"] for one in run.state().curve}
    assert 0 in evaluated
    assert scores == pytest.approx(evaluated)


@pytest.mark.long
def test_trackio_gets_every_number(store: RunStore, toy_checkpoint: Path, tmp_path: Path) -> None:
    run = reported(store, toy_checkpoint, "trackio", TRACKIO_DIR=str(tmp_path))
    (database,) = tmp_path.rglob("finetune.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select metrics from metrics").fetchall()
    assert sum("train/loss" in str(metrics) for metrics in rows) == len(losses(run)) == 4


@pytest.mark.long
def test_wandb_gets_every_number_or_says_why_not(
    store: RunStore, toy_checkpoint: Path, tmp_path: Path
) -> None:
    run = reported(store, toy_checkpoint, "wandb", WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    (file,) = tmp_path.rglob("*.wandb")
    assert file.read_bytes().count(b"train/loss") >= 4
    store.delete(run)
    error = reported(store, toy_checkpoint, "wandb", WANDB_MODE="nowhere").state().error
    assert error.startswith("report_to is wandb, which does not begin")


def test_a_tracker_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="report_to is trackio, which is not installed; pip"):
        tracker_settings(RunConfig(report_to="trackio"), tmp_path)


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
