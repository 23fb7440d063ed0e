"""What holds of a run on every engine."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from finetune.config import RunConfig
from finetune.engines.base import EngineSpec, read_spec
from finetune.engines.registry import make_spec
from finetune.errors import FinetuneError
from finetune.jobs import service, workers
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support.engines import after, resume, steps, wait, weights
from tests.support.ray_nodes import needs_ray
from tests.support.waiting import until

TOTAL = 120
APP = """
import sys, time
from finetune.jobs.scheduler import Scheduler
from finetune.runs.store import RunStore
Scheduler(RunStore(sys.argv[1])).start()
time.sleep(600)
"""


@pytest.fixture(
    params=["local", "hub-job", pytest.param("ray", marks=[needs_ray, pytest.mark.long])]
)
def spec(request: pytest.FixtureRequest) -> EngineSpec:
    if request.param == "hub-job":
        job: EngineSpec = request.getfixturevalue("job")
        return job
    if request.param == "ray":
        return make_spec("ray", {"address": request.getfixturevalue("cluster").address})
    return EngineSpec()


def training_process(run: Run) -> psutil.Process:
    """The process that trains, wherever it is on this machine."""
    follower = workers.worker_process(run) if read_spec(run).engine != "local" else None
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            trains = words[2:3] in (["finetune"], ["finetune.jobs.worker"])
            if trains and process != follower and any(run.id in word for word in words):
                return process
        except psutil.Error:
            continue
    raise AssertionError("it does not train")


def test_a_run_that_fails_says_why(store: RunStore, config: RunConfig, spec: EngineSpec) -> None:
    run = service.start_run(store, config.changed(label_column="verdict"), spec)
    failed = wait(store, run, "failed")
    assert "verdict" in failed.error
    assert failed.remedy


@pytest.mark.long
def test_it_is_live_stopped_and_goes_on_to_the_weights_of_one_that_was_not(
    store: RunStore, config: RunConfig, spec: EngineSpec
) -> None:
    whole = service.start_run(store, config)
    wait(store, whole, "finished")
    run = service.start_run(store, config, spec)
    live = wait(store, run, when=after(25))
    assert live.started is not None
    with pytest.raises(FinetuneError):  # it is at work
        service.resume_run(store, run)
    service.stop_run(store, run)
    stopped = wait(store, run, "stopped")
    assert run.has_model()
    assert run.checkpoint_step() == stopped.step < TOTAL
    resume(store, run)
    wait(store, run, "finished")
    assert weights(run) == weights(whole)
    assert steps(run) == steps(whole)
    assert f"step {TOTAL}: loss" in run.log_tail()
    until(lambda: not run.checkpoints())


@pytest.mark.long
def test_what_is_killed_here_or_there_goes_on_and_no_event_is_lost(
    store: RunStore, config: RunConfig, spec: EngineSpec
) -> None:
    run = service.start_run(store, config, spec)
    wait(store, run, when=after(12))
    workers.kill_worker(run)
    assert run.state().status == "interrupted"
    resume(store, run)
    wait(store, run, when=after(50))
    if spec.engine != "local":  # the attempt went on, and there is no second one
        found = [step for step, _ in steps(run)]
        assert found == [*range(1, len(found) + 1)]
        assert not any(isinstance(event, events.Resumed) for event in run.tail()[0])
        assert read_spec(run).attempt == 1
    training_process(run).kill()
    ended = wait(store, run, "failed", "interrupted")
    if ended.status == "failed":
        assert "killed, perhaps for want of memory" in ended.error
        assert "Resume" in ended.remedy
    resume(store, run)
    wait(store, run, "finished")
    resumed = [event.step for event in run.tail()[0] if isinstance(event, events.Resumed)]
    assert resumed
    assert resumed[-1] >= 20
    assert {step for step, _ in steps(run)} == {*range(1, TOTAL + 1)}
    until(lambda: not run.is_alive())
    assert read_spec(run).job == ""


@pytest.mark.long
def test_it_goes_on_while_no_app_is_here_and_one_that_starts_shows_it(
    store: RunStore, config: RunConfig, spec: EngineSpec, processes: list[psutil.Process]
) -> None:
    def start_app() -> psutil.Process:
        words = [sys.executable, "-c", APP, str(store.root)]
        app = psutil.Process(subprocess.Popen(words, env=os.environ).pid)
        processes.append(app)
        return app

    app = start_app()
    run = service.start_run(store, config.changed(max_steps=100 * TOTAL), spec)
    wait(store, run, when=after(10))
    app.kill()
    if spec.engine != "local":
        workers.kill_worker(run)  # as when the machine was restarted
    seen = run.state().step
    app = start_app()
    until(run.is_alive)
    wait(store, run, when=after(seen + 10))
    if spec.engine == "local":
        service.stop_run(store, run)
    else:  # a stop that nobody could pass on outlives a restart
        app.kill()
        workers.kill_worker(run)
        run.request_stop()
        start_app()
        until(lambda: not read_spec(run).job)
    assert wait(store, run, "stopped").step < 100 * TOTAL
    assert read_spec(run).attempt <= 1
