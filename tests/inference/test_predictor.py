from __future__ import annotations

import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finetune.config import RunConfig
from finetune.data import catalog, checkpoints
from finetune.errors import DataError, ModelError, StoreError
from finetune.inference import decision_rule, file_request, files, model_cache
from finetune.inference.decision_rule import PredictOptions
from finetune.inference.model_cache import ModelCache
from finetune.inference.predictor import MAX_CHARACTERS, Prediction, Predictor
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.training import model
from finetune.ui.model_chooser import Models
from tests.support import toys
from tests.support.hub import LoopbackHub


@pytest.fixture
def predictor(toy_checkpoint: Path) -> Predictor:
    return Predictor(toy_checkpoint, max_length=32, precision="fp32")


def got(shelf: ModelCache, folder: Path) -> Predictor:
    with shelf.using(folder, 32) as found:
        return found


def test_the_answer_is_the_models(predictor: Predictor, toy_checkpoint: Path) -> None:
    one, two = "the cat sees a dog .", "a cat sees the dog ."
    answer = predictor(one, two)
    tokenizer = AutoTokenizer.from_pretrained(toy_checkpoint)
    classifier = AutoModelForSequenceClassification.from_pretrained(toy_checkpoint).eval()
    with torch.no_grad():
        logits = classifier(**tokenizer(one, two, return_tensors="pt")).logits[0]
    assert answer.logits == pytest.approx(logits.tolist(), abs=1e-5)
    assert list(answer.probabilities.values()) == pytest.approx(
        logits.softmax(-1).tolist(), abs=1e-5
    )
    assert sum(answer.probabilities.values()) == pytest.approx(1.0)
    assert answer.label == ["not_equivalent", "equivalent"][int(logits.argmax())]
    assert (answer.tokens, answer.cut) == (15, 0)


@pytest.mark.parametrize("text", ["", "  \n\t ", "\0\0", None, 7, "x" * (MAX_CHARACTERS + 1)])
def test_what_is_no_sentence_is_refused_by_name(predictor: Predictor, text: Any) -> None:
    with pytest.raises(DataError, match="sentence2"):
        predictor("cat", text)


