"""Events: their lines, what they add up to, and how far a run or a job is by them."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.disk import remove_folder
from finetune.jobs import run_table
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder, hold_lock
from finetune.runs.queue import Queue
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import MAX_POINTS, RunSummary
from tests.support import toys

EXAMPLES: list[events.Event] = [
    *toys.story(),
    events.PhaseStarted(phase=Phase.DOWNLOAD, detail="bert \u00e9 \x00"),
    events.FirstBatch(
        shapes={"input_ids": [1, 2], "labels": [1]}, lengths=[1], padded=0.5, positions=[0, 1],
        tokens=[["[CLS]", "[PAD]"]], ids=[[2, 0]], attention_mask=[[1, 0]], labels=["yes"],
    ),
    events.BaselinesMeasured(baselines={"always the commonest answer": {"f1": 0.8}}),
    events.TestSetOpened(step=3, metrics={"f1": 0.7}, threshold=0.4, at_threshold={"f1": 0.71}),
    events.Stopped(step=3, seconds=1.0),
    events.Failed(error="a\nb", remedy="c"),
    events.Resumed(step=2),
    events.Progressed(done=10, total=20, detail="reading train"),
]  # fmt: skip
BY_KIND = {getattr(event, "event", ""): event for event in EXAMPLES}


def test_an_event_survives_its_line_without_numbers_that_are_not_finite() -> None:
    """A score that is none is left out, and the evaluation counts: its model may be the best."""
    for event in BY_KIND.values():
        line = event.model_dump_json()
        assert "\n" not in line
        assert events.from_json(line) == event
        later = {**json.loads(line), "field_of_a_later_version": 3}
        assert events.from_json(json.dumps(later)) == event
    step = BY_KIND["step"].model_copy(update={"loss": float("nan")})
    assert json.loads(step.model_dump_json())["loss"] is None
    scored = evaluated(1, 0.8, best=True)
    infinite = scored.model_copy(update={"metrics": {"f1": 0.8, "loss": float("inf")}})
    assert events.from_json(infinite.model_dump_json()) == scored


def test_a_line_that_is_no_event_is_skipped() -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("step", {"step": 1.5}), ("saved", {"step": "7"}), ("prepared", {"labels": [1, 2]}),
        ("evaluated", {"metrics": {"f1": "0.8"}}), ("evaluated", {"metrics": [0.8]}),
        ("first_batch", {"ids": [["2", 0]]}), ("saved", {"event": "unknown"}),
    ]  # fmt: skip
    lines = [BY_KIND[kind].model_dump_json() for kind, _ in wrong]
    for line, (_, values) in zip(lines, wrong, strict=True):
        assert events.from_json(json.dumps(json.loads(line) | values)) is None
    for line in ("", "{", "null", "[]", "7", '{"event": "saved"}'):
        assert events.from_json(line) is None


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


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return RunStore(tmp_path / "runs").create(RunConfig())


def begin(job: JobFolder) -> None:
    job.append(events.PhaseStarted(phase=Phase.START))


def test_without_a_worker_a_run_was_interrupted_or_stopped(run: Run) -> None:
    begin(run)
    lock = hold_lock(run.lock_file)
    assert lock is not None
    assert (run.state().status, run.state().end_recorded) == ("running", False)
    os.close(lock)
    assert (run.state().status, run.state().end_recorded) == ("interrupted", False)
    run.request_stop(reason="It took too long.")
    assert (run.state().status, run.state().error) == ("stopped", "It took too long.")
    run.append(events.Finished(step=3, seconds=1.0))
    assert (run.state().status, run.state().end_recorded) == ("finished", True)


def test_what_waits_has_not_ended_for_those_who_ask(run: Run) -> None:
    run.append(events.Failed(error="the network"))
    Queue(run.folder.parent).add(run.id)
    assert (run.state().status, run.state().error) == ("waiting", "")
    assert run.state().end_recorded  # so that its next worker notes that it goes on
    Queue(run.folder.parent).remove(run.id)
    assert (run.state().status, run.state().error) == ("failed", "the network")


def test_events_are_read_once(run: Run) -> None:
    begin(run)
    run.append(events.Failed(error="the first"))
    assert run.state().error == "the first"
    text = run.events_file.read_bytes()
    run.events_file.write_bytes(text.replace(b"the first", b"unlikely!"))
    run.append(events.Resumed(step=7))
    state = Run(run.folder).state()  # whoever asks: the folder is the same
    assert (state.count, state.step, state.end_recorded) == (3, 7, False)


def test_another_job_in_the_same_folder_begins_anew(tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "check")
    assert job.state().status == "none"
    for ending in (events.Failed(error="too long"), events.Finished(step=0, seconds=0.0)):
        remove_folder(job.folder)
        job.folder.mkdir()
        assert job.state().status == "interrupted"
        begin(job)
        job.append(events.Progressed(done=1, total=1000))
        job.append(ending)
        assert job.state().error == getattr(ending, "error", "")
    assert job.state().status == "finished"
