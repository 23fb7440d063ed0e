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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from finetune import (
    devices,
    events,
    history,
    jobs,
    process,
    scheduler,
    sweep,
    train,
    visitors,
    workers,
)
from finetune.config import RunConfig
from finetune.errors import ConfigError, DataError, JobError, NoSuchRun, StoreError
from finetune.queue import Queue
from finetune.store import Run, RunStore
from tests.stand_in import LINGER
from tests.test_jobs import until

ROOT = Path(__file__).resolve().parent.parent
KILLS = 30


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, store: RunStore) -> Iterator[RunStore]:
    """A store whose workers begin in a moment and learn nothing; all are ended afterwards."""
    monkeypatch.setattr(workers, "TRAIN", "tests.stand_in")
    yield store
    end_all(store)


def end_all(store: RunStore) -> None:
    for run in store.runs():
        workers.kill(run)


def brief(steps: int = 5, **values: Any) -> RunConfig:
    return RunConfig(max_steps=steps, **values)


def status(store: RunStore, run: Run) -> str:
    return jobs.summary(store, run).status


class App:
    """An app without its page, as a process of its own."""

    def __init__(self, store: RunStore) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.scheduling", str(store.root)],
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
    assert queue.begun() == {}
    for name in "abcd":
        queue.add(name)
    queue.add("c", first=True)
    queue.add("a")  # again: it goes to the end
    assert Queue(tmp_path).waiting() == ["c", "b", "d", "a"]
    assert (queue.place("c"), queue.place("a"), queue.place("x")) == (1, 4, 0)
    assert queue.remove("b")
    assert not queue.remove("b")
    queue.begin("c")
    assert queue.waiting() == ["d", "a"]
    assert queue.begun() == {"c": {}}
    queue.note("c", {"pid": 1, "born": "x"})
    assert Queue(tmp_path).begun() == {"c": {"pid": 1, "born": "x"}}
    queue.end("c")
    assert queue.begun() == {}


def test_what_lies_about_in_the_queue_is_ignored(stand_in: RunStore) -> None:
    queue = Queue(stand_in.root)
    queue.add("etc")  # no run: it is dropped
    waiting = stand_in.root / ".queue" / "waiting"
    (waiting / "notes.txt").write_text("")
    (waiting / "7-20200101-000000-unknownrun").write_text("")
    (stand_in.root / ".queue" / "begun").mkdir()
    (stand_in.root / ".queue" / "begun" / "damaged").write_text("{")
    run = jobs.start(stand_in, brief())
    until(lambda: status(stand_in, run) == "finished")

    def all_gone() -> bool:  # a worker that has written its last event takes a moment to end
        scheduler.dispatch(stand_in)
        return queue.waiting() == [] and queue.begun() == {}

    until(all_gone, 60)


def test_one_trains_and_the_others_wait_in_order(stand_in: RunStore) -> None:
    runs = [jobs.start(stand_in, brief(20)) for _ in range(3)]
    assert [status(stand_in, run) for run in runs] == ["running", "waiting", "waiting"]
    assert [jobs.place(stand_in, run) for run in runs] == [(0, 2), (1, 2), (2, 2)]
    jobs.to_front(stand_in, runs[2])
    assert [jobs.place(stand_in, run)[0] for run in runs] == [0, 2, 1]
    with pytest.raises(JobError, match="does not wait"):
        jobs.to_front(stand_in, runs[0])
    going = scheduler.Scheduler(stand_in, every=0.05)
    going.start()
    try:
        until(lambda: all(status(stand_in, run) == "finished" for run in runs))
    finally:
        going.close()
    begun = {run.id: jobs.summary(stand_in, run).began for run in runs}
    ended = {run.id: jobs.summary(stand_in, run).ended for run in runs}
    assert ended[runs[0].id] <= begun[runs[2].id] <= ended[runs[2].id] <= begun[runs[1].id]


