from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    AutoTokenizer,
    CanineTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.data import checkpoints
from finetune.errors import ModelError
from finetune.inference import explain
from finetune.inference.explain import Explanation, explain_pair
from finetune.training import model
from tests.training.test_families import FAMILIES, write

ONE, TWO = "the cat sees a dog .", "a cat misses the owl ."


class Bag(PreTrainedModel):
    """Two logits from the sum of a number for each token: what the exact weights are is known.

    Args:
        curve: from that sum to the second class's logit; the first one's is 0.
    """

    config_class = PretrainedConfig

    def __init__(self, vocabulary: int, curve: Any = lambda total: total) -> None:
        super().__init__(PretrainedConfig())
        torch.manual_seed(1)
        self.table = torch.nn.Embedding(vocabulary, 4)
        self.reading = torch.nn.Linear(4, 1, bias=False)
        self.curve = curve
        self.largest = 0

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.table

    def forward(self, input_ids: torch.Tensor, **_: torch.Tensor) -> SimpleNamespace:
        looked = self.table(input_ids)
        if torch.is_grad_enabled():
            self.largest = max(self.largest, input_ids.shape[0])
        total = self.curve(self.reading(looked).sum(dim=(1, 2)))
        return SimpleNamespace(logits=torch.stack([torch.zeros_like(total), total], dim=1))

    def parts(self, ids: list[int], blank: int) -> torch.Tensor:
        """What each token adds to the sum over what the blank would."""
        with torch.no_grad():
            each = self.reading(self.table(torch.tensor([*ids, blank])))[:, 0]
        return each[:-1] - each[-1]  # type: ignore[no-any-return]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """For models this small a second thread only waits for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def bundled() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(checkpoints.bundled_folder())  # type: ignore[no-any-return]


def told(answer: Explanation) -> float:
    return sum(word.weight or 0.0 for word in answer.words) + answer.special


def by_text(answer: Explanation) -> list[str]:
    return [word.text for word in answer.words]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_weights_of_a_family_sum_to_the_difference(family: str, tmp_path: Path) -> None:
    tokenizer, classifier = model.load_saved_model(write(tmp_path / family, family))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        classifier.config.pad_token_id = tokenizer.pad_token_id
    with torch.no_grad():  # random weights hardly tell one word from another
        for name, weights in classifier.named_parameters():
            if weights.dim() > 1:
                weights.mul_(80 if weights.shape[0] == 2 and "type" not in name else 8)
    answer = explain_pair(tokenizer, classifier, ONE, TWO, 64)
    difference = answer.target - answer.baseline_target
    assert abs(difference) > explain.SMALLEST_DIFFERENCE
    assert told(answer) == pytest.approx(difference, rel=explain.TOLERANCE)
    assert answer.complete
    inputs = tokenizer(ONE, TWO, return_tensors="pt")
    with torch.no_grad():
        logits = classifier(**inputs).logits[0]
    assert answer.label_index == int(logits.argmax())
    assert answer.target == pytest.approx(float(logits.max() - logits.min()), abs=1e-3)
    assert [word.text for word in answer.words if word.sentence == 2] == TWO.split()


def test_the_baseline_keeps_special_tokens_and_blanks_the_others(toy_checkpoint: Path) -> None:
    tokenizer, classifier = model.load_saved_model(toy_checkpoint)
    answer = explain_pair(tokenizer, classifier, ONE, TWO, 64)
    inputs = tokenizer(ONE, TWO, return_tensors="pt", return_special_tokens_mask=True)
    special = inputs.pop("special_tokens_mask").bool()
    assert int(special.sum()) == 3
    inputs["input_ids"] = inputs["input_ids"].masked_fill(~special, tokenizer.pad_token_id)
    with torch.no_grad():
        logits = classifier(**inputs).logits[0]
    other = 1 - answer.label_index
    wanted = float(logits[answer.label_index] - logits[other])
    assert answer.baseline_target == pytest.approx(wanted, abs=1e-6)
    assert answer.special == 0.0


def test_a_sum_of_words_is_taken_apart_exactly(bundled: PreTrainedTokenizerBase) -> None:
    bag = Bag(len(bundled))
    answer = explain_pair(bundled, bag, "dogs chase cats", "birds sing", 32)
    ids = bundled.convert_tokens_to_ids(["dogs", "chase", "cats", "birds", "sing"])
    sign = 1.0 if answer.label_index == 1 else -1.0
    wanted = sign * bag.parts(ids, bundled.pad_token_id)
    assert [word.weight for word in answer.words] == pytest.approx(wanted.tolist(), abs=1e-5)
    assert answer.target - answer.baseline_target == pytest.approx(float(wanted.sum()), abs=1e-5)
    assert answer.target > 0


