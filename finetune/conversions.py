"""A finished run's model as ONNX, made in a process of its own.

    <run folder>/exports/onnx/                  the process' folder, as a run's: events, log, job
    <run folder>/exports/onnx/files/model.onnx  what it made, with what reads its input beside it

Free of torch, for the page; the export itself is `onnx`' business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from finetune import archive as archives
from finetune import errands
from finetune.errands import Kind
from finetune.errors import JobError, StoreError
from finetune.store import Run, RunStore
from finetune.summary import ENDED, Summary

_KIND = Kind("finetune.convert", "*/exports/*", 2, "models are being exported")


@dataclass(frozen=True)
class State:
    """How far an export is.

    Args:
        running: whether its process lives.
        file: what it made; None until it has, and when the run has a newer model.
        bytes: of all files.
        error, remedy: why it failed; empty while it has not.
    """

    running: bool = False
    file: Path | None = None
    bytes: int = 0
    error: str = ""
    remedy: str = ""


def folder(run: Run) -> Run:
    """Where the process keeps its events and log."""
    return Run(run.folder / "exports" / "onnx")


def made(run: Run) -> Path:
    """Where the model is, or would be."""
    return folder(run).folder / "files" / "model.onnx"


def start(store: RunStore, run: Run, summary: Summary) -> None:
    """Export, unless that is being done already.

    Raises:
        JobError: when the run has no model or has not ended, when too many are being exported, or
            no process can be started.
        StoreError: when the folder cannot be made.
    """
    if summary.status not in ENDED:
        raise JobError("This run is still training.", "Wait for its end, or stop it.")
    if not run.has_model():
        raise JobError("This run has no model.", "Resume it, or choose another run.")
    errands.start(store, folder(run), _KIND)


def state(run: Run, summary: Summary) -> State:
    """How far it is, from its folder."""
    found = errands.progress(folder(run))
    file = made(run)
    if found.status != "finished":
        return State(found.running, error=found.error, remedy=found.remedy)
    if found.step != (summary.saved_step or 0) or not file.is_file():
        return State()
    size = sum(path.stat().st_size for path in file.parent.iterdir() if path.is_file())
    return State(file=file, bytes=size)


def archive(run: Run, summary: Summary) -> Iterator[bytes]:
    """What was made as a zip, in pieces.

    Raises:
        StoreError: when nothing was, or the run has a newer model.
    """
    file = state(run, summary).file
    if file is None:
        raise StoreError(f"Run {run.id} has no ONNX file.", "Press Make ONNX on the Publish tab.")
    return archives.folder_zip(file.parent, run.id)
