"""Jobs whose start the Hub did not answer: each is begun once, found by its label and followed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from huggingface_hub import HfApi

from finetune.config import RunConfig
from finetune.engines import registry, spending
from finetune.engines.base import EngineSpec, read_spec, resume, write_spec
from finetune.engines.hub_jobs import HubJobOptions
from finetune.hub import client
from finetune.jobs import service
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support.hub import TOKEN, LoopbackHub
from tests.support.waiting import until

START = ("POST", r"/api/jobs/ada$")
LIST = ("GET", r"/api/jobs/ada$")
FOLLOWED = "Job failed with exit code: 3"  # is told only of a job that was followed to its end


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE", 0.05)
    monkeypatch.setattr(client, "APPEARS", 0.3)


@pytest.fixture
def run(hub: LoopbackHub, store: RunStore, job: EngineSpec) -> Run:
    """A run whose job ends at once."""
    run = store.create(RunConfig())
    write_spec(run, job)
    hub.jobs.prepare = lambda _command, variables: (["sh", "-c", "exit 3"], variables)
    return run


def most(run: Run) -> float:
    """The cost of a job of the run that uses all its minutes."""
    return HubJobOptions(**read_spec(run).options).most


def looked(run: Run) -> bool:
    """Whether the run says that an attempt was looked for."""
    phases = [event.phase for event in run.tail()[0] if isinstance(event, events.PhaseStarted)]
    return Phase.LOOK in phases


@pytest.mark.parametrize(
    "fault",
    [
        *({"status": status, "done": True} for status in (500, 504)),
        {"status": 200, "body": b"<html>Bad gateway</html>", "done": True},
        {"cut": True, "after": 20},  # within the answer
        {"gate": threading.Event(), "done": True},  # no answer at all
        {"gate": threading.Event()},  # nor anything done for a while
    ],
    ids=lambda fault: " ".join(fault) + str(fault.get("status", "")),
)
def test_a_job_whose_start_was_not_answered_is_followed(
    hub: LoopbackHub, run: Run, fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "gate" in fault:
        monkeypatch.setattr(client, "PATIENCE", 0.3)
        monkeypatch.setattr(client, "APPEARS", 30.0)
    hub.fail(*START, **fault)
    if "gate" in fault and not fault.get("done"):

        def go_on() -> None:
            until(lambda: looked(run))
            fault["gate"].set()

        threading.Thread(target=go_on).start()
    assert registry.carry_out(run) == 1
    assert FOLLOWED in run.state().error
    assert looked(run)
    assert len(hub.jobs.all) == 1
    assert read_spec(run).attempt == 1
    assert spending.spent_on(run) < most(run)


@pytest.mark.parametrize("fault", [{"status": 404}, {"status": 200, "body": b"<html>"}], ids=str)
def test_looking_goes_on_where_the_hub_fails_meanwhile(
    hub: LoopbackHub, run: Run, fault: dict[str, Any]
) -> None:
    hub.fail(*LIST, body=b"[]", status=200)  # before the job is begun
    hub.fail(*LIST, times=3, **fault)
    hub.fail(*START, status=504, done=True)
    assert registry.carry_out(run) == 1
    assert FOLLOWED in run.state().error
    assert len(hub.jobs.all) == 1


@pytest.mark.parametrize("began", [True, False])
@pytest.mark.parametrize("listed", [True, False])
def test_what_is_not_known_is_said_and_looked_for_when_the_run_goes_on(
    hub: LoopbackHub, run: Run, began: bool, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "SILENCE", 0.5)
    hub.fail(*LIST, body=b"[]", status=200)
    hub.fail(*LIST, times=1000, status=200 if listed else 520, body=b"[]")
    hub.fail(*START, status=504, done=began)
    assert registry.carry_out(run) == 1
    assert "with status 504. It is not known whether the job has begun." in run.state().error
    assert "Resume to look for it again" in run.state().remedy
    assert read_spec(run).is_unheard
    assert spending.spent_on(run) == pytest.approx(most(run))
    assert service.resume_price(run) is None
    if not listed:  # nothing begins while the Hub does not say what there is
        resume(run)
        assert registry.carry_out(run) == 1
        assert len(hub.jobs.all) == began
    hub.faults.clear()
    resume(run)
    assert registry.carry_out(run) == 1
    assert FOLLOWED in run.state().error
    assert len(hub.jobs.all) == 1
    assert spending.spent_on(run) < most(run)


@pytest.mark.parametrize("status", [402, 409])
def test_a_refusal_is_believed(hub: LoopbackHub, run: Run, status: int) -> None:
    hub.fail(*START, status=status)
    assert registry.carry_out(run) == 1
    assert f"refused with status {status}" in run.state().error
    assert not looked(run)
    assert spending.spent_on(run) == 0.0
    assert not hub.jobs.all


def test_a_job_that_was_being_begun_when_its_worker_was_killed_is_not_begun_twice(
    hub: LoopbackHub, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "APPEARS", 30.0)
    spec = read_spec(run).model_copy(update={"attempt": 1, "kept_in": ("ada",)})
    run.append(events.PhaseStarted(phase=Phase.SUBMIT))
    write_spec(run, spec.model_copy(update={"sent": run.events_file.stat().st_size}))
    spending.reserve(run, 1, most(run), 1.0, 1.0)
    api = HfApi(endpoint=hub.url, token=TOKEN)

    def begin() -> None:
        labels = {"finetune-run": run.id, "attempt": "1"}
        api.run_job(image="x", command=["x"], labels=labels, flavor="cpu-basic", namespace="ada")

    threading.Timer(0.5, begin).start()
    assert registry.carry_out(run) == 1
    assert FOLLOWED in run.state().error
    assert len(hub.jobs.all) == 1
    # With another account's token nothing is begun, for it cannot see what was.
    write_spec(run, spec)
    spending.note(run, 1, most(run))
    hub.add_user("eves-token", "eve")
    monkeypatch.setenv("HF_TOKEN", "eves-token")
    assert registry.carry_out(run) == 1
    assert "is ada's, and this token is eve's" in run.state().error
    assert len(hub.jobs.all) == 1
