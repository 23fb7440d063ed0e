"""The state of a job and of a training run: folds over their events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from finetune.phases import Phase
from finetune.runs import events
from finetune.runs.events import Event

Status = Literal["none", "waiting", "running", "finished", "stopped", "failed", "interrupted"]

ENDED: frozenset[str] = frozenset({"finished", "stopped", "failed", "interrupted"})

KEPT, RECENT = 2000, 20
MAJORITY = "majority class"


@dataclass(frozen=True)
class JobState:
    """How far a background job is: a fold over its events.

    Args:
        status: `none` where nobody asked for the job.
        phase, detail: what it does now, and with what.
        done, total: of whatever the phase counts; `total` 0 while unknown.
        error, remedy: why it failed, or why it was stopped where no person asked for it.
        began, ended: seconds since the epoch; 0 before.
    """

    status: Status = "waiting"
    phase: str = ""
    detail: str = ""
    done: int = 0
    total: int = 0
    error: str = ""
    remedy: str = ""
    began: float = 0.0
    ended: float = 0.0

    @property
    def running(self) -> bool:
        return self.status == "running"

    def apply(self, event: Event) -> Self:
        """The state after one more event."""
        match event:
            case events.Started():
                return replace(self, status="running", began=self.began or event.time)
            case events.PhaseStarted():
                return replace(
                    self, status="running", phase=event.phase, detail=event.detail,
                    done=0, total=0, began=self.began or event.time,
                )  # fmt: skip
            case events.Progressed():
                return replace(self, done=event.done, total=event.total)
            case events.Finished():
                return replace(self, status="finished", error="", ended=event.time)
            case events.Stopped():
                return replace(self, status="stopped", error=event.reason, ended=event.time)
            case events.Failed():
                return replace(
                    self, status="failed", error=event.error, remedy=event.remedy,
                    ended=event.time,
                )  # fmt: skip
        return self


class LossCurve:
    """The measurements of a run: all of them while they are few, else evenly thinned ones.

    A run of a million steps is held in the memory of 2,000; the whole curve is in its events.
    The latest is always among them.
    """

    def __init__(self, points: Iterable[events.Stepped] = ()) -> None:
        self._points: list[events.Stepped] = []
        self._stride = 1
        self._seen = 0
        self.recent: deque[events.Stepped] = deque(maxlen=RECENT)
        for point in points:
            self.append(point)

    def append(self, point: events.Stepped) -> None:
        """Add the next measurement."""
        if self._seen % self._stride == 0:
            self._points.append(point)
            if len(self._points) > KEPT:
                self._points = self._points[::2]
                self._stride *= 2
        self._seen += 1
        self.recent.append(point)

    def _all(self) -> list[events.Stepped]:
        if not self.recent or self._points[-1] is self.recent[-1]:
            return self._points
        return [*self._points, self.recent[-1]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LossCurve) and self._all() == other._all()

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[events.Stepped]:
        return iter(self._all())

    def __getitem__(self, index: int) -> events.Stepped:
        return self._all()[index]


@dataclass(frozen=True)
class RunSummary(JobState):
    """The state of one run after some of its events.

    `train` and `validation` grow with the run and are shared between successive summaries
    (appended, not copied), so that folding n events costs n, not n squared. `trained` are the
    seconds it was worked on before `since`, when its worker took it up; `since` is 0 while it has
    none. Where it ended by itself `trained` is as a clock counts them that nobody sets. `latest` is
    when its worker was last heard of. `bests` are the evaluations that were the best so far, by
    step, those among them that a resumed run does again. `opened` are the times somebody looked at
    the test set. `reached` is the last step that an evaluation, a model or the run's end was told
    of: losses are told every few steps only.
    """

    started: events.Started | None = None
    prepared: events.Prepared | None = None
    first_batch: events.FirstBatch | None = None
    train: LossCurve = field(default_factory=LossCurve)
    validation: list[events.Evaluated] = field(default_factory=list)
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    opened: tuple[events.TestSetOpened, ...] = ()
    bests: dict[int, events.Evaluated] = field(default_factory=dict)
    saved_step: int | None = None
    reached: int = 0
    trained: float = 0.0
    since: float = 0.0
    latest: float = 0.0
    early: bool = False
    discarded: bool = False
    count: int = 0

    @property
    def step(self) -> int:
        """Optimizer steps known to be taken."""
        return max(self.train[-1].step if self.train else 0, self.reached)

    @property
    def total_steps(self) -> int:
        """Optimizer steps the whole run takes; 0 while unknown."""
        return self.prepared.total_steps if self.prepared else 0

    @property
    def paired(self) -> bool:
        """Whether the model reads two sentences; True while unknown."""
        columns = self.prepared.data.get("columns", {}) if self.prepared else {}
        return bool(columns.get("sentence2", "sentence2"))

    @property
    def best(self) -> events.Evaluated | None:
        """The evaluation of the model kept in `best/`, None where it was not evaluated; the best so
        far where no model is kept."""
        if self.saved_step is not None:
            return self.bests.get(self.saved_step)
        return next((one for one in reversed(self.validation) if one.best), None)

    @property
    def worked(self) -> float:
        """Seconds it was worked on, as far as its events tell."""
        return self.worked_by(self.latest)

    def worked_by(self, moment: float) -> float:
        """Seconds it was worked on when it was `moment`; the time it lay dead is not counted, nor
        what a clock that is set back takes away."""
        return self.trained + (max(0.0, moment - self.since) if self.since else 0.0)

    @property
    def samples_per_second(self) -> float:
        """Median of the last twenty measurements: one slow interval does not move it."""
        rates = sorted(one.samples_per_second for one in self.train.recent)
        return rates[len(rates) // 2] if rates else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Training time still ahead at the present rate, evaluations aside; None while unknown.

        From the measured speed and not from the events' times: a clock may be set meanwhile.
        """
        known, rate = self.prepared, self.samples_per_second
        if known is None or len(self.train.recent) < 2 or not rate or not known.steps_per_epoch:
            return None
        return max(0, self.total_steps - self.step) * self._examples_a_step / rate

    @property
    def _examples_a_step(self) -> float:
        return self.prepared.train_examples / self.prepared.steps_per_epoch if self.prepared else 0

    def apply(self, event: Event) -> RunSummary:
        # Somebody may open the test set long after the worker's death.
        latest = self.latest if isinstance(event, events.TestSetOpened) else event.time
        now = replace(super().apply(event), count=self.count + 1, latest=latest)
        match event:
            case events.Started():
                return replace(
                    now, phase=Phase.START, started=event, trained=self.worked, since=event.time
                )
            case events.Prepared():
                majority = {MAJORITY: event.majority} if event.majority else {}
                before = self.prepared  # resumed: what was measured on the same pairs still holds
                same = before is not None and before.fingerprint == event.fingerprint
                return replace(
                    now, prepared=event, baselines=(self.baselines if same else {}) | majority
                )
            case events.FirstBatch():
                return replace(now, first_batch=event)
            case events.Stepped():
                now.train.append(event)
                return (
                    now if now.phase == Phase.TRAIN else replace(now, phase=Phase.TRAIN, detail="")
                )
            case events.Evaluated():
                while now.validation and now.validation[-1].step >= event.step:
                    now.validation.pop()  # a worker was killed before it could note it was done
                now.validation.append(event)
                if event.best:
                    now.bests[event.step] = event
                return replace(now, reached=max(now.reached, event.step))
            case events.BaselinesMeasured():
                return replace(now, baselines=self.baselines | event.baselines)
            case events.TestSetOpened():
                return replace(now, opened=(*self.opened, event))
            case events.Resumed():
                return self._resumed(now, event)
            case events.Saved():
                return replace(now, saved_step=event.step, reached=max(now.reached, event.step))
            case events.Failed():
                return replace(now, trained=now.worked, since=0.0)
            case events.Stopped() | events.Finished():
                discarded = isinstance(event, events.Stopped) and event.discarded
                return replace(
                    now,
                    reached=max(now.reached, event.step),
                    trained=event.seconds or self.worked,
                    since=0.0,
                    early=isinstance(event, events.Finished) and event.early,
                    discarded=discarded,
                    saved_step=None if discarded else self.saved_step,
                )
        return now

    def _resumed(self, now: RunSummary, event: events.Resumed) -> RunSummary:
        """What came after the checkpoint is done again."""
        validation = [scored for scored in self.validation if scored.step <= event.step]
        best_steps = [scored.step for scored in validation if scored.best]
        return replace(
            now,
            train=LossCurve(point for point in self.train if point.step <= event.step),
            validation=validation,
            saved_step=best_steps[-1] if best_steps else None,
            reached=event.step,
            status="running",
            error="",
            remedy="",
            ended=0.0,
            trained=self.worked,
            since=event.time,
            discarded=False,
        )


def fold_events(stream: Iterable[Event], start: RunSummary | None = None) -> RunSummary:
    """The state of a training run after a stream of events.

    Measurements in a row are taken together: a long run consists of little else.
    """
    summary, steps = start or RunSummary(), 0
    for event in stream:
        if isinstance(event, events.Stepped) and summary.phase == Phase.TRAIN:
            summary.train.append(event)
            steps += 1
            continue
        if steps:
            summary, steps = _after(summary, steps), 0
        summary = summary.apply(event)
    return _after(summary, steps) if steps else summary


def _after(summary: RunSummary, steps: int) -> RunSummary:
    """The summary after so many measurements that its curve has already."""
    count = summary.count + steps
    return replace(summary, count=count, latest=summary.train.recent[-1].time)


def fold_job(stream: Iterable[Event]) -> JobState:
    """The state of a job other than a training run after a stream of events."""
    state = JobState()
    for event in stream:
        state = state.apply(event)
    return state
