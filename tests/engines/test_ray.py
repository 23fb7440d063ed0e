"""Runs on a Ray cluster: a real one of several nodes on this machine."""

import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from finetune.config import PRESETS, RunConfig
from finetune.engines import base, ray_cluster, ray_node
from finetune.engines.base import EngineSpec, read_spec, write_spec
from finetune.engines.registry import make_spec, open_engine
from finetune.errors import JobError
from finetune.jobs import scheduler, service, workers
from finetune.runs import events
from finetune.runs.queue import Queue
from tests.support.ray_nodes import INSTALL, needs_ray
from tests.support.running import steps, wait, weights
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("ray")  # of `--dist=loadgroup`: one worker has the cluster


@pytest.fixture(scope="module")
def config(toy_checkpoint):
    return RunConfig(
        checkpoint=str(toy_checkpoint), num_processes=2, per_device_train_batch_size=4,
        learning_rate=1e-3, max_length=32, max_steps=400, eval_steps=-1, save_steps=20,
        logging_steps=1, max_train_samples=200, max_eval_samples=30,
    ).changed(**PRESETS["As the course"])  # fmt: skip


@pytest.fixture
def start(store, cluster):
    """Starts a run on the cluster."""

    def begin(config, nodes=2, address=""):
        options = {"address": address or cluster.address, "nodes": nodes}
        run = service.start_run(store, config, make_spec("ray", options))
        until(lambda: workers.worker_process(run) is not None)
        return run

    return begin


def trains(run, step=1):
    """Whether it has come so far."""
    return lambda: run.state().step >= step


def rank_processes(run):
    """The run's processes on the cluster's nodes, by their ranks; of two with one rank the later
    one."""
    members = {}
    # By age: a process's number may be smaller than that of an older one.
    processes = psutil.process_iter(["create_time"])
    for process in sorted(processes, key=lambda process: process.info["create_time"]):
        try:
            words = process.cmdline()
            if words[1:4] == ["-m", "finetune", "train"] and str(run.folder) in words:
                members[process.environ().get("RANK", "0")] = process
        except psutil.Error:
            continue
    return members


def node_of(process):
    """The node that a process of a run is on."""
    return next(int(parent.pid) for parent in process.parents() if parent.name() == "raylet")


def resumes(run):
    """The steps that it went on from."""
    return [event.step for event in run.tail()[0] if isinstance(event, events.Resumed)]


@pytest.mark.long
@needs_ray
def test_two_nodes_train_as_two_processes_though_nodes_are_killed(store, start, config, cluster):
    here = service.start_run(store, config)
    wait(store, here, "finished")
    run = start(config)
    until(trains(run, 25))
    assert len({node_of(process) for process in rank_processes(run).values()}) == 2
    service.stop_run(store, run)
    wait(store, run, "stopped")
    assert run.has_model()
    assert 25 <= run.checkpoint_step() < 400
    until(lambda: not run.is_alive())
    service.resume_run(store, run)
    until(lambda: read_spec(run).attempt == 2)
    killed = []
    for attempt, rank in ((3, "0"), (4, "1")):
        begun = resumes(run)[-1]
        cluster.add()  # for that which is killed; it takes seconds, in which the run goes on
        until(trains(run, begun + 45))
        former = rank_processes(run)
        killed += former.values()
        cluster.kill(node_of(former[rank]))
        until(lambda: read_spec(run).attempt == attempt)  # noqa: B023
        assert resumes(run)[-1] >= begun + 20
    wait(store, run, "finished")
    assert weights(run) == weights(here)
    assert not any(process.is_running() for process in killed)
    assert not any(isinstance(event, events.Failed) for event in run.tail()[0])
    summary = run.state()
    assert summary.started.processes == 2
    until(lambda: not run.is_alive())
    assert "finished 400 steps" in run.log_tail()
    assert (read_spec(run).attempt, read_spec(run).job) == (4, "")


