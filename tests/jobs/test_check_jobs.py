"""Checks of pairs as processes of their own, and in a terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psutil
import pytest

from finetune.config import RunConfig
from finetune.data import checks, hub_access, splits
from finetune.data.check_report import CheckReport
from finetune.errors import DataError, JobError
from finetune.evaluation import baselines
from finetune.jobs import background, check, service, workers
from finetune.owners import Visitor
from finetune.runs.job_folder import JobFolder, hold_lock
from finetune.runs.store import RunStore
from finetune.tasks.single_label import SingleLabel
from tests.support import toys
from tests.support.waiting import until


def wait(job: check.CheckJob) -> check.CheckState:
    until(lambda: not job.state().running)
    return job.state()


def start(store: RunStore, config: RunConfig) -> tuple[check.CheckJob, psutil.Process]:
    job = check.start_check(store, config)
    worker = workers.worker_process(job)
    assert worker is not None
    return job, worker


def test_the_newest_jobs_of_a_folder_stay(tmp_path: Path) -> None:
    jobs = [JobFolder(tmp_path / str(number)) for number in range(4)]
    for job in jobs:
        job.folder.mkdir()
        job.describe_job("probe", "", {})
    (tmp_path / "other").mkdir()
    handle = hold_lock(jobs[0].lock_file)  # it is at work
    assert handle is not None
    for job in jobs:
        os.utime(job.folder / "job.json", (int(job.id), int(job.id)))
    background.keep_newest(tmp_path, 2)
    os.close(handle)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2", "3", "other"]


@pytest.mark.long
def test_a_check_that_is_killed_says_so_and_can_be_repeated_once_for_all(
    store: RunStore, processes: list[psutil.Process]
) -> None:
    config = RunConfig()
    job, worker = start(store, config)
    worker.kill()
    worker.wait(10)
    assert wait(job).status == "interrupted"
    assert wait(job).error
    half_read = hub_access.pairs_folder(store.root, config) / ".of-the-killed"
    half_read.mkdir(parents=True)
    again, worker = start(store, config)
    processes.append(worker)
    assert again.folder == job.folder
    check.start_check(store, config)
    assert workers.worker_process(job) in (None, worker)
    report = wait(job).report
    assert report is not None
    assert report.read == {"train": 2038, "validation": 434, "test": 456}
    assert report.lengths.rows == 2038
    assert not half_read.exists()
    psutil.wait_procs([worker], timeout=10)
    check.start_check(store, config)
    assert workers.worker_process(job) is None


@pytest.fixture
def at_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Path, int]]:
    """Folders of jobs whose workers do nothing; each ends once its handle is closed."""
    handles: dict[Path, int] = {}

    def spawn(job: JobFolder, **_options: object) -> None:
        handle = hold_lock(job.lock_file)
        assert handle is not None
        handles[job.folder] = handle
        job.process_file.write_text("{}")

    monkeypatch.setattr(workers, "spawn_worker", spawn)
    yield handles
    for handle in handles.values():
        os.close(handle)


def test_only_so_many_go_on_at_once(store: RunStore, at_work: dict[Path, int]) -> None:
    jobs = [check.start_check(store, RunConfig(data_seed=seed)) for seed in range(5)]
    assert [job.state().status for job in jobs] == ["running"] * 3 + ["waiting"] * 2
    assert str(jobs[4].state().phase) == "wait"
    check.start_check(store, RunConfig(data_seed=3))  # asked for twice, it waits once
    jobs[3].request_stop()
    os.close(at_work.pop(jobs[0].folder))
    background.start_waiting(store)
    statuses = [job.state().status for job in jobs[1:]]
    assert statuses == ["running", "running", "stopped", "running"]
    check.abandon_check(jobs[4])


def test_visitors_take_turns(
    store: RunStore, at_work: dict[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has one place of a kind; the next is for whoever had none for the longest time."""
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    ada, bob, cy, dan = (store.for_visitor(Visitor(names=(name,))) for name in "abcd")
    seeds = count()

    def begin(visitor: RunStore) -> check.CheckJob:
        return check.start_check(visitor, RunConfig(data_seed=next(seeds)))

    hers, second, third = begin(ada), begin(ada), begin(ada)
    his, theirs, last = begin(bob), begin(cy), begin(dan)
    assert set(at_work) == {job.folder for job in (hers, his, theirs)}
    for ended, begun in ((hers, last), (last, second), (second, third)):
        os.close(at_work.pop(ended.folder))
        background.start_waiting(store)
        assert begun.folder in at_work
        assert len(at_work) == 3
    waiting = [begin(ada) for _ in range(4)]
    with pytest.raises(JobError, match="4 jobs wait already, 4 of them yours"):
        begin(ada)
    for job in waiting:
        check.abandon_check(job)


@pytest.mark.parametrize("minutes", [0, 1])
def test_a_job_ends_in_time(store: RunStore, monkeypatch: pytest.MonkeyPatch, minutes: int) -> None:
    monkeypatch.setattr(workers, "spawn_worker", lambda job, **_: None)
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_MAX_JOB_MINUTES", str(minutes))
    job = check.start_check(store, RunConfig())
    job.end_in_time()
    assert signal.alarm(0) == pytest.approx(60 * minutes + 30, abs=1)
    if not minutes:
        until(job.stop_requested, 10)
        job.process_file.write_text("{}")  # its worker was killed then
        assert job.state().status == "stopped"
        assert job.state().error == "It was worked on for 0 minutes, as long as a job may be."


def test_pairs_found_impossible_are_not_trained_on(store: RunStore, tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("sentence1,sentence2,label\na,b,1\nc,d,1\n")
    config = RunConfig(dataset=store.uploads.add({"train": path}))
    folder = check.check_folder(store, config).folder
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(checks.check_pairs(config, store.root).to_json())
    with pytest.raises(DataError, match="one class"):
        service.start_run(store, config)
    assert store.runs() == []


def test_a_check_measures_what_a_run_of_the_same_rows_has_to_beat(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):  # as the check sets them
        monkeypatch.setenv(name, "1")
    folder = toys.write_pairs(tmp_path)
    files = {path.stem: path for path in folder.glob("*.csv")}
    config = RunConfig(dataset=store.uploads.add(files), checkpoint="none/none")
    parts: list[CheckReport] = []
    report = check.check_config(config, store.root, on_partial=parts.append)
    assert list(report.baselines) == [SingleLabel.constant, baselines.TFIDF]
    assert report.baselines[SingleLabel.constant] == report.majority
    assert [part.baselines for part in parts] == [{}, {}]  # seen before they are measured
    monkeypatch.setattr(baselines, "predict_by_tfidf", lambda *texts: 1 / 0)
    pairs = splits.load_pairs(config.changed(learning_rate=1e-3), store.root)
    scores = baselines.measure_baselines(pairs, "none/none", 32)
    assert scores == {baselines.TFIDF: report.baselines[baselines.TFIDF]}
    for other in ({"max_eval_samples": 9}, {"positive_label": "0"}):
        with pytest.raises(ZeroDivisionError):
            baselines.measure_tfidf(splits.load_pairs(config.changed(**other), store.root))
