"""Single pairs answered, explained and edited; cached models; classifiers of the Hub. Their scorer
gives the plain model's logits, in the given order, from any thread."""

import itertools
import json
import math
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import app
from finetune.errors import DataError, ModelError
from finetune.inference import decision_rule, quick_layers
from finetune.inference.predictor import MAX_CHARACTERS, MicroBatcher, ModelCache, Predictor
from finetune.inference.scorer import Scorer
from finetune.tasks.base import DecisionRule, PredictOptions, SureRule
from finetune.training import cuda_graphs, layers
from tests.support import toys
from tests.support.families import FAMILIES, lively, write
from tests.support.tape import TapeRecorder

PAIR = ("the cat sees a dog .", "a cat sees the dog .")


@pytest.fixture(scope="module")
def predictor(toy_checkpoint):
    return Predictor(toy_checkpoint, max_length=32, precision="fp32")


@pytest.fixture
def best(toy_checkpoint, tmp_path):
    """A copy of the toy model whose weights or rule a test changes."""
    return Path(shutil.copytree(toy_checkpoint, tmp_path / "best"))


def load(cache, folder):
    with cache.using(folder, 32) as predictor:
        return predictor


def test_the_answer_is_the_models(predictor, toy_checkpoint):
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


def test_a_pair_is_decided_by_the_bound_kept_with_the_model(best):
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
def test_what_is_no_sentence_is_refused_by_name(predictor, text):
    with pytest.raises(DataError, match="sentence2"):
        predictor("cat", text)


def test_a_model_is_loaded_once_and_again_when_it_changed(best, still_checkpoint):
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


def test_a_model_in_use_is_not_taken_away(toy_checkpoint, still_checkpoint):
    """The cache has room for one model, and several threads request two in turn."""
    cache = ModelCache(keep=1)
    with cache.using(toy_checkpoint, 32) as held:
        before = held(*PAIR)
        other = weakref.ref(load(cache, still_checkpoint).scorer)
        load(cache, toy_checkpoint)
        assert other() is None
        assert held(*PAIR).logits == pytest.approx(before.logits)
    scorer = weakref.ref(held.scorer)
    del held
    assert scorer() is None

    def ask(client):
        for turn in range(2):
            folder = (toy_checkpoint, still_checkpoint)[(client + turn) % 2]
            with cache.using(folder, 32) as predictor:
                assert predictor(*PAIR).label
                assert predictor.flips(*PAIR)[1]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))


def test_both_orders_are_asked_and_averaged_when_wanted(predictor):
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
def test_why_and_what_would_change_it_are_of_the_answer_that_is_shown(best, both):
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


def test_a_damaged_model_is_said_to_those_who_get_no_numbers(best, monkeypatch):
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


def test_a_rule_is_kept_with_the_model_and_the_model_loads_as_before(best):
    assert decision_rule.read_rule(best) == DecisionRule()
    decision_rule.write_rule(best, threshold=0.43, positive="equivalent")
    decision_rule.write_rule(best, temperature=1.5)
    assert decision_rule.read_rule(best) == DecisionRule(0.43, 1.5, "equivalent")
    AutoModelForSequenceClassification.from_pretrained(best).save_pretrained(best)
    assert decision_rule.read_rule(best).threshold == 0.43
    decision_rule.write_rule(best, threshold=None, temperature=None, positive="")
    assert "finetune" not in json.loads((best / "config.json").read_text())


LONG = "the cat sees a dog . " * 6
PAIRS = [(one, two) for one, two, _ in toys.rows(40)] + [(LONG, "a dog"), ("cat", LONG), ("a", "b")]
FIRST, SECOND = ([pair[at] for pair in PAIRS] for at in (0, 1))
# Of a model of the Hub pairs and single sentences may be asked at once, by two people.
MIXED = [(one, None if at % 3 == 0 else two) for at, (one, two) in enumerate(PAIRS)]


def plain(folder, rows):
    """Logits of each row alone, by the model that `from_pretrained` loads."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    classifier = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    logits = []
    with torch.no_grad():
        for texts in rows:
            inputs = tokenizer(*texts, truncation=True, max_length=32, return_tensors="pt")
            logits.append(classifier(**inputs).logits[0].numpy())
    return np.array(logits)


@pytest.fixture(scope="module")
def checkpoint(toy_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scoring") / "toy"
    return lively(Path(shutil.copytree(toy_checkpoint, folder)))


@pytest.fixture(scope="module")
def expected(checkpoint):
    return plain(checkpoint, list(PAIRS))


@pytest.fixture
def scorer(checkpoint):
    scorer = Scorer(checkpoint, 32, precision="fp32", threads=2)
    yield scorer
    scorer.free()


@pytest.fixture
def batcher(scorer):
    batcher = MicroBatcher(scorer)
    yield batcher
    batcher.close()


def is_optimized(scorer):
    """True if the model's own layers were replaced."""
    return any(type(each).__module__ == quick_layers.__name__ for each in scorer._path.layers)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_scores_as_its_plain_model_in_the_order_given(family, tmp_path, monkeypatch):
    monkeypatch.setattr(Scorer, "_pair_seconds", lambda self, threads: [1.0])
    folder = lively(write(tmp_path / family, family))
    logits = plain(folder, list(PAIRS))
    assert logits.std(axis=0).max() > 0.01
    optimized = family in {"Bert", "Roberta", "XLMRoberta", "Electra", "DistilBert"}
    tolerances = {"fp32": 1e-4, "bf16": 0.05 * np.abs(logits).max()}
    for precision, tolerance in tolerances.items():
        scorer = Scorer(folder, 32, precision, threads=2)
        assert np.abs(scorer.scores(FIRST, SECOND) - logits).max() < tolerance
        assert is_optimized(scorer) == optimized


