"""Checkpoints of many families, toy models built from their configurations: each is trained for a
few steps, saved, loaded back, and answers as it did."""

import pytest
import sentencepiece
import torch
import transformers
from accelerate.utils import set_seed
from transformers import AutoModelForSequenceClassification

from finetune.config import PRESETS, RunConfig, preset
from finetune.data import checkpoints
from finetune.errors import ModelError
from finetune.inference.predictor import Predictor
from finetune.jobs import cost
from finetune.runs import events
from finetune.tasks.base import Target
from finetune.training import dataloaders, layers, model
from tests.support import toys
from tests.support.families import FAMILIES, SMALL, VARIANTS, write
from tests.support.training import fit, losses, prepared

VARIED = {family for family, _ in VARIANTS.values()}  # trained as one of their variants


@pytest.mark.parametrize(
    ("family", "values"),
    [
        *((family, {}) for family in (*FAMILIES, *VARIANTS) if family not in VARIED),
        ("Bert", {"use_lora": True}), ("GPT2", {"use_lora": True}),
        *(pytest.param(family, {"use_lora": True}, marks=pytest.mark.long)
          for family in FAMILIES if family not in ("Bert", "GPT2")),
        *(("Bert", preset(name)) for name in PRESETS),
    ],
)  # fmt: skip
def test_it_trains_and_its_saved_model_answers_so(family, values, tmp_path, toy_config, toy_pairs):
    config = toy_config.changed(**values).changed(
        checkpoint=str(write(tmp_path / family, family)), max_steps=3, max_length=32,
        max_eval_samples=8, mixed_precision="no",
    )  # fmt: skip
    happened, tuned = fit(config, toy_pairs)
    assert isinstance(happened[-1], events.Finished)
    assert losses(happened)
    set_seed(config.seed)  # the new layers as they were drawn
    tokenizer, before, _ = prepared(config.changed(use_lora=False), toy_pairs)
    merged = model.merged_model(tuned)
    # The new layers are trained whole, under LoRA as well.
    start = dict(before.named_parameters())
    new = [name for name in start if not name.startswith(before.base_model_prefix)]
    assert new
    for name in new:
        assert not torch.equal(merged.get_parameter(name), start[name]), name
    model.save_model(merged, tokenizer, tmp_path / "best")
    pair = ("the cat sees a dog .", "a cat sees the dog .")
    longer = [[text, text * 3] for text in pair]
    with torch.no_grad():
        expected = tuned.eval()(**tokenizer(*pair, return_tensors="pt")).logits[0]
        padded = tuned(**tokenizer(*longer, padding=True, return_tensors="pt")).logits[0]
    assert torch.allclose(padded, expected, atol=1e-4)
    answer = Predictor(tmp_path / "best", 32, precision="fp32")(*pair)
    assert answer.logits == pytest.approx(expected.tolist(), abs=1e-4)


# Others whose positions begin at the padding token's number, or are said otherwise.
MORE = {
    "Camembert": SMALL,
    "Luke": {**SMALL, "entity_vocab_size": 5, "entity_emb_size": 8},
    "Esm": {**SMALL, "position_embedding_type": "absolute"},
    "RemBert": {**SMALL, "input_embedding_size": 16, "output_embedding_size": 16},
}
UNLIMITED = {"DebertaV2", "ModernBert", "Llama"}  # their positions are none of the weights'


@pytest.mark.parametrize("family", [*FAMILIES, *MORE])
def test_a_checkpoint_reads_as_many_tokens_as_is_said(family):
    for padding in (0, 1):
        values = {"vocab_size": 40, "pad_token_id": padding, **(FAMILIES | MORE)[family]}
        config = getattr(transformers, f"{family}Config")(**values)
        most = checkpoints.most_tokens(config.to_dict())
        assert most <= 66
        classifier = getattr(transformers, f"{family}ForSequenceClassification")(config).eval()
        with torch.no_grad():
            classifier(torch.full((1, most), 7), attention_mask=torch.ones(1, most).long())
        if family not in UNLIMITED:
            longer = torch.full((1, most + 1), 7)
            with pytest.raises((IndexError, RuntimeError)), torch.no_grad():
                classifier(longer, attention_mask=torch.ones_like(longer))


