"""What is known of a run: a fold over its events.

Knows no file and no process: whether the worker still lives is `jobs`' to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal

from finetune import events
from finetune.events import Event

Status = Literal["waiting", "running", "finished", "stopped", "failed", "interrupted"]

ENDED: frozenset[str] = frozenset({"finished", "stopped", "failed", "interrupted"})


@dataclass(frozen=True)
class Summary:
    """The state of one run after some of its events.

    `train` and `validation` grow with the run and are shared between successive summaries
    (appended, not copied), so that folding n events costs n, not n squared.
    """

    status: Status = "waiting"
    phase: str = ""
    detail: str = ""
    started: events.Started | None = None
    prepared: events.Prepared | None = None
    train: list[events.Stepped] = field(default_factory=list)
    validation: list[events.Evaluated] = field(default_factory=list)
    saved_step: int | None = None
    error: str = ""
    remedy: str = ""
    began: float = 0.0
    ended: float = 0.0
    early: bool = False
    count: int = 0

    @property
    def step(self) -> int:
        """Optimizer steps known to be taken."""
        return self.train[-1].step if self.train else 0

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
        """The evaluation of the model kept in `best/`."""
        return next((one for one in reversed(self.validation) if one.best), None)

    @property
    def samples_per_second(self) -> float:
        """Median of the last twenty measurements: one slow interval does not move it."""
        rates = sorted(one.samples_per_second for one in self.train[-20:])
        return rates[len(rates) // 2] if rates else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Training time still ahead at the present rate, evaluations aside; None while unknown."""
        if self.prepared is None or len(self.train) < 2:
            return None
        first, last = self.train[0], self.train[-1]
        seconds_per_step = (last.time - first.time) / max(1, last.step - first.step)
        return max(0.0, (self.total_steps - last.step) * seconds_per_step)


def apply(summary: Summary, event: Event) -> Summary:
    """The summary after one more event."""
    now = replace(summary, count=summary.count + 1)
    match event:
        case events.Started():
            return replace(
                now, status="running", phase="start", started=event,
                began=summary.began or event.time,
            )  # fmt: skip
        case events.Entered():
            return replace(now, phase=event.phase, detail=event.detail)
        case events.Prepared():
            return replace(now, prepared=event)
        case events.Stepped():
            now.train.append(event)
            return now if now.phase == "train" else replace(now, phase="train", detail="")
        case events.Evaluated():
            now.validation.append(event)
            return now
        case events.Resumed():
            validation = [one for one in summary.validation if one.step <= event.step]
            kept = [one.step for one in validation if one.best]
            return replace(
                now,
                train=[one for one in summary.train if one.step <= event.step],
                validation=validation,
                saved_step=kept[-1] if kept else None,
                status="running",
                error="",
                remedy="",
                ended=0.0,
            )
        case events.Saved():
            return replace(now, saved_step=event.step)
        case events.Failed():
            return replace(
                now, status="failed", error=event.error, remedy=event.remedy, ended=event.time
            )
        case events.Stopped() | events.Finished():
            return replace(
                now,
                status="stopped" if isinstance(event, events.Stopped) else "finished",
                ended=event.time,
                early=isinstance(event, events.Finished) and event.early,
            )
    return now


def fold(stream: Iterable[Event], start: Summary | None = None) -> Summary:
    """`apply` over a stream of events."""
    return reduce(apply, stream, start or Summary())
