"""Prediction jobs: every row of a file, by a run's model.

The folder `batches/<id>` has the file as it was brought, `input.csv`, and gets `result.csv`, its
rows to show in `shown.json`, and the added columns, counts and scores in `report.json`; also
`review.csv`, the rows that the model is unsure of, if a bound kept with it decides that. Whether
the model still holds is in `monitoring.json`: counts, and random rows to label.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from finetune import disk, messages, uploads
from finetune.config import RunConfig
from finetune.data import csv_cells
from finetune.environment import child_process
from finetune.environment.confinement import Confinement
from finetune.errors import DataError, FinetuneError, JobError
from finetune.evaluation import corrections, file_shift
from finetune.evaluation.file_shift import Aggregates, Monitoring, Reference
from finetune.inference.file_request import PredictionRequest, check_columns
from finetune.inference.result_files import PREDICTION, SUFFIXES
from finetune.jobs import workers
from finetune.jobs.background import BackgroundJob, Report
from finetune.messages import message as _
from finetune.runs.events import Event, Phase
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState

if TYPE_CHECKING:
    from finetune.inference.result_files import ShownRow

KEPT = 5  # kept for each visitor; older ones make room


@dataclass
class PredictionState(JobState):
    """Progress of a prediction job."""

    rows: list[ShownRow] = field(default_factory=list)  # rows of the result to show
    report: dict[str, Any] = field(default_factory=dict)  # figures; empty until the job ends
    to_label: list[ShownRow] = field(default_factory=list)  # random rows, for a person to label

    @property
    def answer_column(self) -> str:
        """The column of the result with the answers."""
        return next(iter(self.report.get("columns", [])), PREDICTION)


class PredictionJob(BackgroundJob):
    """The prediction of one file."""

    name, folders, limit = "predict", "batches/*", 2
    phase = Phase.PREDICT
    missing = _("There is no such prediction."), _("Start one.")

    def prediction_request(self) -> PredictionRequest:
        """The job's request."""
        return PredictionRequest(**self.request)

    @property
    def input(self) -> Path:
        """The file to predict."""
        return next(self.folder.glob("input.*"))

    @property
    def result(self) -> Path | None:
        """The file with the predictions; None if it does not exist."""
        return next(iter(self.folder.glob("result.*")), None)

    @property
    def review(self) -> Path | None:
        """The rows of the result that the model is unsure of; None unless a bound decides that."""
        return next(iter(self.folder.glob("review.*")), None)

    def state(self) -> PredictionState:
        """Return the job's state, with its first rows and figures."""
        return PredictionState(
            **vars(super().state()),
            rows=disk.read_json(self.folder / "shown.json").get("rows", []),
            report=disk.read_json(self.folder / "report.json"),
            to_label=disk.read_json(self.folder / "monitoring.json").get("to_label", []),
        )

    def cancel(self) -> None:
        """Cancel the job and keep the rows already predicted."""
        self.request_stop()
        workers.end_worker(self, 10, 20)

    def work(self, report: Report) -> Event | None:
        os.environ["HF_HUB_OFFLINE"] = "1"  # the model is on this disk; no Hub is needed
        from finetune.evaluation import monitoring
        from finetune.inference.files import PredictionStopped, predict_file
        from finetune.inference.result_files import result_suffix
        from finetune.inference.scorer import Scorer

        began = time.monotonic()

        def on_progress(done: int, total: int) -> None:
            report(Phase.PREDICT, "", done, total)
            if self.stop_requested():
                raise PredictionStopped

        def write(name: str, content: dict[str, Any]) -> None:
            text = json.dumps(content, ensure_ascii=False, default=str)
            disk.write_atomically(self.folder / name, text)

        request = self.prediction_request()
        run = Run(self.folder.parent.parent / request.run)
        scorer, sample = Scorer.of_run(run), monitoring.Sample(run)
        ending = request.ending or result_suffix(self.input)
        figures, complete = predict_file(
            run,
            request,
            self.input,
            self.folder / f"result{ending}",
            on_progress,
            lambda rows: write("shown.json", {"rows": rows}),
            scorer=scorer,
            review=self.folder / f"review{ending}",
            on_window=sample.add,
        )
        seconds = time.monotonic() - began
        write("report.json", figures | {"seconds": seconds})
        if not complete:
            return self.stopped(seconds)
        try:
            seen = monitoring.look(run, scorer, request, sample.rows())
        except FinetuneError as error:
            told = {"reason": error.fact, "remedy": error.remedy}
            seen = {name: messages.encode(text, True) for name, text in told.items()}
        write("monitoring.json", seen)
        return None


