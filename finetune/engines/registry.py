"""Engines: where a run is carried out - this machine, a Hugging Face Job, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable

from finetune import owners
from finetune.engines.base import HUB_JOB, LOCAL, RAY, Engine, Ticket, read_ticket
from finetune.errors import JobError
from finetune.messages import message as _
from finetune.runs.events import Event
from finetune.runs.run import Run

__all__ = [
    "HUB_JOB", "LABELS", "LOCAL", "PLACES", "RAY", "carry_out", "end_unheard", "has_bucket",
    "is_remote", "may_be_under_way", "open_engine", "remove",
]  # fmt: skip

LABELS = {
    LOCAL: _("This machine"),
    HUB_JOB: _("Hugging Face Job"),
    RAY: _("Ray cluster"),
}
PLACES = {HUB_JOB: 100, RAY: 8}  # runs at a time; this machine's are its devices


def is_remote(run: Run) -> bool:
    """Whether a run is carried out elsewhere; its worker here only follows it."""
    return read_ticket(run).engine != LOCAL


def has_bucket(run: Run) -> bool:
    """Whether a bucket on the Hub holds something of a run, wherever it is carried out now."""
    return bool(read_ticket(run).kept_in)


def open_engine(ticket: Ticket, token: str = "") -> Engine:
    """The engine of a ticket.

    Args:
        token: of the Hub; that of `hf auth login` on one's own machine if empty.
    """
    if ticket.engine == HUB_JOB:
        from finetune.engines.hub_jobs import HubJobs
        from finetune.hub import client

        return HubJobs(token or (None if owners.is_shared() else client.stored_token()))
    if ticket.engine == RAY:
        from finetune.engines.ray_cluster import RayCluster

        return RayCluster()
    raise JobError(
        "There is no engine {engine!r}.",
        "Choose one of: {engines}.",
        engine=ticket.engine,
        engines=", ".join(LABELS),
    )


def may_be_under_way(run: Run) -> bool:
    """Whether an attempt whose start was not heard of may be at work."""

    from finetune.engines import spending

    ticket = read_ticket(run)
    return ticket.is_unheard and (
        ticket.engine == RAY or spending.spent_in(run, ticket.attempt) > 0
    )


def end_unheard(run: Run, token: str = "") -> None:
    """End an attempt whose start was not heard of, or that is missing, where it may be at work."""
    ticket = read_ticket(run)
    if ticket.missing or may_be_under_way(run):
        open_engine(ticket, token).remove(run, ticket)


def remove(run: Run, token: str = "") -> None:
    """End what a run has under way on other engines, and remove what they keep of it."""
    ticket = read_ticket(run)
    if ticket.kept_in:
        open_engine(Ticket(engine=HUB_JOB), token).remove(run, ticket)
    if ticket.engine == RAY and ticket.attempt:
        open_engine(ticket).remove(run, ticket)


def carry_out(
    run: Run,
    token: str = "",
    show: Callable[[Event], None] = lambda event: None,
    describe: Callable[[Event], str] = lambda event: "",
) -> int:
    """Carry a run out on the engine of its ticket, as its worker; the exit status. For `show` and
    `describe` see `supervisor.supervise`."""

    from finetune.engines import supervisor

    ticket = read_ticket(run)
    restarts = ticket.options.get("max_failures", 0)
    return supervisor.supervise(run, lambda: open_engine(ticket, token), restarts, show, describe)
