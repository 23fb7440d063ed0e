"""Scores of many pairs are the plain model's, in the order given, whoever asks."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finetune.errors import DataError, ModelError
from finetune.inference import layers
from finetune.inference import scorer as scoring
from finetune.inference.micro_batcher import MicroBatcher
from finetune.inference.scorer import Scorer
from finetune.training import model
from tests.support import toys
from tests.training.test_families import FAMILIES, write

LONG = "the cat sees a dog . " * 6
PAIRS = [(one, two) for one, two, _ in toys.rows(40)] + [(LONG, "a dog"), ("cat", LONG), ("a", "b")]
FIRST, SECOND = ([pair[at] for pair in PAIRS] for at in (0, 1))
QUICK = {"Bert", "Roberta", "XLMRoberta", "Electra", "DistilBert"}


def plain(folder: Path, max_length: int = 32) -> Any:
    """Logits of each pair alone, from the model as `from_pretrained` makes it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    classifier = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    found = []
    with torch.no_grad():
        for one, two in PAIRS:
            inputs = tokenizer(
                one, two, truncation=True, max_length=max_length, return_tensors="pt"
            )
            found.append(classifier(**inputs).logits[0].numpy())
    return np.array(found)


def lively(folder: Path) -> Path:
    """The model with larger weights: with a random one's, all pairs get nearly the same logits."""
    classifier = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        for weights in classifier.parameters():
            if weights.dim() > 1:
                weights.mul_(8)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:  # as `model.load` does before such a one is trained
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.save_pretrained(folder)
    classifier.config.pad_token_id = tokenizer.pad_token_id
    classifier.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(toy_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scoring") / "toy"
    shutil.copytree(toy_checkpoint, folder)
    return lively(folder)


@pytest.fixture
def scorer(checkpoint: Path) -> Iterator[Scorer]:
    made = Scorer(checkpoint, 32, precision="fp32", threads=2)
    yield made
    made.free()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_scores_as_its_plain_model_in_the_order_given(family: str, tmp_path: Path) -> None:
    folder = lively(write(tmp_path / family, family))
    made = Scorer(folder, 32, precision="fp32", threads=2)
    wanted = plain(folder)
    assert np.abs(made.scores(FIRST, SECOND) - wanted).max() < 1e-4
    assert wanted.std(axis=0).max() > 0.01
    assert made.quick == (family in QUICK)


def test_in_bf16_the_labels_are_the_same(checkpoint: Path) -> None:
    wanted = plain(checkpoint)
    made = Scorer(checkpoint, 32, precision="bf16", threads=2)
    found = made.scores(FIRST, SECOND)
    assert made.precision == "bf16"
    assert 0 < np.abs(found - wanted).max() < 0.1
    sure = np.abs(wanted[:, 0] - wanted[:, 1]) > 0.2
    assert sure.sum() > len(PAIRS) / 2
    assert (found.argmax(1) == wanted.argmax(1))[sure].all()


@pytest.mark.parametrize("family", ["DebertaV2", "ModernBert", "Albert", "MPNet"])
def test_a_family_without_quick_layers_knows_bf16_too(family: str, tmp_path: Path) -> None:
    folder = write(tmp_path / family, family)
    made = Scorer(folder, 32, precision="bf16")
    assert not made.quick
    assert np.abs(made.scores(FIRST, SECOND) - plain(folder)).max() < 0.02


def test_every_model_computes_with_the_threads_there_are(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever loads it: what the threads of another model compute with is theirs alone."""
    there_are = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for _ in range(3):
            with ThreadPoolExecutor(1) as caller:
                made = caller.submit(Scorer, checkpoint, 32, precision="fp32").result()
                made.scores(FIRST, SECOND)
                made.free()
                assert made.threads == 3
                assert caller.submit(torch.get_num_threads).result() == 3
        with ThreadPoolExecutor(1) as own:
            own.submit(scoring.set_own_threads, 1).result()
            assert own.submit(torch.get_num_threads).result() == 1
    finally:
        torch.set_num_threads(there_are)


def test_lengths_and_what_is_cut_are_said(scorer: Scorer) -> None:
    found = scorer.score(["cat " * 40, "cat"], ["dog", "dog"])
    assert found.tokens.tolist() == [32, 5]
    assert found.cut.tolist() == [12, 0]


def test_nothing_gives_nothing(scorer: Scorer) -> None:
    assert scorer.scores([], []).shape == (0, 2)
    assert list(scorer.stream([])) == []


def test_single_sentences_are_read_alone(checkpoint: Path) -> None:
    made = Scorer(checkpoint, 32, paired=False, precision="fp32")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    classifier = AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        wanted = classifier(**tokenizer("the cat .", return_tensors="pt")).logits[0]
    for found in (made.scores(["the cat ."]), made.scores(["the cat ."], ["a dog"])):
        assert found[0] == pytest.approx(wanted.numpy(), abs=1e-5)


MIXED: list[tuple[str, str | None]] = [
    (one, None if at % 3 == 0 else two) for at, (one, two) in enumerate(PAIRS)
]


def test_of_pairs_and_single_sentences_each_is_read_as_what_it_is(checkpoint: Path) -> None:
    """A model of the Hub may be asked for both at once, by two people."""
    made = Scorer(checkpoint, 32, paired=None, precision="fp32", threads=2)
    alone = [next(made.stream([row])) for row in MIXED]
    seconds = [made.scores([one], [two or "a dog"])[0] for one, two in MIXED]
    found = list(made.stream(MIXED, window=10))
    got = [part[at : at + 1] for part in found for at in range(len(part))]
    together = MicroBatcher(made)
    crowd = [together.submit(*row) for row in MIXED]
    for answers in (got, [one.result(30) for one in crowd]):
        for wanted, answer in zip(alone, answers, strict=True):
            assert answer.logits[0] == pytest.approx(wanted.logits[0], abs=1e-5)
            assert (answer.tokens[0], answer.cut[0]) == (wanted.tokens[0], wanted.cut[0])
    for at in (0, 1):  # a second sentence counts where there is one
        other = np.abs(seconds[at] - alone[at].logits[0]).max()
        assert (other > 1e-3) == (MIXED[at][1] is None)
    together.close()


@pytest.mark.parametrize(
    "text",
    ["", " \n", "\ud800 lone", "nul \0 byte", "\U0001f600" * 50, "x" * 100_000, "dog " * 999],
)
def test_any_text_is_scored(scorer: Scorer, text: str) -> None:
    found = scorer.score([text, "cat"], ["cat", text])
    assert np.isfinite(found.logits).all()
    assert found.tokens.max() <= 32


def test_what_is_no_text_is_refused_by_its_row(scorer: Scorer) -> None:
    rows: list[Any] = [*PAIRS[:10], ("cat", 7)]
    stream = scorer.stream(rows, window=4)
    assert len(next(stream)) == 4
    with pytest.raises(DataError, match="sentence2 of row 11 is no text but int"):
        list(stream)
    with pytest.raises(DataError, match="sentence2 of row 1 "):
        scorer.scores(["cat"])
    with pytest.raises(ValueError, match="shorter"):
        scorer.scores(["cat", "dog"], ["cat"])


def test_a_stream_is_in_order_and_reads_two_windows_ahead_at_most(scorer: Scorer) -> None:
    read, taken = 0, 0

    def endless() -> Iterator[tuple[str, str]]:
        nonlocal read
        while True:
            read += 1
            yield PAIRS[(read - 1) % len(PAIRS)]

    wanted = scorer.scores(FIRST, SECOND)
    for block in itertools.islice(scorer.stream(endless(), window=8), 20):
        for row in block.logits:
            assert row == pytest.approx(wanted[taken % len(PAIRS)], abs=1e-5)
            taken += 1
        assert read - taken <= 8
    assert taken == 160


@pytest.mark.long
def test_windows_of_long_texts_are_shorter(scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the texts, no more is tokenised at once than a million characters."""
    sizes: list[int] = []
    tokenizer = scorer._tokenizer

    def counted(*texts: list[str], **given: Any) -> Any:
        sizes.append(sum(len(text) for column in texts for text in column))
        return tokenizer(*texts, **given)

    counted.pad_token_id, counted.pad_token_type_id = 0, 0  # type: ignore[attr-defined]
    counted.padding_side = "right"  # type: ignore[attr-defined]
    monkeypatch.setattr(scorer, "_tokenizer", counted)
    rows = [(f"{'cat ' * 8_000}{n}", "a dog " * (n + 1)) for n in range(70)]
    found = list(scorer.stream(rows))
    assert sum(map(len, found)) == 70
    assert max(sizes) <= 2**20 + 2 * 20_000
    assert sum(sizes) < 70 * 2 * 21_000 * 2  # and those that are cut once more
    for row, one in ((rows[0], found[0].logits[0]), (rows[69], found[-1].logits[-1])):
        short = scorer.scores([row[0][:4000]], [row[1]])
        assert one == pytest.approx(short[0], abs=1e-5)
    together = MicroBatcher(scorer)
    answers = [together.submit(*row) for row in rows]
    assert [len(one.result(60)) for one in answers] == [1] * 70
    together.close()


def test_layers_that_answer_otherwise_are_left_alone(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would be with a family whose parts have BERT's names and another use."""
    forward = layers.Layer._attend
    monkeypatch.setattr(layers.Layer, "_attend", lambda *given: forward(*given) * 1.01)
    made = Scorer(checkpoint, 32, precision="fp32")
    assert not made.quick
    assert np.abs(made.scores(FIRST, SECOND) - plain(checkpoint)).max() < 1e-5


def test_a_head_that_reads_every_token_gets_every_token(checkpoint: Path) -> None:
    _, whole = model.load_saved_model(checkpoint)
    _, quick = model.load_saved_model(checkpoint)
    for one in (whole, quick):
        pooler = one.bert.pooler
        pooler.forward = lambda hidden, pooler=pooler: pooler.activation(
            pooler.dense(hidden[:, :3].sum(dim=1))
        )
    assert layers.optimize_layers(quick, torch.float32)
    tokens = torch.tensor([[2, 7, 8, 9, 3, 10, 3]])
    mask = torch.ones_like(tokens)
    with torch.no_grad():
        wanted = whole(input_ids=tokens, attention_mask=mask).logits
        found = quick(
            input_ids=tokens, attention_mask=layers.attention_bias(mask, torch.float32)
        ).logits
    assert torch.allclose(found, wanted, atol=1e-5)


def test_many_threads_share_one_scorer(scorer: Scorer) -> None:
    wanted = scorer.scores(FIRST, SECOND)
    wrong: list[int] = []

    def client(which: int) -> None:
        rows = [(which + at) % len(PAIRS) for at in range(12)]
        found = scorer.scores([FIRST[at] for at in rows], [SECOND[at] for at in rows])
        if np.abs(found - wanted[rows]).max() > 1e-5:
            wrong.append(which)

    _all_at_once(client, 12)
    assert wrong == []


def test_fifty_ask_together_and_each_gets_its_own(scorer: Scorer) -> None:
    wanted = scorer.score(FIRST, SECOND)
    together, got = MicroBatcher(scorer), {}

    def client(which: int) -> None:
        for turn in range(3):
            at = (which + 17 * turn) % len(PAIRS)
            got[which, turn] = (at, together.submit(FIRST[at], SECOND[at]).result(60))

    _all_at_once(client, 50)
    together.close()
    assert len(got) == 150
    for at, found in got.values():
        assert found.logits[0] == pytest.approx(wanted.logits[at], abs=1e-5)
        assert (found.tokens[0], found.cut[0]) == (wanted.tokens[at], wanted.cut[at])


def test_what_arrives_while_a_batch_is_computed_is_the_next_batch(
    scorer: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go, sizes = threading.Event(), threading.Event(), []
    stream = scorer.stream

    def slow(rows: Any, window: int) -> Any:
        sizes.append(len(rows))
        began.set()
        assert go.wait(30)
        return stream(rows, window)

    monkeypatch.setattr(scorer, "stream", slow)
    together = MicroBatcher(scorer)
    answers = [together.submit(*PAIRS[0])]
    assert began.wait(30)
    answers += [together.submit(*PAIRS[at]) for at in range(1, 8)]
    go.set()
    assert [len(one.result(30)) for one in answers] == [1] * 8
    assert sizes == [1, 7]
    together.close()


def test_an_error_is_of_the_one_who_asked(scorer: Scorer) -> None:
    together = MicroBatcher(scorer)
    bad: Any = None
    answers = [together.submit("cat", bad if at % 7 == 3 else "dog") for at in range(30)]
    for at, answer in enumerate(answers):
        if at % 7 == 3:
            with pytest.raises(DataError, match="sentence2 of row 1 is no text"):
                answer.result(30)
        else:
            assert len(answer.result(30)) == 1
    together.close()


def test_who_asks_after_the_close_is_told(scorer: Scorer) -> None:
    together = MicroBatcher(scorer)
    last = together.submit("cat", "dog")
    together.close()
    together.close()
    assert len(last.result(0)) == 1
    with pytest.raises(ModelError, match="not loaded any more"):
        together.submit("cat", "dog")


def test_a_folder_without_a_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no saved model"):
        Scorer(tmp_path, 32)


def _all_at_once(client: Any, count: int) -> None:
    threads = [threading.Thread(target=client, args=(which,)) for which in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