def test_a_model_is_loaded_once_and_again_when_it_changed(
    toy_checkpoint: Path, still_checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "best"
    shutil.copytree(toy_checkpoint, folder)
    shelf = ModelCache(keep=1)
    first = got(shelf, folder)
    assert got(shelf, folder) is first
    got(shelf, still_checkpoint)
    assert got(shelf, folder) is not first  # there was room for one
    held = got(shelf, folder)
    (folder / "model.safetensors").touch()
    assert got(shelf, folder) is not held
    shutil.rmtree(folder)
    with pytest.raises(ModelError, match="no saved model"):
        got(shelf, folder)


def test_an_explanation_leaves_the_next_model_its_threads(toy_checkpoint: Path) -> None:
    there_are = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        shelf = ModelCache()
        with shelf.using(toy_checkpoint, 32) as held:
            held.explain("the cat sees a dog .", "a cat sees the dog .")
        shelf.free()
        with ThreadPoolExecutor(1) as caller:
            assert caller.submit(got, shelf, toy_checkpoint).result().scorer.threads == 3
    finally:
        torch.set_num_threads(there_are)


def test_a_model_in_use_is_not_taken_away(
    toy_checkpoint: Path, still_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for one, and two are asked in turn by several at once."""
    pair, shelf = ("the cat sees a dog .", "a cat sees the dog ."), ModelCache(keep=1)
    freed: list[Predictor] = []
    real = Predictor.free

    def free(self: Predictor) -> None:
        freed.append(self)
        real(self)

    monkeypatch.setattr(Predictor, "free", free)
    with shelf.using(toy_checkpoint, 32) as held:
        before = held(*pair)
        other = got(shelf, still_checkpoint)
        shelf.free()
        assert freed == [other]
        assert held(*pair).logits == pytest.approx(before.logits)
        assert held.flips(*pair)[1]
    assert freed == [other, held]

    def client(which: int) -> None:
        for turn in range(4):
            folder = (toy_checkpoint, still_checkpoint)[(which + turn) % 2]
            with shelf.using(folder, 32) as found:
                assert found(*pair).label
                assert found.flips(*pair)[1]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(client, range(4)))
    shelf.free()
    assert len(freed) == len(set(map(id, freed)))  # each once


def test_both_orders_are_asked_and_averaged_when_wanted(predictor: Predictor) -> None:
    one, two = "the cat sees a dog .", "a owl fears the bee ."
    plain, back = predictor(one, two), predictor(two, one)
    assert plain.other == pytest.approx(back.probabilities, abs=1e-5)
    assert plain.other_label == back.label
    assert plain.agrees == (plain.label == back.label)
    both = predictor(one, two, PredictOptions(both_orders=True))
    for name, value in both.probabilities.items():
        mean = (plain.probabilities[name] + back.probabilities[name]) / 2
        assert value == pytest.approx(mean, abs=1e-5)
    assert both.agrees


def test_a_saved_threshold_and_temperature_count_when_asked_for(
    toy_checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "best"
    shutil.copytree(toy_checkpoint, folder)
    predictor = Predictor(folder, 32, precision="fp32")
    pair = ("the cat sees a dog .", "a cat sees the dog .")
    plain = predictor(*pair)
    level = plain.probabilities["equivalent"]
    for threshold, label in ((level - 0.01, "equivalent"), (level + 0.01, "not_equivalent")):
        decision_rule.write_rule(
            folder, threshold=threshold, temperature=4.0, positive="equivalent"
        )
        assert predictor(*pair).label == plain.label
        assert predictor(*pair, PredictOptions(threshold=True)).label == label
        both = predictor(*pair, PredictOptions(threshold=True, calibrated=True))
        assert both.label == label  # a temperature changes no answer
        assert both.probabilities["equivalent"] != pytest.approx(level, abs=1e-4)


def test_why_and_what_would_change_it(predictor: Predictor) -> None:
    label, found = predictor.explain("the cat sees a dog .", "a cat sees the dog .")
    assert label in predictor.labels
    assert [word.text for word in found.words if word.sentence == 1] == [
        "the", "cat", "sees", "a", "dog", ".",
    ]  # fmt: skip
    flips, tried = predictor.flips("the cat sees a dog .", "a cat sees the dog .")
    assert tried > 5
    answer = predictor("the cat sees a dog .", "a cat sees the dog .").label
    assert all(one.label != answer for one in flips)


def lively(weights: dict[str, torch.Tensor]) -> None:
    """Larger ones: with a random model's, all pairs get nearly the same logits."""
    for one in weights.values():
        if one.dim() > 1:
            one.mul_(8)


@pytest.mark.parametrize("both", [False, True])
def test_why_explains_the_answer_that_is_shown(
    toy_checkpoint: Path, tmp_path: Path, both: bool
) -> None:
    """A threshold just below the probability turns the answer against the logits."""
    folder, pair = tmp_path / "best", ("the ant finds a owl .", "a ant loses the owl .")
    shutil.copytree(toy_checkpoint, folder)
    toys.overwrite(folder, lively)
    predictor = Predictor(folder, 32, precision="fp32")
    plain = predictor(*pair, PredictOptions(both_orders=both))
    assert plain.label == "not_equivalent"
    threshold = plain.probabilities["equivalent"] - 1e-4
    decision_rule.write_rule(folder, threshold=threshold, temperature=2.0, positive="equivalent")
    way = PredictOptions(both_orders=both, threshold=True, calibrated=True)
    answer = predictor(*pair, way)
    assert answer.label == "equivalent"
    label, found = predictor.explain(*pair, way)
    assert label == answer.label == predictor.labels[found.label_index]
    assert found.complete
    other = predictor.explain(*pair)[1]
    assert found.target == pytest.approx(-other.target, abs=1e-4)  # of two classes
    flips, tried = predictor.flips(*pair, way)
    assert 0 < len(flips) < tried
    for one in flips:
        edited = predictor(one.edit.sentence1, one.edit.sentence2 or "", way)
        assert (edited.label, one.label) == (plain.label, plain.label)
        assert one.probability == pytest.approx(edited.probabilities[one.label], abs=1e-5)


def test_a_damaged_model_is_said(toy_checkpoint: Path, tmp_path: Path) -> None:
    for name, damage in (("cut", lambda data: data[:1000]), ("odd", lambda data: b"\xff" * 99)):
        folder = tmp_path / name
        shutil.copytree(toy_checkpoint, folder)
        weights = folder / "model.safetensors"
        weights.write_bytes(damage(weights.read_bytes()))
        with pytest.raises(ModelError, match="cannot be loaded"):
            got(ModelCache(), folder)


def damage(key: str, part: slice, weights: dict[str, torch.Tensor]) -> None:
    weights[key][part].fill_(math.nan)


def test_a_model_of_no_numbers_is_said(toy_checkpoint: Path, tmp_path: Path) -> None:
    """Some of its words are damaged, or its head, which every answer needs."""
    for name, part in (("some", slice(9, 12)), ("all", slice(None))):
        shutil.copytree(toy_checkpoint, tmp_path / name)
        key = "bert.embeddings.word_embeddings.weight" if name == "some" else "classifier.weight"
        toys.overwrite(tmp_path / name, partial(damage, key, part))
    odd = " ".join(toys.WORDS)
    with pytest.raises(ModelError, match="numbers that are none: its file is damaged"):
        got(ModelCache(), tmp_path / "all")
    predictor = got(ModelCache(), tmp_path / "some")
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(predictor, odd if n % 2 else "the", "the") for n in range(8)]
    for n, one in enumerate(asked):
        assert (one.exception() is not None) == bool(n % 2)
    for ask in (predictor, predictor.explain, predictor.flips):
        with pytest.raises(ModelError, match="numbers that are none: its file is damaged"):
            ask(odd, "the")


def test_a_model_that_does_not_fit_is_said(
    toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1000))
    with pytest.raises(ModelError, match=r"weights take .* GB of memory are free"):
        got(ModelCache(), toy_checkpoint)


