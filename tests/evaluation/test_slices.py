from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import fisher_exact
from sklearn.metrics import accuracy_score, f1_score
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from finetune.evaluation import slices
from finetune.evaluation.slices import Slice, Traits

Array = NDArray[np.int64]
NAMES = ["no", "yes"]


@pytest.fixture(autouse=True)
def warnings_are_errors() -> None:
    warnings.simplefilter("error", RuntimeWarning)


def pair(first: str, second: str) -> dict[str, float]:
    """The traits of one pair."""
    found = slices.pair_traits([first], [second])
    return {name: getattr(found, name)[0] for name in vars(found)}


def single(text: str) -> dict[str, float]:
    found = slices.pair_traits([text])
    return {name: getattr(found, name)[0] for name in vars(found)}


def drawn(n: int, seed: int = 0) -> Traits:
    """Traits as of a set of pairs of news."""
    draw = np.random.default_rng(seed)
    number, negation = draw.random(n) < 0.6, draw.random(n) < 0.2
    return Traits(
        words=draw.integers(18, 62, size=n),
        overlap=draw.beta(5, 5, size=n),
        number=number,
        number_differs=number & (draw.random(n) < 0.5),
        negation=negation,
        negation_differs=negation & (draw.random(n) < 0.4),
        name=draw.random(n) < 0.85,
    )


def judged(traits: Traits, right: NDArray[np.bool_], labels: Array | None = None) -> list[Slice]:
    labels = np.arange(len(right)) % 2 if labels is None else labels
    return slices.score_slices(traits, labels, np.where(right, labels, 1 - labels), 1, NAMES)


def test_a_pair_is_read() -> None:
    found = pair("The cat sat on 12 mats .", "the cat did n't sit")
    assert found["words"] == 6 + 6
    assert found["overlap"] == 2 / 10  # the, cat of the cat sat on 12 mats did n t sit
    assert found["number"]
    assert found["number_differs"]
    assert found["negation"]
    assert found["negation_differs"]
    assert not found["name"]


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [("a b", "A B", 1), ("a b", "c d", 0), ("a a b", "b", 0.5), ("", "", 1), ("!", "a", 0)],
)
def test_overlap_is_jaccards(first: str, second: str, overlap: float) -> None:
    assert pair(first, second)["overlap"] == overlap


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It costs $ 5", True), ("covid19", True), ("twelve apostles", True),
        ("a dozen", True), ("Two of them", True), ("the tenor", False), ("", False),
    ],
)  # fmt: skip
def test_digits_and_number_words_are_numbers(text: str, number: bool) -> None:
    assert single(text)["number"] == number


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
        ("didn 't", True), ("didn’t", True), ("can't", True), ("cannot", True),
        ("without it", True), ("nobody", True), ("none .", True), ("knots", False),
        ("a notable note", False), ("an't-hill hasn'ts", True), ("it's", False), ("", False),
    ],
)  # fmt: skip
def test_negations_are_found(text: str, negation: bool) -> None:
    assert single(text)["negation"] == negation
    assert pair("yes", text)["negation_differs"] == negation
    assert pair(text, text)["negation_differs"] == False  # noqa: E712


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("He met Smith .", True), ("Shares of IBM fell", True), ("fell ( Reuters )", False),
        ("fell (Reuters)", True), ("Mr. Smith", True), ("by J. Smith", True), ("in Αθήνα", True),
        ("die Stadt", True), ("à Évian", True),
        ("The dog . The cat .", False), ("The dog. The cat! The cow?", False),
        ('He said , " The dog "', False), ("He said, “The dog", False), ("I think I am", False),
        ("Reuters", False), ("no name", False), ("北京 北京", False), ("", False),
    ],
)  # fmt: skip
def test_a_capital_within_a_sentence_is_a_name(text: str, name: bool) -> None:
    assert single(text)["name"] == name


def test_scripts_without_spaces_are_read_by_characters() -> None:
    found = pair("我们去北京。", "我们在北京，Hello世界")
    assert found["words"] == 5 + 8
    assert found["overlap"] == 4 / 9
    assert pair("ภาษาไทย", "ภาษา")["overlap"] == 3 / 6
    assert pair("カタカナ・です", "カタカナ")["overlap"] == 3 / 5
    assert single("हिन्दी में")["words"] == 2  # the vowel signs belong to their letters
    assert pair("naïve café", "NAÏVE CAFÉ")["overlap"] == 1


