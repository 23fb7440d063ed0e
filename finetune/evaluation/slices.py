"""The accuracy of groups of examples that share a trait of their texts, and which groups are weak.

Traits come from a few lists of English words, digits and capitals, without a language model: a
first hint at what to look at.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.metrics import classification, intervals
from finetune.metrics.classification import Floats, Indices, Truths
from finetune.metrics.intervals import Interval

NUMBERS = frozenset({
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
    "hundred", "hundreds", "thousand", "thousands", "million", "millions", "billion", "billions",
    "trillion", "trillions", "dozen", "dozens",
})  # fmt: skip
NEGATIONS = frozenset({
    "no", "not", "never", "none", "nobody", "nothing", "nowhere", "neither", "nor", "without",
    "cannot",
})  # fmt: skip
MOST_CLASSES = 20
ALPHA = 0.05
TESTED = 10  # examples; of fewer, no accuracy says much
_QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Traits:
    """Traits of examples, each of shape (examples,).

    Args:
        words: words of both sentences together.
        overlap: Jaccard index of the two sets of lower-cased words, 0 for none in common, 1 for
            the same set (also where both are empty); nan for single sentences.
        number: a digit or an English number word is in either sentence.
        number_differs: the numbers in digits are not the same ones; False for single sentences.
        negation: an English negation (not, n't, no, never, ...) is in either sentence.
        negation_differs: one is in exactly one of the two; False for single sentences.
        name: a capitalised word that does not begin a sentence is in either sentence.
    """

    words: NDArray[np.int64]
    overlap: Floats
    number: Truths
    number_differs: Truths
    negation: Truths
    negation_differs: Truths
    name: Truths


@dataclass(frozen=True)
class Slice:
    """The examples of one value of one trait.

    Args:
        trait: `words`, `overlap`, `number`, `number differs`, `negation`, `negation differs`,
            `name` or `class`.
        value: which of its values, in words: "32 to 40 words", "yes", the name of a class.
        count: examples, at least 1.
        accuracy: among them, with Wilson's interval.
        f1: among them; None where it says nothing: within one class, and of two classes where the
            positive one neither occurs nor is predicted.
        weak: the accuracy is significantly below that of all other examples.
    """

    trait: str
    value: str
    count: int
    accuracy: Interval
    f1: float | None
    weak: bool

    @property
    def judged(self) -> bool:
        """Whether it holds enough examples to be tested."""
        return self.count >= TESTED


def pair_traits(sentence1: Sequence[str], sentence2: Sequence[str] | None = None) -> Traits:
    r"""Read the traits of texts.

    A word is a run of letters, digits and underscores (Python's `\w`, and the marks that follow a
    letter in many scripts); in scripts without spaces each character is one."""
    seconds = repeat(None, len(sentence1)) if sentence2 is None else sentence2
    rows = (
        _pair(_read(first), None if second is None else _read(second))
        for first, second in zip(sentence1, seconds, strict=True)
    )
    columns = list(zip(*rows, strict=True)) or [() for _ in fields(Traits)]
    kinds: list[type] = [np.int64, np.float64] + [np.bool_] * 5
    arrays: list[NDArray[Any]] = [
        np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)
    ]
    return Traits(*arrays)


def score_slices(
    traits: Traits, labels: Indices, predictions: Indices, positive: int, names: Sequence[str]
) -> list[Slice]:
    """The accuracy of each group of examples that share a trait, and which groups are weak.

    Groups are up to four bins of words and of overlap, each yes/no trait, and each of the 20 most
    frequent true classes. One of 10 examples or more is weak where its accuracy is below that of
    all other examples by Fisher's exact test, one-sided, at 5% over all groups together after Holm.

    Source: Holm 1979, A Simple Sequentially Rejective Multiple Test Procedure,
    https://www.jstor.org/stable/4615733.
    """
    from scipy.stats import hypergeom

    right = labels == predictions
    total, right_in_all = len(labels), int(right.sum())
    groups = [group for group in _groups(traits, labels, names) if group[2].any()]
    counts = [int(members.sum()) for _, _, members in groups]
    hits = [int(right[members].sum()) for _, _, members in groups]
    # Fisher's test: so few right among so many drawn at random.
    p_values = hypergeom.cdf(hits, total, right_in_all, counts).tolist() if groups else []
    tested = {i: p_values[i] for i, count in enumerate(counts) if TESTED <= count < total}
    weak = holm_rejections(tested)
    return [
        Slice(
            trait=trait,
            value=value,
            count=counts[index],
            accuracy=intervals.wilson_interval(hits[index], counts[index]),
            f1=None
            if trait == "class"
            else _f1(labels[members], predictions[members], len(names), positive),
            weak=index in weak,
        )
        for index, (trait, value, members) in enumerate(groups)
    ]


def holm_rejections(p_values: dict[int, float]) -> set[int]:
    """The hypotheses that are rejected at 5% together: from the least p value on, each at alpha
    over those left."""
    rejected: set[int] = set()
    for place, index in enumerate(sorted(p_values, key=lambda index: p_values[index])):
        if p_values[index] > ALPHA / (len(p_values) - place):
            break
        rejected.add(index)
    return rejected


def _f1(labels: Indices, predictions: Indices, classes: int, positive: int) -> float | None:
    if classes == 2 and not ((labels == positive) | (predictions == positive)).any():
        return None
    confusion = classification.confusion_matrix(labels, predictions, classes)
    return classification.accuracy_and_f1(confusion, positive)["f1"]


class _Text(NamedTuple):
    """What one text holds; `numbers` are those in digits."""

    length: int
    words: frozenset[str]
    number: bool
    numbers: frozenset[str]
    negation: bool
    name: bool


# Scripts without spaces between words: kana, Han, Thai, Lao, Burmese, Khmer.
_SPACELESS = (
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
)
_SPACED = {code: " " for code in range(128) if not re.match(r"\w", chr(code))}


_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")
_NOT = re.compile(r"n ?['’]t\b")


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of a word and of a name; made at the first text, for a walk over all letters takes 10 ms."""
    plane = [chr(number) for number in range(0x10000)]
    capital = "".join(char for char in plane if char.isupper())
    mark = "".join(char for char in plane[0x300:] if unicodedata.category(char)[0] == "M")
    word = rf"(?=\w)[{_SPACELESS}][{mark}]*|[^\W{_SPACELESS}](?:[^\W{_SPACELESS}]|[{mark}])*"
    # After a word or a comma, or after an initial or a title with a full stop, two characters at
    # least: neither "I" nor the "The" of a new or a quoted sentence.
    name = (
        rf"\s\(?(?=[{capital}]\w)(?:(?<=[^\s.!?…\"'“”„«(]\s)|(?<=[^\s.!?…\"'“”„«(]\s\()"
        rf"|(?<=\b[{capital}]\.\s)|(?<=\bMr\.\s)|(?<=\bMs\.\s)|(?<=\bDr\.\s)"
        rf"|(?<=\bSt\.\s)|(?<=\bMrs\.\s))"
    )
    return re.compile(word), re.compile(name)


def _read(text: str) -> _Text:
    word, name = _patterns()
    lower = text.lower()
    # Of ASCII, splitting at all else than \w finds the same words in a third of the time.
    words = lower.translate(_SPACED).split() if lower.isascii() else word.findall(lower)
    vocabulary = frozenset(words)
    numbers = frozenset(digits.replace(",", "") for digits in _DIGITS.findall(lower))
    shortened = "'t" in lower or "’t" in lower
    return _Text(
        length=len(words),
        words=vocabulary,
        number=bool(numbers) or not vocabulary.isdisjoint(NUMBERS),
        numbers=numbers,
        negation=not vocabulary.isdisjoint(NEGATIONS)
        or (shortened and _NOT.search(lower) is not None),
        name=name.search(text) is not None,
    )


def _pair(first: _Text, second: _Text | None) -> tuple[Any, ...]:
    """The traits of one example, in the order of `Traits`."""
    if second is None:
        return first.length, np.nan, first.number, False, first.negation, False, first.name
    shared = len(first.words & second.words)
    either = len(first.words) + len(second.words) - shared
    return (
        first.length + second.length,
        shared / either if either else 1.0,
        first.number or second.number,
        first.numbers != second.numbers,
        first.negation or second.negation,
        first.negation != second.negation,
        first.name or second.name,
    )


def _groups(
    traits: Traits, labels: Indices, names: Sequence[str]
) -> Iterator[tuple[str, str, Truths]]:
    """Trait, value and members of each group; some may hold no example."""
    if not len(labels):
        return
    pairs = not np.isnan(traits.overlap).any()
    yield from _word_bins(traits.words)
    if pairs:
        yield from _overlap_bins(traits.overlap)
    for trait in ("number", "number_differs", "negation", "negation_differs", "name"):
        if pairs or not trait.endswith("differs"):
            members = getattr(traits, trait)
            yield trait.replace("_", " "), "yes", members
            yield trait.replace("_", " "), "no", ~members
    counts = np.bincount(labels, minlength=len(names))
    for index in np.argsort(-counts, kind="stable")[:MOST_CLASSES]:
        yield "class", names[index], labels == index


def _word_bins(words: NDArray[np.int64]) -> Iterator[tuple[str, str, Truths]]:
    """Bins from above one edge up to the next."""
    edges = np.unique(np.quantile(words, _QUARTILES, method="lower"))
    edges = edges[edges < words.max()].astype(np.int64)
    index = np.searchsorted(edges, words, side="left")
    lows: list[int | None] = [None, *(edges + 1).tolist()]
    for number, (low, high) in enumerate(zip(lows, [*edges.tolist(), None], strict=True)):
        yield "words", _word_range(low, high, int(words.max())), index == number


def _word_range(low: int | None, high: int | None, most: int) -> str:
    if low is not None and high is None:
        return f"{low} words or more"
    high = most if high is None else high
    unit = "word" if high == 1 else "words"
    if low is None:
        return f"up to {high} {unit}"
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"


def _overlap_bins(overlap: Floats) -> Iterator[tuple[str, str, Truths]]:
    """Bins from one edge up to below the next."""
    edges = np.unique(np.quantile(overlap, _QUARTILES).round(2))
    edges = edges[(edges > overlap.min()) & (edges <= overlap.max())]
    index = np.searchsorted(edges, overlap, side="right")
    values = [f"overlap {overlap.min():.2f} to {overlap.max():.2f}"]
    if len(edges):
        between = [f"overlap {low:.2f} to {high:.2f}" for low, high in pairwise(edges)]
        values = [f"overlap under {edges[0]:.2f}", *between, f"overlap {edges[-1]:.2f} or more"]
    for number, value in enumerate(values):
        yield "overlap", value, index == number
