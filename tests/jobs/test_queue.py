"""The queue: its order on disk, the runs it starts, and everything that may be killed meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from finetune import owners
from finetune.config import RunConfig
from finetune.environment import devices
from finetune.errors import ConfigError, DataError, JobError, NoSuchRun, StoreError
from finetune.jobs import run_table, scheduler, service, train, workers
from finetune.jobs.queue import Queue
from finetune.runs import events, grids
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui.run_view import status_html
from tests.jobs.test_service import until
from tests.support.stand_in import HOLD, write

ROOT = Path(__file__).resolve().parent.parent.parent
ENDLESS = 100_000


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, store: RunStore) -> Iterator[RunStore]:
    """A store whose workers begin in a moment and learn nothing; all are ended afterwards."""
    monkeypatch.setattr(workers, "WORKER", "tests.support.stand_in")
    yield store
    end_all(store)


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int | None], None]:
    """Lets workers take so many steps of their run at the most; all of them again with None."""
    path = tmp_path / "hold"
    monkeypatch.setenv(HOLD, str(path))

    def at(steps: int | None) -> None:
        if steps is None:
            path.unlink()
        else:
            write(path, str(steps))

    return at


@pytest.fixture
def scheduling(stand_in: RunStore) -> Iterator[scheduler.Scheduler]:
    """The thread that starts queued runs, from when a test starts it."""
    thread = scheduler.Scheduler(stand_in, every=0.05)
    yield thread
    if thread._thread.is_alive():
        thread.close()


def end_all(store: RunStore) -> None:
    for run in store.runs():
        workers.kill_worker(run)


def brief(steps: int = 5, **values: Any) -> RunConfig:
    return RunConfig(max_steps=steps, **values)


def status(store: RunStore, run: Run) -> str:
    return service.run_summary(store, run).status


def step(store: RunStore, run: Run) -> int:
    return service.run_summary(store, run).step


def worker_of(run: Run) -> psutil.Process:
    worker = workers.worker_process(run)
    assert worker is not None
    return worker


def begun(store: RunStore, config: RunConfig | None = None) -> Run:
    """A run whose worker takes steps and writes checkpoints."""
    run = service.start_run(store, config or brief(ENDLESS))
    until(lambda: step(store, run) > 12)
    return run


def steps_taken(store: RunStore, run: Run) -> list[int]:
    return [point.step for point in service.run_summary(store, run).train]


class App:
    """An app without its page, as a process of its own."""

    def __init__(self, store: RunStore) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.scheduling", str(store.root)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "there\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def apps(store: RunStore) -> Iterator[list[App]]:
    started: list[App] = []
    yield started
    for app in started:
        app.kill()
    end_all(store)


def test_the_order_is_kept_on_disk(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    assert queue.waiting() == []
    for name in "abcd":
        queue.add(name)
    queue.add("c", first=True)
    queue.add("a")  # again: it goes to the end
    (tmp_path / ".queue" / "notes-x.txt").write_text("")  # no place in the queue
    assert Queue(tmp_path).waiting() == ["c", "b", "d", "a"]
    assert "c" in queue
    assert "x" not in queue
    assert queue.remove("b")
    assert not queue.remove("b")
    assert Queue(tmp_path).waiting() == ["c", "d", "a"]


def test_who_comes_later_is_not_always_first(tmp_path: Path) -> None:
    """However many newcomers there are, a turn that was begun comes to its end."""
    queue = Queue(tmp_path)
    for name in ("a1", "a2"):
        queue.add(name, "ada")
    queue.begin("a1")
    queue.add("b1", "bob")
    queue.add("a3", "ada")
    assert queue.waiting() == ["b1", "a2", "a3"]
    queue.begin("b1")
    queue.begin("a2")
    queue.add("c1", "cy")  # of the turn that is now
    queue.add("b2", "bob")
    assert queue.waiting() == ["c1", "b2", "a3"]
    queue.add("a3", "ada", first=True)
    assert queue.waiting() == ["a3", "c1", "b2"]


def test_one_trains_and_the_others_wait_in_order(
    stand_in: RunStore, hold: Callable[[int | None], None], scheduling: scheduler.Scheduler
) -> None:
    hold(0)
    runs = service.start_runs(stand_in, [brief(20)] * 3)
    assert [status(stand_in, run) for run in runs] == ["running", "waiting", "waiting"]
    assert [service.queue_place(stand_in, run) for run in runs] == [(0, 2), (1, 2), (2, 2)]
    service.move_to_front(stand_in, runs[2])
    assert [service.queue_place(stand_in, run)[0] for run in runs] == [0, 2, 1]
    with pytest.raises(JobError, match="does not wait"):
        service.move_to_front(stand_in, runs[0])
    hold(None)
    scheduling.start()
    until(lambda: all(status(stand_in, run) == "finished" for run in runs))
    began = {run.id: service.run_summary(stand_in, run).began for run in runs}
    ended = {run.id: service.run_summary(stand_in, run).ended for run in runs}
    assert ended[runs[0].id] <= began[runs[2].id] <= ended[runs[2].id] <= began[runs[1].id]


def test_the_queue_goes_on_after_every_kind_of_end(
    stand_in: RunStore, scheduling: scheduler.Scheduler
) -> None:
    """Cancelled while it waits, killed, deleted by hand, damaged, finished; and what is no run."""
    Queue(stand_in.root).add("etc")
    killed, cancelled, deleted, damaged, last = service.start_runs(
        stand_in, [brief(ENDLESS), brief(ENDLESS), brief(ENDLESS), brief(5), brief(5)]
    )
    (damaged.folder / "config.json").write_text('{"learning_rate": "high"}')
    shutil.rmtree(deleted.folder)
    scheduling.start()
    service.stop_run(stand_in, cancelled)
    assert status(stand_in, cancelled) == "stopped"
    until(lambda: step(stand_in, killed) > 3, 60)
    worker_of(killed).kill()
    until(lambda: status(stand_in, killed) == "interrupted")
    until(lambda: "memory runs out" in service.run_summary(stand_in, killed).error, 60)
    assert "per_device_train_batch_size" in service.run_summary(stand_in, killed).remedy
    until(lambda: status(stand_in, last) == "finished", 60)
    assert status(stand_in, damaged) == "failed"
    assert "config.json" in service.run_summary(stand_in, damaged).error
    assert service.active_run(stand_in) is None
    until(lambda: Queue(stand_in.root).waiting() == [])


def test_a_stopped_run_takes_its_turn_when_it_goes_on(
    stand_in: RunStore, hold: Callable[[int | None], None]
) -> None:
    hold(26)
    first = service.start_run(stand_in, brief(60))
    until(lambda: step(stand_in, first) == 26)
    service.stop_run(stand_in, first)
    until(lambda: status(stand_in, first) == "stopped")
    hold(None)
    until(lambda: workers.worker_process(first) is None)  # no app is there to look again
    second = service.start_run(stand_in, brief(ENDLESS))
    service.resume_run(stand_in, first)
    assert status(stand_in, first) == "waiting"
    with pytest.raises(JobError, match="The run is waiting"):
        service.resume_run(stand_in, first)
    service.stop_run(stand_in, first)  # out of the queue again: it is what it was
    assert (status(stand_in, first), step(stand_in, first)) == ("stopped", 26)
    service.resume_run(stand_in, first)
    service.delete_run(stand_in, second)
    until(lambda: status(stand_in, first) == "finished", 60)
    with pytest.raises(NoSuchRun):
        stand_in.get(second.id)
    assert steps_taken(stand_in, first) == list(range(1, 61))
    assert run_table.training_seconds(service.run_summary(stand_in, first)) == pytest.approx(0.6)


def test_stop_and_discard_leaves_no_model(stand_in: RunStore) -> None:
    run = begun(stand_in)
    service.stop_run(stand_in, run, discard=True)
    until(lambda: status(stand_in, run) == "stopped")
    until(lambda: not run.has_model() and not run.checkpoints_folder.exists(), 60)
    assert service.run_summary(stand_in, run).discarded
    assert step(stand_in, run) > 0  # what happened is kept
    until(lambda: workers.worker_process(run) is None)
    service.resume_run(stand_in, run)
    until(lambda: not service.run_summary(stand_in, run).discarded)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (events.Finished(step=10, seconds=1.0), "finished"),
        (events.Stopped(step=10, seconds=1.0), "stopped"),
        (events.Failed(error="too big", remedy="make it smaller"), "failed"),
        (None, "interrupted"),
    ],
    ids=lambda value: getattr(value, "event", ""),
)
def test_a_click_after_the_end_does_not_undo_it(
    store: RunStore, ended: events.Event | None, expected: str
) -> None:
    run, began = store.create(brief()), time.time() - 3600
    run.append(events.Started(time=began, device="none"))
    run.append(events.Saved(time=began + 1, step=10))
    if ended is not None:
        run.append(dataclasses.replace(ended, time=began + 1))
    run.best.mkdir()
    (run.best / "config.json").write_text("{}")
    with pytest.raises(JobError, match=f"it is {expected}"):
        service.stop_run(store, run, discard=True)
    assert run.has_model()
    service.stop_run(store, run)
    assert status(store, run) == ("stopped" if ended is None else expected)
    error = service.run_summary(store, run).error
    assert error == ("too big" if expected == "failed" else "")


def test_a_worker_that_does_not_listen_is_killed(stand_in: RunStore) -> None:
    run = begun(stand_in)
    worker_of(run).suspend()
    service.stop_run(stand_in, run, patience=0.2, limit=0.6)
    until(lambda: not run.is_alive(), 60)
    assert status(stand_in, run) == "stopped"


def test_a_run_deleted_by_hand_ends_its_worker(stand_in: RunStore) -> None:
    run = begun(stand_in)
    worker = worker_of(run)
    while run.folder.exists():  # a file may be written while the folder is emptied
        shutil.rmtree(run.folder, ignore_errors=True)
    until(lambda: not worker.is_running(), 30)
    assert not run.folder.exists()  # and it was not made again
    assert stand_in.runs() == []


def test_only_one_worker_carries_a_run_out(
    stand_in: RunStore, hold: Callable[[int | None], None]
) -> None:
    hold(4)
    run = service.start_run(stand_in, brief(30))
    until(lambda: step(stand_in, run) == 4)
    command = [sys.executable, "-m", "tests.support.stand_in", "--run", str(run.folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "carried out by another process" in done.stderr
    hold(None)
    until(lambda: status(stand_in, run) == "finished")
    assert sum(isinstance(event, events.Started) for event in run.tail()[0]) == 1


def test_a_run_that_no_process_can_be_had_for_has_failed(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*words: Any, **values: Any) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", none)
    run = service.start_run(stand_in, brief())
    failed = service.run_summary(stand_in, run)
    assert failed.status == "failed"
    assert "Resource temporarily unavailable" in failed.error
    assert Queue(stand_in.root).waiting() == []
    monkeypatch.undo()


def test_several_accelerators_each_train_a_run(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert devices.list_accelerators() == ("3", "5", "7")
    configs = [brief(ENDLESS, num_processes=number) for number in (1, 1, 2, 1)]
    one, two, *others = service.start_runs(stand_in, configs)
    assert [workers.worker_devices(run) for run in (one, two)] == [("3",), ("5",)]
    # The last would fit, but it is not before its turn.
    assert [status(stand_in, run) for run in others] == ["waiting", "waiting"]
    assert worker_of(one).environ()["CUDA_VISIBLE_DEVICES"] == "3"


@pytest.mark.parametrize("shared", ["", "1"])
def test_a_visitors_worker_has_no_token(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    """Neither for datasets nor for checkpoints: the owner's private ones are not its visitors'."""
    monkeypatch.setenv("FINETUNE_VISITORS", shared)
    run = stand_in.create(brief(ENDLESS))
    with monkeypatch.context() as owner:
        owner.setenv("HF_TOKEN", "the-owners")
        workers.spawn_worker(run)
    variables = worker_of(run).environ()
    assert ("HF_TOKEN" in variables) == (not shared)
    assert variables.get("HF_HUB_DISABLE_IMPLICIT_TOKEN") == (shared or None)


def test_a_worker_runs_in_an_empty_folder_and_finds_what_was_named_from_another(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There `ada/tickets` and `csv` can mean no file of this machine."""
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as owner:
        owner.setenv("HF_HOME", "kept")
        run = service.start_run(stand_in, brief(3000, checkpoint="./mine"))
    folder, variables = Path(worker_of(run).cwd()), worker_of(run).environ()
    assert os.listdir(folder) == []
    assert folder.parent == run.folder.resolve()
    assert variables["HF_HOME"] == str(tmp_path / "kept")
    assert run.config().checkpoint == str(tmp_path / "mine")
    (folder / "csv").mkdir()
    workers.kill_worker(run)
    assert os.listdir(workers.empty_folder(run)) == []
    monkeypatch.setattr(train, "carry_out_run", lambda run, show: 0)
    other = RunStore(tmp_path / "other")  # whose run this process is
    assert train.main(["--checkpoint=mine", "--runs", str(other.root)]) == 0
    assert other.runs()[0].config().checkpoint == str(tmp_path / "mine")


