"""Small edits of a pair, to see what would change a model's mind.

The edits follow plain rules of English and of capital letters; where a rule finds nothing (another
language, another script) it makes none.

The idea, an input changed a little whose right answer may be known: Ribeiro et al. 2020,
https://arxiv.org/abs/2005.04118; Gardner et al. 2020, https://arxiv.org/abs/2004.02709.
"""

from __future__ import annotations

import calendar
import itertools
import re
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
_NEGATIONS = {"not", "n't", "never", "cannot"}
_IRREGULAR = {"cannot": "can", "can't": "can", "won't": "will", "shan't": "shall", "ain't": "is"}
_CONTRACTED = {"can": "can't", "will": "won't"} | {
    word: f"{word}n't" for word in (*_BE, *_HAVE, "could", "would", "should", "do", "does", "did")
}
_DETERMINERS = {
    "a", "an", "the", "this", "that", "my", "your", "his", "her", "its", "our", "their", "no",
    "of", "in",
}  # fmt: skip
# Words that say little alone: not left out where a sentence is long.
_FUNCTION = {
    *_BE, *_MODALS, *_HAVE, *_DETERMINERS, "am", "be", "been", "being", "do", "does", "did", "he",
    "she", "it", "we", "they", "you", "there", "these", "those", "and", "or", "but", "to", "on",
    "at", "by", "for", "from", "with", "as", "if", "than", "then", "so", "i", "me", "him", "them",
    "us", "who", "which", "what", "how", "when", "where",
}  # fmt: skip
# One of these, or two function words, and the text is taken for English.
_ENGLISH = {
    "the", "and", "with", "this", "that", "are", "were", "been", "has", "have", "had", "she",
    "they", "his", "their", "from", "which", "would",
}  # fmt: skip
_COUNTED = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
    "hundred", "thousand", "million", "billion", "million",
]  # fmt: skip
_RANKED = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"]
_OTHER_NUMBERS = {**dict(itertools.pairwise(_COUNTED)), **dict(itertools.pairwise(_RANKED))}
_CALENDAR = {
    name: following
    for names in (list(calendar.day_name), list(calendar.month_name)[1:])
    for name, following in itertools.pairwise([*names, names[0]])
}
_OTHER_NAMES = ("Alex", "Robin", "Kim")
_WORD = re.compile(r"\w+(?:(?:['’-]|(?<=\d)[.,](?=\d))\w+)*")
# Fifteen digits at most: longer ones are codes, not amounts.
_NUMBER = re.compile(r"(?<![\w.,])[0-9]{1,3}(?:,[0-9]{3}){1,4}(?:\.[0-9]{1,6})?(?!,?\w)|"
                     r"(?<![\w.])[0-9]{1,15}(?:\.[0-9]{1,6})?(?!\w)")  # fmt: skip
_SENTENCE_END = re.compile(r"(?:[!?:;]|(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\b\w)\.)"
                           r"[\"'”’)]*\s*[\"'“‘(]*$")  # fmt: skip


@dataclass(frozen=True)
class Edit:
    """A pair a little different from the one asked about.

    Args:
        kind: `negation`, `number`, `name`, `drop`, `swap` or `same`.
        description: what was done, a sentence for a person.
        size: how many words differ from the original's, in both sentences together.
    """

    kind: str
    description: str
    sentence1: str
    sentence2: str | None
    size: int


@dataclass(frozen=True)
class Flip:
    """An edit that changed the decision, and the model's probability of the class it is now."""

    edit: Edit
    label: str
    probability: float


# A change of one sentence: its description, and the new text.
_Change = tuple[str, str]
_Rule = Callable[[str], Iterator[_Change]]


