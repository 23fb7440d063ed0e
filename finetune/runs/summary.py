"""The state of a job and of a training run: folds over their events."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, NamedTuple, Self

from finetune.config import RunConfig
from finetune.metrics import catalog
from finetune.metrics.catalog import Metric
from finetune.runs import events
from finetune.runs.events import Event, Phase
from finetune.tasks.base import SINGLE_LABEL, Task
from finetune.tasks.registry import deciding_metric, find_task

Status = Literal["none", "waiting", "running", "finished", "stopped", "failed", "interrupted"]

ENDED: frozenset[str] = frozenset({"finished", "stopped", "failed", "interrupted"})
MAX_POINTS = 2000  # measurements of a run in memory; the whole curve is in its events


class ColumnNames(NamedTuple):
    """The person's names of a dataset's columns; `sentence2` is empty for single sentences, and
    `status` if no column says that rows were rejected."""

    sentence1: str = "sentence1"
    sentence2: str = "sentence2"
    label: str = "label"
    status: str = ""

    @property
    def sentences(self) -> tuple[str, ...]:
        return self[:2] if self.sentence2 else self[:1]


@dataclass
class JobState:
    """The progress of a background job; `status` is `none` if nobody asked for it."""

    status: Status = "waiting"
    phase: str = ""
    detail: str = ""
    done: int = 0  # in the unit of the phase
    total: int = 0  # 0 while unknown
    error: str = ""  # why it failed, or why the app stopped it
    remedy: str = ""
    began: float = 0.0  # in seconds since the epoch, as `ended`; 0 if it has not
    ended: float = 0.0
    end_recorded: bool = False  # True if an event says that it has ended

    @property
    def running(self) -> bool:
        """True from the request to the end, also while it waits for a place."""
        return self.status in ("running", "waiting")

    def fold(self, stream: Iterable[Event]) -> Self:
        """Apply a stream of events; returns this state."""
        for event in stream:
            self.apply(event)
        return self

    def apply(self, event: Event) -> None:
        """Apply the next event."""
        match event:
            case events.Started() | events.PhaseStarted():
                self.status = "running"
                self.began = self.began or event.time
                if isinstance(event, events.PhaseStarted):
                    self.phase, self.detail = event.phase, event.detail
                    self.done = self.total = 0
            case events.Progressed():
                self.done, self.total = event.done, event.total
            case events.Finished():
                self.status, self.error, self.ended = "finished", "", event.time
            case events.Stopped():
                self.status, self.error, self.ended = "stopped", event.reason, event.time
            case events.Failed():
                self.status, self.ended = "failed", event.time
                self.error, self.remedy = event.error, event.remedy


class LossCurve(list[events.Stepped]):
    """The measurements of a run, evenly thinned to `MAX_POINTS`; the latest is always there."""

    _stride = 1
    _appended = 0

    def append(self, point: events.Stepped) -> None:
        if self and (self._appended - 1) % self._stride:
            self.pop()  # was there only as the latest
        super().append(point)
        self._appended += 1
        if len(self) > MAX_POINTS:
            del self[1::2]
            self._stride *= 2


@dataclass
class RunSummary(JobState):
    """The state of one training run. Moments are in seconds since the epoch."""

    started: events.Started | None = None
    prepared: events.Prepared | None = None
    first_batch: events.FirstBatch | None = None
    train: LossCurve = field(default_factory=LossCurve)
    untrained: events.Evaluated | None = None  # the model before its first step
    validation: list[events.Evaluated] = field(default_factory=list)  # from the first step on
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    opened: tuple[events.TestSetOpened, ...] = ()
    # Step -> an evaluation that was the best so far, also if a resumed run repeats it.
    bests: dict[int, events.Evaluated] = field(default_factory=dict)
    graphs_given_up: str = ""  # why its steps are not recorded as CUDA graphs any more
    saved_step: int | None = None  # of the saved model; None if there is none
    eval_every: int = 0  # steps between evaluations; 0 while the run measures what it can afford
    paused: float = 0.0  # seconds between steps, for evaluations and saving
    paused_at: float = 0.0  # when such a pause began; 0 while it trains
    reached: int = 0  # the last step of an evaluation, a model or the run's end
    trained: float = 0.0  # seconds of work before `since`
    since: float = 0.0  # when its worker began; 0 while it has none
    latest: float = 0.0  # when its worker was last heard of
    early: bool = False
    discarded: bool = False
    count: int = 0  # events so far

    @property
    def taught(self) -> bool:
        """True if the training loss counts a teacher's answers, too."""
        return self.first_batch is not None and "teacher" in self.first_batch.shapes

    @property
    def step(self) -> int:
        """Optimizer steps known to be taken."""
        return max(self.train[-1].step if self.train else 0, self.reached)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run; 0 while unknown."""
        return self.prepared.total_steps if self.prepared else 0

    @property
    def columns(self) -> ColumnNames:
        """The columns that the run was trained on; the default names while unknown."""
        return ColumnNames(**(self.prepared.data.get("columns", {}) if self.prepared else {}))

    @property
    def classes(self) -> int:
        """The number of classes; 0 while unknown."""
        return len(self.prepared.labels) if self.prepared else 0

    @property
    def paired(self) -> bool:
        """True if the model reads two sentences; True while unknown."""
        return bool(self.columns.sentence2)

    @property
    def best(self) -> events.Evaluated | None:
        """The evaluation of the saved model, or the best so far if no model is saved."""
        if self.saved_step is not None:
            return self.bests.get(self.saved_step)
        return next((scored for scored in reversed(self.validation) if scored.best), None)

    @property
    def worked(self) -> float:
        """Seconds that the run was worked on, without pauses, according to its events."""
        return self.trained + (max(0.0, self.latest - self.since) if self.since else 0.0)

    @property
    def worked_until_now(self) -> float:
        """Seconds that a run whose worker is alive was worked on, without pauses."""
        return max(self.worked, self.trained + events.now() - self.since if self.since else 0.0)

    @property
    def samples_per_second(self) -> float:
        """Median of the last twenty measurements, so that a single slow one does not change it."""
        return median([point.samples_per_second for point in self.train[-20:]] or [0.0])

    @property
    def curve(self) -> list[events.Evaluated]:
        """All evaluations, that of the untrained model first."""
        return [*([self.untrained] if self.untrained else []), *self.validation]

    @property
    def measured(self) -> list[Metric]:
        """The metrics that its evaluations have, the loss left out; its task's own first."""
        latest = self.curve[-1].metrics if self.curve else {}
        return list(dict.fromkeys((*self.task.metrics, *catalog.named(latest))))

    @property
    def task(self) -> Task:
        """The run's task; classes until it is known."""
        return find_task(self.prepared.task if self.prepared else SINGLE_LABEL)

    @property
    def evaluation_seconds(self) -> float:
        """Seconds that training pauses for an evaluation and for saving after it."""
        if self.validation and self.paused:
            return self.paused / len(self.validation)
        return self.curve[-1].seconds if self.curve else 0.0

    def resolved_settings(self, config: RunConfig) -> dict[str, Any]:
        """Return what automatic settings came to, as far as it is known."""
        if (prepared := self.prepared) is None:
            return {}
        epochs = round(self.total_steps / prepared.steps_per_epoch) if config.max_steps < 0 else 0
        resolved = {
            "num_train_epochs": epochs,
            "learning_rate": prepared.learning_rate,
            "per_device_train_batch_size": prepared.per_device_train_batch_size,
        }
        found: dict[str, Any] = {
            name: value for name, value in resolved.items() if value and not getattr(config, name)
        }
        if (decides := deciding_metric(config, self.task)) != config.metric_for_best_model:
            found["metric_for_best_model"] = decides
        return found

    def resolved(self, config: RunConfig) -> RunConfig:
        """Return a configuration with these settings filled in."""
        return config.changed(**self.resolved_settings(config))

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at the present speed, including evaluations; None if unknown."""
        prepared, rate = self.prepared, self.samples_per_second
        if len(self.train) < 2 or not (rate and prepared and prepared.steps_per_epoch):
            return None
        steps = max(0, self.total_steps - self.step)
        training = steps * prepared.train_examples / prepared.steps_per_epoch / rate
        if not self.eval_every:  # evaluations will take a tenth at most
            return training + min(training / 10, 10 * self.evaluation_seconds)
        ahead = -(-self.total_steps // self.eval_every) - self.step // self.eval_every
        return training + (ahead if steps else 0) * self.evaluation_seconds

    def apply(self, event: Event) -> None:
        worked = self.worked  # until the event before
        super().apply(event)
        self.count += 1
        # Its worker may be long dead when these are written.
        if not isinstance(event, events.TestSetOpened | events.KeptModelScored):
            self.latest = event.time
        match event:
            case events.Stepped():
                self.train.append(event)
                self.phase, self.detail = Phase.TRAIN, ""
            case events.Started():
                self.started, self.phase, self.graphs_given_up = event, Phase.START, ""
                self.trained, self.since, self.paused_at = worked, event.time, 0.0
            case events.Prepared():
                if self.prepared is None or self.prepared.fingerprint != event.fingerprint:
                    self.baselines = {}  # a resumed run's were measured on the same pairs
                self.prepared = event
                if event.majority:
                    self.baselines = self.baselines | {self.task.constant: event.majority}
            case events.FirstBatch():
                self.first_batch = event
            case events.PhaseStarted(phase=Phase.TRAIN) if self.paused_at:
                self.paused += event.time - self.paused_at
                self.paused_at = 0.0
            case events.PhaseStarted(phase=Phase.EVALUATE | Phase.SAVE_CHECKPOINT):
                self.paused_at = self.paused_at or event.time
            case events.GraphsGivenUp():
                self.graphs_given_up = event.reason
            case events.EvaluationsPlanned():
                self.eval_every = event.interval
            case events.Evaluated() if not event.step:
                self.untrained = event
            case events.Evaluated():
                while self.validation and self.validation[-1].step >= event.step:
                    self.validation.pop()  # its worker was killed before it wrote `Resumed`
                self.validation.append(event)
                if event.best:
                    self.bests[event.step] = event
                self.reached = max(self.reached, event.step)
            case events.KeptModelScored() if event.step in self.bests:
                before = self.bests[event.step]
                changed = {"metrics": event.metrics, "intervals": event.intervals}
                self.bests[event.step] = again = before.model_copy(update=changed)
                self.validation = [again if each is before else each for each in self.validation]
            case events.BaselinesMeasured():
                self.baselines = self.baselines | event.baselines
            case events.TestSetOpened():
                self.opened += (event,)
            case events.Saved():
                self.saved_step, self.reached = event.step, max(self.reached, event.step)
            case events.Resumed():
                self._resume(event)
                self.trained, self.since = worked, event.time
            case events.Failed():
                self.trained, self.since = self.worked, 0.0
            case events.Stopped() | events.Finished():
                self.reached = max(self.reached, event.step)
                self.trained, self.since = event.seconds or worked, 0.0
                self.early = isinstance(event, events.Finished) and event.early
                self.discarded = isinstance(event, events.Stopped) and event.discarded
                if self.discarded:
                    self.saved_step = None

    def _resume(self, event: events.Resumed) -> None:
        """Forget everything after the checkpoint, because it is repeated."""
        self.paused_at = 0.0
        self.train = LossCurve(point for point in self.train if point.step <= event.step)
        kept = [scored for scored in self.validation if scored.step <= event.step]
        self.paused *= len(kept) / max(1, len(self.validation))
        self.validation = kept
        best_steps = [scored.step for scored in self.validation if scored.best]
        self.saved_step = best_steps[-1] if best_steps else None
        self.reached = event.step
        self.status, self.error, self.remedy, self.ended = "running", "", "", 0.0
        self.phase, self.detail, self.discarded = Phase.START, "", False
