"""The jobs of a shared app's visitors: each works on its own files, and can read no others."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from finetune import owners
from finetune.config import BUNDLED_CHECKPOINT, RunConfig, is_upload
from finetune.data import dataset_cache, hub_access
from finetune.engines.base import EngineSpec, write_spec
from finetune.environment import child_process, confinement
from finetune.evaluation import ranking
from finetune.evaluation.gate import Limits
from finetune.hub.publish import PushRequest
from finetune.inference.file_request import PredictionRequest
from finetune.jobs import check, evaluate, predict, probe, scheduler, service, workers
from finetune.jobs.evaluate import ComparisonJob, EvaluationJob
from finetune.jobs.publish import Approvals, ExportJob, PushJob
from finetune.owners import Identities, Visitor
from finetune.runs import events
from finetune.runs.job_folder import JobFolder
from finetune.runs.queue import Queue
from tests.support import probe_worker, toys
from tests.support.confined import needs_landlock
from tests.support.hub import TOKEN
from tests.support.waiting import until

PAIRS = "sentence1,sentence2,label\nthe cat sees a dog .,a cat sees the dog .,1\nc,d,0\ne,f,1\n"
GOLDEN = "sentence1,sentence2,label\nthe owl likes a bee .,a owl likes the bee .,1\ng,h,0\n"
SMALL = {"max_steps": 2, "max_length": 32, "max_train_samples": 32, "max_eval_samples": 16}


@pytest.fixture
def ada(store, monkeypatch):
    """The store of a shared app as a visitor sees it."""
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    return store.for_visitor(Visitor(names=("browser:ada",)))


@pytest.fixture
def hers(ada, toy_checkpoint, tmp_path):
    """Ada's finished run, of an upload."""
    (tmp_path / "hers.csv").write_text(PAIRS)
    name = ada.uploads.add({"train": tmp_path / "hers.csv"})
    run = toys.finished_run(ada, toy_checkpoint)
    run.replace_config(run.config().changed(dataset=name))
    return run


