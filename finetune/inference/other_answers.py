"""Compares a model's answers with those that a file has already: another model's, or a person's."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.data.table import is_filled, to_plain_value
from finetune.metrics import intervals
from finetune.metrics.catalog import OF_SCORES, Metric, Tally
from finetune.metrics.classification import Floats, Truths, ratio
from finetune.metrics.intervals import Interval
from finetune.metrics.shared_rows import SharedRows, rows_worth
from finetune.tasks.base import Target, Targets, Task
from finetune.tasks.comparison import compare

MOST_COLUMNS = 50  # that are looked at
FEWEST_ROWS = 10  # that are compared
_KNOWN = 0.9  # of a column's cells, at least, are answers
_SHOWN = 200  # rows that differ, whose numbers are kept
_INTEGER = re.compile(r"-?\d+")


class OtherAnswers:
    """Finds the columns of a file that hold answers while it is read.

    A column counts if nine tenths of its cells that are not empty are answers of the task. The
    number of a class counts only if a class is called so or the file's labels are numbers, a score
    only within the scale.
    """

    def __init__(
        self, task: Task, target: Target, columns: Sequence[str], label_map: str = ""
    ) -> None:
        self._task, self._target = task, target
        self._changes = RunConfig(label_map=label_map).changed_labels
        self._columns: dict[str, list[tuple[Targets, Truths]]] = {
            name: [] for name in columns[:MOST_COLUMNS]
        }
        self._filled = dict.fromkeys(self._columns, 0)
        self._numbers = any(map(_INTEGER.fullmatch, target.names))

    def add(self, records: Sequence[dict[str, Any]], labels: Sequence[Any]) -> None:
        """Take in the next rows, and the cells of their label column; none if there is none."""
        self._numbers |= any(_INTEGER.fullmatch(str(cell)) for cell in labels[:100])
        for name in [*self._columns]:
            cells = [to_plain_value(record.get(name)) for record in records]
            values, found = self._task.parse(cells, self._target, self._changes)
            if not self._target.names:
                margin = (self._target.high - self._target.low) / 10
                found &= (values >= self._target.low - margin) & (
                    values <= self._target.high + margin
                )
            elif not self._numbers:
                found &= [not _INTEGER.fullmatch(str(cell)) for cell in cells]
            filled = np.array([is_filled(cell) for cell in cells])
            found &= filled  # an empty cell is no answer, though it can be a label
            self._columns[name].append((values, found))
            self._filled[name] += int(filled.sum())
            hits = sum(int(mask.sum()) for _, mask in self._columns[name])
            if hits < _KNOWN * self._filled[name]:
                del self._columns[name]

    def report(
        self, numbers: NDArray[np.int64], answers: Targets, truth: Targets, known: Truths,
        hashes: NDArray[np.int64],
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Compare each column of answers with the model's.

        Args:
            numbers: of the rows in the file.
            answers, truth, known: the model's, the labels, and which of these could be read.
            hashes: of the sentences, shape (rows, 2).

        Returns:
            Of each its `column`, the `rows` compared, `agreement` (`agreement_of`), and the
            numbers of the first 200 rows that `differ`. If the file has labels, also the `labelled`
            rows, both `scores`, their `difference` (the model's minus the column's), and for
            answers that are right or wrong `right`: where they differ, only the model (`first`),
            only the column (`second`) or `neither`, and the `p` of McNemar's exact test. Intervals
            are lists of value and ends.
        """
        found = []
        for name, parts in self._columns.items():
            values, mask = map(np.concatenate, zip(*parts, strict=True))
            several = len(np.unique(values[mask], axis=0)) > 1
            if mask.sum() < FEWEST_ROWS or not several:
                continue
            agreed = agreement_of(
                answers[mask], values[mask], self._target.names, SharedRows(*hashes[mask].T)
            )
            same = self._task.errors(answers[mask], values[mask]) == 0
            found.append(
                {
                    "column": name,
                    "rows": int(mask.sum()),
                    "agreement": {key: _listed(one) for key, one in agreed.items()},
                    "differ": numbers[mask][~same][:_SHOWN].tolist(),
                    **self._against_labels(answers, values, truth, mask & known, hashes),
                }
            )
        return found

    def _against_labels(
        self, answers: Targets, values: Targets, truth: Targets, mask: Truths,
        hashes: NDArray[np.int64],
    ) -> dict[str, Any]:  # fmt: skip
        if mask.sum() < FEWEST_ROWS:
            return {}
        ours, theirs, truth = answers[mask], values[mask], truth[mask]
        task, target = self._task, self._target
        scores = [task.scores(each, truth, target, task.metrics) for each in (ours, theirs)]
        compared = compare(ours, theirs, truth, target, task.metrics, SharedRows(*hashes[mask].T))
        difference = compared.difference
        found: dict[str, Any] = {
            "labelled": int(mask.sum()),
            "scores": {name: [each[name] for each in scores] for name in difference},
            "difference": {name: _listed(one) for name, one in difference.items()},
        }
        if task.has_right:
            wrong, apart = np.logical_and(*compared.misses), task.errors(ours, theirs) != 0
            found["right"] = {
                "first": compared.first_only, "second": compared.second_only,
                "neither": int((wrong & apart).sum()), "p": compared.p,
            }  # fmt: skip
        return found


