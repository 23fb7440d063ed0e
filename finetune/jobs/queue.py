"""The runs that wait: a folder with a small file for each.

    <root>/.queue/<turn>.<order>-<run id>   holds the owner's name
    <root>/.queue/turns.json                the turn of the run begun last, of all and of each owner

Owners take turns: each run of an owner has the turn after that of their run before it, the first
the present turn. Runs of one turn go in the order of their arrival. (Start-time fair queueing:
Goyal, Vin and Cheng, SIGCOMM 1996.) Each change is one rename or removal, so whoever is killed
leaves the one state or the other.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from finetune import disk
from finetune.disk import write_atomically
from finetune.errors import StoreError

_MIDDLE = 10**12  # the first number; there is room in front


@dataclass(frozen=True, order=True)
class _Entry:
    turn: int
    order: int
    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name.partition("-")[2]

    @property
    def owner(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            return self.path.read_text(encoding="utf-8")
        return ""


class Queue:
    """The queue of the store at `root`."""

    def __init__(self, root: Path) -> None:
        self._folder = root / ".queue"

    def waiting(self) -> list[str]:
        """The ids that wait, the next first."""
        return [entry.run_id for entry in self._entries()]

    def __contains__(self, run_id: str) -> bool:
        return run_id in self.waiting()

    def add(self, run_id: str, owner: str = "", first: bool = False) -> None:
        """Put a run at the end of its owner's turns, or before all; one that waits is moved."""
        entries, former = self._entries(), self._find(run_id)
        orders = [entry.order for entry in entries] or [_MIDDLE]
        order = min(orders) - 1 if first else max(orders) + 1
        if first and entries:
            turn = entries[0].turn
        else:
            now, begun = self._turns()
            theirs = [entry.turn for entry in entries if entry.owner == owner]
            turn = max([now, begun.get(owner, now - 1) + 1, *(turn + 1 for turn in theirs)])
        path = self._folder / f"{turn}.{order}-{run_id}"
        with disk.writing(f"The queue {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True)
            if former is not None:
                os.replace(former.path, path)
            path.write_text(owner, encoding="utf-8")

    def remove(self, run_id: str) -> bool:
        """Take a run out; whether it was waiting."""
        entry = self._find(run_id)
        if entry is not None:
            entry.path.unlink(missing_ok=True)
        return entry is not None

    def begin(self, run_id: str) -> None:
        """Take out a run that has a worker now: its owner has had this turn."""
        entry = self._find(run_id)
        if entry is None:
            return
        _, begun = self._turns()
        begun[entry.owner] = entry.turn
        recent = {owner: turn for owner, turn in begun.items() if turn >= entry.turn}
        with contextlib.suppress(StoreError):  # a full disk: the next turn is a little unfair
            text = json.dumps({"now": entry.turn, "owners": recent})
            write_atomically(self._folder / "turns.json", text)
        entry.path.unlink(missing_ok=True)

    def _turns(self) -> tuple[int, dict[str, int]]:
        """The turn of the run begun last, and of each owner's."""
        record = disk.read_json(self._folder / "turns.json")
        return record.get("now", 0), record.get("owners", {})

    def _find(self, run_id: str) -> _Entry | None:
        return next((entry for entry in self._entries() if entry.run_id == run_id), None)

    def _entries(self) -> list[_Entry]:
        entries = []
        for path in self._folder.glob("*-*"):
            turn, _, order = path.name.partition("-")[0].partition(".")
            if turn.isdecimal() and order.isdecimal():
                entries.append(_Entry(int(turn), int(order), path))
        return sorted(entries)
