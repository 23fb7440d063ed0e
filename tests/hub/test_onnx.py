"""Models as ONNX: onnxruntime answers what PyTorch does, whatever the batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from finetune.config import BUNDLED_CHECKPOINT
from finetune.data.sources import LABELS
from finetune.errors import ModelError
from finetune.hub import onnx
from finetune.training import model
from tests.training.test_families import write

SENTENCES = [("the cat sees a dog .", "a cat sees the dog ."), ("the owl", "a cow fears the hen")]


@pytest.mark.long
@pytest.mark.parametrize("family", ["Bert", "Roberta", "DistilBert", "DebertaV2"])
def test_a_family_answers_the_same_as_onnx(family: str, tmp_path: Path) -> None:
    folder = write(tmp_path / family, family)
    file = tmp_path / "out" / "model.onnx"
    exported = onnx.export_onnx(folder, file, 60)
    assert exported.inputs == ["input_ids", "attention_mask"]
    assert exported.difference <= 1e-4
    assert exported.bytes == file.stat().st_size
    assert list(file.parent.iterdir()) == [file]
    tokenizer, classifier = model.load_saved_model(folder)
    session = onnxruntime.InferenceSession(file)
    first, second = map(list, zip(*SENTENCES, strict=True))
    batch = tokenizer(first, second, padding=True, return_tensors="pt")
    (logits,) = session.run(None, {name: batch[name].numpy() for name in exported.inputs})
    with torch.no_grad():
        expected = classifier(**{name: batch[name] for name in exported.inputs}).logits
    assert np.allclose(logits, expected.numpy(), atol=1e-4)
    shapes = {entry.name: entry.shape for entry in session.get_inputs()}
    assert all(not isinstance(size, int) for shape in shapes.values() for size in shape)
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["labels"]) == [classifier.config.id2label[n] for n in range(2)]
    assert json.loads(metadata["max_length"]) == 60


def test_both_sentences_and_another_model_are_told_apart(
    toy_checkpoint: Path, tmp_path: Path
) -> None:
    file = tmp_path / "model.onnx"
    exported = onnx.export_onnx(toy_checkpoint, file, 64)
    assert exported.inputs == ["input_ids", "token_type_ids", "attention_mask"]
    session = onnxruntime.InferenceSession(file)
    ids = np.full((1, 6), 7)
    answers = [
        session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids),
                           "token_type_ids": np.full_like(ids, kind)})[0]
        for kind in (0, 1)
    ]  # fmt: skip
    assert not np.allclose(answers[0], answers[1], atol=1e-5)
    tokenizer, classifier = model.load_saved_model(toy_checkpoint)
    with torch.no_grad():
        classifier.classifier.bias += 0.01
    with pytest.raises(ModelError, match="a logit differs"):
        onnx.max_logit_difference(file, tokenizer, classifier, 16)


def test_what_answers_otherwise_is_not_written(
    toy_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "out" / "model.onnx"
    monkeypatch.setattr(onnx, "TOLERANCE", -1.0)
    with pytest.raises(ModelError, match="answers otherwise than PyTorch"):
        onnx.export_onnx(toy_checkpoint, to, 16)
    assert list(to.parent.iterdir()) == []


@pytest.mark.parametrize("length", [1, 65])
def test_a_length_the_model_does_not_read_is_refused(
    toy_checkpoint: Path, tmp_path: Path, length: int
) -> None:
    with pytest.raises(ModelError, match=f"max_length is {length} but the model reads"):
        onnx.export_onnx(toy_checkpoint, tmp_path / "model.onnx", length)


@pytest.mark.long
def test_the_bundled_checkpoint_from_a_terminal(tmp_path: Path) -> None:
    tokenizer, classifier = model.load_classifier(BUNDLED_CHECKPOINT, LABELS, 128)
    model.save_model(classifier, tokenizer, tmp_path / "best")
    command = [sys.executable, "-m", "finetune", "export", "--model", str(tmp_path / "best")]
    done = subprocess.run(
        [*command, "--to", str(tmp_path / "model.onnx")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "inputs input_ids, token_type_ids, attention_mask" in done.stdout
    assert (tmp_path / "model.onnx").stat().st_size > 80_000_000


def test_a_folder_without_a_model_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert onnx.main(["--model", str(tmp_path), "--to", "x.onnx"]) == 1
    assert "error: This run has no saved model." in capsys.readouterr().err
