"""Long sentences are cut before truncation, and give the same tokens."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from finetune.config import RunConfig
from finetune.data import checkpoints, token_lengths
from finetune.inference.scorer import Scorer

SHORT = "the cat sees a dog ."
TEXTS = [
    SHORT, "the cat sees a dog . " * 20, "\u732b\u72ac" * 75, "x" * 200, "\U0001f600" * 70,
    f"{'y' * 99} " * 3, " " * 500 + SHORT, "e\u0301\u200b" * 100, "a\n\t" * 150,
]  # fmt: skip


@pytest.mark.parametrize("name", ["toy", "bundled"])
@pytest.mark.parametrize("max_length", [8, 31])
def test_inputs_are_truncated_to_the_same_tokens(
    toy_checkpoint: Path, name: str, max_length: int
) -> None:
    bundled = checkpoints.local_folder(RunConfig().checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(toy_checkpoint if name == "toy" else bundled)
    pairs = [(first, second) for first in TEXTS for second in TEXTS]
    columns = [list(side) for side in zip(*pairs, strict=True)]
    cut = token_lengths.cut_inputs(tokenizer, columns, max_length)
    for sides in (columns, columns[:1]):
        expected = tokenizer(*sides, truncation=True, max_length=max_length)
        again = tokenizer(*cut[: len(sides)], truncation=True, max_length=max_length)
        assert again["input_ids"] == expected["input_ids"]
    lengths = map(len, tokenizer(cut[0], add_special_tokens=False, verbose=False)["input_ids"])
    assert max(lengths) <= 2 * max_length + 1
    assert cut[0][0] == SHORT


def test_a_pair_of_long_sentences_takes_little_memory(toy_checkpoint: Path) -> None:
    """The tokenizer alone would make gigabytes of encodings, one for each pair of cut-off parts."""
    scorer = Scorer(toy_checkpoint, 32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first, second = "the cat " * 2000, "a dog sees " * 1400
    ((_, tokens, cut),) = scorer.stream([(first, second)])
    assert (tokens[0], cut[0]) == (32, 2 * 2000 + 3 * 1400 + 3 - 32)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB
