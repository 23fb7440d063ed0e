"""The typed events of a job, one line of JSON each.

The training loop yields them, the job's folder keeps them, the page folds them. Times are seconds
since the epoch (`time.time()`), durations are seconds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import to_json as to_json_bytes

from finetune.phases import Phase

# Scores and the like: a number that was not finite is null in JSON, and left out when read.
Numbers = Annotated[
    dict[str, float],
    BeforeValidator(
        lambda value: (
            {name: number for name, number in value.items() if number is not None}
            if isinstance(value, dict)
            else value
        )
    ),
]


@dataclass(frozen=True, kw_only=True)
class Event:
    """The common part: when it happened.

    Args:
        time: seconds since the epoch.
    """

    time: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """A worker process began: where, and with which versions of what."""

    event: Literal["started"] = "started"
    device: str
    processes: int = 1
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PhaseStarted(Event):
    """A phase began; `detail` says what of (a checkpoint's name, a split)."""

    event: Literal["phase"] = "phase"
    phase: Phase
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Progressed(Event):
    """Part of a phase is done: so many of so many; `total` is 0 while unknown."""

    event: Literal["progress"] = "progress"
    done: int
    total: int = 0
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Prepared(Event):
    """Data and model are ready. Counts are over all processes; `total_steps` are optimizer steps.

    `majority` holds the scores of always answering the training split's most frequent class on
    the validation split: what a model must beat to have learned anything. The batch is the one
    used, whether configured or found to fit. `data` says where the pairs come from: source,
    revision, columns, rows, what was left out.
    """

    event: Literal["prepared"] = "prepared"
    train_examples: int
    validation_examples: int
    steps_per_epoch: int
    total_steps: int
    labels: list[str]
    parameters: int
    precision: str
    per_device_train_batch_size: int = 0
    gradient_accumulation_steps: int = 0
    fingerprint: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    majority: Numbers = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FirstBatch(Event):
    """The first training batch as the model reads it: a few of its examples, long ones in part.

    Args:
        shapes: tensor -> its sizes, such as [8, 67]: of the whole batch of the main process.
        lengths: tokens of each example before padding, in the batch's order; of the first ones.
        padded: share of the batch's tokens that are padding.
        positions: which of a row's tokens are told, from 0; all of them, or its beginning and end.
        tokens, ids, attention_mask: for each example told, its tokens at those positions.
        token_type_ids: the same; empty where the model has none.
        labels: the class of each example told.
        special: those of the tokens told that the tokenizer has added, such as [CLS].
        form: how the tokenizer puts an example together: `[CLS] sentence1 [SEP] sentence2 [SEP]`.
    """

    event: Literal["first_batch"] = "first_batch"
    shapes: dict[str, list[int]]
    lengths: list[int]
    padded: float
    positions: list[int]
    tokens: list[list[str]]
    ids: list[list[int]]
    attention_mask: list[list[int]]
    token_type_ids: list[list[int]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    form: str = ""


@dataclass(frozen=True, kw_only=True)
class Stepped(Event):
    """The optimizer has stepped; the loss is the mean since the last such event.

    Args:
        step: optimizer steps taken so far.
        epoch: epochs done, fractional.
        loss: mean training loss over all processes since the last event.
        learning_rate: the rate of the step just taken.
        grad_norm: total gradient norm before clipping; None when it was not computed.
        samples_per_second: training examples a second since the last event, all processes.
    """

    event: Literal["step"] = "step"
    step: int
    epoch: float
    loss: float
    learning_rate: float
    samples_per_second: float
    grad_norm: float | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """The validation split was scored; `best` says whether it is the best so far.

    Args:
        metrics: score -> value; `loss` in nats.
        intervals: score -> the ends of its 95% bootstrap interval, over the examples.
    """

    event: Literal["evaluated"] = "evaluated"
    step: int
    epoch: float
    metrics: Numbers
    seconds: float
    best: bool
    intervals: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BaselinesMeasured(Event):
    """What other means reach on the same validation pairs: baseline -> score -> value."""

    event: Literal["baselines"] = "baselines"
    baselines: dict[str, Numbers]


@dataclass(frozen=True, kw_only=True)
class TestSetOpened(Event):
    """Somebody opened the test set: the kept model was scored on it, once more.

    Args:
        step: optimizer steps that model had taken.
        metrics: score -> value, by the most probable class.
        threshold: the one saved with the model then; None where there was none.
        at_threshold: the scores with it.
    """

    event: Literal["test_set_opened"] = "test_set_opened"
    step: int
    metrics: Numbers
    threshold: float | None = None
    at_threshold: Numbers = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """The model of `step` lies in the run folder's `best/`, loadable by `from_pretrained`."""

    event: Literal["saved"] = "saved"
    step: int


@dataclass(frozen=True, kw_only=True)
class Resumed(Event):
    """The run goes on from its checkpoint of `step`; what came after that is done again."""

    event: Literal["resumed"] = "resumed"
    step: int


@dataclass(frozen=True, kw_only=True)
class Stopped(Event):
    """The run ended early because someone asked; the best model so far is kept, or `discarded`.

    `reason` says why, where it was no person.
    """

    event: Literal["stopped"] = "stopped"
    step: int
    seconds: float
    discarded: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """The run ended by an error: what is wrong and what to do."""

    event: Literal["failed"] = "failed"
    error: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Finished(Event):
    """The run went to its end; `seconds` counts from the first batch, evaluations included.

    `early` says that it ended before its last step, for the score had stopped rising.
    """

    event: Literal["finished"] = "finished"
    step: int
    seconds: float
    early: bool = False


AnyEvent = Annotated[
    Started | PhaseStarted | Progressed | Prepared | FirstBatch | Stepped | Evaluated
    | BaselinesMeasured | TestSetOpened | Saved | Resumed | Stopped | Failed | Finished,
    Field(discriminator="event"),
]  # fmt: skip


@cache
def _reader() -> TypeAdapter[Event]:
    return TypeAdapter(AnyEvent)


def to_json(event: Event) -> str:
    """One line of JSON without a newline; numbers that are not finite are written as null."""
    return to_json_bytes(event, inf_nan_mode="null").decode()


def from_json(line: str | bytes) -> Event | None:
    """The event of one line, or None where there is none.

    A half-written or damaged line, or an event of a later version, must not keep a person from
    seeing the rest of a run; a field of a later version is ignored.
    """
    try:
        return _reader().validate_json(line, strict=True)
    except ValidationError:
        return None
