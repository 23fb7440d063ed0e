"""The Predict tab: two sentences, what a model says of them and why; files are `predict_file`'s.

torch is imported with the first question, not with the page.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import gradio as gr
from markupsafe import Markup

from finetune.errors import DataError, FinetuneError
from finetune.evaluation import examples
from finetune.runs.store import RunStore
from finetune.runs.summary import ColumnNames
from finetune.tasks.base import PredictOptions
from finetune.tasks.registry import find_task, task_of
from finetune.ui import choosers, elements, feedback
from finetune.ui.choosers import Models
from finetune.ui.elements import button
from finetune.ui.html import asset, macro
from finetune.ui.i18n import gettext
from finetune.ui.panel import Panel, Pressed, Updates, handler
from finetune.ui.tabs.predict_file import FILE, FilePredictions

PAIR = "pair"  # the part of the tab beside `FILE`
_PROGRESS = gr.Progress()  # this default makes Gradio pass one
_LONGEST = 4000  # characters of an address; a longer pair has none


class PredictTab(Panel):
    def __post_init__(self) -> None:
        self.models = Models(self.store)
        self.files = FilePredictions(self.store)

    def draw(self) -> None:
        self.empty = choosers.no_model("predict-empty")
        self.address = elements.address("predict")
        with gr.Row(equal_height=False):
            with gr.Column(min_width=320):
                own = {"allow_custom_value": True, "interactive": True}
                self.run = elements.dropdown([], "Model", "predict-run", **own)
            self._draw_options()
        # What was answered last: the run, both sentences, the options.
        self.question = gr.State(None)
        self.linked = gr.State(())  # the pair of the page's address
        self.part = elements.parts([("Texts", PAIR), ("A file", FILE)], "Part", "predict-parts")
        with gr.Column() as self.pair:
            with gr.Row(equal_height=False):
                with gr.Column(min_width=320):
                    names = ColumnNames()
                    self.first = gr.Textbox(label=names.sentence1, max_lines=6, elem_id="sentence1")
                    self.second = gr.Textbox(
                        label=names.sentence2, max_lines=6, elem_id="sentence2"
                    )
                    self.ask = button("Compare", "compare", 120, variant="primary")
                with gr.Column(min_width=320):
                    self.answer = gr.HTML(_waiting(), elem_id="answer")
                    self.why = gr.Button("Why?", elem_id="ask-why", interactive=False, size="sm")
            self.reasons = gr.HTML(elem_id="reasons")
            self.samples = gr.State(())  # the pairs that are offered
            self.offered = elements.notice("samples", js_on_load=asset("examples.js"))
        with gr.Column(visible=False, elem_id="predict-file") as self.file:
            self.files.draw(self.run, self.options, self.part)
        self._wire()

    def _draw_options(self) -> None:
        self.ways = gr.Accordion("How the answer is made", open=False, elem_id="ways")
        with gr.Column(min_width=320), self.ways:
            text = "The mean of both orders' probabilities; the order then changes nothing."
            both = gr.Checkbox(label="Average both orders", info=text)
            text = (
                "If one was saved with the model; otherwise the most probable class is the answer."
            )
            threshold = gr.Checkbox(True, label="Use the saved threshold", info=text)
            text = "With the temperature saved under Runs, Evaluation."
            calibrated = gr.Checkbox(label="Calibrated probabilities", info=text)
        self.options = [both, threshold, calibrated]

    def _wire(self) -> None:
        quick = feedback.QUICK
        explained = self.listen(
            self.on_why, self.why.click, queue=True, show_progress="full", concurrency_limit=2,
            show_progress_on=self.reasons,
        )  # fmt: skip
        # An earlier answer's explanation must not stand beneath a later answer.
        asks = [self.ask.click, self.first.submit, self.second.submit]
        waits = "() => [{__type__: 'update', interactive: false}, finetune.pending]"
        gr.on(asks, None, None, [self.why, self.reasons], js=waits, **quick)
        self.listen(self.on_ask, *asks, cancels=explained)
        picked = self.connect()["on_sample"]
        picked.then(None, None, None, cancels=explained, **quick)
        opened = [self.run, self.linked]
        self.opened = {"fn": self.on_opened, "inputs": opened, "outputs": self.outputs()}

    @handler("part.change", latest=True)
    def on_shown_part(self, store: RunStore, part: str) -> Updates:
        parts = ((self.pair, PAIR), (self.file, FILE))
        return {column: gr.update(visible=part == name) for column, name in parts}

    @handler(errors_in="answer", opens="predict")
    def on_open(self, store: RunStore, run: str | None, address: str) -> Updates:
        """Offer the models, by default the newest, and fill in the pair of an address."""
        asked = elements.asked(address)
        offered, chosen = choosers.choices(store, run, asked.get("run"))
        pair = (asked["sentence1"], asked.get("sentence2", "")) if "sentence1" in asked else ()
        updates: Updates = dict(zip((self.run, self.empty), offered, strict=True))
        updates[self.linked] = pair
        if chosen != run:
            updates[self.address] = elements.query(run=chosen or "")
        if pair:
            updates |= dict(zip((self.first, self.second), pair, strict=True))
        return updates

    @handler("run.change", errors_in="answer", latest=True)
    def on_run(self, store: RunStore, run: str | None, question: Any) -> Updates:
        """Show another model, without an answer yet, and without a second box if it takes single
        sentences."""
        columns = choosers.columns(store, run)
        text = gettext("Compare") if columns.sentence2 else gettext("Ask")
        chosen = False  # whether its task has several ways to answer
        with suppress(FinetuneError):
            prepared = store.get(run).state().prepared
            chosen = bool(prepared is None or task_of(prepared.target).choices(prepared.target))
        updates: Updates = {
            self.first: gr.update(label=columns.sentence1),
            self.second: gr.update(label=columns.sentence2, visible=bool(columns.sentence2)),
            self.ask: gr.update(value=text),
            self.ways: gr.update(elem_classes=[] if chosen or columns.sentence2 else ["ft-blank"]),
            self.options[0]: gr.update(visible=bool(columns.sentence2)),
            **{control: gr.update(visible=chosen) for control in self.options[1:]},
            **self._sampled(store, run),
        }
        if not question or question[0] != run:
            updates[self.address] = elements.query(run=run or "")
        if question and question[0] != run:
            idle = gr.update(interactive=False)
            updates |= {self.answer: _waiting(), self.why: idle, self.reasons: ""}
        return updates

    @handler(errors_in="answer")
    def on_opened(self, store: RunStore, run_id: str | None, linked: Any) -> Updates:
        """Ask the pair of an address, or preload the chosen run's model. Problems are told when the
        model is asked."""
        if linked:
            sentence1, sentence2 = linked
            return self._asked(store, run_id, sentence1, sentence2, PredictOptions())
        with suppress(FinetuneError):
            if run_id and store.get(run_id):
                with self.models.using(store, run_id) as predictor:
                    predictor("warm", "up")  # the first pass is the slow one
        return {}

    @handler(errors_in="answer", latest=True)
    def on_ask(
        self, store: RunStore, run: str | None, first: str, second: str, *options: bool
    ) -> Updates:
        """Answer one pair, with the newest model if the tab has not chosen one yet."""
        run = run or next((model.id for _, model in choosers.models(store)), None)
        return self._asked(store, run, first, second, PredictOptions(*map(bool, options)))

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
            label = choosers.columns(store, run_id).label
            template = f"answer/{find_task(prediction.task).template}.html"
            answer = macro(template, "answer")(prediction, label)
            question = (run_id, sentence1, sentence2, options)
            pair = elements.query(run=run_id or "", sentence1=sentence1, sentence2=sentence2)
            address = pair if len(pair) <= _LONGEST else address
        return {
            self.address: address,
            self.answer: answer,
            self.why: gr.update(interactive=question is not None),
            self.reasons: "",
            self.question: question,
        }

    @handler(errors_in="reasons")
    def on_why(self, store: RunStore, question: Any, progress: gr.Progress = _PROGRESS) -> Updates:
        """Explain the answer to the question, and show what would change it."""
        if question is None:
            raise DataError("Nothing was asked yet.", "Ask first.")
        run_id, sentence1, sentence2, options = question
        weighing, editing = gettext("Weighing the words"), gettext("Trying small edits")
        progress(0, weighing)
        with self.models.using(store, run_id) as predictor:
            label, explanation = predictor.explain(
                sentence1, sentence2, options, lambda share: progress(share / 2, weighing)
            )
            flips, tried = predictor.flips(
                sentence1, sentence2, options, lambda share: progress((1 + share) / 2, editing)
            )
        summary, why = store.get(run_id).state(), macro("answer.html", "why")
        has_right = summary.task.has_right
        return {self.reasons: why(explanation, flips, tried, label, summary.columns, has_right)}

    @handler("offered.click", errors_in="answer", latest=True)
    def on_sample(
        self, store: RunStore, pressed: Pressed, run: str | None, samples: Any, *options: bool
    ) -> Updates:
        """Ask about one of the pairs that are offered, or offer others."""
        if pressed.get("do") != "ask":
            return self._sampled(store, run)
        by_place = {str(place): pair for place, pair in enumerate(samples)}
        if (pair := by_place.get(str(pressed.get("what")))) is None:
            return {}
        texts = pair.sentence1, pair.sentence2
        filled = dict(zip((self.first, self.second), texts, strict=True))
        return filled | self._asked(store, run, *texts, PredictOptions(*map(bool, options)))

    def _sampled(self, store: RunStore, run_id: str | None) -> Updates:
        """Offer other validation pairs of a run; none if they cannot be read."""
        pairs: list[examples.SampledPair] = []
        with suppress(FinetuneError):
            pairs = examples.sample_pairs(store.get(run_id))
        label = choosers.columns(store, run_id).label
        offered = macro("answer.html", "samples")(pairs, label) if pairs else ""
        return {self.samples: pairs, self.offered: offered}


def _waiting() -> Markup:
    return feedback.note(gettext("The answer appears here."))
