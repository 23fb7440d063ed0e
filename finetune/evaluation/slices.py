"""How groups of examples fare that share a trait of their texts. Traits are read from lists of
English words and from digits: a first hint at what to look at."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.messages import Text, message
from finetune.metrics import intervals, label_free
from finetune.metrics.classification import Floats, Truths
from finetune.metrics.intervals import Interval
from finetune.metrics.shared_rows import SharedRows, rows_worth
from finetune.tasks.base import Targets

MOST_CLASSES = 20
TESTED = 10  # examples; of fewer, no accuracy says much
_WORD = re.compile(r"[\u3040-\u9fff]|[^\W\u3040-\u9fff]+")  # of Chinese and Japanese, a character
_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")
_NUMBER = re.compile(
    r"\d|\b(zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|(thir|four|fif|six|seven|eigh|nine)teen|(twen|thir|for|fif|six|seven|eigh|nine)ty"
    r"|(hundred|thousand|million|billion|dozen)s?)\b"
)
_NEGATION = re.compile(
    r"n ?['’]t\b|\b(no|not|never|none|nobody|nothing|nowhere|neither|nor|without|cannot)\b"
)


@dataclass(frozen=True)
class Traits:
    """Traits of examples, each of shape (examples,)."""

    words: NDArray[np.int64]  # of both sentences together
    overlap: Floats  # Jaccard index of the two sets of words; nan for single sentences
    number: Truths  # a digit or an English number word is in either sentence
    number_differs: Truths  # the numbers in digits are not the same ones
    negation: Truths  # an English negation (not, n't, no, never, ...) is in either sentence
    negation_differs: Truths  # one is in exactly one of the two


@dataclass(frozen=True)
class Slice:
    """The examples of one value of one trait."""

    # `class`, `label`, `score`, or a field of `Traits` with spaces for underscores
    trait: str
    value: str  # in words: "over 32 up to 40", "yes", the name of a class
    count: int  # examples, at least 1
    # Share of right answers, with Wilson's interval; or mean error, with Student's.
    result: Interval
    weak: bool  # the result is significantly worse than that of all other examples


@dataclass(frozen=True)
class SliceChange:
    """Scores of two models on the examples of one value of one trait."""

    trait: str  # as of a `Slice`
    value: Text
    count: int
    old: float  # share of right answers, or mean error
    new: float
    lost: int  # examples that only the old model answered rightly, or more nearly
    gained: int
    worse: bool  # the new model is significantly worse on them


def pair_traits(sentence1: Sequence[str], sentence2: Sequence[str] | None = None) -> Traits:
    """Read the traits of texts."""
    rows = []
    for pair in zip(sentence1, sentence2 or [""] * len(sentence1), strict=True):
        texts = [text.lower() for text in pair]
        found = [_WORD.findall(text) for text in texts]
        first, second = map(set, found)
        digits = [{number.replace(",", "") for number in _DIGITS.findall(text)} for text in texts]
        numbers = [_NUMBER.search(text) is not None for text in texts]
        negations = [_NEGATION.search(text) is not None for text in texts]
        rows.append((
            sum(map(len, found)),
            len(first & second) / max(1, len(first | second)),
            any(numbers),
            digits[0] != digits[1],
            any(negations),
            negations[0] != negations[1],
        ))  # fmt: skip
    words, overlap, *others = np.array(rows, np.float64).reshape(-1, 6).T
    overlap = overlap if sentence2 else np.full_like(overlap, np.nan)
    return Traits(words.astype(np.int64), overlap, *(trait.astype(np.bool_) for trait in others))


def score_slices(
    traits: Traits, truth: Targets, errors: Floats, names: Sequence[str], has_right: bool = True,
    shared: SharedRows | None = None,
) -> list[Slice]:  # fmt: skip
    """Return the result of each group of examples that share a trait, and mark weak groups.

    Groups are up to four bins of words, of overlap and of the true score, each yes/no trait, and
    each of the 20 most frequent true classes or labels. One of 10 examples or more is weak if its
    result is worse than that of all other examples, one-sided, at 5% over all groups together after
    Holm (1979, https://www.jstor.org/stable/4615733): of right answers by Fisher's exact test, of
    errors by that of Mann and Whitney.

    Args:
        truth: classes or scores of shape (examples,), or labels of shape (examples, labels).
        errors: shape (examples,), 0 for a right answer.
        names: of classes or labels.
        has_right: False if answers are only near.
        shared: which examples share a sentence. Intervals and tests are as of the number of
            independent examples that all of them are worth.
    """
    part = rows_worth(errors != 0 if has_right else errors, shared) / max(1, len(errors))
    groups = [group for group in _groups(traits, truth, names) if group[2].any()]
    counts = np.array([members.sum() for _, _, members in groups], np.int64)
    measure = _by_right_answers if has_right else _by_errors
    measured = [measure(errors, members, part) for _, _, members in groups]
    p_values = np.array([p for _, p in measured])
    weak = _significant(p_values, part, (counts >= TESTED) & (counts < len(errors)))
    return [
        Slice(trait, value, int(members.sum()), result, is_weak)
        for (trait, value, members), (result, _), is_weak in zip(
            groups, measured, weak, strict=True
        )
    ]


def compare_slices(
    traits: Traits, truth: Targets, old: Floats, new: Floats, names: Sequence[str],
    has_right: bool = True, shared: SharedRows | None = None,
) -> list[SliceChange]:  # fmt: skip
    """Compare two models on the groups of `score_slices` that are not all examples.

    The new one is worse on a group of 10 examples or more if it loses more answers than it gains,
    by the one-sided exact McNemar test at 5% over all groups together after Holm. `old`, `new`:
    errors of shape (examples,); 0 or 1 if `has_right`."""
    from scipy.stats import binom

    changes = []
    for trait, value, members in _groups(traits, truth, names):
        if 0 < members.sum() < len(members):
            before, after = old[members], new[members]
            lost, gained = int((before < after).sum()), int((after < before).sum())
            first, second = float(before.mean()), float(after.mean())
            if has_right:
                first, second = 1 - first, 1 - second
            change = SliceChange(trait, value, len(before), first, second, lost, gained, False)
            changes.append(change)
    tested = np.array([change.count >= TESTED for change in changes], bool)
    p_values = [binom.sf(each.lost - 1, each.lost + each.gained, 0.5) for each in changes]
    part = rows_worth(np.sign(new - old), shared) / max(1, len(old))
    worse = _significant(np.array(p_values), part, tested)
    return [replace(change, worse=bad) for change, bad in zip(changes, worse, strict=True)]


def _significant(p_values: Floats, part: float, tested: Truths) -> list[bool]:
    """Return which of the tested groups are rejected after Holm, if examples are worth a part of
    their number (Rao and Scott 1981, https://doi.org/10.1080/01621459.1981.10477633)."""
    from scipy.special import ndtr, ndtri

    rejected = np.zeros(len(tested), bool)
    if part != 1:
        p_values = ndtr(ndtri(p_values) * math.sqrt(part))
    rejected[tested] = label_free.holm(p_values[tested])
    return rejected.tolist()


def _by_right_answers(errors: Floats, members: Truths, part: float) -> tuple[Interval, float]:
    """Return the accuracy of a group, and the p value of Fisher's test: so few right among so many
    drawn at random."""
    from scipy.stats import hypergeom

    right, count = errors == 0, int(members.sum())
    hits = int(right[members].sum())
    p = hypergeom.cdf(hits, len(right), right.sum(), count)
    return intervals.wilson_interval(part * hits, part * count), float(p)


def _by_errors(errors: Floats, members: Truths, part: float) -> tuple[Interval, float]:
    """Return the mean error of a group, and the p value that its errors are not greater than those
    of all others."""
    from scipy.stats import mannwhitneyu

    own, others = errors[members], errors[~members]
    interval = intervals.mean_interval(own.tolist(), part)
    p = mannwhitneyu(own, others, alternative="greater").pvalue if len(others) else 1.0
    interval = interval or Interval(float(own.mean()), 0.0, math.inf)
    return interval.within(0.0, math.inf), float(p)


def _groups(
    traits: Traits, truth: Targets, names: Sequence[str]
) -> Iterator[tuple[str, str, Truths]]:
    """Yield trait, value and members of each group; some groups may be empty."""
    paired = not np.isnan(traits.overlap).any()
    yield from _bins("words", traits.words)
    if paired:
        yield from _bins("overlap", traits.overlap.round(2))
    for trait in ("number", "number_differs", "negation", "negation_differs"):
        if paired or not trait.endswith("differs"):
            members = getattr(traits, trait)
            yield trait.replace("_", " "), "yes", members
            yield trait.replace("_", " "), "no", ~members
    if not names:
        yield from _bins("score", truth)
        return
    several = truth.ndim == 2
    counts = truth.sum(axis=0) if several else np.bincount(truth, minlength=len(names))
    for index in np.argsort(-counts, kind="stable")[:MOST_CLASSES]:
        members = truth[:, index] > 0 if several else truth == index
        yield "label" if several else "class", names[index], members


def _bins(trait: str, values: NDArray[Any]) -> Iterator[tuple[str, str, Truths]]:
    """Yield bins by the quartiles, each from above one edge up to the next."""
    if len(values):
        quartiles = np.quantile(values, [0.25, 0.5, 0.75, 1], method="lower")
        edges = [-np.inf, *np.unique(quartiles)]
        for low, high in pairwise(edges):
            name = message("over {low:g} up to {high:g}", low=float(low), high=float(high))
            if low == -np.inf:
                name = message("up to {high:g}", high=float(high))
            elif high == low + 1 and not np.any(values % 1):
                name = f"{high:g}"  # whole numbers
            yield trait, name, (low < values) & (values <= high)
