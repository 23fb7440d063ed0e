"""The runs that wait, in their order, and those that were begun: a folder of small files.

    <root>/.queue/waiting/<order>-<run id>
    <root>/.queue/begun/<run id>        the worker's mark, once it has one

Each change is one rename, so whoever is killed leaves the one state or the other. Who may change
it when, and whether a begun run still lives, is `jobs`' business.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from finetune.errors import StoreError, remedy_of_disk

_MIDDLE = 10**12  # there is room in front


class Queue:
    """The queue of one store.

    Args:
        root: the store's root; made when something is added.
    """

    def __init__(self, root: Path) -> None:
        self._waiting = root / ".queue" / "waiting"
        self._begun = root / ".queue" / "begun"

    def waiting(self) -> list[str]:
        """The ids that wait, the next first."""
        return [run_id for _, run_id in self._entries()]

    def place(self, run_id: str) -> int:
        """The place of a waiting run, from 1; 0 when it does not wait."""
        ids = self.waiting()
        return ids.index(run_id) + 1 if run_id in ids else 0

    def add(self, run_id: str, first: bool = False) -> None:
        """Put a run at the end, or in front; one that waits already is moved.

        Raises:
            StoreError: when the folder cannot be written.
        """
        entries = self._entries()
        orders = [order for order, _ in entries] or [_MIDDLE]
        order = min(orders) - 1 if first else max(orders) + 1
        former = next((self._path(*entry) for entry in entries if entry[1] == run_id), None)
        try:
            if former is not None:
                os.replace(former, self._path(order, run_id))
                return
            self._waiting.mkdir(parents=True, exist_ok=True)
            self._path(order, run_id).touch()
        except OSError as error:
            raise _unwritable(self._waiting, error) from error

    def remove(self, run_id: str) -> bool:
        """Take a run out; whether it was waiting."""
        found = [self._path(*entry) for entry in self._entries() if entry[1] == run_id]
        for path in found:
            path.unlink(missing_ok=True)
        return bool(found)

    def begun(self) -> dict[str, dict[str, Any]]:
        """Run id -> mark of the process that was started for it; empty while it has none."""
        found = {}
        with contextlib.suppress(OSError):
            for name in os.listdir(self._begun):
                found[name] = self._mark(name)
        return found

    def _mark(self, run_id: str) -> dict[str, Any]:
        try:
            known = json.loads((self._begun / run_id).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def begin(self, run_id: str) -> None:
        """A run waits no longer: a worker is about to be started for it.

        Raises:
            StoreError: when the folder cannot be written; then it still waits.
        """
        former = next((self._path(*one) for one in self._entries() if one[1] == run_id), None)
        try:
            self._begun.mkdir(parents=True, exist_ok=True)
            if former is None:
                (self._begun / run_id).touch()
            else:
                os.replace(former, self._begun / run_id)
        except OSError as error:
            raise _unwritable(self._begun, error) from error

    def note(self, run_id: str, mark: dict[str, Any]) -> None:
        """Which process was started for a begun run."""
        with contextlib.suppress(OSError):  # the worker's own job.json says it too, a moment later
            (self._begun / run_id).write_text(json.dumps(mark), encoding="utf-8")

    def end(self, run_id: str) -> None:
        """A begun run has ended."""
        (self._begun / run_id).unlink(missing_ok=True)

    def _entries(self) -> list[tuple[int, str]]:
        found = []
        with contextlib.suppress(OSError):
            for name in os.listdir(self._waiting):
                order, _, run_id = name.partition("-")
                if order.isdecimal():
                    found.append((int(order), run_id))
        return sorted(found)

    def _path(self, order: int, run_id: str) -> Path:
        return self._waiting / f"{order}-{run_id}"


def _unwritable(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        f"The queue {folder} cannot be written: {error.strerror or error}.",
        remedy_of_disk(error, "Free some space or choose another folder with FINETUNE_RUNS."),
    )
