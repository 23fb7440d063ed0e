"""The exported script of a run repeats its losses and scores; ONNX models give PyTorch's logits."""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import json
import re
import runpy
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from markupsafe import escape
from onnx import load
from safetensors.torch import load_file

from finetune.__main__ import main as command_line
from finetune.config import PRESETS, RunConfig
from finetune.data import splits
from finetune.errors import DataError, ModelError, StoreError
from finetune.hub import downloads, model_card, onnx
from finetune.inference import decision_rule
from finetune.jobs import pipeline
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.base import SureRule
from finetune.training import accelerator, model
from finetune.ui import live_updates
from tests.support import graded, toys
from tests.support.families import lively, write
from tests.support.families import write as write_family

KINDS = ("low", "mid", "high")


def single_sentences(count: int, seed: int) -> list[tuple[str, str]]:
    rows = toys.rows(count, seed)
    return [(first, KINDS[at % 3]) for at, (first, _, _) in enumerate(rows)]


ROWS: dict[str, tuple[list[str], Callable[[int, int], list[Any]]]] = {
    "pairs": (["sentence1", "sentence2", "label"], toys.rows),
    "scores": (["first", "second", "score"], graded.graded_rows),
    "labels": (["text", "labels"], graded.labelled_rows),
    "kinds": (["text", "kind"], single_sentences),
}


@pytest.fixture
def uploaded(store: RunStore, tmp_path: Path) -> Callable[[str], str]:
    """Uploads rows of a kind, whose name it returns."""

    def upload(kind: str) -> str:
        head, rows = ROWS[kind]
        files = {split: tmp_path / f"{split}.csv" for split in ("train", "validation")}
        for seed, path in enumerate(files.values()):
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([head, *rows(64 - 40 * seed, seed)])
        return store.uploads.add(files)

    return upload


