"""Checks, exports and pushes as processes of their own: they take turns, end in time and survive
their page."""

import io
import os
import signal
import sys
import zipfile
from dataclasses import replace
from itertools import count

import psutil
import pytest

from finetune.config import RunConfig
from finetune.data import checks, hub_access
from finetune.errors import Cancelled, DataError, JobError, PublishError, StoreError
from finetune.evaluation import quantization
from finetune.hub import onnx, publish
from finetune.hub.client import Account
from finetune.hub.publish import Pushed, PushPlan, PushProgress, PushRequest, Verification
from finetune.inference import decision_rule
from finetune.jobs import background, check, service, workers
from finetune.jobs.publish import Approvals, ExportJob, PushJob
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder, hold_lock
from finetune.runs.queue import Queue
from finetune.tasks.base import SureRule
from tests.support import toys
from tests.support.hub import TOKEN, Space
from tests.support.waiting import until


def wait(job):
    until(lambda: not job.state().running)
    return job.state()


def start(store, config):
    job = check.start_check(store, config)
    worker = workers.worker_process(job)
    return job, worker


def test_the_newest_jobs_of_a_folder_stay(tmp_path):
    jobs = [JobFolder(tmp_path / str(number)) for number in range(4)]
    for job in jobs:
        job.folder.mkdir()
        job.describe_job("probe", "", {})
    (tmp_path / "other").mkdir()
    handle = hold_lock(jobs[0].lock_file)  # it is at work
    for job in jobs:
        os.utime(job.folder / "job.json", (int(job.id), int(job.id)))
    background.keep_newest(tmp_path, 2)
    os.close(handle)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2", "3", "other"]


@pytest.mark.long
def test_a_check_that_is_killed_says_so_and_can_be_repeated_once_for_all(store, processes):
    config = RunConfig()
    job, worker = start(store, config)
    worker.kill()
    worker.wait()
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
    assert report.read == {"train": 2038, "validation": 434, "test": 456}
    assert report.lengths.rows == 2038
    assert not half_read.exists()
    psutil.wait_procs([worker])
    check.start_check(store, config)
    assert workers.worker_process(job) is None


@pytest.fixture
def at_work(monkeypatch):
    """Folders of jobs whose workers do nothing; each ends once its handle is closed."""
    handles = {}

    def spawn(job, **_options):
        handle = hold_lock(job.lock_file)
        handles[job.folder] = handle
        job.process_file.write_text("{}")

    monkeypatch.setattr(workers, "spawn_worker", spawn)
    yield handles
    for handle in handles.values():
        os.close(handle)


def test_visitors_take_turns(store, at_work, monkeypatch):
    """Each has one place of a kind; the next is for whoever had none for the longest time."""
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    ada, bob, cy, dan = (store.for_visitor(Visitor(names=(name,))) for name in "abcd")
    seeds = count()

    def begin(visitor):
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
def test_a_job_ends_in_time(store, monkeypatch, minutes):
    monkeypatch.setattr(workers, "spawn_worker", lambda job, **_: None)
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_MAX_JOB_MINUTES", str(minutes))
    job = check.start_check(store, RunConfig())
    job.end_in_time()
    assert signal.alarm(0) == pytest.approx(60 * minutes + 30, abs=1)
    if not minutes:
        until(job.stop_requested)
        job.process_file.write_text("{}")  # its worker was killed then
        assert job.state().status == "stopped"
        assert job.state().error == "It was worked on for 0 minutes, as long as a job may be."


