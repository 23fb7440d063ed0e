"""Hashes of sentences, equal on every machine, to find duplicates and leakage without the texts."""

import hashlib
import math
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.shared_rows import SharedRows

Integers = NDArray[np.int64]
NULL = r"\N"  # a cell without a value, as MySQL and PostgreSQL write it

_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))
_DIRECTION = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_OF_TERMINALS = {*range(9), *range(14, 28), *range(127, 160)} - {0x85}  # which is white space
_CONTROLS = dict.fromkeys((*_DIRECTION, *_OF_TERMINALS))
_EDGES = " \t.,;:!?\u2026'\"\u201c\u201d\u2018\u2019\u00ab\u00bb()[]"


def clean_sentence(cell: Any) -> str | None:
    """Convert a cell to a text that Arrow and a tokenizer can take; None if there is none."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    text = str(cell)
    if not text or text.isspace() or text == NULL:
        return None
    return text if text.isascii() else replace_surrogates(text)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can spell and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def without_direction(text: str) -> str:
    """Remove the controls that reorder the text around them, because a name could imitate another
    one (https://trojansource.codes), and those that a terminal obeys."""
    return text.translate(_CONTROLS)


def folded(text: str) -> str:
    """Return a text without case, extra white space, invisible characters and form of Unicode
    (NFKC)."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_INVISIBLE))
    return " ".join(text.casefold().split())


def normalize(text: str) -> str:
    """Reduce a sentence to what is compared: `folded`, and without punctuation at its ends."""
    return folded(text).strip(_EDGES)


def hash64(text: str) -> int:
    """A 64-bit hash that is the same in every process."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def text_hash(text: str | None) -> int:
    """Hash a sentence after `normalize`; 0 if there is none."""
    return hash64(normalize(text) or text) if text else 0


def row_hashes(first: Sequence[Any], second: Sequence[Any] | None = None) -> Integers:
    """Hash the sentences in the cells of one or two columns; shape (2, rows), 0 for none."""
    columns = first, second or [None] * len(first)
    hashes = [[text_hash(clean_sentence(cell)) for cell in cells] for cells in columns]
    return np.array(hashes, np.int64)


def shared_rows(first: Sequence[Any], second: Sequence[Any] | None = None) -> SharedRows:
    """Find the rows that share a sentence, from the cells of one or two columns."""
    return SharedRows(*row_hashes(first, second))


def ordered_pair_hash(first: Integers, second: Integers) -> Integers:
    """Hash each pair; swapped sentences give another hash. All arrays have shape (rows,)."""
    return first * np.int64(-7046029254386353131) + second


def unordered_pair_hash(first: Integers, second: Integers) -> Integers:
    """Hash each pair; swapped sentences give the same hash. All arrays have shape (rows,)."""
    return ordered_pair_hash(np.minimum(first, second), np.maximum(first, second))