@pytest.mark.long
@needs_ray
def test_told_to_end_cut_off_or_alone_it_goes_on_from_a_checkpoint(store, start, config, cluster):
    run = start(config.changed(num_processes=1, max_steps=300), nodes=1)
    until(trains(run, 25))
    rank_processes(run)["0"].terminate()  # as on a machine that is taken away
    until(lambda: bool(resumes(run)))
    until(trains(run, 50))
    taken = [step for step, _ in steps(run)]
    assert taken == list(range(1, len(taken) + 1))  # it has written a checkpoint
    # Its node is cut off, and comes back: what it does then is written nowhere.
    (process,) = rank_processes(run).values()
    raylet = psutil.Process(node_of(process))
    frozen = [raylet, *raylet.children(recursive=True)]
    for member in frozen:
        member.suspend()
    try:
        until(lambda: read_spec(run).attempt == 3)
        until(lambda: len(rank_processes(run)) == 1 and rank_processes(run)["0"] != process)
        workers.kill_worker(run)  # it ends while nobody is here
    finally:
        process.resume()  # it finds its parent alive, and trains on
        until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
        for member in frozen:
            if member.is_running():
                member.kill()
        cluster.kill(raylet.pid)
        cluster.add()
    until(lambda: run.state().status == "finished")
    until(lambda: not rank_processes(run))
    assert read_spec(run).job
    taken, count = [step for step, _ in steps(run)], len(run.tail()[0])
    assert sum(first >= second for first, second in itertools.pairwise(taken)) <= 1
    Queue(store.root).add(run.id)  # as an app does that starts
    scheduler.dispatch_queue(store)
    until(lambda: not read_spec(run).job)
    wait(store, run, "finished")
    assert len(run.tail()[0]) == count


@pytest.mark.long
@needs_ray
def test_one_waits_for_another_and_a_shared_apps_trains(store, start, config, cluster, monkeypatch):
    first = start(config.changed(max_steps=100_000))
    until(trains(first))
    second = start(config.changed(max_steps=20))
    until(lambda: bool(read_spec(second).job))
    assert open_engine(read_spec(second)).state(second, read_spec(second)).status == "waiting"
    service.stop_run(store, second)
    wait(store, second, "stopped")
    ranks = rank_processes(first)
    assert len(ranks) == 2
    service.delete_run(store, first)
    until(lambda: not any(process.is_running() for process in ranks.values()))
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    small = RunConfig(max_steps=4, max_length=16, max_train_samples=64, max_eval_samples=16)
    third = start(small, nodes=1)
    until(lambda: bool(rank_processes(third)))
    variables = rank_processes(third)["0"].environ()
    assert variables["FINETUNE_VISITORS"] == variables["HF_HUB_DISABLE_IMPLICIT_TOKEN"] == "1"
    assert variables["HF_TOKEN"] == ""
    wait(store, third, "finished")


@pytest.mark.long
@needs_ray
def test_what_the_cluster_cannot_do_is_said(store, start, config, cluster, monkeypatch):
    run = start(config.changed(num_processes=5), nodes=3)
    wait(store, run, "failed")
    error = run.state().error
    assert error.startswith("The run needs 5 x 1 CPU on 3 machine(s); the Ray cluster has ")
    assert "(1 CPU, 0 GPU)" in error
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (9, silent.getsockname()[1]):
            run = start(config, address=f"127.0.0.1:{port}")
            wait(store, run, "failed")
            assert f"127.0.0.1:{port} does not answer" in run.state().error
    spec = EngineSpec(engine="ray", options={"address": cluster.address}, attempt=1, job="a.1")
    monkeypatch.setattr("ray.__version__", "2.59.0")
    with pytest.raises(JobError, match=r"is of another version: .* Ray: 2\.60\.0 .* Ray: 2\.59"):
        open_engine(spec).state(run, spec)


def described(**values):
    """What a machine like this one says of itself."""
    answer = ray_node.describe_node(__file__, ray_cluster.SOURCE, ("torch", "transformers"))
    return {**answer, **values}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"text": "another"}, "The run's folder /runs/1 is not on the machine ada"),
        ({"writable": False}, "or cannot be written there"),
        ({"source": False}, "This project's folder .* is not on the machine ada"),
        ({"versions": {"Python": "3.1"}}, "Python is 3.1 on the machine ada, and 3"),
    ],
)
def test_a_machine_that_differs_is_named(values, text):
    here = described()
    ray_cluster.compare_machine("ada", described(), here, Path("/runs/1"))
    with pytest.raises(JobError, match=text):
        ray_cluster.compare_machine("ada", described(**values), here, Path("/runs/1"))


