"""Small edits of a pair, to see what would change a model's mind.

Edits by plain rules of English and of the alphabet's capitals; where a rule finds nothing to hold
on to (another language, another script) it makes none. Knows no model: whoever asks scores all
edits in one batch and hands the probabilities back to `flips`.

The idea, an input changed a little whose right answer may be known: Ribeiro et al. 2020,
https://arxiv.org/abs/2005.04118; Gardner et al. 2020, https://arxiv.org/abs/2004.02709.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

MOST = 100
LONGEST = 40  # words of a sentence up to which each is left out in turn
_SHOWN = 40  # characters of a word in a description

_BE = {"is", "are", "was", "were"}
_MODALS = {"can", "could", "will", "would", "should", "must", "may", "might", "shall"}
_HAVE = {"has", "have", "had"}
# A question is negated in its first word.
_CONTRACTED = {
    "is": "isn't", "are": "aren't", "was": "wasn't", "were": "weren't", "can": "can't",
    "could": "couldn't", "will": "won't", "would": "wouldn't", "should": "shouldn't",
    "do": "don't", "does": "doesn't", "did": "didn't", "has": "hasn't", "have": "haven't",
    "had": "hadn't",
}  # fmt: skip
_IRREGULAR = {"cannot": "can", "can't": "can", "won't": "will", "shan't": "shall", "ain't": "is"}
_DETERMINERS = {
    "a", "an", "the", "this", "that", "my", "your", "his", "her", "its", "our", "their", "no",
    "of", "in",
}  # fmt: skip
_PRONOUNS = {"he", "she", "it", "we", "they", "you", "there", "these", "those"}
# Words that say little alone: not left out where a sentence is long.
_FUNCTION = {
    *_BE, *_MODALS, *_HAVE, *_DETERMINERS, *_PRONOUNS, "am", "be", "been", "being", "do", "does",
    "did", "and", "or", "but", "to", "on", "at", "by", "for", "from", "with", "as", "if", "than",
    "then", "so", "i", "me", "him", "them", "us", "who", "which", "what", "how", "when", "where",
}  # fmt: skip
# One of these, or two of those, and the text is taken for English.
_ENGLISH = {
    "the", "and", "with", "this", "that", "are", "were", "been", "has", "have", "had", "she",
    "they", "his", "their", "from", "which", "would",
}  # fmt: skip
_TITLES = {"mr", "mrs", "ms", "dr", "st", "prof", "gen", "sen", "gov", "vs", "no"}
_COUNTED = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
]  # fmt: skip
_RANKED = [
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth",
    "tenth",
]  # fmt: skip
_CHANGED_NUMBERS = {
    **dict(itertools.pairwise(_COUNTED)), "ninety": "eighty", "hundred": "thousand",
    "thousand": "million", "million": "billion", "billion": "million",
    **dict(itertools.pairwise(_RANKED)), "tenth": "ninth",
    "once": "twice", "twice": "once", "half": "quarter", "dozen": "hundred",
}  # fmt: skip
_MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December", "January",
]  # fmt: skip
_DAYS = [
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "Monday",
]  # fmt: skip
_CALENDAR = {**dict(itertools.pairwise(_MONTHS)), **dict(itertools.pairwise(_DAYS))}
_OTHER_NAMES = ("Alex", "Robin", "Kim")
# Fifteen digits at most: longer ones are codes, not amounts.
_NUMBER = re.compile(r"(?<![\w.,])[0-9]{1,3}(?:,[0-9]{3}){1,4}(?:\.[0-9]{1,6})?(?!,?\w)|"
                     r"(?<![\w.])[0-9]{1,15}(?:\.[0-9]{1,6})?(?!\w)")  # fmt: skip


@dataclass(frozen=True)
class Edit:
    """A pair a little different from the one asked about.

    Args:
        kind: `negation`, `number`, `name`, `drop`, `swap` or `same`.
        description: what was done, a sentence for a person.
        sentence1: as edited.
        sentence2: as edited; None where there is none.
        size: how many words differ from the original's, in both sentences together.
    """

    kind: str
    description: str
    sentence1: str
    sentence2: str | None
    size: int


@dataclass(frozen=True)
class Flip:
    """An edit that changed the decision.

    Args:
        edit: what was done.
        label: the class now predicted.
        probability: the model's, of that class.
    """

    edit: Edit
    label: str
    probability: float


@dataclass(frozen=True)
class _Word:
    """A word of a sentence, without the punctuation around it."""

    start: int
    end: int
    text: str
    opens: bool  # first of its sentence, where a capital says nothing

    @property
    def lower(self) -> str:
        return self.text.lower().replace("’", "'")


def small_edits(sentence1: str, sentence2: str | None) -> list[Edit]:
    """At most `MOST` edits of a pair, always the same for the same pair.

    Swapped, one sentence in place of the other, a negation put in or taken out, a number or a name
    changed, a word left out. None is the pair itself, none comes twice, none leaves a sentence
    empty.
    """
    texts = [sentence1] if sentence2 is None else [sentence1, sentence2]
    drafts = list(_whole(texts))
    for kind, rule, most in (
        ("negation", _negations, 16), ("number", _numbers, 20), ("name", _names, 16)
    ):  # fmt: skip
        drafts += itertools.islice(_of_each(texts, kind, rule), most)
    drafts += _of_each(texts, "drop", _drops)
    made: list[Edit] = []
    seen = {tuple(texts)}
    for kind, description, changed in drafts:
        if changed in seen or not all(text.strip() for text in changed) or len(made) == MOST:
            continue
        seen.add(changed)
        second = changed[1] if sentence2 is not None else None
        made.append(Edit(kind, description, changed[0], second, _differing(texts, changed)))
    return made


def find_flips(
    edits: Sequence[Edit],
    original: str,
    labels: Sequence[str],
    probabilities: Sequence[Mapping[str, float]],
) -> list[Flip]:
    """Those edits that change the decision, the most telling first.

    First one of each kind, then the others; within both the smallest edit first, and of equally
    small ones that of whose new class the model is surest.

    Args:
        edits: as `edits` made them.
        original: the class predicted for the unedited pair.
        labels: the classes predicted for the edits, in order; with a threshold not always the most
            probable ones.
        probabilities: class -> probability, one of these for each edit, in order.

    Raises:
        ValueError: when there are not as many answers as edits.
    """
    found = []
    for edit, label, answer in zip(edits, labels, probabilities, strict=True):
        if label != original:
            found.append(Flip(edit, label, answer[label]))
    found.sort(key=lambda flip: (flip.edit.size, -flip.probability))
    best: dict[str, Flip] = {}
    for flip in found:
        best.setdefault(flip.edit.kind, flip)
    firsts = list(best.values())
    return firsts + [flip for flip in found if best[flip.edit.kind] is not flip]


# A draft: kind, description, the sentences. A change of one sentence: description, its new text.
_Draft = tuple[str, str, tuple[str, ...]]
_Change = tuple[str, str]
_Rule = Callable[[str], Iterator[_Change]]


def _whole(texts: list[str]) -> Iterator[_Draft]:
    if len(texts) == 2:
        one, two = texts
        yield "swap", "The two sentences change places.", (two, one)
        yield "same", "Sentence 2 becomes sentence 1, word for word.", (one, one)
        yield "same", "Sentence 1 becomes sentence 2, word for word.", (two, two)


def _of_each(texts: list[str], kind: str, rule: _Rule) -> Iterator[_Draft]:
    """What a rule makes of each sentence in turn, so that a bound cuts both alike."""
    each = [_of_one(texts, index, kind, rule) for index in range(len(texts))]
    for together in itertools.zip_longest(*each):
        yield from (one for one in together if one is not None)


def _of_one(texts: list[str], index: int, kind: str, rule: _Rule) -> Iterator[_Draft]:
    """What a rule makes of one sentence, the other as it was."""
    where = f"In sentence {index + 1}, " if len(texts) == 2 else ""
    for what, text in rule(texts[index]):
        yield kind, f"{where}{what}.", (*texts[:index], text, *texts[index + 1 :])


def _differing(before: Sequence[str], after: Sequence[str]) -> int:
    """Words put in, taken out or changed, at least one; words that only moved do not count, for
    the exact distance takes the square of their number."""
    count = 0
    for old, new in zip(before, after, strict=True):
        if old != new:
            had, has = (Counter(re.findall(r"\w+", text.lower())) for text in (old, new))
            count += max((had - has).total(), (has - had).total())
    return max(count, 1)


def _parted(text: str) -> list[_Word]:
    """Words between spaces, without punctuation at their ends."""
    words: list[_Word] = []
    opens = True
    for run in re.finditer(r"\S+", text):
        start, end = run.span()
        while start < end and _is_mark(text[start]):
            start += 1
        while start < end and _is_mark(text[end - 1]):
            end -= 1
        marks = run[0]
        if start < end:
            words.append(_Word(start, end, text[start:end], opens))
            opens, marks = False, text[end : run.end()]
        opens = opens or _closes(words[-1].lower if start < end else "", marks)
    return words


def _closes(word: str, marks: str) -> bool:
    """Whether a sentence ends with these marks after this word; not after a title or an initial."""
    marks = marks.strip("\"'”’)")
    return marks.endswith(("!", "?", ":", ";")) or (
        marks.endswith(".") and word not in _TITLES and not (len(word) == 1 and word.isalpha())
    )


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PCZ"


def _changed(text: str, word: _Word, new: str) -> str:
    return text[: word.start] + new + text[word.end :]


def _becomes(old: str, new: str) -> str:
    return f'"{_short(old)}" becomes "{_short(new)}"'


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _without(text: str, word: _Word) -> str:
    """The text less a word, with one space where it stood and a capital where it had the first."""
    left, right = text[: word.start], text[word.end :]
    if not left.strip():
        left, right = left.lstrip(), right.lstrip(" \t,")
        if word.text[0].isupper() and right[:1].islower():
            right = right[0].upper() + right[1:]
    elif left[-1].isspace() and (right[:1].isspace() or right[:1] in tuple(".,;:!?")):
        left = left.rstrip()
    return left + right if right.strip() else left.rstrip()


def _like(pattern: str, new: str) -> str:
    """`new` with the capitals of `pattern`."""
    if len(pattern) > 1 and pattern.isupper():
        return new.upper()
    return new[0].upper() + new[1:] if pattern[0].isupper() else new


def _negations(text: str) -> Iterator[_Change]:
    words = _parted(text)
    for index, word in enumerate(words):
        yield from _taken_out(text, word)
        yield from _put_in(text, words, index)
    if "?" not in text and _is_english(words):
        first = words[0]
        lowered = first.text.lower() if first.lower in _FUNCTION - {"i"} else first.text
        said = f"{text[: first.start].lstrip()}{lowered}{text[first.end :]}"
        yield '"It is not true that" is put in front', f"It is not true that {said}"


def _is_english(words: list[_Word]) -> bool:
    found = {word.lower for word in words}
    return bool(found & _ENGLISH) or len(found & _FUNCTION) > 1


def _taken_out(text: str, word: _Word) -> Iterator[_Change]:
    lower = word.lower
    if lower in {"not", "n't", "never"}:
        yield f'"{word.text}" is taken out', _without(text, word)
    elif lower in _IRREGULAR:
        new = _like(word.text, _IRREGULAR[lower])
        yield _becomes(word.text, new), _changed(text, word, new)
    elif lower.endswith("n't"):
        yield _becomes(word.text, word.text[:-3]), _changed(text, word, word.text[:-3])


def _put_in(text: str, words: list[_Word], index: int) -> Iterator[_Change]:
    word = words[index]
    after = words[index + 1].lower if index + 1 < len(words) else ""
    if after in {"not", "n't", "never", "cannot"}:
        return
    if word.opens and word.lower in _CONTRACTED and _asks(text, words, index):
        new = _like(word.text, _CONTRACTED[word.lower])
        yield _becomes(word.text, new), _changed(text, word, new)
    elif not word.opens and _takes_not(word, words[index - 1].lower, after):
        new = "cannot" if word.text == "can" else f"{word.text} not"
        yield _becomes(word.text, new), _changed(text, word, new)


def _asks(text: str, words: list[_Word], index: int) -> bool:
    """Whether the sentence that opens with this word ends with a question mark."""
    closing = next((one.start for one in words[index + 1 :] if one.opens), len(text))
    return text[:closing].rstrip().endswith("?")


def _takes_not(word: _Word, before: str, after: str) -> bool:
    """Whether "not" may follow, once.

    A capital, or a word such as "the" before it, makes it a noun; "have" takes it only as part of
    a tense.
    """
    if before.endswith("n't") or before in {"not", "cannot", "never"}:
        return False
    if word.text in _BE:
        return True
    if word.text in _MODALS or word.text == "am":
        return before not in _DETERMINERS and bool(after)
    return word.text in _HAVE and (after == "been" or after.endswith(("ed", "en")))


def _numbers(text: str) -> Iterator[_Change]:
    found: list[tuple[int, list[tuple[_Word, str]]]] = []
    for match in _NUMBER.finditer(text):
        word = _Word(*match.span(), match[0], False)
        found.append((word.start, [(word, new) for new in _other_numbers(match[0])]))
    previous = ""
    for word in _parted(text):
        new = _CHANGED_NUMBERS.get(word.lower)
        if new is not None and previous != "no":  # "no one"
            found.append((word.start, [(word, _like(word.text, new))]))
        previous = word.lower
    for _, changes in sorted(found, key=lambda one: one[0]):
        for word, new in changes:
            yield _becomes(word.text, new), _changed(text, word, new)


def _other_numbers(written: str) -> list[str]:
    """One more and twice as much, written in the same way."""
    value = Decimal(written.replace(",", ""))
    comma = "," if "," in written else ""
    made = []
    for new in (value + 1, value * 2):
        plain = f"{new:{comma}f}"
        made.append(plain.zfill(len(written)) if written.startswith("0") else plain)
    return made


def _names(text: str) -> Iterator[_Change]:
    words = _parted(text)
    if not any(character.islower() for character in text):
        return  # where all letters are capitals they say nothing
    index = 0
    while index < len(words):
        if not _is_name(words[index]):
            index += 1
            continue
        start = words[index].start
        while index + 1 < len(words) and _goes_on(text, words[index], words[index + 1]):
            index += 1
        old = text[start : words[index].end]
        new = _other_name(old, text)
        yield _becomes(old, new), f"{text[:start]}{new}{text[words[index].end :]}"
        index += 1


def _is_name(word: _Word) -> bool:
    if word.opens or not word.text[0].isupper() or word.lower.split("'")[0] == "i":
        return False
    return len(word.text) > 1


def _goes_on(text: str, one: _Word, two: _Word) -> bool:
    """Whether a name's next word follows: after a space, or the dot of a title. Days and months
    stand alone."""
    between = text[one.end : two.start]
    alone = one.text in _CALENDAR or two.text in _CALENDAR
    return _is_name(two) and between in (" ", ". ") and not alone


def _other_name(name: str, text: str) -> str:
    """One that the sentence has not, with the ending of a genitive kept."""
    stem, ending = (name[:-2], name[-2:]) if name.endswith(("'s", "’s")) else (name, "")
    if stem in _CALENDAR:
        return _CALENDAR[stem] + ending
    return next((one for one in _OTHER_NAMES if one not in text), "Jo") + ending


def _drops(text: str) -> Iterator[_Change]:
    words = _parted(text)
    if len(words) == 1:
        return  # an empty sentence is no question
    if len(words) > LONGEST:
        words = [word for word in words if word.lower not in _FUNCTION][:LONGEST]
    for word in words:
        yield f'"{_short(word.text)}" is left out', _without(text, word)
