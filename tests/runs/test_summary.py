from __future__ import annotations

from dataclasses import replace

import pytest

from finetune.jobs import run_table
from finetune.phases import Phase
from finetune.runs import events
from finetune.runs.summary import RunSummary, fold_events


def stepped(step: int, time: float, rate: float = 8.0) -> events.Stepped:
    return events.Stepped(
        time=time, step=step, epoch=step / 10, loss=1 / step, learning_rate=1e-5,
        samples_per_second=rate,
    )  # fmt: skip


def prepared(total: int) -> events.Prepared:
    return events.Prepared(
        train_examples=80, validation_examples=20, steps_per_epoch=10, total_steps=total,
        labels=["a", "b"], parameters=1, precision="no",
    )  # fmt: skip


def evaluated(step: int, f1: float, best: bool) -> events.Evaluated:
    return events.Evaluated(step=step, epoch=1.0, metrics={"f1": f1}, seconds=1.0, best=best)


def test_nothing_yet() -> None:
    empty = fold_events([])
    assert (empty.status, empty.step, empty.total_steps) == ("waiting", 0, 0)
    assert empty.best is None
    assert empty.seconds_left is None


def test_a_whole_run() -> None:
    stream = [
        events.Started(time=100.0, device="CPU"),
        events.PhaseStarted(phase=Phase.DOWNLOAD, detail="x"),
        prepared(20),
        stepped(1, 110.0),
        stepped(11, 120.0),
        evaluated(11, 0.7, best=True),
        events.Saved(step=11),
        evaluated(20, 0.6, best=False),
        events.Finished(time=140.0, step=20, seconds=30.0),
    ]
    halfway = fold_events(stream[:5])
    assert halfway.status == "running"
    assert halfway.phase == "train"
    assert halfway.seconds_left == 9.0
    whole = fold_events(stream)
    assert whole.status == "finished"
    assert whole.ended - whole.began == 40.0
    assert whole.best is not None
    assert whole.best.step == whole.saved_step == 11


def test_folding_in_pieces_is_folding_at_once() -> None:
    stream = [prepared(5), *(stepped(n, n) for n in range(1, 6))]
    assert fold_events(stream[3:], fold_events(stream[:3])) == fold_events(stream)


def test_a_failure_keeps_its_remedy() -> None:
    failed = fold_events([events.Failed(error="too big", remedy="make it smaller")])
    assert (failed.status, failed.error, failed.remedy) == (
        "failed",
        "too big",
        "make it smaller",
    )


def test_one_slow_interval_does_not_move_the_speed() -> None:
    steps = [stepped(n, n, rate=0.1 if n == 5 else 10.0) for n in range(1, 10)]
    assert fold_events(steps, RunSummary()).samples_per_second == 10.0


def test_a_resumed_run_goes_on_counting_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the night between, nor as though it stood still."""
    first = [
        events.Started(time=100.0, device="CPU"),
        stepped(1, 110.0),
        events.Stopped(time=160.0, step=9, seconds=50.0),
    ]
    assert run_table.training_seconds(fold_events(first)) == 50.0
    again = [
        *first,
        events.Started(time=9000.0, device="CPU"),
        events.Resumed(time=9001.0, step=9),
        stepped(11, 9010.0),
    ]
    monkeypatch.setattr("finetune.jobs.run_table.time.time", lambda: 9020.0)
    assert run_table.training_seconds(fold_events(again)) == 69.0
    failed = events.Failed(time=9030.0, error="x", remedy="y")
    assert run_table.training_seconds(fold_events([*again, failed])) == 79.0
    assert (
        run_table.training_seconds(fold_events([*again, events.Finished(step=20, seconds=75.0)]))
        == 75.0
    )
    while_loading = [*again[:4], events.Stopped(time=9005.0, step=0, seconds=0.0)]
    assert run_table.training_seconds(fold_events(while_loading)) == 50.0  # not none at all


@pytest.mark.parametrize("ended", [[], [events.Failed(time=160.0, error="x")]])
def test_the_time_a_run_lay_dead_is_not_counted(
    ended: list[events.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed without a word, or failed; the next day it goes on."""
    worked = [events.Started(time=100.0, device="CPU"), stepped(1, 110.0), stepped(2, 160.0)]
    dead = [*worked, *ended]
    opened = events.TestSetOpened(time=50_000.0, step=1, metrics={})
    resumed = events.Resumed(time=90_000.0, step=1)
    again = [resumed, events.Started(time=90_005.0, device="CPU"), stepped(2, 90_010.0)]
    monkeypatch.setattr("finetune.jobs.run_table.time.time", lambda: 90_020.0)
    waiting = replace(fold_events([*dead, opened]), status="waiting")
    assert run_table.training_seconds(waiting) == 60.0
    assert run_table.training_seconds(fold_events([*dead, opened, resumed])) == 80.0
    assert run_table.training_seconds(fold_events([*dead, opened, *again])) == 75.0
    monkeypatch.setattr("finetune.jobs.run_table.time.time", lambda: 7.0)  # set back
    assert run_table.training_seconds(fold_events([*dead, *again])) == 60.0
