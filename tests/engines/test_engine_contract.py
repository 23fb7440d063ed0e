"""What holds of a run on every engine."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from finetune.engines.base import EngineSpec, read_spec
from finetune.engines.registry import make_spec
from finetune.errors import FinetuneError
from finetune.jobs import service, workers
from finetune.runs import events
from tests.support.ray_nodes import needs_ray
from tests.support.running import TOTAL, after, resume, steps, wait, weights
from tests.support.waiting import until

RAY = pytest.param("ray", marks=[needs_ray, pytest.mark.long, pytest.mark.xdist_group("ray")])
APP = """
import sys, time
from finetune.jobs.scheduler import Scheduler
from finetune.runs.store import RunStore
Scheduler(RunStore(sys.argv[1])).start()
time.sleep(600)
"""


@pytest.fixture(params=["local", "hub-job", RAY])
def spec(request):
    if request.param == "hub-job":
        job = request.getfixturevalue("job")
        return job
    if request.param == "ray":
        return make_spec("ray", {"address": request.getfixturevalue("cluster").address})
    return EngineSpec()


def training_process(run):
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


@pytest.mark.parametrize("spec", ["hub-job", RAY], indirect=True)
def test_a_run_that_fails_says_why(store, config, spec):
    run = service.start_run(store, config.changed(label_column="verdict"), spec)
    failed = wait(store, run, "failed")
    assert "verdict" in failed.error
    assert failed.remedy


@pytest.mark.long
def test_killed_left_alone_and_stopped_it_ends_as_one_not(store, config, spec, whole, processes):
    here = spec.engine == "local"

    def start_app():
        words = [sys.executable, "-c", APP, str(store.root)]
        app = psutil.Process(subprocess.Popen(words, env=os.environ).pid)
        processes.append(app)
        return app

    run = service.start_run(store, config, spec)
    assert wait(store, run, when=after(12)).started is not None
    with pytest.raises(FinetuneError):  # it is at work
        service.resume_run(store, run)
    if not here:  # its follower is killed: the attempt goes on, and there is no second one
        workers.kill_worker(run)
        assert run.state().status == "interrupted"
        resume(store, run)
        wait(store, run, when=after(50))
        found = [step for step, _ in steps(run)]
        assert found == [*range(1, len(found) + 1)]
        assert not any(isinstance(event, events.Resumed) for event in run.tail()[0])
        assert read_spec(run).attempt == 1
    wait(store, run, when=after(50))
    training_process(run).kill()
    ended = wait(store, run, "failed", "interrupted")
    if ended.status == "failed":
        assert "killed, perhaps for want of memory" in ended.error
        assert "Resume" in ended.remedy
    app = start_app()
    resume(store, run)
    until(lambda: any(isinstance(event, events.Resumed) for event in run.tail()[0]))
    resumed = [event.step for event in run.tail()[0] if isinstance(event, events.Resumed)]
    assert resumed[-1] >= 20
    wait(store, run, when=after(resumed[-1] + 2))
    app.kill()  # it goes on while no app is here, and one that starts shows it
    if not here:
        workers.kill_worker(run)  # as when the machine was restarted
    seen = run.state().step
    app = start_app()
    until(run.is_alive)
    wait(store, run, when=after(seen + 5))
    if here:
        service.stop_run(store, run)
    else:  # a stop that nobody could pass on outlives a restart
        app.kill()
        workers.kill_worker(run)
        trains = training_process(run)
        trains.suspend()  # or a quick machine would be done before the stop arrives
        run.request_stop()
        start_app()
        own = [Path(word) for word in trains.cmdline() if word.endswith(run.id)]
        until(lambda: (own[0] if own else run.folder).joinpath("STOP").exists())
        trains.resume()
        until(lambda: not read_spec(run).job)
    stopped = wait(store, run, "stopped")
    assert run.has_model()
    assert run.checkpoint_step() == stopped.step < TOTAL
    assert read_spec(run).attempt == (0 if here else 2)
    resume(store, run)
    wait(store, run, "finished")
    assert weights(run) == weights(whole)
    assert dict(steps(run)) == dict(steps(whole))
    assert f"step {TOTAL}: loss" in run.log_tail()
    until(lambda: not run.is_alive() and not run.checkpoints())
    assert read_spec(run).job == ""
