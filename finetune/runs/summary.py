"""What is known of a run: a fold over its events.

Knows no file and no process: whether the worker still lives is `jobs`' to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from finetune.runs import events
from finetune.runs.events import Event

Status = Literal["waiting", "running", "finished", "stopped", "failed", "interrupted"]

ENDED: frozenset[str] = frozenset({"finished", "stopped", "failed", "interrupted"})


KEPT, RECENT = 2000, 20
MAJORITY = "majority class"


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
class RunSummary:
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

    status: Status = "waiting"
    phase: str = ""
    detail: str = ""
    started: events.Started | None = None
    prepared: events.Prepared | None = None
    peeked: events.FirstBatch | None = None
    train: LossCurve = field(default_factory=LossCurve)
    validation: list[events.Evaluated] = field(default_factory=list)
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    opened: tuple[events.TestSetOpened, ...] = ()
    bests: dict[int, events.Evaluated] = field(default_factory=dict)
    saved_step: int | None = None
    reached: int = 0
    error: str = ""
    remedy: str = ""
    began: float = 0.0
    ended: float = 0.0
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


def apply_event(summary: RunSummary, event: Event) -> RunSummary:
    """The summary after one more event."""
    # Somebody may open the test set long after the worker's death.
    latest = summary.latest if isinstance(event, events.TestSetOpened) else event.time
    now = replace(summary, count=summary.count + 1, latest=latest)
    match event:
        case events.Started():
            return replace(
                now, status="running", phase="start", started=event,
                began=summary.began or event.time, trained=summary.worked, since=event.time,
            )  # fmt: skip
        case events.PhaseStarted():
            return replace(now, phase=event.phase, detail=event.detail)
        case events.Prepared():
            majority = {MAJORITY: event.majority} if event.majority else {}
            before = summary.prepared  # resumed: what was measured on the same pairs still holds
            known = before is not None and before.fingerprint == event.fingerprint
            return replace(
                now, prepared=event, baselines=(summary.baselines if known else {}) | majority
            )
        case events.FirstBatch():
            return replace(now, peeked=event)
        case events.Stepped():
            now.train.append(event)
            return now if now.phase == "train" else replace(now, phase="train", detail="")
        case events.Evaluated():
            while now.validation and now.validation[-1].step >= event.step:
                now.validation.pop()  # a worker was killed before it could keep that it was done
            now.validation.append(event)
            if event.best:
                now.bests[event.step] = event
            return replace(now, reached=max(now.reached, event.step))
        case events.BaselinesMeasured():
            return replace(now, baselines=summary.baselines | event.baselines)
        case events.TestSetOpened():
            return replace(now, opened=(*summary.opened, event))
        case events.Resumed():
            validation = [one for one in summary.validation if one.step <= event.step]
            kept = [one.step for one in validation if one.best]
            return replace(
                now,
                train=LossCurve(one for one in summary.train if one.step <= event.step),
                validation=validation,
                saved_step=kept[-1] if kept else None,
                reached=event.step,
                status="running",
                error="",
                remedy="",
                ended=0.0,
                trained=summary.worked,
                since=event.time,
                discarded=False,
            )
        case events.Saved():
            return replace(now, saved_step=event.step, reached=max(now.reached, event.step))
        case events.Failed():
            return replace(
                now, status="failed", error=event.error, remedy=event.remedy, ended=event.time,
                trained=now.worked, since=0.0,
            )  # fmt: skip
        case events.Stopped() | events.Finished():
            return replace(
                now,
                status="stopped" if isinstance(event, events.Stopped) else "finished",
                ended=event.time,
                reached=max(now.reached, event.step),
                trained=event.seconds or summary.worked,
                since=0.0,
                early=isinstance(event, events.Finished) and event.early,
                discarded=isinstance(event, events.Stopped) and event.discarded,
                error=event.reason if isinstance(event, events.Stopped) else "",
                saved_step=None
                if isinstance(event, events.Stopped) and event.discarded
                else summary.saved_step,
            )
    return now


def fold_events(stream: Iterable[Event], start: RunSummary | None = None) -> RunSummary:
    """`apply` over a stream of events.

    Measurements in a row are taken together: a long run consists of little else.
    """
    summary, steps = start or RunSummary(), 0
    for event in stream:
        if isinstance(event, events.Stepped) and summary.phase == "train":
            summary.train.append(event)
            steps += 1
            continue
        if steps:
            summary, steps = _after(summary, steps), 0
        summary = apply_event(summary, event)
    return _after(summary, steps) if steps else summary


def _after(summary: RunSummary, steps: int) -> RunSummary:
    """The summary after so many measurements that its curve has already."""
    count = summary.count + steps
    return replace(summary, count=count, latest=summary.train.recent[-1].time)