def _listed(interval: Interval) -> list[float | None]:
    """Value and ends as JSON has them."""
    ends = (interval.value, interval.low, interval.high)
    return [None if np.isnan(end) else end for end in ends]


def _cohen_kappa(tally: Tally, positive: int | None) -> Floats:
    by_chance = (tally.support * tally.predicted).sum(axis=0, dtype=np.float64)
    rows = tally.support.sum(axis=0, dtype=np.float64)
    return ratio(tally.hits.sum(axis=0) * rows - by_chance, rows**2 - by_chance)


KAPPA = Metric("cohen_kappa", "Cohen's kappa", "kappa", range=(-1, 1), of_tally=_cohen_kappa)


def kappa(first: NDArray[Any], second: NDArray[Any], shared: SharedRows | None = None) -> Interval:
    """Compute Cohen's kappa of two sets of class indices, both of shape (rows,), with a bootstrap
    interval: 0 for an agreement by chance, 1 for a complete one. If one of them always gives the
    same class it is 0, and if both do nan; the interval is then unknown.

    Source: Cohen 1960, https://doi.org/10.1177/001316446002000104.
    """
    used = [len(np.unique(each)) for each in (first, second)]
    if min(used) < 2:
        return Interval(0.0 if max(used) > 1 else float("nan"), -1.0, 1.0)
    answers, truth = (np.asarray(each, np.int64) for each in (second, first))
    return intervals.score_intervals(answers, truth, [KAPPA], None, shared)[KAPPA.name]


def agreement_of(
    first: NDArray[Any], second: NDArray[Any], names: Sequence[str],
    shared: SharedRows | None = None,
) -> dict[str, Interval]:  # fmt: skip
    """Compare two sets of answers.

    Args:
        first, second: class indices or scores of shape (rows,), or 0 and 1 for each label, of shape
            (rows, labels).
        names: of the classes or labels; none for scores.
        shared: which rows share a sentence; None if that is unknown.

    Returns:
        For classes the share of `equal` answers and `kappa`; for several labels the share of equal
        sets and the kappa of each label, as `kappa NAME`; for scores the correlation `pearson`, and
        the mean of second - first as `difference`.
    """
    if not names:
        found = intervals.score_intervals(second, first, OF_SCORES[:1], None, shared)
        part = rows_worth(second - first, shared) / len(first)
        difference = intervals.mean_interval((second - first).tolist(), part)
        return found | ({"difference": difference} if difference else {})
    same = (first == second).reshape(len(first), -1).all(axis=1)
    worth = rows_worth(same, shared)
    equal = {"equal": intervals.wilson_interval(worth * float(same.mean()), worth)}
    if first.ndim == 1:
        return equal | {"kappa": kappa(first, second, shared)}
    return equal | {
        f"kappa {name}": kappa(first[:, label], second[:, label], shared)
        for label, name in enumerate(names)
    }
