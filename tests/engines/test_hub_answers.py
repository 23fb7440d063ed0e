"""Jobs whose start the Hub did not answer, or that it says it does not know: each is begun once,
found by its label and followed to its end."""

import threading

import pytest
from huggingface_hub import HfApi

from finetune.config import RunConfig
from finetune.engines import spending, supervisor
from finetune.engines.base import AttemptStatus, EngineSpec, read_spec, resume, write_spec
from finetune.engines.hub_jobs import HubJobOptions
from finetune.engines.run_bucket import SAVED, RunBucket
from finetune.engines.supervisor import LogLine
from finetune.errors import PublishError
from finetune.hub import client
from finetune.hub.client import Absent
from finetune.jobs import service
from finetune.runs import events
from finetune.runs.events import Phase
from tests.support.hub import TOKEN
from tests.support.running import SimulatedJob, simulate, steps
from tests.support.waiting import until

START = ("POST", r"/api/jobs/ada$")
LIST = ("GET", r"/api/jobs/ada$")
INSPECT = r"/api/jobs/ada/[0-9a-f]+$"
BUCKET = "ada/finetune-jobs"
FOLLOWED = "Job failed with exit code: 3"  # is told only of a job that was followed to its end
pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(client, "PAUSE", 0.05)
    monkeypatch.setattr(client, "APPEARS", 0.3)


@pytest.fixture
def run(hub, store, job):
    """A run whose job ends at once."""
    run = store.create(RunConfig())
    write_spec(run, job)
    hub.jobs.prepare = lambda _command, variables: (["sh", "-c", "exit 3"], variables)
    return run


def most(run):
    """The cost of a job of the run that uses all its minutes."""
    return HubJobOptions(**read_spec(run).options).most


def looked(run):
    """Whether the run says that an attempt was looked for."""
    phases = [event.phase for event in run.tail()[0] if isinstance(event, events.PhaseStarted)]
    return Phase.LOOK in phases


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 504, "done": True},
        {"status": 200, "body": b"<html>Bad gateway</html>", "done": True},
        {"cut": True, "after": 20},  # within the answer
        {"gate": threading.Event(), "done": True},  # no answer at all
        {"gate": threading.Event()},  # nor anything done for a while
    ],
    ids=lambda fault: " ".join(fault) + str(fault.get("status", "")),
)
def test_a_job_whose_start_was_not_answered_is_followed(hub, run, fault, monkeypatch):
    if "gate" in fault:
        monkeypatch.setattr(client, "PATIENCE", 0.3)
        monkeypatch.setattr(client, "APPEARS", 30.0)
    hub.fail(*START, **fault)
    if "gate" in fault and not fault.get("done"):

        def go_on():
            until(lambda: looked(run))
            fault["gate"].set()

        threading.Thread(target=go_on).start()
    assert supervisor.carry_out(run) == 1
    assert FOLLOWED in run.state().error
    assert looked(run)
    assert len(hub.jobs.all) == 1
    assert read_spec(run).attempt == 1
    assert spending.spent_in(run) < most(run)


@pytest.mark.parametrize(("began", "listed"), [(True, False), (False, False), (True, True)])
def test_what_is_not_known_is_said_and_looked_for_later(hub, run, began, listed, monkeypatch):
    monkeypatch.setattr(client, "SILENCE", 0.2)
    hub.fail(*LIST, body=b"[]", status=200)
    hub.fail(*LIST, times=1000, status=200 if listed else 520, body=b"[]")
    hub.fail(*START, status=504, done=began)
    assert supervisor.carry_out(run) == 1
    assert "with status 504. It is not known whether the job has begun." in run.state().error
    assert "Resume to look for it again" in run.state().remedy
    assert read_spec(run).is_unheard
    assert spending.spent_in(run) == pytest.approx(most(run))
    assert service.resume_price(run) is None
    if not listed:  # nothing begins while the Hub does not say what there is
        resume(run)
        assert supervisor.carry_out(run) == 1
        assert len(hub.jobs.all) == began
    hub.faults.clear()
    resume(run)
    assert supervisor.carry_out(run) == 1
    assert FOLLOWED in run.state().error
    assert len(hub.jobs.all) == 1
    assert spending.spent_in(run) < most(run)


@pytest.mark.parametrize("status", [402, 409])
def test_a_refusal_is_believed(hub, run, status):
    hub.fail(*START, status=status)
    assert supervisor.carry_out(run) == 1
    assert f"refused with status {status}" in run.state().error
    assert not looked(run)
    assert spending.spent_in(run) == 0.0
    assert not hub.jobs.all


