"""Small edits of a pair, to see what would change a model's mind.

The edits follow plain rules of English. The idea: Ribeiro et al. 2020,
https://arxiv.org/abs/2005.04118; Gardner et al. 2020, https://arxiv.org/abs/2004.02709.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

MOST = 100
LONGEST = 30  # words of a sentence up to which each is left out in turn
_TAKE_NOT = {
    "is", "are", "was", "were", "can", "could", "will", "would", "should", "must", "may", "might",
}  # fmt: skip
_IRREGULAR = {"cannot": "can", "can't": "can", "won't": "will"}
_DETERMINERS = {"a", "an", "the", "this", "that", "my", "your", "his", "her", "its", "our", "no"}
# Words that say little alone: not left out where a sentence is long. Two of them, or "the", and a
# text is taken for English.
_FUNCTION = _TAKE_NOT | _DETERMINERS | {
    "be", "been", "do", "does", "did", "has", "have", "had", "he", "she", "it", "we", "they", "you",
    "there", "these", "those", "their", "and", "or", "but", "of", "to", "in", "on", "at", "by",
    "for", "from", "with", "as", "if", "than", "then", "so", "i", "who", "which", "what", "when",
}  # fmt: skip
_WORD = re.compile(r"\w+(?:(?:['’-]|(?<=\d)[.,](?=\d))\w+)*")
# Fifteen digits at most: longer ones are codes, not amounts.
_NUMBER = re.compile(r"(?<![\w.,])[0-9](?:,?[0-9]){0,14}(?:\.[0-9]{1,6})?(?!\w|[.,][0-9])")
_Change = tuple[str, str]  # of one sentence: its description, and the new text


@dataclass(frozen=True)
class Edit:
    """A pair a little different from the one asked about."""

    kind: str  # negation, number, drop, swap or same
    description: str  # what was done, a sentence for a person
    sentence1: str
    sentence2: str | None


@dataclass(frozen=True)
class Flip:
    """An edit that changed the decision, and the model's probability of the class it is now."""

    edit: Edit
    label: str
    probability: float


def small_edits(sentence1: str, sentence2: str | None) -> list[Edit]:
    """At most `MOST` edits of a pair: swapped, one sentence in place of the other, a negation put
    in or taken out, a number changed, a word left out."""
    edits: dict[tuple[str, str | None], Edit] = {}
    for edit in _edits(sentence1, sentence2):
        pair = edit.sentence1, edit.sentence2
        if pair != (sentence1, sentence2) and all(text is None or text.strip() for text in pair):
            edits.setdefault(pair, edit)
    return list(edits.values())[:MOST]


def _edits(sentence1: str, sentence2: str | None) -> Iterator[Edit]:
    """Edits of a pair; some may change nothing, be the same or leave a sentence empty."""
    if sentence2 is not None:
        yield Edit("swap", "The two sentences change places.", sentence2, sentence1)
        yield Edit("same", "Sentence 2 becomes sentence 1, word for word.", sentence1, sentence1)
        yield Edit("same", "Sentence 1 becomes sentence 2, word for word.", sentence2, sentence2)
    where = "" if sentence2 is None else "In sentence 1, "
    for kind, rule in (("negation", _negations), ("number", _numbers), ("drop", _drops)):
        for description, text in rule(sentence1):
            yield Edit(kind, f"{where}{description}.", text, sentence2)
        for description, text in rule(sentence2 or ""):
            yield Edit(kind, f"In sentence 2, {description}.", sentence1, text)


def find_flips(
    edits: Sequence[Edit], original: str, answers: Sequence[tuple[str, Mapping[str, float]]]
) -> list[Flip]:
    """Those edits that change the decision: one of each kind, then the others; within both the one
    of whose new class the model is surest first.

    Args:
        original: the class predicted for the unedited pair.
        answers: of each edit: the class predicted, and class -> probability.
    """
    flips = [
        Flip(edit, label, shares[label])
        for edit, (label, shares) in zip(edits, answers, strict=True)
        if label != original
    ]
    flips.sort(key=lambda flip: -flip.probability)
    first_of = {flip.edit.kind: flip for flip in reversed(flips)}
    return sorted(flips, key=lambda flip: first_of[flip.edit.kind] is not flip)


def _replaced(text: str, word: re.Match[str], new: str) -> _Change:
    """The text with another word, in the capitals of the one that stood there."""
    old = word[0]
    if len(old) > 1 and old.isupper():
        new = new.upper()
    elif old[0].isupper():
        new = new[0].upper() + new[1:]
    return f'"{old}" becomes "{new}"', text[: word.start()] + new + text[word.end() :]


def _without(text: str, word: re.Match[str]) -> str:
    """The text less a word and the space before it, with a capital where the word had the first."""
    left, right = text[: word.start()], text[word.end() :]
    if left.strip():
        return left.rstrip() + right
    right = right.lstrip(" \t,")
    return right[:1].upper() + right[1:] if word[0][0].isupper() else right


def _negations(text: str) -> Iterator[_Change]:
    words = list(_WORD.finditer(text))
    lowers = [word[0].lower().replace("’", "'") for word in words]
    negated = any(lower in ("not", "never", "cannot") or lower.endswith("n't") for lower in lowers)
    for before, word, lower in zip(["", *lowers], words, lowers, strict=False):
        if lower in ("not", "n't", "never"):
            yield f'"{word[0]}" is taken out', _without(text, word)
        elif lower in _IRREGULAR or lower.endswith("n't"):
            yield _replaced(text, word, _IRREGULAR.get(lower, word[0][:-3]))
        # A capital, or a word such as "the" before it, makes it a noun; first, it asks.
        elif word[0] in _TAKE_NOT and before and before not in _DETERMINERS and not negated:
            yield _replaced(text, word, "cannot" if lower == "can" else f"{word[0]} not")
    if "?" not in text and ("the" in lowers or len(_FUNCTION.intersection(lowers)) > 1):
        rest = text.strip()
        if lowers[0] in _FUNCTION - {"i"}:
            rest = rest[0].lower() + rest[1:]
        yield '"It is not true that" is put in front', f"It is not true that {rest}"


def _numbers(text: str) -> Iterator[_Change]:
    for number in _NUMBER.finditer(text):
        value, comma = Decimal(number[0].replace(",", "")), "," if "," in number[0] else ""
        for other in (value + 1, value * 2):
            yield _replaced(text, number, f"{other:{comma}f}".zfill(len(number[0])))


def _drops(text: str) -> Iterator[_Change]:
    words = list(_WORD.finditer(text))
    if len(words) > LONGEST:
        words = [word for word in words if word[0].lower() not in _FUNCTION][:LONGEST]
    for word in words:
        yield f'"{word[0]}" is left out', _without(text, word)
