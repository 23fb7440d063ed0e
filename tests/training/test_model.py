"""Checkpoints are loaded, refused and saved; a classifier's own output layer is kept or not."""

import contextlib
import hashlib
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from finetune import owners
from finetune.config import BUNDLED_CHECKPOINT
from finetune.data import checkpoints
from finetune.data.sources import LABELS
from finetune.environment import hub_connection
from finetune.errors import ConfigError, FinetuneError, ModelError
from finetune.runs.run import Run
from finetune.tasks.base import MULTI_LABEL, REGRESSION, Target
from finetune.training import model
from tests.support import families, toys
from tests.support.families import write
from tests.support.hub import TOKEN

TARGET = Target(tuple(LABELS))

INVALID = {"X-Error-Message": "Invalid credentials in Authorization header"}


def test_the_bundled_checkpoint_is_the_official_one(monkeypatch):
    tokenizer, classifier, _ = model.load_classifier(BUNDLED_CHECKPOINT, TARGET, 128)
    assert classifier.config.id2label == dict(enumerate(LABELS))
    assert classifier.num_parameters() > 22_000_000
    assert classifier.dtype == torch.float32
    assert len(tokenizer("a", "b")["input_ids"]) == 5
    monkeypatch.setattr(checkpoints, "BUNDLED_SHA256", "0" * 64)
    with pytest.raises(ModelError, match="not the official 000000000000"):
        checkpoints.bundled_folder()


@pytest.mark.parametrize(
    ("fault", "fact", "remedy"),
    [
        ((403, {"X-Error-Code": "GatedRepo"}), "is gated", "Accept its terms at http"),
        ((401, INVALID), "does not accept this machine's token", "Sign in an"),
        (
            (401, {"X-Error-Code": "RepoNotFound"}),
            "The checkpoint {} is not on the Hub",
            "Check its name",
        ),
        ((429, {"Retry-After": "600"}), "the Hub asks for a pause of 600 seconds", "after it"),
        ((503, {}), "the Hub refused with status 503", "Try again later"),
        ("cut", "The checkpoint {} could not be read", "Check the network"),
        ("pickle", "no safetensors weights", "save it as safetensors where you trust it"),
    ],
)
def test_why_a_checkpoint_is_not_to_be_had(hub, toy_checkpoint, monkeypatch, fault, fact, remedy):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    name = f"ada/why-{hashlib.sha256(remedy.encode()).hexdigest()[:8]}"  # is in no cache
    repo = hub.add_repo(name, files=toy_checkpoint)
    if fault == "pickle":
        repo.files["pytorch_model.bin"] = repo.files.pop("model.safetensors")
    elif fault == "cut":
        hub.fail("GET", "/lfs/", 0, times=99, cut=True, after=1000)
    else:
        hub.fail("", "/resolve/", fault[0], times=99, headers=fault[1])
    with pytest.raises(ModelError, match=fact.format(name)) as caught:
        model.load_classifier(name, TARGET, 32)
    assert remedy in caught.value.remedy


def test_visitors_get_no_checkpoint_that_the_hub_denies_them(hub, toy_checkpoint, monkeypatch):
    """The libraries answer from their cache where the Hub refuses."""
    names = ("ada/hidden", "ada/locked-up", "ada/public")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name in names:
        private, gated = name == "ada/hidden", name == "ada/locked-up"
        hub.add_repo(name, files=toy_checkpoint, private=private, gated=gated)
        model.load_classifier(name, TARGET, 32)
        assert checkpoints.local_folder(name) is not None
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    for name in names:
        assert checkpoints.local_folder(name) is None
        with pytest.raises(ConfigError, match="is not offered in this shared app; choose one of"):
            model.load_classifier(name, TARGET, 32)
    monkeypatch.setenv(owners.ANY_CHECKPOINT, "1")
    assert [checkpoints.local_folder(name) is not None for name in names] == [False, False, True]
    for name, fact in (
        ("ada/hidden", "The checkpoint ada/hidden is not on the Hub, or it is private"),
        ("ada/locked-up", "ada/locked-up is gated"),
        (str(toy_checkpoint), "is on this machine's disk"),
        ("ada/of/three", "is not a name on the Hub"),
    ):
        with pytest.raises(FinetuneError, match=fact):
            model.load_classifier(name, TARGET, 32)
    model.load_classifier("ada/public", TARGET, 32)
    monkeypatch.setattr(hub_connection, "hub_is_reachable", lambda: False)
    with pytest.raises(ModelError, match="does not answer"):
        model.load_classifier("ada/public", TARGET, 32)


class Crash(BaseException):
    """The process ends here."""


def test_a_crash_at_any_time_of_a_save_leaves_a_whole_model(toy_checkpoint, tmp_path, monkeypatch):
    """Cut off before each call that changes what is on the disk, and after the last."""
    tokenizer, classifier, _ = model.load_classifier(str(toy_checkpoint), TARGET, 32)
    calls, limit = 0, 10**9

    def counting(real):
        def call(*args, **options):
            nonlocal calls
            calls += 1
            if calls > limit:
                raise Crash
            return real(*args, **options)

        return call

    for owner, name in ((Path, "mkdir"), (Path, "rename"), (os, "fsync"), (shutil, "rmtree")):
        monkeypatch.setattr(owner, name, counting(getattr(owner, name)))
    run = Run(tmp_path / "run")
    os.mkdir(run.folder)
    best = run.folder / "best"
    model.save_model(classifier, tokenizer, best, step=1)
    calls = 0
    model.save_model(classifier, tokenizer, best, step=2)
    total = calls
    steps = []
    assert total > 8
    for limit in range(total + 1):
        calls = 0
        with contextlib.suppress(Crash):
            model.save_model(classifier, tokenizer, best, step=2 + limit)
        calls = -(10**9)
        assert run.has_model()
        model.load_saved_model(run.best)
        steps.append(run.best_step() or 0)
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (2, 2 + total)  # the former, the new one
    assert [path.name for path in run.folder.iterdir()] == ["best"]
    with pytest.raises(FileNotFoundError):  # a deleted run's folder is not made again
        model.save_model(classifier, tokenizer, tmp_path / "gone" / "best")


def test_a_damaged_model_is_said(toy_checkpoint, tmp_path):
    best = tmp_path / "best"
    with pytest.raises(ModelError, match="no saved model"):
        model.load_saved_model(best)
    toys.copy_model(toy_checkpoint, best)
    toys.overwrite(best, lambda weights: weights.pop("classifier.weight"))
    with pytest.raises(ModelError, match=r"no weights for classifier\.weight"):
        model.load_saved_model(best)
    toys.overwrite(best, lambda weights: weights.update({"classifier.weight": torch.ones(7, 32)}))
    with pytest.raises(ModelError, match="cannot be loaded"):
        model.load_saved_model(best)
    # One that is to be tuned gets a new head in any case.
    assert model.load_classifier(str(best), Target(("a", "b", "c")), 32)[1].num_labels == 3


NAMES = ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"]
PAIR = ("the cat sees a dog .", "a cat sees the dog .")


# Two say at once what breaks in most. Others have RoBERTa's head, or GPT-2's.
FEW = ["Bert", "GPT2"] + [
    pytest.param(family, marks=pytest.mark.long)
    for family in ("Albert", "DebertaV2", "DistilBert", "ModernBert", "Roberta")
]


@pytest.fixture(params=FEW)
def classifier(request, tmp_path):
    """A checkpoint of a family that answers one of three classes, always the first."""
    folder = write(tmp_path / request.param, request.param)
    config = AutoConfig.from_pretrained(folder)
    config.id2label, config.label2id = dict(enumerate(NAMES)), {n: i for i, n in enumerate(NAMES)}
    trained = AutoModelForSequenceClassification.from_config(config)
    trained.save_pretrained(folder)
    return folder


def logits(folder, labels):
    """The answer of the loaded model, the model and its head."""
    tokenizer, loaded, head = model.load_classifier(str(folder), Target(tuple(labels)), 32)
    with torch.no_grad():
        return loaded.eval()(**tokenizer(*PAIR, return_tensors="pt")).logits[0], loaded, head


