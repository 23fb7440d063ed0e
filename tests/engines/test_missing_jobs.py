"""Jobs that the Hub says it does not know, though they are at work; and how jobs end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from finetune.config import RunConfig
from finetune.engines import hub_jobs, registry, spending, supervisor
from finetune.engines.base import AttemptStatus, Engine, EngineSpec, read_spec, resume, write_spec
from finetune.engines.hub_jobs import HubJobOptions
from finetune.engines.run_bucket import SAVED, RunBucket
from finetune.engines.supervisor import LogLine
from finetune.errors import PublishError
from finetune.hub import client
from finetune.hub.client import Absent
from finetune.jobs import service, terminal, workers
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support.engines import let_jobs_train, steps
from tests.support.hub import TOKEN, LoopbackHub
from tests.support.simulated_job import SimulatedJob
from tests.support.waiting import until

INSPECT = r"/api/jobs/ada/[0-9a-f]+$"
BUCKET = "ada/finetune-jobs"


@pytest.fixture
def job(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> EngineSpec:
    return let_jobs_train(hub, monkeypatch, TOKEN)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "POLL", 0.1)
    monkeypatch.setattr(hub_jobs, "PAUSE", 0.01)


@pytest.fixture
def sleeping(hub: LoopbackHub, store: RunStore, job: EngineSpec) -> tuple[Run, EngineSpec, Engine]:
    """A run whose job sleeps, its engine spec and its engine."""
    hub.jobs.prepare = lambda _command, variables: (["sleep", "60"], variables)
    run = store.create(RunConfig())
    spec = write_spec(run, job.model_copy(update={"attempt": 1, "submitted": 1.0}))
    run.append(events.PhaseStarted(phase=events.Phase.SUBMIT))
    engine = registry.open_engine(spec)
    name = engine.submit(run, spec)
    return run, write_spec(run, read_spec(run).model_copy(update={"job": name})), engine


def test_a_job_that_is_denied_is_found_by_its_label(
    hub: LoopbackHub, sleeping: tuple[Run, EngineSpec, Engine]
) -> None:
    run, spec, engine = sleeping
    hub.jobs.last.wait("RUNNING")
    denied = hub.fail(path=INSPECT, status=404, times=100)
    for _ in range(50):
        assert engine.state(run, spec).status == "running"
    assert denied.times == 50
    hub.jobs.kill(hub.jobs.last.id)
    assert not engine.state(run, spec).missing
    assert spending.spent_on(run) < HubJobOptions(**spec.options).most


def test_that_there_is_no_such_job_is_believed_after_several_answers(
    hub: LoopbackHub, sleeping: tuple[Run, EngineSpec, Engine]
) -> None:
    run, spec, engine = sleeping
    hidden = hub.jobs.all.copy()
    hub.jobs.all.clear()
    for _ in range(15):
        with pytest.raises(PublishError, match="The Hub knows no job"):
            engine.state(run, spec)
    hub.jobs.all |= hidden
    assert not engine.state(run, spec).missing
    hub.jobs.all.clear()
    for _ in range(19):
        with pytest.raises(PublishError):
            engine.state(run, spec)
    assert engine.state(run, spec) == AttemptStatus(
        "ended", reason=f"The Hub knows no job {spec.job}.", missing=True
    )
    assert spending.spent_on(run) == pytest.approx(HubJobOptions(**spec.options).most)
    missing = spec.model_copy(update={"job": "", "missing": spec.job})
    assert not engine.knows(run, missing)
    hub.jobs.all |= hidden
    assert engine.knows(run, missing)


def test_no_second_job_begins_and_no_run_goes_while_the_jobs_cannot_be_listed(
    hub: LoopbackHub,
    sleeping: tuple[Run, EngineSpec, Engine],
    store: RunStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, spec, engine = sleeping
    monkeypatch.setattr(client, "SILENCE", 0.0)
    hub.fail("GET", r"/api/jobs/ada$", 404, times=2)
    with pytest.raises(Absent):
        engine.submit(run, spec)
    with pytest.raises(Absent):
        service.delete_run(store, run)
    assert len(hub.jobs.all) == 1
    service.delete_run(store, run)
    assert hub.jobs.last.stage == "CANCELED"


def test_what_a_bucket_holds_is_fetched_though_it_was_denied(
    hub: LoopbackHub, sleeping: tuple[Run, EngineSpec, Engine]
) -> None:
    run, spec, engine = sleeping
    box = RunBucket(engine._api, BUCKET, run.id, 1)  # type: ignore[attr-defined]
    box.put({f"{SAVED}/events.jsonl": b"{}\n"})
    hub.fail(path="/tree", status=404, times=4)
    assert engine.fetch(run, spec) == b"{}\n"
    denied = hub.fail(path="/tree", status=404, times=100)
    with pytest.raises(Absent):  # the bucket itself is there
        engine.fetch(run, spec)
    with pytest.raises(Absent):
        engine.remove(run, spec)
    assert hub.buckets[BUCKET].files
    denied.times = 0
    del hub.buckets[BUCKET]
    assert engine.fetch(run, spec) == b""


class Forgetful(SimulatedJob):
    """A job of twenty steps that its engine does not know after the fifth, until it `remembers`."""

    remembers = False

    def state(self, run: Run, spec: EngineSpec) -> AttemptStatus:
        if len(self.lines) >= 5 and not self.remembers:
            return AttemptStatus("ended", reason="There is no such job.", missing=True)
        return AttemptStatus("ended" if len(self.lines) == 20 else "running", 0)

    def knows(self, run: Run, spec: EngineSpec) -> bool:
        return self.remembers

    def follow(self, run: Run, spec: EngineSpec) -> Iterator[str]:
        offset = spec.sent
        for step in range(1, 21 if self.remembers else 6):
            if step > len(self.lines):
                event = events.Stepped(
                    step=step, epoch=0.0, loss=1 / step, learning_rate=0.1, samples_per_second=1.0
                )
                self.lines.append(event.model_dump_json().encode())
            log_line = LogLine(spec.attempt, offset, self.lines[step - 1])
            offset = log_line.end
            yield log_line.encode()


def test_a_missing_job_is_followed_again_once_it_is_known(store: RunStore) -> None:
    run, job = store.create(RunConfig()), Forgetful(60)
    write_spec(run, EngineSpec(engine="hub-job"))
    assert supervisor.supervise(run, lambda: job) == 1
    assert run.state().error == "There is no such job."
    assert (read_spec(run).job, read_spec(run).missing) == ("", "simulated")
    resume(run)
    assert run.state().status == "failed"  # nothing is known of it yet
    job.remembers = True
    supervisor.supervise(run, lambda: job)
    assert [step for step, _ in steps(run)] == list(range(1, 21))
    assert len(run.state().train) == 20
    assert (read_spec(run).attempt, read_spec(run).missing) == (1, "")


def test_a_missing_job_that_stays_unknown_is_followed_by_another_one(store: RunStore) -> None:
    run = store.create(RunConfig())
    write_spec(run, EngineSpec(engine="hub-job"))
    supervisor.supervise(run, lambda: Forgetful(60))
    resume(run)
    supervisor.supervise(run, lambda: Forgetful(60))
    assert (read_spec(run).attempt, read_spec(run).missing) == (2, "simulated")
    assert [step for step, _ in steps(run)] == [1, 2, 3, 4, 5] * 2
    assert len(run.state().train) == 5


@pytest.mark.long
def test_a_run_whose_job_was_denied_ends_with_all_its_steps_and_its_cost(
    hub: LoopbackHub,
    store: RunStore,
    job: EngineSpec,
    toy_checkpoint: Path,
    toy_pairs_folder: Path,
) -> None:
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    config = RunConfig(
        dataset=store.uploads.add(files), checkpoint=str(toy_checkpoint), max_length=32,
        per_device_train_batch_size=8, logging_steps=1, num_train_epochs=100, eval_steps=0,
        save_steps=50, mixed_precision="no",
    )  # fmt: skip
    run = store.create(config)
    write_spec(run, job)
    follower = threading.Thread(target=registry.carry_out, args=(run,))
    follower.start()
    until(lambda: run.state().step > 20)
    (working,) = hub.jobs.all.values()
    assert working.process is not None
    working.process.send_signal(signal.SIGSTOP)  # so that it does not end before it is given up
    hidden = hub.jobs.all.copy()
    hub.jobs.all.clear()
    follower.join()
    assert "The Hub knows no job" in run.state().error
    step = run.state().step
    assert spending.spent_on(run) == pytest.approx(HubJobOptions(**job.options).most)
    hub.jobs.all |= hidden
    working.process.send_signal(signal.SIGCONT)
    resume(run)
    assert registry.carry_out(run) == 0
    assert len(hub.jobs.all) == 1
    summary = run.state()
    assert summary.status == "finished"
    assert summary.step == summary.total_steps > step
    assert [number for number, _ in steps(run)] == list(range(1, summary.total_steps + 1))
    assert run.has_model()
    assert spending.spent_on(run) < HubJobOptions(**job.options).most


@pytest.mark.parametrize(
    ("message", "said"),
    [("Job failed with exit code: -9", "killed, perhaps for want of memory"),
     ("Job failed with exit code: 137. Reason: Error", "killed, perhaps for want of memory"),
     ("Exited with status -9", "killed, perhaps for want of memory"),
     ("OOMKilled", "killed, perhaps for want of memory"),
     ("Job failed with exit code: -11", "was ended by SIGSEGV"),
     ("Job failed with exit code: 143", "was ended by SIGTERM"),
     ("Job failed with exit code: 3", "has ended: Job failed with exit code: 3"),
     ("Job timeout, exit code: 137", "was ended after its 10 minutes")],
)  # fmt: skip
def test_how_a_job_has_ended_is_said(
    hub: LoopbackHub, sleeping: tuple[Run, EngineSpec, Engine], message: str, said: str
) -> None:
    run, _, _ = sleeping
    hub.jobs.kill(hub.jobs.last.id, message)
    assert registry.carry_out(run) == 1
    assert said in run.state().error


@pytest.mark.long
def test_a_job_followed_from_a_terminal_prints_each_line_once(
    hub: LoopbackHub,
    store: RunStore,
    job: EngineSpec,
    toy_checkpoint: Path,
    toy_pairs_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    config = RunConfig(
        dataset=store.uploads.add(files), checkpoint=str(toy_checkpoint), max_length=32,
        per_device_train_batch_size=8, logging_steps=1, max_steps=40, mixed_precision="no",
    )  # fmt: skip
    prepare = hub.jobs.prepare
    monkeypatch.setattr(
        hub.jobs, "prepare",
        lambda command, variables: prepare(
            [*command[:-1], f"echo the machine says hello; {command[-1]}"], variables
        ),
    )  # fmt: skip
    hub.fail(path="/logs", cut=True, after=4000)
    run = store.create(config)
    write_spec(run, job)
    words = [sys.executable, "-m", "finetune", "train", "--run", str(run.folder), "--yes"]
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    finally:
        workers.kill_worker(run)
    lines = Counter(done.stdout.splitlines())
    told = Counter(line for e in run.tail()[0] for line in terminal.describe_event(e).splitlines())
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(line.startswith("step ") and ": loss" in line for line in lines) == 40
    assert lines["the machine says hello"] == 1
    assert any(line.startswith("finished 40 steps") for line in lines)
    assert {line: count for line, count in lines.items() if count > max(1, told[line])} == {}
