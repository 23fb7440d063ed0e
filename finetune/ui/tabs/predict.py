"""The Predict tab: two sentences, what a model says of them and why; and whole files.

torch is imported with the first question, not with the page.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from finetune.errors import DataError, FinetuneError, NoSuchRun
from finetune.evaluation import examples, report
from finetune.inference import file_request
from finetune.inference.decision_rule import PredictOptions
from finetune.inference.file_request import COLUMNS, NONE, PredictionRequest
from finetune.jobs import predict, service
from finetune.jobs.predict import PredictionJob, PredictionState
from finetune.runs.store import RunStore
from finetune.ui import elements, feedback, model_chooser, upload_limits
from finetune.ui.elements import button
from finetune.ui.feedback import Updates, handler, reports_errors_in
from finetune.ui.html import macro
from finetune.ui.i18n import gettext
from finetune.ui.model_chooser import Models
from finetune.ui.run_view import duration, when

_LONGEST = 4000  # characters of an address; a longer pair has none


@dataclass
class PredictTab:
    """The tab's controls and event handlers."""

    store: RunStore

    def __post_init__(self) -> None:
        self.models = Models(self.store)
        self.files = FilePredictions(self.store)

    def draw(self) -> None:
        """Lay out the tab inside the current `gr.Tab` and wire its events."""
        elements.note(gettext("Ask a tuned model whether two sentences mean the same, and why."))
        self.empty = elements.no_model("predict-empty")
        self.address = elements.address("predict")
        self.run = gr.Dropdown(
            [], label=gettext("Model"), elem_id="predict-run", interactive=True,
            allow_custom_value=True,
        )  # fmt: skip
        with gr.Row(equal_height=False):
            with gr.Column(min_width=320):
                self._draw_question()
            with gr.Column(min_width=320):
                self.answer = gr.HTML(_waiting(), elem_id="answer")
                self.why = gr.Button(gettext("Why?"), elem_id="ask-why", visible=False, size="sm")
        self.reasons = gr.HTML(elem_id="reasons")
        # What was answered last: the run, both sentences, the options.
        self.question = gr.State(None)
        with gr.Accordion(gettext("A whole file"), open=False, elem_id="batch-fold") as fold:
            self.files.draw(self.run, self.options, fold)
        self._wire()

    def _draw_question(self) -> None:
        self.first = gr.Textbox(label="sentence1", max_lines=6, elem_id="sentence1")
        self.second = gr.Textbox(label="sentence2", max_lines=6, elem_id="sentence2")
        with gr.Row():
            self.ask = button(gettext("Compare"), "compare", 120, variant="primary", scale=1)
            wide: dict[str, Any] = {"size": "md", "scale": 2}
            text = gettext("Fill in a pair it got right")
            self.right = button(text, "draw-right", 180, **wide)
            text = gettext("Fill in a pair it got wrong")
            self.wrong = button(text, "draw-wrong", 180, **wide)
        self.drawn = elements.notice("drawn")
        with gr.Accordion(gettext("How the answer is made"), open=False, elem_id="ways"):
            text = gettext(
                "The mean of both orders' probabilities; the order then changes nothing."
            )
            both = gr.Checkbox(label=gettext("average both orders"), info=text)
            text = gettext("Chosen under Runs, Evaluation; otherwise the most probable class wins.")
            threshold = gr.Checkbox(label=gettext("use the saved threshold"), info=text)
            text = gettext("With the temperature saved under Runs, Evaluation.")
            calibrated = gr.Checkbox(label=gettext("calibrated probabilities"), info=text)
        self.options = [both, threshold, calibrated]

    def _wire(self) -> None:
        quick, latest = feedback.QUICK, feedback.LATEST
        everything = elements.components(self)
        self.run.change(self.on_run, [self.run, self.question], everything, **latest)
        explained = self.why.click(
            self.on_why, self.question, self.reasons, concurrency_limit=2,
            show_progress="minimal", api_visibility="private",
        )  # fmt: skip
        # Why an earlier question was answered so is not said beneath a later answer.
        gr.on(
            [self.ask.click, self.first.submit, self.second.submit],
            self.on_ask,
            [self.run, self.first, self.second, *self.options],
            everything,
            cancels=explained,
            **latest,
        )
        for pressed, kind in ((self.right, "right"), (self.wrong, "wrong")):
            pressed.click(self.on_draw, [self.run, gr.State(kind)], everything, **quick)
        asking = elements.opening("predict", self.address, [self.run])
        self.opening = {"fn": self.on_open, "outputs": everything, **asking}

    @reports_errors_in("answer")
    def on_open(self, store: RunStore, run_id: str | None, address: str) -> Updates:
        """The tab was opened: the models there are, the newest chosen; the pair of an address is
        asked again."""
        asked = elements.asked(address)
        update = model_chooser.choices(store, run_id, asked.get("run"))
        empty = gr.update(value=model_chooser.empty(), visible=not update["visible"])
        updates: Updates = {self.run: update, self.empty: empty}
        if update["value"] != run_id:
            updates[self.address] = elements.query(run=update["value"] or "")
        if sentence1 := asked.get("sentence1"):
            pair = sentence1, asked.get("sentence2", "")
            updates |= {self.first: pair[0], self.second: pair[1]}
            updates |= self._asked(store, update["value"], *pair, PredictOptions())
        return updates

    @reports_errors_in("answer")
    def on_run(self, store: RunStore, run_id: str | None, question: Any) -> Updates:
        """Another model was chosen: nothing was asked of it yet, and one of single sentences needs
        no second box."""
        paired = True
        with suppress(FinetuneError):
            paired = service.run_summary(store, store.get(run_id)).paired
        text = gettext("Compare") if paired else gettext("Ask")
        updates: Updates = {self.second: gr.update(visible=paired), self.ask: gr.update(value=text)}
        if not question or question[0] != run_id:
            updates[self.address] = elements.query(run=run_id or "")
        if question and question[0] != run_id:
            hidden = gr.update(visible=False)
            updates |= {self.answer: _waiting(), self.why: hidden, self.reasons: ""}
        return updates

    @reports_errors_in("answer")
    def on_warm_up(self, store: RunStore, run_id: str | None) -> Updates:
        """Load the chosen run's model before it is asked; a problem is told when it is."""
        with suppress(FinetuneError):
            if run_id and store.get(run_id):
                with self.models.using(store, run_id) as predictor:
                    predictor("warm", "up")  # the first pass is the slow one
        return {}

    @reports_errors_in("answer")
    def on_ask(
        self, store: RunStore, run_id: str | None, sentence1: str, sentence2: str, *flags: bool
    ) -> Updates:
        """The answer to one pair."""
        return self._asked(store, run_id, sentence1, sentence2, PredictOptions(*map(bool, flags)))

    def _asked(
        self, store: RunStore, run_id: str | None, sentence1: str, sentence2: str,
        options: PredictOptions,
    ) -> Updates:  # fmt: skip
        question, address = None, elements.query(run=run_id or "")
        try:
            with self.models.using(store, run_id) as predictor:
                prediction = predictor(sentence1, sentence2, options)
        except FinetuneError as error:
            answer = feedback.show_errors(error)
        else:
            answer = macro("answer.html", "answer")(prediction)
            question = (run_id, sentence1, sentence2, options)
            pair = elements.query(run=run_id or "", sentence1=sentence1, sentence2=sentence2)
            address = pair if len(pair) <= _LONGEST else address
        return {
            self.address: address,
            self.answer: answer,
            self.why: gr.update(visible=question is not None),
            self.reasons: "",
            self.question: question,
        }

    @reports_errors_in("reasons")
    def on_why(self, store: RunStore, question: Any) -> Updates:
        """Why the answer to the question is as it is, and what would change it."""
        if question is None:
            raise DataError("Nothing was asked yet.", "Ask first.")
        run_id, sentence1, sentence2, options = question
        with self.models.using(store, run_id) as predictor:
            label, explanation = predictor.explain(sentence1, sentence2, options)
            flips, tried = predictor.flips(sentence1, sentence2, options)
        why = macro("answer.html", "why")
        return {self.reasons: why(explanation, flips, tried, label)}

    @reports_errors_in("drawn")
    def on_draw(self, store: RunStore, run_id: str | None, kind: str) -> Updates:
        """Fill in a validation pair that the model gets `right` or `wrong`."""
        run = store.get(run_id)
        study = report.evaluate_run(run, service.run_summary(store, run))
        rows = examples.select_examples(study, kind)
        if study.table is None:
            raise DataError("The validation pairs of this run were not kept.")
        if not len(rows):
            raise DataError("There is no validation pair that it gets {kind}.", kind=kind)
        example = examples.example_rows(study, [int(random.choice(rows))])[0]
        number, label = example.row + 1, example.label
        text = gettext("Validation example {n:,}: its label is {label}.", n=number, label=label)
        note = feedback.note(text)
        return {self.first: example.sentence1, self.second: example.sentence2, self.drawn: note}


