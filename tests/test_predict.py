from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finetune.errors import DataError, ModelError
from finetune.predict import MAX_CHARACTERS, Predictor, Shelf


@pytest.fixture
def predictor(toy_checkpoint: Path) -> Predictor:
    return Predictor(toy_checkpoint, max_length=32)


def test_the_answer_is_the_models(predictor: Predictor, toy_checkpoint: Path) -> None:
    one, two = "the cat sees a dog .", "a cat sees the dog ."
    answer = predictor.pair(one, two)
    tokenizer = AutoTokenizer.from_pretrained(toy_checkpoint)
    model = AutoModelForSequenceClassification.from_pretrained(toy_checkpoint).eval()
    with torch.no_grad():
        logits = model(**tokenizer(one, two, return_tensors="pt")).logits[0]
    assert answer.logits == pytest.approx(logits.tolist(), abs=1e-6)
    assert list(answer.probabilities.values()) == pytest.approx(
        logits.softmax(-1).tolist(), abs=1e-6
    )
    assert sum(answer.probabilities.values()) == pytest.approx(1.0)
    assert answer.label == ["not_equivalent", "equivalent"][int(logits.argmax())]
    assert (answer.tokens, answer.cut) == (15, 0)


def test_what_is_cut_is_said(predictor: Predictor) -> None:
    answer = predictor.pair("cat " * 40, "dog")
    assert (answer.tokens, answer.cut) == (32, 12)


@pytest.mark.parametrize("text", ["", "  \n\t ", None, 7, "x" * (MAX_CHARACTERS + 1)])
def test_what_is_no_sentence_is_refused_by_name(predictor: Predictor, text: Any) -> None:
    with pytest.raises(DataError, match="sentence2"):
        predictor.pair("cat", text)


@pytest.mark.parametrize(
    "text", ["\ud800 lone", "nul \0 byte", "\U0001f600" * 50, "\u202eright to left", "<b>bold</b>",
             "\u200b\u200b", "'; DROP TABLE"]
)  # fmt: skip
def test_any_text_gets_an_answer(predictor: Predictor, text: str) -> None:
    assert sum(predictor.pair(text, "cat").probabilities.values()) == pytest.approx(1.0)


def test_a_model_is_loaded_once_and_again_when_it_changed(
    toy_checkpoint: Path, still_checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "best"
    shutil.copytree(toy_checkpoint, folder)
    shelf = Shelf(keep=1)
    first = shelf.get(folder, 32)
    assert shelf.get(folder, 32) is first
    shelf.get(still_checkpoint, 32)
    assert shelf.get(folder, 32) is not first  # there was room for one
    held = shelf.get(folder, 32)
    (folder / "model.safetensors").touch()
    assert shelf.get(folder, 32) is not held
    shutil.rmtree(folder)
    with pytest.raises(ModelError, match="no saved model"):
        shelf.get(folder, 32)
