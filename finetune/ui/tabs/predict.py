"""The Predict tab: two sentences, what a model says of them and why; and whole files.

torch is imported with the first question, not with the page.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gradio as gr

from finetune.errors import DataError, FinetuneError
from finetune.evaluation import examples, report
from finetune.inference.decision_rule import PredictOptions
from finetune.jobs import service
from finetune.runs.store import RunStore
from finetune.ui import elements, feedback, model_chooser
from finetune.ui.elements import button
from finetune.ui.handlers import Updates, reports_errors_in
from finetune.ui.html import macro
from finetune.ui.i18n import gettext
from finetune.ui.model_chooser import Models
from finetune.ui.tabs.predict_file import FilePredictions

EXAMPLES = [
    ["The library opens an hour later on Sundays.", "On Sundays the library opens one hour later."],
    ["The nurse thanked the driver.", "The driver thanked the nurse."],
    ["Your refund will arrive within five days.", "Your refund will arrive within fifteen days."],
    ["Nobody was hurt when the roof came down.", "The roof collapsed without injuring anyone."],
]


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
        gr.Examples(EXAMPLES, [self.first, self.second], label=gettext("Try one of these"))
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
        self.opening: dict[str, Any] = {
            "fn": self.on_open, "inputs": self.run, "outputs": everything
        }  # fmt: skip

    @reports_errors_in("answer")
    def on_open(self, store: RunStore, chosen: str | None) -> Updates:
        """The tab was opened: the models there are, the newest chosen."""
        update = model_chooser.choices(store, chosen)
        empty = gr.update(value=model_chooser.empty(), visible=not update["visible"])
        return {self.run: update, self.empty: empty}

    @reports_errors_in("answer")
    def on_run(self, store: RunStore, run_id: str | None, question: Any) -> Updates:
        """Another model was chosen: nothing was asked of it yet, and one of single sentences needs
        no second box."""
        paired = True
        with suppress(FinetuneError):
            paired = service.run_summary(store, store.get(run_id)).paired
        text = gettext("Compare") if paired else gettext("Ask")
        updates: Updates = {self.second: gr.update(visible=paired), self.ask: gr.update(value=text)}
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
        options, question = PredictOptions(*map(bool, flags)), None
        try:
            with self.models.using(store, run_id) as predictor:
                prediction = predictor(sentence1, sentence2, options)
        except FinetuneError as error:
            answer = feedback.show_errors(error)
        else:
            answer = macro("answer.html", "answer")(prediction)
            question = (run_id, sentence1, sentence2, options)
        return {
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
        run_id, *sentences, options = question
        with self.models.using(store, run_id) as predictor:
            label, explanation = predictor.explain(*sentences, options)
            flips, tried = predictor.flips(*sentences, options)
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
        return {
            self.first: example.sentence1,
            self.second: example.sentence2,
            self.drawn: feedback.note(text),
        }


def _waiting() -> str:
    return feedback.note(gettext("The answer appears here, with the probability of each class."))
