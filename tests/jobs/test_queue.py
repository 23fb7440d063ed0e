"""The queue: its order on disk, the runs it starts, and everything that may be killed meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
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
from tests.support.stand_in import HOLD, LATE, LINGER, write

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


def end_all(store: RunStore) -> None:
    for run in store.runs():
        workers.kill_worker(run)


def brief(steps: int = 5, **values: Any) -> RunConfig:
    return RunConfig(max_steps=steps, **values)


def status(store: RunStore, run: Run) -> str:
    return service.run_summary(store, run).status


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
    made: list[App] = []
    yield made
    for app in made:
        app.kill()
    end_all(store)


def test_the_order_is_kept_on_disk(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    assert queue.waiting() == []
    for name in "abcd":
        queue.add(name)
    queue.add("c", first=True)
    queue.add("a")  # again: it goes to the end
    assert Queue(tmp_path).waiting() == ["c", "b", "d", "a"]
    assert "c" in queue
    assert "x" not in queue
    assert queue.remove("b")
    assert not queue.remove("b")
    assert Queue(tmp_path).waiting() == ["c", "d", "a"]


def test_what_lies_about_in_the_queue_is_ignored(stand_in: RunStore) -> None:
    queue = Queue(stand_in.root)
    queue.add("etc")  # no run: it is dropped
    (stand_in.root / ".queue" / "notes.txt").write_text("")
    (stand_in.root / ".queue" / "7-20200101-000000-unknownrun").write_text("")
    run = service.start_run(stand_in, brief())
    until(lambda: status(stand_in, run) == "finished")
    until(lambda: not run.is_alive())
    scheduler.dispatch_queue(stand_in)
    assert queue.waiting() == []


def test_one_trains_and_the_others_wait_in_order(
    stand_in: RunStore, hold: Callable[[int | None], None]
) -> None:
    hold(0)
    runs = [service.start_run(stand_in, brief(20)) for _ in range(3)]
    assert [status(stand_in, run) for run in runs] == ["running", "waiting", "waiting"]
    assert [service.queue_place(stand_in, run) for run in runs] == [(0, 2), (1, 2), (2, 2)]
    service.move_to_front(stand_in, runs[2])
    assert [service.queue_place(stand_in, run)[0] for run in runs] == [0, 2, 1]
    with pytest.raises(JobError, match="does not wait"):
        service.move_to_front(stand_in, runs[0])
    hold(None)
    going = scheduler.Scheduler(stand_in, every=0.05)
    going.start()
    try:
        until(lambda: all(status(stand_in, run) == "finished" for run in runs))
    finally:
        going.close()
    begun = {run.id: service.run_summary(stand_in, run).began for run in runs}
    ended = {run.id: service.run_summary(stand_in, run).ended for run in runs}
    assert ended[runs[0].id] <= begun[runs[2].id] <= ended[runs[2].id] <= begun[runs[1].id]


def test_the_queue_goes_on_after_every_kind_of_end(stand_in: RunStore) -> None:
    """Cancelled while it waits, failed, killed, deleted by hand, damaged, finished."""
    cancelled, killed, deleted, damaged, last = (
        service.start_run(stand_in, brief(steps)) for steps in (ENDLESS, ENDLESS, ENDLESS, 5, 5)
    )
    (damaged.folder / "config.json").write_text('{"learning_rate": "high"}')
    shutil.rmtree(deleted.folder)
    going = scheduler.Scheduler(stand_in, every=0.05)
    going.start()
    try:
        service.stop_run(stand_in, cancelled)
        until(lambda: status(stand_in, cancelled) == "stopped", 60)
        until(lambda: service.run_summary(stand_in, killed).step > 3, 60)
        found = workers.worker_process(killed)
        assert found is not None
        found.kill()
        until(lambda: status(stand_in, killed) == "interrupted")
        until(lambda: status(stand_in, last) == "finished", 60)
    finally:
        going.close()
    assert status(stand_in, damaged) == "failed"
    assert "config.json" in service.run_summary(stand_in, damaged).error
    assert killed.has_model() is (service.run_summary(stand_in, killed).saved_step is not None)


def test_a_stopped_run_takes_its_turn_when_it_goes_on(
    stand_in: RunStore, hold: Callable[[int | None], None]
) -> None:
    hold(26)
    first = service.start_run(stand_in, brief(60))
    until(lambda: service.run_summary(stand_in, first).step == 26)
    service.stop_run(stand_in, first)
    until(lambda: status(stand_in, first) == "stopped")
    hold(None)
    until(lambda: workers.worker_process(first) is None)  # no app is there to look again
    at = service.run_summary(stand_in, first).step
    second = service.start_run(stand_in, brief(ENDLESS))
    service.resume_run(stand_in, first)
    assert status(stand_in, first) == "waiting"
    with pytest.raises(JobError, match="The run is waiting"):
        service.resume_run(stand_in, first)
    service.stop_run(stand_in, first)  # out of the queue again: it is what it was
    assert status(stand_in, first) == "stopped"
    assert service.run_summary(stand_in, first).step == at
    service.resume_run(stand_in, first)
    service.delete_run(stand_in, second)
    until(lambda: status(stand_in, first) == "finished", 60)
    with pytest.raises(NoSuchRun):
        stand_in.get(second.id)
    taken = [one.step for one in service.run_summary(stand_in, first).train]
    assert taken == list(range(1, 61))
    assert run_table.training_seconds(service.run_summary(stand_in, first)) == pytest.approx(0.6)


def test_stop_and_discard_leaves_no_model(stand_in: RunStore) -> None:
    run = service.start_run(stand_in, brief(ENDLESS))
    until(lambda: run.has_model())
    service.stop_run(stand_in, run, discard=True)
    until(lambda: status(stand_in, run) == "stopped")
    until(lambda: not run.has_model() and not run.checkpoints_folder.exists(), 60)
    assert service.run_summary(stand_in, run).discarded
    assert service.run_summary(stand_in, run).step > 0  # what happened is kept
    until(lambda: workers.worker_process(run) is None)
    service.resume_run(stand_in, run)
    until(lambda: not service.run_summary(stand_in, run).discarded)


@pytest.mark.parametrize(
    ("ended", "kept"),
    [
        (events.Finished(step=10, seconds=1.0), "finished"),
        (events.Stopped(step=10, seconds=1.0), "stopped"),
        (events.Failed(error="too big", remedy="make it smaller"), "failed"),
    ],
    ids=lambda value: getattr(value, "event", ""),
)
def test_a_click_after_the_end_does_not_undo_it(
    store: RunStore, ended: events.Event, kept: str
) -> None:
    run = with_model(store, ended)
    with pytest.raises(JobError, match=f"it is {kept}"):
        service.stop_run(store, run, discard=True)
    assert run.has_model()
    assert run.checkpoints()
    service.stop_run(store, run)
    assert (status(store, run), service.run_summary(store, run).error) == (
        kept,
        "too big" if kept == "failed" else "",
    )


@pytest.mark.parametrize(
    "ended", [None, events.Stopped(step=10, seconds=1.0), events.Failed(error="too big")]
)
def test_what_waits_to_go_on_can_be_discarded(store: RunStore, ended: events.Event | None) -> None:
    run = with_model(store, ended)
    Queue(store.root).add(run.id)
    assert status(store, run) == "waiting"
    service.stop_run(store, run, discard=True)
    assert not run.has_model()
    assert not run.checkpoints()
    done = service.run_summary(store, run)
    assert done.discarded
    assert done.saved_step is None
    assert (done.status, done.error) == (
        ("failed", "too big") if isinstance(ended, events.Failed) else ("stopped", "")
    )
    assert run_table.training_seconds(done) == pytest.approx(1.0)


def test_what_was_interrupted_can_be_discarded(store: RunStore) -> None:
    run = with_model(store, None)
    assert status(store, run) == "interrupted"
    service.stop_run(store, run, discard=True)
    assert not run.has_model()
    assert (status(store, run), service.run_summary(store, run).discarded) == ("stopped", True)


def with_model(store: RunStore, ended: events.Event | None) -> Run:
    """A run of an hour ago, worked on for a second, that has a model and a checkpoint."""
    run, began = store.create(brief()), time.time() - 3600
    run.append(events.Started(time=began, device="none"))
    run.append(events.Saved(time=began + 1, step=10))
    if ended is not None:
        run.append(dataclasses.replace(ended, time=began + 1))
    run.best.mkdir()
    (run.best / "config.json").write_text("{}")
    (run.checkpoints_folder / "step-000000010").mkdir(parents=True)
    return run


def test_what_is_resumed_while_its_worker_still_leaves_goes_on(
    stand_in: RunStore,
    monkeypatch: pytest.MonkeyPatch,
    hold: Callable[[int | None], None],
    tmp_path: Path,
) -> None:
    """A worker lives for some time after its last event; Resume pressed in it must not be lost."""
    (tmp_path / "linger").touch()
    monkeypatch.setenv(LINGER, str(tmp_path / "linger"))
    hold(4)
    run = service.start_run(stand_in, brief(30))
    until(lambda: service.run_summary(stand_in, run).step == 4)
    service.stop_run(stand_in, run)
    until(lambda: status(stand_in, run) == "stopped")
    hold(None)
    going = scheduler.Scheduler(stand_in, every=0.05)
    going.start()
    try:
        service.resume_run(stand_in, run)
        assert workers.worker_process(run) is not None
        assert status(stand_in, run) == "waiting"
        (tmp_path / "linger").unlink()
        until(lambda: status(stand_in, run) == "finished", 60)
    finally:
        going.close()


def test_a_worker_that_does_not_listen_is_killed(stand_in: RunStore) -> None:
    run = service.start_run(stand_in, brief(ENDLESS))
    until(lambda: service.run_summary(stand_in, run).step > 0)
    worker = workers.worker_process(run)
    assert worker is not None
    worker.suspend()
    service.stop_run(stand_in, run, patience=0.2, limit=0.6)
    until(lambda: not run.is_alive(), 60)
    assert status(stand_in, run) == "stopped"


def test_a_killed_worker_is_shown_as_interrupted(stand_in: RunStore) -> None:
    run = service.start_run(stand_in, brief(ENDLESS))
    until(lambda: service.run_summary(stand_in, run).step > 0)
    worker = workers.worker_process(run)
    assert worker is not None
    worker.kill()
    until(lambda: status(stand_in, run) == "interrupted")
    assert service.active_run(stand_in) is None
    until(lambda: "memory runs out" in service.run_summary(stand_in, run).error, 60)
    assert "per_device_train_batch_size" in service.run_summary(stand_in, run).remedy


def test_a_run_deleted_by_hand_ends_its_worker(stand_in: RunStore) -> None:
    run = service.start_run(stand_in, brief(ENDLESS))
    until(lambda: service.run_summary(stand_in, run).step > 12)
    found = workers.worker_process(run)
    assert found is not None
    while run.folder.exists():  # a file may be written while the folder is emptied
        shutil.rmtree(run.folder, ignore_errors=True)
    until(lambda: not found.is_running(), 30)
    assert not run.folder.exists()  # and it was not made again
    assert [one.id for one in stand_in.runs()] == []


def test_only_one_worker_carries_a_run_out(
    stand_in: RunStore, hold: Callable[[int | None], None]
) -> None:
    hold(4)
    run = service.start_run(stand_in, brief(30))
    until(lambda: service.run_summary(stand_in, run).step == 4)
    command = [sys.executable, "-m", "tests.support.stand_in", "--run", str(run.folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "carried out by another process" in done.stderr
    hold(None)
    until(lambda: status(stand_in, run) == "finished")
    assert sum(isinstance(one, events.Started) for one in run.tail()[0]) == 1


@pytest.fixture
def unnoted(stand_in: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """A run whose worker was just started by an app that was killed before it noted the pid; the
    worker does nothing as long as there is a file called `late`."""

    def killed(*words: Any) -> None:
        raise KeyboardInterrupt

    run = stand_in.create(brief(ENDLESS))
    Queue(stand_in.root).add(run.id)
    (tmp_path / "late").touch()
    with monkeypatch.context() as app:
        app.setenv(LATE, str(tmp_path / "late"))
        app.setattr(workers, "record_worker", killed)
        with pytest.raises(KeyboardInterrupt):
            scheduler.dispatch_queue(stand_in)
    yield run
    (tmp_path / "late").unlink(missing_ok=True)


def started_for(run: Run) -> psutil.Process:
    """The worker of a run, whoever knows its pid."""
    (found,) = (one for one in psutil.Process().children() if str(run.folder) in one.cmdline())
    return found


def test_a_worker_whose_pid_nobody_knows_is_the_runs_worker(
    stand_in: RunStore, unnoted: Run
) -> None:
    """It runs from its first moment, no other is started, and Stop holds for it."""
    found = started_for(unnoted)
    assert workers.worker_process(unnoted) is None
    assert status(stand_in, unnoted) == "running"
    active = service.active_run(stand_in)
    assert active is not None
    assert active.id == unnoted.id
    another = service.start_run(stand_in, brief())  # another app takes over
    assert [status(stand_in, one) for one in (unnoted, another)] == ["running", "waiting"]
    with pytest.raises(JobError, match="The run is running"):
        service.resume_run(stand_in, unnoted)
    assert started_for(unnoted) == found
    service.stop_run(stand_in, unnoted)
    assert unnoted.stop_requested()
    assert status(stand_in, unnoted) == "running"  # until it has ended
    found.kill()
    until(lambda: status(stand_in, unnoted) == "stopped")
    scheduler.dispatch_queue(stand_in)
    until(lambda: status(stand_in, another) == "finished")


def test_a_worker_whose_pid_nobody_knows_tells_it(
    stand_in: RunStore, unnoted: Run, tmp_path: Path
) -> None:
    found = started_for(unnoted)
    (tmp_path / "late").unlink()
    until(lambda: workers.worker_process(unnoted) is not None)
    assert workers.worker_process(unnoted) == found
    assert scheduler.running_runs(stand_in) != []
    service.delete_run(stand_in, unnoted)
    until(lambda: not found.is_running() or found.status() == psutil.STATUS_ZOMBIE)
    assert stand_in.runs() == []


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


def test_a_full_disk_lets_the_queue_wait(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*words: Any, **values: Any) -> None:
        raise StoreError("process.json cannot be written: No space left on device.")

    monkeypatch.setattr(workers, "record_worker", full)
    run = service.start_run(stand_in, brief())
    end_all(stand_in)
    assert Queue(stand_in.root).waiting() == [run.id]
    monkeypatch.undo()
    monkeypatch.setattr(workers, "WORKER", "tests.support.stand_in")
    scheduler.dispatch_queue(stand_in)
    until(lambda: status(stand_in, run) == "finished", 60)


def test_several_accelerators_each_train_a_run(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert devices.list_accelerators() == ("3", "5", "7")
    monkeypatch.setattr("finetune.training.distributed.exec_launcher", lambda run: None)
    one, two, pair = (
        service.start_run(stand_in, brief(ENDLESS, num_processes=n)) for n in (1, 1, 2)
    )
    assert [workers.worker_devices(run) for run in (one, two)] == [("3",), ("5",)]
    assert status(stand_in, pair) == "waiting"
    behind = service.start_run(stand_in, brief(ENDLESS))  # would fit, but is not before its turn
    assert status(stand_in, behind) == "waiting"
    seen = psutil.Process(workers.worker_process(one).pid).environ()  # type: ignore[union-attr]
    assert seen["CUDA_VISIBLE_DEVICES"] == "3"


def test_a_visitors_worker_has_no_token(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for datasets nor for checkpoints: the owner's private ones are not its visitors'."""
    for shared in ("", "1"):
        monkeypatch.setenv("FINETUNE_VISITORS", shared)
        run = stand_in.create(brief(ENDLESS))
        with monkeypatch.context() as owner:
            owner.setenv("HF_TOKEN", "the-owners")
            workers.spawn_worker(run)
        found = workers.worker_process(run)
        assert found is not None
        told = found.environ()
        assert ("HF_TOKEN" in told, told.get("HF_HUB_DISABLE_IMPLICIT_TOKEN")) == (
            (False, "1") if shared else (True, None)
        )
        workers.kill_worker(run)