def small_edits(sentence1: str, sentence2: str | None) -> list[Edit]:
    """At most `MOST` edits of a pair, always the same for the same pair.

    Swapped, one sentence in place of the other, a negation put in or taken out, a number or a name
    changed, a word left out. None is the pair itself, none comes twice, none leaves a sentence
    empty.
    """
    texts = (sentence1,) if sentence2 is None else (sentence1, sentence2)
    drafts: list[tuple[str, str, tuple[str, ...]]] = []
    if sentence2 is not None:
        drafts += [
            ("swap", "The two sentences change places.", (sentence2, sentence1)),
            ("same", "Sentence 2 becomes sentence 1, word for word.", (sentence1, sentence1)),
            ("same", "Sentence 1 becomes sentence 2, word for word.", (sentence2, sentence2)),
        ]
    rules: dict[str, tuple[_Rule, int]] = {
        "negation": (_negations, 16), "number": (_numbers, 20), "name": (_names, 16),
        "drop": (_drops, MOST),
    }  # fmt: skip
    for kind, (rule, most) in rules.items():
        each = [_change_one(texts, index, rule) for index in range(len(texts))]
        # In turns, so that the bound cuts both sentences alike.
        changes = (one for turn in itertools.zip_longest(*each) for one in turn if one)
        drafts += [(kind, *change) for change in itertools.islice(changes, most)]
    edits: dict[tuple[str, ...], Edit] = {}
    for kind, description, changed in drafts:
        if changed not in (texts, *edits) and all(map(str.strip, changed)) and len(edits) < MOST:
            second = changed[1] if sentence2 is not None else None
            size = _words_changed(texts, changed)
            edits[changed] = Edit(kind, description, changed[0], second, size)
    return list(edits.values())


def find_flips(
    edits: Sequence[Edit],
    original: str,
    labels: Sequence[str],
    probabilities: Sequence[Mapping[str, float]],
) -> list[Flip]:
    """Those edits that change the decision, the most telling first: one of each kind, then the
    others; within both the smallest edit first, and of equals that of whose new class the model is
    surest.

    Args:
        original: the class predicted for the unedited pair.
        labels: the classes predicted for the edits, in order.
        probabilities: class -> probability, one of these for each edit, in order.
    """
    flips = [
        Flip(edit, label, shares[label])
        for edit, label, shares in zip(edits, labels, probabilities, strict=True)
        if label != original
    ]
    flips.sort(key=lambda flip: (flip.edit.size, -flip.probability))
    first_of: dict[str, Flip] = {}
    for flip in flips:
        first_of.setdefault(flip.edit.kind, flip)
    return sorted(flips, key=lambda flip: first_of[flip.edit.kind] is not flip)