def test_the_queue_goes_on_after_every_kind_of_end(stand_in: RunStore) -> None:
    """Cancelled while it waits, failed, killed, deleted by hand, damaged, finished."""
    cancelled, killed, deleted, damaged, last = (
        jobs.start(stand_in, brief(steps)) for steps in (3000, 3000, 3000, 5, 5)
    )
    (damaged.folder / "config.json").write_text('{"learning_rate": "high"}')
    shutil.rmtree(deleted.folder)
    going = scheduler.Scheduler(stand_in, every=0.05)
    going.start()
    try:
        jobs.stop(stand_in, cancelled)
        until(lambda: status(stand_in, cancelled) == "stopped", 60)
        until(lambda: jobs.summary(stand_in, killed).step > 3, 60)
        found = workers.worker(killed)
        assert found is not None
        found.kill()
        began = time.monotonic()
        until(lambda: status(stand_in, killed) == "interrupted", 5)
        assert time.monotonic() - began < 5
        until(lambda: status(stand_in, last) == "finished", 60)
    finally:
        going.close()
    assert status(stand_in, damaged) == "failed"
    assert "config.json" in jobs.summary(stand_in, damaged).error
    assert killed.has_model() is (jobs.summary(stand_in, killed).saved_step is not None)


def test_a_stopped_run_takes_its_turn_when_it_goes_on(stand_in: RunStore) -> None:
    first = jobs.start(stand_in, brief(400))
    until(lambda: jobs.summary(stand_in, first).step > 25)
    jobs.stop(stand_in, first)
    until(lambda: status(stand_in, first) == "stopped")
    until(lambda: workers.worker(first) is None)  # no app is there to look again
    at = jobs.summary(stand_in, first).step
    second = jobs.start(stand_in, brief(3000))
    jobs.resume(stand_in, first)
    assert status(stand_in, first) == "waiting"
    with pytest.raises(JobError, match="The run is waiting"):
        jobs.resume(stand_in, first)
    jobs.stop(stand_in, first)  # out of the queue again: it is what it was
    assert status(stand_in, first) == "stopped"
    assert jobs.summary(stand_in, first).step == at
    jobs.resume(stand_in, first)
    jobs.delete(stand_in, second)
    until(lambda: status(stand_in, first) == "finished", 60)
    with pytest.raises(NoSuchRun):
        stand_in.get(second.id)
    taken = [one.step for one in jobs.summary(stand_in, first).train]
    assert taken == list(range(1, 401))
    assert history.seconds(jobs.summary(stand_in, first)) == pytest.approx(4.0)


def test_stop_and_discard_leaves_no_model(stand_in: RunStore) -> None:
    run = jobs.start(stand_in, brief(3000))
    until(lambda: run.has_model())
    jobs.stop(stand_in, run, discard=True)
    until(lambda: status(stand_in, run) == "stopped")
    until(lambda: not run.has_model() and not run.checkpoints_folder.exists(), 60)
    assert jobs.summary(stand_in, run).discarded
    assert jobs.summary(stand_in, run).step > 0  # what happened is kept
    until(lambda: workers.worker(run) is None)
    jobs.resume(stand_in, run)
    until(lambda: not jobs.summary(stand_in, run).discarded)


