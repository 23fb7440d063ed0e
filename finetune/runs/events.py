"""The typed events of a job, one line of JSON each.

The training loop yields them, the job's folder keeps them, the page folds them. Times are seconds
since the epoch, durations are seconds.
"""

from __future__ import annotations

import time
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal, Self, Union

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from finetune import disk
from finetune.environment import logs
from finetune.errors import FinetuneError, StoreError, some
from finetune.messages import Text, message
from finetune.tasks.base import SINGLE_LABEL, Target


class Phase(StrEnum):
    """A part of a job's work. Its event may add the name of a dataset, a checkpoint or a split."""

    text: str  # for the page

    def __new__(cls, value: str, text: str = "") -> Phase:
        phase = str.__new__(cls, value)
        phase._value_, phase.text = value, text
        return phase

    SUBMIT = "submit", message("Sending the run")  # to another engine
    LOOK = "look", message("No answer; checking whether it has begun")
    WAIT = "wait", message("Waiting for the machine")
    FETCH = "fetch", message("Fetching what was saved")
    START = "start", message("loading PyTorch")
    DOWNLOAD = "download", message("Loading")  # from the Hub if need be
    TOKENIZE = "tokenize", message("Preparing")
    TRAIN = "train", message("Training")
    EVALUATE = "evaluate", message("Evaluating")
    EVALUATE_UNTRAINED = "evaluate_untrained", message("Scoring the model before training")
    BASELINES = "baselines", message("Measuring the baselines")
    BOTH_ORDERS = "both_orders", message("Evaluating")
    SAVE_MODEL = "save_model", message("Saving the best model")
    SAVE_UNSCORED_MODEL = "save_unscored_model", message("Saving the model as it is")
    SAVE_CHECKPOINT = "save_checkpoint", message("Saving, to resume from")
    READ_ROWS = "read_rows"  # of a split
    COUNT_ROWS = "count_rows", message("counting classes, duplicates and leaks")
    MEASURE_LENGTHS = "measure_lengths", message("measuring the lengths")
    PROBE = "probe", message("Comparing")  # a checkpoint with others
    PREDICT = "predict"
    EXPORT = "export"
    CHECK_HUB = "check_hub", message("checking")  # the account and the repository
    READ_FILES = "read_files", message("reading the files")
    CREATE_REPOSITORY = "create_repository", message("making the repository")
    UPLOAD = "upload", message("sending the files")
    COMMIT = "commit", message("committing")
    COMMITTED = "committed", message("committed")
    VERIFY = "verify", message("loading it back to compare")
    CREATE_DEMO = "create_demo", message("making the demo Space")


def _without_nulls(scores: Any) -> Any:
    if not isinstance(scores, dict):
        return scores
    return {name: score for name, score in scores.items() if score is not None}


# Score -> value. A number that is not finite is null in JSON, and skipped when read.
Scores = Annotated[dict[str, float], BeforeValidator(_without_nulls)]


_ahead = 0.0  # seconds by which the time of day was most ahead of the monotonic clock


def now() -> float:
    """Return seconds since the epoch; in one process never fewer, though a clock is set back."""
    global _ahead
    _ahead = max(_ahead, time.time() - time.monotonic())
    return _ahead + time.monotonic()


