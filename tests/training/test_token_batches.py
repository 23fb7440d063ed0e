"""Batches by index equal what `datasets` and the collator make of the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from finetune.config import RunConfig
from finetune.training import dataloaders
from finetune.training.dataloaders import Padding, TokenizedSplit

LENGTH = 16


@pytest.fixture
def tokenizer(toy_config: RunConfig) -> Any:
    return AutoTokenizer.from_pretrained(toy_config.checkpoint)


def tokenized(tokenizer: Any, labels: list[Any], paired: bool = True) -> Dataset:
    texts = [" ".join(["the", "cat", "sees", "a", "dog"][: 1 + n % 5]) for n in range(len(labels))]
    columns = {"sentence1": texts, "sentence2": texts[::-1]} if paired else {"sentence1": texts}
    return dataloaders.tokenize(Dataset.from_dict(columns | {"label": labels}), tokenizer, LENGTH)


def test_arrays_of_a_large_split_are_mapped_from_a_file_that_has_no_name(
    tokenizer: Any, tmp_path: Path
) -> None:
    rows = tokenized(tokenizer, [0] * 2500)  # more than one batch of the Arrow writer
    rows.save_to_disk(tmp_path / "rows")
    rows = Dataset.load_from_disk(tmp_path / "rows")
    before = sorted(tmp_path.rglob("*"))
    split = TokenizedSplit(rows, tokenizer, Padding(LENGTH))
    assert sorted(tmp_path.rglob("*")) == before
    ids = [split.token_ids(row) for row in (0, 1234, 2499)]
    assert ids == [rows[row]["input_ids"].tolist() for row in (0, 1234, 2499)]
    assert split.largest_token == max(np.concatenate(rows.with_format("numpy")[:]["input_ids"]))


def test_tokens_of_bytes_are_told_as_text() -> None:
    """In the description of the first batch."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = "a caf\u00e9 \u05e9\u05dc\u05d5\u05dd \U0001f600"
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([text] * 50, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert "".join(dataloaders.readable_tokens(fast, fast(text)["input_ids"])) == text
