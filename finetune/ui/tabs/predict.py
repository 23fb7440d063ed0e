"""The Predict tab: two sentences, what a model says of them and why; and whole files.

torch is imported with the first question, not with the page.
"""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from finetune import text_hashes
from finetune.data import catalog
from finetune.errors import DataError, FinetuneError
from finetune.evaluation import examples, report
from finetune.jobs import service
from finetune.runs.store import RunStore
from finetune.ui import elements, feedback, model_chooser
from finetune.ui.elements import button
from finetune.ui.feedback import Updates, reports_errors_in
from finetune.ui.html import macro
from finetune.ui.i18n import gettext
from finetune.ui.model_chooser import Models
from finetune.ui.tabs.predict_file import FilePredictions

if TYPE_CHECKING:
    from finetune.inference.decision_rule import PredictOptions

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
            info=gettext("A run of yours, or a text classifier of the Hub as owner/name."),
        )  # fmt: skip
        with gr.Row(equal_height=False):
            with gr.Column(min_width=320):
                self._draw_question()
            with gr.Column(min_width=320):
                self.answer = gr.HTML(_waiting(), elem_id="answer")
                self.why = gr.Button(gettext("Why?"), elem_id="ask-why", visible=False, size="sm")
        self.reasons = gr.HTML(elem_id="reasons")
        self.question = elements.browser_value()  # the one that was answered last
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
        gr.on(
            [self.ask.click, self.first.submit, self.second.submit],
            self.on_ask,
            [self.run, self.first, self.second, *self.options],
            everything,
            **latest,
        )
        self.why.click(
            self.on_why, self.question, self.reasons, concurrency_limit=2,
            show_progress="minimal", api_visibility="private",
        ).then(
            None, [self.reasons, self.question], self.reasons, js="finetune.reasonsOf", **quick
        )  # fmt: skip
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
        if catalog.is_hub_id(chosen):  # typed, and no run of anybody's
            update |= {"value": chosen, "visible": True}
        return {self.run: update, self.empty: empty}

    @reports_errors_in("answer")
    def on_run(self, store: RunStore, run_id: str | None, question: str) -> Updates:
        """Another model was chosen: nothing was asked of it yet, and one of single sentences needs
        no second box."""
        paired = True
        with suppress(FinetuneError):
            paired = service.run_summary(store, store.get(run_id)).paired
        text = gettext("Compare") if paired else gettext("Ask")
        updates: Updates = {self.second: gr.update(visible=paired), self.ask: gr.update(value=text)}
        if question and json.loads(question)["run"] != run_id:
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
        self, store: RunStore, run_id: str | None, sentence1: str, sentence2: str, *options: bool
    ) -> Updates:
        """The answer to one pair; as JSON what was asked."""
        try:
            with self.models.using(store, run_id) as predictor:
                prediction = predictor(sentence1, sentence2, _predict_options(options))
        except FinetuneError as error:
            answer, question = feedback.show_errors(error), ""
        else:
            answer = macro("answer.html", "answer")(prediction)
            asked = {"run": run_id, "sentences": [sentence1, sentence2], "options": options}
            # A lone surrogate, which a person can paste, cannot be sent.
            text = json.dumps(asked | {"id": secrets.token_hex(8)}, ensure_ascii=False)
            question = text_hashes.replace_surrogates(text)
        return {
            self.answer: answer,
            self.why: gr.update(visible=bool(question)),
            self.reasons: "",
            self.question: question,
        }

    @reports_errors_in("reasons")
    def on_why(self, store: RunStore, question: str) -> Updates:
        """Why the answer to the question is as it is, and what would change it."""
        try:
            asked = json.loads(question)
            sentence1, sentence2 = (str(sentence or "") for sentence in asked["sentences"])
            question_id, run_id = str(asked["id"]), asked["run"]
            options = _predict_options(asked["options"])
        except (KeyError, TypeError, ValueError) as error:  # any client can send anything
            raise DataError("Nothing was asked yet.", "Ask first.") from error
        with self.models.using(store, run_id) as predictor:
            label, explanation = predictor.explain(sentence1, sentence2, options)
            flips, tried = predictor.flips(sentence1, sentence2, options)
        why = macro("answer.html", "why")
        return {self.reasons: why(explanation, flips, tried, label, question_id)}

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
        text = gettext(
            "Validation example {n:,}: its label is {label}. {history}.",
            n=example.row + 1,
            label=example.label,
            history=gettext(example.history),
        )
        note = feedback.note(text)
        return {self.first: example.sentence1, self.second: example.sentence2, self.drawn: note}


def _waiting() -> str:
    return feedback.note(gettext("The answer appears here, with the probability of each class."))


def _predict_options(values: Sequence[object]) -> PredictOptions:
    from finetune.inference.decision_rule import PredictOptions

    return PredictOptions(*map(bool, values))
