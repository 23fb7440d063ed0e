"""The queue: its order on disk, the runs it starts, and everything that may be killed meanwhile."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from finetune import owners
from finetune.config import RunConfig
from finetune.data import dataset_cache
from finetune.environment import devices
from finetune.errors import ConfigError, DataError, JobError, NoSuchRun
from finetune.jobs import run_table, scheduler, service, workers
from finetune.runs import events
from finetune.runs.grids import PlannedRun
from finetune.runs.queue import Queue
from finetune.ui import run_view
from tests.support import stand_in as stand_in_workers
from tests.support.apps import STEPS
from tests.support.kills import ROOT, Kills, check_ended, go_on
from tests.support.stand_in import HOLD, write
from tests.support.waiting import until

ENDLESS = 100_000
PLACES = ("/etc", ".", "../x")


@pytest.fixture
def stand_in(monkeypatch, store):
    """A store whose workers begin in a moment and learn nothing; all are ended afterwards."""
    stand_in_workers.use(monkeypatch)
    yield store
    for run in store.runs():
        workers.kill_worker(run)


@pytest.fixture
def hold(monkeypatch, tmp_path):
    """Lets workers take so many steps of their run at the most."""
    monkeypatch.setenv(HOLD, str(tmp_path / "hold"))
    return lambda steps: write(tmp_path / "hold", str(steps))


@pytest.fixture
def scheduling(stand_in):
    """The thread that starts queued runs, from when a test starts it."""
    thread = scheduler.Scheduler(stand_in, every=0.05)
    yield thread
    if thread.is_alive():
        thread.close()


def brief(steps=5, **values):
    return RunConfig(max_steps=steps, **values)


def status(run):
    return run.state().status


def step(run):
    return run.state().step


def worker_of(run):
    return workers.worker_process(run)


def begun(store, config=None):
    """A run whose worker takes steps and writes checkpoints."""
    run = service.start_run(store, config or brief(ENDLESS))
    until(lambda: step(run) > 12)
    return run


def steps_taken(run):
    return [point.step for point in run.state().train]


def test_one_trains_and_the_others_wait_in_order(stand_in, hold, scheduling):
    hold(0)
    first, second, third = service.start_runs(stand_in, [PlannedRun(brief(20))] * 3)
    places = [service.queue_place(stand_in, run) for run in (first, second, third)]
    assert places == [(0, 2), (1, 2), (2, 2)]
    assert [status(run) for run in (first, second)] == ["running", "waiting"]
    worker = worker_of(first)
    service.stop_run(stand_in, first)  # before its first step
    until(lambda: not worker.is_running())
    assert status(first) == "stopped"
    hold(ENDLESS)
    scheduling.start()
    until(lambda: status(third) == "finished")
    in_order = [run.state() for run in (first, second, third)]
    assert in_order[0].ended <= in_order[1].began <= in_order[1].ended <= in_order[2].began


def test_the_queue_goes_on_after_every_kind_of_end(stand_in, scheduling):
    """Cancelled while it waits, killed, deleted by hand, damaged, finished; and what is no run."""
    Queue(stand_in.root).add("etc")
    done = stand_in.create(brief())
    done.begin_checkpoint()
    done.append(events.Finished(step=5, seconds=1.0))  # and then it was killed
    killed, cancelled, deleted, damaged, last = service.start_runs(
        stand_in, [*map(PlannedRun, [*[brief(ENDLESS)] * 3, brief(5), brief(20)])]
    )
    (damaged.folder / "config.json").write_text('{"learning_rate": "high"}')
    shutil.rmtree(deleted.folder)
    scheduling.start()
    service.stop_run(stand_in, cancelled)
    assert status(cancelled) == "stopped"
    until(lambda: step(killed) > 3)
    worker_of(killed).kill()
    until(lambda: status(killed) == "interrupted")
    until(lambda: status(last) == "finished")
    assert status(damaged) == "failed"
    assert "config.json" in damaged.state().error
    with pytest.raises(JobError, match="it is finished"):  # a click just after the end
        service.stop_run(stand_in, last, discard=True)
    assert last.has_model()
    assert service.active_run(stand_in) is None
    until(lambda: Queue(stand_in.root).waiting() == [])
    assert not done.checkpoints_folder.exists()


def test_a_stopped_run_takes_its_turn_when_it_goes_on(stand_in, hold):
    hold(26)
    first = service.start_run(stand_in, brief(60))
    until(lambda: step(first) == 26)
    service.stop_run(stand_in, first)
    until(lambda: status(first) == "stopped")
    hold(ENDLESS)
    until(lambda: workers.worker_process(first) is None)  # no app is there to look again
    second = service.start_run(stand_in, brief(ENDLESS))
    service.resume_run(stand_in, first)
    assert status(first) == "waiting"
    with pytest.raises(JobError, match="The run is waiting"):
        service.resume_run(stand_in, first)
    service.stop_run(stand_in, first)  # out of the queue again: it is what it was
    assert (status(first), step(first)) == ("stopped", 26)
    service.resume_run(stand_in, first)
    service.delete_run(stand_in, second)
    until(lambda: status(first) == "finished")
    with pytest.raises(NoSuchRun):
        stand_in.get(second.id)
    assert steps_taken(first) == list(range(1, 61))
    assert run_table.training_seconds(first.state()) == pytest.approx(0.6)


@pytest.mark.parametrize("text", ["", "[]", '{"pid": -5, "started": 1.0}', "reused"])
def test_a_process_that_is_not_the_worker_gets_no_signal(store, adopt, text):
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


@pytest.mark.long
def test_a_run_has_one_worker_that_is_killed_where_it_does_not_listen(stand_in, monkeypatch):
    run = begun(stand_in)
    command = [sys.executable, "-m", "tests.support.stand_in", "--run", str(run.folder)]
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert second.returncode == 0
    assert "carried out by another process" in second.stderr
    worker_of(run).suspend()
    impatient = partial(workers.end_worker, patience=0.2, limit=0.6)
    monkeypatch.setattr(workers, "end_worker", impatient)
    service.stop_run(stand_in, run)
    until(lambda: not run.is_alive())
    assert status(run) == "stopped"
    assert run.best.exists()
    discarded = begun(stand_in)
    worker_of(discarded).suspend()
    service.stop_run(stand_in, discarded, discard=True)
    until(lambda: discarded.state().discarded)
    assert status(discarded) == "stopped"
    until(lambda: not discarded.best.exists())


def test_a_full_disk_leaves_what_waits_in_the_queue(stand_in, monkeypatch):
    with monkeypatch.context() as disk:
        full = OSError(errno.ENOSPC, "No space left on device")
        disk.setattr(workers, "empty_folder", Mock(side_effect=full))
        runs = service.start_runs(stand_in, [PlannedRun(brief())] * 2)
        assert [status(run) for run in runs] == ["waiting", "waiting"]
        assert not any(run.tail()[0] for run in runs)
    scheduler.dispatch_queue(stand_in)
    assert status(runs[0]) == "running"


@pytest.mark.parametrize("shared", ["", "1"])
def test_what_a_crash_or_a_visitor_left_is_removed_in_time(store, monkeypatch, shared):
    monkeypatch.setenv("FINETUNE_VISITORS", shared)
    run = store.create(brief())
    folder = dataset_cache.read_dataset(RunConfig(), store.root).folder
    others = [store.root / name for name in (".deleted-1", ".new-1", ".new-2", "data/unused")]
    monkeypatch.setattr(tempfile, "tempdir", str(store.root / "temporary"))
    (store.root / "temporary").mkdir()
    temporary = [Path(tempfile.mkdtemp(prefix=workers.TEMPORARY)) for _ in range(2)]
    for other in others:
        other.mkdir()
    for old in (others[1], others[3], folder, temporary[0]):
        os.utime(old, (0, 0))
    assert dataset_cache.load_cached(folder) is not None
    scheduler.remove_leftovers(store)
    there = [other.name for other in others if other.exists()]
    assert there == ([".new-2"] if shared else [".new-2", "unused"])
    assert [path.exists() for path in temporary] == [not shared, True]
    assert folder.exists()
    assert run.exists()


def test_several_accelerators_each_train_a_run(stand_in, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert devices.list_accelerators() == ("3", "5", "7")
    planned = [PlannedRun(brief(ENDLESS, num_processes=number)) for number in (1, 1, 2, 1)]
    *training, third, fourth = service.start_runs(stand_in, planned)
    assert [workers.worker_devices(run) for run in training] == [("3",), ("5",)]
    # The last would fit, but it is not before its turn.
    assert [status(run) for run in (third, fourth)] == ["waiting", "waiting"]
    assert worker_of(training[0]).environ()["CUDA_VISIBLE_DEVICES"] == "3"


@pytest.mark.parametrize("shared", ["", "1"])
def test_a_visitors_worker_has_no_token(stand_in, monkeypatch, shared):
    """Neither for datasets nor for checkpoints: the owner's private ones are not its visitors'."""
    monkeypatch.setenv("FINETUNE_VISITORS", shared)
    run = stand_in.create(brief(ENDLESS))
    with monkeypatch.context() as owner:
        owner.setenv("HF_TOKEN", "the-owners")
        workers.spawn_worker(run)
    variables = worker_of(run).environ()
    assert bool(variables.get("HF_TOKEN")) == (not shared)
    assert variables.get("HF_HUB_DISABLE_IMPLICIT_TOKEN") == (shared or None)


def test_a_worker_in_an_empty_folder_finds_what_another_named(stand_in, monkeypatch, tmp_path):
    """There `ada/tickets` and `csv` can mean no file of this machine."""
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as owner:
        owner.setenv("HF_HOME", "kept")
        run = service.start_run(stand_in, brief(3000, checkpoint="./mine"))
    folder = Path(worker_of(run).cwd())
    assert (folder.parent, os.listdir(folder)) == (run.folder.resolve(), [])
    assert worker_of(run).environ()["HF_HOME"] == str(tmp_path / "kept")
    assert run.config().checkpoint == str(tmp_path / "mine")
    (folder / "csv").mkdir()
    workers.kill_worker(run)
    assert os.listdir(workers.empty_folder(run)) == []


def test_of_two_apps_each_run_is_started_once(stand_in, processes, hold):
    hold(10)
    runs = [stand_in.create(brief(20)) for _ in range(3)]
    kills = Kills(stand_in.root, processes)
    apps = {app.pid: app for app in (kills.start("schedule") for _ in range(2))}
    for run in runs:
        Queue(stand_in.root).add(run.id)
    until(lambda: step(runs[0]) == 10)
    worker = worker_of(runs[0])
    apps[worker.ppid()].kill()
    assert worker.is_running()  # the run goes on, and the other app starts the next
    hold(ENDLESS)
    until(lambda: all(status(run) == "finished" for run in runs))
    for run in runs:
        assert sum(isinstance(event, events.Started) for event in run.tail()[0]) == 1


@pytest.mark.parametrize("number", [3, pytest.param(10, marks=pytest.mark.long)])
def test_kills_lose_nothing_and_leave_nobody(stand_in, processes, number):
    """Apps and workers die at random moments; each run is carried out once, step for step."""
    total = str(2 * number)
    kills = Kills(stand_in.root, processes)
    for turn in range(number):
        kills.at_random(kills.start("schedule", total), 1.5, with_workers=turn % 3 == 0)
        alive = [worker for run in stand_in.runs() if (worker := workers.worker_process(run))]
        assert len(kills.workers()) <= 1
        if alive and turn % 2:
            alive[0].kill()
        go_on(stand_in)
    app = kills.start("schedule", total)
    until(lambda: len(stand_in.runs()) == 2 * number and not go_on(stand_in))
    until(lambda: kills.workers(app) == [])
    for run in stand_in.runs():
        check_ended(run, STEPS)
        assert run.state().best.step == STEPS // 10 * 10
    assert Queue(stand_in.root).waiting() == []
    assert list(stand_in.root.glob(".queue/*-*")) == []


def visitors(store, monkeypatch, *names, **limits):
    """The store as each of these visitors of a shared app sees it."""
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    for name, limit in limits.items():
        monkeypatch.setenv(f"FINETUNE_MAX_{name}", str(limit))
    return [store.for_visitor(owners.policy().identify(user=name)) for name in names]


def stopped(store):
    run = store.create(brief())
    run.append(events.Stopped(step=0, seconds=0.0))
    return run


def test_a_visitor_has_so_many_runs_and_places(stand_in, monkeypatch):
    ada, bob = visitors(stand_in, monkeypatch, "ada", "bob", WAITING=2, RUNS=3, QUEUE=3)
    runs = service.start_runs(ada, [PlannedRun(brief(ENDLESS))] * 2)
    service.start_run(ada, brief())
    with pytest.raises(JobError, match="You have 3 runs here, and a visitor may keep 3"):
        service.start_run(ada, brief())
    service.delete_run(ada, runs[1])
    service.resume_run(ada, stopped(ada))
    monkeypatch.setenv("FINETUNE_MAX_RUNS", "9")
    with pytest.raises(JobError, match="2 of your runs wait already"):
        service.resume_run(ada, stopped(ada))
    waiting = service.start_run(bob, brief())
    assert service.queue_place(bob, waiting) == (1, 3)  # before hers: one of hers trains
    with pytest.raises(JobError, match="3 runs wait already, and the queue has 3 places"):
        service.resume_run(bob, stopped(bob))
    with pytest.raises(JobError, match="keeps no cookies"):
        service.start_run(stand_in.for_visitor(owners.policy().identify()), brief())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"report_to": "wandb"}, "the account here is not its visitors'"),
        ({"num_processes": 8}, "this machine has 1 to give"),
        ({"accelerate_config": "/etc/passwd"}, "cannot be named here"),
        *[({"checkpoint": place}, "is on this machine's disk") for place in PLACES],
        *[({"dataset": place}, "no path is read as a|There is no dataset") for place in PLACES],
        # What exists here is not told, nor where.
        *[({"checkpoint": name}, "is not offered in this") for name in ("tests", "tests/nothing")],
        *[({"metrics": f"{name}/x"}, f"names {name}/x, which is") for name in ("~", "tests", ".")],
    ],
    ids=str,
)
def test_a_visitor_may_not_ask_for(stand_in, monkeypatch, values, words):
    (ada,) = visitors(stand_in, monkeypatch, "ada", RUN_STEPS=500)
    default = {"max_steps": 500, "num_train_epochs": 3, "per_device_train_batch_size": 8}
    with pytest.raises((ConfigError, DataError), match=words):
        service.start_run(ada, RunConfig(**default | values))
    assert ada.runs() == []


def test_owners_take_turns(stand_in, monkeypatch, hold):
    """However many newcomers there are, a turn that was begun comes to its end."""
    ada, bob, cy, dan = visitors(stand_in, monkeypatch, "ada", "bob", "cy", "dan")
    hold(0)
    training, *hers = service.start_runs(ada, [PlannedRun(brief())] * 4)
    his, theirs = service.start_runs(bob, [PlannedRun(brief())] * 2), service.start_run(cy, brief())
    assert status(training) == "running"
    order = [his[0], theirs, hers[0], his[1], hers[1], hers[2]]
    queue = Queue(stand_in.root)
    assert queue.waiting() == [run.id for run in order]
    for run in order[:3]:
        queue.begin(run.id)
    newcomer = service.start_run(dan, brief())
    assert queue.waiting() == [run.id for run in (order[3], newcomer, *order[4:])]


def test_a_visitors_run_is_worked_on_for_so_long(stand_in, monkeypatch, hold, scheduling):
    """It stops as by Stop: with its best model, and it says why."""
    (ada,) = visitors(stand_in, monkeypatch, "ada")
    hold(13)
    run = service.start_run(ada, brief(40))
    scheduling.start()
    until(lambda: step(run) == 13)  # it has not had its time
    assert not run.stop_requested()
    monkeypatch.setenv("FINETUNE_MAX_RUN_MINUTES", "0")
    until(lambda: status(run) == "stopped")
    ended = run.state()
    assert ended.error == "It was worked on for 0 minutes, as long as a run may be."
    assert (ended.discarded, ended.saved_step, run.has_model()) == (False, 10, True)
    assert ended.error in run_view.verdict(ada, run, ended)
    with pytest.raises(JobError, match="This run was worked on for 0 minutes"):
        service.resume_run(ada, run)
    own = service.start_run(stand_in, brief())
    hold(ENDLESS)
    until(lambda: status(own) == "finished")  # whose is nobody's has no limit
