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
from finetune.jobs import service
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.training import trackers
from tests.jobs.test_train import ROOT, command, losses


@pytest.fixture
def reporting(toy_checkpoint: Path) -> RunConfig:
    return RunConfig(
        checkpoint=str(toy_checkpoint), max_steps=4, logging_steps=1, max_length=32, name="reports"
    )


def train(store: RunStore, config: RunConfig, **environment: str) -> Run:
    done = subprocess.run(
        command(store, config, [sys.executable]),
        cwd=ROOT, capture_output=True, text=True, timeout=240, env=os.environ | environment,
    )  # fmt: skip
    (run,) = store.runs()
    assert done.returncode == 0, done.stderr[-2000:]
    assert service.run_summary(store, run).status == "finished"
    return run


@pytest.mark.long
def test_tensorboard_gets_every_number(store: RunStore, reporting: RunConfig) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(store, reporting.changed(report_to="tensorboard"))
    found = EventAccumulator(str(run.folder / "tensorboard"))
    found.Reload()
    told = [scalar.value for scalar in found.Scalars("train/loss")]
    assert told == pytest.approx(losses(run))
    (scored,) = [e for e in run.tail()[0] if isinstance(e, events.Evaluated)]
    (f1,) = found.Scalars("eval/f1")
    assert (f1.step, f1.value) == (4, pytest.approx(scored.metrics["f1"]))


@pytest.mark.long
def test_trackio_gets_every_number(store: RunStore, reporting: RunConfig, tmp_path: Path) -> None:
    kept = tmp_path / "trackio"
    run = train(store, reporting.changed(report_to="trackio"), TRACKIO_DIR=str(kept))
    (database,) = kept.rglob("finetune.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select run_name, metrics from metrics").fetchall()
    assert {name for name, _ in rows} == {"reports"}
    assert sum("train/loss" in str(metrics) for _, metrics in rows) == len(losses(run)) == 4


@pytest.mark.long
def test_wandb_gets_every_number(store: RunStore, reporting: RunConfig, tmp_path: Path) -> None:
    train(
        store, reporting.changed(report_to="wandb"), WANDB_MODE="offline", WANDB_DIR=str(tmp_path)
    )
    (kept,) = tmp_path.rglob("*.wandb")
    assert kept.read_bytes().count(b"train/loss") >= 4


@pytest.mark.long
def test_a_tracker_that_does_not_begin_says_why(store: RunStore, reporting: RunConfig) -> None:
    done = subprocess.run(
        command(store, reporting.changed(report_to="wandb"), [sys.executable]),
        cwd=ROOT, capture_output=True, text=True, timeout=240,
        env={name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
        | {"WANDB_MODE": "nowhere"},
    )  # fmt: skip
    assert done.returncode == 1
    last = store.runs()[0].tail()[0][-1]
    assert isinstance(last, events.Failed)
    assert last.error.startswith("report_to is wandb, which does not begin")


def test_a_tracker_that_is_not_installed_is_named(
    reporting: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="report_to is trackio, which is not installed; pip"):
        trackers.tracker_settings(reporting.changed(report_to="trackio"), tmp_path)


def test_a_tracker_that_breaks_ends_no_run(
    reporting: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    accelerator = Mock()
    accelerator.log.side_effect = ConnectionError("the tracker's server has gone")
    tracker = trackers.Tracker(accelerator, reporting.changed(report_to="wandb"), "x")
    step = events.Stepped(step=1, epoch=0.1, loss=0.5, learning_rate=1e-3, samples_per_second=9.0)
    tracker(step)
    tracker(step)
    assert accelerator.log.call_count == 1
    assert "the tracker has stopped: ConnectionError" in capsys.readouterr().out


def test_what_is_measured_has_the_names_of_trainers(reporting: RunConfig) -> None:
    accelerator = Mock()
    tracker = trackers.Tracker(accelerator, reporting.changed(report_to="wandb"), "x")
    tracker(events.Evaluated(step=4, epoch=1, metrics={"f1": 0.5}, seconds=1, best=True))
    tracker(events.Saved(step=4))
    accelerator.log.assert_called_once_with({"eval/f1": 0.5}, step=4)
