"""`python -m finetune train`, alone and under `accelerate launch`, as real processes."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from finetune import owners
from finetune.config import PRESETS, RunConfig
from finetune.data import splits
from finetune.hub import downloads
from finetune.jobs.train import carry_out_run
from finetune.runs import events, pair_index
from finetune.runs.store import RunStore
from tests.support.hub import SIGNED, LoopbackHub
from tests.support.running import ROOT, command, losses
from tests.support.training import work_in_this_process
from tests.support.waiting import until


def carry_out(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a module of ours to its end."""
    return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.long
def test_no_signed_address_stands_in_the_log(
    hub: LoopbackHub, store: RunStore, toy_checkpoint: Path
) -> None:
    """The libraries log the address of each download that breaks off."""
    files = {path.name: path.read_bytes() for path in toy_checkpoint.iterdir()}
    hub.add_repo("ada/signed", files=files)
    hub.fail("GET", "^/lfs/", 0, cut=True, after=1000)
    hub.fail("GET", "^/lfs/", 403, times=99)
    run = store.create(RunConfig(checkpoint="ada/signed", max_length=32))
    done = carry_out("finetune", "train", "--run", str(run.folder))
    text = done.stdout + done.stderr + run.events_file.read_text()
    assert done.returncode == 1
    assert "Error while downloading from http" in text
    assert SIGNED not in text
    assert any(SIGNED in target for target in hub.targets)


def test_an_old_run_with_a_teacher_opens_and_does_not_go_on_without(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in_this_process(monkeypatch)
    run = store.create(RunConfig(name="pupil"))
    saved = json.loads((run.folder / "config.json").read_text())
    (run.folder / "config.json").write_text(json.dumps(saved | {"teacher": "big"}))
    nothing = dict.fromkeys(("lengths", "positions", "tokens", "ids", "attention_mask"), ())
    shapes = {"input_ids": [8, 9], "teacher": [8, 2]}
    events_before = [
        {"event": "phase_started", "phase": "teach", "time": 1.0},
        {"event": "first_batch", "time": 2.0, "shapes": shapes, "padded": 0.0, **nothing},
    ]
    run.events_file.write_text("".join(json.dumps(event) + "\n" for event in events_before))
    assert (run.config(), run.state().taught) == (RunConfig(name="pupil"), True)
    assert carry_out_run(run, print) == 1
    assert run.state().error == "This run has a teacher, and this version has none."


@pytest.mark.long
def test_two_processes_lose_what_one_does(store: RunStore, still_checkpoint: Path) -> None:
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
def test_a_signal_saves_and_ends(store: RunStore, toy_checkpoint: Path, number: int) -> None:
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
    assert index is not None
    for split in pair_index.SPLITS:
        assert index.among(split, pairs.pair_hashes[split]).all()
    files = zipfile.ZipFile(io.BytesIO(b"".join(downloads.model_zip(run)))).namelist()
    assert not [name for name in files if "seen" in name or "train" in name]


@pytest.mark.long
def test_a_visitors_run_of_too_many_steps_ends_before_the_first(
    store: RunStore, hub: LoopbackHub, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the number of pairs was not known when it was started."""
    hub.add_repo("ada/toy", files={p.name: p.read_bytes() for p in toy_checkpoint.iterdir()})
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_ANY_CHECKPOINT", "1")
    monkeypatch.setenv("FINETUNE_MAX_RUN_STEPS", "5")
    config = RunConfig(
        checkpoint="ada/toy", max_length=32, num_train_epochs=3, max_train_samples=16
    ).changed(per_device_train_batch_size=8, gradient_accumulation_steps=1)
    mine = store.for_visitor(owners.policy().identify(user="ada"))
    for run, status in ((mine.create(config), "failed"), (store.create(config), "finished")):
        carry_out("finetune", "train", "--run", str(run.folder))
        ended = run.state()
        assert ended.status == status, run.log_tail()
        assert ended.step == (6 if status == "finished" else 0)
        assert ("makes 6 steps, and a run may take 5 here" in ended.error) is (status == "failed")
