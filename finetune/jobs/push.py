"""Push jobs: a run's model to the Hugging Face Hub, with its card and perhaps a demo.

The folder `<run>/pushes/latest` gets `progress.json` and, once that is confirmed, `result.json`.
The token reaches the worker through its standard input: no argument, file or environment has it.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import traceback
from dataclasses import dataclass, field

from finetune.disk import read_as, write_atomically
from finetune.errors import Cancelled, FinetuneError, PublishError
from finetune.hub import publish
from finetune.hub.publish import Pushed, PushPlan, PushProgress, PushRequest
from finetune.jobs.background import BackgroundJob, Report
from finetune.messages import encode
from finetune.messages import message as _
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState


@dataclass
class PushState(JobState):
    """Progress of a push."""

    progress: PushProgress = field(default_factory=PushProgress)
    cancelling: bool = False  # True if a person has cancelled it
    pushed: Pushed | None = None  # what the Hub confirmed; None until then


class Approvals:
    """Records what a Check has shown to each visitor: repositories that a push changes, prices of
    demo Spaces. A restart of the app clears it."""

    def __init__(self) -> None:
        self._shown: set[tuple[str, str, str]] = set()  # visitor, run, repository or price

    def add(self, store: RunStore, run: Run, plan: PushPlan) -> None:
        """Record what a check has shown; a repository only if it already holds something."""
        self._shown |= {(store.visitor.name, run.id, text) for text in plan.to_approve}

    def of(self, store: RunStore, run: Run) -> list[str]:
        """Return what a visitor was shown of one run, under any of their names."""
        names = store.visitor.names or ("",)
        return [text for name, run_id, text in self._shown if name in names and run_id == run.id]


def _interruption(progress: PushProgress) -> tuple[str, str]:
    """Say how far a push came whose worker was killed, and what to do."""
    full = progress.full
    if progress.phase in (Phase.COMMITTED, Phase.VERIFY, Phase.CREATE_DEMO):
        error = _("It ended unexpectedly after it was committed to {full}.", full=full)
        return error, _("Push again to load it back and compare.")
    if progress.phase == Phase.COMMIT:
        error = _("It ended unexpectedly; the commit to {full} may have arrived.", full=full)
        return error, _("Look into the repository, and push again if it has not arrived.")
    return _("It ended unexpectedly; nothing was committed."), _("Push again.")


class PushJob(BackgroundJob):
    """The latest push of a run."""

    name, folders, limit = "push", "*/pushes/*", 4
    phase = Phase.CHECK_HUB
    has_limit = False  # a commit may have been sent, so that only the Hub's answer ends a push

    def start(
        self, store: RunStore, request: PushRequest, token: str | None, approvals: Approvals
    ) -> None:
        """Begin to push. Updates a repository that holds something if a check has shown it to the
        visitor for this run, or an earlier push of theirs put the run there. A demo Space is billed
        if a check has shown the price."""
        former = self.state()
        approved = {*approvals.of(store, self.run), *self.request.get("approved", [])}
        if former.pushed is not None:
            approved.add(former.progress.full)
        content = {"push": dataclasses.asdict(request), "approved": sorted(approved)}
        self.begin(store, content, stdin=f"{token or ''}\n".encode())

    def state(self) -> PushState:
        """Return the push's state. Its status is `none` if there was none."""
        state = PushState(
            **vars(super().state()),
            progress=read_as(PushProgress, self.folder / "progress.json") or PushProgress(),
            pushed=read_as(Pushed, self.folder / "result.json"),
        )
        if state.status == "interrupted":  # its worker was killed
            state.error, state.remedy = _interruption(state.progress)
        state.cancelling = state.running and self.stop_requested()
        return state

    def cancel(self) -> None:
        """Ask the push to end before its commit; afterwards it cannot."""
        if self.state().running:
            self.request_stop()

    def forget_failed(self) -> None:
        """Remove a failed push before somebody checks again if pushing is possible."""
        if self.state().status in ("failed", "stopped", "interrupted"):
            shutil.rmtree(self.folder, ignore_errors=True)

    def work(self, report: Report) -> events.Event | None:
        token = sys.stdin.readline().strip() or None

        def write(name: str, content: PushProgress | Pushed) -> None:
            write_atomically(self.folder / name, json.dumps(encode(dataclasses.asdict(content))))

        try:
            pushed = publish.push_run(
                self.run,
                PushRequest(**self.request["push"]),
                token,
                lambda progress: write("progress.json", progress),
                self.stop_requested,
                self.request["approved"],
            )
            write("result.json", pushed)
        except Cancelled as error:
            return events.Stopped(step=0, seconds=0.0, reason=error.text)
        except FinetuneError:
            raise
        except Exception as error:  # a library's message might quote a header
            traceback.print_tb(error.__traceback__)
            raise PublishError(
                "{name} was raised, which is our fault.",
                "The push's console.log says where.",
                name=type(error).__name__,
            ) from None
        return None
