"""What an engine does for a run, and the ticket that says which engine has it.

The queue, events, checkpoints and stop requests are the project's; an engine places a run on a
machine, knows whether it lives, carries its output and its results here, and has a price.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ValidationError

from finetune import disk
from finetune.runs.run import TICKET, Run

LOCAL, HUB_JOB, RAY = "local", "hub-job", "ray"


class Ticket(BaseModel, frozen=True, defer_build=True):
    """`engine.json` of a run's folder: which engine carries the run out, and its present attempt.
    A run without one is carried out on this machine."""

    engine: str = LOCAL
    options: dict[str, Any] = {}  # as the engine's own class of options reads them
    attempt: int = 0  # counts from 1; what comes of a former one is refused
    job: str = ""  # the engine's name of the attempt under way; empty where there is none
    missing: str = ""  # the attempt that the engine did not know any more; it may be at work
    submitted: float = 0.0  # when that was, in seconds since the epoch
    sent: int = 0  # bytes of `events.jsonl` that the attempt was given to begin with
    kept_in: tuple[str, ...] = ()  # whose buckets on the Hub hold something of the run

    def to_json(self) -> str:
        """The contents of `engine.json`."""
        return self.model_dump_json(indent=2) + "\n"

    @property
    def place(self) -> str:
        """The engine, and the kind of machine where it has several; a run's speed is that of its
        place."""
        flavor = self.options.get("flavor", "")
        return f"{self.engine} {flavor}".strip()

    @property
    def is_unheard(self) -> bool:
        """Whether an attempt may have begun, and nobody could write that down."""
        return bool(self.attempt) and not (self.submitted or self.job)

    @property
    def may_be_at_work(self) -> bool:
        """Whether an attempt may be at work."""
        return bool(self.job or self.missing or self.is_unheard)

    def after(self, former: Ticket) -> Ticket:
        """This ticket for a run that had the `former` one: its next attempt is a new one."""
        kept = {"attempt": former.attempt, "sent": former.sent, "kept_in": former.kept_in}
        return self.model_copy(update=kept | {"submitted": former.submitted or time.time()})


def read_ticket(run: Run) -> Ticket:
    """A run's ticket; one of this machine where it has none, or none that can be read."""
    try:
        return disk.read_cached(run.folder / TICKET, Ticket.model_validate_json)
    except (OSError, ValidationError):
        return Ticket()


def write_ticket(run: Run, ticket: Ticket) -> Ticket:
    """Write a run's ticket down; returns it."""
    disk.write_atomically(run.folder / TICKET, ticket.to_json())
    return ticket


def resume(run: Run) -> None:
    """Note that a run goes on. If its last attempt is missing, its worker looks for that first, and
    notes from where it goes on."""
    if read_ticket(run).missing:
        run.stop_file.unlink(missing_ok=True)
    else:
        run.resume()


@dataclass(frozen=True)
class Placement:
    """How an attempt is, as its engine knows it.

    Attributes:
        status: `waiting` for a machine, `running`, or `ended`.
        exit_code: of the worker that has ended; None where it has not, or nobody knows.
        reason: why it ended, where that was not the worker's own doing.
        lost: whether its machine went away, so that another may take the run up.
        missing: whether the engine does not know the attempt any more.
    """

    status: Literal["waiting", "running", "ended"]
    exit_code: int | None = None
    reason: str = ""
    lost: bool = False
    missing: bool = False


class Engine(Protocol):
    """Where runs are carried out. Every method may raise a `FinetuneError` for people to read."""

    def price(self, ticket: Ticket) -> float:
        """US dollars an hour; 0 where it costs nothing more."""

    def submit(self, run: Run, ticket: Ticket) -> str:
        """Begin the ticket's attempt, once; the engine's name for it."""

    def state(self, run: Run, ticket: Ticket) -> Placement:
        """How the attempt is."""

    def knows(self, run: Run, ticket: Ticket) -> bool:
        """Whether the engine knows the ticket's missing attempt again."""

    def follow(self, run: Run, ticket: Ticket) -> Iterator[str]:
        """The lines that the attempt has written and writes, until its end or a lost connection;
        asked again, all of them from the first one."""

    def stop(self, run: Run, ticket: Ticket, now: bool = False) -> None:
        """Ask the attempt to save and to end; or end it `now`."""

    def remove(self, run: Run, ticket: Ticket) -> None:
        """End what the run has under way, also an attempt whose start was not heard of, and remove
        what the engine keeps of it."""

    def fetch(self, run: Run, ticket: Ticket) -> bytes:
        """Put what an ended attempt has saved into the run's folder; its whole `events.jsonl`, or
        nothing where it wrote into that of the run."""
