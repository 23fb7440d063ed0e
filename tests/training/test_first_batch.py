"""The first batch as it is told: what the model reads, no more than a page can show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from finetune.config import RunConfig
from finetune.data import splits as data
from finetune.jobs import train
from finetune.runs import events
from finetune.runs.store import RunStore
from finetune.training import first_batch, loop, metrics
from tests.support import toys
from tests.training.test_families import write
from tests.training.test_hyperparameters import prepared

LABELS = ["no", "yes"]


def first(chosen: RunConfig, pairs: data.Pairs) -> tuple[events.FirstBatch, dict[str, Any]]:
    """What is told of a run's first batch, and that batch as the loop had it."""
    seen: list[dict[str, Any]] = []
    tokenizer, classifier, batches = prepared(chosen, pairs)

    def look(batch: dict[str, Any]) -> list[events.Event]:
        seen.append({name: one.clone() for name, one in batch.items()})
        return [first_batch.describe_batch(batch, tokenizer, LABELS)]

    stream = loop.fit(
        chosen.changed(max_steps=2), Accelerator(cpu=True), classifier, batches,
        metrics.AccuracyAndF1(LABELS), loop.Hooks(first_batch=look),
    )  # fmt: skip
    told = [one for one in stream if isinstance(one, events.FirstBatch)]
    assert len(told) == len(seen) == 1
    return told[0], seen[0]


def test_it_is_the_batch_that_is_trained_on(toy_config: RunConfig, toy_pairs: data.Pairs) -> None:
    told, batch = first(toy_config, toy_pairs)
    assert told.shapes == {name: list(one.shape) for name, one in batch.items()}
    assert told.ids == batch["input_ids"][: first_batch.EXAMPLES].tolist()
    assert told.token_type_ids == batch["token_type_ids"][: first_batch.EXAMPLES].tolist()
    assert told.lengths == batch["attention_mask"].sum(dim=1).tolist()
    assert told.labels == [LABELS[n] for n in batch["labels"][: first_batch.EXAMPLES].tolist()]
    assert told.tokens[0][0] == "[CLS]"
    assert told.tokens[0].count("[SEP]") == 2
    assert told.form == "[CLS] sentence1 [SEP] sentence2 [SEP]"
    assert {"[CLS]", "[SEP]"} <= set(told.special)
    assert told.tokens[0][1] in toys.WORDS


def test_padding_is_told_as_the_mask_has_it(toy_config: RunConfig, toy_pairs: data.Pairs) -> None:
    chosen = toy_config.changed(padding="max_length", max_length=32)
    told, batch = first(chosen, toy_pairs)
    assert told.shapes["input_ids"] == [8, 32]
    assert told.padded == pytest.approx(1 - batch["attention_mask"].float().mean().item())
    assert told.padded > 0.5
    for tokens, mask in zip(told.tokens, told.attention_mask, strict=True):
        assert [token == "[PAD]" for token in tokens] == [not bit for bit in mask]


def test_a_long_batch_is_told_in_part() -> None:
    class Letters:
        all_special_ids: tuple[int, ...] = (7, 4999)
        unk_token_id = 7

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [str(one) for one in ids]

    width, examples = 5000, 300
    batch = {
        "input_ids": torch.arange(width).repeat(examples, 1),
        "attention_mask": torch.ones(examples, width, dtype=torch.long),
        "labels": torch.zeros(examples, dtype=torch.long),
    }
    told = first_batch.describe_batch(batch, Letters(), LABELS)
    assert told.shapes["input_ids"] == [examples, width]
    assert told.positions == [*range(first_batch.HEAD), *range(width - first_batch.TAIL, width)]
    assert told.tokens[0][-1] == str(width - 1)
    assert told.form == "sentence 4999"
    assert told.special == ["4999"]
    assert told.token_type_ids == []
    assert len(told.lengths) == first_batch.LENGTHS
    assert len(events.to_json(told)) < 20_000


@pytest.mark.parametrize("family", ["Roberta", "DistilBert", "GPT2"])
def test_models_without_token_types_have_none(
    family: str, tmp_path: Path, toy_config: RunConfig, toy_pairs: data.Pairs
) -> None:
    told, _ = first(toy_config.changed(checkpoint=str(write(tmp_path / "toy", family))), toy_pairs)
    assert told.token_type_ids == []
    assert set(told.shapes) == {"input_ids", "attention_mask", "labels"}
    assert len(told.tokens) == first_batch.EXAMPLES


def test_single_sentences_have_one_kind_of_token(
    toy_config: RunConfig, toy_pairs: data.Pairs
) -> None:
    splits = toy_pairs.splits.remove_columns("sentence2")
    single = data.Pairs(splits, toy_pairs.labels, counts=toy_pairs.counts)
    told, _ = first(toy_config, single)
    assert {kind for row in told.token_type_ids for kind in row} == {0}
    assert told.form == "[CLS] sentence [SEP]"


def test_tokens_of_bytes_are_told_as_text() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    text = "a caf\u00e9 \u05e9\u05dc\u05d5\u05dd \U0001f600"
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet)
    made.train_from_iterator([text] * 50, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    ids = tokenizer(text)["input_ids"]
    told = first_batch.readable_tokens(tokenizer, ids)
    assert "".join(told) == text


def test_a_run_tells_its_first_batch_once(
    store: RunStore,
    toy_config: RunConfig,
    toy_pairs_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")  # the worker sets them: this puts them back
    monkeypatch.setattr(train, "keep_memory", lambda: None)
    monkeypatch.setattr(train.StopSwitch, "install", lambda self: None)
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    chosen = toy_config.changed(dataset=store.uploads.add(files), max_steps=2)
    run = store.create(chosen)
    assert train.carry_out_run(run, bar=False) == 0
    told = [one for one in run.tail()[0] if isinstance(one, events.FirstBatch)]
    assert len(told) == 1
    assert store.summary(run).peeked == told[0]
    assert set(told[0].labels) <= set(store.summary(run).prepared.labels)  # type: ignore[union-attr]
