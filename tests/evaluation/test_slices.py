from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import fisher_exact
from sklearn.metrics import accuracy_score
from statsmodels.stats.multitest import multipletests

from finetune.evaluation import slices
from finetune.evaluation.slices import Slice, Traits
from finetune.metrics import intervals

Array = NDArray[np.int64]
NAMES = ["no", "yes"]
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def pair(first: str, second: str) -> dict[str, float]:
    """The traits of one pair."""
    traits = slices.pair_traits([first], [second])
    return {name: values[0] for name, values in vars(traits).items()}


def drawn(n: int, seed: int = 0) -> Traits:
    """Traits as of a set of pairs of news."""
    draw = np.random.default_rng(seed)
    number, negation = draw.random(n) < 0.6, draw.random(n) < 0.2
    return Traits(
        words=draw.integers(18, 62, size=n),
        overlap=draw.beta(5, 5, size=n).round(2),
        number=number,
        number_differs=number & (draw.random(n) < 0.5),
        negation=negation,
        negation_differs=negation & (draw.random(n) < 0.4),
    )


def judged(traits: Traits, right: NDArray[np.bool_], labels: Array | None = None) -> list[Slice]:
    labels = np.arange(len(right)) % 2 if labels is None else labels
    return slices.score_slices(traits, labels, np.where(right, labels, 1 - labels), NAMES)


def test_a_pair_is_read() -> None:
    assert pair("The cat sat on 12 mats .", "the cat did n't sit") == {
        "words": 6 + 6,
        "overlap": 2 / 10,  # the, cat of the cat sat on 12 mats did n t sit
        "number": True,
        "number_differs": True,
        "negation": True,
        "negation_differs": True,
    }


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ("a b", "A B", 1), ("a b", "c d", 0), ("a a b", "b", 0.5), ("", "", 0), ("!", "a", 0),
        ("naïve café", "NAÏVE CAFÉ", 1),
        ("我们去北京。", "我们在北京，Hello世界", 4 / 9),  # a character is a word
        ("カタカナ・です", "カタカナ", 3 / 6),
    ],
)  # fmt: skip
def test_overlap_is_jaccards(first: str, second: str, overlap: float) -> None:
    assert pair(first, second)["overlap"] == overlap


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It costs $ 5", True), ("covid19", True), ("twelve apostles", True), ("fifteen", True),
        ("eighty-one", True), ("a dozen", True), ("Two of them", True), ("the tenor", False),
    ],
)  # fmt: skip
def test_digits_and_number_words_are_numbers(text: str, number: bool) -> None:
    assert pair(text, "")["number"] == number


@pytest.mark.parametrize(
    ("first", "second", "differs"),
    [
        ("1,000 of 3", "3 of 1000", False), ("5 %", "5.5 %", True), ("in 2003", "then", True),
        ("two", "three", False), ("1 1 2", "2 , 1 .", False),
    ],
)  # fmt: skip
def test_numbers_differ_as_sets(first: str, second: str, differs: bool) -> None:
    assert pair(first, second)["number_differs"] == differs


@pytest.mark.parametrize(
    ("text", "negation"),
    [
        ("He did not go", True), ("NEVER", True), ("didn't", True), ("did n't", True),
        ("didn 't", True), ("didn’t", True), ("cannot", True), ("none .", True), ("knots", False),
        ("a notable note", False), ("it's", False), ("", False),
    ],
)  # fmt: skip
def test_negations_are_found(text: str, negation: bool) -> None:
    assert pair(text, text)["negation"] == pair("yes", text)["negation_differs"] == negation
    assert not pair(text, text)["negation_differs"]


