from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer

from finetune.config import RunConfig
from finetune.data import splits
from finetune.training import dataloaders


def test_a_batch_is_as_long_as_its_longest_pair(
    toy_pairs: splits.Pairs, toy_checkpoint: Path, toy_config: RunConfig
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(toy_checkpoint)
    batches = dataloaders.build_loaders(toy_pairs, tokenizer, toy_config)
    batch = next(iter(batches.train))
    assert set(batch) == {"input_ids", "token_type_ids", "attention_mask", "labels"}
    assert batch["input_ids"].shape == (8, 15)  # [CLS] six words [SEP] six words [SEP]
    assert batch["labels"].shape == (8,)
    text = tokenizer.decode(batch["input_ids"][0])
    assert text.startswith("[CLS]")
    assert text.count("[SEP]") == 2


def test_the_order_depends_on_the_seed_alone(
    toy_pairs: splits.Pairs, toy_checkpoint: Path, toy_config: RunConfig
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(toy_checkpoint)

    def order(seed: int) -> list[int]:
        torch.rand(3)  # whatever else draws a number must not matter
        batches = dataloaders.build_loaders(toy_pairs, tokenizer, toy_config.changed(seed=seed))
        return [int(batch["input_ids"].sum()) for batch in batches.train]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_what_is_too_long_is_cut(toy_pairs: splits.Pairs, toy_checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(toy_checkpoint)
    cut = dataloaders.tokenize(toy_pairs.splits["validation"], tokenizer, 9)
    assert {len(row["input_ids"]) for row in cut} == {9}
    assert cut.column_names == ["labels", "input_ids", "token_type_ids", "attention_mask"]
