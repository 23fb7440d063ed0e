"""ONNX models give PyTorch's logits for any batch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import load

from finetune.__main__ import main as command_line
from finetune.errors import ModelError
from finetune.hub import onnx
from finetune.inference import decision_rule
from finetune.tasks.base import SureRule
from finetune.training import model
from tests.support.families import write

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
