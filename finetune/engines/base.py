"""The interface of an engine, and the spec that names a run's engine.

The project owns the queue, events, checkpoints and stop requests. An engine places a run on a
machine, tells whether it is alive, brings its output and results here, and has a price.

An attempt sees its run on another machine in a folder that all machines share. A machine that was
cut off may come back while a later attempt runs elsewhere; its worker writes nothing, and ends.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from finetune import disk
from finetune.config import RunConfig
from finetune.errors import JobError
from finetune.hyperparameter import is_whole
from finetune.messages import message as _
from finetune.runs.run import SPEC, Run

HERE = "local"  # the engine of a run without an engine spec
ATTEMPT = "FINETUNE_ATTEMPT"  # tells the attempt to a worker started by an engine
LOST = 75  # exit status if another process of the run, or the worker's engine, has gone
_WATCH = 1.0  # seconds between two checks of the parent process


class EngineSpec(BaseModel, frozen=True, defer_build=True):
    """`engine.json` in a run's folder: its engine and its attempt; this machine if none."""

    engine: str = HERE
    options: dict[str, Any] = {}  # as the engine's `Options` reads them
    attempt: int = 0  # counts from 1; results of a former one are refused
    job: str = ""  # the engine's name of the running attempt; empty if none
    missing: str = ""  # an attempt that the engine no longer knew; it may be running
    submitted: float = 0.0  # when that was, in seconds since the epoch
    sent: int = 0  # bytes of `events.jsonl` that the attempt was given to begin with
    kept_in: tuple[str, ...] = ()  # owners of buckets on the Hub that hold something of the run

    def to_json(self) -> str:
        """The contents of `engine.json`."""
        return self.model_dump_json(indent=2) + "\n"

    @property
    def machine(self) -> str:
        """The kind of machine; empty if the engine has one kind only."""
        return str(self.options.get("flavor", ""))

    @property
    def place(self) -> str:
        """The engine, and its kind of machine if it has several: a run's speed depends on both."""
        return f"{self.engine} {self.machine}".strip()

    @property
    def is_unheard(self) -> bool:
        """True if an attempt may have started without being recorded."""
        return bool(self.attempt) and not (self.submitted or self.job)

    @property
    def may_be_at_work(self) -> bool:
        """True if an attempt may be running."""
        return bool(self.job or self.missing or self.is_unheard)

    def after(self, former: EngineSpec) -> EngineSpec:
        """Return this engine spec for a run that had the `former` one; its next attempt is new."""
        kept = {"attempt": former.attempt, "sent": former.sent, "kept_in": former.kept_in}
        return self.model_copy(update=kept | {"submitted": former.submitted or time.time()})


def read_spec(run: Run) -> EngineSpec:
    """Read a run's spec. Returns one of this machine if it is missing or unreadable."""
    return disk.read_cached_or(EngineSpec(), run.folder / SPEC, EngineSpec.model_validate_json)


def write_spec(run: Run, spec: EngineSpec, **changes: Any) -> EngineSpec:
    """Write a run's spec with some values changed. Returns it."""
    spec = spec.model_copy(update=changes)
    disk.write_atomically(run.folder / SPEC, spec.to_json())
    return spec


def resume(run: Run) -> None:
    """Note that a run goes on. If its last attempt is missing, its worker looks for that attempt
    first, and notes where the run continues."""
    run.stop_file.unlink(missing_ok=True)
    if not read_spec(run).missing:
        run.resume()


@dataclass(frozen=True)
class AttemptStatus:
    """The status of an attempt, as its engine knows it."""

    status: Literal["waiting", "running", "ended"]  # it waits for a machine
    exit_code: int | None = None  # the worker's; None if it has not ended or is unknown
    reason: str = ""  # why it ended, if the worker did not cause that
    lost: bool = False  # True if its machine went away, so that another may continue the run
    missing: bool = False  # True if the engine no longer knows the attempt


@dataclass(frozen=True)
class Shown:
    """Display of an option in the page's form: `Annotated[int, Shown(_("Machines"))]`."""

    label: str
    info: str = ""
    placeholder: str = ""


@dataclass(frozen=True)
class Machine:
    """A kind of machine, and its price in US dollars an hour."""

    name: str
    label: str
    price: float


class EngineOptions(BaseModel):
    """A person's options for an engine. Each field is a flag whose help is the field's docstring. A
    field with a `Shown` is also in the page's form."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_other_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false, and "1.000" as a whole number: pydantic would accept them as 1."""
        whole = cls.model_fields[str(info.field_name)].annotation is int
        if isinstance(value, bool) or (whole and not is_whole(value)):
            what = _("a whole number") if whole else _("a number or a text")
            raise PydanticCustomError("kind", "must be {what}", {"what": what})
        return value

    @classmethod
    def shown(cls) -> dict[str, Shown]:
        """Return the options of the page's form, in their order."""
        return {
            name: shown
            for name, field in cls.model_fields.items()
            for shown in field.metadata
            if isinstance(shown, Shown)
        }


