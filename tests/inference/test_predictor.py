"""Single pairs answered, explained and edited; cached models; classifiers of the Hub."""

from __future__ import annotations

import json
import math
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finetune.errors import DataError, ModelError
from finetune.inference import decision_rule
from finetune.inference.predictor import MAX_CHARACTERS, ModelCache, Predictor
from finetune.metrics import calibration
from finetune.tasks.base import DecisionRule, PredictOptions, SureRule, Target
from finetune.tasks.single_label import SingleLabel
from tests.support import toys

PAIR = ("the cat sees a dog .", "a cat sees the dog .")


@pytest.fixture
def predictor(toy_checkpoint: Path) -> Predictor:
    return Predictor(toy_checkpoint, max_length=32, precision="fp32")


@pytest.fixture
def best(toy_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the toy model whose weights or rule a test changes."""
    return Path(shutil.copytree(toy_checkpoint, tmp_path / "best"))


def load(cache: ModelCache, folder: Path) -> Predictor:
    with cache.using(folder, 32) as predictor:
        return predictor


def test_the_answer_is_the_models(predictor: Predictor, toy_checkpoint: Path) -> None:
    answer = predictor(*PAIR)
    tokenizer = AutoTokenizer.from_pretrained(toy_checkpoint)
    classifier = AutoModelForSequenceClassification.from_pretrained(toy_checkpoint).eval()
    with torch.no_grad():
        logits = classifier(**tokenizer(*PAIR, return_tensors="pt")).logits[0]
    assert answer.logits == pytest.approx(logits.tolist(), abs=1e-5)
    shares = list(answer.probabilities.values())
    assert shares == pytest.approx(logits.softmax(-1).tolist(), abs=1e-5)
    assert answer.label == ["not_equivalent", "equivalent"][int(logits.argmax())]
    assert (answer.tokens, answer.cut) == (15, 0)


def test_a_pair_is_decided_by_the_bound_kept_with_the_model(best: Path) -> None:
    predictor = Predictor(best, 32, precision="fp32")
    answer = predictor(*PAIR)
    assert (answer.decision, answer.is_unsure) == ("", False)
    top = max(answer.probabilities.values())
    for above, decision in ((top - 0.01, answer.label), (top + 0.01, "unsure")):
        decision_rule.write_rule(best, sure=SureRule(0.02, 0.95, above))
        for options in (PredictOptions(), PredictOptions(calibrated=True)):
            decided = predictor(*PAIR, options)
            assert (decided.label, decided.decision) == (answer.label, decision)
            assert decided.is_unsure == (decision == "unsure")
        assert predictor(*PAIR, PredictOptions(both_orders=True)).decision == ""


@pytest.mark.parametrize("text", ["", "  \n\t ", "\0\0", None, 7, "x" * (MAX_CHARACTERS + 1)])
def test_what_is_no_sentence_is_refused_by_name(predictor: Predictor, text: Any) -> None:
    with pytest.raises(DataError, match="sentence2"):
        predictor("cat", text)


def test_a_model_is_loaded_once_and_again_when_it_changed(
    best: Path, still_checkpoint: Path
) -> None:
    cache = ModelCache(keep=1)
    first = load(cache, best)
    assert load(cache, best) is first
    load(cache, still_checkpoint)
    second = load(cache, best)
    assert second is not first  # there was room for one
    (best / "model.safetensors").touch()
    assert load(cache, best) is not second
    shutil.rmtree(best)
    with pytest.raises(ModelError, match="no saved model"):
        load(cache, best)


def test_a_model_in_use_is_not_taken_away(toy_checkpoint: Path, still_checkpoint: Path) -> None:
    """The cache has room for one model, and several threads request two in turn."""
    cache = ModelCache(keep=1)
    with cache.using(toy_checkpoint, 32) as held:
        before = held(*PAIR)
        other = weakref.ref(load(cache, still_checkpoint).scorer)
        cache.free()
        assert other() is None
        assert held(*PAIR).logits == pytest.approx(before.logits)
    scorer = weakref.ref(held.scorer)
    del held
    assert scorer() is None

    def ask(client: int) -> None:
        for turn in range(4):
            folder = (toy_checkpoint, still_checkpoint)[(client + turn) % 2]
            with cache.using(folder, 32) as predictor:
                assert predictor(*PAIR).label
                assert predictor.flips(*PAIR)[1]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))


def test_both_orders_are_asked_and_averaged_when_wanted(predictor: Predictor) -> None:
    pair = "the cat sees a dog .", "a owl fears the bee ."
    plain, back = predictor(*pair), predictor(*pair[::-1])
    assert plain.other == pytest.approx(back.probabilities, abs=1e-5)
    assert plain.other_label == back.label
    both = predictor(*pair, PredictOptions(both_orders=True))
    for name, value in both.probabilities.items():
        mean = (plain.probabilities[name] + back.probabilities[name]) / 2
        assert value == pytest.approx(mean, abs=1e-5)
    assert both.other_label == both.label


@pytest.mark.parametrize("both", [False, True])
def test_why_and_what_would_change_it_are_of_the_answer_that_is_shown(
    best: Path, both: bool
) -> None:
    """A threshold just below the probability decides against the logits."""
    pair = ("the ant finds a owl .", "a ant loses the owl .")
    toys.overwrite(best, lambda weights: [w.mul_(8) for w in weights.values() if w.dim() > 1])
    predictor = Predictor(best, 32, precision="fp32")
    unset = PredictOptions(both_orders=both, threshold=False)
    plain = predictor(*pair, unset)
    assert plain.label == "not_equivalent"
    threshold = plain.probabilities["equivalent"] - 1e-4
    decision_rule.write_rule(best, threshold=threshold, temperature=2.0, positive="equivalent")
    assert predictor(*pair, unset).label == plain.label
    options = PredictOptions(both_orders=both, calibrated=True)
    answer = predictor(*pair, options)
    assert answer.label == "equivalent"  # a temperature changes no answer
    assert answer.probabilities["equivalent"] != pytest.approx(threshold, abs=1e-3)
    label, explanation = predictor.explain(*pair, options)
    assert label == answer.label == predictor.labels[explanation.label_index]
    assert [word.text for word in explanation.words if word.sentence == 1] == pair[0].split()
    other = predictor.explain(*pair, PredictOptions(threshold=False))[1]
    assert explanation.target == pytest.approx(-other.target, abs=1e-4)  # of two classes
    flips, tried = predictor.flips(*pair, options)
    assert 0 < len(flips) < tried
    for flip in flips:
        edited = predictor(flip.edit.sentence1, flip.edit.sentence2 or "", options)
        assert (edited.label, flip.label) == (plain.label, plain.label)
        assert flip.probability == pytest.approx(edited.probabilities[flip.label], abs=1e-5)


def test_a_damaged_model_is_said_to_those_who_get_no_numbers(
    best: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only some word embeddings are damaged; simultaneous requests with other words are
    answered."""
    words = "bert.embeddings.word_embeddings.weight"
    toys.overwrite(best, lambda weights: weights[words][9:12].fill_(math.nan))
    predictor, odd = load(ModelCache(), best), " ".join(toys.WORDS)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(predictor, odd if n % 2 else "the", "the") for n in range(8)]
    assert [answer.exception() is not None for answer in answers] == [False, True] * 4
    for ask in (predictor, predictor.explain, predictor.flips):
        with pytest.raises(ModelError, match="are not finite numbers: its file is damaged"):
            ask(odd, "the")
    (best / "model.safetensors").write_bytes(b"\xff" * 99)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(ModelCache(), best)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=10))
    with pytest.raises(ModelError, match=r"weights take .* GB of memory are free"):
        load(ModelCache(), best)