@pytest.mark.parametrize(
    "text",
    ['{"of_a_later_version": 1, "max_length": 24}', "{", "[" * 100_000, '{"max_length": "long"}',
     '{"max_length": 24, "seed": [], "learning_rate": -1}'],
    ids=["unknown key", "damaged", "nested", "odd length", "odd values"],
)  # fmt: skip
def test_a_model_answers_whatever_is_in_its_runs_configuration(
    store: RunStore, toy_checkpoint: Path, tmp_path: Path, text: str
) -> None:
    """Page, endpoint and file alike: what it reads goes with the model."""
    run = store.create(RunConfig(checkpoint=str(toy_checkpoint), max_length=24))
    tokenizer, classifier = model.load_classifier(str(toy_checkpoint), ["no", "yes"], 24)
    model.save_model(classifier, tokenizer, run.best)
    before = ask(store, run)
    assert (before.tokens, before.cut) == (24, 29)
    (run.folder / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(StoreError, match=r"config\.json of run"):
        run.config()
    after = ask(store, run)
    assert after.tokens == 24
    assert after.logits == pytest.approx(before.logits)
    rows = tmp_path / "rows.csv"
    rows.write_text(f"sentence1,sentence2\n{LONG},the cat\n", encoding="utf-8")
    asked = file_request.PredictionRequest(run.id, rows.name, "sentence1", "sentence2")
    report, whole = files.predict_file(run, asked, rows, tmp_path / "judged.csv")
    assert (whole, report["rows"], report["errors"]) == (True, 1, 0)


def test_an_earlier_versions_model_without_its_configuration_reads_what_it_can(
    store: RunStore, toy_checkpoint: Path
) -> None:
    """Its tokenizer does not say how it was trained."""
    run = store.create(RunConfig(checkpoint=str(toy_checkpoint), max_length=24))
    shutil.copytree(toy_checkpoint, run.best)
    assert checkpoints.length_of(run.folder) == 24
    (run.folder / "config.json").write_text("{", encoding="utf-8")
    assert checkpoints.length_of(run.folder) == 64
    (run.best / "config.json").write_text('{"model_type": "t5"}', encoding="utf-8")
    assert checkpoints.length_of(run.folder) == 512


LONG = "the cat sees a dog . " * 8


def ask(store: RunStore, run: Run) -> Prediction:
    with Models(store).using(store, run.id) as found:
        return found(LONG, "the cat")


def test_classifiers_of_the_hub_are_checked_before_they_are_fetched(
    hub: LoopbackHub, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_repo("ada/good", files=toy_checkpoint)
    folder, max_length = model_cache.fetch_hub_model("ada/good", anonymous=True)
    assert max_length == 64
    assert Predictor(folder, max_length, None)("the cat").other is None
    config = {"architectures": ["BertModel"]}
    hub.add_repo("ada/encoder", files={"config.json": json.dumps(config).encode(),
                                       "model.safetensors": b"x"})  # fmt: skip
    with pytest.raises(ModelError, match="is no sequence classifier"):
        model_cache.fetch_hub_model("ada/encoder", anonymous=True)
    # What comes with the weights counts too, and what is not fetched does not.
    monkeypatch.setattr(model_cache, "MOST_OF_HUB", 1_000_000)
    files = {path.name: path.read_bytes() for path in toy_checkpoint.iterdir()}
    assert sum(map(len, files.values())) < 1_000_000
    hub.add_repo("ada/wordy", files=files | {"vocab.txt": b"word " * 200_000})
    with pytest.raises(ModelError, match=r"ada/wordy has 0\.0 GB; a visitor may load"):
        model_cache.fetch_hub_model("ada/wordy", anonymous=True)
    assert model_cache.fetch_hub_model("ada/wordy", anonymous=False)[1] == 64
    known = {"architectures": ["RobertaForSequenceClassification"], "model_type": "roberta",
             "max_position_embeddings": 514}  # fmt: skip
    hub.add_repo("ada/roberta", files={"config.json": json.dumps(known).encode(),
                                       "model.safetensors": b"x"})  # fmt: skip
    assert model_cache.fetch_hub_model("ada/roberta", anonymous=True)[1] == 512
    hub.add_repo("ada/more", files=files | {"more/vocab.txt": b"word " * 200_000})
    assert model_cache.fetch_hub_model("ada/more", anonymous=True)[1] == 64
    hub.add_repo("ada/pickle", files={"pytorch_model.bin": b"x", "config.json": b"{}"})
    with pytest.raises(ModelError, match="no safetensors weights"):
        model_cache.fetch_hub_model("ada/pickle", anonymous=True)
    with pytest.raises(ModelError, match="no model 'ada/none' on the Hub, or it is private"):
        model_cache.fetch_hub_model("ada/none", anonymous=True)
    assert not any(token for token in hub.tokens_seen)
    hub.add_repo("ada/locked", files=files, gated=True)
    monkeypatch.setenv("HF_TOKEN", "hub-token-of-ada")
    assert (
        model_cache.fetch_hub_model("ada/locked", anonymous=False)[1] == 64
    )  # and is in the cache now
    with pytest.raises(ModelError, match="ada/locked is gated"):
        model_cache.fetch_hub_model("ada/locked", anonymous=True)
    for name in ("../x", "/etc/passwd", "a/b/c", "a b/c", 7, None, "x"):
        assert not catalog.is_hub_id(name)


def test_the_app_frees_its_models_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import app

    released: list[bool] = []
    monkeypatch.setattr(model_cache, "release_models", lambda: released.append(True))
    app.release()
    assert released == [True]