class Engine:
    """A place where runs are carried out.

    A new engine is a subclass in a module of its own, listed in `registry`. The defaults are those
    of an engine that is not known here. Every method may raise a `FinetuneError`.
    """

    name: ClassVar[str] = ""  # in `engine.json` and for `--engine`
    label: ClassVar[str] = ""  # on the page
    Options: ClassVar[type[EngineOptions]] = EngineOptions
    owners_options: ClassVar[tuple[str, ...]] = ()  # that visitors of a shared app may not set
    owners_variables: ClassVar[tuple[str, ...]] = ()  # of a shared app, for an unconfined worker
    places: ClassVar[int | None] = 1  # runs at a time; None for as many as there are devices here
    is_remote: ClassVar[bool] = True  # a worker here follows the run, carried out elsewhere
    # Its price is agreed to first. It calls `spending.reserve` before it submits, and
    # `spending.note` afterwards; its options are `hub_jobs.HubJobOptions`.
    is_billed: ClassVar[bool] = False
    usual_machine: ClassVar[str] = ""  # that the page's form begins with, if it is offered
    needs_token: ClassVar[bool] = False  # of the Hub
    removal_note: ClassVar[str] = ""  # on what it keeps, shown before a run is deleted

    def __init__(self, token: str = "") -> None:
        """Open the engine with a token of the Hub; if empty, that of `hf auth login` here."""

    @classmethod
    def is_offered(cls) -> bool:
        """True if people using this app may choose the engine."""
        return True

    @classmethod
    def missing(cls) -> tuple[str, str]:
        """Return what must be installed first, and the command for it; empty if nothing."""
        return "", ""

    @classmethod
    def confines_follower(cls) -> bool:
        """True if a worker that follows a visitor's run must be confined."""
        return True

    @classmethod
    def check_config(cls, config: RunConfig) -> None:
        """Raise a `FinetuneError` if the engine cannot carry out a run of this configuration."""
        if cls.is_remote and config.accelerate_config:
            raise JobError(
                "accelerate_config is {file!r}, and no launcher reads it on another engine.",
                "Leave it empty.",
                file=config.accelerate_config,
            )

    @classmethod
    def keeps(cls, spec: EngineSpec) -> bool:
        """True if the engine keeps something of the run, wherever the run is carried out now."""
        return cls.is_remote and spec.engine == cls.name and spec.attempt > 0

    def machines(self) -> list[Machine]:
        """Return the kinds of machine of a billed engine, the cheapest first."""
        return []

    def price(self, spec: EngineSpec) -> float:
        """Return the price in US dollars an hour, 0 if free. Raises if it cannot be used."""
        return 0.0

    def submit(self, run: Run, spec: EngineSpec) -> str:
        """Begin the engine spec's attempt, once. Returns the engine's name for it."""
        raise NotImplementedError

    def state(self, run: Run, spec: EngineSpec) -> AttemptStatus:
        """Return the status of the attempt."""
        raise NotImplementedError

    def knows(self, run: Run, spec: EngineSpec) -> bool:
        """True if the engine knows the engine spec's missing attempt again."""
        raise NotImplementedError

    def follow(self, run: Run, spec: EngineSpec) -> Iterator[str]:
        """Yield the attempt's output from its first line, until its end or a lost connection."""
        raise NotImplementedError

    def stop(self, run: Run, spec: EngineSpec, now: bool = False) -> None:
        """Ask the attempt to save and end; with `now`, end it at once."""
        raise NotImplementedError

    def remove(self, run: Run, spec: EngineSpec) -> None:
        """End the run's attempts, also one not heard of, and remove what the engine keeps of it."""
        raise NotImplementedError

    def fetch(self, run: Run, spec: EngineSpec) -> bytes:
        """Fetch the files an ended attempt saved into the run's folder. Returns its whole
        `events.jsonl`, or nothing if the attempt wrote into the run's own."""
        raise NotImplementedError


class Superseded(BaseException):
    """A later attempt owns the run. Not an `Exception`, so that no library swallows it."""


class AttemptRun(Run):
    """A run, as the worker of one attempt sees it."""

    def check_writable(self) -> None:
        """Raise `Superseded` if the run's engine spec is gone or belongs to another attempt."""
        # Read again each time: a shared folder may report only an opened file's age.
        attempt = disk.read_json(self.folder / SPEC).get("attempt")
        if str(attempt) != os.environ[ATTEMPT]:
            raise Superseded


def is_attempt() -> bool:
    """True if an engine started this process to carry out a run."""
    return ATTEMPT in os.environ


def as_attempt(run: Run) -> Run:
    """Return the run as this process may write it."""
    return AttemptRun(run.folder) if is_attempt() else run


def end_with_parent() -> None:
    """End this process in the background once its parent has gone. It may be waiting for other
    processes that nobody will start any more."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH)
        os._exit(LOST)

    threading.Thread(target=watch, name="parent", daemon=True).start()
