"""Training events as text: a progress bar for a terminal, lines for a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from finetune.data import check_report
from finetune.jobs import scheduler
from finetune.metrics.catalog import metric_name
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary

_POLL = 0.2  # seconds between reads of a run's events


class EventLog:
    """Prints one line an event, for the log that a page shows."""

    _classes = 0

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Prepared):
            self._classes = len(event.labels)
        if text := describe_event(event, self._classes):
            self._print(text)

    def _print(self, text: str) -> None:
        print(text, flush=True)


class TerminalBar(EventLog):
    """A tqdm bar of steps, with the evaluations printed above it."""

    _bar: tqdm[Any] | None = None

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Stepped) and self._bar is not None:
            self._bar.set_postfix(loss=f"{event.loss:.4f}", refresh=False)
            self._bar.update(event.step - self._bar.n)
            return
        super().__call__(event)
        if isinstance(event, events.Prepared):
            self._bar = tqdm(total=event.total_steps, unit="step")
        elif isinstance(event, events.Finished | events.Stopped | events.Failed) and self._bar:
            self._bar.close()

    def _print(self, text: str) -> None:
        tqdm.write(text, file=sys.stderr)


def follow(store: RunStore, run: Run, progress: bool) -> RunSummary:
    """Show a run's events until it ends. Returns its summary."""
    show: Callable[[events.Event], object] = TerminalBar() if progress else lambda event: None
    offset = 0
    while True:
        summary = run.state()
        news, offset = run.tail(offset)
        for event in news:
            show(event)
        if summary.status in ENDED:
            return summary
        if summary.status == "waiting":
            scheduler.dispatch_queue(store)
        time.sleep(_POLL)


def describe_event(event: events.Event, classes: int = 0) -> str:
    """Describe an event in lines for a person; empty if it is not worth a line. F1 is named by the
    number of `classes`, 0 while unknown."""
    match event:
        case events.Started():
            return f"on {event.device}, {event.processes} process(es)"
        case events.PhaseStarted() if event.phase != events.Phase.TRAIN:
            return f"{event.phase.replace('_', ' ')} {event.detail}".strip()
        case events.Prepared():
            lines = [f"reads: {check_report.describe_columns(event.data.get('columns', {}))}"]
            lines += event.data.get("reading", [])
            lines.append(
                f"{event.train_examples} training and {event.validation_examples} validation "
                f"rows, {event.total_steps} steps, {event.parameters:,} parameters, batches of "
                f"{event.per_device_train_batch_size}, learning rate {event.learning_rate:.3g}"
            )
            lines += [event.head.text] if event.head.text else []
            for split, count in event.data.get("unreadable", {}).items():
                lines.append(
                    f"warning: {count:,} rows of {split} could not be read and are left out"
                )
            for split, count in event.data.get("leaked", {}).items():
                lines.append(
                    f"warning: {count:,} training rows stand in {split} too, and its score will "
                    "flatter the model; --drop_leaked leaves them out"
                )
            if event.data.get("positive_assumed"):
                lines.append(
                    f"warning: F1 is of {event.data['positive_label']!r}, for nothing says which "
                    "class is the positive one; --positive_label does"
                )
            return "\n".join(lines)
        case events.Stepped():
            return f"step {event.step}: loss {event.loss:.4f}, lr {event.learning_rate:.3g}"
        case events.Evaluated():
            best = " (best so far)" if event.best else " (before training)" * (not event.step)
            return f"step {event.step}: validation {_scores(event.metrics, classes)}{best}"
        case events.KeptModelScored():
            return f"step {event.step}: the kept model {_scores(event.metrics, classes)}"
        case events.BaselinesMeasured():
            baselines = event.baselines.items()
            return "\n".join(
                f"baseline {name}: {_scores(scores, classes)}" for name, scores in baselines
            )
        case events.GraphsGivenUp():
            return f"step {event.step}: going on without CUDA graphs: {event.reason}"
        case events.Resumed():
            return f"going on from step {event.step}"
        case events.Stopped():
            text = f"stopped at step {event.step}" + ", model discarded" * event.discarded
            return f"{text} {event.reason}".strip()
        case events.Failed():
            return f"failed: {event.error} {event.remedy}".strip()
        case events.Finished():
            early = ", early: the score had stopped rising," if event.early else ""
            return f"finished {event.step} steps{early} in {event.seconds:.1f} s"
    return ""


def _scores(scores: dict[str, float], classes: int) -> str:
    return ", ".join(
        f"{metric_name(name, classes)} {value:.4f}"
        for name, value in scores.items()
        if name != "examples"
    )
