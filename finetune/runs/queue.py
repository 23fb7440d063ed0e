"""The queue of runs.

    <root>/.queue/<turn>.<order>-<run id>   a waiting run; contains its owner's name
    <root>/.queue/turn.json                 owners who had the present turn (owner -> its number)

Owners take turns: each run of an owner gets the turn after that of the owner's run before it; the
first one gets the present turn (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996).
"""

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from finetune import disk
from finetune.errors import StoreError


class _Entry(NamedTuple):
    turn: int
    order: int
    run_id: str
    path: Path

    @property
    def owner(self) -> str:
        with contextlib.suppress(OSError):  # its worker may remove it at this moment
            return self.path.read_text(encoding="utf-8")
        return ""


class Queue:
    """The queue of the store at `root`."""

    def __init__(self, root: Path) -> None:
        self._folder = root / ".queue"
        self._turn_file = self._folder / "turn.json"

    def waiting(self) -> list[str]:
        """The ids of waiting runs, the next first."""
        return [entry.run_id for entry in self._entries()]

    def add(self, run_id: str, owner: str = "") -> None:
        """Add a run at the end of its owner's turns; a waiting run is moved there."""
        entries, had_turn = self._entries(), disk.read_json(self._turn_file)
        order = max((entry.order for entry in entries), default=0) + 1
        now = max(had_turn.values(), default=0)
        theirs = [entry.turn + 1 for entry in entries if entry.owner == owner]
        turn = max([now + (owner in had_turn), *theirs])
        path = self._folder / f"{turn}.{order}-{run_id}"
        with disk.writing(f"The queue {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True)
            if former := self._find(run_id):
                os.replace(former.path, path)
            path.write_text(owner, encoding="utf-8")

    def remove(self, run_id: str) -> None:
        """Remove a run if it waits."""
        if entry := self._find(run_id):
            entry.path.unlink(missing_ok=True)

    def begin(self, run_id: str) -> None:
        """Remove a run that now has a worker, and record that its owner had this turn."""
        if entry := self._find(run_id):
            had_turn = disk.read_json(self._turn_file).items()
            turns = {owner: turn for owner, turn in had_turn if turn == entry.turn}
            with contextlib.suppress(StoreError):  # a full disk: the next turn is a little unfair
                text = json.dumps(turns | {entry.owner: entry.turn})
                disk.write_atomically(self._turn_file, text)
            entry.path.unlink(missing_ok=True)

    def _find(self, run_id: str) -> _Entry | None:
        return next((entry for entry in self._entries() if entry.run_id == run_id), None)

    def _entries(self) -> list[_Entry]:
        entries = []
        for path in self._folder.glob("*-*"):
            place, _, run_id = path.name.partition("-")
            turn, _, order = place.partition(".")
            if turn.isdecimal() and order.isdecimal():
                entries.append(_Entry(int(turn), int(order), run_id, path))
        return sorted(entries)
