"""Explanations by words, and the small edits of a pair that change a decision."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel

from finetune.data import checkpoints
from finetune.inference import explain
from finetune.inference.explain import Edit, explain_pair, find_flips, small_edits
from finetune.training import model
from tests.support.families import FAMILIES, write

# Texts and their words; texts and their edits of a kind.
CASES = json.loads(Path(__file__).with_name("words.json").read_text("utf-8"))
ONE, TWO = "the cat sees a dog .", "a cat misses the owl ."


class Bag(PreTrainedModel):
    """A classifier with two logits from the sum of a number for each token, so that exact weights
    are known.

    Args:
        curve: from that sum to the second class's logit; the first one's is 0.
    """

    config_class = PretrainedConfig

    def __init__(self, vocabulary, curve=lambda total: total):
        super().__init__(PretrainedConfig())
        torch.manual_seed(1)
        self.table = torch.nn.Embedding(vocabulary, 4)
        self.reading = torch.nn.Linear(4, 1, bias=False)
        self.curve = curve

    def get_input_embeddings(self):
        return self.table

    def forward(self, input_ids, **_):
        total = self.curve(self.reading(self.table(input_ids)).sum(dim=(1, 2)))
        return SimpleNamespace(logits=torch.stack([torch.zeros_like(total), total], dim=1))


@pytest.fixture(scope="module")
def bundled():
    return AutoTokenizer.from_pretrained(checkpoints.bundled_folder())


def total_weight(explanation):
    return sum(word.weight or 0.0 for word in explanation.words) + explanation.special


def texts(explanation):
    return [word.text for word in explanation.words]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_weights_of_a_family_sum_to_the_difference(family, tmp_path):
    tokenizer, classifier = model.load_saved_model(write(tmp_path / family, family))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        classifier.config.pad_token_id = tokenizer.pad_token_id
    with torch.no_grad():  # random weights hardly tell one word from another
        for name, weights in classifier.named_parameters():
            if weights.dim() > 1:
                weights.mul_(80 if weights.shape[0] == 2 and "type" not in name else 8)
        logits = classifier(**tokenizer(ONE, TWO, return_tensors="pt")).logits[0]
    explanation = explain_pair(tokenizer, classifier, ONE, TWO, 64, int(logits.argmax()))
    difference = explanation.target - explanation.baseline_target
    assert abs(difference) > explain.SMALLEST_DIFFERENCE
    assert total_weight(explanation) == pytest.approx(difference, rel=explain.TOLERANCE)
    assert explanation.error <= explain.TOLERANCE
    assert explanation.target == pytest.approx(float(logits.max() - logits.min()), abs=1e-3)
    assert texts(explanation) == [*ONE.split(), *TWO.split()]


@pytest.mark.parametrize(
    ("curve", "tolerance"),
    [(lambda total: total, 1e-5), (lambda total: 3 * torch.tanh(total), explain.TOLERANCE)],
)
def test_a_sum_of_words_is_taken_apart_exactly(bundled, curve, tolerance):
    """The exact weights of f(sum) divide f's rise in proportion to each token's part of the sum."""
    bag = Bag(len(bundled), curve)
    ids = bundled.convert_tokens_to_ids(["dogs", "chase", "cats", "birds", "sing", "[PAD]"])
    with torch.no_grad():
        each = bag.reading(bag.table(torch.tensor(ids)))[:, 0]
    parts = each[:-1] - each[-1]
    # Where eight tokens fit, "today" is not read.
    explanation = explain_pair(bundled, bag, "dogs chase cats today", "birds sing", 8, 1)
    read = [word for word in explanation.words if word.weight is not None]
    assert [(word.text, word.sentence) for word in read] == [
        ("dogs", 1), ("chase", 1), ("cats", 1), ("birds", 2), ("sing", 2),
    ]  # fmt: skip
    expected = parts / parts.sum() * (explanation.target - explanation.baseline_target)
    assert [word.weight for word in read] == pytest.approx(expected.tolist(), rel=tolerance)
    assert explanation.steps == explain.POINTS


def test_more_steps_are_taken_where_it_is_steep_and_what_is_missed_is_said(bundled):
    bag = Bag(len(bundled))
    near, far = (
        float(bag(torch.tensor([bundled(text).input_ids])).logits[0, 1].detach())
        for text in ("[PAD] [PAD] [PAD]", "dogs chase cats")
    )
    middle = near + (far - near) / 3
    steep = Bag(len(bundled), curve=lambda total: torch.tanh(40 * (total - middle)))
    explanation = explain_pair(bundled, steep, "dogs chase cats", None, 32, 1)
    assert explanation.steps > explain.POINTS
    assert explanation.error <= explain.TOLERANCE
    # A step has no gradient: the weights are 0 while the target is not the baseline's.
    cliff = Bag(len(bundled), curve=lambda total: (total > middle).float() * 2 - 1 + 0 * total)
    explanation = explain_pair(bundled, cliff, "dogs chase cats", None, 32, 1)
    assert abs(explanation.target - explanation.baseline_target) == pytest.approx(2.0)
    assert total_weight(explanation) == 0.0
    assert explanation.error == pytest.approx(1.0)


@pytest.mark.parametrize("row", CASES["words"], ids=[row["text"] for row in CASES["words"]])
def test_tokens_are_joined_to_words(row, bundled):
    explanation = explain_pair(bundled, Bag(len(bundled)), row["text"], "cats", 64, 1)
    assert texts(explanation) == [*row["words"], "cats"]


@pytest.mark.parametrize("row", CASES["edits"], ids=[row["text"] for row in CASES["edits"]])
def test_a_sentence_is_negated_has_other_numbers_and_loses_a_word(row):
    """Not where that would be no English, the same number, or an empty sentence."""
    edits = [edit for edit in small_edits(row["text"], None) if edit.kind == row["kind"]]
    assert [edit.sentence1 for edit in edits] == row["edits"]


def test_a_pair_is_swapped_made_the_same_and_edited_one_sentence_at_a_time():
    one, two = "Anna has 3 cats.", "Tom is not here."
    edits = {(edit.sentence1, edit.sentence2): edit for edit in small_edits(one, two)}
    assert edits.pop((two, one)).kind == "swap"
    assert edits.pop((one, one)).kind == edits.pop((two, two)).kind == "same"
    for (first, second), edit in edits.items():
        assert (first == one) != (second == two)
        assert edit.description.startswith(f"Sentence {2 if first == one else 1}: ")
    assert {edit.kind for edit in edits.values()} == {"negation", "number", "drop"}
    assert {edit.kind for edit in small_edits("a cat", "a cat")} == {"drop"}


def test_flips_are_the_surest_of_each_kind_first():
    kinds = ["drop", "swap", "drop", "negation", "number", "drop"]
    chances = [0.6, 0.99, 0.8, 0.7, 0.2, 0.9]  # of "yes"
    edits = [Edit(kind, f"{n}.", "a", None) for n, kind in enumerate(kinds)]
    answers = [
        ("yes" if chance >= 0.5 else "no", {"no": 1 - chance, "yes": chance}) for chance in chances
    ]
    flips = find_flips(edits, "no", answers)
    assert [(edits.index(flip.edit), flip.probability) for flip in flips] == [
        (1, 0.99), (5, 0.9), (3, 0.7), (2, 0.8), (0, 0.6)
    ]  # fmt: skip
    assert {flip.label for flip in flips} == {"yes"}
    # A threshold may decide for a class that is not the most probable.
    (flip,) = find_flips(edits[:1], "a", [("b", {"a": 0.6, "b": 0.4})])
    assert (flip.label, flip.probability) == ("b", 0.4)
