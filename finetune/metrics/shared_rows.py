"""How many independent rows some rows are worth, if some of them share a sentence.

A model tends to be right on all rows of a sentence, or wrong on all. Such rows tell less than as
many that have nothing in common. How much less is estimated from the rows themselves: the variance
of a score is computed once with the products of rows that share a sentence and once without them.
Their ratio is the design effect (Kish 1965, Survey Sampling). The rows are worth their number
divided by it.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from finetune.messages import Text, message
from finetune.metrics.classification import Floats, Indices

_ALL = 0.9999  # a share of the rows that counts as all of them
_SAID = 1.2**2  # times as many rows as they are worth, from which on that is said


class _Level:
    """Which rows count as related. Rows of no group are related to none but themselves.

    Args:
        groups: 0 and 1, a sparse array of shape (groups, rows).
        twice: the same of rows that are together in two groups: equal pairs.
    """

    def __init__(self, groups: Any, twice: Any) -> None:
        self._groups, self._twice = groups, twice
        once = np.ones(groups.shape[1])
        of_row = groups.T @ (groups @ once) - twice.T @ (twice @ once)
        rows, everything = len(once), float(of_row.sum())
        self.related = everything / rows  # mean number of rows related to a row, itself included
        self._unbiased = rows - self.related  # by which the sum of products is divided
        # The variance's degrees of freedom are Satterthwaite's for independent rows: with M the
        # centring matrix and A the matrix of related rows, the square of tr(MA) over tr(MAMA). For
        # G groups of equal size they are G - 1.
        spread = everything - 2 * float(of_row @ of_row) / rows + self.related**2
        self.degrees = self._unbiased**2 / spread if spread > 1e-9 * rows else 0.0

    def design_effect(self, values: Floats) -> float:
        """Estimate the design effect of the mean of some centred values, shape (rows, values)."""
        squares = values * values
        total, rows = float(squares.sum()), len(values)
        if total < 1e-12:
            return self.related
        products = float(((self._groups @ values) ** 2).sum() - ((self._twice @ values) ** 2).sum())
        ratio = products / self._unbiased * (rows - 1) / total
        # So many rows of the same weight would vary as much: of rare errors, their number.
        events = total**2 / float((squares.sum(axis=1) ** 2).sum())
        pairs = events * (self.related - 1)
        effect = 1 + (self.related - 1) * (max(0.0, events * (ratio - 1)) + 1) / (pairs + 1)
        return min(max(1.0, effect), self.related)


class SharedRows:
    """Rows of which some share a sentence.

    Two relations are considered, and that counts after which the rows are worth less:

    - Two rows share a sentence (dyadic clustering: Aronow, Samii and Assenova 2015,
      https://doi.org/10.1093/pan/mpv018).
    - Two rows are linked by others that do, as are all rows of a topic whose sentences were
      combined. Not if such rows are more than half of all: everything is linked to everything then,
      and most of these rows have nothing in common.

    With few groups the design effect is known only roughly. Intervals are as much wider as
    Student's distribution with the degrees of freedom of its estimate is wider than the normal one,
    by a smaller number of rows (Korn and Graubard 1998, Survey Methodology 24(2), 193-201). The
    design effect of values that hardly vary, such as errors that are none or few, cannot be
    estimated. If nothing varies, rows that share a sentence count as one; the more values differ,
    the more the estimate counts.

    Args:
        first, second: hashes of the normalized sentences of each row, shape (rows,); `second` is
            None, or 0, for single sentences. A column with one sentence in all rows is ignored.
    """

    def __init__(self, first: Indices, second: Indices | None = None) -> None:
        columns = np.stack([first, first if second is None else second])
        constant = (columns == columns[:, :1]).all(axis=1)
        if constant.any() and not constant.all():
            columns[constant] = columns[~constant]
        self.first, self.second = np.unique(columns, return_inverse=True)[1].reshape(2, -1)
        self.linked = linked_rows(self.first, self.second)
        self._levels = self._relations() if len(self) > 1 else []

    @property
    def related(self) -> bool:
        """True if any rows share a sentence."""
        return bool(self._levels)

    def __len__(self) -> int:
        return len(self.first)

    def of(self, rows: NDArray[Any]) -> Self:
        """Return some of the rows, from a mask or indices."""
        return type(self)(self.first[rows], self.second[rows])

    def worth(self, values: NDArray[Any]) -> float:
        """Return how many independent rows tell as much about the mean of some values as these do:
        what each adds, such as 1 for a right answer and 0 for a wrong one; shape (rows,), or (rows,
        values) for several means that vary together."""
        from scipy.special import stdtrit  # loads in half of the time of scipy.stats

        rows, columns = len(self), np.asarray(values, np.float64)
        columns = columns if columns.ndim > 1 else columns[:, None]
        least = float(rows)
        for level in self._levels:
            centred = columns - columns.mean(axis=0)
            if level.related > _ALL * rows or level.degrees <= 0:
                return 1.0
            wider = stdtrit(level.degrees, 0.975) / stdtrit(rows - 1, 0.975)
            least = min(least, rows / level.design_effect(centred) / wider**2)
        return max(1.0, least)

    def fold_groups(self, folds: int) -> Indices:
        """Number the groups of rows that must share a fold, shape (rows,): linked rows, or only
        equal pairs if more rows than a fold's are linked."""
        if np.bincount(self.linked).max(initial=0) * folds > len(self):
            return self._pairs()
        return self.linked

    def _pairs(self) -> Indices:
        """The number of each row's pair, whose order does not matter."""
        low, high = np.minimum(self.first, self.second), np.maximum(self.first, self.second)
        return np.asarray(low * (1 + high.max(initial=0)) + high)

    def _relations(self) -> list[_Level]:
        rows = np.arange(len(self))
        both = self.first != self.second
        ends = np.concatenate([self.first, self.second[both]])
        sentences = _groups(ends, np.concatenate([rows, rows[both]]), len(rows))
        related = [_Level(sentences, _groups(self._pairs()[both], rows[both], len(rows)))]
        if 2 * np.bincount(self.linked).max() <= len(rows):
            nothing = _groups(rows[:0], rows[:0], len(rows))
            related.append(_Level(_groups(self.linked, rows, len(rows)), nothing))
        return [level for level in related if level.related > 1 + 1e-9]


def note(rows: int, worth: float) -> Text:
    """Say how many rows count if that makes intervals wider by more than a fifth; otherwise ""."""
    if worth * _SAID > rows:
        return ""
    return message(
        "Of {rows:,} rows about {n:,} count: those that share a sentence are right and wrong "
        "together.",
        rows=rows, n=round(worth),
    )  # fmt: skip


def rows_worth(values: NDArray[Any], shared: SharedRows | None) -> float:
    """Return `SharedRows.worth`; the number of rows if it is not known which share a sentence."""
    return float(len(values)) if shared is None else shared.worth(values)


def linked_rows(first: Indices, second: Indices) -> NDArray[np.int64]:
    """Number the groups of rows that share a sentence, directly or through others, by their hashes:
    in any order of the rows a group has the same number. All arrays have shape (rows,)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not len(first):
        return np.zeros(0, np.int64)
    ends = np.unique(np.stack([first, second]), return_inverse=True)[1].reshape(2, -1)
    graph = coo_array((np.ones(len(first), np.int8), tuple(ends)), shape=(ends.max() + 1,) * 2)
    return np.asarray(connected_components(graph, directed=False)[1][ends[0]])


def _groups(group: NDArray[Any], row: Indices, rows: int) -> Any:
    """A sparse array of 0 and 1, of shape (groups, rows), with the group of each row."""
    from scipy.sparse import csr_array

    index = np.unique(group, return_inverse=True)[1]
    shape = (int(index.max(initial=-1)) + 1, rows)
    return csr_array((np.ones(len(row)), (index, row)), shape=shape)
