"""The Predict tab: two sentences, what a model says of them and why; and whole files.

torch is imported with the first question, not with the page.
"""

from __future__ import annotations

import json
import random
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from finetune import text_hashes
from finetune.data import catalog
from finetune.errors import DataError, FinetuneError, NoSuchRun
from finetune.evaluation import examples, report
from finetune.jobs import service
from finetune.runs.store import RunStore
from finetune.ui import answer_view, elements, feedback, model_chooser
from finetune.ui.handlers import Updates, reports_errors_in
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

    def draw_memory(self) -> None:
        """What the browser remembers; made outside the tabs, where it is there from the start."""
        self.remembered = gr.BrowserState([], storage_key="finetune-tried", secret="finetune")

    def draw(self) -> None:
        """Lay out the tab inside the current `gr.Tab` and wire its events; after `draw_memory`."""
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
        # The question that was answered last, and what the browser shall remember of the answer.
        self.question, self.entry = elements.browser_value(), elements.browser_value()
        gr.Examples(EXAMPLES, [self.first, self.second], label=gettext("Try one of these"))
        with gr.Accordion(gettext("What you tried"), open=False, elem_id="tried-fold"):
            self.history = gr.HTML(
                answer_view.history([]), elem_id="tried",
                js_on_load=f"finetune.questions(element, trigger, watch);{feedback.AS_DRAWN}",
            )  # fmt: skip
        with gr.Accordion(gettext("A whole file"), open=False, elem_id="batch-fold") as fold:
            self.files.draw(self.run, self.options, fold)
        self._wire()

    def _draw_question(self) -> None:
        self.first = gr.Textbox(label="sentence1", max_lines=6, elem_id="sentence1")
        self.second = gr.Textbox(label="sentence2", max_lines=6, elem_id="sentence2")
        with gr.Row():
            self.ask = gr.Button(
                gettext("Compare"), variant="primary", elem_id="compare", min_width=120, scale=1
            )
            self.right, self.wrong = (
                gr.Button(text, elem_id=name, size="md", min_width=180, scale=2)
                for name, text in (
                    ("draw-right", gettext("Fill in a pair it got right")),
                    ("draw-wrong", gettext("Fill in a pair it got wrong")),
                )
            )
        self.drawn = elements.message("drawn")
        with gr.Accordion(gettext("How the answer is made"), open=False, elem_id="ways"):
            both = gettext(
                "The mean of both orders' probabilities; the order then changes nothing."
            )
            threshold = gettext(
                "Chosen under Runs, Evaluation; otherwise the most probable class wins."
            )
            calibrated = gettext("With the temperature saved under Runs, Evaluation.")
            self.options = [
                gr.Checkbox(label=label, elem_id=f"way-{name}", info=info)
                for name, label, info in (
                    ("both", gettext("average both orders"), both),
                    ("threshold", gettext("use the saved threshold"), threshold),
                    ("calibrated", gettext("calibrated probabilities"), calibrated),
                )
            ]

    def _wire(self) -> None:
        quick, latest = feedback.QUICK, feedback.LATEST
        self.run.change(self.on_run, self.run, [self.second, self.ask], **latest)
        answer = [self.answer, self.why, self.reasons]
        self.run.input(self.on_other_model, [self.run, self.question], answer, **quick)
        answered = gr.on(
            [self.ask.click, self.first.submit, self.second.submit],
            self.on_ask,
            [self.run, self.first, self.second, *self.options],
            [*answer, self.question, self.entry],
            **latest,
        )
        self.why.click(
            self.on_why, self.question, self.reasons, concurrency_limit=2,
            show_progress="minimal", api_visibility="private",
        ).then(
            None, [self.reasons, self.question], self.reasons, js="finetune.reasonsOf", **quick
        )  # fmt: skip
        for button, kind in ((self.right, "right"), (self.wrong, "wrong")):
            filled = [self.first, self.second, self.drawn]
            button.click(self.on_draw, [self.run, gr.State(kind)], filled, **quick)
        memory = [self.entry, self.remembered]
        most = answer_view.MAX_QUESTIONS
        remember = f"(entry, remembered) => finetune.remember(entry, remembered, {most})"
        for changed in (
            answered.then(None, memory, memory, js=remember, **quick),
            self.history.click(None, memory, memory, js=remember, **quick),
            self.history.submit(None, None, self.remembered, js="finetune.forget", **quick),
        ):
            changed.then(self.on_history, self.remembered, self.history, **latest)
        self.opening: dict[str, Any] = {
            "fn": self.on_open,
            "inputs": [self.run, self.remembered],
            "outputs": [self.run, self.empty, self.ask, self.history, self.answer],
        }

    @reports_errors_in("answer")
    def on_open(self, store: RunStore, chosen: str | None, remembered: Any) -> Updates:
        """The tab was opened: the models there are, the newest chosen; and earlier questions."""
        update = model_chooser.choices(store, chosen)
        empty = gr.update(value=model_chooser.empty(), visible=not update["visible"])
        if catalog.is_hub_id(chosen):  # typed, and no run of anybody's
            update |= {"value": chosen, "visible": True}
        return {
            self.run: update,
            self.empty: empty,
            self.ask: gr.update(interactive=True),
            self.history: answer_view.history(_questions(remembered)),
        }

    @reports_errors_in("answer")
    def on_run(self, store: RunStore, run_id: str | None) -> Updates:
        """Another model was chosen: one of single sentences needs no second box."""
        paired = True
        with suppress(FinetuneError):
            paired = service.run_summary(store, store.get(run_id)).paired
        text = gettext("Compare") if paired else gettext("Ask")
        return {self.second: gr.update(visible=paired), self.ask: gr.update(value=text)}

    @reports_errors_in("answer")
    def on_other_model(self, store: RunStore, run_id: str | None, question: str) -> Updates:
        """A model was chosen: of another one nothing was asked yet. Gradio tells of a choice also
        when it is merely left."""
        if not question or json.loads(question)["run"] == run_id:
            return {}
        return {self.answer: _waiting(), self.why: gr.update(visible=False), self.reasons: ""}

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
        """The answer to one pair; as JSON what was asked, and what the browser remembers of it."""
        try:
            with self.models.using(store, run_id) as predictor:
                prediction = predictor(sentence1, sentence2, _predict_options(options))
                labels, paired = predictor.labels, predictor.paired
        except FinetuneError as error:
            hidden = {self.why: gr.update(visible=False), self.question: "", self.entry: ""}
            return {self.answer: feedback.show_errors(error), self.reasons: "", **hidden}
        entry = {
            "when": time.strftime("%Y-%m-%d %H:%M"),
            "model": str(run_id),
            "sentence1": sentence1,
            "sentence2": sentence2 if paired is not False else "",
            "prediction": prediction.label,
            "probability": round(prediction.probabilities[prediction.label], 4),
            "labels": list(dict.fromkeys([prediction.label, *labels]))[:20],
            "label": "",
        }
        question = {
            "id": secrets.token_hex(8), "run": run_id, "sentences": [sentence1, sentence2],
            "options": options,
        }  # fmt: skip
        return {
            self.answer: macro("answer.html", "answer")(prediction),
            self.why: gr.update(visible=True),
            self.reasons: "",
            self.question: _json(question),
            self.entry: _json(entry),
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
        try:
            run = store.get(run_id)
        except NoSuchRun:
            text = gettext("Only runs of yours have validation pairs here.")
            return {self.drawn: feedback.note(text)}
        study = report.evaluate_run(run, service.run_summary(store, run))
        rows = examples.select_examples(study, kind)
        if study.table is None:
            raise DataError("The validation pairs of this run were not kept.")
        if not len(rows):
            raise DataError(f"There is no validation pair that it gets {kind}.")
        example = examples.example_rows(study, [int(random.choice(rows))])[0]
        text = gettext(
            "Validation example {n:,}: its label is {label}. {history}.",
            n=example.row + 1,
            label=example.label,
            history=gettext(example.history),
        )
        note = feedback.note(text)
        return {self.first: example.sentence1, self.second: example.sentence2, self.drawn: note}

    @reports_errors_in("history")
    def on_history(self, store: RunStore, remembered: Any) -> Updates:
        """A question was answered, a verdict given, or all forgotten."""
        return {self.history: answer_view.history(_questions(remembered))}


def _waiting() -> str:
    return feedback.note(
        gettext("The answer appears here, with the probability of each class.")
    )


def _predict_options(values: Sequence[object]) -> PredictOptions:
    from finetune.inference.decision_rule import PredictOptions

    return PredictOptions(*map(bool, values))


def _questions(remembered: object) -> list[dict[str, Any]]:
    """Earlier questions, as far as what a browser sends can be trusted to be that."""
    if not isinstance(remembered, list):
        return []
    entries = json.loads(_json(remembered[-answer_view.MAX_QUESTIONS :]))
    return [entry for entry in entries if isinstance(entry, dict)]


def _json(value: object) -> str:
    """As JSON that can be sent: a lone surrogate, which a person can paste, cannot."""
    return text_hashes.replace_surrogates(json.dumps(value, ensure_ascii=False))