@pytest.fixture
def trained(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[RunConfig, int], Run]:
    """Train a run in this process, as a worker does."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(accelerator, "keep_freed_memory", lambda: None)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")

    def carry_out(config: RunConfig, stop_at: int) -> Run:
        run = store.create(config.changed(mixed_precision="no"))
        for event in pipeline.train_events(run, pipeline.StopSwitch(run)):
            run.append(event)
            if isinstance(event, events.Stepped) and event.step == stop_at:
                run.request_stop()
        return run

    return carry_out


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
STOPPED: dict[str, Any] = {"logging_steps": 1, "eval_steps": 4, "sentence_order": "random"}
FILTERED: dict[str, Any] = {
    "drop_duplicates": True, "max_train_samples": 40, "logging_steps": 2, "dropout": -1.0,
    "class_weights": "balanced", "num_train_epochs": 1,
}  # fmt: skip
EACH: dict[str, Any] = {"eval_steps": 3, "logging_steps": 1, "metrics": ""}


@pytest.mark.parametrize(
    ("kind", "values", "stop_at"),
    [
        ("pairs", ACCUMULATED, 0), ("pairs", LORA, 0), ("pairs", ODD, 0), ("pairs", STOPPED, 5),
        ("pairs", STOPPED, 3), ("scores", EACH, 0), ("labels", EACH, 0), ("kinds", FILTERED, 0),
        ("reranker", EACH, 0),
    ],
    ids=["course", "LoRA", "odd", "stopped", "stopped at once", "scores", "labels",
         "a decoder and three classes", "a reranker"],
)  # fmt: skip
def test_the_script_repeats_the_run(
    trained: Callable[[RunConfig, int], Run], uploaded: Callable[[str], str], store: RunStore,
    toy_checkpoint: Path, tmp_path: Path, kind: str, values: dict[str, Any], stop_at: int,
) -> None:  # fmt: skip
    checkpoint = toy_checkpoint
    if kind == "kinds":  # its tokenizer has no padding token
        checkpoint = write_family(tmp_path / "gpt2", "GPT2")
    elif kind == "reranker":
        checkpoint = lively(write_family(tmp_path / "reranker", "Bert", num_labels=1))
    base = {"learning_rate": 1e-3, "num_train_epochs": 2, "max_length": 32, "seed": 7}
    rows = "pairs" if kind == "reranker" else kind
    config = RunConfig(dataset=uploaded(rows), checkpoint=str(checkpoint)).changed(**base | values)
    run = trained(config, stop_at)
    folder = unpacked(run, store)
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(folder / "train.py"))
    assert_repeated(run, printed.getvalue())
    ours, its = (load_file(best / "model.safetensors") for best in (run.best, folder / "best"))
    assert all(torch.allclose(ours[name], its[name], atol=1e-5) for name in ours)
    named = [(best / "config.json").read_text() for best in (run.best, folder / "best")]
    assert json.loads(named[0])["id2label"] == json.loads(named[1])["id2label"]
    card = model_card.card_text(run, run.state(), "ada/toy")
    begins = "The checkpoint has a single output, as rerankers have"
    assert (begins in card) == (kind == "reranker")


def test_what_the_script_does_not_repeat_is_refused_by_name(
    store: RunStore, toy_checkpoint: Path, uploaded: Callable[[str], str]
) -> None:
    config = RunConfig(dataset=uploaded("pairs"), torch_compile=True, optim="adafactor")
    run = store.create(config)
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
    with pytest.raises(DataError, match="has changed since run"):
        downloads.script_zip(run, store)
    pairs = splits.load_pairs(run.config(), store.root)
    run.append(prepared.model_copy(update={"fingerprint": pairs.fingerprint}))
    folder = unpacked(run, store)
    shown = live_updates.code(run)  # what the page shows is the script that the zip has
    assert escape((folder / "train.py").read_text().strip()) in shown
    assert f"/{run.id}/script.zip" in shown
    with pytest.raises(SystemExit, match="'optim', 'num_processes', 'torch_compile'"):
        runpy.run_path(str(folder / "train.py"))


SENTENCES = (["the cat sees a dog .", "the owl"], ["a cat sees the dog .", "a cow fears the hen"])


def assert_same_answers(folder: Path, file: Path) -> list[str]:
    """Assert that the ONNX file gives PyTorch's logits; returns the names of its inputs."""
    tokenizer, classifier = model.load_saved_model(folder)
    batch = tokenizer(*SENTENCES, padding=True, return_tensors="pt")
    session = onnxruntime.InferenceSession(file)
    inputs = [entry.name for entry in session.get_inputs()]
    (logits,) = session.run(None, {name: batch[name].numpy() for name in inputs})
    with torch.no_grad():
        expected = classifier(**{name: batch[name] for name in inputs}).logits
    assert np.allclose(logits, expected.numpy(), atol=1e-4)
    shapes = [entry.shape for entry in session.get_inputs()]
    assert not [size for shape in shapes for size in shape if isinstance(size, int)]
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["labels"]) == list(classifier.config.id2label.values())
    assert json.loads(metadata["max_length"]) in (64, 65, 66)
    assert json.loads(metadata["finetune"]) == decision_rule.read_notes(folder)
    return inputs


@pytest.mark.long
@pytest.mark.parametrize("family", ["Roberta", "DistilBert", "DebertaV2"])
def test_a_family_answers_the_same_as_onnx(family: str, tmp_path: Path) -> None:
    folder = write(tmp_path / family, family)
    assert onnx.export_onnx(folder, tmp_path / "model.onnx") <= onnx.TOLERANCE
    assert_same_answers(folder, tmp_path / "model.onnx")


@pytest.mark.long
def test_a_model_from_a_terminal(
    toy_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out" / "model.onnx"
    best = Path(shutil.copytree(toy_checkpoint, tmp_path / "best"))
    decision_rule.write_rule(best, sure=SureRule(0.02, 0.95, 0.9, (("equivalent", 0.97),), 40, 20))
    arguments = ["--model", str(best), "--to", str(file)]
    assert command_line(["export", *arguments]) == 0
    assert list(file.parent.iterdir()) == [file]
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    assert assert_same_answers(best, file) == inputs
    graph = load(file).graph
    shapes = {entry.name: entry.type.tensor_type.shape.dim for entry in graph.value_info}
    norms = [node.output[0] for node in graph.node if node.op_type == "LayerNormalization"]
    assert shapes[norms[0]][1].dim_param  # the length of the batch
    assert shapes[norms[-1]][1].dim_value == 1  # the last layer is computed for the first token
    monkeypatch.setattr(onnx, "TOLERANCE", -1.0)
    with pytest.raises(ModelError, match="does not agree with PyTorch: a logit differs"):
        onnx.export_onnx(toy_checkpoint, tmp_path / "wrong" / "model.onnx")
    assert list((tmp_path / "wrong").iterdir()) == []
