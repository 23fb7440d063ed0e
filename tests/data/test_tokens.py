"""What a checkpoint's tokenizer makes of texts: how many tokens, cut where, whether it knows the
language."""

import json
import re
import resource
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from finetune.config import RunConfig
from finetune.data import catalog, checkpoints, dataset_cache, token_lengths
from finetune.data.token_lengths import poor_fit
from finetune.inference.scorer import Scorer

LANGUAGES = [
    json.loads(line)
    for line in Path(__file__).with_name("languages.jsonl").read_text("utf-8").splitlines()
]
TEXTS = {row["kind"]: row["text"] for row in LANGUAGES}


@pytest.fixture(scope="module")
def bundled():
    return AutoTokenizer.from_pretrained(checkpoints.bundled_folder())


@pytest.mark.parametrize("row", LANGUAGES, ids=[*TEXTS])
def test_an_english_checkpoint_does_not_know_other_languages(row, bundled):
    """What it can read, such as code and numbers, is not accused."""
    assert bool([*poor_fit(bundled, [row["text"]] * 2, "")]) == row["poor"]


@pytest.mark.parametrize(
    ("language", "pieces"), [("Chinese", "."), ("Korean", r"\w+"), ("Thai", "..?.?")]
)
def test_a_tokenizer_that_knows_a_language_by_characters_or_words_is_not_accused(language, pieces):
    """Those made for Chinese have a piece for each character, others longer ones."""
    words = re.findall(r"[^\W\d]+", TEXTS[language])
    found = [piece for word in words for piece in re.findall(pieces, word)]
    vocabulary = {piece: at for at, piece in enumerate({"[UNK]", *found})}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.Split(Regex(pieces), "isolated")
    ])  # fmt: skip
    known = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    assert not [*poor_fit(known, [" ".join(words)] * 2, "")]


def test_they_are_those_of_the_checkpoints_own_tokenizer(tmp_path):
    tokenizer = token_lengths.tokenizer_file(RunConfig().checkpoint)
    dataset = dataset_cache.read_dataset(RunConfig(), tmp_path)
    own = AutoTokenizer.from_pretrained(str(tokenizer.parent))
    rows = dataset.texts("train")
    token_ids = own(list(rows["sentence1"]), list(rows["sentence2"]), truncation=False)["input_ids"]
    counted = np.array(list(map(len, token_ids)))
    for path in (dataset.folder / "train.arrow", catalog.BUNDLED_PAIRS / "train.csv"):
        lengths = token_lengths.measure_lengths(path, tokenizer)
        assert lengths.bins == token_lengths.length_histogram(counted)
        assert (lengths.rows, lengths.of, lengths.longest) == (2038, 2038, int(counted.max()))


SHORT = "the cat sees a dog ."
LONG = [
    SHORT, "the cat sees a dog . " * 20, "\u732b\u72ac" * 75, "x" * 200, "\U0001f600" * 70,
    f"{'y' * 99} " * 3, " " * 500 + SHORT, "e\u0301\u200b" * 100, "a\n\t" * 150,
]  # fmt: skip


@pytest.mark.parametrize(("name", "max_length"), [("toy", 31), ("bundled", 8)])
def test_inputs_are_truncated_to_the_same_tokens(toy_checkpoint, name, max_length):
    bundled = checkpoints.local_folder(RunConfig().checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(toy_checkpoint if name == "toy" else bundled)
    pairs = [(first, second) for first in LONG for second in LONG]
    columns = [list(side) for side in zip(*pairs, strict=True)]
    rows = token_lengths.cut_inputs(tokenizer, pairs, max_length)
    cut = [list(side) for side in zip(*rows, strict=True)]
    for sides in (columns, columns[:1]):
        expected = tokenizer(*sides, truncation=True, max_length=max_length)
        again = tokenizer(*cut[: len(sides)], truncation=True, max_length=max_length)
        assert again["input_ids"] == expected["input_ids"]
    lengths = map(len, tokenizer(cut[0], add_special_tokens=False, verbose=False)["input_ids"])
    assert max(lengths) <= 2 * max_length + 1
    assert cut[0][0] == SHORT


def test_a_pair_of_long_sentences_takes_little_memory(toy_checkpoint):
    """The tokenizer alone would make gigabytes of encodings, one for each pair of cut-off parts."""
    scorer = Scorer(toy_checkpoint, 32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first, second = "the cat " * 2000, "a dog sees " * 1400
    ((_, tokens, cut),) = scorer.stream([(first, second)])
    assert (tokens[0], cut[0]) == (32, 2 * 2000 + 3 * 1400 + 3 - 32)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB
