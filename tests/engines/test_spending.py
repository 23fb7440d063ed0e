"""What jobs may cost and have cost, as it is kept and as it is shown."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from finetune import disk
from finetune.config import RunConfig
from finetune.engines import spending
from finetune.errors import JobError, StoreError
from finetune.owners import Visitor
from finetune.runs.run import Run
from finetune.runs.store import RunStore


def tear(file: Path) -> None:
    """Leave half a line, as a process does that is killed while it writes."""
    with file.open("ab") as torn:
        torn.write(b'{"time": 1.0, "owner": "", "ru')


def test_a_torn_line_loses_no_reservation(store: RunStore) -> None:
    runs = [store.create(RunConfig()) for _ in range(3)]
    spending.reserve(runs[0], 1, most=2.5, a_run=5.0, a_day=5.0)
    tear(store.root / ".spending.jsonl")
    spending.reserve(runs[1], 1, most=2.5, a_run=5.0, a_day=5.0)
    with pytest.raises(JobError, match=r"may cost \$2.50; \$5.00 of the \$5.00 for 24 hours are"):
        spending.reserve(runs[2], 1, most=2.5, a_run=5.0, a_day=5.0)
    assert spending.spent_today(store.root, "") == 5.0


def test_jobs_that_begin_at_once_see_each_others_cost(store: RunStore) -> None:
    runs = [store.create(RunConfig()) for _ in range(8)]

    def reserve(run: Run) -> bool:
        try:
            spending.reserve(run, 1, most=1.0, a_run=2.0, a_day=3.0)
        except JobError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(reserve, runs)) == 3
    assert spending.spent_today(store.root, "") == 3.0
    begun = next(run for run in runs if spending.spent_on(run))
    spending.reserve(begun, 1, most=1.0, a_run=1.0, a_day=3.0)  # the same attempt once more
    spending.note(begun, 1, 0.25)
    assert spending.spent_today(store.root, "") == 2.25


def test_a_cost_is_kept_whatever_its_owner_is_called(store: RunStore) -> None:
    visitor = store.for_visitor(Visitor(("a\u2028b\x85c",)))
    run = visitor.create(RunConfig())
    spending.reserve(run, 1, most=2.5, a_run=5.0, a_day=5.0)
    assert spending.spent_today(store.root, run.owner) == 2.5


def test_without_a_note_of_its_cost_no_job_begins(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_half(path: Path, line: bytes) -> None:
        path.write_bytes(line[: len(line) // 2])

    run = store.create(RunConfig())
    with monkeypatch.context() as patch:
        patch.setattr(disk, "append_line", write_half)
        with pytest.raises(StoreError, match=r"spending.jsonl does not keep what the job may cost"):
            spending.reserve(run, 1, most=2.5, a_run=5.0, a_day=5.0)
    spending.reserve(run, 1, most=2.5, a_run=5.0, a_day=5.0)
    assert spending.spent_on(run) == 2.5


@pytest.mark.parametrize(
    ("dollars", "most", "left"),
    [(0.015, 0.02, 0.01), (0.0001, 0.01, 0.0), (0.29, 0.29, 0.29), (1.1, 1.1, 1.1), (0.0, 0.0, 0.0),
     (0.1 + 0.2, 0.3, 0.3), (12.341, 12.35, 12.34)],
)  # fmt: skip
def test_bounds_are_rounded_to_the_side_on_which_they_hold(
    dollars: float, most: float, left: float
) -> None:
    assert spending.rounded_up(dollars) == most
    assert spending.rounded_down(dollars) == left
