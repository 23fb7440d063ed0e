"""A whole file of pairs under Predict: its columns, its progress, its first rows, its scores.

A job predicts the rows while the page asks for its state. The newest file is shown again when the
page is opened, so a reload loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from finetune.errors import DataError, FinetuneError, NoSuchRun
from finetune.inference import file_request
from finetune.inference.file_request import COLUMNS, NONE, PredictionRequest
from finetune.jobs import predict
from finetune.jobs.predict import PredictionJob, PredictionState
from finetune.runs.store import RunStore
from finetune.ui import elements, feedback, polling, upload_limits
from finetune.ui.handlers import Updates, handler
from finetune.ui.html import macro
from finetune.ui.i18n import gettext
from finetune.ui.run_view import duration, when


@dataclass
class FilePredictions:
    """The controls and event handlers."""

    store: RunStore

    def draw(self, run: gr.Dropdown, options: Sequence[gr.Checkbox], fold: gr.Accordion) -> None:
        """Lay out the part inside `fold` and wire its events; `run` chooses the model."""
        self.fold = fold
        self.job_id = gr.State("")
        self.poller = polling.polling_element(1)
        elements.note(
            "CSV, TSV, JSONL, JSON or Parquet, also as .gz. The same file comes back with the "
            "prediction, the probability of each class and whether the model was trained on "
            "the row; with a label column its scores too."
        )
        labels = {
            "sentence1": gettext("sentence1 column"),
            "sentence2": gettext("sentence2 column"),
            "label": gettext("label column"),
        }
        with gr.Row(equal_height=False):
            with gr.Column(min_width=320):
                self.file = elements.pairs_file(gettext("File"), "batch-file")
            with gr.Column(min_width=320), gr.Row():
                self.columns = [
                    gr.Dropdown(
                        [(gettext("guessed"), "")], value="", label=labels[name], min_width=130,
                        elem_id=f"batch-{name}", allow_custom_value=True,
                    )
                    for name in COLUMNS
                ]  # fmt: skip
        with gr.Row():
            text = gettext("Predict the file")
            self.start = elements.button(text, "batch-start", 140, variant="primary")
            self.cancel = elements.button(gettext("Cancel"), "batch-cancel", interactive=False)
        self.message = elements.notice("batch-message")
        self.view = gr.HTML(elem_id="batch-view")
        self._wire([run, self.file, *self.columns, *options])

    def _wire(self, request: list[Any]) -> None:
        quick, everything = feedback.QUICK, elements.components(self)
        self.file.upload(self.on_file, self.file, everything, **quick)
        self.start.click(self.on_start, request, everything, **quick)
        self.cancel.click(self.on_cancel, self.job_id, everything, **quick)
        self.poller.submit(self.on_tick, self.job_id, everything, **quick)
        self.opening: dict[str, Any] = {
            "fn": self.on_open, "inputs": self.job_id, "outputs": everything
        }  # fmt: skip

    @handler
    def on_open(self, store: RunStore, job_id: str) -> Updates:
        """The tab was opened: after a reload the newest file is shown again."""
        newest = None if job_id else next(iter(predict.newest_predictions(store)), None)
        if newest is None:
            return {}
        running = predict.prediction_state(newest).running
        return self._shown(store, newest) | {self.fold: gr.update(open=running)}

    @handler
    def on_file(self, store: RunStore, path: str | None) -> Updates:
        """A file came: what its columns are, and which of them seem meant."""
        updates: Updates = {self.message: ""}
        if not path:
            return updates
        received = upload_limits.path(store.visitor, path)
        names, guesses = file_request.file_columns(received, Path(path).name)
        for chooser, column, guess in zip(self.columns, COLUMNS, guesses, strict=True):
            none = [] if column == "sentence1" else [(NONE, NONE)]
            first = gettext("guessed: {name}", name=guess or gettext("none"))
            choices = [(first, ""), *none, *((name, name) for name in names)]
            updates[chooser] = gr.update(choices=choices, value="")
        return updates

    @handler
    def on_start(
        self, store: RunStore, run_id: str | None, path: str | None, *choices: Any
    ) -> Updates:
        """Predict the file; `choices`: its three columns and the three options."""
        if not path:
            raise DataError("There is no file.", "Choose one.")
        sentence1, sentence2, label = (str(column or "") for column in choices[:3])
        options = [bool(option) for option in choices[3:]]
        file, run = Path(path).name, store.get(run_id)
        request = PredictionRequest(run.id, file, sentence1, sentence2, label, *options)
        received = upload_limits.path(store.visitor, path)
        job = predict.start_prediction(store, request, received)
        upload_limits.kept(path, job.input)
        return self._shown(store, job)

    @handler
    def on_cancel(self, store: RunStore, job_id: str) -> Updates:
        """It shall end; what is predicted by then is kept."""
        predict.cancel_prediction(predict.get_prediction(store, job_id))
        text = gettext("Cancelling: what is judged by then is kept.")
        return {self.message: feedback.note(text)}

    @handler
    def on_tick(self, store: RunStore, job_id: str, event: gr.EventData) -> Updates:
        """How far it is, and once what it came to."""
        try:
            return self._shown(store, predict.get_prediction(store, job_id), event)
        except FinetuneError as error:
            stop = {self.poller: polling.stop_polling(event)}
            return {self.view: feedback.show_errors(error), **stop}

    def _shown(
        self, store: RunStore, job: PredictionJob, event: gr.EventData | None = None
    ) -> Updates:
        """What the page shows of a file; `event` is the tick that this answers."""
        state = predict.prediction_state(job)
        updates: Updates = {
            self.view: view(store, job, state),
            self.cancel: gr.update(interactive=state.running),
            self.poller: polling.polling_value(state.running, event),
        }
        return updates if event else updates | {self.job_id: job.id, self.message: ""}


def view(store: RunStore, job: PredictionJob, state: PredictionState) -> Markup:
    """Which file it is, its progress, what it came to, and its first rows.

    Raises:
        DataError: when it is gone.
    """
    request = job.prediction_request()
    try:
        model = store.get(request.run).title()
    except NoSuchRun:
        model = gettext("a deleted run")
    seconds = state.report.get("seconds")
    return macro("prediction_file.html", "view")(
        {"id": job.id, "file": request.file, "model": model, "when": when(job.created)},
        state,
        duration(seconds) if seconds else "",
    )
