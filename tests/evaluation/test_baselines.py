"""What a model must beat: scored as independent code would, and without touching the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score

from finetune.config import BUNDLED_CHECKPOINT
from finetune.data import checkpoints
from finetune.evaluation import baselines
from finetune.evaluation.baselines import COSINE, TFIDF
from finetune.metrics import classification
from finetune.tasks.single_label import SingleLabel
from tests.support import toys


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_the_threshold_is_the_one_most_often_right(size: int, positive: int) -> None:
    draw = np.random.default_rng(0)
    similarity = draw.normal(0, 1, size).astype(np.float32).round(1)
    labels = draw.integers(0, 2, size)
    answers = classification.predict_by_threshold(similarity, labels, similarity, positive)
    best = max(
        accuracy_score(labels, np.where(similarity >= edge, side, 1 - side))
        for edge in [*similarity, np.inf]
        for side in (0, 1)  # the positive class may be that of unlike sentences
    )
    assert accuracy_score(labels, answers) == pytest.approx(best)


def test_words_in_common_are_learned_and_of_many_pairs_the_same_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The toy pairs differ by one contrary verb, which TF-IDF sees."""
    pairs = toys.load(toys.write_pairs(tmp_path, train=400, validation=100))
    scores = baselines.measure_baselines(pairs, "some/checkpoint-that-is-not-there", 32)
    assert set(scores) == {TFIDF}
    assert set(scores[TFIDF]) == {"accuracy", "f1", "examples"}
    assert scores[TFIDF]["accuracy"] > 0.9
    assert scores[TFIDF]["examples"] == 100
    monkeypatch.setattr(baselines, "MOST", 50)
    first, second = (baselines.measure_baselines(pairs, "none/none", 32) for _ in range(2))
    assert first == second
    assert first[TFIDF]["examples"] == 50


@pytest.mark.slow
def test_the_bundled_encoder_is_measured_as_it_comes(tmp_path: Path) -> None:
    pairs = toys.load(toys.write_pairs(tmp_path, train=40, validation=16))
    before = torch.get_rng_state()
    scores = baselines.measure_baselines(pairs, BUNDLED_CHECKPOINT, 32)
    assert torch.equal(torch.get_rng_state(), before), "the run's random numbers were touched"
    assert set(scores) == {TFIDF, COSINE}
    again = baselines.measure_baselines(pairs, BUNDLED_CHECKPOINT, 32, stop=lambda: True)
    assert again == scores  # they are kept
    stopped = baselines.measure_baselines(pairs, BUNDLED_CHECKPOINT, 16, stop=lambda: True)
    assert set(stopped) == {TFIDF}  # and this one is none


@pytest.mark.parametrize(
    ("cosine", "constant", "words"),
    [
        ({"accuracy": 0.96, "f1": 0.2}, {"accuracy": 0.6}, "accuracy 0.960"),
        ({"accuracy": 0.94, "f1": 0.951}, {"f1": 0.8}, "F1 0.951"),
        ({"accuracy": 0.94, "f1": 0.949}, {}, ""),
        ({"accuracy": 0.9, "f1": 0.96}, {"f1": 0.96}, ""),  # no more than one answer for all
    ],
)
def test_where_the_similarity_alone_is_enough_it_is_said(
    cosine: dict[str, float], constant: dict[str, float], words: str
) -> None:
    measured = {COSINE: cosine, SingleLabel.constant: constant, TFIDF: {"f1": 1.0}}
    text = baselines.why_no_training(measured, SingleLabel(), 2)
    assert bool(text) == bool(words)
    assert words in text


@pytest.mark.slow
def test_similarities_are_those_of_the_formula() -> None:
    """Mean of the token states, length 1, as the checkpoint's `modules.json` says."""
    from transformers import AutoModel, AutoTokenizer

    folder = checkpoints.bundled_folder()
    first, second = ["the cat sat .", "a dog"], ["a cat was sitting on the mat .", "the bird flies"]
    cosine = baselines.cosine_similarity(folder, first, second, 32, False, lambda: False)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    with torch.inference_mode():
        vectors = [
            model.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
            for text in first + second
        ]
    expected = torch.cosine_similarity(torch.stack(vectors[:2]), torch.stack(vectors[2:]))
    assert cosine is not None
    np.testing.assert_allclose(cosine, expected, atol=1e-5)