def test_along_a_curve_the_gradient_at_the_end_is_not_the_answer(
    bundled: PreTrainedTokenizerBase,
) -> None:
    """Of f(sum) the exact weights share f's rise in proportion to each token's part."""
    bag = Bag(len(bundled), curve=lambda total: 3 * torch.tanh(total))
    answer = explain_pair(bundled, bag, "dogs chase cats", None, 32)
    parts = bag.parts(
        bundled.convert_tokens_to_ids(["dogs", "chase", "cats"]), bundled.pad_token_id
    )
    wanted = parts / parts.sum() * (answer.target - answer.baseline_target)
    assert [word.weight for word in answer.words] == pytest.approx(wanted.tolist(), abs=1e-3)
    assert {word.sentence for word in answer.words} == {1}


def test_more_steps_are_taken_where_the_way_is_steep(bundled: PreTrainedTokenizerBase) -> None:
    easy = explain_pair(bundled, Bag(len(bundled)), "dogs chase cats", None, 32)
    steep = Bag(len(bundled), curve=lambda total: torch.tanh(40 * (total - _middle(bundled))))
    answer = explain_pair(bundled, steep, "dogs chase cats", None, 32)
    assert easy.steps == explain.STEPS[0]
    assert answer.steps in explain.STEPS[1:]
    assert answer.complete


def _middle(tokenizer: PreTrainedTokenizerBase) -> float:
    """The sum a third of the way from baseline to input."""
    bag = Bag(len(tokenizer))
    near, far = (
        float(bag(torch.tensor([ids])).logits[0, 1].detach())
        for ids in (tokenizer("[PAD] [PAD] [PAD]").input_ids,
                    tokenizer("dogs chase cats").input_ids)
    )  # fmt: skip
    return near + (far - near) / 3


def test_what_cannot_be_accounted_for_is_said(bundled: PreTrainedTokenizerBase) -> None:
    """A step has no gradient: the weights are 0 while the target is not the baseline's."""
    threshold = _middle(bundled)
    cliff = Bag(len(bundled), curve=lambda total: (total > threshold).float() * 2 - 1 + 0 * total)
    answer = explain_pair(bundled, cliff, "dogs chase cats", None, 32)
    assert abs(answer.target - answer.baseline_target) == pytest.approx(2.0)
    assert told(answer) == 0.0
    assert answer.error == pytest.approx(1.0)
    assert answer.steps == explain.STEPS[-1]
    assert not answer.complete


def test_of_three_classes_the_target_is_the_log_odds(tmp_path: Path) -> None:
    checkpoint = str(write(tmp_path / "bert", "Bert"))
    tokenizer, classifier = model.load_classifier(checkpoint, ["a", "b", "c"], 64)
    classifier.eval()
    answer = explain_pair(tokenizer, classifier, ONE, TWO, 64)
    with torch.no_grad():
        chances = classifier(**tokenizer(ONE, TWO, return_tensors="pt")).logits.softmax(-1)
    best = float(chances.max())
    assert answer.label_index == int(chances.argmax())
    assert answer.target == pytest.approx(float(torch.logit(torch.tensor(best))), abs=1e-5)


@pytest.mark.parametrize("values", [{"use_lora": True}, {"frozen_layers": 1}])
def test_merged_and_frozen_models_are_explained(
    values: dict[str, Any], toy_config: RunConfig, toy_checkpoint: Path
) -> None:
    tokenizer, classifier = model.load_classifier(str(toy_checkpoint), ["a", "b"], 32)
    tuned = model.merged_model(model.apply_config(classifier, toy_config.changed(**values))).eval()
    answer = explain_pair(tokenizer, tuned, ONE, TWO, 32)
    assert answer.complete
    assert told(answer) != 0.0


def test_the_bundled_classifier_is_explained(bundled: PreTrainedTokenizerBase) -> None:
    torch.manual_seed(0)
    _, classifier = model.load_classifier(BUNDLED_CHECKPOINT, ["no", "yes"], 64)
    classifier.eval()
    with torch.no_grad():
        classifier.classifier.weight.mul_(50)
    answer = explain_pair(bundled, classifier, "A dog barks.", "The cat isn't asleep.", 64)
    difference = answer.target - answer.baseline_target
    assert abs(difference) > explain.SMALLEST_DIFFERENCE
    assert told(answer) == pytest.approx(difference, rel=explain.TOLERANCE)
    assert by_text(answer) == [
        "A",
        "dog",
        "barks",
        ".",
        "The",
        "cat",
        "isn",
        "'",
        "t",
        "asleep",
        ".",
    ]