def test_pairs_found_impossible_are_not_trained_on(store, tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("sentence1,sentence2,label\na,b,1\nc,d,1\n")
    config = RunConfig(dataset=store.uploads.add({"train": path}))
    folder = check.check_folder(store, config).folder
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(checks.check_pairs(config, store.root).to_json())
    with pytest.raises(DataError, match="one class"):
        service.start_run(store, config)
    assert store.runs() == []


def test_a_file_is_of_the_model_as_it_is_and_a_failure_is_said(store, toy_checkpoint, monkeypatch):
    run = toys.finished_run(store, toy_checkpoint)
    assert ExportJob.of(run).state().status == "none"
    job = JobFolder(run.folder / "exports" / "onnx")
    job.folder.mkdir(parents=True)
    job.append(events.PhaseStarted(phase=Phase.EXPORT))
    assert "ended unexpectedly" in ExportJob.of(run).state().error
    whole = (run.best / "model.safetensors").read_bytes()
    (run.best / "model.safetensors").write_bytes(b"damaged")
    assert ExportJob(job.folder).carry_out() == 1
    state = ExportJob.of(run).state()
    assert (state.status, state.file) == ("failed", None)
    assert state.error
    (run.best / "model.safetensors").write_bytes(whole)
    monkeypatch.setattr(workers, "spawn_worker", lambda job, **_: ExportJob(job.folder).carry_out())
    monkeypatch.setattr(onnx, "export_onnx", lambda best, file: file.touch())
    measured, there = [], []

    def measure(*_, again):
        measured.append(again)
        there.append(ExportJob.of(run).state().file is not None)

    monkeypatch.setattr(quantization, "quantize_model", measure)
    training = store.create(RunConfig())
    Queue(store.root).add(training.id)  # int8 is not measured beside a training
    for expected in ([], [False], [False, True]):
        ExportJob.of(run).start(store)
        assert (measured, ExportJob.of(run).state().busy) == (expected, not expected)
        Queue(store.root).remove(training.id)
    assert there == [True, True]  # the file can be fetched while int8 is measured
    zipped = b"".join(ExportJob.of(run).zipped())
    names = zipfile.ZipFile(io.BytesIO(zipped)).namelist()
    assert {"toy-run/model.onnx", "toy-run/tokenizer.json"} <= set(names)
    decision_rule.write_rule(run.best, sure=SureRule(0.02, 0.95, 0.9))  # the file has no such bound
    assert ExportJob.of(run).state().file is None
    decision_rule.write_rule(run.best, sure=None)
    assert ExportJob.of(run).state().file is not None
    run.append(events.Saved(step=9))  # a newer model: the file is of another one
    assert ExportJob.of(run).state().file is None
    with pytest.raises(StoreError, match="no ONNX file"):
        ExportJob.of(run).zipped()
    blank = store.create(RunConfig())
    with pytest.raises(JobError, match="no model"):
        ExportJob.of(blank).start(store)


@pytest.fixture
def run(store, toy_checkpoint):
    return toys.finished_run(store, toy_checkpoint)


@pytest.fixture
def pushed(store, monkeypatch):
    """Pushes a run in this process, which reads its token as a worker does; how it ended."""

    def carry_out(job, stdin, **_):
        with monkeypatch.context() as context:
            context.setattr(sys, "stdin", io.StringIO(stdin.decode()))
            return PushJob(job.folder).carry_out()

    def push_to(run, request, approvals):
        with monkeypatch.context() as context:
            context.setattr(workers, "spawn_worker", carry_out)
            context.setattr(publish, "verify_push", lambda *_: Verification(0, 0.0))
            PushJob.of(run).start(store, request, TOKEN, approvals)
        return PushJob.of(run).state()

    return push_to


@pytest.mark.long
def test_a_push_goes_on_without_its_page(store, toy_checkpoint, hub):
    run = store.create(RunConfig(max_length=32))
    for event in toys.story()[:-1]:  # all but its end: its worker has died
        run.append(event)
    toys.copy_model(toy_checkpoint, run.best)
    assert run.state().status == "interrupted"
    assert PushJob.of(run).state().status == "none"
    PushJob.of(run).start(store, PushRequest("ada/pairs"), TOKEN, Approvals())
    assert PushJob.of(run).state().running
    worker = workers.worker_process(JobFolder(run.folder / "pushes" / "latest"))
    assert TOKEN not in " ".join([*worker.cmdline(), *worker.environ().values()])
    PushJob.of(run).start(store, PushRequest("ada/pairs"), TOKEN, Approvals())  # not a second one
    until(lambda: not PushJob.of(run).state().running)
    state = PushJob.of(run).state()
    assert state.error == ""
    assert state.pushed.verified.problem == ""
    assert state.progress.sent == state.progress.total > 10_000
    assert len(hub.repos["model", "ada/pairs"].commits) == 1
    for path in run.folder.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path


def test_a_push_that_came_to_nothing_can_be_tried_again(run, monkeypatch, pushed):
    def push_as(outcome):
        def push_run(*words):
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(publish, "push_run", push_run)
        return pushed(run, PushRequest("ada/pairs"), Approvals())

    state = push_as(Cancelled("Cancelled.", "Push again."))
    assert (state.status, state.error) == ("stopped", "Cancelled. Push again.")
    assert "our fault" in push_as(RuntimeError(f"Illegal header value 'Bearer {TOKEN}'")).error
    assert TOKEN not in (run.folder / "pushes" / "latest" / "events.jsonl").read_text()
    no_model = PublishError("This run has no saved model.", "Train it.")
    assert push_as(no_model).error == no_model.fact
    done = Pushed("http://hub/ada/pairs", "c" * 40, True, Verification(20, 0.0))
    assert push_as(done).pushed == done


@pytest.mark.parametrize(
    ("phase", "said"),
    [(Phase.UPLOAD, "nothing was committed"), (Phase.COMMIT, "the commit to ada/x may have"),
     (Phase.COMMITTED, "after it was committed to ada/x"), (Phase.VERIFY, "it was committed")],
)  # fmt: skip
def test_a_push_that_was_killed_says_how_far_it_came(run, monkeypatch, pushed, phase, said):
    def push_run(*words):
        words[3](PushProgress(phase, full="ada/x"))
        raise SystemExit

    monkeypatch.setattr(publish, "push_run", push_run)
    with pytest.raises(SystemExit):
        pushed(run, PushRequest("ada/x"), Approvals())
    state = PushJob.of(run).state()
    assert state.status == "interrupted"
    assert said in state.error
    assert "ush again" in state.remedy


def test_what_a_check_has_shown_or_a_push_has_made_is_updated(store, toy_checkpoint, hub, pushed):
    approvals = Approvals()
    first, second = (toys.finished_run(store, toy_checkpoint, name) for name in "ab")

    def check(run):
        plan = publish.plan_push(run, PushRequest("ada/pairs"), TOKEN)
        approvals.add(store, run, plan)

    def push_to(run, name):
        return pushed(run, PushRequest(name), approvals).error

    check(second)  # there is nothing yet: this shows nothing of what a push would change
    assert [push_to(first, name) for name in ("pairs", "ada/pairs")] == ["", ""]
    assert push_to(second, "pairs") == "ada/pairs exists already."
    assert len(hub.repos["model", "ada/pairs"].commits) == 1  # the same is not pushed again
    check(second)
    assert push_to(second, "pairs") == ""
    hub.add_repo("ada/other", files={"README.md": b"mine"})
    assert push_to(second, "ada/other") == "ada/other exists already."
    assert push_to(second, "ada/pairs") == ""  # after a failed one


def test_a_demo_is_billed_only_where_a_check_has_shown_its_price(store, run, hub, pushed):
    approvals = Approvals()
    # One visitor's check is not another's.
    plan = PushPlan(Account("ada", ["ada"]), "ada/pairs", True, "", False, {}, held=1)
    mine, theirs = (store.for_visitor(Visitor((f"browser:{name}",))) for name in "ab")
    approvals.add(mine, run, plan)
    assert approvals.of(store.for_visitor(Visitor(("user:ada", "browser:a"))), run) == ["ada/pairs"]
    assert approvals.of(theirs, run) == []
    request = PushRequest("pairs", demo=True, hardware="t4-small")
    assert "0.40 USD an hour" in pushed(run, request, approvals).error
    assert hub.repos == {}
    for hardware, status in (("cpu-basic", "failed"), ("t4-small", "finished")):
        checked = replace(request, hardware=hardware)
        approvals.add(store, run, publish.plan_push(run, checked, TOKEN))
        assert pushed(run, request, approvals).status == status
    demo = hub.repos["space", "ada/pairs-demo"].space
    assert demo == Space("gradio", "t4-small", sleep_time=3600)
