"""Hashes of sentences, equal on every machine, to find duplicates and leakage without the texts."""

from __future__ import annotations

import hashlib
import math
import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

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
    if not text or text.isspace():
        return None
    return text if text.isascii() else replace_surrogates(text)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can spell and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def without_direction(text: str) -> str:
    """Remove the controls that reorder the text around them, because a name could imitate another
    one (https://trojansource.codes), and those that a terminal obeys."""
    return text.translate(_CONTROLS)


def normalize(text: str) -> str:
    """Reduce a sentence to what is compared: without case, extra white space, invisible characters,
    form of Unicode (NFKC) and punctuation at its ends."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_INVISIBLE))
    return " ".join(text.casefold().split()).strip(_EDGES)


def hash64(text: str) -> int:
    """A 64-bit hash that is the same in every process."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def text_hash(text: str | None) -> int:
    """Hash a sentence after `normalize`; 0 if there is none."""
    return hash64(normalize(text) or text) if text else 0


def ordered_pair_hash(first: Integers, second: Integers) -> Integers:
    """Hash each pair; swapped sentences give another hash. All arrays have shape (rows,)."""
    return first * np.int64(-7046029254386353131) + second


def sentence_groups(first: Integers, second: Integers) -> Integers:
    """Number the groups of rows that share a sentence, directly or through others. All arrays have
    shape (rows,)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not len(first):
        return np.zeros(0, np.int64)
    nodes = np.unique(np.concatenate([first, second]), return_inverse=True)[1]
    ends = nodes[: len(first)], nodes[len(first) :]
    graph = coo_array((np.ones(len(first), np.int8), ends), shape=(nodes.max() + 1,) * 2)
    groups: Integers = connected_components(graph, directed=False)[1][ends[0]]
    return groups


def fold_groups(first: Integers, second: Integers, folds: int) -> Integers:
    """Number the groups of rows that must share a fold: those that share a sentence, directly or
    through others, or only equal pairs if such a group is larger than a fold. All arrays have shape
    (rows,)."""
    groups = sentence_groups(first, second)
    if np.unique(groups, return_counts=True)[1].max(initial=0) * folds > len(groups):
        return unordered_pair_hash(first, second)
    return groups


def unordered_pair_hash(first: Integers, second: Integers) -> Integers:
    """Hash each pair; swapped sentences give the same hash. All arrays have shape (rows,)."""
    return ordered_pair_hash(np.minimum(first, second), np.maximum(first, second))
