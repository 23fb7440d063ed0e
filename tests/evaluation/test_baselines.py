"""What a model must beat: scored as independent code would, and without touching the run."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score

from finetune.config import BUNDLED_CHECKPOINT
from finetune.data import splits
from finetune.evaluation import baselines
from finetune.evaluation.baselines import COSINE, TFIDF
from tests.support import toys


def test_the_threshold_is_the_one_most_often_right() -> None:
    draw = np.random.default_rng(0)
    for positive in (0, 1):
        for size in (1, 2, 7, 40):
            known = draw.normal(0, 1, size).astype(np.float32).round(1)
            labels = draw.integers(0, 2, size)
            answers = baselines.predict_by_threshold(known, labels, known, positive)
            best = max(
                accuracy_score(labels, np.where(known >= edge, side, 1 - side))
                for edge in [*known, np.inf]
                for side in (0, 1)  # the positive class may be that of unlike sentences
            )
            assert accuracy_score(labels, answers) == pytest.approx(best)


def test_words_in_common_are_learned(tmp_path: Path) -> None:
    """The toy pairs differ by one contrary verb, which TF-IDF sees."""
    pairs = toys.load(toys.write_pairs(tmp_path, train=400, validation=100))
    found = baselines.measure_baselines(pairs, "some/checkpoint-that-is-not-there", 32)
    assert set(found) == {TFIDF}
    assert found[TFIDF]["accuracy"] > 0.9
    assert set(found[TFIDF]) == {"accuracy", "f1", "examples"}
    assert found[TFIDF]["examples"] == 100


def test_single_sentences_and_many_classes_have_a_baseline(tmp_path: Path) -> None:
    folder = tmp_path / "pairs"
    folder.mkdir()
    kinds = {"red": "apple rose", "blue": "sky sea", "green": "leaf grass"}
    lines = [
        f"the {word} number {n},{label}"
        for n in range(30)
        for label, words in kinds.items()
        for word in words.split()
    ]
    (folder / "train.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    found = baselines.measure_baselines(toys.load(folder), BUNDLED_CHECKPOINT, 32)
    assert set(found) == {TFIDF}  # similarity is of two sentences
    assert found[TFIDF]["accuracy"] == 1.0


@pytest.mark.slow
def test_the_bundled_encoder_is_asked_as_it_comes(tmp_path: Path) -> None:
    pairs = toys.load(toys.write_pairs(tmp_path, train=40, validation=16))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    found = baselines.measure_baselines(pairs, BUNDLED_CHECKPOINT, 32)
    assert torch.equal(torch.rand(1), expected), "the run's random numbers were touched"
    assert set(found) == {TFIDF, COSINE}
    asked = itertools.count()
    stopped = baselines.measure_baselines(
        pairs, BUNDLED_CHECKPOINT, 32, stop=lambda: next(asked) >= 0
    )
    assert set(stopped) == {TFIDF}


@pytest.mark.slow
def test_similarities_are_those_of_the_formula(tmp_path: Path) -> None:
    """Mean of the token states, length 1, as the checkpoint's `modules.json` says."""
    from transformers import AutoModel, AutoTokenizer

    from finetune.data import checkpoints

    folder = checkpoints.bundled_folder()
    pairs = toys.load(toys.write_pairs(tmp_path, train=8, validation=5))
    split = baselines._Texts(pairs.splits["validation"], 100)
    found = baselines.Encoder(folder, 32, False, lambda: False).similarity(split)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)

    def vector(text: str) -> torch.Tensor:
        with torch.inference_mode():
            states = model.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state
        return torch.as_tensor(states[0].mean(0))

    assert split.second is not None
    expected = [
        torch.cosine_similarity(vector(one), vector(two), dim=0).item()
        for one, two in zip(split.first, split.second, strict=True)
    ]
    assert found is not None
    np.testing.assert_allclose(found, np.array(expected), atol=1e-5)


def test_of_many_pairs_the_same_are_drawn_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "MOST", 50)
    pairs: splits.Pairs = toys.load(toys.write_pairs(tmp_path, train=200, validation=100))
    once, again = (baselines._Texts(pairs.splits["train"], 50) for _ in range(2))
    assert once.first == again.first
    assert len(once.first) == 50
    first, second = (baselines.measure_baselines(pairs, "none/none", 32) for _ in range(2))
    assert first == second