@given(st.text(alphabet=[chr(code) for code in range(128)]))
def test_ascii_words_are_those_of_the_regular_expression(text: str) -> None:
    expected = re.findall(r"\w+", text.lower())
    assert single(text)["words"] == len(expected)
    assert pair(text, " ".join(expected))["overlap"] == 1


@given(st.lists(st.tuples(st.text(), st.text()), max_size=3))
def test_any_text_can_be_read(rows: list[tuple[str, str]]) -> None:
    found = slices.pair_traits([first for first, _ in rows], [second for _, second in rows])
    assert ((found.overlap >= 0) & (found.overlap <= 1)).all()
    assert (found.words >= 0).all()


def test_slices_hold_what_their_values_say() -> None:
    traits, draw = drawn(408), np.random.default_rng(1)
    found = judged(traits, draw.random(408) < 0.85)
    by_trait: dict[str, list[Slice]] = {}
    for one in found:
        by_trait.setdefault(one.trait, []).append(one)
    assert list(by_trait) == [
        "words", "overlap", "number", "number differs", "negation", "negation differs", "name",
        "class",
    ]  # fmt: skip
    for trait, some in by_trait.items():
        assert sum(one.count for one in some) == 408, trait
    assert [len(some) for some in by_trait.values()] == [4, 4, 2, 2, 2, 2, 2, 2]
    for one in by_trait["words"]:
        low, high = words_of(one.value)
        assert one.count == ((traits.words >= low) & (traits.words <= high)).sum()
        assert 60 < one.count < 150
    for one in by_trait["overlap"]:
        ends = [float(end) for end in re.findall(r"[\d.]+", one.value)]
        low = -np.inf if "under" in one.value else ends[0]
        upper = np.inf if "more" in one.value else ends[-1]
        assert one.count == ((traits.overlap >= low) & (traits.overlap < upper)).sum()
        assert 60 < one.count < 150
    assert by_trait["negation"][0].value == "yes"
    assert by_trait["negation"][0].count == traits.negation.sum()


def words_of(value: str) -> tuple[float, float]:
    ends = [float(end) for end in re.findall(r"\d+", value)]
    if value.startswith("up to"):
        return -np.inf, ends[0]
    return ends[0], np.inf if value.endswith("more") else ends[-1]


@pytest.mark.parametrize("classes", [2, 3])
def test_the_scores_of_a_slice_equal_the_libraries(classes: int) -> None:
    traits, draw = drawn(300), np.random.default_rng(2)
    labels = draw.integers(classes, size=300)
    predictions = np.where(draw.random(300) < 0.8, labels, draw.integers(classes, size=300))
    found = slices.score_slices(traits, labels, predictions, 1, ["a", "b", "c"][:classes])
    mine = {(one.trait, one.value): one for one in found}
    one, some = mine["number", "yes"], traits.number
    assert one.accuracy.value == pytest.approx(accuracy_score(labels[some], predictions[some]))
    right = int((labels == predictions)[some].sum())
    expected = proportion_confint(right, int(some.sum()), method="wilson")
    assert (one.accuracy.low, one.accuracy.high) == pytest.approx(expected)
    average = "binary" if classes == 2 else "macro"
    assert one.f1 == pytest.approx(f1_score(labels[some], predictions[some], average=average))
    assert mine["class", "a"].count == (labels == 0).sum()
    assert mine["class", "a"].f1 is None


def test_of_single_sentences_there_is_no_overlap_and_no_difference() -> None:
    traits = slices.pair_traits(["one word", "a Word", "no Word 3"])
    labels = np.array([0, 1, 0])
    found = slices.score_slices(traits, labels, labels, 1, NAMES)
    assert {one.trait for one in found} == {"words", "number", "negation", "name", "class"}
    assert np.isnan(traits.overlap).all()


def test_f1_is_none_where_the_positive_class_is_not_there() -> None:
    traits = slices.pair_traits(["1"] * 3 + ["a"] * 3)
    labels = np.array([0, 0, 0, 1, 1, 0])
    found = slices.score_slices(traits, labels, labels, 1, NAMES)
    f1 = {one.value: one.f1 for one in found if one.trait == "number"}
    assert f1 == {"yes": None, "no": 1.0}


