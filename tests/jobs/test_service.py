"""Workers as real processes: started, watched, stopped, killed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from finetune.config import RunConfig
from finetune.jobs import service, workers
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support import stand_in
from tests.support.running import start
from tests.support.waiting import until


def test_a_run_goes_from_start_to_finish(
    store: RunStore, toy_checkpoint: Path, processes: list[psutil.Process]
) -> None:
    config = RunConfig(checkpoint=str(toy_checkpoint), max_steps=20, max_length=32)
    run, process = start(store, config, processes)
    assert run.state().status == "running"
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    until(lambda: run.state().status != "running")
    done = run.state()
    assert done.status == "finished", run.log_tail()
    assert done.step == 20
    assert run.has_model()
    assert "finished 20 steps" in run.log_tail()
    until(lambda: not psutil.pid_exists(process.pid))  # and no zombie stays


def test_a_run_that_is_stopped_before_its_first_step_ends(
    store: RunStore, processes: list[psutil.Process], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    stand_in.use(monkeypatch)
    (tmp_path / "hold").write_text("0")
    monkeypatch.setenv(stand_in.HOLD, str(tmp_path / "hold"))
    run, process = start(store, RunConfig(max_steps=20), processes)
    service.stop_run(store, run)
    until(lambda: not process.is_running())
    assert run.state().status == "stopped"


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 1}', '{"pid": -5, "started": 1.0}', "reused"])
def test_a_process_that_is_not_the_worker_gets_no_signal(
    store: RunStore, adopt: Callable[[Run], None], text: str
) -> None:
    run = store.create(RunConfig())
    run.append(events.Finished(step=1, seconds=1.0))
    adopt(run)
    assert workers.worker_process(run) == psutil.Process()
    assert run.state().status == "finished"  # even while a process bears it
    if text == "reused":  # the pid of this process, of one that began a minute before
        record = json.loads(run.process_file.read_text())
        text = json.dumps({**record, "started": record["started"] - 60})
    run.process_file.write_text(text)
    assert workers.worker_process(run) is None