def test_a_worker_runs_in_an_empty_folder_and_finds_what_was_named_from_another(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There `ada/tickets` and `csv` can mean no file of this machine."""
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as owner:
        owner.setenv("HF_HOME", "kept")
        run = service.start_run(stand_in, brief(3000, checkpoint="./mine"))
    found = workers.worker_process(run)
    assert found is not None
    assert os.listdir(found.cwd()) == []
    assert Path(found.cwd()).parent == run.folder.resolve()
    assert found.environ()["HF_HOME"] == str(tmp_path / "kept")
    assert run.config().checkpoint == str(tmp_path / "mine")
    (Path(found.cwd()) / "csv").mkdir()
    workers.kill_worker(run)
    assert os.listdir(workers.empty_folder(run)) == []
    monkeypatch.setattr("finetune.jobs.train.carry_out_run", lambda run, show: 0)
    other = RunStore(tmp_path / "other")  # whose run this process is
    assert train.main(["--checkpoint=mine", "--runs", str(other.root)]) == 0
    assert other.runs()[0].config().checkpoint == str(tmp_path / "mine")


def test_a_clock_that_jumps_changes_nothing(
    stand_in: RunStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hold: Callable[[int | None], None],
) -> None:
    """The worker's clock goes back a day and forth a month; the app's goes forth a year."""
    jump, clock = tmp_path / "jump", tmp_path / "clock"
    jump.mkdir()
    (jump / "sitecustomize.py").write_text(
        "import time\n"
        "real = time.time\n"
        f"time.time = lambda: real() + int(open({str(clock)!r}).read())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(jump))
    write(clock, "0")
    hold(40)
    run = service.start_run(stand_in, brief(120))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 365 * 86400)

    def at(step: int) -> bool:
        summary = service.run_summary(stand_in, run)
        assert summary.status == "running"
        assert summary.seconds_left is None or 0 <= summary.seconds_left < 60
        assert (run_table.training_seconds(summary) or 0) >= 0
        return summary.step == step

    for step, offset in ((40, -86400), (80, 30 * 86400)):
        until(lambda step=step: at(step))  # type: ignore[misc]
        write(clock, str(offset))
        hold(step + 40)
    until(lambda: status(stand_in, run) == "finished")
    done = service.run_summary(stand_in, run)
    times = [one.time for one in done.train]
    assert min(b - a for a, b in itertools.pairwise(times)) < -80_000  # it did jump
    assert run_table.training_seconds(done) == pytest.approx(1.2)
    assert [one.step for one in done.train] == list(range(1, 121))


def test_a_half_written_line_is_not_the_next_ones_end(stand_in: RunStore) -> None:
    run = service.start_run(stand_in, brief(ENDLESS))
    until(lambda: service.run_summary(stand_in, run).step > 12)
    workers.kill_worker(run)
    with run.events_file.open("ab") as file:
        file.write(b'\x00\xff{"event": "step", "st')
    assert status(stand_in, run) == "interrupted"
    service.resume_run(stand_in, run)
    assert any(isinstance(one, events.Resumed) for one in run.tail()[0])
    until(lambda: service.run_summary(stand_in, run).step > 25)
    steps = [one.step for one in service.run_summary(stand_in, run).train]
    assert steps == list(range(1, len(steps) + 1))


def test_a_disk_that_is_full_loses_nothing(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small disk here")
    try:
        store = RunStore(small / "runs")
        run = service.start_run(store, brief(ENDLESS))
        until(lambda: service.run_summary(store, run).step > 25)
        ballast = small / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 512)
        until(lambda: workers.worker_process(run) is None, 60)
        ended = service.run_summary(store, run)
        assert (ended.status, "disk is full" in ended.error) in {
            ("interrupted", True),
            ("failed", True),
        }
        with pytest.raises(StoreError, match=r"cannot be (made|written)"):
            service.start_run(store, brief(5))
        assert [one.id for one in store.runs()] == [run.id]
        ballast.unlink()
        at = len(run.checkpoints())
        assert at == 1
        until(lambda: workers.worker_process(run) is None)
        service.resume_run(store, run)
        until(lambda: service.run_summary(store, run).step > 60, 60)
        steps = [one.step for one in service.run_summary(store, run).train]
        assert steps == list(range(1, len(steps) + 1))
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
    until(lambda: service.run_summary(stand_in, runs[0]).step == 10)
    worker = workers.worker_process(runs[0])
    assert worker is not None
    next(app for app in apps if app.process.pid == worker.ppid()).kill()
    assert worker.is_running()  # the run goes on, and the other app starts the next
    hold(None)
    until(lambda: all(status(stand_in, run) == "finished" for run in runs))
    for run in runs:
        assert sum(isinstance(event, events.Started) for event in run.tail()[0]) == 1


@pytest.mark.parametrize(
    ("wanted", "steps"), [(6, 100), pytest.param(30, 220, marks=pytest.mark.long)]
)
@pytest.mark.timeout(240)
def test_kills_lose_nothing_and_leave_nobody(
    stand_in: RunStore, apps: list[App], wanted: int, steps: int
) -> None:
    """Apps and workers die at random moments; every run ends with every step taken in order."""
    draw = random.Random(5)
    least = wanted // 6  # of each
    runs = [stand_in.create(brief(steps)) for _ in range(least)]
    for run in runs:
        Queue(stand_in.root).add(run.id)
    app, born, kills = App(stand_in), [], {"app": 0, "worker": 0}
    apps.append(app)
    while sum(kills.values()) < wanted or min(kills.values()) < least:
        time.sleep(draw.random() * 0.6)
        alive = [found for run in runs if (found := workers.worker_process(run)) is not None]
        born += [found for found in alive if found not in born]
        assert len(alive) <= 1
        if draw.random() < 0.4:
            app.kill()
            kills["app"] += 1
            app = App(stand_in)
            apps.append(app)
        elif alive:
            alive[0].kill()
            kills["worker"] += 1
        for run in runs:
            if status(stand_in, run) == "interrupted":
                before = run.checkpoints()
                service.resume_run(stand_in, run)
                resumed = [e for e in run.tail()[0] if isinstance(e, events.Resumed)]
                if resumed and before and status(stand_in, run) == "running":
                    assert resumed[-1].step >= int(before[-1].name.rpartition("-")[2])
        if all(status(stand_in, run) == "finished" for run in runs):
            more = stand_in.create(brief(steps))
            runs.append(more)
            Queue(stand_in.root).add(more.id)
    deadline = time.monotonic() + 120
    while not all(status(stand_in, run) == "finished" for run in runs):
        assert time.monotonic() < deadline, [status(stand_in, run) for run in runs]
        for run in runs:
            if status(stand_in, run) == "interrupted":
                service.resume_run(stand_in, run)
        time.sleep(0.1)
    for run in runs:
        done = service.run_summary(stand_in, run)
        assert [one.step for one in done.train] == list(range(1, steps + 1)), run
        assert done.best is not None
        assert done.best.step == steps
        assert not run.checkpoints_folder.exists()
    until(lambda: not any(found.is_running() for found in born), 60)
    assert Queue(stand_in.root).waiting() == []

    def strangers() -> set[int]:
        """Who else works on these runs; a worker that was told to end takes a moment."""
        ours = {one.pid for one in psutil.process_iter(["cmdline"]) if str(stand_in.root) in
                " ".join(one.info["cmdline"] or [])}  # fmt: skip
        return ours - {one.process.pid for one in apps}

    until(lambda: not strangers(), 60)
    children = psutil.Process(app.process.pid).children(recursive=True)
    assert all(one.status() != psutil.STATUS_ZOMBIE for one in children)


def test_repeated_with_seeds_and_over_a_grid() -> None:
    base = RunConfig(seed=7, name="pairs")
    assert [one.config for one in grids.plan_runs(base)] == [base]
    planned = grids.plan_runs(base, 2, {"learning_rate": "1e-5, 3e-5", "num_train_epochs": "3"})
    assert [(one.config.learning_rate, one.config.seed) for one in planned] == [
        (1e-5, 7), (1e-5, 8), (3e-5, 7), (3e-5, 8),
    ]  # fmt: skip
    assert [one.config.name for one in planned][:2] == [
        "pairs, lr 1e-05, seed 7",
        "pairs, lr 1e-05, seed 8",
    ]
    assert len({one.group for one in planned}) == 2
    assert {one.group for one in grids.plan_runs(base, 1, {"learning_rate": "1e-5,3e-5"})} == {""}
    for seeds, grid, words in (
        (0, {}, "seeds must be a whole number from 1"),
        ("x", {}, "got 'x'"),
        (1, {"learning_rate": "1e-5, high"}, "learning_rate must be a number, got 'high'"),
        (1, {"num_train_epochs": "0"}, "num_train_epochs must be at least 1"),
        (50, {"learning_rate": "1e-5,2e-5,3e-5"}, "makes 150 runs; at most 100"),
    ):
        with pytest.raises(ConfigError, match=words):
            grids.plan_runs(base, seeds, grid)  # type: ignore[arg-type]


def test_all_of_several_runs_or_none(stand_in: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = RunStore.create, []

    def third_fails(self: RunStore, *words: Any, **values: Any) -> Run:
        made.append(1)
        if len(made) == 3:
            raise StoreError("the disk is full")
        return real(self, *words, **values)

    monkeypatch.setattr(RunStore, "create", third_fails)
    with pytest.raises(StoreError):
        service.start_runs(stand_in, [brief()] * 4)
    assert stand_in.runs() == []
    assert Queue(stand_in.root).waiting() == []


def test_a_visitor_has_so_many_runs_and_places(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_MAX_WAITING", "2")
    monkeypatch.setenv("FINETUNE_MAX_RUNS", "3")
    ada = stand_in.for_visitor(owners.identify(user="ada"))
    bob = stand_in.for_visitor(owners.identify(user="bob"))
    runs = service.start_runs(ada, [brief(ENDLESS), brief(ENDLESS)])
    service.start_run(ada, brief())
    with pytest.raises(JobError, match="You have 3 runs here, and a visitor may keep 3"):
        service.start_run(ada, brief())
    service.delete_run(ada, runs[1])
    ended = ada.create(brief())
    ended.append(events.Stopped(step=0, seconds=0.0))
    service.resume_run(ada, ended)
    monkeypatch.setenv("FINETUNE_MAX_RUNS", "9")
    again = ada.create(brief())
    again.append(events.Stopped(step=0, seconds=0.0))
    with pytest.raises(JobError, match="2 of your runs wait already"):
        service.resume_run(ada, again)
    service.delete_run(ada, ended)
    waiting = service.start_run(bob, brief())
    assert service.queue_place(bob, waiting) == (1, 2)  # before hers: one of hers trains
    with pytest.raises(JobError, match="goes in order"):
        service.move_to_front(bob, waiting)
    with pytest.raises(JobError, match="1 of your runs wait already"):
        service.start_runs(bob, [brief(), brief()])
    nobody = stand_in.for_visitor(owners.identify())
    with pytest.raises(JobError, match="keeps no cookies"):
        service.start_run(nobody, brief())
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"report_to": "wandb"}, "the account here is not its visitors'"),
        ({"num_processes": 8}, "this machine has 1 to give"),
        ({"accelerate_config": "/etc/passwd"}, "cannot be named here"),
    )
    for values, words in refused:
        with pytest.raises(ConfigError, match=words):
            service.start_run(bob, brief(**values))
    for wrong in ("/etc", ".", "~", "../x", str(runs[0].best), "tests"):
        with pytest.raises(ConfigError, match="is on this machine's disk"):
            service.start_run(bob, brief(checkpoint=wrong))
        with pytest.raises(DataError, match=r"no path is read as a dataset|There is no dataset"):
            service.start_run(bob, brief(dataset=wrong))


def by(store: RunStore, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[RunStore]:
    """The store as each of these visitors of a shared app sees it."""
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    return [store.for_visitor(owners.identify(user=name)) for name in names]


def test_owners_take_turns(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch, hold: Callable[[int | None], None]
) -> None:
    ada, bob, cy = by(stand_in, monkeypatch, "ada", "bob", "cy")
    hold(0)
    first, *hers = service.start_runs(ada, [brief() for _ in range(4)])
    his, theirs = service.start_runs(bob, [brief(), brief()]), service.start_run(cy, brief())
    assert status(ada, first) == "running"
    order = [his[0], theirs, hers[0], his[1], hers[1], hers[2]]
    assert [service.queue_place(stand_in, run)[0] for run in order] == [1, 2, 3, 4, 5, 6]
    hold(None)
    going = scheduler.Scheduler(stand_in, every=0.05)
    going.start()
    try:
        until(lambda: all(status(stand_in, run) == "finished" for run in order))
    finally:
        going.close()
    began = [service.run_summary(stand_in, run).began for run in order]
    assert began == sorted(began)


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


def test_the_queue_has_so_many_places_for_all(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch, hold: Callable[[int | None], None]
) -> None:
    ada, bob = by(stand_in, monkeypatch, "ada", "bob")
    monkeypatch.setenv("FINETUNE_MAX_QUEUE", "3")
    hold(0)
    service.start_run(ada, brief())
    service.start_runs(ada, [brief(), brief()])
    with pytest.raises(JobError, match="2 runs wait already, and the queue has 3 places"):
        service.start_runs(bob, [brief(), brief()])
    assert service.start_run(bob, brief())
    ended = bob.create(brief())
    ended.append(events.Stopped(step=0, seconds=0.0))
    with pytest.raises(JobError, match="3 runs wait already"):
        service.resume_run(bob, ended)


def test_a_visitors_run_takes_so_many_steps(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ada,) = by(stand_in, monkeypatch, "ada")
    monkeypatch.setenv("FINETUNE_MAX_RUN_STEPS", "500")
    with pytest.raises(ConfigError, match="max_steps makes 501 steps, and a run may take 500"):
        service.start_run(ada, brief(501))
    with pytest.raises(ConfigError, match="num_train_epochs makes 657 steps"):  # of 1,746 pairs
        service.start_run(ada, RunConfig(num_train_epochs=3, per_device_train_batch_size=8))
    assert ada.runs() == []
    assert service.start_run(ada, brief(500))
    assert service.start_run(stand_in, brief(501))  # by who looks after the machine


def test_a_visitors_run_is_worked_on_for_so_long(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch, hold: Callable[[int | None], None]
) -> None:
    """It stops as by Stop: with its best model, and it says why."""
    (ada,) = by(stand_in, monkeypatch, "ada")
    hold(12)
    run = service.start_run(ada, brief(40))
    until(lambda: service.run_summary(ada, run).step == 12)
    going = scheduler.Scheduler(stand_in, every=0.05)
    going.start()
    try:
        hold(13)
        until(lambda: service.run_summary(ada, run).step == 13)  # it has not had its time
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
        service.resume_run(stand_in, run)
        until(lambda: service.run_summary(ada, run).status in ("stopped", "finished"))
    finally:
        going.close()


def test_why_it_was_stopped_is_known_of_a_worker_that_said_nothing(store: RunStore) -> None:
    run = store.create(brief())
    run.append(events.Started(device="none"))
    run.request_stop(reason="It took too long.")
    assert (status(store, run), service.run_summary(store, run).error) == (
        "stopped",
        "It took too long.",
    )
    assert not run.discard_requested()
    run.request_stop(discard=True)
    assert (run.discard_requested(), run.stop_reason()) == (True, "")