class Event(BaseModel):
    """The base of all events."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    time: float = Field(default_factory=now)


class Started(Event):
    """A worker process began; `versions` are those of its libraries."""

    event: Literal["started"] = "started"
    device: str
    processes: int = 1
    versions: dict[str, str] = {}


class PhaseStarted(Event):
    """A phase began; `detail` names its checkpoint, dataset or split."""

    event: Literal["phase"] = "phase"
    phase: Phase
    detail: str = ""


class Progressed(Event):
    """Progress of a phase; `total` is 0 while unknown."""

    event: Literal["progress"] = "progress"
    done: int
    total: int = 0
    detail: str = ""


class Head(BaseModel):
    """The output layer at first: `scale * (row of the checkpoint) + shift` for each output."""

    layer: str = ""  # its name in the model
    rows: list[int] = []  # by output, its row in the checkpoint; empty if the layer was new
    known: list[str] = []  # the checkpoint's classes, if it was a classifier whose rows could do
    scale: list[float] = []  # by output, a factor of its row; empty for 1
    shift: list[float] = []  # by output, added to its bias; empty for 0

    @property
    def text(self) -> str:
        """The fate of the checkpoint's own output layer; empty if it had none that could do."""
        if not self.known:
            return ""
        if self.shift and self.rows:
            return message(
                "The checkpoint has a single output, as rerankers have: its output layer is kept, "
                "stretched to the scale of these scores, so training begins with its order of them."
            )
        if self.scale and self.rows:
            return message(
                "The checkpoint has a single output, as rerankers have: it is kept as the log-odds "
                "of the positive class, so training begins with the checkpoint's own answers."
            )
        if len(self.known) == 1 and self.rows:
            return message("The checkpoint answers with a score too: its output layer is kept.")
        if not self.rows:
            return message(
                "The checkpoint is a classifier of other classes ({known}), so its output layer "
                "was replaced by a new one.",
                known=some(self.known),
            )
        if len(self.rows) < len(self.known):
            return message(
                "The checkpoint is a classifier of these classes and others ({known}): the part of "
                "its output layer for these classes is kept.",
                known=some(self.known),
            )
        if self.rows != sorted(self.rows):
            return message(
                "The checkpoint is a classifier of the same classes in another order: its output "
                "layer is kept, its rows in the order of these classes."
            )
        return message(
            "The checkpoint is a classifier of the same classes: its output layer is kept."
        )


class _PairFacts(BaseModel, extra="allow", strict=True):
    source: str = ""
    revision: str | None = None
    columns: dict[Literal["sentence1", "sentence2", "label", "status"], str] = {}
    positive_label: str = ""
    positive_assumed: bool = False
    low: float = 0.0
    high: float = 0.0
    decimal: Literal[".", ","] = "."
    rows: dict[str, int] = {}  # by split, as in the fields below
    splits: dict[str, str] = {}  # the source's name of each
    left_out: dict[str, dict[str, int]] = {}  # rows by reason
    unreadable: dict[str, int] = {}
    leaked: dict[str, int] = {}


class Prepared(Event):
    """Data and model are ready; steps are the optimizer's."""

    event: Literal["prepared"] = "prepared"
    train_examples: int
    validation_examples: int
    steps_per_epoch: PositiveInt
    total_steps: NonNegativeInt
    labels: list[str]  # names of classes or labels; none for a score
    task: str = SINGLE_LABEL
    parameters: int
    precision: str
    per_device_train_batch_size: int = 0
    gradient_accumulation_steps: int = 0
    learning_rate: float = 0.0  # its peak
    fingerprint: str = ""  # of the pairs
    head: Head = Head()
    # Source, revision, columns, rows and what is left out.
    data: dict[str, Any] = {}
    majority: Scores = {}  # on validation, of always answering training's most frequent class

    @model_validator(mode="after")
    def _check(self) -> Self:
        _PairFacts.model_validate(self.data)
        if not self.labels and self.task == SINGLE_LABEL:
            raise ValueError("there are no classes")
        return self

    @property
    def target(self) -> Target:
        """The target that the model predicts."""
        name = self.data.get("positive_label")
        default = 0 if len(self.labels) == 1 else 1
        positive = self.labels.index(name) if name in self.labels else default
        low, high = (self.data.get(end) or 0.0 for end in ("low", "high"))
        decimal = self.data.get("decimal", ".")
        return Target(tuple(self.labels), positive, self.task, low, high, decimal)


class FirstBatch(Event):
    """The first training batch as the model reads it: its first examples, shortened if long."""

    event: Literal["first_batch"] = "first_batch"
    shapes: dict[str, list[int]]  # tensor -> its sizes, such as [8, 67]
    lengths: list[int]  # tokens of the first examples before padding
    padded: float  # share of the batch's tokens that are padding
    positions: list[int]  # of the tokens that are shown, from 0
    tokens: list[list[str]]  # of shape (examples shown, positions), as the three below
    ids: list[list[int]]
    attention_mask: list[list[int]]
    token_type_ids: list[list[int]] = []
    labels: list[str] = []
    special: list[str] = []  # tokens that the tokenizer has added, such as [CLS]
    form: str = ""  # of an example, such as `[CLS] sentence1 [SEP] sentence2 [SEP]`


