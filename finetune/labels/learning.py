"""A small model of the answers so far: what it is unsure of, and how good it would be with more."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.intervals import Interval, wilson_interval

Labels = tuple[str, ...]  # of one row; several, or none, if the labels are independent
Floats = NDArray[np.floating]
FEWEST = 30  # answers, below which nothing is estimated
_STRENGTH = 10.0  # inverse of the regularisation, as scikit-learn's C
_SUBSETS = 3  # of half and a quarter of the answers


@dataclass(frozen=True)
class Estimate:
    """How good a small model is, measured on rows that were drawn at random."""

    now: Interval  # share of right answers
    twice: Interval  # the same with twice as many answers, extrapolated
    commonest: float  # share that the commonest answer would get right
    measured: int  # random rows
    learned: int  # answers that it learned from


class Learner:
    """A linear model on the features of rows, of shape (rows, columns). If there are `several`, a
    row may have any number of the labels."""

    def __init__(
        self, features: Floats, given: Sequence[Labels], names: Sequence[str], several: bool
    ) -> None:
        from sklearn.dummy import DummyClassifier
        from sklearn.linear_model import LogisticRegression
        from sklearn.multiclass import OneVsRestClassifier

        self._names, self._several = names, several
        table = np.array([[name in own for name in names] for own in given], int)
        model: Any = LogisticRegression(C=_STRENGTH, max_iter=50)
        if several:
            model = OneVsRestClassifier(model)
        elif len(set(given)) == 1:
            model = DummyClassifier()  # the only answer so far
        with warnings.catch_warnings():  # of steps that do not suffice, and of only answers
            warnings.simplefilter("ignore")
            self._model = model.fit(features, table if several else table.argmax(1))

    def probabilities(self, features: Floats) -> Floats:
        """Return the probability of each label, shape (rows, labels)."""
        found = np.zeros((len(features), len(self._names)))
        found[:, self._model.classes_] = self._model.predict_proba(features)
        return found

    def answers(self, features: Floats) -> list[Labels]:
        """Return the labels of each row."""
        return answers(self.probabilities(features), self._names, self._several)


def answers(probabilities: Floats, names: Sequence[str], several: bool) -> list[Labels]:
    """Return the labels that each row's probabilities stand for."""
    if not several:
        return [(names[best],) for best in probabilities.argmax(axis=1)]
    return [tuple(compress(names, row)) for row in probabilities > 0.5]


def margins(probabilities: Floats, several: bool) -> Floats:
    """Return how sure an answer to each row is, from 0; shape (rows,)."""
    if several:
        return np.asarray(abs(probabilities - 0.5).min(axis=1))
    best = np.sort(probabilities, axis=1)[:, -2:]
    return np.asarray(best[:, -1] - best[:, 0])


def estimate(
    learned: tuple[Floats, Sequence[Labels]],
    measured: tuple[Floats, Sequence[Labels]],
    names: Sequence[str],
    several: bool,
) -> Estimate | None:
    """Estimate how good a model is now, and with twice as many answers.

    The error is taken to fall by a power of the number of answers (Hestness et al. 2017,
    https://arxiv.org/abs/1712.00409), whose exponent is read from all, half and a quarter of them.
    None if there are fewer than 30 answers, or none is of a random row.

    Args:
        learned: features and answers that the model learns from.
        measured: those of random rows.
    """
    features, given = learned
    count, random = len(given), np.random.default_rng(0)
    if count + len(measured[1]) < FEWEST or count < 4 or not len(measured[1]):
        return None

    def wrong(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        learner = Learner(features[rows], [given[row] for row in rows], names, several)
        found = learner.answers(measured[0])
        return np.array([one != own for one, own in zip(found, measured[1], strict=True)], float)

    errors = []
    for size in (count // 4, count // 2):
        draws = [random.permutation(count)[:size] for _ in range(_SUBSETS)]
        errors.append(np.mean([wrong(rows) for rows in draws], axis=0))
    table = np.stack([*errors, wrong(np.arange(count))])  # (sizes, measured)
    total = table.shape[1]
    drawn = random.integers(0, total, (1000, total))
    means = (table[:, drawn].sum(axis=2) + 0.5) / (total + 1)  # (sizes, resamples)
    mean = (table.sum(axis=1) + 0.5) / (total + 1)

    def halved(shares: Floats) -> Floats:
        slope = np.clip(np.log2(shares[2] / shares[0]) / 2, -1.0, 0.0)
        return np.asarray(1 - shares[2] * 2**slope)

    now = wilson_interval(total - table[2].sum(), total)
    low, high = np.quantile(halved(means), [0.025, 0.975])
    value = max(float(halved(mean)), now.value)
    twice = Interval(value, min(float(low), now.low), max(float(high), now.high))
    counts = [list(measured[1]).count(one) for one in set(measured[1])]
    return Estimate(now, twice, max(counts) / total, total, count)
