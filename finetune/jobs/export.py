"""Export jobs: a finished run's model as ONNX in `<run>/exports/onnx/files/`, also in int8."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finetune import disk
from finetune.errors import StoreError
from finetune.hub import downloads
from finetune.inference import decision_rule, quantized
from finetune.inference.quantized import QuantizationReport
from finetune.jobs import service
from finetune.jobs.background import BackgroundJob, Report
from finetune.jobs.evaluate import check_has_ended
from finetune.messages import message as _
from finetune.runs.events import Phase
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState

_MODEL = "files/model.onnx"
_AGAIN = "int8"  # id of the job that measures int8 anew; the files stay meanwhile


@dataclass
class ExportState(JobState):
    """Progress of an export."""

    file: Path | None = None  # the ONNX model; None until made, and if the run has a newer model
    size: int = 0  # bytes of all files
    busy: bool = False  # True if int8 was not measured, because a run was training
    int8: QuantizationReport | None = None  # measured effect of int8
    int8_serves: bool = False  # True if Predict uses int8 on this machine


class ExportJob(BackgroundJob):
    """The export of a run's model, or the measuring of int8 for an earlier one (`_AGAIN`)."""

    name, folders, limit = "export", "*/exports/*", 2
    phase, id_in_run = Phase.EXPORT, "onnx"

    def start(self, store: RunStore) -> None:
        """Export the model, and measure int8 if no run has the machine; int8 alone, if the model
        was exported before. Raises a `JobError` unless the run has ended with a model."""
        check_has_ended(self.run)
        state = self.state()
        again = state.file is not None and not state.busy
        busy = service.active_run(store.everyone) is not None
        job = self if state.file is None else self.of(self.run, _AGAIN)
        job.begin(store, {"model": self._model(), "again": again, "busy": busy})

    def state(self) -> ExportState:
        """Return the export's state. Its status is `none` if the run has a newer model or rule."""
        state = ExportState(**vars(super().state()))
        file, best, model = self.folder / _MODEL, self.run.best, self._model()
        if state.status != "finished" or self.id == _AGAIN:
            return state
        if self.request.get("model") != model or not file.is_file():
            return ExportState("none")
        state.file, state.busy = file, self.request["busy"]
        again = self.of(self.run, _AGAIN)
        if again.request.get("model") == model:
            measured, busy = again.state(), again.request["busy"]
            state.busy = busy if measured.status == "finished" else state.busy
            for name in ("status", "phase", "detail", "error", "remedy"):
                setattr(state, name, getattr(measured, name))
        state.size = sum(path.stat().st_size for path in file.parent.iterdir() if path.is_file())
        state.int8, state.int8_serves = quantized.read_report(best), quantized.serves(best)
        return state

    def _model(self) -> dict[str, Any]:
        """The exported model: its step, and its decision rule."""
        rule = asdict(decision_rule.read_rule(self.run.best))
        return {"step": self.run.state().saved_step, "rule": json.loads(json.dumps(rule))}

    def zipped(self) -> Iterator[bytes]:
        """Iterate over the exported files as a zip. Raises a `StoreError` if there are none."""
        file, id = self.state().file, self.run.id
        if file is None:
            remedy = _("Press Make ONNX and int8 on the Publish tab.")
            raise StoreError("Run {id} has no ONNX file.", remedy, id=id)
        return downloads.folder_zip(file.parent, downloads.file_name(self.run.title()))

    def work(self, report: Report) -> None:
        from finetune.evaluation import quantization
        from finetune.hub import onnx

        run, file = self.run, self.of(self.run).folder / _MODEL
        step = run.best_step()
        if self.id != _AGAIN:
            file.parent.mkdir(exist_ok=True)
            onnx.export_onnx(run.best, file)
        if not self.request["busy"]:
            quantization.quantize_model(run, file, step, again=self.request["again"])
        if quantized.is_enabled(run.best):
            with disk.replacing(file.parent / quantized.MODEL) as new:
                shutil.copy2(run.best / quantized.MODEL, new)
        for path in run.best.iterdir():  # the tokenizer and the classes
            if path.suffix in (".json", ".txt", ".model"):
                shutil.copy2(path, file.parent / path.name)
