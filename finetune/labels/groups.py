"""Groups of texts that mean the same, from answers on pairs of them."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from finetune.labels.candidates import Items
from finetune.metrics.intervals import wilson_interval


def group(
    texts: int,
    pairs: Items,
    probabilities: NDArray[np.floating],
    known: Mapping[tuple[int, ...], bool],
) -> NDArray[np.int64]:
    """Join texts to groups, the surest pairs first.

    Pairs whose probability to mean the same is above 0.5 join. A pair that a person called
    different is never in one group, unless other answers of theirs join it. Returns the group of
    each text, from 0 in the order of their first texts.
    """
    root = list(range(texts))  # text -> another of its group, in the end the group's first
    apart: dict[int, set[int]] = {}  # root -> roots that it must not join

    def find(text: int) -> int:
        while root[text] != text:
            root[text] = text = root[root[text]]
        return text

    def join(first: int, second: int) -> None:
        first, second = sorted((find(first), find(second)))
        if first == second or second in apart.get(first, ()):
            return
        root[second] = first
        for other in apart.pop(second, set()):
            apart[other].discard(second)
            apart[other].add(first)
            apart.setdefault(first, set()).add(other)

    for (first, second), same in sorted(known.items(), key=lambda answer: not answer[1]):
        if same:
            join(first, second)
        elif (first := find(first)) != (second := find(second)):
            apart.setdefault(first, set()).add(second)
            apart.setdefault(second, set()).add(first)
    for index in np.argsort(-probabilities, kind="stable"):
        first, second = map(int, pairs[index])
        if probabilities[index] > 0.5 and (first, second) not in known:
            join(first, second)
    return np.unique([find(text) for text in range(texts)], return_inverse=True)[1]


def measure(
    groups: NDArray[np.int64], random: Mapping[tuple[int, ...], bool]
) -> dict[str, list[float] | None]:
    """Return `precision` and `recall` of pairs in one group as [value, low, high], by random pairs
    whose answers had no part in the groups; None if there is nothing to count."""
    told = [(groups[first] == groups[second], same) for (first, second), same in random.items()]
    both, figures = sum(one and own for one, own in told), {}
    totals = {"precision": sum(one for one, _ in told), "recall": sum(own for _, own in told)}
    for name, total in totals.items():
        found = wilson_interval(both, total)
        figures[name] = [found.value, found.low, found.high] if total else None
    return figures
