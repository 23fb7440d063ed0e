"""The description of the first batch: what the model reads, no more than a page can show."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from finetune.config import RunConfig
from finetune.data import splits
from finetune.runs import events
from finetune.tasks.base import Target
from finetune.training import dataloaders
from tests.support import toys
from tests.support.families import write
from tests.support.training import fit

LABELS = ["no", "yes"]
SHOWN = dataloaders.EXAMPLES


def first(config: RunConfig, pairs: splits.Pairs) -> tuple[events.FirstBatch, dict[str, Any]]:
    """The description of a run's first batch, and that batch as the loop had it."""
    batches: list[dict[str, Any]] = []
    tokenizer = AutoTokenizer.from_pretrained(config.checkpoint)

    def describe(batch: dict[str, Any]) -> list[events.Event]:
        batches.append({name: tensor.clone() for name, tensor in batch.items()})
        return [dataloaders.describe_batch(batch, tokenizer, Target(tuple(LABELS)))]

    happened, _ = fit(config.changed(max_steps=2), pairs, first_batch=describe)
    (event,) = [event for event in happened if isinstance(event, events.FirstBatch)]
    (batch,) = batches
    return event, batch


@pytest.mark.parametrize("padding", ["longest", "max_length"])
def test_it_is_the_batch_that_is_trained_on(
    padding: str, toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    event, batch = first(toy_config.changed(padding=padding), toy_pairs)
    assert event.shapes == {name: list(tensor.shape) for name, tensor in batch.items()}
    assert event.ids == batch["input_ids"][:SHOWN].tolist()
    assert event.token_type_ids == batch["token_type_ids"][:SHOWN].tolist()
    assert event.lengths == batch["attention_mask"].sum(dim=1).tolist()
    assert event.padded == pytest.approx(1 - batch["attention_mask"].float().mean().item())
    assert (event.padded > 0.5) == (padding == "max_length")
    assert event.labels == [LABELS[n] for n in batch["labels"][:SHOWN].tolist()]
    assert event.tokens[0][1] in toys.WORDS
    for tokens, mask in zip(event.tokens, event.attention_mask, strict=True):
        assert [token == "[PAD]" for token in tokens] == [not bit for bit in mask]
    assert event.form == "[CLS] sentence1 [SEP] sentence2 [SEP]"
    assert {"[CLS]", "[SEP]"} <= set(event.special)


def test_a_long_batch_is_told_in_part(toy_checkpoint: Path) -> None:
    width, examples = 5000, 300
    batch = {
        "input_ids": torch.full((examples, width), 7),
        "attention_mask": torch.ones(examples, width, dtype=torch.long),
        "labels": torch.zeros(examples, dtype=torch.long),
    }
    tokenizer = AutoTokenizer.from_pretrained(toy_checkpoint)
    event = dataloaders.describe_batch(batch, tokenizer, Target(tuple(LABELS)))
    assert event.shapes["input_ids"] == [examples, width]
    assert (event.positions[0], event.positions[-1]) == (0, width - 1)
    assert len(event.positions) < 100
    assert len(event.model_dump_json()) < 20_000


def test_models_without_token_types_have_none(
    tmp_path: Path, toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    single = dataclasses.replace(toy_pairs, splits=toy_pairs.splits.remove_columns("sentence2"))
    config = toy_config.changed(checkpoint=str(write(tmp_path / "toy", "Roberta")))
    event, _ = first(config, single)
    assert event.token_type_ids == []
    assert set(event.shapes) == {"input_ids", "attention_mask", "labels"}
    assert event.form == "[CLS] sentence [SEP]"


def test_tokens_of_bytes_are_told_as_text() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = "a caf\u00e9 \u05e9\u05dc\u05d5\u05dd \U0001f600"
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([text] * 50, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert "".join(dataloaders.readable_tokens(fast, fast(text)["input_ids"])) == text
