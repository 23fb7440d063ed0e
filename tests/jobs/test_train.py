"""Runs as real processes: alone, under a launcher, in folds and from a warm worker; their news."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import zipfile

import numpy as np
import psutil
import pytest

from finetune import owners
from finetune.__main__ import main as command_line
from finetune.config import PRESETS, RunConfig
from finetune.data import splits
from finetune.evaluation import corrections, report
from finetune.hub import downloads, model_card
from finetune.jobs import scheduler as schedulers
from finetune.jobs import service, train, worker, workers
from finetune.jobs.scheduler import Scheduler
from finetune.runs import events, pair_index
from finetune.runs.job_folder import JobFolder
from finetune.runs.run import Run
from tests.support import stand_in, toys
from tests.support.hub import SIGNED
from tests.support.running import ROOT, command, losses
from tests.support.training import work_in_this_process
from tests.support.uploads import write_csv
from tests.support.waiting import until


def carry_out(*words):
    """Run a module of ours to its end."""
    return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.long
def test_no_signed_address_stands_in_the_log(hub, store, toy_checkpoint):
    """The libraries log the address of each download that breaks off."""
    hub.add_repo("ada/signed", files=toy_checkpoint)
    hub.fail("GET", "^/lfs/", 0, cut=True, after=1000)
    hub.fail("GET", "^/lfs/", 403, times=99)
    run = store.create(RunConfig(checkpoint="ada/signed", max_length=32))
    done = carry_out("finetune", "train", "--run", str(run.folder))
    text = done.stdout + done.stderr + run.events_file.read_text()
    assert done.returncode == 1
    assert "Error while downloading from http" in text
    assert SIGNED not in text
    assert any(SIGNED in target for target in hub.targets)


@pytest.mark.long
def test_two_processes_lose_what_one_does(store, still_checkpoint):
    config = RunConfig(
        checkpoint=str(still_checkpoint), learning_rate=1e-3, max_steps=12, eval_steps=12,
        max_length=48, logging_steps=1, per_device_train_batch_size=8,
    ).changed(**PRESETS["As the course"])  # fmt: skip
    alone = command(store, config, [sys.executable])
    launcher = [sys.executable, "-m", "accelerate.commands.launch"]
    # --multi_gpu is Accelerate's word for torch's launcher; with --cpu it starts one process only.
    launcher += ["--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    shared = command(store, config.changed(per_device_train_batch_size=4), launcher)
    for words in (alone, shared):
        subprocess.run(words, cwd=ROOT, check=True)
    two, one = store.runs()
    assert len(losses(one)) == 12
    assert losses(two) == pytest.approx(losses(one), abs=1e-5)
    assert two.metrics == pytest.approx(one.metrics, abs=1e-5)
    started = next(e for e in two.tail()[0] if isinstance(e, events.Started))
    assert started.processes == 2
    # Every validation pair once, in order, however many processes shared them.
    first, second = (np.load(run.predictions / "step-000012.npz") for run in (one, two))
    assert np.array_equal(first["labels"], second["labels"])
    assert np.allclose(first["logits"], second["logits"], atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends(store, toy_checkpoint, number):
    config = RunConfig(checkpoint=str(toy_checkpoint), num_train_epochs=500, max_length=32)
    process = subprocess.Popen(
        command(store, config, [sys.executable]), cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: bool(store.runs()) and bool(losses(store.runs()[0])))
        process.send_signal(number)
        assert process.wait(60) == 0
    finally:
        process.kill()
    run = store.runs()[0]
    assert isinstance(run.tail()[0][-1], events.Stopped)
    assert run.has_model()
    # Its worker has written down what it trains on; whoever takes the model has none of it.
    index = pair_index.read_pair_index(run)
    pairs = splits.load_pairs(run.config(), store.root)
    for split in pair_index.SPLITS:
        assert index.among(split, pairs.pair_hashes[split]).all()
    files = zipfile.ZipFile(io.BytesIO(b"".join(downloads.model_zip(run)))).namelist()
    assert not [name for name in files if "seen" in name or "train" in name]


@pytest.mark.long
def test_a_visitors_run_of_too_many_steps_ends_at_once(store, hub, toy_checkpoint, monkeypatch):
    """Where the number of pairs was not known when it was started."""
    work_in_this_process(monkeypatch)
    hub.add_repo("ada/toy", files=toy_checkpoint)
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_ANY_CHECKPOINT", "1")
    monkeypatch.setenv("FINETUNE_MAX_RUN_STEPS", "5")
    config = RunConfig(
        checkpoint="ada/toy", max_length=32, num_train_epochs=3, max_train_samples=16
    ).changed(per_device_train_batch_size=8, gradient_accumulation_steps=1)
    mine = store.for_visitor(owners.policy().identify(user="ada"))
    for run, status in ((mine.create(config), "failed"), (store.create(config), "finished")):
        train.carry_out_run(run, lambda event: None)
        ended = run.state()
        assert ended.status == status, run.log_tail()
        assert ended.step == (6 if status == "finished" else 0)
        assert ("makes 6 steps, and a run may take 5 here" in ended.error) is (status == "failed")


ROWS = {
    name: [(f"{first} {n}", f"{second} {n}", ("no", "yes")[same])
           for n, (first, second, same) in enumerate(toys.rows(count, seed))]
    for seed, (name, count) in enumerate({"train": 48, "validation": 12, "test": 12}.items())
}  # fmt: skip


@pytest.mark.long
def test_a_terminal_cross_validates_and_its_model_knows_it(store, toy_checkpoint, tmp_path, capsys):
    command = ["train", "--runs", str(store.root), "--folds", "3", "--num_train_epochs", "2"]
    command += ["--checkpoint", str(toy_checkpoint), "--max_length", "48", "--positive_label"]
    command += ["yes", "--learning_rate", "1e-3"]
    for name, rows in ROWS.items():
        path = write_csv(tmp_path / f"{name}.csv", [("sentence1", "sentence2", "label"), *rows])
        command.append(f"--{name}_file={path}")
    assert command_line(command) == 0
    printed = re.findall(r"cross-validated (\w+) (-?[0-9.]+)", capsys.readouterr().out)
    whole, *folds = store.runs()
    assert [run.config().fold for run in (whole, *folds)] == [0, 3, 2, 1]
    summary = whole.state()
    evaluation = report.evaluate_run(whole, summary)
    assert evaluation.analysis.examples == 60
    for name, value in printed:
        assert whole.metrics[name] == pytest.approx(float(value), abs=1e-4)
    # By the last models of the folds, each asked about its own.
    assert summary.prepared.train_examples == 60
    assert [scored.step for scored in summary.validation] == [summary.total_steps]
    for fold in folds:
        last = fold.state()
        assert last.prepared.train_examples + last.prepared.validation_examples == 60
        assert last.saved_step == last.total_steps
    texts = evaluation.table.column("sentence1").to_pylist()
    assert sorted(texts) == sorted(row[0] for row in ROWS["train"] + ROWS["validation"])
    assert "3-fold cross-validation" in model_card.card_text(whole, summary, "ada/pairs")
    # Corrected pairs are one file again, cut into as many folds.
    names = ["no", "yes"]
    corrections.correct_label(whole, 7, names[1 - evaluation.truth[7]], names)
    config = corrections.corrections_upload(store, whole)
    assert (config.folds, config.fold) == (3, 0)
    before, after = (
        {*zip(*splits.load_pairs(each, store.root).splits["validation"][:].values(), strict=True)}
        for each in (whole.config(), config)
    )
    assert len(before ^ after) == 2
    assert len({row[:2] for row in before ^ after}) == 1


@pytest.fixture
def waiting(store, processes):
    """A warm worker of the store, ready."""
    workers.start_warm_worker(store)
    folder = JobFolder(store.root / ".warm")
    process = workers.worker_process(folder)
    processes.append(process)
    until(lambda: (folder.folder / workers.READY).exists())
    return process


@pytest.mark.long
def test_it_carries_out_a_run_as_any_worker_but_not_every_run(store, toy_checkpoint, waiting):
    workers.start_warm_worker(store)  # there is one already
    folder = store.root / ".warm"
    begun = 0
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.ZombieProcess):  # of an earlier test
            begun += str(folder.resolve()) in child.cmdline()
    assert begun == 1
    config = RunConfig(checkpoint=str(toy_checkpoint), max_steps=3, max_length=32)
    for values in ({"num_processes": 2}, {"dataset": "glue/mrpc"}):  # which needs the Hub
        assert not workers.give_to_warm_worker(store, store.create(config.changed(**values)))
    run = service.start_run(store, config)
    assert workers.worker_process(run) == waiting
    until(lambda: run.state().status == "finished")
    assert "finished 3 steps" in run.log_tail()
    assert run.has_model()
    assert not folder.exists()
    until(lambda: not psutil.pid_exists(waiting.pid))


@pytest.fixture
def light(monkeypatch):
    """Let it import nothing, for it will not train."""
    stand_in.use(monkeypatch)


def test_one_that_hangs_is_ended_not_waited_for(light, store, waiting):
    waiting.suspend()
    run = store.create(RunConfig())
    assert not workers.give_to_warm_worker(store, run, patience=0.2)
    assert not run.process_file.exists()
    until(lambda: not waiting.is_running() or waiting.status() == psutil.STATUS_ZOMBIE)


def test_it_ends_when_nobody_comes_or_its_folder_or_app_goes(tmp_path, monkeypatch):
    assert worker.wait_for_run(tmp_path / "gone", os.getppid()) is None
    # The app ended while it imported: its parent is another process by now.
    assert worker.wait_for_run(tmp_path, os.getppid() + 1) is None
    monkeypatch.setattr(worker, "LIFETIME", 0.1)
    assert worker.wait_for_run(tmp_path, os.getppid()) is None


@pytest.fixture
def run(store):
    run = store.create(RunConfig(name="<!channel> mine"))
    for event in toys.story():
        run.append(event)
    return run


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("{chat}/secret", "HTTP Error 302: Found"),
        ("http://127.0.0.1:9/secret", "Connection refused"),
        ("file:///secret", "it is no address of https:// or http://"),
    ],
)
def test_what_was_not_sent_is_logged_without_address(
    store, run, hub, address, reason, monkeypatch, caplog
):
    """A chat server on the owner's network may redirect to another."""
    hub.fail(path="/secret", status=302, headers={"Location": "/"})
    monkeypatch.setenv(schedulers.WEBHOOK, address.format(chat=hub.url))
    schedulers.announce(run, run.state()).join()
    assert reason in caplog.text
    assert "secret" not in caplog.text
    hub.fail(path="/hook", status=204)
    schedulers.send(f"{hub.url}/hook", run, run.state())
    redirected = [("POST", "/secret", 302)] * ("{" in address)
    asked = [one for one in hub.requests if not one[1].startswith("/api/")]  # by an earlier test
    assert asked == [*redirected, ("POST", "/hook", 204)]
    assert schedulers.news("example.org", run, run.state())["status"] == "finished"
    for host, field, name in (
        ("hooks.slack.com", "text", "&lt;!channel&gt; mine"),
        ("discord.com", "content", "<!channel> mine"),
    ):
        message = schedulers.news(host, run, run.state())
        assert message[field] == f"{name}: finished, F1 0.800, accuracy 0.700"
        assert "sentence" not in json.dumps(message)


def test_the_scheduler_announces_each_run_that_was_at_work_and_ended_once(store, run, monkeypatch):
    sent = []
    monkeypatch.setenv(schedulers.WEBHOOK, "https://example.org/x")
    monkeypatch.setattr(
        schedulers, "announce", lambda run, state: sent.append((run.id, state.status))
    )
    alive = {run.id: True}
    monkeypatch.setattr(Run, "is_alive", lambda self: alive.get(self.id, False))
    scheduler = Scheduler(store)
    scheduler._tick()
    assert sent == []
    alive.clear()
    scheduler._tick()
    scheduler._tick()
    assert sent == [(run.id, "finished")]