def own_logits(folder):
    """The answer of the checkpoint as it is."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    own = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    own.config.pad_token_id = tokenizer.pad_token_id
    with torch.no_grad():
        return own(**tokenizer(*PAIR, return_tensors="pt")).logits[0]


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        (["contradiction", "entailment", "neutral"], "in another order"),
        (["Entailment", "neutral", "contradiction"], "its output layer is kept."),
        (["contradiction", "entailment"],
         "these classes and others (ENTAILMENT, NEUTRAL, CONTRADICTION)"),
    ],
)  # fmt: skip
def test_answers_keep_their_meaning_where_the_names_agree(classifier, labels, kept):
    expected = dict(zip(NAMES, own_logits(classifier).tolist(), strict=True))
    answer, loaded, head = logits(classifier, labels)
    wanted = [expected[label.upper()] for label in labels]
    assert answer.tolist() == pytest.approx(wanted, abs=1e-5)
    assert loaded.config.id2label == dict(enumerate(labels))
    assert kept in head.text


def test_other_classes_get_a_new_output_layer(classifier):
    """Of as many classes: the library would keep the layer under the new names."""
    _, loaded, head = logits(classifier, ["bad", "fair", "good"])
    own = AutoModelForSequenceClassification.from_pretrained(classifier)
    before = own.get_submodule(head.layer).weight
    after = loaded.get_submodule(head.layer).weight
    assert not torch.allclose(before, after)
    assert after.detach().std().item() == pytest.approx(0.02, rel=0.5)
    assert "other classes (ENTAILMENT, NEUTRAL, CONTRADICTION)" in head.text
    # What lies before the output layer is the checkpoint's.
    name = next(iter(dict(own.base_model.named_parameters())))
    assert torch.equal(own.base_model.get_parameter(name), loaded.base_model.get_parameter(name))
    assert logits(classifier, ["entailment", "unrelated"])[1].config.num_labels == 2


@pytest.fixture(params=FEW)
def reranker(request, tmp_path):
    """A checkpoint of a family with a single logit, as sentence-transformers saves one."""
    folder = write(tmp_path / request.param, request.param, num_labels=1)
    return families.lively(folder)


@pytest.mark.parametrize("positive", [0, 1])
def test_a_single_logit_becomes_that_of_the_positive_class(reranker, positive):
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


def test_a_single_logit_is_stretched_to_a_scale(reranker):
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


def test_what_does_not_agree_with_the_classes_keeps_no_row(tmp_path):
    """A single logit for several classes or labels, or a score; names that are not told apart."""
    one = write(tmp_path / "one", "Bert", num_labels=1)
    scored = write(tmp_path / "scored", "Bert", num_labels=1, problem_type=REGRESSION)
    wrong = [(one, Target(("a", "b", "c"))), (one, Target(("a", "b"), task=MULTI_LABEL)),
             (scored, Target(("a", "b")))]  # fmt: skip
    for number, names in enumerate((["a b", "A-B"], ["LABEL_0", "LABEL_1"], ["yes", "no "])):
        folder = write(tmp_path / f"named {number}", "Bert", id2label=dict(enumerate(names)))
        wrong.append((folder, Target(("a b", "no"))))
    for folder, target in wrong:
        assert not model.load_classifier(str(folder), target, 32)[2].rows


def test_most_of_an_encoder_that_is_missing_is_said(toy_checkpoint, tmp_path):
    """Weights under other names: the library draws new ones and only warns."""
    folder = tmp_path / "toy"
    shutil.copytree(toy_checkpoint, folder)

    def renamed(weights):
        for name in list(weights):
            weights[f"text_{name}"] = weights.pop(name)

    toys.overwrite(folder, renamed)
    with pytest.raises(ModelError, match="has no weights for most of the model"):
        model.load_classifier(str(folder), Target(("a", "b")), 32)


@pytest.mark.parametrize("family", FEW)
def test_answers_are_not_rounded_to_half_precision(family, tmp_path):
    folder = write(tmp_path / family, family)
    target = Target((), task=REGRESSION, low=0.0, high=5.0)
    tokenizer, loaded, _ = model.load_classifier(str(folder), target, 32)
    words = PAIR[0].split()
    texts = [" ".join(words[: n + 1]) for n in range(len(words))]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        answers = loaded.eval()(**inputs).logits
    assert answers.dtype == torch.float32
    assert not torch.equal(answers, answers.bfloat16().float())
