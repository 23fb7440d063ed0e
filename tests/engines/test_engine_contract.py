"""What holds of a run on every engine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from finetune.config import RunConfig
from finetune.engines.base import EngineSpec, read_spec
from finetune.engines.registry import make_spec, open_engine
from finetune.errors import FinetuneError
from finetune.jobs import service, workers
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary
from tests.support import stand_in
from tests.support.engines import let_jobs_train, resume, steps, wait, weights
from tests.support.hub import TOKEN, LoopbackHub
from tests.support.ray_nodes import needs_ray
from tests.support.waiting import until

TOTAL = 200  # steps of a run, each of 32 batches, so that it is met at work


@pytest.fixture(params=["local", "hub-job", pytest.param("ray", marks=needs_ray)])
def spec(
    request: pytest.FixtureRequest, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> EngineSpec:
    if request.param == "hub-job":
        return let_jobs_train(hub, monkeypatch, TOKEN)
    if request.param == "ray":
        return make_spec("ray", {"address": request.getfixturevalue("cluster").address})
    return EngineSpec()


@pytest.fixture
def config(store: RunStore, toy_checkpoint: Path, toy_pairs_folder: Path) -> RunConfig:
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    return RunConfig(
        dataset=store.uploads.add(files), checkpoint=str(toy_checkpoint), max_length=32,
        learning_rate=1e-3, logging_steps=1, max_steps=TOTAL, eval_steps=100, save_steps=20,
        per_device_train_batch_size=2, gradient_accumulation_steps=32, mixed_precision="no",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_left(store: RunStore, spec: EngineSpec) -> Iterator[None]:
    yield
    for run in store.runs():
        workers.kill_worker(run)
        if (spec := read_spec(run)).engine == "ray":
            open_engine(spec).remove(run, spec)


@pytest.mark.slow
def test_it_is_stopped_goes_on_and_ends(
    store: RunStore, config: RunConfig, spec: EngineSpec, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The contract in a short form, in which nothing is learned."""
    if spec.engine in ("ray", "hub-job"):
        pytest.skip("the long tests begin with this: a cluster or a container takes longer")
    hold = tmp_path / "hold"
    stand_in.use(monkeypatch)
    monkeypatch.setenv(stand_in.HOLD, str(hold))
    hold.write_text("4")
    run = service.start_run(store, config.changed(max_steps=40, eval_steps=20, save_steps=5), spec)
    wait(store, run, when=after(3))
    service.stop_run(store, run)
    stopped = wait(store, run, "stopped")
    hold.unlink()
    assert run.checkpoint_step() <= stopped.step < 40
    resume(store, run)
    wait(store, run, "finished")
    assert run.has_model()
    assert {step for step, _ in steps(run)} == {*range(1, 41)}
    assert "step 2: loss" in run.log_tail()


def after(step: int) -> Callable[[RunSummary], bool]:
    return lambda summary: summary.step > step


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


@pytest.mark.long
def test_it_is_live_stopped_and_goes_on_to_the_weights_of_one_that_was_not(
    store: RunStore, config: RunConfig, spec: EngineSpec
) -> None:
    whole = service.start_run(store, config, spec)
    live = wait(store, whole, when=after(5))
    assert live.started is not None
    with pytest.raises(FinetuneError):  # it is at work
        service.resume_run(store, whole)
    wait(store, whole, "finished")
    assert steps(whole)[-1][0] == TOTAL
    assert "step 3: loss" in whole.log_tail()
    until(lambda: not whole.checkpoints())
    run = service.start_run(store, config, spec)
    wait(store, run, when=after(25))
    service.stop_run(store, run)
    stopped = wait(store, run, "stopped")
    assert run.has_model()
    assert run.checkpoint_step() == stopped.step < TOTAL
    resume(store, run)
    wait(store, run, "finished")
    assert weights(run) == weights(whole)
    assert steps(run) == steps(whole)


@pytest.mark.long
def test_a_killed_worker_here_is_followed_by_another_and_no_event_is_lost(
    store: RunStore, config: RunConfig, spec: EngineSpec
) -> None:
    run = service.start_run(store, config, spec)
    wait(store, run, when=after(25))
    workers.kill_worker(run)
    assert run.state().status == "interrupted"
    resume(store, run)
    wait(store, run, "finished")
    found = [step for step, _ in steps(run)]
    assert {*found} == {*range(1, TOTAL + 1)}
    if spec.engine != "local":  # the attempt went on, and there is no second one
        until(lambda: not run.is_alive())
        assert len(found) == TOTAL
        assert not any(isinstance(event, events.Resumed) for event in run.tail()[0])
        assert (read_spec(run).attempt, read_spec(run).job) == (1, "")


@pytest.mark.long
def test_a_killed_training_goes_on_from_its_checkpoint(
    store: RunStore, config: RunConfig, spec: EngineSpec
) -> None:
    run = service.start_run(store, config, spec)
    wait(store, run, when=after(50))
    training_process(run).kill()
    ended = wait(store, run, "failed", "interrupted")
    if ended.status == "failed":
        assert "killed, perhaps for want of memory" in ended.error
        assert "Resume" in ended.remedy
    resume(store, run)
    wait(store, run, "finished")
    resumed = [event.step for event in run.tail()[0] if isinstance(event, events.Resumed)]
    assert resumed
    assert resumed[0] >= 20
    assert {step for step, _ in steps(run)} == {*range(1, TOTAL + 1)}


def test_a_run_that_fails_says_why(store: RunStore, config: RunConfig, spec: EngineSpec) -> None:
    run = service.start_run(store, config.changed(label_column="verdict"), spec)
    failed = wait(store, run, "failed")
    assert "verdict" in failed.error
    assert failed.remedy


@pytest.mark.long
def test_it_goes_on_while_no_app_is_here_and_one_that_starts_shows_it(
    store: RunStore, config: RunConfig, spec: EngineSpec, processes: list[psutil.Process]
) -> None:
    script = (
        "import sys, time\nfrom finetune.jobs.scheduler import Scheduler\n"
        "from finetune.runs.store import RunStore\nScheduler(RunStore(sys.argv[1])).start()\n"
        "time.sleep(600)"
    )

    def start_app() -> psutil.Process:
        words = [sys.executable, "-c", script, str(store.root)]
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
    while not run.is_alive():
        time.sleep(0.1)
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
