"""Choose what to ask about: vectors or words in, indices out."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.text_hashes import folded

Vectors = NDArray[np.float32]  # of length 1, shape (texts, hidden)
Items = NDArray[np.int32]  # indices of one or two texts each, shape (items, 1 or 2)

NEIGHBOURS = 10  # of each text
EXACT = 50_000  # texts; the neighbours of more are found by an index (HNSW)
_BLOCK = 512  # texts compared with all others at once
_PAIRS = 50_000  # pairs compared at once
_FAR = 0.1  # share of random pairs among the candidates, so that clear differences are asked too
_WORDS = r"(?u)[\u3040-\u9fff]|\w+"  # characters replace words in scripts without spaces


def unit(vectors: NDArray[Any]) -> Vectors:
    """Scale vectors to the length 1."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), np.float32)


def candidate_pairs(vectors: Vectors, file_of: NDArray[Any], count: int = NEIGHBOURS) -> Items:
    """Return the pairs of texts that may mean the same: each text with its nearest neighbours, and
    a tenth as many random pairs. None occurs twice. `file_of` is 0 or 1 for each text; if both
    occur, a pair has one text of each."""
    own = np.flatnonzero(file_of == 0)
    others = np.flatnonzero(file_of == 1) if file_of.any() else own
    same = others is own
    found = _nearest(vectors[own], vectors[others], min(count + same, len(others)))
    first, second = np.repeat(own, found.shape[1]), others[found.ravel()]
    random = np.random.default_rng(0)
    far = int(_FAR * len(first)) + 1
    first = np.concatenate([first, random.choice(own, far)])
    second = np.concatenate([second, random.choice(others, far)])
    pairs = np.stack([np.minimum(first, second), np.maximum(first, second)], 1)[first != second]
    return np.asarray(np.unique(pairs, axis=0), np.int32)


def _nearest(queries: Vectors, base: Vectors, count: int) -> NDArray[np.int64]:
    """Return the indices of the nearest vectors by cosine, shape (queries, count)."""
    if len(base) > EXACT:
        from usearch.index import Index

        index = Index(ndim=base.shape[1], metric="ip", dtype="bf16")
        index.add(np.arange(len(base)), base)
        return np.asarray(index.search(queries, count).keys, np.int64)
    blocks = np.array_split(queries, -(-len(queries) // _BLOCK))
    found = [np.argpartition(block @ base.T, -count, axis=1)[:, -count:] for block in blocks]
    return np.concatenate(found)


def twins(texts: Iterable[str]) -> list[tuple[int, ...]]:
    """Return the pairs of one and the same text, which two files may share."""
    first: dict[str, int] = {}
    found = [(first.setdefault(folded(text), own), own) for own, text in enumerate(texts)]
    return [pair for pair in found if pair[0] != pair[1]]


def first_pairs(texts: Sequence[str], file_of: NDArray[Any], most: int = 2000) -> Items:
    """Return pairs to ask about before there are vectors: neighbours by their letters, of some
    texts, the most similar first. They take a fraction of a second."""
    from sklearn.feature_extraction.text import HashingVectorizer

    chosen = np.random.default_rng(0).permutation(len(texts))[:most]
    letters = HashingVectorizer(analyzer="char_wb", ngram_range=(3, 3), n_features=512)
    vectors = unit(letters.transform([texts[text] for text in chosen]).toarray())
    pairs = candidate_pairs(vectors, file_of[chosen], 2)
    order = question_order((vectors[pairs[:, 0]] * vectors[pairs[:, 1]]).sum(axis=1))
    return np.asarray(np.sort(chosen[pairs[order]], axis=1), np.int32)


def pair_features(texts: Sequence[str], vectors: Vectors, pairs: Items) -> Vectors:
    """Return what a small model is told of pairs, shape (pairs, 5): the cosines of their vectors,
    words and letters, whether they have the same numbers, and how much their lengths differ. Each
    column has mean 0 and variance 1."""
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import TfidfVectorizer

    kinds: list[dict[str, Any]] = [
        {"token_pattern": _WORDS, "sublinear_tf": True},
        {"analyzer": "char_wb", "ngram_range": (3, 3), "sublinear_tf": True},
    ]
    first, second = pairs.T
    columns = [_products(vectors, pairs)]
    for options in kinds:
        try:
            bags = TfidfVectorizer(**options, dtype=np.float32).fit_transform(texts)
        except ValueError:  # no words
            columns.append(np.zeros(len(pairs)))
            continue
        columns.append(_products(csr_array(bags), pairs))
    numbers = [frozenset(re.findall(r"\d+", text)) for text in texts]
    columns.append(np.array([numbers[i] == numbers[j] for i, j in pairs], np.float32))
    lengths = np.log1p(np.array([len(text) for text in texts]))
    columns.append(abs(lengths[first] - lengths[second]))
    table = np.stack(columns, 1)
    return np.asarray((table - table.mean(0)) / np.maximum(table.std(0), 1e-6), np.float32)


def _products(rows: Any, pairs: Items) -> NDArray[Any]:
    """Return the product of the two rows of each pair, in blocks: there may be a million pairs."""
    blocks = (block.T for block in np.array_split(pairs, 1 + len(pairs) // _PAIRS))
    return np.concatenate([(rows[first] * rows[second]).sum(axis=1) for first, second in blocks])


def far_apart(vectors: Vectors, count: int, most: int = 5000) -> list[int]:
    """Return texts of which each is as far as possible from those before it (Gonzalez 1985,
    https://doi.org/10.1016/0304-3975(85)90224-5), found among `most` random ones."""
    pool = np.random.default_rng(0).permutation(len(vectors))[:most]
    own = vectors[pool]
    order, nearest = [int(np.argmax(own @ own.mean(0)))], np.full(len(pool), -1.0)
    for _ in range(min(count, len(pool)) - 1):
        nearest = np.maximum(nearest, own @ own[order[-1]])
        order.append(int(np.argmin(nearest)))
    return [int(pool[index]) for index in order]


def question_order(similarities: NDArray[Any]) -> NDArray[np.int64]:
    """Return an order of pairs in which the most similar, doubtful and far ones alternate."""
    order = np.argsort(-similarities, kind="stable")
    likely, doubtful, far = np.array_split(order, 3)
    random = np.random.default_rng(0)
    parts = likely[: len(far)], random.permutation(doubtful)[: len(far)], random.permutation(far)
    return np.asarray(np.stack(parts, 1).ravel())
