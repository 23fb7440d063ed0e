"""The fold of a run's events, and its working time."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from finetune.jobs import run_table
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.summary import MAX_POINTS, RunSummary
from tests.support import toys


def stepped(step: int, time: float, rate: float = 8.0) -> events.Stepped:
    return events.Stepped(
        time=time, step=step, epoch=step / 10, loss=1 / step, learning_rate=1e-5,
        samples_per_second=rate,
    )  # fmt: skip


def evaluated(step: int, f1: float, best: bool) -> events.Evaluated:
    return events.Evaluated(step=step, epoch=1.0, metrics={"f1": f1}, seconds=1.0, best=best)


def test_a_whole_run() -> None:
    (prepared,) = [event for event in toys.story() if isinstance(event, events.Prepared)]
    empty = RunSummary().fold([])
    assert (empty.status, empty.step, empty.total_steps) == ("waiting", 0, 0)
    assert (empty.best, empty.seconds_left) == (None, None)
    stream = [
        events.Started(time=100.0, device="CPU"),
        prepared.model_copy(update={"total_steps": 20}),
        stepped(1, 110.0),
        stepped(11, 120.0),
        evaluated(11, 0.7, best=True),
        events.Saved(step=11),
        evaluated(20, 0.6, best=False),
        events.Finished(time=140.0, step=20, seconds=30.0),
    ]
    halfway = RunSummary().fold(stream[:4])
    assert (halfway.status, halfway.phase, halfway.seconds_left) == ("running", "train", 9.0)
    whole = copy.deepcopy(halfway).fold(stream[4:])
    assert whole == RunSummary().fold(stream)
    assert whole.status == "finished"
    assert whole.ended - whole.began == 40.0
    assert whole.best is not None
    assert whole.best.step == whole.saved_step == 11


def test_the_time_left_has_the_evaluations_in_it() -> None:
    (prepared,) = [event for event in toys.story() if isinstance(event, events.Prepared)]
    stream = [
        prepared.model_copy(update={"total_steps": 100}),  # of 8 examples, a second each
        evaluated(0, 0.5, best=False),  # takes a second
        stepped(1, 3.0),
        stepped(10, 12.0),
        events.EvaluationsPlanned(interval=20),
        stepped(20, 22.0),
        events.PhaseStarted(phase=Phase.EVALUATE, time=22.0),
        evaluated(20, 0.6, best=True),
        events.PhaseStarted(phase=Phase.SAVE_CHECKPOINT, time=25.0),
        events.PhaseStarted(phase=Phase.TRAIN, time=26.0),
        evaluated(100, 0.7, best=True),
    ]
    left = [RunSummary().fold(stream[:count]).seconds_left for count in (3, 4, 5, 10, 11)]
    assert left == [None, 90 + 9, 90 + 5 * 1, 80 + 4 * 4, 0]
    resumed = RunSummary().fold([*stream, events.Resumed(step=20)])
    assert resumed.evaluation_seconds == 2.0  # of the two, the second had no pause


def test_what_is_done_again_is_forgotten() -> None:
    stream = [stepped(1, 1), stepped(4, 4), evaluated(4, 0.5, best=True), events.Saved(step=4)]
    stream += [stepped(8, 8), evaluated(8, 0.6, best=True), events.Saved(step=8)]
    failed = RunSummary().fold([*stream, events.Failed(error="too big", remedy="make it smaller")])
    assert (failed.status, failed.error, failed.remedy) == ("failed", "too big", "make it smaller")
    resumed = failed.fold([events.Resumed(step=4)])
    assert (resumed.status, resumed.error, resumed.remedy) == ("running", "", "")
    assert [event.step for event in resumed.train] == [1, 4]
    assert resumed.best is not None
    assert resumed.best.step == resumed.saved_step == 4


def test_a_long_curve_is_thinned_evenly_and_one_slow_interval_does_not_move_the_speed() -> None:
    last = 3 * MAX_POINTS + 1
    curve = RunSummary().fold(
        stepped(n, n, 0.1 if n == last - 5 else 10.0) for n in range(1, last + 1)
    )
    steps = [event.step for event in curve.train]
    assert len(steps) <= MAX_POINTS
    assert steps[0] == 1
    assert steps[-1] == curve.step == last
    assert set(np.diff(steps[:-1])) == {4}
    assert curve.samples_per_second == 10.0


def test_the_time_between_the_lives_of_a_run_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that was stopped for a night, killed silently or failed continues the next day."""

    def seconds(
        stream: list[events.Event], now: float = 90_020.0, waits: bool = False
    ) -> float | None:
        monkeypatch.setattr(events, "now", lambda: now)
        state = RunSummary().fold(stream)
        return run_table.training_seconds(replace(state, status="waiting") if waits else state)

    start = [events.Started(time=100.0, device="CPU"), stepped(1, 110.0), stepped(2, 160.0)]
    stopped = [*start[:2], events.Stopped(time=160.0, step=9, seconds=50.0)]
    resumed = events.Resumed(time=90_000.0, step=1)
    again = [resumed, events.Started(time=90_005.0, device="CPU"), stepped(2, 90_010.0)]
    assert seconds(stopped) == 50.0
    assert seconds([*stopped, *again]) == 65.0
    assert seconds([*stopped, *again, events.Failed(time=90_030.0, error="x")]) == 75.0
    assert seconds([*stopped, *again, events.Finished(step=20, seconds=75.0)]) == 75.0
    loading = events.Stopped(time=90_007.0, step=0, seconds=0.0)
    assert seconds([*stopped, *again[:2], loading]) == 50.0
    for end in ([], [events.Failed(time=160.0, error="x")]):
        dead = [*start, *end, events.TestSetOpened(time=50_000.0, step=1, metrics={})]
        assert seconds(dead, waits=True) == 60.0
        assert seconds([*dead, resumed]) == 80.0
        assert seconds([*dead, *again]) == 75.0
        assert seconds([*dead, *again], now=7.0) == 65.0  # the clock was set back