@pytest.mark.parametrize(
    ("ranks", "nodes", "machines", "bundle"),
    [
        (4, 2, ["8", "8", "2"], {"CPU": 4}),
        (3, 1, ["1", "8"], {"CPU": 2}),
        (2, 1, ["8 2", "64"], {"GPU": 1}),
        (2, 2, ["8 2", "64"], None),
    ],
)
def test_a_process_gets_a_gpu_or_its_share_of_a_machine(ranks, nodes, machines, bundle):
    def list_nodes():
        kinds = [dict(zip(("CPU", "GPU"), map(float, m.split()), strict=False)) for m in machines]
        common = {"Alive": True, "NodeManagerAddress": "10.0.0.1"}
        return [{**common, "Resources": kind} for kind in kinds]

    ray = SimpleNamespace(nodes=list_nodes)
    if bundle is None:
        with pytest.raises(JobError, match="the Ray cluster has 10"):
            ray_cluster.choose_bundle(ray, ranks, nodes)
    else:
        assert ray_cluster.choose_bundle(ray, ranks, nodes)[0] == bundle


def test_without_ray_or_an_address_it_is_said_how_to_get_them(store, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    spec = make_spec("ray", {"address": "10.0.0.1:6379"})
    run, engine = store.create(RunConfig()), open_engine(spec)
    monkeypatch.setitem(sys.modules, "ray", None)
    spec = spec.model_copy(update={"job": f"{run.id}.1", "attempt": 1})
    for ask in (engine.submit, engine.state):
        with pytest.raises(JobError, match="Ray is not installed here") as raised:
            ask(run, spec)
        assert raised.value.remedy == INSTALL
    engine.remove(run, spec)  # a run can be deleted without it
    monkeypatch.undo()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for address, text in (("", "No Ray cluster is named"), ("auto", "'auto' is no address")):
        spec = make_spec("ray", {"address": address})
        with pytest.raises(JobError, match=text):
            ray_cluster.cluster_address(spec)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert ray_cluster.cluster_address(EngineSpec(engine="ray")) == "10.0.0.2:6379"
    named = make_spec("ray", {"address": "10.0.0.1:6379"})
    assert ray_cluster.cluster_address(named) == "10.0.0.1:6379"
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    assert ray_cluster.cluster_address(named) == "10.0.0.2:6379"


@pytest.fixture
def second_attempt(store, toy_config, monkeypatch):
    """A run as its worker of the second attempt sees it."""
    run = store.create(toy_config)
    write_spec(run, EngineSpec(engine="ray", attempt=2))
    monkeypatch.setenv(base.ATTEMPT, "2")
    return base.as_attempt(run)


def test_a_superseded_attempt_writes_no_event_checkpoint_or_model(second_attempt):
    run = second_attempt
    run.append(events.Resumed(step=0))
    (run.begin_checkpoint() / "state").touch()
    write_spec(run, EngineSpec(engine="ray", attempt=3))
    before = run.events_file.read_bytes()
    for write in (
        lambda: run.append(events.Finished(step=1, seconds=1.0)),
        lambda: run.end_checkpoint(1, 2),
        run.begin_checkpoint,
        run.check_writable,  # before a model or predictions are saved
    ):
        with pytest.raises(base.Superseded):
            write()
    assert run.events_file.read_bytes() == before
    assert run.checkpoints() == []
    assert (run.unfinished_checkpoint / "state").exists()  # it may be that of the third attempt


@pytest.mark.parametrize("present", [pytest.param(2, marks=pytest.mark.long), 3])
def test_the_command_carries_an_attempt_out_here_or_ends(second_attempt, present, monkeypatch):
    """Though its engine spec names another engine, and another process holds its lock."""
    write_spec(second_attempt, EngineSpec(engine="ray", attempt=present, job="a"))
    monkeypatch.delenv(base.ATTEMPT)
    with workers.worker_lock(second_attempt):
        words = [sys.executable, "-m", "finetune", "train", "--run", str(second_attempt.folder)]
        variables = {**os.environ, base.ATTEMPT: "2"}
        done = subprocess.run(words, env=variables, capture_output=True, text=True)
    if present == 2:
        assert done.returncode == 0, done.stderr
        assert second_attempt.state().status == "finished"
    else:
        assert done.returncode == base.LOST
        assert "a later attempt has this run" in done.stdout
        assert second_attempt.tail()[0] == []
