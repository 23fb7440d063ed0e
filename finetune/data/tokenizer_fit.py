"""Does a checkpoint's tokenizer know the language of the pairs?

A tokenizer of another language cuts words into many pieces, down to single letters, of which the
model has learned nothing: Rust et al. 2021, How Good is Your Tokenizer?
(https://arxiv.org/abs/2012.15613).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from finetune.data import checkpoint_catalog
from finetune.errors import ModelError
from finetune.findings import Finding, Remedy
from finetune.messages import message as _

# Letters with the vowel signs and accents that belong to them.
_WORD = re.compile(
    r"(?:[^\W\d_]|[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0dff\u0e31-\u0e4e"
    r"\u0eb1-\u0ecd\u0f71-\u0f84\u102b-\u109d\u17b4-\u17d3])+"
)
# Measured with BERT's English vocabulary: English news, interface texts and program code come to
# 1.1 to 1.3 pieces a word and 0.22 to 0.26 a letter, sentences full of names of drugs to 2.6 and
# 0.30; German to 1.9 and 0.37, Vietnamese to 1.7 and 0.57, Dutch and Italian to 2.4 and 0.41. Words
# alone would accuse the drugs, letters alone short words.
_LATIN_WORD, _LATIN_LETTER = 1.6, 0.34
# Other alphabets come to 1.0 if they are spelled, to 0.7 if their vowel signs are left out as well
# (Hindi), and to less than a half if they are known.
_ALPHABET_LETTER = 0.6
# Tokenizers made for Chinese take a piece a character; bytes of others make two or three of it.
_CHARACTER = 1.15
_SYLLABLES = {"CJK", "HANGUL", "HIRAGANA", "KATAKANA", "BOPOMOFO"}
_NO_SPACES = {"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"}
_UNKNOWN = 0.05  # share of the pieces
_FEWEST = 50  # letters; fewer tell no language
_ACTION = _(
    "It was made for another language, and learns little from such pieces. Choose one that knows "
    "yours, such as a multilingual one."
)


@dataclass(frozen=True)
class TokenizerFit:
    """The pieces into which a tokenizer cuts words; digits and signs do not count."""

    script: str  # of most letters, such as LATIN, as Unicode names its letters
    per_word: float  # pieces
    per_letter: float  # pieces
    unknown: float  # share of the pieces that are the unknown token

    @property
    def is_poor(self) -> bool:
        """True if the tokenizer does not know the language."""
        if self.unknown >= _UNKNOWN:
            return True
        if self.script == "LATIN":
            return self.per_word >= _LATIN_WORD and self.per_letter >= _LATIN_LETTER
        most = _CHARACTER if self.script in _SYLLABLES else _ALPHABET_LETTER
        return self.per_letter >= most


def measure_fit(tokenizer: Any, texts: Iterable[str]) -> TokenizerFit | None:
    """Cut the words of texts by a tokenizer of transformers. None if they have hardly a letter."""
    rows = [words for text in texts if (words := _WORD.findall(text))]
    letters = [letter for words in rows for word in words for letter in word]
    if len(letters) < _FEWEST:
        return None
    # Words in a row: what begins with a space is another piece to some tokenizers.
    ids = tokenizer([" ".join(words) for words in rows], add_special_tokens=False, verbose=False)
    pieces = Counter(piece for row in ids["input_ids"] for piece in row)
    unknown = pieces[tokenizer.unk_token_id] if tokenizer.unk_token_id is not None else 0
    total = max(1, pieces.total())
    script = _commonest_script(letters)
    return TokenizerFit(script, total / sum(map(len, rows)), total / len(letters), unknown / total)


def _commonest_script(letters: Iterable[str]) -> str:
    return max(Counter(map(_script, letters)).most_common(1), default=("?", 0))[0]


@cache
def _script(letter: str) -> str:
    return unicodedata.name(letter, "?").split(" ")[0]


def findings(fit: TokenizerFit | None, checkpoint: str) -> Iterator[Finding]:
    """Warn if a tokenizer does not know the language, and offer a checkpoint that does."""
    if fit is None or not fit.is_poor:
        return
    title = _("This checkpoint splits your words into {pieces:.1f} pieces", pieces=fit.per_word)
    if fit.unknown >= _UNKNOWN:
        title = _("This checkpoint does not know {share:.0%} of your text", share=fit.unknown)
    elif fit.script in _NO_SPACES:
        title = _(
            "This checkpoint splits your characters into {pieces:.1f} pieces",
            pieces=fit.per_letter,
        )
    yield Finding("language", "warns", title, 0, _ACTION, remedies=_others(fit.script, checkpoint))


def unknown_text(error: ModelError, texts: Iterable[str], checkpoint: str) -> Finding:
    """Report that a tokenizer reads hardly anything of some texts, as `error` says, and offer a
    checkpoint that knows their language."""
    script = _commonest_script(letter for text in texts for letter in text if letter.isalpha())
    action = _ACTION if checkpoint_catalog.find_checkpoint(checkpoint) else error.remedy
    remedies = _others(script, checkpoint)
    return Finding("language", "blocks", error.fact, 0, action, remedies=remedies)


def _others(script: str, checkpoint: str) -> list[Remedy]:
    """A button that takes another checkpoint, of about the same size, that knows a script."""
    entry = checkpoint_catalog.find_checkpoint(checkpoint)
    others = checkpoint_catalog.matching(entry.size if entry else "small", "other")
    for other in others:
        if other.name != checkpoint and other.reads(script):
            return [Remedy("checkpoint", other.name, _("Take {name}", name=other.title))]
    return []
