"""How far a run or a job is: its events, its worker and the queue, asked in one way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from finetune.config import RunConfig
from finetune.disk import remove_folder
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder, hold_lock
from finetune.runs.queue import Queue
from finetune.runs.run import Run
from finetune.runs.store import RunStore


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
