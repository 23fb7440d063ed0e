"""A scorer gives the plain model's logits, in the given order, from any thread."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finetune.errors import ModelError
from finetune.inference import quick_layers
from finetune.inference.predictor import MicroBatcher
from finetune.inference.scorer import Row, Scorer
from finetune.training import cuda_graphs, layers
from tests.support import toys
from tests.support.families import FAMILIES, lively, write
from tests.support.tape import TapeRecorder

LONG = "the cat sees a dog . " * 6
PAIRS = [(one, two) for one, two, _ in toys.rows(40)] + [(LONG, "a dog"), ("cat", LONG), ("a", "b")]
FIRST, SECOND = ([pair[at] for pair in PAIRS] for at in (0, 1))
# Of a model of the Hub pairs and single sentences may be asked at once, by two people.
MIXED: list[Row] = [(one, None if at % 3 == 0 else two) for at, (one, two) in enumerate(PAIRS)]


def plain(folder: Path, rows: list[Row]) -> NDArray[np.float32]:
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
def checkpoint(toy_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scoring") / "toy"
    return lively(Path(shutil.copytree(toy_checkpoint, folder)))


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> NDArray[np.float32]:
    return plain(checkpoint, list(PAIRS))


@pytest.fixture
def scorer(checkpoint: Path) -> Iterator[Scorer]:
    scorer = Scorer(checkpoint, 32, precision="fp32", threads=2)
    yield scorer
    scorer.free()


@pytest.fixture
def batcher(scorer: Scorer) -> Iterator[MicroBatcher]:
    batcher = MicroBatcher(scorer)
    yield batcher
    batcher.close()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_scores_as_its_plain_model_in_the_order_given(
    family: str, precision: Literal["fp32", "bf16"], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Scorer, "_pair_seconds", lambda self, threads: [1.0])
    folder = lively(write(tmp_path / family, family))
    scorer = Scorer(folder, 32, precision, threads=2)
    logits = plain(folder, list(PAIRS))
    tolerance = 1e-4 if precision == "fp32" else 0.05 * np.abs(logits).max()
    assert np.abs(scorer.scores(FIRST, SECOND) - logits).max() < tolerance
    assert logits.std(axis=0).max() > 0.01
    assert scorer.optimized == (
        family in {"Bert", "Roberta", "XLMRoberta", "Electra", "DistilBert"}
    )


@pytest.mark.parametrize("activation", ["relu", "gelu_new", "silu"])
def test_layers_with_another_activation_score_alike(activation: str, tmp_path: Path) -> None:
    config = json.loads((write(tmp_path, "Bert") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": activation}))
    folder = lively(tmp_path)
    logits = plain(folder, list(PAIRS))
    assert np.abs(Scorer(folder, 32, "fp32").scores(FIRST, SECOND) - logits).max() < 1e-4


def test_of_pairs_and_single_sentences_each_is_read_as_what_it_is(
    checkpoint: Path, scorer: Scorer, batcher: MicroBatcher
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    expected = plain(checkpoint, [tuple(filter(None, row)) for row in MIXED])  # type: ignore[misc]
    whole = [len(tokenizer(*filter(None, row)).input_ids) for row in MIXED]
    together = [future.result(30) for future in [batcher.submit(*row) for row in MIXED]]
    for blocks in (list(scorer.stream(MIXED, window=10)), together):
        logits, tokens, cut = (np.concatenate(part) for part in zip(*blocks, strict=True))
        assert np.abs(logits - expected).max() < 1e-5
        assert tokens.max() == 32
        assert (tokens + cut).tolist() == whole


def test_a_stream_is_in_order_and_reads_two_windows_ahead_at_most(
    scorer: Scorer, expected: NDArray[np.float32]
) -> None:
    read, taken = itertools.count(), 0
    endless = (PAIRS[next(read) % len(PAIRS)] for _ in itertools.repeat(0))
    for block in itertools.islice(scorer.stream(endless, window=8), 20):
        for row in block.logits:
            assert row == pytest.approx(expected[taken % len(PAIRS)], abs=1e-5)
            taken += 1
    assert taken == 160
    assert next(read) - taken <= 8


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_that_answer_otherwise_are_not_used(
    checkpoint: Path, expected: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch,
    precision: Literal["fp32", "bf16"],
) -> None:  # fmt: skip
    """For example those of a family that uses parts with BERT's names differently."""
    attention_bias = layers.attention_bias
    monkeypatch.setattr(layers, "attention_bias", lambda *args: 1e-39 * attention_bias(*args))
    scorer = Scorer(checkpoint, 32, precision)
    assert not scorer.optimized
    assert np.abs(scorer.scores(FIRST, SECOND) - expected).max() < 0.1


def test_fifty_ask_together_and_each_gets_its_own(
    scorer: Scorer, batcher: MicroBatcher, expected: NDArray[np.float32]
) -> None:
    def ask(client: int) -> None:
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


def test_small_batches_are_recorded_and_give_the_same_logits(
    checkpoint: Path, expected: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
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