@pytest.mark.parametrize(
    ("ended", "kept"),
    [
        (events.Finished(step=10, seconds=1.0), "finished"),
        (events.Stopped(step=10, seconds=1.0), "stopped"),
        (events.Failed(error="too big", remedy="make it smaller"), "failed"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_click_after_the_end_does_not_undo_it(
    store: RunStore, ended: events.Event, kept: str
) -> None:
    run = with_model(store, ended)
    with pytest.raises(JobError, match=f"it is {kept}"):
        jobs.stop(store, run, discard=True)
    assert run.has_model()
    assert run.checkpoints()
    jobs.stop(store, run)
    assert (status(store, run), jobs.summary(store, run).error) == (
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
    jobs.stop(store, run, discard=True)
    assert not run.has_model()
    assert not run.checkpoints()
    done = jobs.summary(store, run)
    assert done.discarded
    assert done.saved_step is None
    assert (done.status, done.error) == (
        ("failed", "too big") if isinstance(ended, events.Failed) else ("stopped", "")
    )
    assert history.seconds(done) == pytest.approx(1.0)


def test_what_was_interrupted_can_be_discarded(store: RunStore) -> None:
    run = with_model(store, None)
    assert status(store, run) == "interrupted"
    jobs.stop(store, run, discard=True)
    assert not run.has_model()
    assert (status(store, run), jobs.summary(store, run).discarded) == ("stopped", True)


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
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker lives for some time after its last event; Resume pressed in it must not be lost."""
    monkeypatch.setenv(LINGER, "1.5")
    run = jobs.start(stand_in, brief(30))
    until(lambda: jobs.summary(stand_in, run).step > 3)
    jobs.stop(stand_in, run)
    until(lambda: status(stand_in, run) == "stopped")
    monkeypatch.setenv(LINGER, "0")
    going = scheduler.Scheduler(stand_in, every=0.05)
    going.start()
    try:
        jobs.resume(stand_in, run)
        assert workers.worker(run) is not None
        assert status(stand_in, run) == "waiting"
        until(lambda: status(stand_in, run) == "finished", 60)
    finally:
        going.close()


def test_a_run_deleted_by_hand_ends_its_worker(stand_in: RunStore) -> None:
    run = jobs.start(stand_in, brief(3000))
    until(lambda: jobs.summary(stand_in, run).step > 12)
    found = workers.worker(run)
    assert found is not None
    while run.folder.exists():  # a file may be written while the folder is emptied
        shutil.rmtree(run.folder, ignore_errors=True)
    until(lambda: not found.is_running(), 30)
    assert not run.folder.exists()  # and it was not made again
    assert [one.id for one in stand_in.runs()] == []
    scheduler.dispatch(stand_in)
    assert Queue(stand_in.root).begun() == {}


def test_only_one_worker_carries_a_run_out(stand_in: RunStore) -> None:
    run = jobs.start(stand_in, brief(300))
    until(lambda: jobs.summary(stand_in, run).step > 3)
    command = [sys.executable, "-m", "tests.stand_in", "--run", str(run.folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "carried out by another process" in done.stderr
    until(lambda: status(stand_in, run) == "finished")
    assert sum(isinstance(one, events.Started) for one in run.tail()[0]) == 1


def test_an_app_killed_between_two_lines_leaves_a_run_that_waits(stand_in: RunStore) -> None:
    run = stand_in.create(brief())
    Queue(stand_in.root).begin(run.id)  # begun, and killed before there was a process
    assert status(stand_in, run) == "running"
    scheduler.dispatch(stand_in)
    until(lambda: status(stand_in, run) == "finished")


def test_a_run_that_no_process_can_be_had_for_has_failed(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*words: Any, **values: Any) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", none)
    run = jobs.start(stand_in, brief())
    failed = jobs.summary(stand_in, run)
    assert failed.status == "failed"
    assert "Resource temporarily unavailable" in failed.error
    assert Queue(stand_in.root).waiting() == []
    monkeypatch.undo()


def test_a_full_disk_lets_the_queue_wait(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*words: Any, **values: Any) -> None:
        raise StoreError("job.json cannot be written: No space left on device.")

    monkeypatch.setattr(workers, "note", full)
    run = jobs.start(stand_in, brief())
    end_all(stand_in)
    assert Queue(stand_in.root).waiting() == [run.id]
    monkeypatch.undo()
    monkeypatch.setattr(workers, "TRAIN", "tests.stand_in")
    scheduler.dispatch(stand_in)
    until(lambda: status(stand_in, run) == "finished", 60)


def test_several_accelerators_each_train_a_run(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert devices.accelerators() == ("3", "5", "7")
    monkeypatch.setattr("finetune.launch.become", lambda run, wanted: None)
    one, two, pair = (jobs.start(stand_in, brief(3000, num_processes=n)) for n in (1, 1, 2))
    assert [workers.devices(run) for run in (one, two)] == [("3",), ("5",)]
    assert status(stand_in, pair) == "waiting"
    behind = jobs.start(stand_in, brief(3000))  # would fit, but is not before its turn
    assert status(stand_in, behind) == "waiting"
    seen = psutil.Process(workers.worker(one).pid).environ()  # type: ignore[union-attr]
    assert seen["CUDA_VISIBLE_DEVICES"] == "3"


def test_a_visitors_worker_has_no_token(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for datasets nor for checkpoints: the owner's private ones are not its visitors'."""
    for shared in ("", "1"):
        monkeypatch.setenv("FINETUNE_VISITORS", shared)
        run = stand_in.create(brief(3000))
        with monkeypatch.context() as owner:
            owner.setenv("HF_TOKEN", "the-owners")
            workers.spawn(run)
        found = workers.worker(run)
        assert found is not None
        told = found.environ()
        assert ("HF_TOKEN" in told, told.get("HF_HUB_DISABLE_IMPLICIT_TOKEN")) == (
            (False, "1") if shared else (True, None)
        )
        workers.kill(run)


def test_a_worker_runs_in_an_empty_folder_and_finds_what_was_named_from_another(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There `ada/tickets` and `csv` can mean no file of this machine."""
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as owner:
        owner.setenv("HF_HOME", "kept")
        run = jobs.start(stand_in, brief(3000, checkpoint="./mine"))
    found = workers.worker(run)
    assert found is not None
    assert os.listdir(found.cwd()) == []
    assert Path(found.cwd()).parent == run.folder.resolve()
    assert found.environ()["HF_HOME"] == str(tmp_path / "kept")
    assert run.config().checkpoint == str(tmp_path / "mine")
    (Path(found.cwd()) / "csv").mkdir()
    workers.kill(run)
    assert os.listdir(workers.empty_folder(run)) == []
    monkeypatch.setattr("finetune.train.work", lambda run, bar: 0)
    other = RunStore(tmp_path / "other")  # whose run this process is
    assert train.main(["--checkpoint=mine", "--runs", str(other.root)]) == 0
    assert other.runs()[0].config().checkpoint == str(tmp_path / "mine")


def test_a_pid_of_before_the_reboot_is_nobody(store: RunStore) -> None:
    run = store.create(RunConfig())
    mark = workers.note(run, os.getpid())
    assert process.find(mark) == psutil.Process()
    boot, _, ticks = mark["born"].partition(":")
    assert process.find({**mark, "born": f"another-boot:{ticks}"}) is None
    assert process.find({**mark, "born": f"{boot}:{int(ticks) + 1}"}) is None


def test_a_clock_that_jumps_changes_nothing(
    stand_in: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's clock goes back a day and forth a month; the app's goes forth a year."""
    jump = tmp_path / "jump"
    jump.mkdir()
    (jump / "sitecustomize.py").write_text(
        "import time\n"
        "real, began = time.time, time.monotonic()\n"
        "def jumping():\n"
        "    since = time.monotonic() - began\n"
        "    return real() + (0 if since < .6 else -86400 if since < 1 else 30 * 86400)\n"
        "time.time = jumping\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(jump))
    run = jobs.start(stand_in, brief(120))
    real, seen = time.time, set()
    monkeypatch.setattr(time, "time", lambda: real() + 365 * 86400)
    deadline = time.monotonic() + 30
    while (now := status(stand_in, run)) != "finished":
        seen.add(now)
        assert time.monotonic() < deadline
        summary = jobs.summary(stand_in, run)
        assert summary.seconds_left is None or 0 <= summary.seconds_left < 60
        assert (history.seconds(summary) or 0) >= 0
        time.sleep(0.02)
    assert seen == {"running"}
    done = jobs.summary(stand_in, run)
    times = [one.time for one in done.train]
    assert min(b - a for a, b in itertools.pairwise(times)) < -80_000  # it did jump
    assert history.seconds(done) == pytest.approx(1.2)
    assert [one.step for one in done.train] == list(range(1, 121))


def test_a_half_written_line_is_not_the_next_ones_end(stand_in: RunStore) -> None:
    run = jobs.start(stand_in, brief(3000))
    until(lambda: jobs.summary(stand_in, run).step > 12)
    workers.kill(run)
    with run.events_file.open("ab") as file:
        file.write(b'\x00\xff{"event": "stepped", "st')
    assert status(stand_in, run) == "interrupted"
    jobs.resume(stand_in, run)
    assert any(isinstance(one, events.Resumed) for one in run.tail()[0])
    until(lambda: jobs.summary(stand_in, run).step > 25)
    steps = [one.step for one in jobs.summary(stand_in, run).train]
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
        run = jobs.start(store, brief(3000))
        until(lambda: jobs.summary(store, run).step > 25)
        ballast = small / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 512)
        until(lambda: workers.worker(run) is None, 60)
        ended = jobs.summary(store, run)
        assert (ended.status, "The disk is full" in ended.error) in {
            ("interrupted", True),
            ("failed", True),
        }
        with pytest.raises(StoreError, match=r"cannot be (made|written)"):
            jobs.start(store, brief(5))
        assert [one.id for one in store.runs()] == [run.id]
        ballast.unlink()
        at = len(run.checkpoints())
        assert at == 1
        until(lambda: workers.worker(run) is None)
        jobs.resume(store, run)
        until(lambda: jobs.summary(store, run).step > 60, 60)
        steps = [one.step for one in jobs.summary(store, run).train]
        assert steps == list(range(1, len(steps) + 1))
        end_all(store)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


def test_of_two_apps_one_schedules_and_the_other_takes_over(
    store: RunStore, apps: list[App]
) -> None:
    runs = [store.create(brief(steps)) for steps in (100, 100, 100)]
    apps += [App(store), App(store)]
    for run in runs:
        Queue(store.root).add(run.id)
    until(lambda: status(store, runs[0]) == "running", 60)
    parent = workers.worker(runs[0])
    assert parent is not None
    scheduling = next(app for app in apps if app.process.pid == parent.ppid())
    scheduling.kill()
    assert parent.is_running()  # the run goes on
    until(lambda: all(status(store, run) == "finished" for run in runs), 30)
    for run in runs:
        assert sum(isinstance(one, events.Started) for one in run.tail()[0]) == 1


@pytest.mark.long
@pytest.mark.timeout(240)
def test_thirty_kills_lose_nothing_and_leave_nobody(store: RunStore, apps: list[App]) -> None:
    """Apps and workers die at random moments; every run ends with every step taken in order."""
    draw = random.Random(5)
    runs = [store.create(brief(220)) for _ in range(5)]
    for run in runs:
        Queue(store.root).add(run.id)
    app, born, kills = App(store), [], {"app": 0, "worker": 0}
    apps.append(app)
    while sum(kills.values()) < KILLS:
        time.sleep(draw.random() * 0.6)
        alive = [found for run in runs if (found := workers.worker(run)) is not None]
        born += [found for found in alive if found not in born]
        assert len(alive) <= 1
        if draw.random() < 0.4:
            app.kill()
            kills["app"] += 1
            app = App(store)
            apps.append(app)
        elif alive:
            alive[0].kill()
            kills["worker"] += 1
        for run in runs:
            if status(store, run) == "interrupted":
                before = run.checkpoints()
                jobs.resume(store, run)
                resumed = [e for e in run.tail()[0] if isinstance(e, events.Resumed)]
                if resumed and before and status(store, run) == "running":
                    assert resumed[-1].step >= int(before[-1].name.rpartition("-")[2])
        if all(status(store, run) == "finished" for run in runs):
            more = store.create(brief(220))
            runs.append(more)
            Queue(store.root).add(more.id)
    deadline = time.monotonic() + 120
    while not all(status(store, run) == "finished" for run in runs):
        assert time.monotonic() < deadline, [status(store, run) for run in runs]
        for run in runs:
            if status(store, run) == "interrupted":
                jobs.resume(store, run)
        time.sleep(0.1)
    assert min(kills.values()) >= 5, kills
    for run in runs:
        done = jobs.summary(store, run)
        assert [one.step for one in done.train] == list(range(1, 221)), run
        assert done.best is not None
        assert done.best.step == 220
        assert not run.checkpoints_folder.exists()
    until(lambda: not any(found.is_running() for found in born), 60)
    assert Queue(store.root).waiting() == []

    def strangers() -> set[int]:
        """Who else works on these runs; a worker that was told to end takes a moment."""
        ours = {one.pid for one in psutil.process_iter(["cmdline"]) if str(store.root) in
                " ".join(one.info["cmdline"] or [])}  # fmt: skip
        return ours - {one.process.pid for one in apps}

    until(lambda: not strangers(), 60)
    children = psutil.Process(app.process.pid).children(recursive=True)
    assert all(one.status() != psutil.STATUS_ZOMBIE for one in children)


def test_repeated_with_seeds_and_over_a_grid() -> None:
    base = RunConfig(seed=7, name="pairs")
    assert [one.config for one in sweep.plan(base)] == [base]
    planned = sweep.plan(base, 2, {"learning_rate": "1e-5, 3e-5", "num_train_epochs": "3"})
    assert [(one.config.learning_rate, one.config.seed) for one in planned] == [
        (1e-5, 7), (1e-5, 8), (3e-5, 7), (3e-5, 8),
    ]  # fmt: skip
    assert [one.config.name for one in planned][:2] == [
        "pairs, lr 1e-05, seed 7",
        "pairs, lr 1e-05, seed 8",
    ]
    assert len({one.group for one in planned}) == 2
    assert {one.group for one in sweep.plan(base, 1, {"learning_rate": "1e-5,3e-5"})} == {""}
    for seeds, grid, words in (
        (0, {}, "seeds must be a whole number from 1"),
        ("x", {}, "got 'x'"),
        (1, {"learning_rate": "1e-5, high"}, "learning_rate must be a number, got 'high'"),
        (1, {"num_train_epochs": "0"}, "num_train_epochs must be at least 1"),
        (50, {"learning_rate": "1e-5,2e-5,3e-5"}, "makes 150 runs; at most 100"),
    ):
        with pytest.raises(ConfigError, match=words):
            sweep.plan(base, seeds, grid)  # type: ignore[arg-type]


def test_all_of_several_runs_or_none(stand_in: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = RunStore.create, []

    def third_fails(self: RunStore, *words: Any, **values: Any) -> Run:
        made.append(1)
        if len(made) == 3:
            raise StoreError("the disk is full")
        return real(self, *words, **values)

    monkeypatch.setattr(RunStore, "create", third_fails)
    with pytest.raises(StoreError):
        jobs.start_all(stand_in, [brief()] * 4)
    assert stand_in.runs() == []
    assert Queue(stand_in.root).waiting() == []


def test_a_visitor_has_so_many_runs_and_places(
    stand_in: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_MAX_WAITING", "2")
    monkeypatch.setenv("FINETUNE_MAX_RUNS", "3")
    ada = stand_in.seen_by(visitors.visitor(user="ada"))
    bob = stand_in.seen_by(visitors.visitor(user="bob"))
    runs = jobs.start_all(ada, [brief(3000), brief(3000)])
    jobs.start(ada, brief())
    with pytest.raises(JobError, match="You have 3 runs here, and a visitor may keep 3"):
        jobs.start(ada, brief())
    jobs.delete(ada, runs[1])
    ended = ada.create(brief())
    ended.append(events.Stopped(step=0, seconds=0.0))
    jobs.resume(ada, ended)
    monkeypatch.setenv("FINETUNE_MAX_RUNS", "9")
    again = ada.create(brief())
    again.append(events.Stopped(step=0, seconds=0.0))
    with pytest.raises(JobError, match="2 of your runs wait already"):
        jobs.resume(ada, again)
    jobs.delete(ada, ended)
    waiting = jobs.start(bob, brief())
    assert jobs.place(bob, waiting) == (2, 2)  # behind Ada's
    with pytest.raises(JobError, match="goes in order"):
        jobs.to_front(bob, waiting)
    with pytest.raises(JobError, match="1 of your runs wait already"):
        jobs.start_all(bob, [brief(), brief()])
    nobody = stand_in.seen_by(visitors.visitor())
    with pytest.raises(JobError, match="keeps no cookies"):
        jobs.start(nobody, brief())
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"report_to": "wandb"}, "the account here is not its visitors'"),
        ({"num_processes": 8}, "this machine has 1 to give"),
        ({"accelerate_config": "/etc/passwd"}, "cannot be named here"),
    )
    for values, words in refused:
        with pytest.raises(ConfigError, match=words):
            jobs.start(bob, brief(**values))
    for wrong in ("/etc", ".", "~", "../x", str(runs[0].best), "tests"):
        with pytest.raises(ConfigError, match="is on this machine's disk"):
            jobs.start(bob, brief(checkpoint=wrong))
        with pytest.raises(DataError, match="is a path"):
            jobs.start(bob, brief(dataset=wrong))
