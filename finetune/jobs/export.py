"""Export jobs: a finished run's model as ONNX in `<run>/exports/onnx/files/`, also in int8."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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


@dataclass
class ExportState(JobState):
    """Progress of an export."""

    file: Path | None = None  # the ONNX model; None until made, and if the run has a newer model
    size: int = 0  # bytes of all files
    busy: bool = False  # True if int8 was not measured, because a run was training
    int8: QuantizationReport | None = None  # measured effect of int8
    int8_serves: bool = False  # True if Predict uses int8 on this machine


class ExportJob(BackgroundJob):
    """The export of a run's model."""

    name, folders, limit = "export", "*/exports/*", 2
    phase, id_in_run = Phase.EXPORT, "onnx"

    def start(self, store: RunStore) -> None:
        """Export the model, and measure int8 if no run has the machine; again, if the model was
        exported before. Raises a `JobError` unless the run has ended with a model."""
        check_has_ended(self.run)
        state = self.state()
        again = state.file is not None and not state.busy
        busy = service.active_run(store.everyone) is not None
        self.begin(store, {"model": self._model(), "again": again, "busy": busy})

    def state(self) -> ExportState:
        """Return the export's state. Its status is `none` if the run has a newer model or rule."""
        state = ExportState(**vars(super().state()))
        file, best = self.folder / _MODEL, self.run.best
        if state.status != "finished":
            return state
        if self.request.get("model") != self._model() or not file.is_file():
            return ExportState("none")
        state.file, state.busy = file, self.request["busy"]
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

        run, file = self.run, self.folder / _MODEL
        file.parent.mkdir(exist_ok=True)
        step = run.best_step()
        onnx.export_onnx(run.best, file)
        if not self.request["busy"]:
            quantization.quantize_model(run, file, step, again=self.request["again"])
        if quantized.is_enabled(run.best):
            shutil.copy2(run.best / quantized.MODEL, file.parent)
        for path in run.best.iterdir():  # the tokenizer and the classes
            if path.suffix in (".json", ".txt", ".model"):
                shutil.copy2(path, file.parent / path.name)