def _waiting() -> Markup:
    return feedback.note(gettext("The answer appears here, with the probability of each class."))


@dataclass
class FilePredictions:
    """A whole file of pairs: its columns, its progress, its first rows, its scores."""

    store: RunStore

    def draw(self, run: gr.Dropdown, options: Sequence[gr.Checkbox], fold: gr.Accordion) -> None:
        """Lay out the part inside `fold` and wire its events; `run` chooses the model."""
        self.fold = fold
        self.job_id = gr.State("")
        self.poller = elements.polling_element(1)
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
            self.start = button(text, "batch-start", 140, variant="primary")
            self.cancel = button(gettext("Cancel"), "batch-cancel", interactive=False)
        self.message = elements.notice("batch-message")
        self.view = gr.HTML(elem_id="batch-view")
        self._wire([run, self.file, *self.columns, *options])

    def _wire(self, request: list[Any]) -> None:
        quick, everything = feedback.QUICK, elements.components(self)
        self.file.upload(self.on_file, self.file, everything, **quick)
        self.start.click(self.on_start, request, everything, **quick)
        self.cancel.click(self.on_cancel, self.job_id, everything, **quick)
        self.poller.submit(self.on_tick, self.job_id, everything, **quick)
        self.opening = {"fn": self.on_open, "inputs": self.job_id, "outputs": everything}

    @handler
    def on_open(self, store: RunStore, job_id: str) -> Updates:
        """The tab was opened: after a reload the newest file is shown again."""
        newest = None if job_id else next(iter(predict.newest_predictions(store)), None)
        if newest is None:
            return {}
        running = predict.prediction_state(newest).running
        return self._shown(store, newest) | {self.fold: gr.update(open=running)}

    @handler
    def on_file(self, store: RunStore, path: str) -> Updates:
        """A file came: what its columns are, and which of them seem meant."""
        updates: Updates = {self.message: ""}
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
        first, second, label = (str(column or "") for column in choices[:3])
        run, name, options = store.get(run_id), Path(path).name, map(bool, choices[3:])
        request = PredictionRequest(run.id, name, first, second, label, *options)
        job = predict.start_prediction(store, request, upload_limits.path(store.visitor, path))
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
            stop = {self.poller: elements.stop_polling(event)}
            return {self.view: feedback.show_errors(error), **stop}

    def _shown(
        self, store: RunStore, job: PredictionJob, event: gr.EventData | None = None
    ) -> Updates:
        """What the page shows of a file; `event` is the tick that this answers."""
        state = predict.prediction_state(job)
        updates: Updates = {
            self.view: view(store, job, state),
            self.cancel: gr.update(interactive=state.running),
            self.poller: elements.polling_value(state.running, event),
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
    shown = {"id": job.id, "file": request.file, "model": model, "when": when(job.created)}
    seconds = state.report.get("seconds")
    time = duration(seconds) if seconds else ""
    return macro("prediction_file.html", "view")(shown, state, time)