def test_slices_hold_what_their_values_say() -> None:
    traits, draw = drawn(408), np.random.default_rng(1)
    by_trait: dict[str, list[Slice]] = {}
    for part in judged(traits, draw.random(408) < 0.85):
        by_trait.setdefault(part.trait, []).append(part)
    assert {trait: len(parts) for trait, parts in by_trait.items()} == {
        "words": 4, "overlap": 4, "number": 2, "number differs": 2, "negation": 2,
        "negation differs": 2, "class": 2,
    }  # fmt: skip
    for trait, parts in by_trait.items():
        assert sum(part.count for part in parts) == 408, trait
    for trait, values in (("words", traits.words), ("overlap", traits.overlap)):
        for part in by_trait[trait]:
            assert re.fullmatch(r"(over [\d.]+ )?up to [\d.]+", part.value)
            *low, high = (float(end) for end in re.findall(r"[\d.]+", part.value))
            inside = (values <= high) & (values > (low[0] if low else -1))
            assert part.count == inside.sum()
            assert 60 < part.count < 150
    assert by_trait["negation"][0].value == "yes"
    assert by_trait["negation"][0].count == traits.negation.sum()


def test_the_accuracy_of_a_slice_is_that_of_its_examples() -> None:
    traits, draw = drawn(300), np.random.default_rng(2)
    labels = draw.integers(3, size=300)
    predictions = np.where(draw.random(300) < 0.8, labels, draw.integers(3, size=300))
    parts = slices.score_slices(traits, labels, predictions, ["a", "b", "c"])
    by_value = {(part.trait, part.value): part for part in parts}
    part, members = by_value["number", "yes"], traits.number
    assert part.accuracy.value == accuracy_score(labels[members], predictions[members])
    right = int((labels == predictions)[members].sum())
    assert part.accuracy == intervals.wilson_interval(right, int(members.sum()))
    assert by_value["class", "a"].count == (labels == 0).sum()


def test_of_single_sentences_there_is_no_overlap_and_no_difference() -> None:
    traits = slices.pair_traits(["a word", "a Word", "no Word 3"])
    labels = np.array([0, 1, 0])
    parts = slices.score_slices(traits, labels, labels, NAMES)
    assert {part.trait for part in parts} == {"words", "number", "negation", "class"}


@pytest.mark.parametrize("n", [0, 1, 10])
@pytest.mark.parametrize("right", [True, False])
def test_few_examples_of_a_single_class_are_no_trouble(n: int, right: bool) -> None:
    traits = slices.pair_traits(["One word"] * n, ["1 word"] * n)
    parts = judged(traits, np.full(n, right), np.ones(n, dtype=np.int64))
    assert all(part.count == n and part.accuracy.value == right for part in parts)
    assert not any(part.weak for part in parts)


def test_a_slice_is_weak_by_fishers_test_after_holm() -> None:
    """As libraries have it that compute both."""
    random, weak = np.random.default_rng(6), 0
    for seed in range(4):
        traits = drawn(300, seed)
        right = random.random(300) < np.where(traits.negation, 0.7, 0.88)
        parts = judged(traits, right)
        p_values = []
        for part in parts:
            hits = round(part.accuracy.value * part.count)
            table = [[hits, part.count - hits], [right.sum() - hits, 0]]
            table[1][1] = 300 - part.count - table[1][0]
            p_values.append(fisher_exact(table, alternative="less").pvalue)
        judgements = multipletests(p_values, alpha=0.05, method="holm")[0]
        assert [part.weak for part in parts] == judgements.tolist()
        weak += judgements.any()
    assert 0 < weak < 4


def test_a_planted_weak_slice_is_found_and_only_that() -> None:
    draw = np.random.default_rng(4)
    traits, sets = drawn(408), 50
    hits, others, alarms = 0, 0, 0
    for _ in range(sets):
        chance = np.where(traits.negation, 0.65, 0.9)
        weak = {(part.trait, part.value) for part in judged(traits, draw.random(408) < chance)
                if part.weak}  # fmt: skip
        weak -= {("negation differs", "yes")}  # a part of the planted one
        hits += ("negation", "yes") in weak
        others += bool(weak - {("negation", "yes")})
        alarms += any(part.weak for part in judged(traits, draw.random(408) < 0.85))
    assert hits / sets > 0.85
    assert others / sets < 0.1
    assert alarms / sets < 0.1


def test_a_slice_of_few_examples_is_never_called_weak() -> None:
    for few, weak in ((9, []), (10, ["yes"])):
        parts = judged(
            slices.pair_traits(["none"] * few + ["yes"] * 300), np.arange(few + 300) >= few
        )
        assert [part.value for part in parts if part.trait == "negation" and part.weak] == weak
