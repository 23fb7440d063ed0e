"""What happens in a run, typed; one JSON line each.

The loop yields these, the store appends them, the page folds them. Nothing here knows torch,
a file or a page. Times are seconds since the epoch (`time.time()`), durations are seconds.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from types import UnionType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import orjson

Phase = Literal["start", "download", "tokenise", "train", "evaluate", "save", "read", "examine"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """The common part: when it happened.

    Args:
        time: seconds since the epoch.
    """

    kind: ClassVar[str] = "event"
    time: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """A worker process began: where, and with which versions of what."""

    kind: ClassVar[str] = "started"
    device: str
    processes: int = 1
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PhaseStarted(Event):
    """A phase began; `detail` says what of (a checkpoint's name, a split)."""

    kind: ClassVar[str] = "entered"
    phase: Phase
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Progressed(Event):
    """Part of a phase is done: so many of so many; `total` is 0 while unknown."""

    kind: ClassVar[str] = "progressed"
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

    kind: ClassVar[str] = "prepared"
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
    majority: dict[str, float] = field(default_factory=dict)


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

    kind: ClassVar[str] = "peeked"
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

    kind: ClassVar[str] = "stepped"
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

    kind: ClassVar[str] = "evaluated"
    step: int
    epoch: float
    metrics: dict[str, float]
    seconds: float
    best: bool
    intervals: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BaselinesMeasured(Event):
    """What other means reach on the same validation pairs: baseline -> score -> value."""

    kind: ClassVar[str] = "compared"
    baselines: dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class TestSetOpened(Event):
    """Somebody opened the test set: the kept model was scored on it, once more.

    Args:
        step: optimizer steps that model had taken.
        metrics: score -> value, by the most probable class.
        threshold: the one saved with the model then; None where there was none.
        at_threshold: the scores with it.
    """

    kind: ClassVar[str] = "opened"
    step: int
    metrics: dict[str, float]
    threshold: float | None = None
    at_threshold: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """The model of `step` lies in the run folder's `best/`, loadable by `from_pretrained`."""

    kind: ClassVar[str] = "saved"
    step: int


@dataclass(frozen=True, kw_only=True)
class Resumed(Event):
    """The run goes on from its checkpoint of `step`; what came after that is done again."""

    kind: ClassVar[str] = "resumed"
    step: int


@dataclass(frozen=True, kw_only=True)
class Stopped(Event):
    """The run ended early because someone asked; the best model so far is kept, or `discarded`.

    `reason` says why, where it was no person.
    """

    kind: ClassVar[str] = "stopped"
    step: int
    seconds: float
    discarded: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """The run ended by an error: what is wrong and what to do."""

    kind: ClassVar[str] = "failed"
    error: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Finished(Event):
    """The run went to its end; `seconds` counts from the first batch, evaluations included.

    `early` says that it ended before its last step, for the score had stopped rising.
    """

    kind: ClassVar[str] = "finished"
    step: int
    seconds: float
    early: bool = False


KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        Started,
        PhaseStarted,
        Progressed,
        Prepared,
        FirstBatch,
        Stepped,
        Evaluated,
        BaselinesMeasured,
        TestSetOpened,
        Saved,
        Resumed,
        Stopped,
        Failed,
        Finished,
    )
}


def to_json(event: Event) -> str:
    """One line of JSON without a newline. Numbers JSON has no word for are written as null."""
    record = {"event": event.kind, **dataclasses.asdict(event)}
    return json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)


def from_json(line: str | bytes) -> Event | None:
    """The event of one line, or None for a line that is none.

    A half-written line, a kind of a later version or a field it added must not keep a person
    from seeing the rest of a run, so they are skipped rather than raised; nor must a damaged line,
    whose values are not what is declared here.
    """
    try:
        record = orjson.loads(line)
        kind = record.pop("event")
        return KINDS[kind](**_fitting(kind, record))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _fitting(kind: str, record: dict[str, Any]) -> dict[str, Any]:
    """The values of an event's fields, each of its declared type.

    Raises:
        TypeError: where one is not.
    """
    unknown, within = _look(kind, tuple(record), tuple(map(type, record.values())))
    for name in unknown:
        del record[name]
    for name, read in within:
        record[name] = read(record[name])
    return record


@lru_cache(maxsize=256)
def _look(
    kind: str, names: tuple[str, ...], types: tuple[type, ...]
) -> tuple[list[str], list[tuple[str, Callable[[Any], Any]]]]:
    """Which fields are of a later version, and which hold something that is to be read in turn.

    Kept, for the hundred thousand lines of a long run are nearly all of one kind and its types.

    Raises:
        TypeError: where a value is not of the declared type.
    """
    declared = get_type_hints(KINDS[kind])
    shapes = {one.name: _shape(declared[one.name]) for one in dataclasses.fields(KINDS[kind])}
    for name, found in zip(names, types, strict=True):
        if name in shapes and found not in shapes[name][0]:
            raise TypeError(name)
    within = [(name, shapes[name][1]) for name in names if name in shapes]
    return [name for name in names if name not in shapes], [
        (name, read) for name, read in within if read is not None
    ]


# The types a value may have in JSON, and how what is in it is read; None where nothing is.
_Shape = tuple[frozenset[type], Callable[[Any], Any] | None]


def _shape(declared: Any) -> _Shape:
    outer, inner = get_origin(declared), get_args(declared)
    if declared is float:
        return frozenset({float, int}), None
    if outer is Literal:
        return frozenset({str}), None
    if outer is UnionType:
        return frozenset(kind for one in inner for kind in _shape(one)[0]), None
    if outer is list:
        return frozenset({list}), lambda value: [_read(inner[0], one) for one in value]
    if outer is dict:
        return frozenset({dict}), lambda value: {
            key: _read(inner[1], one) for key, one in value.items() if not _no_number(inner[1], one)
        }
    return frozenset({declared}), None


def _no_number(declared: Any, value: Any) -> bool:
    """Whether it stands for a number JSON has no word for, such as a loss that is infinite."""
    return declared is float and value is None


def _read(declared: Any, value: Any) -> Any:
    if declared is Any:
        return value
    kinds, within = _shape(declared)
    if type(value) not in kinds:
        raise TypeError(declared)
    return value if within is None else within(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