@pytest.fixture
def probing(ada, hers, toy_checkpoint, tmp_path, monkeypatch):
    """Workers try to read what is somebody else's: its name -> its path."""
    bob = ada.for_visitor(Visitor(names=("browser:bob",)))
    his = toys.finished_run(bob, toy_checkpoint)
    (tmp_path / "his.csv").write_text(f"{PAIRS}g,h,0\n")
    upload = bob.uploads.add({"train": tmp_path / "his.csv"})
    read = dataset_cache.read_dataset(RunConfig(dataset=upload), ada.root)
    Identities(ada.root).issue("192.0.2.1")
    home = tmp_path / "home"
    for path in (home / "token", home / "hub" / "models--his--private" / "file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("canary")
    (ada.root / ".spending.jsonl").write_text("canary")
    others = {
        "another's run": his.events_file, "another's model": his.best / "config.json",
        "another's upload": bob.uploads.files(upload)["train"],
        "another's pairs": read.folder / "dataset.json", "all runs": ada.root,
        "the key of identities": ada.root / owners.KEY,
        "what was spent": ada.root / ".spending.jsonl", "the owner's token": home / "token",
        "a private repository": home / "hub" / "models--his--private" / "file",
        "the app's environment": Path("/proc/{parent}/environ"), "the home": home,
    }  # fmt: skip
    folder = tmp_path / "probes"
    folder.mkdir()
    shutil.copy(probe_worker.__file__, folder)
    names = {name: str(path) for name, path in others.items()}
    (folder / probe_worker.NAMES).write_text(json.dumps(names))
    monkeypatch.setattr(workers, "WORKER", probe_worker.__name__.rpartition(".")[2])
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("HOME", str(home))
    for name in ("AWS_SECRET_ACCESS_KEY", "FINETUNE_SOMETHING_SECRET", "FINETUNE_WEBHOOK"):
        monkeypatch.setenv(name, "canary")
    with monkeypatch.context() as context:
        context.setenv("HF_HOME", str(home))
        context.setenv("HF_TOKEN", "canary")
        yield others


def seen(job):
    """What a job's worker has written down once it has ended."""
    until(lambda: not job.is_alive() and (job.folder / probe_worker.SEEN).exists())
    content = json.loads((job.folder / probe_worker.SEEN).read_text())
    return content


def ended(job):
    """The job, once it has done its work without a complaint."""
    until(lambda: not job.is_alive())
    last = job.tail()[0][-1]
    assert isinstance(last, events.Finished), f"{last} {job.log_tail()}"
    assert "Permission" not in job.log_tail()
    return job


def queued(store, config, engine="local"):
    """A run at work; with more processes than there are devices, which is for tests alone."""
    run = store.create(config)
    write_spec(run, EngineSpec(engine=engine))
    Queue(store.root).add(run.id, run.owner)
    scheduler.dispatch_queue(store)
    return run


def train(store, run):
    return service.start_run(store, RunConfig(dataset=run.config().dataset))


def train_warm(store, run):
    workers.start_warm_worker(store)
    waiting = JobFolder(store.root / workers.WARM_FOLDER)
    until((waiting.folder / workers.READY).exists)
    process = workers.worker_process(waiting)
    started = service.start_run(store, RunConfig(dataset=run.config().dataset))
    assert workers.worker_process(started) in (process, None)  # None: it has ended already
    assert json.loads(started.process_file.read_text())["pid"] == (process and process.pid)
    return started


def follow_hub_job(store, run):
    return queued(store, RunConfig(dataset=run.config().dataset), "hub-job")


def examine(store, run):
    return check.start_check(store, run.config())


def measure(store, run):
    EvaluationJob.of(run, "orders").start(store)
    return JobFolder(run.folder / "evaluations" / "orders")


def make_onnx(store, run):
    ExportJob.of(run).start(store)
    return JobFolder(run.folder / "exports" / "onnx")


def send(store, run):
    PushJob.of(run).start(store, PushRequest("ada/pairs"), TOKEN, Approvals())
    return JobFolder(run.folder / "pushes" / "latest")


def judge(store, run):
    path = run.folder.parent / "brought.csv"
    path.write_text(PAIRS)
    return predict.start_prediction(store, PredictionRequest(run.id, path.name, ""), path)


def check_release(store, run):
    path = run.folder.parent / "golden.csv"
    path.write_text(GOLDEN)
    others = [other for other in store.runs() if other.id != run.id]
    old = next((other for other in others if other.config().seed == 1), run)
    return evaluate.start_release_check(store, run, old, Limits(), path, path.name)


def try_checkpoints(store, run):
    config = run.config().changed(max_train_samples=0)
    return probe.start_probe(store, config, [config.checkpoint, BUNDLED_CHECKPOINT])


STARTS = [
    ("train", train), ("train", train_warm), ("train", follow_hub_job), ("check", examine),
    ("evaluate", measure), ("export", make_onnx), ("push", send), ("predict", judge),
    ("compare", check_release),
]  # fmt: skip


@needs_landlock
@pytest.mark.long
def test_a_worker_reads_nothing_of_others(ada, hers, probing, monkeypatch):
    assert is_upload(hers.config().dataset)
    monkeypatch.setenv("FINETUNE_MAX_WORKER_MB", "5000")
    for kind, start in STARTS:
        found = seen(start(ada, hers))
        may = dict.fromkeys(probing, "PermissionError") | {"own": "done"}
        if start is follow_hub_job:
            may["what was spent"] = "done"  # it notes there what its job may cost
        expected = {"kind": kind, "seen": may, "env": [], "memory": 5000 * 2**20}
        assert found == expected, start.__name__


def test_the_small_model_of_answers_reads_its_labelling_alone(ada):
    folder = ada.root / "labels" / "x"
    files = workers.job_files("answers", ada.root, JobFolder(folder / "answers"), {"run": ""})
    assert files == confinement.Confinement(writes=(str(folder.resolve()),))


@needs_landlock
def test_what_parses_an_upload_reads_that_alone(ada, hers, probing):
    config = hers.config()
    files = hub_access.of_pairs(config, ada.root)

    def read(path):
        try:
            return str(
                child_process.call(
                    "shutil:copyfile", str(path), os.devnull, about="x", confinement=files
                )
            )
        except Exception as error:
            return type(error).__name__

    assert read(ada.uploads.files(config.dataset)["train"]) == os.devnull
    for name, path in probing.items():
        if not name.endswith("environment"):  # its parent is this process, another each time
            assert read(path) == "DataError", name
    assert read(f"/proc/{os.getpid()}/environ") == "DataError"


@pytest.mark.long
@needs_landlock
def test_every_kind_of_job_does_its_work_confined(ada, tmp_path, hub, toy_checkpoint, monkeypatch):
    """Of the bundled pairs in two processes, then of pairs and a checkpoint of the Hub."""
    own_temporary = tmp_path / "temporary"
    own_temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own_temporary))
    (confinement.hub_cache() / "models--ada--pairs" / "snapshots").mkdir(
        parents=True, exist_ok=True
    )  # as somebody else may have it
    hub.add_repo("bert-base-uncased", files=toy_checkpoint)
    files = {f"{p.stem}.csv": p.read_bytes() for p in toys.write_pairs(tmp_path / "p").iterdir()}
    hub.add_repo("ada/tickets", "dataset", files)
    bundled = RunConfig(num_processes=2, report_to="tensorboard", **SMALL)
    ended(check.start_check(ada, bundled))
    ended(queued(ada, bundled))
    fetched = RunConfig(checkpoint="bert-base-uncased", dataset="ada/tickets", **SMALL)
    ended(check.start_check(ada, fetched))
    run = ended(queued(ada, fetched))
    for start in (measure, make_onnx, send, judge, try_checkpoints):
        ended(start(ada, run))
    other = ended(queued(ada, fetched.changed(seed=1)))
    ended(check_release(ada, run))
    judgement = ComparisonJob.of(run, "release").judgement
    assert judgement.examples == GOLDEN.count("\n") - 1
    evaluate.start_measuring(ada, run)
    ended(ComparisonJob.of(run, "speed"))
    assert all(ranking.read_speed(each) for each in (run, other))
    pushed = PushJob.of(run).state().pushed
    assert pushed.verified.problem == ""
    until(lambda: not list(own_temporary.iterdir()))