def test_a_half_written_line_is_not_the_next_ones_end(stand_in: RunStore) -> None:
    run = begun(stand_in)
    workers.kill_worker(run)
    with run.events_file.open("ab") as file:
        file.write(b'\x00\xff{"event": "step", "st')
    assert status(stand_in, run) == "interrupted"
    service.resume_run(stand_in, run)
    assert any(isinstance(event, events.Resumed) for event in run.tail()[0])
    until(lambda: step(stand_in, run) > 25)
    taken = steps_taken(stand_in, run)
    assert taken == list(range(1, len(taken) + 1))


def test_a_disk_that_is_full_loses_nothing(stand_in: RunStore, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk here")
    store = RunStore(small / "runs")
    try:
        run, ballast = begun(store), small / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 512)
        until(lambda: workers.worker_process(run) is None, 60)
        ended = service.run_summary(store, run)
        assert ended.status in ("interrupted", "failed")
        assert "disk is full" in ended.error
        with pytest.raises(StoreError, match=r"cannot be (made|written)"):
            service.start_run(store, brief(5))
        assert [kept.id for kept in store.runs()] == [run.id]
        ballast.unlink()
        assert len(run.checkpoints()) == 1
        service.resume_run(store, run)
        until(lambda: step(store, run) > 60, 60)
        taken = steps_taken(store, run)
        assert taken == list(range(1, len(taken) + 1))
        end_all(store)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


