"""Pushes in the background: whose they are, that they end, and what they keep to themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from finetune.config import RunConfig
from finetune.errors import Cancelled, JobError, NoSuchRun, PublishError
from finetune.hub import publish
from finetune.hub.publish import Pushed, PushProgress, PushRequest, Verification
from finetune.jobs import push_jobs
from finetune.jobs.push_jobs import PushRegistry, PushState
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.store import Run, RunStore
from finetune.ui import auth, push_view
from tests.conftest import TOKEN
from tests.support import toys
from tests.support.hub import LoopbackHub, Space
from tests.support.tabs import publish_tab, push_form
from tests.ui.test_app import story

WANTED = PushRequest("ada/pairs")
DONE = Pushed("http://hub/ada/pairs", "c" * 40, True, Verification(20, 0.0))


class Stand:
    """A push that waits until it is let go."""

    def __init__(self, end: Callable[[], Pushed] = lambda: DONE) -> None:
        self.go, self.begun, self.end = threading.Event(), threading.Event(), end

    def __call__(
        self,
        run: Run,
        summary: Any,
        wanted: PushRequest,
        token: str | None,
        told: Any,
        stopped: Any,
    ) -> Pushed:
        told(PushProgress("sending weights", 5, 10, full=wanted.name))
        self.begun.set()
        while not self.go.wait(0.01):
            if stopped():
                raise Cancelled("Cancelled.", "Push again.")
        return self.end()


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    made = Stand()
    monkeypatch.setattr(publish, "push_run", made)
    return made


def begin(known: PushRegistry, store: RunStore, run: Run) -> PushState:
    return known.start(store, run, store.summary(run), WANTED, TOKEN)


def ended(known: PushRegistry, store: RunStore, run: Run) -> PushState:
    deadline = time.monotonic() + 20
    while (state := known.state(store, run)) is None or state.status == "running":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return state


@pytest.fixture
def run(store: RunStore) -> Run:
    return store.create(RunConfig())


def test_a_push_goes_on_without_its_page(store: RunStore, run: Run, stand: Stand) -> None:
    known = PushRegistry()
    assert known.state(store, run) is None
    assert begin(known, store, run).status == "running"
    stand.begun.wait(5)
    state = known.state(store, run)
    assert state is not None
    assert (state.progress.sent, state.progress.total) == (5, 10)
    assert begin(known, store, run).progress.sent == 5  # the same one, not a second
    stand.go.set()
    assert ended(known, store, run).pushed == DONE


def test_a_cancelled_push_can_be_tried_again(store: RunStore, run: Run, stand: Stand) -> None:
    known = PushRegistry()
    begin(known, store, run)
    known.cancel(store, run)
    state = ended(known, store, run)
    assert (state.status, state.error) == ("cancelled", "Cancelled.")
    stand.go.set()
    begin(known, store, run)
    assert ended(known, store, run).status == "done"


def test_a_push_is_its_visitors_alone(store: RunStore, run: Run, stand: Stand) -> None:
    known = PushRegistry()
    mine, theirs = (store.seen_by(Visitor((f"browser:{name}",))) for name in "ab")
    begin(known, mine, run)
    assert known.state(theirs, run) is None
    known.cancel(theirs, run)
    signed_in = store.seen_by(Visitor(("user:ada", "browser:a")))
    state = known.state(signed_in, run)
    assert state is not None
    assert not state.cancelling
    assert known.state(store.seen_by(Visitor()), run) is None
    stand.go.set()
    assert ended(known, mine, run).status == "done"


def test_there_are_only_so_many_at_a_time(store: RunStore, stand: Stand) -> None:
    known = PushRegistry()
    runs = [store.create(RunConfig()) for _ in range(push_jobs.MOST + 1)]
    for one in runs[:-1]:
        begin(known, store, one)
    with pytest.raises(JobError, match="4 pushes are going on"):
        begin(known, store, runs[-1])
    stand.go.set()
    ended(known, store, runs[0])
    begin(known, store, runs[-1])
    ended(known, store, runs[-1])


def test_a_bug_is_told_without_its_words(
    store: RunStore, run: Run, stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> Pushed:
        raise RuntimeError(f"Illegal header value 'Bearer {TOKEN}'")

    stand.end = fails
    stand.go.set()
    known = PushRegistry()
    begin(known, store, run)
    state = ended(known, store, run)
    assert "our fault" in state.error
    assert TOKEN not in repr(state)
    assert TOKEN not in caplog.text
    assert "test_push_jobs.py" in caplog.text
    assert state.error.split()[-1].rstrip(".") in caplog.text


def test_how_it_looks() -> None:
    sending = PushState(
        "running", WANTED, PushProgress("sending <b>", 5_000_000, 10_000_000, 2_000_000)
    )
    shown = push_view.state(sending)
    assert "Sending &lt;b&gt;" in shown
    assert 'aria-valuenow="50"' in shown
    assert "5.0 MB of 10.0 MB" in shown
    assert "2.0 MB were there already" in shown
    assert "Verified" in push_view.state(PushState("done", WANTED, pushed=DONE))
    differs = Pushed(
        "u", "c" * 40, False, Verification(20, 0.1, "A logit differs."), "", "Payment."
    )
    shown = push_view.state(PushState("done", WANTED, pushed=differs))
    assert "<b>Verified</b>" not in shown
    assert "Not verified. A logit differs." in shown
    assert "There is no demo. Payment." in shown
    failed = PushState(
        "failed", WANTED, PushProgress(sent=5_000_000, total=10_000_000), error="<i>"
    )
    assert "&lt;i&gt;" in push_view.state(failed)
    assert "are not sent again" in push_view.state(failed)


def test_what_a_check_has_shown_or_a_push_has_made_is_updated(
    store: RunStore, toy_checkpoint: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "verify_push", lambda *_: Verification(0, 0.0))
    known = PushRegistry()
    first, second = (tuned(store, toy_checkpoint) for _ in range(2))

    def pushed_to(run: Run, name: str) -> str:
        known.start(store, run, store.summary(run), PushRequest(name), TOKEN)
        state = ended(known, store, run)
        return state.status if state.pushed else state.error

    def check(run: Run) -> None:
        plan = publish.plan_push(run, store.summary(run), PushRequest("ada/pairs"), TOKEN)
        known.checked(store, run, plan)

    check(second)  # there is nothing yet: this shows nothing of what a push would change
    assert pushed_to(first, "pairs") == "done"
    assert pushed_to(first, "ada/pairs") == "done"  # Push again
    assert pushed_to(first, "pairs") == "done"
    assert pushed_to(second, "ada/pairs") == "ada/pairs exists already."
    assert pushed_to(second, "pairs") == "ada/pairs exists already."
    assert len(hub.repos["model", "ada/pairs"].commits) == 1  # the same is not pushed again
    check(second)
    assert pushed_to(second, "pairs") == "done"
    hub.add_repo("ada/other", files={"README.md": b"mine"})
    assert pushed_to(second, "ada/other") == "ada/other exists already."
    assert pushed_to(second, "ada/pairs") == "done"  # after a failed one


def test_a_demo_is_billed_only_where_a_check_has_shown_its_price(
    store: RunStore, toy_checkpoint: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "verify_push", lambda *_: Verification(0, 0.0))
    known, run = PushRegistry(), tuned(store, toy_checkpoint)
    wanted = PushRequest("pairs", demo=True, hardware="t4-small")

    def push() -> PushState:
        known.start(store, run, store.summary(run), wanted, TOKEN)
        return ended(known, store, run)

    assert "0.40 USD an hour" in push().error
    assert hub.repos == {}
    free = publish.plan_push(run, store.summary(run), replace(wanted, hardware="cpu-basic"), TOKEN)
    known.checked(store, run, free)
    assert "pressing Push agrees" not in push_view.plan(free)
    assert push().status == "failed"
    plan = publish.plan_push(run, store.summary(run), wanted, TOKEN)
    known.checked(store, run, plan)
    assert "0.40 USD an hour" in push_view.plan(plan)
    assert "pressing Push agrees to that price" in push_view.plan(plan)
    assert push().status == "done"
    assert hub.repos["space", "ada/pairs-demo"].space == Space(
        "gradio", "t4-small", sleep_time=3600
    )


def test_one_visitors_check_is_not_anothers(store: RunStore, run: Run) -> None:
    known = PushRegistry()
    plan = publish.PushPlan(
        publish.Account("ada", ["ada"]), "ada/pairs", True, "", False, {}, held=1
    )
    mine, theirs = (store.seen_by(Visitor((f"browser:{name}",))) for name in "ab")
    known.checked(mine, run, plan)
    signed_in = Visitor(("user:ada", "browser:a"))
    assert known._knows(signed_in.names, run, "ada/pairs")
    assert not known._knows(theirs.visitor.names, run, "ada/pairs")
    for n in range(push_jobs._KNOWN):
        known.checked(theirs, run, replace(plan, full=f"ada/{n}"))
    assert len(known._seen) == push_jobs._KNOWN


def tuned(store: RunStore, toy_checkpoint: Path) -> Run:
    made = store.create(RunConfig(max_length=32, name=f"run {len(store.runs())}"))
    for event in story():
        made.append(event)
    toys.copy_model(toy_checkpoint, made.best)
    return made


class Request:
    """A visitor with an identity; a direct call has no browser."""

    headers: dict[str, str]

    def __init__(self, store: RunStore) -> None:
        self.headers = {auth.HEADER: auth.identities(store).issue("192.0.2.1")}


def test_the_tab_shows_each_visitor_their_own_push(
    store: RunStore, toy_checkpoint: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = publish_tab(store)
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setattr(publish, "stored_token", lambda: TOKEN)
    ada: Any = Request(store)
    eve: Any = Request(store)
    run = tuned(auth.visitor_store(store, ada), toy_checkpoint)
    asked = push_form(tab, run.id, token=TOKEN)
    assert "no such run" in tab.on_push(eve, asked, None)[tab.plan]
    assert "no such run" in tab.on_check(eve, asked, None)[tab.plan]
    assert "no such run" in tab.on_cancel(eve, run.id)[tab.result]
    # On a shared app nobody pushes with its owner's token.
    assert "not signed in" in tab.on_check(ada, push_form(tab, run.id), None)[tab.plan]
    tab.on_push(ada, asked, None)
    mine = auth.visitor_store(store, ada)
    state = ended(tab.pushes, mine, run)
    assert state.pushed is not None, state
    assert state.pushed.verified == Verification(3, 0.0)
    asked_for = gr.EventData(None, {"wait": "+this"})
    assert "Verified" in tab.on_tick(ada, run.id, asked_for)[tab.result]
    other = tuned(mine, toy_checkpoint)
    of_other = push_form(tab, other.id, token=TOKEN)
    tab.on_push(ada, of_other, None)
    assert ended(tab.pushes, mine, other).error == "ada/pairs exists already."
    tab.on_check(ada, of_other, None)
    tab.on_push(ada, of_other, None)
    assert ended(tab.pushes, mine, other).pushed is not None
    assert tab.on_tick(eve, run.id, asked_for)[tab.result] == ""
    with pytest.raises(NoSuchRun):
        auth.visitor_store(store, eve).get(run.id)


def test_what_is_wrong_is_said_by_the_push_as_by_the_check(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    run.append(events.Failed(error="x"))
    with pytest.raises(PublishError, match="no saved model"):
        publish.plan_push(run, store.summary(run), WANTED, TOKEN)
    known = PushRegistry()
    begin(known, store, run)
    assert ended(known, store, run).error == "This run has no saved model."
