"""The part of the Predict tab for whole files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from finetune.data.table import ReadOptions
from finetune.errors import DataError, FinetuneError, NoSuchRun
from finetune.inference import file_request
from finetune.inference.file_request import COLUMNS, NONE, PredictionRequest
from finetune.inference.result_files import SUFFIXES
from finetune.jobs import predict
from finetune.jobs.predict import PredictionJob, PredictionState
from finetune.runs.store import RunStore
from finetune.ui import elements, feedback, form, model_chooser, upload_limits
from finetune.ui.elements import button
from finetune.ui.feedback import Updates, handler
from finetune.ui.html import macro
from finetune.ui.i18n import gettext
from finetune.ui.predicted_rows import PredictedRows
from finetune.ui.run_view import duration, when

FILE = "file"  # the name of this part


@dataclass
class FilePredictions:
    """A whole file of pairs: its columns, its progress, its answers, its scores."""

    store: RunStore

    def draw(self, run: gr.Dropdown, options: Sequence[gr.Checkbox], part: gr.Radio) -> None:
        """Lay out the part that `part` shows and wire its events; `run` chooses the model."""
        self.part = part
        self.job_id = gr.State("")
        self.poller = elements.polling_element(1)
        text = gettext(
            "CSV, Excel, ODS, TSV, JSONL, JSON or Parquet. The same file comes back with the "
            "prediction, the probability of each class and whether the model was trained on "
            "the row; with a label column its scores too."
        )
        elements.note(text)
        with gr.Row(equal_height=False):
            with gr.Column(min_width=320):
                self.file = elements.pairs_file(gettext("File"), "batch-file")
                self.sheet = gr.Dropdown(
                    [], label=gettext("Sheet"), elem_id="batch-sheet", visible=False,
                    allow_custom_value=True,
                )  # fmt: skip
            with gr.Column(min_width=320), gr.Row():
                self.columns = [
                    gr.Dropdown(
                        [], value=None, label=name,
                        min_width=130, elem_id=f"batch-{name}", allow_custom_value=True,
                    )
                    for name in COLUMNS
                ]  # fmt: skip
                formats = [(ending.removeprefix(".").upper(), ending) for ending in SUFFIXES]
                self.ending = gr.Dropdown(
                    [(gettext("like the file"), ""), *formats], value="", min_width=130,
                    label=gettext("Result as"), elem_id="batch-ending",
                )  # fmt: skip
        controls, self.reading_box = form.draw_reading("batch-")
        self.reading: list[Any] = list(controls.values())
        with gr.Row():
            text = gettext("Predict the file")
            self.start = button(text, "batch-start", 140, variant="primary")
            self.cancel = button(gettext("Cancel"), "batch-cancel", interactive=False)
        self.message = elements.notice("batch-message")
        self.view = gr.HTML(elem_id="batch-view")
        self.rows = PredictedRows(self.store)
        self.rows.draw(self.job_id)
        request = [run, self.file, self.sheet, *self.reading, *self.columns, *options, self.ending]
        self._wire(request)

    def _wire(self, request: list[Any]) -> None:
        quick = feedback.QUICK
        everything = [*elements.components(self), *elements.components(self.rows)]
        run, file, sheet = request[:3]
        reading = [box.input for box in self.reading]
        changes = [run.change, file.upload, sheet.input, *reading]
        files = [run, file, sheet, *self.reading]
        gr.on(changes, self.on_file, files, everything, **feedback.LATEST)
        chosen = [column.input for column in self.columns[:2]]
        gr.on(chosen, self.on_sentence, self.columns, self.columns, **quick)
        self.start.click(self.on_start, request, everything, **quick)
        self.cancel.click(self.on_cancel, self.job_id, everything, **quick)
        self.poller.submit(self.on_tick, self.job_id, everything, **quick)
        self.opening = {"fn": self.on_open, "inputs": self.job_id, "outputs": everything}

    @handler
    def on_open(self, store: RunStore, job_id: str) -> Updates:
        """Show the newest file again if the tab is opened after a reload."""
        newest = None if job_id else next(iter(predict.newest_predictions(store)), None)
        if newest is None:
            return {}
        running = newest.state().running
        front = {self.part: FILE} if running else {}
        return self._shown(store, newest) | front

    @handler
    def on_file(
        self,
        store: RunStore,
        run_id: str | None,
        path: str | None,
        sheet: str | None,
        *reading: str | None,
    ) -> Updates:
        """Match the columns of a new file, or of another sheet, to those of the chosen model. In a
        workbook, use the chosen sheet or the one the model was trained on."""
        trained = model_chooser.columns(store, run_id)
        found = file_request.FileColumns([], ("", "", ""), [])
        if path:
            received, name = upload_limits.path(store.visitor, path), Path(path).name
            options = _read_options("", reading)
            found = file_request.file_columns(received, name, trained, options)
            wished, encoding = [str(sheet or "")], ""
            with suppress(FinetuneError):  # the run is gone
                config = store.get(run_id).config()
                wished.append(config.sheet)
                encoding = config.encoding
            sheet = next((wish for wish in wished if wish in found.sheets), "")
            if sheet or (found.doubt and encoding):
                options = replace(options, sheet=sheet, encoding=options.encoding or encoding)
                found = file_request.file_columns(received, name, trained, options)
        names, matches, sheets = found.usable, found.matches, found.sheets
        choices = [(gettext("the first with pairs"), ""), *((one, one) for one in sheets)]
        updates: Updates = {
            self.message: feedback.show_errors(DataError(found.doubt)) if found.doubt else "",
            self.sheet: gr.update(choices=choices, value=sheet, visible=len(sheets) > 1),
        }
        if found.doubt:
            updates[self.reading_box] = gr.update(open=True)
        for chooser, own, match in zip(self.columns, trained, matches, strict=True):
            is_label = chooser is self.columns[2]
            none = [(gettext("none"), NONE)] if is_label and names else []
            joined = [match] if match and match not in names else []  # columns of 0 and 1
            updates[chooser] = gr.update(
                label=gettext("Column for {name}", name=own),
                choices=[*none, *((name, name) for name in [*joined, *names])],
                value=match or (NONE if none else None),
                visible=bool(own),
            )
        return updates

    @handler
    def on_sentence(self, store: RunStore, *columns: str | None) -> Updates:
        """Unset the label column if a sentence now has it."""
        return {self.columns[2]: NONE} if columns[2] in columns[:2] else {}

    @handler
    def on_start(
        self, store: RunStore, run_id: str | None, path: str | None, *choices: Any
    ) -> Updates:
        """Predict the file. `choices` are its sheet, reading options, three columns, three
        options and the ending of the result."""
        if not path:
            raise DataError("There is no file.", "Choose one.")
        count = 1 + len(self.reading)
        reading = vars(_read_options(choices[0], choices[1:count]))
        first, second, label = (str(choice or "") for choice in choices[count : count + 3])
        *options, ending = choices[count + 3 :]
        run, name = store.get(run_id), Path(path).name
        request = PredictionRequest(
            run.id, name, first, second, label, *map(bool, options), ending=ending or "", **reading
        )
        job = predict.start_prediction(store, request, upload_limits.path(store.visitor, path))
        upload_limits.kept(path, job.input)
        return self._shown(store, job)

    @handler
    def on_cancel(self, store: RunStore, job_id: str) -> Updates:
        """Cancel the job and keep the rows already predicted."""
        predict.get_prediction(store, job_id).cancel()
        text = gettext("Cancelling: what is judged by then is kept.")
        return {self.message: feedback.note(text)}

    @handler
    def on_tick(self, store: RunStore, job_id: str, event: gr.EventData) -> Updates:
        """Show the job's progress, then its result."""
        try:
            return self._shown(store, predict.get_prediction(store, job_id), event)
        except FinetuneError as error:
            stop = {self.poller: elements.stop_polling(event)}
            return {self.view: feedback.show_errors(error), **stop}

    def _shown(
        self, store: RunStore, job: PredictionJob, event: gr.EventData | None = None
    ) -> Updates:
        """Draw a file's state; `event` is the tick being answered."""
        state = job.state()
        updates: Updates = {
            self.view: view(store, job, state),
            self.cancel: gr.update(interactive=state.running),
            self.poller: elements.polling_value(state.running, event),
        }
        updates |= self.rows.shown(job, state)
        return updates if event else updates | {self.job_id: job.id, self.message: ""}


def _read_options(sheet: str | None, reading: Sequence[str | None]) -> ReadOptions:
    """Make the options for reading a file; a ConfigError names wrong ones."""
    values = dict(zip(("sheet", *form.READING), (sheet, *reading), strict=False))
    return ReadOptions.checked({name: str(value) for name, value in values.items() if value})


def view(store: RunStore, job: PredictionJob, state: PredictionState) -> Markup:
    """HTML for a prediction job: file, progress, answers and scores.

    Raises:
        DataError: if the job is gone.
    """
    request = job.prediction_request()
    try:
        model = store.get(request.run).title()
    except NoSuchRun:
        model = gettext("a deleted run")
    shown = {"id": job.id, "file": request.file, "model": model, "when": when(job.created)}
    seconds = state.report.get("seconds")
    time = duration(seconds) if seconds else ""
    ending = job.result.suffix if job.result else ""
    return macro("prediction_file.html", "view")(shown, state, time, ending)
