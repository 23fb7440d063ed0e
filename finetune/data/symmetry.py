"""Test whether the order of a pair's sentences matters. If nothing tells the first ones from the
second ones, a pair may be read in either order."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from finetune.data.splits import Pairs
from finetune.tasks.base import one_stratum
from finetune.tasks.registry import task_of
from finetune.text_hashes import Integers

_SAMPLE = 2000  # pairs of a class
_FEWEST = 30  # pairs of a class that are needed to learn from
_FEATURES = 4096  # hashed words
_MARGIN = 0.02  # of accuracy, beside three standard errors
# What distinguishes the names of two columns of one kind: sentence1 and sentence2, left_title and
# right_title, question a and question b.
_SIDE = re.compile(r"(?<![a-z])(?:left|right|first|second|one|two|a|b)(?![a-z])|[0-9]|[\W_]")
_INFERENCE = re.compile("entail|contradict|neutral|imply|implies|follows", re.IGNORECASE)


def is_symmetric(pairs: Pairs) -> bool:
    """True if the columns have names of one kind, no class is one of inference, and the words and
    lengths of the training pairs do not tell the first sentence from the second.

    Then pairs and swapped pairs appear to come from one distribution, so that swapping the
    sentences changes nothing for the task.
    """
    train, names = pairs.splits["train"], pairs.facts.get("columns", {})
    if "sentence2" not in train.column_names:
        return False
    first, second = (
        _SIDE.sub("", str(names.get(name) or name).casefold())
        for name in ("sentence1", "sentence2")
    )
    if first != second or any(map(_INFERENCE.search, pairs.target.names)):
        return False
    strata = one_stratum(task_of(pairs.target).strata(np.array(train["label"][:])))
    return not tells_order(train["sentence1"][:], train["sentence2"][:], strata)


def tells_order(first: Sequence[str], second: Sequence[str], strata: Integers) -> bool:
    """True if a linear model of words and lengths learns which sentence is the first, among the
    pairs of any stratum, such as a class, or if one has too few pairs.

    Source: Lopez-Paz and Oquab 2017, Revisiting Classifier Two-Sample Tests,
    https://arxiv.org/abs/1610.06545.
    """
    draw = np.random.default_rng(0)
    for stratum in np.unique(strata):
        rows = np.flatnonzero(strata == stratum)
        if len(rows) < _FEWEST:
            return True
        rows = draw.permutation(rows)[:_SAMPLE]
        one, other = ([texts[int(row)] for row in rows] for texts in (first, second))
        share = _share_told(one, other, draw)
        if share > 0.5 + _MARGIN + 1.5 / math.sqrt(len(rows)):
            return True
    return False


def _share_told(first: Sequence[str], second: Sequence[str], draw: np.random.Generator) -> float:
    """The share of pairs whose order is recognised, in cross-validation."""
    from scipy.sparse import csr_array, hstack
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score

    words = HashingVectorizer(n_features=_FEATURES, alternate_sign=False, token_pattern=r"\S+")

    def features(texts: Sequence[str]) -> Any:
        length = np.log1p([[len(text), text.count(" ")] for text in texts])
        return hstack([words.transform(texts), csr_array(length)])

    is_swapped = draw.integers(0, 2, len(first))
    sign = 1.0 - 2.0 * is_swapped
    differences = (features(first) - features(second)).multiply(sign[:, None]).tocsr()
    model = LogisticRegression(fit_intercept=False, C=10.0, max_iter=200)
    return float(cross_val_score(model, differences, is_swapped, cv=5).mean())
