"""Export jobs: a finished run's model as ONNX, in `<run>/exports/onnx/files/`, and in int8 too."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from finetune.errors import StoreError
from finetune.hub import downloads
from finetune.inference import quantized
from finetune.inference.quantized import QuantizationReport
from finetune.jobs import background
from finetune.jobs.evaluate import check_has_ended
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState, RunSummary

_MODEL = "files/model.onnx"


@dataclass
class ExportState(JobState):
    """How far an export is."""

    file: Path | None = None  # the ONNX model; None until it is made, and for a newer model
    size: int = 0  # bytes of all files
    int8: QuantizationReport | None = None  # what int8 was measured to change
    int8_serves: bool = False  # whether Predict answers in it on this machine


def start_export(store: RunStore, run: Run, summary: RunSummary) -> None:
    """Export the run's model."""
    check_has_ended(run)
    background.start_job(store, _folder(run), "export", {"step": summary.saved_step})


def export_state(run: Run, summary: RunSummary) -> ExportState:
    """How far it is; status `none` where the run has a newer model than was exported."""
    job = _folder(run)
    state, file = ExportState(**vars(job.state())), job.folder / _MODEL
    if state.status != "finished":
        return state
    if job.request.get("step") != summary.saved_step or not file.is_file():
        return ExportState("none")
    size = sum(path.stat().st_size for path in file.parent.iterdir() if path.is_file())
    return ExportState(
        "finished",
        file=file,
        size=size,
        int8=quantized.read_report(run.best),
        int8_serves=quantized.serves(run.best),
    )


def export_zip(run: Run, summary: RunSummary) -> Iterator[bytes]:
    """The exported files as a zip, in pieces; a `StoreError` where there are none."""
    file = export_state(run, summary).file
    if file is None:
        raise StoreError(
            "Run {id} has no ONNX file.", "Press Make ONNX and int8 on the Publish tab.", id=run.id
        )
    return downloads.folder_zip(file.parent, run.id)


def _folder(run: Run) -> JobFolder:
    return JobFolder(run.folder / "exports" / "onnx")


def export_job(job: JobFolder) -> int:
    """Export in the job's own process; the exit status."""
    run, file = Run(job.folder.parent.parent), job.folder / _MODEL

    def work() -> None:
        from finetune.evaluation import quantization
        from finetune.hub import onnx

        file.parent.mkdir(exist_ok=True)
        step = run.kept_step()
        onnx.export_onnx(run.best, file)
        quantization.quantize_model(run, file, step)
        if quantized.is_kept(run.best):
            shutil.copy2(run.best / quantized.MODEL, file.parent)
        for path in run.best.iterdir():  # the tokenizer and the classes
            if path.suffix in (".json", ".txt", ".model"):
                shutil.copy2(path, file.parent / path.name)

    return background.carry_out(job, Phase.EXPORT, work)
