"""A finished run's model as ONNX, made in a process of its own.

    <run folder>/exports/onnx/                  the process' folder, as a run's: events, log, job
    <run folder>/exports/onnx/files/model.onnx  what it made, with what reads its input beside it

Free of torch, for the page; the export itself is `onnx`' business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from finetune.errors import JobError, StoreError
from finetune.hub import downloads
from finetune.jobs import background
from finetune.jobs.background import JobKind
from finetune.runs.store import Run, RunStore
from finetune.runs.summary import ENDED, RunSummary

_KIND = JobKind("finetune.jobs.export", "*/exports/*", 2, "models are being exported")


@dataclass(frozen=True)
class ExportState:
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


def export_folder(run: Run) -> Run:
    """Where the process keeps its events and log."""
    return Run(run.folder / "exports" / "onnx")


def onnx_file(run: Run) -> Path:
    """Where the model is, or would be."""
    return export_folder(run).folder / "files" / "model.onnx"


def start_export(store: RunStore, run: Run, summary: RunSummary) -> None:
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
    background.start_job(store, export_folder(run), _KIND)


def export_state(run: Run, summary: RunSummary) -> ExportState:
    """How far it is, from its folder."""
    found = background.job_progress(export_folder(run))
    file = onnx_file(run)
    if found.status != "finished":
        return ExportState(found.running, error=found.error, remedy=found.remedy)
    if found.step != (summary.saved_step or 0) or not file.is_file():
        return ExportState()
    size = sum(path.stat().st_size for path in file.parent.iterdir() if path.is_file())
    return ExportState(file=file, bytes=size)


def export_zip(run: Run, summary: RunSummary) -> Iterator[bytes]:
    """What was made as a zip, in pieces.

    Raises:
        StoreError: when nothing was, or the run has a newer model.
    """
    file = export_state(run, summary).file
    if file is None:
        raise StoreError(f"Run {run.id} has no ONNX file.", "Press Make ONNX on the Publish tab.")
    return downloads.folder_zip(file.parent, run.id)
