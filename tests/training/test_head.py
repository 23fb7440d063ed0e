"""The output layer of a checkpoint that is a classifier already."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from finetune.errors import ModelError
from finetune.tasks.base import Target
from finetune.training import model
from tests.support import toys
from tests.support.families import FAMILIES, write

NAMES = ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"]
PAIR = ("the cat sees a dog .", "a cat sees the dog .")


@pytest.fixture(params=sorted(FAMILIES))
def classifier(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint of a family that answers one of three classes, always the first."""
    folder = write(tmp_path / request.param, request.param)
    config = AutoConfig.from_pretrained(folder)
    config.id2label, config.label2id = dict(enumerate(NAMES)), {n: i for i, n in enumerate(NAMES)}
    trained = AutoModelForSequenceClassification.from_config(config)
    trained.save_pretrained(folder)
    return folder


def logits(folder: Path, labels: list[str]) -> tuple[torch.Tensor, model.LoadedClassifier]:
    loaded = model.load_classifier(str(folder), Target(tuple(labels)), 32)
    with torch.no_grad():
        inputs = loaded.tokenizer(*PAIR, return_tensors="pt")
        return loaded.model.eval()(**inputs).logits[0], loaded


def own_logits(folder: Path) -> torch.Tensor:
    """The answer of the checkpoint as it is."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    own = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    own.config.pad_token_id = tokenizer.pad_token_id
    with torch.no_grad():
        return own(**tokenizer(*PAIR, return_tensors="pt")).logits[0]  # type: ignore[no-any-return]


def test_answers_keep_their_meaning_where_the_names_agree(classifier: Path) -> None:
    expected = dict(zip(NAMES, own_logits(classifier).tolist(), strict=True))
    for labels, kept in (
        (["contradiction", "entailment", "neutral"], "in another order"),
        (["Entailment", "neutral", "contradiction"], "its output layer is kept."),
    ):
        answer, loaded = logits(classifier, labels)
        wanted = [expected[label.upper()] for label in labels]
        assert answer.tolist() == pytest.approx(wanted, abs=1e-5)
        assert loaded.model.config.id2label == dict(enumerate(labels))
        assert kept in loaded.head.text


def test_other_classes_get_a_new_output_layer(classifier: Path) -> None:
    """Of as many classes: the library would keep the layer under the new names."""
    toys.overwrite(classifier, lambda weights: None)
    answer, loaded = logits(classifier, ["bad", "fair", "good"])
    own = AutoModelForSequenceClassification.from_pretrained(classifier)
    before = own.get_submodule(loaded.head.layer).weight
    after = loaded.model.get_submodule(loaded.head.layer).weight
    assert not torch.allclose(before, after)
    assert after.detach().std().item() == pytest.approx(0.02, rel=0.5)
    assert answer.abs().max() < 2  # nothing is claimed yet
    assert "other classes (ENTAILMENT, NEUTRAL, CONTRADICTION)" in loaded.head.text
    # What lies before the output layer is the checkpoint's.
    name = next(iter(dict(own.base_model.named_parameters())))
    assert torch.equal(
        own.base_model.get_parameter(name), loaded.model.base_model.get_parameter(name)
    )


def test_another_number_of_classes_gets_a_new_output_layer(classifier: Path) -> None:
    _, loaded = logits(classifier, ["entailment", "neutral"])
    assert loaded.model.config.num_labels == 2
    assert loaded.head.text == ""
    assert loaded.head.layer


def test_names_that_are_not_told_apart_agree_with_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "bert", "Bert")
    config = AutoConfig.from_pretrained(folder)
    for names in (["a b", "A-B"], ["LABEL_0", "LABEL_1"], ["yes", "no "]):
        config.id2label = dict(enumerate(names))
        config.save_pretrained(folder)
        assert not model.load_classifier(str(folder), Target(("a b", "no")), 32).head.rows


def test_most_of_an_encoder_that_is_missing_is_said(toy_checkpoint: Path, tmp_path: Path) -> None:
    """Weights under other names: the library draws new ones and only warns."""
    folder = tmp_path / "toy"
    shutil.copytree(toy_checkpoint, folder)

    def renamed(weights: dict[str, torch.Tensor]) -> None:
        for name in list(weights):
            weights[f"text_{name}"] = weights.pop(name)

    toys.overwrite(folder, renamed)
    with pytest.raises(ModelError, match="has no weights for most of the model"):
        model.load_classifier(str(folder), Target(("a", "b")), 32)