def test_of_two_apps_each_run_is_started_once(
    stand_in: RunStore, apps: list[App], hold: Callable[[int | None], None]
) -> None:
    hold(10)
    runs = [stand_in.create(brief(20)) for _ in range(3)]
    apps += [App(stand_in), App(stand_in)]
    for run in runs:
        Queue(stand_in.root).add(run.id)
    until(lambda: step(stand_in, runs[0]) == 10)
    worker = worker_of(runs[0])
    next(app for app in apps if app.process.pid == worker.ppid()).kill()
    assert worker.is_running()  # the run goes on, and the other app starts the next
    hold(None)
    until(lambda: all(status(stand_in, run) == "finished" for run in runs))
    for run in runs:
        assert sum(isinstance(event, events.Started) for event in run.tail()[0]) == 1


@pytest.mark.parametrize(
    ("total", "steps"), [(6, 100), pytest.param(30, 220, marks=pytest.mark.long)]
)
@pytest.mark.timeout(240)
def test_kills_lose_nothing_and_leave_nobody(
    stand_in: RunStore, apps: list[App], total: int, steps: int
) -> None:
    """Apps and workers die at random moments; every run ends with every step taken in order."""
    draw, least = random.Random(5), total // 6
    runs: list[Run] = []

    def add_run() -> None:
        runs.append(stand_in.create(brief(steps)))
        Queue(stand_in.root).add(runs[-1].id)

    def resume_interrupted() -> bool:
        """Whether runs are left to be finished."""
        for run in runs:
            if status(stand_in, run) == "interrupted":
                service.resume_run(stand_in, run)
        return not all(status(stand_in, run) == "finished" for run in runs)

    app, workers_seen, kills = App(stand_in), [], {"app": 0, "worker": 0}
    apps.append(app)
    add_run()
    while sum(kills.values()) < total or min(kills.values()) < least:
        time.sleep(draw.random() * 0.6)
        alive = [worker for run in runs if (worker := workers.worker_process(run)) is not None]
        workers_seen += alive
        assert len(alive) <= 1
        if draw.random() < 0.4:
            app.kill()
            kills["app"] += 1
            app = App(stand_in)
            apps.append(app)
        elif alive:
            alive[0].kill()
            kills["worker"] += 1
        if not resume_interrupted():
            add_run()
    until(lambda: not resume_interrupted(), 120)
    for run in runs:
        best = service.run_summary(stand_in, run).best
        assert steps_taken(stand_in, run) == list(range(1, steps + 1)), run
        assert best is not None
        assert best.step == steps
        assert not run.checkpoints_folder.exists()
    assert Queue(stand_in.root).waiting() == []
    until(lambda: not any(worker.is_running() for worker in workers_seen), 60)

    def strangers() -> set[int]:
        """Who else works on these runs; a worker that was told to end takes a moment."""
        ours = {process.pid for process in psutil.process_iter(["cmdline"])
                if str(stand_in.root) in " ".join(process.info["cmdline"] or [])}  # fmt: skip
        return ours - {app.process.pid for app in apps}

    until(lambda: not strangers(), 60)
    children = psutil.Process(app.process.pid).children(recursive=True)
    assert all(child.status() != psutil.STATUS_ZOMBIE for child in children)


