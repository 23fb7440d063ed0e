"""Where a classifier is weak: the accuracy of groups of examples that share a trait of their texts.

Traits are read off the letters alone, without a language model: a few lists of English words,
digits and capitals. They are a first hint at what to look at, not linguistics. Knows nothing of
how the predictions came about.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.metrics import intervals
from finetune.metrics.intervals import Interval

Indices = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
Truths = NDArray[np.bool_]

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
_BINS = 4


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
    letter in many scripts); in scripts without spaces each character is one. Numbers in digits
    are compared without the commas that group them.

    Args:
        sentence1: one text an example.
        sentence2: their other sentences; None for single ones.

    Source of the overlap: Jaccard 1912, The distribution of the flora in the alpine zone, New
    Phytologist 11(2), 37-50, https://doi.org/10.1111/j.1469-8137.1912.tb05611.x.
    """
    if sentence2 is None:
        rows: Iterator[tuple[Any, ...]] = (_single(_read(text)) for text in sentence1)
    else:
        both = zip(sentence1, sentence2, strict=True)
        rows = (_pair(_read(first), _read(second)) for first, second in both)
    columns = list(zip(*rows, strict=True)) or [() for _ in fields(Traits)]
    kinds: list[type] = [np.int64, np.float64] + [np.bool_] * 5
    made: list[NDArray[Any]] = [
        np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)
    ]
    return Traits(*made)