def test_a_job_whose_worker_was_killed_at_its_start_is_not_begun_twice(hub, run, monkeypatch):
    monkeypatch.setattr(client, "APPEARS", 30.0)
    spec = read_spec(run).model_copy(update={"attempt": 1, "kept_in": ("ada",)})
    run.append(events.PhaseStarted(phase=Phase.SUBMIT))
    write_spec(run, spec.model_copy(update={"sent": run.events_file.stat().st_size}))
    spending.reserve(run, 1, most(run), 1.0, 1.0)
    api = HfApi(endpoint=hub.url, token=TOKEN)

    def begin():
        labels = {"finetune-run": run.id, "attempt": "1"}
        api.run_job(image="x", command=["x"], labels=labels, flavor="cpu-basic", namespace="ada")

    threading.Timer(0.5, begin).start()
    assert supervisor.carry_out(run) == 1
    assert FOLLOWED in run.state().error
    assert len(hub.jobs.all) == 1
    # With another account's token nothing is begun, for it cannot see what was.
    write_spec(run, spec)
    spending.note(run, 1, most(run))
    hub.add_user("eves-token", "eve")
    monkeypatch.setenv("HF_TOKEN", "eves-token")
    assert supervisor.carry_out(run) == 1
    assert "is ada's, and this token is eve's" in run.state().error
    assert len(hub.jobs.all) == 1


def test_a_denied_job_is_found_by_its_label_and_believed_gone_after_many_answers(hub, sleeping):
    run, spec, engine = sleeping
    until(lambda: hub.jobs.last.stage == "RUNNING")
    denied = hub.fail(path=INSPECT, status=404, times=50)
    for _ in range(50):
        assert engine.state(run, spec).status == "running"
    assert not denied.times
    hidden = hub.jobs.all.copy()
    for times in (15, 19):
        hub.jobs.all.clear()
        for _ in range(times):
            with pytest.raises(PublishError, match="The Hub knows no job"):
                engine.state(run, spec)
        if times == 15:
            hub.jobs.all |= hidden
            assert not engine.state(run, spec).missing
    assert engine.state(run, spec) == AttemptStatus(
        "ended", reason=f"The Hub knows no job {spec.job}.", missing=True
    )
    assert spending.spent_in(run) == pytest.approx(most(run))
    missing = spec.model_copy(update={"job": "", "missing": spec.job})
    assert not engine.knows(run, missing)
    hub.jobs.all |= hidden
    assert engine.knows(run, missing)
    hub.jobs.kill(hub.jobs.last.id)
    assert not engine.state(run, spec).missing
    assert spending.spent_in(run) < most(run)


def test_no_second_job_begins_while_the_jobs_cannot_be_listed(hub, sleeping, store, monkeypatch):
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


def test_what_a_bucket_holds_is_fetched_though_it_was_denied(hub, sleeping):
    run, spec, engine = sleeping
    box = RunBucket(engine._api, BUCKET, run.id, 1)
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


@pytest.mark.parametrize(
    ("message", "said"),
    [("Job failed with exit code: 137. Reason: Error", "killed, perhaps for want of memory"),
     ("OOMKilled", "killed, perhaps for want of memory"),
     ("Job failed with exit code: -11", "was ended by SIGSEGV"),
     ("Job timeout, exit code: 137", "was ended after its 10 minutes")],
)  # fmt: skip
def test_how_a_job_has_ended_is_said(hub, sleeping, message, said):
    run, _, _ = sleeping
    hub.jobs.kill(hub.jobs.last.id, message)
    assert supervisor.carry_out(run) == 1
    assert said in run.state().error


@pytest.mark.parametrize("remembered", [True, False])
def test_a_missing_job_is_followed_to_its_end_or_by_another_one(store, remembered):
    run, job = store.create(RunConfig()), Forgetful(60)
    write_spec(run, EngineSpec(engine="hub-job"))
    simulate(run, job)
    assert "There is no such job." in run.state().error
    resume(run)
    job.remembers = remembered
    simulate(run, job if remembered else Forgetful(60))
    spec = read_spec(run)
    assert (spec.attempt, spec.missing) == ((1, "") if remembered else (2, "simulated"))
    taken = [*range(1, 21)] if remembered else [1, 2, 3, 4, 5] * 2
    assert [step for step, _ in steps(run)] == taken
    assert len(run.state().train) == len({*taken})


class Forgetful(SimulatedJob):
    """A job of twenty steps that its engine does not know after the fifth, until it `remembers`."""

    remembers = False

    def state(self, run, spec):
        if len(self.lines) >= 5 and not self.remembers:
            return AttemptStatus("ended", reason="There is no such job.", missing=True)
        return AttemptStatus("ended" if len(self.lines) == 20 else "running", 0)

    def knows(self, run, spec):
        return self.remembers

    def follow(self, run, spec):
        offset = spec.sent
        for step in range(1, 21 if self.remembers else 6):
            if step > len(self.lines):
                self.lines.append(self.line(step))
            log_line = LogLine(spec.attempt, offset, self.lines[step - 1])
            offset = log_line.end
            yield log_line.encode()