def test_repeated_with_seeds_and_over_a_grid() -> None:
    base = RunConfig(seed=7, name="pairs")
    assert [plan.config for plan in grids.plan_runs(base)] == [base]
    planned = grids.plan_runs(base, 2, {"learning_rate": "1e-5, 3e-5", "num_train_epochs": "3"})
    assert [(plan.config.learning_rate, plan.config.seed) for plan in planned] == [
        (1e-5, 7), (1e-5, 8), (3e-5, 7), (3e-5, 8),
    ]  # fmt: skip
    assert planned[1].config.name == "pairs, lr 1e-05, seed 8"
    assert len({plan.group for plan in planned}) == 2
    assert {plan.group for plan in grids.plan_runs(base, 1, {"learning_rate": "1e-5,3e-5"})} == {""}
    for seeds, grid, words in (
        ("x", {}, "got 'x'"),
        (1, {"learning_rate": "1e-5, high"}, "learning_rate must be a number, got 'high'"),
        (1, {"num_train_epochs": "0"}, "num_train_epochs must be at least 1"),
        (50, {"learning_rate": "1e-5,2e-5,3e-5"}, "makes 150 runs; at most 100"),
    ):
        with pytest.raises(ConfigError, match=words):
            grids.plan_runs(base, seeds, grid)  # type: ignore[arg-type]


