from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from finetune import catalog, checkpoints, model
from finetune.errors import ModelError
from finetune.sources import LABELS


def test_the_bundled_checkpoint_is_the_official_one() -> None:
    tokenizer, classifier = model.load(catalog.BUNDLED_CHECKPOINT, LABELS, 128)
    assert classifier.config.id2label == dict(enumerate(LABELS))
    assert classifier.num_parameters() > 22_000_000
    assert classifier.dtype == torch.float32
    assert len(tokenizer("a", "b")["input_ids"]) == 5


def test_other_weights_are_refused() -> None:
    with pytest.raises(ModelError, match="not the official 000000000000"):
        checkpoints.bundled_folder(expected_sha256="0" * 64)


def test_a_checkpoint_that_is_not_there_is_named() -> None:
    with pytest.raises(ModelError, match="'no/such-checkpoint'"):
        model.load("no/such-checkpoint", LABELS, 32)


def test_a_length_beyond_the_checkpoints_is_refused(toy_checkpoint: Path) -> None:
    with pytest.raises(ModelError, match=r"max_length is 65 .* at most 64\. Lower it"):
        model.load(str(toy_checkpoint), LABELS, 65)


def test_pickled_weights_are_refused(toy_checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    shutil.copytree(toy_checkpoint, folder)
    _, classifier = model.load(str(toy_checkpoint), LABELS, 32)
    (folder / "model.safetensors").unlink()
    torch.save(classifier.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        model.load(str(folder), LABELS, 32)


def test_a_head_of_another_task_is_replaced(toy_checkpoint: Path) -> None:
    _, classifier = model.load(str(toy_checkpoint), ["a", "b", "c"], 32)
    assert classifier.num_labels == 3


def test_what_is_saved_is_what_is_loaded(toy_checkpoint: Path, tmp_path: Path) -> None:
    tokenizer, classifier = model.load(str(toy_checkpoint), LABELS, 32)
    inputs = tokenizer("the cat sees a dog .", "a cat sees the dog .", return_tensors="pt")
    classifier.eval()
    for _ in range(2):  # the second time there is something to replace
        model.save(classifier, tokenizer, tmp_path / "best")
    _, loaded = model.load_saved(tmp_path / "best")
    assert torch.equal(classifier(**inputs).logits, loaded(**inputs).logits)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_a_damaged_model_is_said(toy_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(toy_checkpoint, tmp_path / "best")
    weights = tmp_path / "best" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ModelError, match="cannot be loaded"):
        model.load_saved(tmp_path / "best")
    with pytest.raises(ModelError, match="no saved model"):
        model.load_saved(tmp_path / "nothing")