def test_of_pairs_and_single_sentences_each_is_read_as_what_it_is(checkpoint, scorer, batcher):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    expected = plain(checkpoint, [tuple(filter(None, row)) for row in MIXED])
    whole = [len(tokenizer(*filter(None, row)).input_ids) for row in MIXED]
    together = [future.result(30) for future in [batcher.submit(*row) for row in MIXED]]
    for blocks in (list(scorer.stream(MIXED, window=10)), together):
        logits, tokens, cut = (np.concatenate(part) for part in zip(*blocks, strict=True))
        assert np.abs(logits - expected).max() < 1e-5
        assert tokens.max() == 32
        assert (tokens + cut).tolist() == whole


def test_a_stream_is_in_order_and_reads_two_windows_ahead_at_most(scorer, expected):
    read, taken = itertools.count(), 0
    endless = (PAIRS[next(read) % len(PAIRS)] for _ in itertools.repeat(0))
    for block in itertools.islice(scorer.stream(endless, window=8), 20):
        for row in block.logits:
            assert row == pytest.approx(expected[taken % len(PAIRS)], abs=1e-5)
            taken += 1
    assert taken == 160
    assert next(read) - taken <= 8


def test_layers_that_answer_otherwise_are_not_used(checkpoint, expected, monkeypatch):
    """For example those of a family that uses parts with BERT's names differently."""
    attention_bias = layers.attention_bias
    monkeypatch.setattr(layers, "attention_bias", lambda *args: 1e-39 * attention_bias(*args))
    scorer = Scorer(checkpoint, 32, "bf16")
    assert not is_optimized(scorer)
    assert np.abs(scorer.scores(FIRST, SECOND) - expected).max() < 0.1


def test_fifty_ask_together_and_each_gets_its_own(scorer, batcher, expected):
    def ask(client):
        for turn in range(3):
            rows = [(client + 17 * turn + at) % len(PAIRS) for at in range(3)]
            answer = batcher.submit(*PAIRS[rows[0]]).result(60)
            assert answer.logits[0] == pytest.approx(expected[rows[0]], abs=1e-5)
            logits = scorer.scores([FIRST[at] for at in rows], [SECOND[at] for at in rows])
            assert np.abs(logits - expected[rows]).max() < 1e-5

    with ThreadPoolExecutor(50) as pool:
        assert len(list(pool.map(ask, range(50)))) == 50
    last = batcher.submit("cat", "dog")
    batcher.close()
    assert len(last.result(0).tokens) == 1  # what was asked before the close is answered
    with pytest.raises(ModelError, match="not loaded any more"):
        batcher.submit("cat", "dog")


def test_small_batches_are_recorded_and_give_the_same_logits(checkpoint, expected, monkeypatch):
    """As on a GPU, but of operations of the processor: shapes are rounded up, and recorded when
    they are seen again."""
    recorder = TapeRecorder()
    monkeypatch.setattr(cuda_graphs, "recorder_of", lambda device: recorder)
    monkeypatch.setattr(quick_layers, "build_onnx", lambda model, threads: [])
    scorer = Scorer(checkpoint, 32, "fp32", threads=1)
    for count in (1, 2, 3, len(PAIRS), 3, len(PAIRS), 1, 4):
        logits = scorer.scores(FIRST[:count], SECOND[:count])
        np.testing.assert_allclose(logits, expected[:count], atol=1e-4)
    assert recorder.replayed >= recorder.recorded >= 3
    shapes = recorder.recorded
    for _ in range(2):
        scorer.scores(FIRST[:3], SECOND[:3])
    assert recorder.recorded == shapes
    scorer.free()


def test_a_training_run_that_begins_gets_the_memory_of_loaded_models(toy_checkpoint, monkeypatch):
    scorer = weakref.ref(load(ModelCache(), toy_checkpoint).scorer)
    app.release_models()  # as the scheduler does, also without a GPU
    assert scorer() is not None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    app.release_models()
    assert scorer() is None
