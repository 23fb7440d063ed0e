"""The output layer of a checkpoint that is a classifier already."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from finetune.errors import ModelError
from finetune.tasks.base import MULTI_LABEL, REGRESSION, Target
from finetune.training import model
from tests.support import families, toys
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


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        (["contradiction", "entailment", "neutral"], "in another order"),
        (["Entailment", "neutral", "contradiction"], "its output layer is kept."),
        (["contradiction", "entailment"],
         "these classes and others (ENTAILMENT, NEUTRAL, CONTRADICTION)"),
    ],
)  # fmt: skip
def test_answers_keep_their_meaning_where_the_names_agree(
    classifier: Path, labels: list[str], kept: str
) -> None:
    expected = dict(zip(NAMES, own_logits(classifier).tolist(), strict=True))
    answer, loaded = logits(classifier, labels)
    wanted = [expected[label.upper()] for label in labels]
    assert answer.tolist() == pytest.approx(wanted, abs=1e-5)
    assert loaded.model.config.id2label == dict(enumerate(labels))
    assert kept in loaded.head.text


def test_other_classes_get_a_new_output_layer(classifier: Path) -> None:
    """Of as many classes: the library would keep the layer under the new names."""
    _, loaded = logits(classifier, ["bad", "fair", "good"])
    own = AutoModelForSequenceClassification.from_pretrained(classifier)
    before = own.get_submodule(loaded.head.layer).weight
    after = loaded.model.get_submodule(loaded.head.layer).weight
    assert not torch.allclose(before, after)
    assert after.detach().std().item() == pytest.approx(0.02, rel=0.5)
    assert "other classes (ENTAILMENT, NEUTRAL, CONTRADICTION)" in loaded.head.text
    # What lies before the output layer is the checkpoint's.
    name = next(iter(dict(own.base_model.named_parameters())))
    assert torch.equal(
        own.base_model.get_parameter(name), loaded.model.base_model.get_parameter(name)
    )
    assert logits(classifier, ["entailment", "unrelated"])[1].model.config.num_labels == 2


@pytest.fixture(
    params=[
        pytest.param(family, marks=() if family in ("Bert", "GPT2") else pytest.mark.long)
        for family in FAMILIES
    ]
)
def reranker(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint of a family with a single logit, as sentence-transformers saves one."""
    folder = write(tmp_path / request.param, request.param, num_labels=1)
    return families.lively(folder)


@pytest.mark.parametrize("positive", [0, 1])
def test_a_single_logit_becomes_that_of_the_positive_class(reranker: Path, positive: int) -> None:
    (logit,) = own_logits(reranker)
    target = Target(("a", "b"), positive)
    tokenizer, classifier, head = model.load_classifier(str(reranker), target, 32)
    with torch.no_grad():
        output = classifier.eval()(
            **tokenizer(*PAIR, return_tensors="pt"), labels=torch.tensor([0])
        )
    shares = output.logits[0].softmax(0)
    assert shares[positive].item() == pytest.approx(logit.sigmoid().item(), abs=1e-5)
    assert output.loss.item() == pytest.approx(-shares[0].log().item(), abs=1e-5)
    assert classifier.config.id2label == {0: "a", 1: "b"}
    assert "log-odds of the positive class" in head.text


def test_a_single_logit_is_stretched_to_a_scale(reranker: Path) -> None:
    (logit,) = own_logits(reranker)
    target = Target((), task=REGRESSION, low=0.0, high=5.0)
    tokenizer, classifier, head = model.load_classifier(str(reranker), target, 32)
    with torch.no_grad():
        score = classifier.eval()(**tokenizer(*PAIR, return_tensors="pt")).logits.item()
    if reranker.name in families.DECODERS:  # without a bias there is no middle of a scale
        assert not head.rows
        return
    assert score == pytest.approx(2.5 + 0.153 * 5 * logit.item(), abs=1e-4)
    assert abs(score - 5 * logit.sigmoid().item()) < 0.7 or abs(logit) > 4
    assert "stretched to the scale" in head.text


def test_what_does_not_agree_with_the_classes_keeps_no_row(tmp_path: Path) -> None:
    """A single logit for several classes or labels, or a score; names that are not told apart."""
    one = write(tmp_path / "one", "Bert", num_labels=1)
    scored = write(tmp_path / "scored", "Bert", num_labels=1, problem_type=REGRESSION)
    wrong = [(one, Target(("a", "b", "c"))), (one, Target(("a", "b"), task=MULTI_LABEL)),
             (scored, Target(("a", "b")))]  # fmt: skip
    for number, names in enumerate((["a b", "A-B"], ["LABEL_0", "LABEL_1"], ["yes", "no "])):
        folder = write(tmp_path / f"named {number}", "Bert", id2label=dict(enumerate(names)))
        wrong.append((folder, Target(("a b", "no"))))
    for folder, target in wrong:
        assert not model.load_classifier(str(folder), target, 32).head.rows


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


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_answers_are_not_rounded_to_half_precision(family: str, tmp_path: Path) -> None:
    folder = write(tmp_path / family, family)
    target = Target((), task=REGRESSION, low=0.0, high=5.0)
    loaded = model.load_classifier(str(folder), target, 32)
    words = PAIR[0].split()
    texts = [" ".join(words[: n + 1]) for n in range(len(words))]
    inputs = loaded.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        answers = loaded.model.eval()(**inputs).logits
    assert answers.dtype == torch.float32
    assert not torch.equal(answers, answers.bfloat16().float())