class Stepped(Event):
    """The optimizer has stepped; loss and speed are means of all processes since the last one."""

    event: Literal["step"] = "step"
    step: int
    epoch: float
    loss: float
    learning_rate: float
    samples_per_second: float
    grad_norm: float | None = None  # before clipping; None if gradients are not clipped
    busy: float | None = None  # share of the GPU's time or of the cores in use; None if unknown
    memory: int | None = None  # bytes in use on the device


class EvaluationsPlanned(Event):
    """The validation split is scored every `interval` steps, and after the last."""

    event: Literal["evaluations_planned"] = "evaluations_planned"
    interval: int


class Evaluated(Event):
    """The validation split was scored; `intervals` are ends of 95% bootstrap intervals. Step 0 is
    the model before training, which is never the best."""

    event: Literal["evaluated"] = "evaluated"
    step: int
    epoch: float
    metrics: Scores
    seconds: float
    best: bool
    intervals: dict[str, list[float]] = {}


class KeptModelScored(Event):
    """The kept model, which was evaluated in the precision of training, was scored on the
    validation split again in that of its answers."""

    event: Literal["kept_model_scored"] = "kept_model_scored"
    step: int
    metrics: Scores
    intervals: dict[str, list[float]] = {}


class BaselinesMeasured(Event):
    """Scores of the baselines on the same validation pairs: baseline -> score -> value."""

    event: Literal["baselines"] = "baselines"
    baselines: dict[str, Scores]


class TestSetOpened(Event):
    """The kept model was scored on the test set: by the most probable class, and `at_threshold`."""

    event: Literal["test_set_opened"] = "test_set_opened"
    step: int
    metrics: Scores
    threshold: float | None = None
    at_threshold: Scores = {}


class Saved(Event):
    """The model of `step` was saved in the run folder's `best/`, loadable by `from_pretrained`."""

    event: Literal["saved"] = "saved"
    step: int


class GraphsGivenUp(Event):
    """Steps are not recorded as CUDA graphs any more. The run goes on as it would without."""

    event: Literal["graphs_given_up"] = "graphs_given_up"
    step: int
    reason: str


class Resumed(Event):
    """The run continues from its checkpoint of `step`; later steps are repeated."""

    event: Literal["resumed"] = "resumed"
    step: int


class Stopped(Event):
    """A person, or the app for a `reason`, stopped the job. A `discarded` run keeps no model."""

    event: Literal["stopped"] = "stopped"
    step: int
    seconds: float
    discarded: bool = False
    reason: Text = ""


class Failed(Event):
    """The job ended with an error."""

    event: Literal["failed"] = "failed"
    error: Text
    remedy: Text = ""


class Finished(Event):
    """The job completed. A run ends `early` if its score has stopped rising."""

    event: Literal["finished"] = "finished"
    step: int
    seconds: float
    early: bool = False


@cache
def _reader() -> TypeAdapter[Event]:
    kinds: Any = Union[*Event.__subclasses__()]
    return TypeAdapter(Annotated[kinds, Field(discriminator="event")])


def from_json(line: str | bytes) -> Event | None:
    """Parse the event in a line; None if it is damaged or of a later version."""
    try:
        return _reader().validate_json(line, strict=True)
    except ValidationError:
        return None


def failure_event(
    error: Exception, files: str, remedy: str, full_remedy: str = disk.ELSEWHERE
) -> Failed:
    """Make the event of an error, and log the traceback if the error is unexpected. If the disk is
    full, `files` cannot be written, and `full_remedy` ends the remedy."""
    if not isinstance(error, FinetuneError) and disk.is_full(error):
        error = disk.failure(files, error, StoreError, full_remedy)
    if isinstance(error, FinetuneError):
        return Failed(error=error.fact, remedy=error.remedy)
    logs.print_traceback()
    first_line = (logs.unsigned(str(error)).strip().splitlines() or [""])[0]
    return Failed(error=f"{type(error).__name__}: {first_line[:300]}", remedy=remedy)
