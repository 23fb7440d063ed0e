"""A run's events as text: lines for a log, a progress bar for a terminal."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

from finetune.runs import events
from finetune.runs.events import Event, Phase

if TYPE_CHECKING:
    from tqdm import tqdm


class TerminalBar:
    """A tqdm bar of steps, with the evaluations printed above it."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def __call__(self, event: Event) -> None:
        from tqdm import tqdm

        if isinstance(event, events.Prepared):
            tqdm.write(describe_event(event), file=sys.stderr)
            width = shutil.get_terminal_size().columns
            self._bar = tqdm(total=event.total_steps, unit="step", ncols=min(100, width))
        elif isinstance(event, events.Stepped) and self._bar is not None:
            self._bar.set_postfix(loss=f"{event.loss:.4f}", refresh=False)
            self._bar.update(event.step - self._bar.n)
        elif text := describe_event(event):
            tqdm.write(text, file=sys.stderr)
        ended = isinstance(event, (events.Finished, events.Stopped, events.Failed))
        if ended and self._bar is not None:
            self._bar.close()


def print_event(event: Event) -> None:
    """One line an event, for the log that a page shows."""
    if text := describe_event(event):
        print(text, flush=True)


def describe_event(event: Event) -> str:
    """Lines for a person; empty for what is not worth a line."""
    match event:
        case events.Started():
            return f"on {event.device}, {event.processes} process(es)"
        case events.PhaseStarted():
            phase = event.phase.replace("_", " ")
            return "" if event.phase == Phase.TRAIN else f"{phase} {event.detail}".strip()
        case events.Prepared():
            counts = (
                f"{event.train_examples} training and {event.validation_examples} validation "
                f"pairs, {event.total_steps} steps, {event.parameters:,} parameters"
            )
            return "\n".join([counts, *_data_warnings(event.data)])
        case events.Stepped():
            return f"step {event.step}: loss {event.loss:.4f}, lr {event.learning_rate:.3g}"
        case events.Evaluated():
            best = " (best so far)" if event.best else ""
            return f"step {event.step}: validation {_scores(event.metrics)}{best}"
        case events.BaselinesMeasured():
            baselines = event.baselines.items()
            return "\n".join(f"baseline {name}: {_scores(scores)}" for name, scores in baselines)
        case events.Saved():
            return f"model of step {event.step} saved"
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


def _scores(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items() if name != "examples")


def _data_warnings(origin: dict[str, Any]) -> list[str]:
    """What is wrong with the pairs of a run (`Pairs.origin`), a line each."""
    lines = []
    for split, count in origin.get("unreadable", {}).items():
        lines.append(f"warning: {count:,} rows of {split} could not be read and are left out")
    for split, reasons in origin.get("left_out", {}).items():
        lines += [f"left out of {split}: {count:,} ({why})" for why, count in reasons.items()]
    for split, count in origin.get("leaked", {}).items():
        leaked = f"{count:,} training pairs stand in {split} too, and its score will flatter the"
        lines.append(f"warning: {leaked} model; --drop_leaked leaves them out")
    if lines:
        lines.append("python -m finetune check with the same options shows the rows")
    return lines
