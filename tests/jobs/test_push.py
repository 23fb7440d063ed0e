"""Push jobs: they survive their page, are approved by a Check, and keep the token to themselves."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finetune.config import RunConfig
from finetune.errors import Cancelled, PublishError
from finetune.hub import publish, push_plan
from finetune.hub.client import Account
from finetune.hub.publish import Pushed, PushProgress, Verification
from finetune.hub.push_plan import PushPlan, PushRequest
from finetune.jobs import workers
from finetune.jobs.push import Approvals, PushJob, PushState
from finetune.owners import Visitor
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support import toys
from tests.support.hub import TOKEN, LoopbackHub, Space
from tests.support.waiting import until


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    return toys.finished_run(store, toy_checkpoint)


@pytest.fixture
def pushed(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PushState]:
    """Pushes a run in this process, which reads its token as a worker does; how it ended."""

    def carry_out(job: JobFolder, stdin: bytes, **_: object) -> int:
        with monkeypatch.context() as context:
            context.setattr(sys, "stdin", io.StringIO(stdin.decode()))
            return PushJob(job.folder).carry_out()

    def push_to(run: Run, request: PushRequest, approvals: Approvals) -> PushState:
        with monkeypatch.context() as context:
            context.setattr(workers, "spawn_worker", carry_out)
            context.setattr(publish, "verify_push", lambda *_: Verification(0, 0.0))
            PushJob.of(run).start(store, request, TOKEN, approvals)
        return PushJob.of(run).state()

    return push_to


def test_a_push_goes_on_without_its_page(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    assert PushJob.of(run).state().status == "none"
    PushJob.of(run).start(store, PushRequest("ada/pairs"), TOKEN, Approvals())
    assert PushJob.of(run).state().running
    worker = workers.worker_process(JobFolder(run.folder / "pushes" / "latest"))
    assert worker is not None
    assert TOKEN not in " ".join([*worker.cmdline(), *worker.environ().values()])
    PushJob.of(run).start(store, PushRequest("ada/pairs"), TOKEN, Approvals())  # not a second one
    until(lambda: not PushJob.of(run).state().running)
    state = PushJob.of(run).state()
    assert state.error == ""
    assert state.pushed is not None
    assert state.pushed.verified is not None
    assert state.pushed.verified.problem == ""
    assert state.progress.sent == state.progress.total > 10_000
    assert len(hub.repos["model", "ada/pairs"].commits) == 1
    for path in run.folder.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path


def test_a_push_that_came_to_nothing_can_be_tried_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, pushed: Callable[..., PushState]
) -> None:
    def push_as(outcome: Exception | Pushed) -> PushState:
        def push_run(*words: object) -> Pushed:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(publish, "push_run", push_run)
        return pushed(run, PushRequest("ada/pairs"), Approvals())

    state = push_as(Cancelled("Cancelled.", "Push again."))
    assert (state.status, state.error) == ("stopped", "Cancelled. Push again.")
    assert "our fault" in push_as(RuntimeError(f"Illegal header value 'Bearer {TOKEN}'")).error
    assert TOKEN not in (run.folder / "pushes" / "latest" / "events.jsonl").read_text()
    no_model = PublishError("This run has no saved model.", "Train it.")
    assert push_as(no_model).error == no_model.fact
    done = Pushed("http://hub/ada/pairs", "c" * 40, True, Verification(20, 0.0))
    assert push_as(done).pushed == done


@pytest.mark.parametrize(
    ("phase", "said"),
    [(Phase.UPLOAD, "nothing was committed"), (Phase.COMMIT, "the commit to ada/x may have"),
     (Phase.COMMITTED, "after it was committed to ada/x"), (Phase.VERIFY, "it was committed")],
)  # fmt: skip
def test_a_push_that_was_killed_says_how_far_it_came(
    run: Run, monkeypatch: pytest.MonkeyPatch, pushed: Callable[..., PushState],
    phase: Phase, said: str,
) -> None:  # fmt: skip
    class Killed(BaseException):
        pass

    def push_run(*words: Any) -> Pushed:
        report = words[4]
        report(PushProgress(phase, full="ada/x"))
        raise Killed

    monkeypatch.setattr(publish, "push_run", push_run)
    with pytest.raises(Killed):
        pushed(run, PushRequest("ada/x"), Approvals())
    state = PushJob.of(run).state()
    assert state.status == "interrupted"
    assert said in state.error
    assert "ush again" in state.remedy


def test_what_a_check_has_shown_or_a_push_has_made_is_updated(
    store: RunStore, toy_checkpoint: Path, hub: LoopbackHub, pushed: Callable[..., PushState]
) -> None:
    approvals = Approvals()
    first, second = (toys.finished_run(store, toy_checkpoint, name) for name in "ab")

    def check(run: Run) -> None:
        plan = push_plan.plan_push(run, run.state(), PushRequest("ada/pairs"), TOKEN)
        approvals.add(store, run, plan)

    def push_to(run: Run, name: str) -> str:
        return pushed(run, PushRequest(name), approvals).error

    check(second)  # there is nothing yet: this shows nothing of what a push would change
    assert [push_to(first, name) for name in ("pairs", "ada/pairs", "pairs")] == [""] * 3
    assert push_to(second, "ada/pairs") == "ada/pairs exists already."
    assert push_to(second, "pairs") == "ada/pairs exists already."
    assert len(hub.repos["model", "ada/pairs"].commits) == 1  # the same is not pushed again
    check(second)
    assert push_to(second, "pairs") == ""
    hub.add_repo("ada/other", files={"README.md": b"mine"})
    assert push_to(second, "ada/other") == "ada/other exists already."
    assert push_to(second, "ada/pairs") == ""  # after a failed one


def test_a_demo_is_billed_only_where_a_check_has_shown_its_price(
    store: RunStore, run: Run, hub: LoopbackHub, pushed: Callable[..., PushState]
) -> None:
    approvals = Approvals()
    request = PushRequest("pairs", demo=True, hardware="t4-small")
    assert "0.40 USD an hour" in pushed(run, request, approvals).error
    assert hub.repos == {}
    for hardware, status in (("cpu-basic", "failed"), ("t4-small", "finished")):
        checked = replace(request, hardware=hardware)
        approvals.add(store, run, push_plan.plan_push(run, run.state(), checked, TOKEN))
        assert pushed(run, request, approvals).status == status
    demo = hub.repos["space", "ada/pairs-demo"].space
    assert demo == Space("gradio", "t4-small", sleep_time=3600)


def test_one_visitors_check_is_not_anothers(store: RunStore) -> None:
    run, approvals = store.create(RunConfig()), Approvals()
    plan = PushPlan(Account("ada", ["ada"]), "ada/pairs", True, "", False, {}, held=1)
    mine, theirs = (store.for_visitor(Visitor((f"browser:{name}",))) for name in "ab")
    approvals.add(mine, run, plan)
    signed_in = store.for_visitor(Visitor(("user:ada", "browser:a")))
    assert approvals.of(signed_in, run) == ["ada/pairs"]
    assert approvals.of(theirs, run) == []