def score_slices(
    traits: Traits,
    labels: Indices,
    predictions: Indices,
    classes: int,
    positive: int,
    names: Sequence[str],
) -> list[Slice]:
    """The accuracy of each group of examples that share a trait, and which groups are weak.

    A slice of 10 examples or more is weak where its accuracy is below that of all other examples
    by Fisher's exact test, one-sided, at 5 % over all slices together after Holm: where no slice
    truly differs, any is called weak in at most 5 of 100 evaluations.

    Args:
        traits: of the examples.
        labels, predictions: class indices of shape (examples,).
        classes, positive: as for `intervals.scores`.
        names: of the classes, by index.

    Returns:
        the slices that hold any example: words and overlap in up to four bins of about as many
        examples, each yes/no trait, and each of the (at most 20) most frequent true classes.
        For single sentences there is nothing of overlap or difference.

    Source: Fisher 1935, The Logic of Inductive Inference, Journal of the Royal Statistical Society
    98(1), 39-82, https://doi.org/10.2307/2342435; Holm 1979, A Simple Sequentially Rejective
    Multiple Test Procedure, Scandinavian Journal of Statistics 6(2), 65-70,
    https://www.jstor.org/stable/4615733.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    right = labels == predictions
    total, hits = len(labels), int(right.sum())
    groups = [group for group in _groups(traits, labels, names) if group[2].any()]
    counts = [int(members.sum()) for _, _, members in groups]
    found = [int(right[members].sum()) for _, _, members in groups]
    chances = {
        number: _chance(found[number], count, hits, total)
        for number, count in enumerate(counts)
        if TESTED <= count < total
    }
    weak = _holm(chances)
    return [
        Slice(
            trait=trait,
            value=value,
            count=counts[number],
            accuracy=intervals.wilson_interval(found[number], counts[number]),
            f1=None
            if trait == "class"
            else _f1(labels[members], predictions[members], classes, positive),
            weak=number in weak,
        )
        for number, (trait, value, members) in enumerate(groups)
    ]


class _Text(NamedTuple):
    """What one text holds; `numbers` are those in digits."""

    length: int
    words: frozenset[str]
    number: bool
    numbers: frozenset[str]
    negation: bool
    name: bool


@dataclass(frozen=True)
class _Patterns:
    word: re.Pattern[str]
    digits: re.Pattern[str]
    not_: re.Pattern[str]
    name: re.Pattern[str]


# Scripts without spaces between words: kana, Han, Thai, Lao, Burmese, Khmer.
_SPACELESS = (
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
)
_SPACED = {code: " " for code in range(128) if not re.match(r"\w", chr(code))}


@cache
def _patterns() -> _Patterns:
    """Made once, at the first text: a walk over 65,536 characters takes ten milliseconds."""
    plane = [chr(number) for number in range(0x10000)]
    capital = "".join(char for char in plane if char.isupper())
    mark = "".join(char for char in plane[0x300:] if unicodedata.category(char)[0] == "M")
    return _Patterns(
        word=re.compile(
            rf"(?=\w)[{_SPACELESS}][{mark}]*|[^\W{_SPACELESS}](?:[^\W{_SPACELESS}]|[{mark}])*"
        ),
        digits=re.compile(r"\d+(?:[.,]\d+)*"),
        not_=re.compile(r"n ?['’]t\b"),
        # After a word or a comma, or after an initial or a title with a full stop, two characters
        # at least: neither "I" nor the "The" of a new or a quoted sentence.
        name=re.compile(
            rf"\s\(?(?=[{capital}]\w)(?:(?<=[^\s.!?…\"'“”„«(]\s)|(?<=[^\s.!?…\"'“”„«(]\s\()"
            rf"|(?<=\b[{capital}]\.\s)|(?<=\bMr\.\s)|(?<=\bMs\.\s)|(?<=\bDr\.\s)"
            rf"|(?<=\bSt\.\s)|(?<=\bMrs\.\s))"
        ),
    )


def _read(text: str) -> _Text:
    patterns = _patterns()
    lower = text.lower()
    # Of ASCII, splitting at all else than \w finds the same words in a third of the time.
    found = lower.translate(_SPACED).split() if lower.isascii() else patterns.word.findall(lower)
    words = frozenset(found)
    numbers = frozenset(one.replace(",", "") for one in patterns.digits.findall(lower))
    shortened = "'t" in lower or "’t" in lower
    return _Text(
        length=len(found),
        words=words,
        number=bool(numbers) or not words.isdisjoint(NUMBERS),
        numbers=numbers,
        negation=not words.isdisjoint(NEGATIONS)
        or (shortened and patterns.not_.search(lower) is not None),
        name=patterns.name.search(text) is not None,
    )


def _single(text: _Text) -> tuple[Any, ...]:
    return text.length, np.nan, text.number, False, text.negation, False, text.name


def _pair(first: _Text, second: _Text) -> tuple[Any, ...]:
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
    pairs = not np.isnan(traits.overlap).any()
    yield from _by_words(traits.words)
    if pairs:
        yield from _by_overlap(traits.overlap)
    for trait in ("number", "number_differs", "negation", "negation_differs", "name"):
        if pairs or not trait.endswith("differs"):
            members = getattr(traits, trait)
            yield trait.replace("_", " "), "yes", members
            yield trait.replace("_", " "), "no", ~members
    counts = np.bincount(labels, minlength=len(names))
    for index in np.argsort(-counts, kind="stable")[:MOST_CLASSES]:
        yield "class", names[index], labels == index


def _by_words(words: NDArray[np.int64]) -> Iterator[tuple[str, str, Truths]]:
    """Bins from above one edge up to the next."""
    if not len(words):
        return
    edges = np.unique(np.quantile(words, np.arange(1, _BINS) / _BINS, method="lower"))
    edges = edges[edges < words.max()].astype(np.int64)
    index = np.searchsorted(edges, words, side="left")
    ends = [int(edge) for edge in edges]
    for number in range(len(ends) + 1):
        low = ends[number - 1] + 1 if number else None
        high = ends[number] if number < len(ends) else None
        yield "words", _named(low, high, int(words.max())), index == number


def _named(low: int | None, high: int | None, most: int) -> str:
    if low is not None and high is None:
        return f"{low} words or more"
    high = most if high is None else high
    unit = "word" if high == 1 else "words"
    if low is None:
        return f"up to {high} {unit}"
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"


def _by_overlap(overlap: Floats) -> Iterator[tuple[str, str, Truths]]:
    """Bins from one edge up to below the next."""
    if not len(overlap):
        return
    edges = np.unique(np.quantile(overlap, np.arange(1, _BINS) / _BINS).round(2))
    edges = edges[(edges > overlap.min()) & (edges <= overlap.max())]
    index = np.searchsorted(edges, overlap, side="right")
    if not len(edges):
        value = f"overlap {overlap.min():.2f} to {overlap.max():.2f}"
        yield "overlap", value, index == 0
        return
    yield "overlap", f"overlap under {edges[0]:.2f}", index == 0
    for number in range(1, len(edges)):
        value = f"overlap {edges[number - 1]:.2f} to {edges[number]:.2f}"
        yield "overlap", value, index == number
    yield "overlap", f"overlap {edges[-1]:.2f} or more", index == len(edges)


def _f1(labels: Indices, predictions: Indices, classes: int, positive: int) -> float | None:
    if classes == 2 and not ((labels == positive) | (predictions == positive)).any():
        return None
    return intervals.scores(labels, predictions, classes, positive)["f1"]


def _chance(right: int, count: int, hits: int, total: int) -> float:
    """Fisher's exact test, one-sided: the chance of so few right among so many drawn at random.

    Args:
        right, count: right examples and examples of the slice.
        hits, total: the same of all examples.
    """
    k = np.arange(max(0, count - (total - hits)), right + 1)
    log = (
        _log_choose(hits, k)
        + _log_choose(total - hits, count - k)
        - _log_choose(total, np.array(count))
    )
    return min(1.0, float(np.exp(log).sum()))


def _log_choose(n: int, k: Indices) -> Floats:
    from scipy import special  # see `intervals`

    logs: Floats = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    return logs


def _holm(chances: dict[int, float]) -> set[int]:
    """Which hypotheses are rejected: from the least p value on, each at alpha over those left."""
    rejected: set[int] = set()
    for place, number in enumerate(sorted(chances, key=lambda one: chances[one])):
        if chances[number] > ALPHA / (len(chances) - place):
            break
        rejected.add(number)
    return rejected