def start_prediction(store: RunStore, request: PredictionRequest, path: Path) -> PredictionJob:
    """Predict a copy of a file."""
    run = store.get(request.run)
    if request.ending not in ("", *SUFFIXES):
        raise DataError(
            "The result cannot be {ending}.", "Choose one of {formats}.",
            ending=request.ending, formats=", ".join(SUFFIXES),
        )  # fmt: skip
    if not run.has_model():
        raise JobError("This run has no model.", "Choose a run that was evaluated at least once.")
    request = check_columns(request, path, run.state().columns, run.config())

    def admit() -> None:
        """Remove the visitor's oldest files until this one fits."""
        size, limit = path.stat().st_size, store.visitor.policy.limits.upload_bytes
        upload_bytes = store.uploads.make_room(size)
        oldest_first = PredictionJob.newest(store)[::-1]
        for index, old in enumerate(oldest_first):
            full = upload_bytes + store.batch_input_bytes() + size > limit
            crowded = len(oldest_first) - index >= KEPT
            if (crowded or full) and not old.state().running:
                shutil.rmtree(old.folder, ignore_errors=True)

    job = PredictionJob(store.root / "batches" / secrets.token_urlsafe(15))
    files = {f"input{uploads.file_suffix(request.file)}": path}
    job.begin(store, asdict(request), files, admit)
    return job


def correct_answer(job: PredictionJob, row: int, label: str) -> None:
    """Set a shown row's right class, or restore the answer. DataError for another row or class."""
    state = job.state()
    answer = _answer(state, state.rows, state.answer_column, row, label)
    corrections.write_correction(job, row, label, answer)


def label_row(job: PredictionJob, row: int, label: str) -> None:
    """Set a person's label of a random row, or take it back if it is "". One that differs from the
    answer corrects it. DataError for another row or class."""
    state = job.state()
    answer = _answer(state, state.to_label, PREDICTION, row, label, "")
    corrections.write_correction(job, row, label, "", corrections.LABELS)
    corrections.write_correction(job, row, label or answer, answer)


def _answer(
    state: PredictionState, rows: list[ShownRow], column: str, row: int, label: str, *others: str
) -> str:
    """Return the answer to a row. DataError for no such row, or a label not among the known."""
    cells = next((shown["cells"] for shown in rows if shown["row"] == row), {})
    if column not in cells or label not in (*others, *state.report.get("choices", [])):
        raise DataError("There is no such row or class.", "Open the file's result again.")
    return str(cells[column])


def monitored(job: PredictionJob) -> Monitoring | DataError | None:
    """Say whether the model still holds on a file, with the labels given by now, or why that cannot
    be said; None until the job has ended."""
    seen = disk.read_json(job.folder / "monitoring.json")
    if "reference" not in seen:
        told = [messages.decode(seen[name]) for name in ("reason", "remedy") if name in seen]
        return DataError(*told) if told else None
    reference, counts = Reference(**seen["reference"]), Aggregates(**seen["counts"])
    judged = TypeAdapter(Monitoring).validate_python(seen["judged"])
    given = corrections.read_corrections(job, corrections.LABELS)
    rows = [row for row in seen["to_label"] if row["row"] in given]
    if len(rows) < file_shift.FEWEST_LABELS:
        return judged
    labels = [given[row["row"]] for row in rows]
    answers = [row["cells"][PREDICTION] for row in rows]
    confidence = [row["confidence"] for row in rows]
    return file_shift.with_labels(judged, reference, counts, labels, answers, confidence)


def corrected_run(store: RunStore, job: PredictionJob) -> RunConfig:
    """Return the configuration of the run that predicted a file, on its pairs and those of the file
    whose answers were corrected. DataError if none was, or the run or the pairs are gone."""
    sentences, labels = zip(*_corrected_rows(job).values(), strict=True)
    run = store.get(job.prediction_request().run)
    return corrections.additions_upload(store, run, sentences, labels)


def corrected_csv(store: RunStore, job: PredictionJob) -> str:
    """Return the corrected rows as CSV, under the names of the run's columns, with each one's
    number in the file from 1. DataError as in `corrected_run`."""
    own = store.get(job.prediction_request().run).state().columns
    rows = [[row + 1, *texts, label] for row, (texts, label) in _corrected_rows(job).items()]
    return csv_cells.to_csv([["row", *own.sentences, own.label], *rows])


def _corrected_rows(job: PredictionJob) -> dict[int, tuple[Sequence[str], str]]:
    """Return the texts and the label of each row whose answer was corrected, from 0."""
    corrected = corrections.read_corrections(job)
    if not corrected:
        raise DataError("No answer was corrected yet.", "Choose another answer for a row first.")
    request, file = job.prediction_request(), str(job.input)
    sentences = child_process.call(
        "finetune.inference.files:sentences_at", file, asdict(request), list(corrected),
        about=request.file, confinement=Confinement((file,)),
    )  # fmt: skip
    return {
        row: (texts, label)
        for (row, label), texts in zip(corrected.items(), sentences, strict=True)
    }