def visitors(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, *names: str, **limits: int
) -> list[RunStore]:
    """The store as each of these visitors of a shared app sees it."""
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    for name, limit in limits.items():
        monkeypatch.setenv(f"FINETUNE_MAX_{name}", str(limit))
    return [store.for_visitor(owners.identify(user=name)) for name in names]


def stopped(store: RunStore) -> Run:
    run = store.create(brief())
    run.append(events.Stopped(step=0, seconds=0.0))
    return run


def test_a_visitor_has_so_many_runs_and_places(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob = visitors(stand_in, monkeypatch, "ada", "bob", WAITING=2, RUNS=3, QUEUE=3)
    runs = service.start_runs(ada, [brief(ENDLESS), brief(ENDLESS)])
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
    with pytest.raises(JobError, match="goes in order"):
        service.move_to_front(bob, waiting)
    with pytest.raises(JobError, match="keeps no cookies"):
        service.start_run(stand_in.for_visitor(owners.identify()), brief())


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"report_to": "wandb"}, ConfigError, "the account here is not its visitors'"),
        ({"num_processes": 8}, ConfigError, "this machine has 1 to give"),
        ({"accelerate_config": "/etc/passwd"}, ConfigError, "cannot be named here"),
        ({"max_steps": 501}, ConfigError, "max_steps makes 501 steps, and a run may take 500"),
        ({"max_steps": -1}, ConfigError, "num_train_epochs makes 657 steps"),  # of 1,746 pairs
        *[
            ({"checkpoint": place}, ConfigError, "is on this machine's disk")
            for place in ("/etc", ".", "~", "../x", "tests")
        ],
        *[
            ({"dataset": place}, DataError, "no path is read as a dataset|There is no dataset")
            for place in ("/etc", ".", "~", "../x", "tests")
        ],
    ],
    ids=str,
)
def test_a_visitor_may_not_ask_for(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any],
    error: type[Exception], words: str,
) -> None:  # fmt: skip
    (ada,) = visitors(stand_in, monkeypatch, "ada", RUN_STEPS=500)
    default = {"max_steps": 500, "num_train_epochs": 3, "per_device_train_batch_size": 8}
    with pytest.raises(error, match=words):
        service.start_run(ada, RunConfig(**default | values))
    assert ada.runs() == []


