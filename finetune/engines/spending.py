"""What was spent on jobs of a billed engine.

It stands in `<store>/.spending.jsonl`, which outlives deleted runs.
An attempt's maximum cost is noted before it begins, its actual cost after it ends. The last line
for an attempt counts.
"""

import contextlib
import math
import time
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock
from pydantic import BaseModel, ValidationError

from finetune import disk
from finetune.errors import JobError, StoreError
from finetune.messages import message as _
from finetune.runs.run import Run

_DAY = 24 * 3600.0
_FILE, _LOCK = ".spending.jsonl", ".spending.lock"


class _Cost(BaseModel, frozen=True):
    time: float  # when it was noted, in seconds since the epoch
    owner: str
    run: str
    attempt: int
    dollars: float


def note(run: Run, attempt: int, dollars: float) -> None:
    """Note the cost of an attempt."""
    cost = _Cost(time=time.time(), owner=run.owner, run=run.id, attempt=attempt, dollars=dollars)
    if dollars != spent_in(run, attempt):
        path = run.folder.parent / _FILE
        with disk.writing(path):
            disk.append_line(path, cost.model_dump_json().encode())
            disk.sync(path)


def rounded_up(dollars: float) -> float:
    """Round an upper bound up to whole cents: `$0.015` is at most `$0.02`."""
    return math.ceil(round(100 * dollars, 6)) / 100


def rounded_down(dollars: float) -> float:
    """Round a remaining amount down to whole cents: `$0.015` leaves `$0.01` to spend."""
    return math.floor(round(100 * dollars, 6)) / 100


def spent_in(run: Run, attempt: int | None = None) -> float:
    """Return the cost of an attempt in US dollars, or of a whole run; the most if it is running."""
    own = [cost for cost in _costs(run.folder.parent) if cost.run == run.id]
    return sum(cost.dollars for cost in own if attempt in (None, cost.attempt))


def spent_today(root: Path, owner: str) -> float:
    """Return the cost in US dollars of an owner's jobs of the last 24 hours."""
    own = [cost for cost in _costs(root) if cost.owner == owner]
    return sum(cost.dollars for cost in own if cost.time > time.time() - _DAY)


def reserve(run: Run, attempt: int, most: float, a_run: float, a_day: float) -> None:
    """Note an attempt's maximum cost. Attempts that begin at the same time see each other's notes.
    JobError if it exceeds the limit for its run or for a day, StoreError if the note cannot be
    written and read back; without it the limits do not hold."""
    root = run.folder.parent
    with FileLock(root / _LOCK):
        note(run, attempt, 0.0)  # an earlier try may have noted it
        for spent, limit, what in (
            (spent_in(run), a_run, _("this run")),
            (spent_today(root, run.owner), a_day, _("24 hours")),
        ):
            if spent + most > limit + 1e-9:
                raise JobError(
                    "The job may cost ${most:.2f}; ${spent:.2f} of the ${limit:.2f} for {what} are "
                    "spent.",
                    "Give it fewer minutes, choose a cheaper machine, or raise the limit.",
                    most=rounded_up(most),
                    spent=rounded_up(spent),
                    limit=rounded_down(limit),
                    what=what,
                )
        note(run, attempt, most)
        if spent_in(run, attempt) != most:
            raise StoreError(
                "{file} does not keep what the job may cost.",
                "Move that file away if it is damaged, then start the job again.",
                file=root / _FILE,
            )


def files(root: Path) -> list[Path]:
    """Return the file and its lock, creating them if needed."""
    paths = [root / _FILE, root / _LOCK]
    for path in paths:
        path.touch()
    return paths


def _costs(root: Path) -> Iterable[_Cost]:
    """Read the latest noted cost of each attempt of a run."""
    costs: dict[tuple[str, int], _Cost] = {}
    path = root / _FILE
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        with contextlib.suppress(ValidationError):  # half a line, after a full disk
            cost = _Cost.model_validate_json(line)
            costs[cost.run, cost.attempt] = cost
    return costs.values()
