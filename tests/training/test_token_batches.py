"""Batches by index equal what `datasets` and the collator make of the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, DataCollatorWithPadding, PreTrainedTokenizerFast

from finetune.config import RunConfig
from finetune.data import splits
from finetune.training import dataloaders
from finetune.training.dataloaders import Padding, TokenizedSplit
from tests.support.training import prepared

LENGTH = 16


@pytest.fixture
def tokenizer(toy_config: RunConfig) -> Any:
    return AutoTokenizer.from_pretrained(toy_config.checkpoint)


def tokenized(tokenizer: Any, labels: list[Any], paired: bool = True) -> Dataset:
    texts = [" ".join(["the", "cat", "sees", "a", "dog"][: 1 + n % 5]) for n in range(len(labels))]
    columns = {"sentence1": texts, "sentence2": texts[::-1]} if paired else {"sentence1": texts}
    return dataloaders.tokenize(Dataset.from_dict(columns | {"label": labels}), tokenizer, LENGTH)


def by_collator(rows: Dataset, tokenizer: Any, picked: list[int], **options: Any) -> dict[str, Any]:
    collator = DataCollatorWithPadding(tokenizer, max_length=LENGTH, **options)
    return dict(collator([rows[row] for row in picked]))


@pytest.mark.parametrize(
    ("padding", "options"),
    [
        (Padding(LENGTH), {}),
        (Padding(LENGTH, multiple=8), {"pad_to_multiple_of": 8}),
        (Padding(LENGTH, always_longest=True), {"padding": "max_length"}),
    ],
)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("paired", [True, False])
def test_a_batch_is_what_the_collator_makes(
    tokenizer: Any, padding: Padding, options: dict[str, Any], side: str, paired: bool
) -> None:
    tokenizer.padding_side = side
    rows = tokenized(tokenizer, [n % 2 for n in range(40)], paired)
    split = TokenizedSplit(rows, tokenizer, padding)
    assert len(split) == 40
    for picked in ([0], [39, 3, 17, 17], list(range(40))):
        expected = by_collator(rows, tokenizer, picked, **options)
        batch = split.__getitems__(picked)
        assert [*batch] == [*expected]
        for name, values in expected.items():
            assert batch[name].dtype == values.dtype, name
            assert torch.equal(batch[name], values), name


@pytest.mark.parametrize("by_length", [True, False])
def test_a_run_has_the_batches_of_the_collator_in_the_same_order(
    toy_config: RunConfig, toy_pairs: splits.Pairs, by_length: bool
) -> None:
    config = toy_config.changed(group_by_length=by_length, pad_to_multiple_of=8)
    tokenizer, _, loaders = prepared(config, toy_pairs)
    rows = dataloaders.tokenize(toy_pairs.splits["train"], tokenizer, config.max_length)
    state = loaders.train.generator.get_state()
    batches = list(loaders.train)
    loaders.train.generator.set_state(state)
    iterator = torch.utils.data.DataLoader(
        rows, loaders.train.batch_size, sampler=loaders.train.sampler,
        generator=loaders.train.generator,
        collate_fn=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8),
    )  # fmt: skip
    expected = list(iterator)
    assert len(batches) == len(expected) > 4
    for batch, other in zip(batches, expected, strict=True):
        assert all(torch.equal(batch[name], values) for name, values in other.items())


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