def _change_one(
    texts: tuple[str, ...], index: int, rule: _Rule
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What a rule makes of one sentence, the other as it was."""
    where = f"In sentence {index + 1}, " if len(texts) == 2 else ""
    for description, text in rule(texts[index]):
        yield f"{where}{description}.", (*texts[:index], text, *texts[index + 1 :])


def _words_changed(before: Sequence[str], after: Sequence[str]) -> int:
    """Words put in, taken out or changed, at least one; words that only moved do not count."""
    count = 0
    for old, new in zip(before, after, strict=True):
        had, has = (Counter(re.findall(r"\w+", text.lower())) for text in (old, new))
        count += max((had - has).total(), (has - had).total())
    return max(count, 1)


def _lower(word: re.Match[str] | None) -> str:
    return word[0].lower().replace("’", "'") if word else ""


def _opens(text: str, word: re.Match[str]) -> bool:
    """Whether the word is the first of a sentence, where a capital says nothing."""
    before = text[max(0, word.start() - 20) : word.start()]
    return not before.strip("\"'“‘( \t\n") or _SENTENCE_END.search(before) is not None


def _replaced(text: str, word: re.Match[str], new: str) -> _Change:
    """The text with another word, in the capitals of the one that stood there."""
    old = word[0]
    if len(old) > 1 and old.isupper():
        new = new.upper()
    elif old[0].isupper():
        new = new[0].upper() + new[1:]
    description = f'"{_short(old)}" becomes "{_short(new)}"'
    return description, text[: word.start()] + new + text[word.end() :]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _without(text: str, word: re.Match[str]) -> str:
    """The text less a word, with one space where it stood and a capital where it had the first."""
    left, right = text[: word.start()], text[word.end() :]
    if not left.strip():
        right = right.lstrip(" \t,")
        return right[:1].upper() + right[1:] if word[0][0].isupper() else right
    if left[-1].isspace() and (not right.strip() or right[0].isspace() or right[0] in ".,;:!?"):
        left = left.rstrip()
    return left + right


def _negations(text: str) -> Iterator[_Change]:
    words = list(_WORD.finditer(text))
    for before, word, after in zip([None, *words], words, [*words[1:], None], strict=False):
        lower = _lower(word)
        if lower in ("not", "n't", "never"):
            yield f'"{word[0]}" is taken out', _without(text, word)
        elif lower in _IRREGULAR or lower.endswith("n't"):
            yield _replaced(text, word, _IRREGULAR.get(lower, word[0][:-3]))
        elif _lower(after) in _NEGATIONS:
            continue
        elif lower in _CONTRACTED and _opens(text, word) and text.rstrip().endswith("?"):
            yield _replaced(text, word, _CONTRACTED[lower])
        elif not _opens(text, word) and _takes_not(word[0], _lower(before), _lower(after)):
            yield _replaced(text, word, "cannot" if word[0] == "can" else f"{word[0]} not")
    lowers = {_lower(word) for word in words}
    if "?" not in text and (lowers & _ENGLISH or len(lowers & _FUNCTION) > 1):
        rest = text.lstrip()
        if words[0].start() == len(text) - len(rest) and _lower(words[0]) in _FUNCTION - {"i"}:
            rest = rest[0].lower() + rest[1:]
        yield '"It is not true that" is put in front', f"It is not true that {rest}"


def _takes_not(word: str, before: str, after: str) -> bool:
    """Whether "not" may follow: a capital, or a word such as "the" before it, makes it a noun;
    "have" takes it only as part of a tense."""
    if before in _NEGATIONS or before.endswith("n't"):
        return False
    if word in _MODALS or word == "am":
        return before not in _DETERMINERS and bool(after)
    return word in _BE or (word in _HAVE and after.endswith(("been", "ed", "en")))


def _numbers(text: str) -> Iterator[_Change]:
    changes: list[tuple[int, str, re.Match[str]]] = []
    for number in _NUMBER.finditer(text):
        value, comma = Decimal(number[0].replace(",", "")), "," if "," in number[0] else ""
        for other in (value + 1, value * 2):
            written = f"{other:{comma}f}"
            zeros = len(number[0]) if number[0].startswith("0") else 0
            changes.append((number.start(), written.zfill(zeros), number))
    for word in _WORD.finditer(text):
        no_one = text[: word.start()].lower().endswith("no ")
        if _lower(word) in _OTHER_NUMBERS and not no_one:
            changes.append((word.start(), _OTHER_NUMBERS[_lower(word)], word))
    for _, new, word in sorted(changes, key=lambda change: change[0]):
        yield _replaced(text, word, new)


def _names(text: str) -> Iterator[_Change]:
    """Another name for each run of words with a capital; another day or month for each of those."""
    if text.isupper():
        return  # where all letters are capitals they say nothing
    end = 0
    for word in _WORD.finditer(text):
        if word.start() < end or not _is_name(word[0]) or _opens(text, word):
            continue
        run = re.compile(r"(?:\w+\.? )*\w+").match(text, word.start())
        end = word.end()
        if word[0] not in _CALENDAR and run is not None:
            for other in _WORD.finditer(text, word.end(), run.end()):
                if not _is_name(other[0]) or other[0] in _CALENDAR:
                    break
                end = other.end()
        old = text[word.start() : end]
        stem = old[:-2] if old.endswith(("'s", "’s")) else old
        other_name = next((name for name in _OTHER_NAMES if name not in text), "Jo")
        new = _CALENDAR.get(stem, other_name) + old[len(stem) :]
        description = f'"{_short(old)}" becomes "{_short(new)}"'
        yield description, text[: word.start()] + new + text[end:]


def _is_name(word: str) -> bool:
    return len(word) > 1 and word[0].isupper() and not word.startswith(("I'", "I’"))


def _drops(text: str) -> Iterator[_Change]:
    words = list(_WORD.finditer(text))
    if len(words) > LONGEST:
        words = [word for word in words if _lower(word) not in _FUNCTION][:LONGEST]
    for word in words:
        yield f'"{_short(word[0])}" is left out', _without(text, word)
