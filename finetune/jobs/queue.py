"""The runs that wait: a folder with a small file for each.

    <root>/.queue/<order>-<run id>      holds the owner's name

Owners take turns: the order is that of arrival, but a run waits until every other owner with an
earlier turn was served. A run's turn is the number of its owner's runs at work or waiting before
it (round robin). Each change is one rename, so whoever is killed leaves the one state or the other.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from finetune import disk
from finetune.runs.job_folder import JobFolder

_MIDDLE = 10**12  # the first number; there is room in front


class Queue:
    """The queue of one store.

    Args:
        root: the store's root; made when something is added.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / ".queue"

    def waiting(self, running: Iterable[JobFolder] = ()) -> list[str]:
        """The ids that wait, the next first.

        Args:
            running: the runs at work, whose owners have had a turn.
        """
        turns = Counter(run.owner for run in running)
        by_turn = []
        for order, path in self._entries():
            owner = _owner(path)
            by_turn.append((turns[owner], order, _run_id(path)))
            turns[owner] += 1
        return [run_id for _, _, run_id in sorted(by_turn)]

    def __contains__(self, run_id: str) -> bool:
        return any(_run_id(path) == run_id for _, path in self._entries())

    def add(self, run_id: str, owner: str = "", first: bool = False) -> None:
        """Put a run at the end, or before all; one that waits is moved.

        Raises:
            StoreError: when the folder cannot be written.
        """
        entries = self._entries()
        former = [path for _, path in entries if _run_id(path) == run_id]
        orders = [order for order, _ in entries] or [_MIDDLE]
        order = min(orders) - 1 if first else max(orders) + 1
        path = self._folder / f"{order}-{run_id}"
        with disk.writing(f"The queue {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True)
            if former:
                os.replace(former[0], path)
            path.write_text(owner, encoding="utf-8")

    def remove(self, run_id: str) -> bool:
        """Take a run out; whether it was waiting."""
        paths = [path for _, path in self._entries() if _run_id(path) == run_id]
        for path in paths:
            path.unlink(missing_ok=True)
        return bool(paths)

    def _entries(self) -> list[tuple[int, Path]]:
        entries = []
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                order = name.partition("-")[0]
                if order.isdecimal():
                    entries.append((int(order), self._folder / name))
        return sorted(entries)


def _run_id(path: Path) -> str:
    return path.name.partition("-")[2]


def _owner(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return ""
