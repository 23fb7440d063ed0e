"""Small edits of a pair, to find out which of them change a model's decision.

The edits follow plain rules of English. The idea: Ribeiro et al. 2020,
https://arxiv.org/abs/2005.04118; Gardner et al. 2020, https://arxiv.org/abs/2004.02709.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from finetune.messages import message as _

MOST = 100
_TAKE_NOT = {
    "is", "are", "was", "were", "can", "could", "will", "would", "should", "must", "may", "might",
}  # fmt: skip
# After these, such a word is a noun ("the can"); as the first word it begins a question.
_TAKE_NONE = {"", "a", "an", "the", "this", "that", "my", "your", "his", "her", "its", "our", "no"}
_NEGATION = re.compile(r"\b(?:not|never|cannot)\b|n['’]t\b", re.IGNORECASE)
_WORD = re.compile(r"\w+(?:(?:['’-]|(?<=\d)[.,](?=\d))\w+)*")
# Fifteen digits at most: longer ones are codes, not amounts.
_NUMBER = re.compile(r"(?<![\w.,])[0-9](?:,?[0-9]){0,14}(?:\.[0-9]{1,6})?(?!\w|[.,][0-9])")
_KINDS = ("swap", "same", "negation", "number", "drop")  # of edits, in the order of trying them


@dataclass(frozen=True)
class Edit:
    """A pair that differs a little from the original one."""

    kind: str  # of `_KINDS`
    description: str  # what was done, a sentence for a person
    sentence1: str
    sentence2: str | None


@dataclass(frozen=True)
class Flip:
    """An edit that changed the decision, with the new class and its probability."""

    edit: Edit
    label: str
    probability: float | None  # None if the answer has none


def small_edits(sentence1: str, sentence2: str | None) -> list[Edit]:
    """Make at most `MOST` edits of a pair: swap the sentences, replace one by the other, insert or
    remove a negation, change a number, leave out a word."""
    edits = []
    if sentence2 is not None:
        first_twice = _("Sentence 2 becomes sentence 1, word for word.")
        second_twice = _("Sentence 1 becomes sentence 2, word for word.")
        edits = [
            Edit("swap", _("The two sentences change places."), sentence2, sentence1),
            Edit("same", first_twice, sentence1, sentence1),
            Edit("same", second_twice, sentence2, sentence2),
        ]
    for n, sentence in enumerate((sentence1, sentence2 or ""), 1):
        for kind, description, text in _changes(sentence):
            if sentence2 is not None:
                description = _("Sentence {n}: {change}", n=n, change=description)
            pair = (text, sentence2) if n == 1 else (sentence1, text)
            edits.append(Edit(kind, description, *pair))
    edits.sort(key=lambda edit: _KINDS.index(edit.kind))
    # Some change nothing, are equal or leave a sentence empty.
    different: dict[tuple[str, str | None], Edit] = {}
    for edit in edits:
        pair = edit.sentence1, edit.sentence2
        if pair != (sentence1, sentence2) and all(text is None or text.strip() for text in pair):
            different.setdefault(pair, edit)
    return list(different.values())[:MOST]


def find_flips(
    edits: Sequence[Edit], original: str, answers: Sequence[tuple[str, Mapping[str, float]]]
) -> list[Flip]:
    """Return the edits that change the decision: one of each kind, then the others, both by
    decreasing probability of the new class.

    Args:
        original: the class predicted for the unedited pair.
        answers: for each edit the predicted class, and class -> probability.
    """
    flips = [
        Flip(edit, label, probabilities.get(label))
        for edit, (label, probabilities) in zip(edits, answers, strict=True)
        if label != original
    ]
    flips.sort(key=lambda flip: -(flip.probability or 0.0))
    first_of = {flip.edit.kind: flip for flip in reversed(flips)}
    return sorted(flips, key=lambda flip: first_of[flip.edit.kind] is not flip)


def _replaced(text: str, word: re.Match[str], new: str) -> tuple[str, str]:
    """Describe the change of a word, and make it."""
    changed = text[: word.start()] + new + text[word.end() :]
    return _("“{word}” becomes “{other}”.", word=word[0], other=new), changed


def _without(text: str, word: re.Match[str]) -> str:
    """Remove a word and the space before it; the new first word gets the capital of a removed
    one."""
    left, right = text[: word.start()], text[word.end() :]
    if left.strip():
        return left.rstrip() + right
    right = right.lstrip(" \t,")
    return right[:1].upper() + right[1:] if word[0][0].isupper() else right


def _changes(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the kind of each change of a sentence, its description, and the new sentence."""
    negated, before = _NEGATION.search(text), ""
    for word in _WORD.finditer(text):
        yield "drop", _("“{word}” is left out.", word=word[0]), _without(text, word)
        lower = word[0].lower().replace("’", "'")
        if lower in ("not", "n't", "never"):
            yield "negation", _("“{word}” is taken out.", word=word[0]), _without(text, word)
        elif lower == "cannot" or lower.endswith("n't"):
            irregular = {"can't": word[0][:-2], "won't": f"{word[0][0]}ill"}
            yield "negation", *_replaced(text, word, irregular.get(lower, word[0][:-3]))
        elif word[0] in _TAKE_NOT and before not in _TAKE_NONE and not negated:
            new = "cannot" if lower == "can" else f"{word[0]} not"
            yield "negation", *_replaced(text, word, new)
        before = lower
    for number in _NUMBER.finditer(text):
        value, comma = Decimal(number[0].replace(",", "")), "," if "," in number[0] else ""
        for other in (value + 1, value * 2):
            yield "number", *_replaced(text, number, f"{other:{comma}f}".zfill(len(number[0])))