WORDS = [
    ("Don't stop: it's 3.5 km, well-known!", "Don|'|t|stop|:|it|'|s|3|.|5|km|,|well|-|known|!"),
    ("unbelievable internationalisation", "unbelievable|internationalisation"),
    ("café naïve cafe\u0301", "café|naïve|cafe\u0301"),
    ("नमस्ते दुनिया", "नमस्ते|दुनिया"),
    ("我喜欢猫。Tom也是", "我|喜|欢|猫|。|Tom|也|是"),
    ("nice 👍🏽 👩‍👩‍👧 🇫🇷!!", "nice|👍🏽|👩‍👩‍👧|🇫🇷|!|!"),
    ("  spaces\t\nand \u00a0 more  ", "spaces|and|more"),
    ("'quoted' (cats)...", "'|quoted|'|(|cats|)|.|.|."),
    ("x [SEP] y [PAD]", "x|[SEP]|y|[PAD]"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), WORDS)
def test_tokens_are_joined_to_words(
    text: str, wanted: str, bundled: PreTrainedTokenizerBase
) -> None:
    answer = explain_pair(bundled, Bag(len(bundled)), text, "cats", 64)
    assert by_text(answer) == [*wanted.split("|"), "cats"]
    for word in answer.words:
        whole = text if word.sentence == 1 else "cats"
        assert whole[word.start : word.end] == word.text


def byte_level() -> PreTrainedTokenizerFast:
    """A tokenizer like RoBERTa's at its least: a token for each byte, spaces among them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({one: at for at, one in enumerate(["<pad>", *alphabet])}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>")


def test_bytes_are_joined_to_characters_and_words() -> None:
    tokenizer = byte_level()
    bag = Bag(len(tokenizer))
    answer = explain_pair(tokenizer, bag, "a café 👍 猫", None, 64)
    assert by_text(answer) == ["a", "café", "👍", "猫"]
    parts = bag.parts(tokenizer("a café 👍 猫").input_ids, tokenizer.pad_token_id).tolist()
    sign = 1.0 if answer.label_index == 1 else -1.0
    # The space before a word is that word's: a | space c a f and two bytes | space and four | ...
    wanted = [parts[0], sum(parts[1:7]), sum(parts[7:12]), sum(parts[12:])]
    assert [word.weight for word in answer.words] == pytest.approx(
        [sign * one for one in wanted], abs=1e-4
    )


TEXT = st.text(min_size=1, max_size=40).filter(lambda text: text.strip() and "\0" not in text)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(one=TEXT, two=TEXT, max_length=st.integers(5, 40))
def test_words_follow_each_other_and_every_weight_is_in_the_sum(
    one: str, two: str, max_length: int, bundled: PreTrainedTokenizerBase
) -> None:
    for tokenizer in (bundled, byte_level()):
        answer = explain_pair(tokenizer, Bag(len(tokenizer)), one, two, max_length)
        for index, text in enumerate((one, two), start=1):
            taken = [word for word in answer.words if word.sentence == index]
            for word in taken:
                assert text[word.start : word.end] == word.text == word.text.strip() != ""
            assert sorted(taken, key=lambda word: word.start) == taken
            assert all(a.end <= b.start for a, b in itertools.pairwise(taken))
        difference = answer.target - answer.baseline_target
        assert told(answer) == pytest.approx(difference, abs=1e-3, rel=1e-3)


def test_words_beyond_what_the_model_reads_have_no_weight(
    bundled: PreTrainedTokenizerBase,
) -> None:
    answer = explain_pair(bundled, Bag(len(bundled)), "one two three four five six", "dogs bark", 8)
    read = [word.text for word in answer.words if word.weight is not None]
    assert read == ["one", "two", "three", "dogs", "bark"]
    assert [word.text for word in answer.words if word.weight is None] == ["four", "five", "six"]
    assert told(answer) == pytest.approx(answer.target - answer.baseline_target, abs=1e-5)


def test_no_batch_holds_more_than_its_share_of_tokens(bundled: PreTrainedTokenizerBase) -> None:
    for length, rows in ((200, 2), (1000, 1)):
        bag = Bag(len(bundled))
        explain_pair(bundled, bag, "dog " * (length - 2), None, length)
        assert bag.largest == rows


def test_a_tokenizer_that_knows_no_characters_is_refused() -> None:
    with pytest.raises(ModelError, match="CanineTokenizer does not say which characters"):
        explain_pair(CanineTokenizer(), Bag(10), "dogs", "cats", 32)
    nameless = byte_level()
    nameless.pad_token = None
    with pytest.raises(ModelError, match="no padding, mask or unknown token"):
        explain_pair(nameless, Bag(300), "dogs", "cats", 32)