@pytest.mark.parametrize(
    ("counts", "values"),
    [
        ([1], ["up to 1 word"]), ([7] * 9, ["up to 7 words"]), ([0, 0], ["up to 0 words"]),
        ([1, 2, 3, 4], ["up to 1 word", "2 words", "3 words", "4 words or more"]),
        ([5, 5, 5, 5, 5, 9], ["up to 5 words", "6 words or more"]),
        (list(range(1, 13)), ["up to 3 words", "4 to 6 words", "7 to 9 words", "10 words or more"]),
    ],
)  # fmt: skip
def test_bins_of_words_are_named(counts: list[int], values: list[str]) -> None:
    traits = slices.pair_traits([" ".join("w" * count) for count in counts])
    zeros = np.zeros(len(counts), dtype=np.int64)
    found = slices.score_slices(traits, zeros, zeros, 1, NAMES)
    assert [one.value for one in found if one.trait == "words"] == values


def test_an_overlap_that_never_varies_is_one_slice() -> None:
    for first, second, value in (("a", "a", "1.00 to 1.00"), ("a", "b", "0.00 to 0.00")):
        found = judged(slices.pair_traits([first] * 12, [second] * 12), np.arange(12) < 9)
        overlaps = [one for one in found if one.trait == "overlap"]
        assert [(one.value, one.count) for one in overlaps] == [(f"overlap {value}", 12)]
        assert not any(one.weak for one in overlaps)  # there are no others to compare with


@pytest.mark.parametrize("n", [1, 10])
@pytest.mark.parametrize("right", [True, False])
def test_few_examples_of_a_single_class_are_no_trouble(n: int, right: bool) -> None:
    traits = slices.pair_traits(["One word"] * n, ["1 word"] * n)
    found = judged(traits, np.full(n, right), np.ones(n, dtype=np.int64))
    assert all(one.count == n and one.accuracy.value == right for one in found)
    assert not any(one.weak for one in found)


def test_nothing_has_no_slices() -> None:
    assert judged(slices.pair_traits([]), np.zeros(0, dtype=bool)) == []


def test_a_slice_is_weak_by_fishers_test_after_holm() -> None:
    """As libraries have it that compute both."""
    random, weak = np.random.default_rng(6), 0
    for seed in range(8):
        traits = drawn(300, seed)
        right = random.random(300) < np.where(traits.negation, 0.7, 0.88)
        found = judged(traits, right)
        p_values = []
        for one in found:
            hits = round(one.accuracy.value * one.count)
            table = [[hits, one.count - hits], [right.sum() - hits, 0]]
            table[1][1] = 300 - one.count - table[1][0]
            p_values.append(fisher_exact(table, alternative="less").pvalue)
        judgements = multipletests(p_values, alpha=0.05, method="holm")[0]
        assert [one.weak for one in found] == judgements.tolist()
        weak += judgements.any()
    assert 0 < weak < 8
    assert slices.holm_rejections({}) == set()


def test_without_a_true_difference_hardly_a_set_has_a_weak_slice() -> None:
    draw = np.random.default_rng(3)
    traits, sets = drawn(408), 150
    alarms = sum(
        any(one.weak for one in judged(traits, draw.random(408) < 0.85)) for _ in range(sets)
    )
    assert alarms / sets < 0.08


def test_a_planted_weak_slice_is_found_and_only_that() -> None:
    draw = np.random.default_rng(4)
    traits, sets = drawn(408), 50
    found, others = 0, 0
    for _ in range(sets):
        chance = np.where(traits.negation, 0.65, 0.9)
        judgement = judged(traits, draw.random(408) < chance)
        weak = {(one.trait, one.value) for one in judgement if one.weak}
        weak -= {("negation differs", "yes")}  # a part of the planted one
        found += ("negation", "yes") in weak
        others += bool(weak - {("negation", "yes")})
    assert found / sets > 0.85
    assert others / sets < 0.08


def test_a_slice_of_few_examples_is_never_called_weak() -> None:
    traits = slices.pair_traits(["none"] * 9 + ["yes"] * 300)
    found = judged(traits, np.arange(309) >= 9)
    assert not any(one.weak for one in found if one.trait == "negation")
    traits = slices.pair_traits(["none"] * 10 + ["yes"] * 300)
    found = judged(traits, np.arange(310) >= 10)
    assert [one.value for one in found if one.trait == "negation" and one.weak] == ["yes"]