def test_owners_take_turns(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch, hold: Callable[[int | None], None],
    scheduling: scheduler.Scheduler,
) -> None:  # fmt: skip
    ada, bob, cy = visitors(stand_in, monkeypatch, "ada", "bob", "cy")
    hold(0)
    first, *hers = service.start_runs(ada, [brief()] * 4)
    his, theirs = service.start_runs(bob, [brief()] * 2), service.start_run(cy, brief())
    assert status(ada, first) == "running"
    order = [his[0], theirs, hers[0], his[1], hers[1], hers[2]]
    assert [service.queue_place(stand_in, run)[0] for run in order] == [1, 2, 3, 4, 5, 6]
    hold(None)
    scheduling.start()
    until(lambda: all(status(stand_in, run) == "finished" for run in order))
    began = [service.run_summary(stand_in, run).began for run in order]
    assert began == sorted(began)


def test_a_visitors_run_is_worked_on_for_so_long(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch, hold: Callable[[int | None], None],
    scheduling: scheduler.Scheduler,
) -> None:  # fmt: skip
    """It stops as by Stop: with its best model, and it says why."""
    (ada,) = visitors(stand_in, monkeypatch, "ada")
    hold(13)
    run = service.start_run(ada, brief(40))
    scheduling.start()
    until(lambda: step(ada, run) == 13)  # it has not had its time
    assert not run.stop_requested()
    monkeypatch.setenv("FINETUNE_MAX_RUN_MINUTES", "0")
    until(lambda: status(ada, run) == "stopped")
    ended = service.run_summary(ada, run)
    assert ended.error == "It was worked on for 0 minutes, as long as a run may be."
    assert (ended.discarded, ended.saved_step, run.has_model()) == (False, 10, True)
    assert ended.error in status_html(run, ended)
    with pytest.raises(JobError, match="This run was worked on for 0 minutes"):
        service.resume_run(ada, run)
    own = service.start_run(stand_in, brief())
    hold(None)
    until(lambda: status(stand_in, own) == "finished")  # whose is nobody's has no limit