def test_a_rule_is_kept_with_the_model_and_the_model_loads_as_before(best: Path) -> None:
    assert decision_rule.read_rule(best) == DecisionRule()
    decision_rule.write_rule(best, threshold=0.43, positive="equivalent")
    decision_rule.write_rule(best, temperature=1.5)
    assert decision_rule.read_rule(best) == DecisionRule(0.43, 1.5, "equivalent")
    AutoModelForSequenceClassification.from_pretrained(best).save_pretrained(best)
    assert decision_rule.read_rule(best).threshold == 0.43
    decision_rule.write_rule(best, threshold=None, temperature=None, positive="")
    assert "finetune" not in json.loads((best / "config.json").read_text())


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.83])
def test_a_temperature_changes_no_answer_of_a_threshold(threshold: float) -> None:
    logits = np.random.default_rng(0).normal(0, 3, (500, 2)).astype(np.float32)
    plain = calibration.probabilities(logits)[:, 1]
    clear = np.abs(plain - threshold) > 1e-5  # but for rounding at the very edge
    for temperature in (None, 0.5, 2.5):
        rule = DecisionRule(threshold, temperature, "yes")
        shares, answers = SingleLabel().answers(
            logits, Target(("no", "yes")), rule, PredictOptions(False, True, True)
        )
        expected = calibration.probabilities(logits, temperature or 1.0)
        np.testing.assert_array_equal(shares, expected)
        np.testing.assert_array_equal(answers[clear], (plain >= threshold)[clear])
    other = SingleLabel().answers(
        logits, Target(("yes", "no")), rule, PredictOptions(threshold=True)
    )[1]
    assert (other == np.where(1 - plain >= threshold, 0, 1))[clear].mean() > 0.99
