"""What an engine is and does, and the ticket that says which engine has a run.

The queue, events, checkpoints and stop requests are the project's; an engine places a run on a
machine, knows whether it lives, carries its output and its results here, and has a price.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from finetune import disk
from finetune.config import RunConfig, is_whole
from finetune.errors import JobError
from finetune.messages import message as _
from finetune.runs.run import TICKET, Run

if TYPE_CHECKING:
    from finetune.inference.files import WindowScorer

HERE = "local"  # the engine of a run without a ticket


class Ticket(BaseModel, frozen=True, defer_build=True):
    """`engine.json` of a run's folder: which engine carries the run out, and its present attempt.
    A run without one is carried out on this machine."""

    engine: str = HERE
    options: dict[str, Any] = {}  # as the engine's `Options` reads them
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
    def machine(self) -> str:
        """The kind of machine; empty if the engine has one kind only."""
        return str(self.options.get("flavor", ""))

    @property
    def place(self) -> str:
        """The engine, and the kind of machine where it has several; a run's speed is that of its
        place."""
        return f"{self.engine} {self.machine}".strip()

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
class AttemptStatus:
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


@dataclass(frozen=True)
class Shown:
    """How the page's form shows an option: `Annotated[int, Shown(_("Machines"))]`."""

    label: str
    info: str = ""
    placeholder: str = ""


class EngineOptions(BaseModel):
    """What a person chooses for an engine: each field is a flag, whose help is its docstring, and
    with a `Shown` a field of the page's form too."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_other_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false, and as a whole number "1.000": pydantic takes them for 1."""
        kind = cls.model_fields[str(info.field_name)].annotation
        whole = kind is int
        if (isinstance(value, bool) and kind is not bool) or (whole and not is_whole(value)):
            what = _("a whole number") if whole else _("a number or a text")
            raise PydanticCustomError("kind", "must be {what}", {"what": what})
        return value

    @classmethod
    def shown(cls) -> dict[str, Shown]:
        """The options of the page's form, in their order."""
        return {
            name: shown
            for name, field in cls.model_fields.items()
            for shown in field.metadata
            if isinstance(shown, Shown)
        }


class Engine:
    """A place where runs are carried out.

    A new engine is a subclass in a module of its own, listed in `registry`; an installed package
    can bring one by an entry point of the group `finetune.engines`. The defaults are those of an
    engine that is not known here. Every method may raise a `FinetuneError` for people to read.
    """

    name: ClassVar[str] = ""
    """In `engine.json` and for `--engine`."""
    label: ClassVar[str] = ""
    """On the page."""
    Options: ClassVar[type[EngineOptions]] = EngineOptions
    owners_options: ClassVar[tuple[str, ...]] = ()
    """Options that only the owner of a shared app may set, not its visitors."""
    owners_variables: ClassVar[tuple[str, ...]] = ()
    """Variables of a shared app's environment that a worker gets which is not confined."""
    file_options: ClassVar[tuple[str, ...]] = ()
    """Options that count when a file is scored."""
    places: ClassVar[int | None] = 1
    """Runs at a time; None for as many as this machine has devices."""
    is_remote: ClassVar[bool] = True
    """A worker on this machine follows the run, which is carried out elsewhere."""
    is_billed: ClassVar[bool] = False
    """Its price is shown and agreed to first; see `billed.BilledEngine`."""
    needs_token: ClassVar[bool] = False
    """It needs a token of the Hub."""
    scores_files: ClassVar[bool] = False
    """It can score the rows of a file."""
    removal_note: ClassVar[str] = ""
    """What is said of what the engine keeps, before a run is deleted."""

    def __init__(self, token: str = "") -> None:
        """Open the engine.

        Args:
            token: of the Hub; that of `hf auth login` on one's own machine if empty.
        """

    @classmethod
    def is_offered(cls) -> bool:
        """True if the people of this app may choose it."""
        return True

    @classmethod
    def missing(cls) -> tuple[str, str]:
        """What has to be installed first, and the command that does so; empty if nothing has."""
        return "", ""

    @classmethod
    def confines_follower(cls) -> bool:
        """True if a worker that follows a visitor's run must be confined."""
        return True

    @classmethod
    def check_config(cls, config: RunConfig) -> None:
        """Raise a `FinetuneError` if the engine cannot carry out a run of this configuration."""
        if config.accelerate_config:
            raise JobError(
                "accelerate_config is {file!r}, and no launcher reads it on another engine.",
                "Leave it empty.",
                file=config.accelerate_config,
            )

    @classmethod
    def restarts(cls, ticket: Ticket) -> int:
        """How often an attempt whose machine was lost is begun again on another one."""
        return 0

    @classmethod
    def keeps(cls, ticket: Ticket) -> bool:
        """True if the engine keeps something of the run, wherever that is carried out now."""
        return cls.is_remote and ticket.engine == cls.name and ticket.attempt > 0

    def price(self, ticket: Ticket) -> float:
        """US dollars an hour; 0 if it costs nothing more. Raises if the engine cannot be used."""
        return 0.0

    def submit(self, run: Run, ticket: Ticket) -> str:
        """Begin the ticket's attempt, once; the engine's name for it."""
        raise NotImplementedError

    def state(self, run: Run, ticket: Ticket) -> AttemptStatus:
        """Return how the attempt is."""
        raise NotImplementedError

    def knows(self, run: Run, ticket: Ticket) -> bool:
        """True if the engine knows the ticket's missing attempt again."""
        raise NotImplementedError

    def follow(self, run: Run, ticket: Ticket) -> Iterator[str]:
        """Yield the lines that the attempt has written and writes, until it ends or the connection
        is lost. Asked again, all of them from the first one."""
        raise NotImplementedError

    def stop(self, run: Run, ticket: Ticket, now: bool = False) -> None:
        """Ask the attempt to save and to end; or end it `now`."""
        raise NotImplementedError

    def remove(self, run: Run, ticket: Ticket) -> None:
        """End what the run has under way, also an attempt whose start was not heard of, and remove
        what the engine keeps of it."""
        raise NotImplementedError

    def fetch(self, run: Run, ticket: Ticket) -> bytes:
        """Put what an ended attempt has saved into the run's folder; its whole `events.jsonl`, or
        nothing if it wrote into that of the run."""
        raise NotImplementedError

    def scorer(self, run: Run, ticket: Ticket) -> AbstractContextManager[WindowScorer]:
        """Open what scores the rows of a file with the run's best model."""
        raise NotImplementedError
