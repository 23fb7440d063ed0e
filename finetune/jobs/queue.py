"""The runs that wait, in their order, and those that were begun: a folder of small files.

    <root>/.queue/waiting/<turn>.<order>-<run id>
    <root>/.queue/begun/<run id>
    <root>/.queue/turn                  that of the run begun last

Owners take turns: each run of an owner has the turn after that of their run before it, the first
the present turn. Runs of one turn go in the order in which they came; both kinds of files hold the
turn and the owner. (Start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996.)

Each change is one rename, so whoever is killed leaves the one state or the other. Who may change
it when, and whether a begun run still lives, is `scheduler`'s business.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from finetune import disk
from finetune.errors import StoreError

_MIDDLE = 10**12  # there is room in front


class Queue:
    """The queue of one store.

    Args:
        root: the store's root; made when something is added.
    """

    def __init__(self, root: Path) -> None:
        self._waiting = root / ".queue" / "waiting"
        self._begun = root / ".queue" / "begun"
        self._turn = root / ".queue" / "turn"

    def waiting(self) -> list[str]:
        """The ids that wait, the next first."""
        return [_run_id(path) for *_, path in self._entries()]

    def place(self, run_id: str) -> int:
        """The place of a waiting run, from 1; 0 when it does not wait."""
        ids = self.waiting()
        return ids.index(run_id) + 1 if run_id in ids else 0

    def add(self, run_id: str, owner: str = "", first: bool = False) -> None:
        """Put a run at the end of its owner's turns, or before all; one that waits is moved.

        Raises:
            StoreError: when the folder cannot be written.
        """
        entries = self._entries()
        former = self._find(run_id)
        orders = [order for _, order, _ in entries] or [_MIDDLE]
        order = min(orders) - 1 if first else max(orders) + 1
        turn = entries[0][0] if first and entries else self._next_turn(owner)
        path = self._waiting / f"{turn}.{order}-{run_id}"
        try:
            self._waiting.mkdir(parents=True, exist_ok=True)
            if former is not None:
                os.replace(former, path)
            path.write_text(f"{turn}\n{owner}", encoding="utf-8")
        except OSError as error:
            raise _unwritable(self._waiting, error) from error

    def _next_turn(self, owner: str) -> int:
        """The turn of the next run that this owner adds."""
        known = [*self._waiting.glob("*-*"), *self._begun.glob("*")]
        told = [_read(path) for path in known]
        theirs = [turn for turn, whose in told if whose == owner]
        return max(_read(self._turn)[0], *(turn + 1 for turn in theirs), 0)

    def remove(self, run_id: str) -> bool:
        """Take a run out; whether it was waiting."""
        found = self._find(run_id)
        if found is not None:
            found.unlink(missing_ok=True)
        return found is not None

    def begun(self) -> list[str]:
        """The ids of those begun and not noted as ended."""
        with contextlib.suppress(OSError):
            return sorted(os.listdir(self._begun))
        return []

    def begin(self, run_id: str) -> None:
        """A run waits no longer: it has a worker, or one is about to be started for it.

        Raises:
            StoreError: when the folder cannot be written; then it still waits.
        """
        former = self._find(run_id)
        try:
            self._begun.mkdir(parents=True, exist_ok=True)
            if former is None:
                (self._begun / run_id).touch()
                return
            os.replace(former, self._begun / run_id)
            self._turn.write_text(str(_read(self._begun / run_id)[0]), encoding="utf-8")
        except OSError as error:
            raise _unwritable(self._begun, error) from error

    def end(self, run_id: str) -> None:
        """A begun run has ended."""
        (self._begun / run_id).unlink(missing_ok=True)

    def _find(self, run_id: str) -> Path | None:
        return next((path for *_, path in self._entries() if _run_id(path) == run_id), None)

    def _entries(self) -> list[tuple[int, int, Path]]:
        found = []
        with contextlib.suppress(OSError):
            for name in os.listdir(self._waiting):
                turn, _, order = name.partition("-")[0].rpartition(".")
                if order.isdecimal() and (turn or "0").isdecimal():
                    found.append((int(turn or 0), int(order), self._waiting / name))
        return sorted(found)


def _run_id(path: Path) -> str:
    return path.name.partition("-")[2]


def _read(path: Path) -> tuple[int, str]:
    """The turn that a file tells, and the owner."""
    with contextlib.suppress(OSError, ValueError):
        turn, _, owner = path.read_text(encoding="utf-8").partition("\n")
        return int(turn or 0), owner
    return 0, ""


def _unwritable(folder: Path, error: OSError) -> StoreError:
    return disk.failure(f"The queue {folder}", error, StoreError)