@pytest.mark.parametrize("family", ["Bert", "Roberta", "DebertaV2", "GPT2"])
def test_a_checkpoint_without_its_tokenizer_is_refused(family, tmp_path):
    """Of most kinds the library makes one of special tokens alone, and says nothing."""
    folder = write(tmp_path / family, family)
    for path in folder.glob("token*"):
        path.unlink()
    for load in (lambda: model.load_classifier(str(folder), Target(("no", "yes")), 32),
                 lambda: Predictor(folder, 32)):  # fmt: skip
        with pytest.raises(ModelError, match=r"knows no words|Couldn't instantiate"):
            load()


def test_a_tokenizer_is_read_from_its_sentencepiece_model(tmp_path):
    """DeBERTa-v3 and its kin have no other file."""
    folder = write(tmp_path / "deberta", "DebertaV2 as v3", vocab_size=60)
    for path in folder.glob("token*"):
        path.unlink()
    sentences = [" ".join(pair) for *pair, _ in toys.rows(100)]
    with (folder / "spm.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=file, vocab_size=36, pad_id=0,
            bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]",
            unk_piece="[UNK]", minloglevel=2,
        )  # fmt: skip
    tokenizer, _, _ = model.load_classifier(str(folder), Target(("no", "yes")), 32)
    ids = tokenizer("the cat", "a dog")["input_ids"]
    words = [piece for piece in tokenizer.convert_ids_to_tokens(ids) if piece[0] != "["]
    assert "".join(words).replace("\u2581", " ").split() == ["the", "cat", "a", "dog"]


def test_more_tokens_than_embeddings_are_said(tmp_path, toy_config, toy_pairs):
    """The last words of the vocabulary have no place in the weights."""
    folder = write(tmp_path / "bert", "Bert")
    small = AutoModelForSequenceClassification.from_pretrained(folder)
    small.resize_token_embeddings(20)
    small.save_pretrained(folder)
    tokenizer, _, batches = prepared(toy_config.changed(checkpoint=str(folder)), toy_pairs)
    words = "makes token 25, and its weights know 20"
    with pytest.raises(ModelError, match=words):
        dataloaders.check_tokens(batches, tokenizer, str(folder), 20)
    predictor = Predictor(folder, 32)
    assert predictor("the cat", "a dog").label
    with pytest.raises(ModelError, match=words):
        predictor("the cat leaves", "a dog")


def gradients(classifier, tokens, mask):
    """The loss's gradient by every weight, after a batch."""
    classifier.train()
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": torch.tensor([0, 1, 1])}
    classifier(**batch).loss.backward()
    return {name: weights.grad for name, weights in classifier.named_parameters()}


@pytest.mark.parametrize(
    ("family", "padded", "attention"),
    [
        ("Bert", True, "eager"), ("Bert", False, "eager"),
        ("Bert", True, "sdpa"), ("Bert", False, "sdpa"),
        *((family, True, "sdpa") for family in ("Roberta", "XLMRoberta", "Electra", "DistilBert")),
    ],
)  # fmt: skip
def test_the_last_layer_for_the_first_token_learns_the_same(tmp_path, family, padded, attention):
    write(tmp_path, family)
    tokens = torch.randint(5, 20, (3, 9), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([[9], [4], [7]]) if padded else torch.tensor([[9]])
    mask = (torch.arange(9) < lengths).long().expand(3, 9)
    sides = {}
    for dropout in (0.0, -1.0):
        torch.manual_seed(0)  # for the head
        _, classifier, _ = model.load_classifier(
            str(tmp_path), Target(("no", "yes")), 32, 0.0, attention
        )
        config = RunConfig(dropout=dropout, freeze_embeddings=False)
        classifier = model.apply_config(classifier, config)
        widths = []
        layers.layer_stack(classifier)[-1].register_forward_hook(
            lambda _, inputs, output, widths=widths: widths.append(output.shape[1])
        )
        sides[dropout] = (gradients(classifier, tokens, mask), widths)
    assert (sides[0.0][1], sides[-1.0][1]) == ([1], [9])
    assert classifier.config.model_type in cost.SHORTENED
    assert sides[0.0][0].keys() == sides[-1.0][0].keys()
    for name, expected in sides[-1.0][0].items():
        assert torch.allclose(sides[0.0][0][name], expected, atol=1e-6), name
