"""Pushes under way: one a run and its owner, in a thread of the app: a closed tab ends none.

A thread rather than a process: the token is in this app's memory and must reach no argument, file
or environment of another. When the app ends so does the push; as a push is one commit, it has
then happened whole or not at all, and pushing again sends what is missing. What a push does is
`publish`' business.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from finetune.errors import Cancelled, FinetuneError, JobError
from finetune.hub import publish
from finetune.hub.publish import Billed, Pushed, RepositoryExists
from finetune.hub.push_plan import PushPlan, PushRequest
from finetune.hub.upload import ProgressCallback, PushProgress
from finetune.runs.store import Run, RunStore
from finetune.runs.summary import RunSummary

Status = Literal["running", "done", "failed", "cancelled"]
MOST = 4  # at a time, for all visitors
_KEPT = 200  # ended ones
_KNOWN = 1000  # repositories that somebody knows the content of
_log = logging.getLogger("finetune.jobs.push_jobs")


@dataclass(frozen=True)
class PushState:
    """How far a push is, without its token.

    Args:
        status: whether it goes on, and how it ended.
        wanted: what shall be pushed where.
        progress: how far it is, or was.
        cancelling: whether somebody wants its end.
        pushed: what the Hub confirmed; None until then.
        error, remedy: why it ended otherwise.
        ended: when it did, in seconds since the epoch; 0 while it goes on.
    """

    status: Status
    wanted: PushRequest
    progress: PushProgress = field(default_factory=PushProgress)
    cancelling: bool = False
    pushed: Pushed | None = None
    error: str = ""
    remedy: str = ""
    ended: float = 0.0


@dataclass
class _Push:
    """A push and the switch that ends it."""

    state: PushState
    stop: threading.Event = field(default_factory=threading.Event)


class PushRegistry:
    """The pushes of one app."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Push] = {}
        # visitor, run, and what a check has shown: a repository, or the price of a demo Space
        self._seen: dict[tuple[str, str, str], None] = {}
        self._lock = threading.Lock()

    def start(
        self, store: RunStore, run: Run, summary: RunSummary, wanted: PushRequest, token: str | None
    ) -> PushState:
        """Begin to push, unless this run is being pushed already.

        A repository that holds something is updated where a check has shown it to this visitor for
        this run, or a push of theirs has put the run there. A demo Space is billed where a check
        has shown the price.

        Args:
            store: as the one who pushes sees it.
            token: in this app's memory until the push ends, and nowhere else.

        Raises:
            JobError: when too many pushes are going on.
        """
        key = (store.visitor.name, str(run.folder))
        if self._knows(_names(store), run, wanted.name):
            wanted = replace(wanted, update=True)
        with self._lock:
            known = self._known.get(key)
            if known is not None and known.state.status == "running":
                return known.state
            going_on = sum(one.state.status == "running" for one in self._known.values())
            if going_on >= MOST:
                raise JobError(f"{MOST} pushes are going on.", "Try again in a minute.")
            push = self._known[key] = _Push(PushState("running", wanted))
            self._forget()
        threading.Thread(
            target=self._carry_out, args=(push, _names(store), run, summary, token), name="push",
            daemon=True,
        ).start()  # fmt: skip
        return push.state

    def checked(self, store: RunStore, run: Run, plan: PushPlan) -> None:
        """A check has shown what a push changes, which may be done from now on.

        What a check found empty or missing is not meant: by the push another may have filled it.
        """
        if plan.held:
            self._see(_names(store), run, plan.full)
        if plan.billed:
            self._see(_names(store), run, _price(plan))

    def state(self, store: RunStore, run: Run) -> PushState | None:
        """The latest push of a run by whoever asks; None where there was none."""
        push = self._find(store, run)
        return push.state if push is not None else None

    def cancel(self, store: RunStore, run: Run) -> None:
        """Ask a push for its end; it ends before its commit or not at all."""
        if (push := self._find(store, run)) is not None and push.state.status == "running":
            push.stop.set()
            push.state = replace(push.state, cancelling=True)

    def forget(self, store: RunStore, run: Run) -> None:
        """Drop a push that came to nothing: somebody looks anew whether it can be done."""
        push = self._find(store, run)
        if push is not None and push.state.status in ("failed", "cancelled"):
            with self._lock:
                self._known = {key: one for key, one in self._known.items() if one is not push}

    def _find(self, store: RunStore, run: Run) -> _Push | None:
        """The push by any of the visitor's names: one may have signed in since."""
        found = (self._known.get((name, str(run.folder))) for name in _names(store))
        return next((one for one in found if one is not None), None)

    def _forget(self) -> None:
        ended = [key for key, one in self._known.items() if one.state.status != "running"]
        for key in ended[: max(0, len(ended) - _KEPT)]:
            del self._known[key]

    def _see(self, names: Sequence[str], run: Run, full: str) -> None:
        with self._lock:
            for name in names[:1]:
                self._seen[name, str(run.folder), full] = None
            for key in list(self._seen)[:-_KNOWN]:
                del self._seen[key]

    def _knows(self, names: Sequence[str], run: Run, full: str) -> bool:
        return any((name, str(run.folder), full) in self._seen for name in names)

    def _push(
        self, push: _Push, names: Sequence[str], run: Run, summary: RunSummary, token: str | None,
        told: ProgressCallback,
    ) -> Pushed:  # fmt: skip
        """Push. Whether a check has shown what is replaced and what is billed is known here only:
        the name may have been given without its namespace, and the price is the Hub's."""
        wanted, stopped = push.state.wanted, push.stop.is_set
        while True:
            try:
                return publish.push_run(run, summary, wanted, token, told, stopped)
            except RepositoryExists as error:
                if not self._knows(names, run, error.full):
                    raise
                wanted = replace(wanted, update=True)
            except Billed as error:
                if not self._knows(names, run, _price(error.plan)):
                    raise
                wanted = replace(wanted, pays=True)

    def _carry_out(
        self, push: _Push, names: Sequence[str], run: Run, summary: RunSummary, token: str | None
    ) -> None:
        def told(progress: PushProgress) -> None:
            push.state = replace(push.state, progress=progress, cancelling=push.stop.is_set())

        try:
            pushed = self._push(push, names, run, summary, token, told)
            self._see(names, run, push.state.progress.full)
            end = replace(push.state, status="done", pushed=pushed)
        except Cancelled as error:
            end = replace(push.state, status="cancelled", error=error.fact, remedy=error.remedy)
        except FinetuneError as error:
            end = replace(push.state, status="failed", error=error.fact, remedy=error.remedy)
        except Exception as error:
            end = replace(push.state, status="failed", error=_apology(error))
        push.state = replace(end, cancelling=False, ended=time.time())


def _price(plan: PushPlan) -> str:
    return f"{plan.demo}: {plan.hardware}"


def _names(store: RunStore) -> Sequence[str]:
    """Those of whoever looks, the first the one that they go by."""
    return store.visitor.names or ("",) * store.visitor.alone


def _apology(error: Exception) -> str:
    """What a person is told of a bug. The log gets where it was, but not the error's own words:
    a library might quote a header in them."""
    reference = secrets.token_hex(4)
    where = "".join(traceback.format_tb(error.__traceback__))
    _log.error("reference %s: %s\n%s", reference, type(error).__name__, where)
    return (
        "Something went wrong here, and it is our fault. "
        f"The app's log has the details under the reference {reference}."
    )
