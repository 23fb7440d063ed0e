"""Jobs of the Publish tab: a run's model pushed to the Hub with its card and perhaps a demo, and
exported as ONNX, also in int8.

The folder `<run>/pushes/latest` gets `progress.json` and, once that is confirmed, `result.json`.
The token reaches the worker through its standard input: no argument, file or environment has it.
`<run>/exports/onnx/files/` gets the exported files.
"""

import json
import shutil
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from finetune.disk import read_as, replacing, write_atomically
from finetune.errors import Cancelled, FinetuneError, PublishError, StoreError
from finetune.hub import downloads, publish
from finetune.hub.publish import Pushed, PushPlan, PushProgress, PushRequest
from finetune.inference import decision_rule, quantized
from finetune.jobs import service
from finetune.jobs.background import BackgroundJob, Report
from finetune.jobs.evaluate import check_has_ended
from finetune.messages import encode
from finetune.messages import message as _
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState

_MODEL = "files/model.onnx"
_AGAIN = "int8"  # id of the job that measures int8 anew; the files stay meanwhile


@dataclass
class PushState(JobState):
    """Progress of a push."""

    progress: PushProgress = field(default_factory=PushProgress)
    cancelling: bool = False  # True if a person has cancelled it
    pushed: Pushed | None = None  # what the Hub confirmed; None until then


class Approvals:
    """Records what a Check has shown to each visitor: repositories that a push changes, prices of
    demo Spaces. A restart of the app clears it."""

    def __init__(self) -> None:
        self._shown: set[tuple[str, str, str]] = set()  # visitor, run, repository or price

    def add(self, store: RunStore, run: Run, plan: PushPlan) -> None:
        """Record what a check has shown; a repository only if it already holds something."""
        self._shown |= {(store.visitor.name, run.id, text) for text in plan.to_approve}

    def of(self, store: RunStore, run: Run) -> list[str]:
        """Return what a visitor was shown of one run, under any of their names."""
        names = store.visitor.names or ("",)
        return [text for name, run_id, text in self._shown if name in names and run_id == run.id]


def _interruption(progress: PushProgress) -> tuple[str, str]:
    """Say how far a push came whose worker was killed, and what to do."""
    full = progress.full
    if progress.phase in (Phase.COMMITTED, Phase.VERIFY, Phase.CREATE_DEMO):
        error = _("It ended unexpectedly after it was committed to {full}.", full=full)
        return error, _("Push again to load it back and compare.")
    if progress.phase == Phase.COMMIT:
        error = _("It ended unexpectedly; the commit to {full} may have arrived.", full=full)
        return error, _("Look into the repository, and push again if it has not arrived.")
    return _("It ended unexpectedly; nothing was committed."), _("Push again.")


class PushJob(BackgroundJob):
    """The latest push of a run."""

    name, folders, limit = "push", "*/pushes/*", 4
    phase = Phase.CHECK_HUB
    has_limit = False  # a commit may have been sent, so that only the Hub's answer ends a push

    def start(
        self, store: RunStore, request: PushRequest, token: str | None, approvals: Approvals
    ) -> None:
        """Begin to push. Updates a repository that holds something if a check has shown it to the
        visitor for this run, or an earlier push of theirs put the run there. A demo Space is billed
        if a check has shown the price."""
        former = self.state()
        approved = {*approvals.of(store, self.run), *self.request.get("approved", [])}
        if former.pushed is not None:
            approved.add(former.progress.full)
        content = {"push": asdict(request), "approved": sorted(approved)}
        self.begin(store, content, stdin=f"{token or ''}\n".encode())

    def state(self) -> PushState:
        """Return the push's state. Its status is `none` if there was none."""
        state = PushState(
            **vars(super().state()),
            progress=read_as(PushProgress, self.folder / "progress.json") or PushProgress(),
            pushed=read_as(Pushed, self.folder / "result.json"),
        )
        if state.status == "interrupted":  # its worker was killed
            state.error, state.remedy = _interruption(state.progress)
        state.cancelling = state.running and self.stop_requested()
        return state

    def cancel(self) -> None:
        """Ask the push to end before its commit; afterwards it cannot."""
        if self.state().running:
            self.request_stop()

    def forget_failed(self) -> None:
        """Remove a failed push before somebody checks again if pushing is possible."""
        if self.state().status in ("failed", "stopped", "interrupted"):
            shutil.rmtree(self.folder, ignore_errors=True)

    def work(self, report: Report) -> events.Event | None:
        token = sys.stdin.readline().strip() or None

        def write(name: str, content: PushProgress | Pushed) -> None:
            write_atomically(self.folder / name, json.dumps(encode(asdict(content))))

        try:
            pushed = publish.push_run(
                self.run,
                PushRequest(**self.request["push"]),
                token,
                lambda progress: write("progress.json", progress),
                self.stop_requested,
                self.request["approved"],
            )
            write("result.json", pushed)
        except Cancelled as error:
            return events.Stopped(step=0, seconds=0.0, reason=error.text)
        except FinetuneError:
            raise
        except Exception as error:  # a library's message might quote a header
            traceback.print_tb(error.__traceback__)
            raise PublishError(
                "{name} was raised, which is our fault.",
                "The push's console.log says where.",
                name=type(error).__name__,
            ) from None
        return None


@dataclass
class ExportState(JobState):
    """Progress of an export."""

    file: Path | None = None  # the ONNX model; None until made, and if the run has a newer model
    size: int = 0  # bytes of all files
    busy: bool = False  # True if int8 was not measured, because a run was training
    int8: quantized.QuantizationReport | None = None  # measured effect of int8
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
            with replacing(file.parent / Path(quantized.MODEL).name) as new:
                shutil.copy2(run.best / quantized.MODEL, new)
        for path in run.best.iterdir():  # the tokenizer and the classes
            if path.suffix in (".json", ".txt", ".model"):
                shutil.copy2(path, file.parent / path.name)
