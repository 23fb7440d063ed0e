from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import fisher_exact
from statsmodels.stats.multitest import multipletests

from finetune.evaluation import slices
from finetune.evaluation.slices import Slice, Traits

NAMES = ["no", "yes"]
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


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


def judged(traits: Traits, right: NDArray[np.bool_]) -> list[Slice]:
    labels = np.arange(len(right)) % 2
    return slices.score_slices(traits, labels, np.where(right, 0.0, 1.0), NAMES)


@pytest.mark.parametrize(
    ("trait", "first", "second", "value"),
    [
        ("words", "The cat sat on 12 mats .", "the cat did n't sit", 6 + 6),
        ("overlap", "a b", "A B", 1), ("overlap", "a a b", "b", 0.5), ("overlap", "", "", 0),
        ("overlap", "naïve café", "NAÏVE CAFÉ", 1),
        ("overlap", "我们去北京。", "我们在北京，Hello世界", 4 / 9),  # a character is a word
        ("number", "It costs $ 5", "", True), ("number", "eighty-one", "", True),
        ("number", "a dozen", "", True), ("number", "the tenor", "", False),
        ("number_differs", "1,000 of 3", "3 of 1000", False),
        ("number_differs", "5 %", "5.5 %", True), ("number_differs", "two", "three", False),
        ("negation", "He did not go", "", True), ("negation", "NEVER", "", True),
        ("negation", "did n't", "", True), ("negation", "didn’t", "", True),
        ("negation", "cannot", "", True), ("negation", "a notable knot", "", False),
        ("negation_differs", "didn't", "yes", True), ("negation_differs", "no", "never", False),
    ],
)  # fmt: skip
def test_a_trait_of_a_pair_is_read(trait: str, first: str, second: str, value: float) -> None:
    assert getattr(slices.pair_traits([first], [second]), trait)[0] == value


def test_a_slice_is_weak_by_fishers_test_after_holm() -> None:
    """As libraries have it that compute both."""
    random, weak = np.random.default_rng(6), 0
    for seed in range(4):
        traits = drawn(300, seed)
        right = random.random(300) < np.where(traits.negation, 0.7, 0.88)
        parts = judged(traits, right)
        p_values = []
        for part in parts:
            hits = round(part.result.value * part.count)
            table = [[hits, part.count - hits], [right.sum() - hits, 0]]
            table[1][1] = 300 - part.count - table[1][0]
            p_values.append(fisher_exact(table, alternative="less").pvalue)
        judgements = multipletests(p_values, alpha=0.05, method="holm")[0]
        assert [part.weak for part in parts] == judgements.tolist()
        weak += judgements.any()
    assert 0 < weak < 4
