"""One run's evaluation and its examples: two parts of the Runs tab, drawn when they are opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import gradio as gr
from markupsafe import Markup

from finetune.errors import FinetuneError
from finetune.evaluation import abstention, corrections, report
from finetune.evaluation.abstention import Abstention
from finetune.evaluation.examples import SELECTIONS, select_examples
from finetune.inference import decision_rule
from finetune.jobs import evaluate
from finetune.jobs.evaluate import EvaluationJob
from finetune.messages import message
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary
from finetune.ui import elements, evaluation_view, feedback, form
from finetune.ui.elements import button, sent_number
from finetune.ui.html import asset, macro, render
from finetune.ui.i18n import gettext
from finetune.ui.panel import Panel, Pressed, Updates, handler
from finetune.ui.run_view import View

PARTS = EVALUATION, ERRORS, PROGRESS = (
    message("Evaluation"), message("Errors"), message("Progress and notes"),
)  # fmt: skip
_TEXT = "evaluation_text.html"
# By button: the part of the decision rule that it forgets, and what is said of a press.
_FORGOTTEN: dict[str, dict[str, Any]] = {
    "forget": {"threshold": None}, "cool": {"temperature": None}, "always": {"sure": None},
    "drop": {"thresholds": ()},
}  # fmt: skip
_SAID = {
    "save": message("The threshold {n:.3f} is saved with the model. Predict uses it."),
    "forget": message("The saved threshold is forgotten."),
    "temper": message("The temperature {n:.2f} is saved with the model. Predict offers it."),
    "cool": message("The saved temperature is forgotten."),
    "keep": message("A threshold for each label is saved with the model."),
    "always": message("The model answers every row again."),
    "drop": message("The saved thresholds are forgotten."),
}
_UNBOUND = message(
    "The bound on its errors was one of the former answers, and is forgotten: ask for it again "
    "under When sure."
)


class Evaluation(Panel):
    def draw_choice(self, view: gr.State) -> None:
        """Draw the choice of a part of the run that is opened in `view`."""
        self.view = view
        choices = [(part, part) for part in PARTS]
        self.part = elements.parts(choices, "Part", "run-parts")

    def draw(self, draw_progress: Callable[[], None]) -> None:
        """Lay out the parts; the last is the Runs tab's own."""
        self.message = elements.notice("evaluation-message")
        with gr.Column(elem_id="part-evaluation") as evaluation:
            script = asset("part_tabs.js") + _script("threshold.js")
            self.body = gr.HTML(elem_id="evaluation-body", js_on_load=script)
        with gr.Column(visible=False, elem_id="part-errors") as errors:
            with gr.Row(equal_height=True):
                names, every = [(name, name) for name in SELECTIONS], [("any label", "")]
                self.filters: list[Any] = [
                    elements.dropdown(names, "Examples", "errors-which", 140),
                    elements.dropdown(every, "True label", "errors-label", 140, value=""),
                    elements.text_box("With the words", "errors-search", 150),
                ]
            self.page = gr.State(0)
            self.at_page = [*self.filters, self.page]
            self.counts = elements.notice("errors-counts")
            self.table = gr.HTML(elem_id="errors-table", js_on_load=_script("examples.js"))
            self.corrected = gr.HTML(elem_id="corrections")
            text = "Put the corrected rows into the form"
            self.start = button(text, "corrected-start", visible=False, size="sm")
        with gr.Column(visible=False) as progress:
            draw_progress()
        self.columns = [evaluation, errors, progress]
        self.poller = elements.polling_element(1)

    def wire(self, opening: Sequence[Any]) -> None:
        """Connect the events. Those of `opening` may have opened another run."""
        self.connect()
        # Another part, or another run: one event, so that the last one's answer comes last.
        self.listen(
            self.on_part, self.part.input, *opening, show_progress="minimal",
            show_progress_on=[self.body, self.table],
        )  # fmt: skip

    @handler(latest=True)
    def on_part(self, store: RunStore, view: View, part: str, *at_page: Any) -> Updates:
        """Draw the visible part after another part or run was chosen."""
        updates: Updates = {
            column: gr.update(visible=name == part)
            for name, column in zip(PARTS, self.columns, strict=True)
        }
        updates[self.message] = ""
        run_id = view.get("opened")
        if run_id and part == EVALUATION:
            updates |= self._evaluation(store, run_id)
        elif run_id and part == ERRORS:
            updates |= self._examples(store, run_id, *at_page)
            summary = store.get(run_id).state()
            labels = summary.prepared.labels if summary.prepared else []
            choices = [(gettext("any label"), ""), *((name, name) for name in labels)]
            label = at_page[1] if at_page[1] in labels else ""
            updates[self.filters[1]] = gr.update(choices=choices, value=label)
            updates[self.filters[0]] = gr.update(visible=summary.task.has_right)
        return updates

    @handler("poller.submit", errors_in="body")
    def on_tick(self, store: RunStore, view: View) -> Updates:
        return self._evaluation(store, view["opened"])

    @handler("body.click", trigger_mode="multiple")
    def on_choice(self, store: RunStore, pressed: Pressed, view: View) -> Updates:
        """Save or forget a threshold or a temperature of the model, measure both orders of the
        sentences, or open the test set."""
        run, number = store.get(pressed.get("run")), sent_number(pressed)
        summary = run.state()
        decision, asked = dict(_FORGOTTEN.get(str(pressed.get("do")), {})), None
        match do := pressed.get("do"):
            case "orders" | "test":
                EvaluationJob.of(run, do).start(store)
            case "save":
                decision = {"threshold": number}
            case "temper":
                decision = {"temperature": number}
            case "keep":
                study = report.evaluate_run(run, summary)
                decision = {"thresholds": evaluation_view.fitted_thresholds(study.analysis)}
            case "sure":
                bound: dict[str, Any] = {n: pressed.get(n) for n in ("error", "confidence")}
                bound["per_class"] = bool(pressed.get("per_class"))
                asked = abstention.answer_when_sure(run, **bound)
                decision = {"sure": asked.rule} if asked.rule else {}
        note = feedback.good(gettext(_SAID[do], n=number)) if do in _SAID else Markup()
        if decision:
            was_sure = decision_rule.read_rule(run.best).sure
            evaluate.save_decision(run, summary, **decision)
            if was_sure and "sure" not in decision and not decision_rule.read_rule(run.best).sure:
                note += feedback.note(gettext(_UNBOUND))
        return self._evaluation(store, view["opened"], asked) | {self.message: note}

    @handler("filters.change", latest=True)
    def on_filter(self, store: RunStore, view: View, *filters: Any) -> Updates:
        """List the examples that the filters choose."""
        return self._examples(store, view["opened"], *filters) | {self.message: ""}

    @handler("table.click", trigger_mode="multiple")
    def on_table(self, store: RunStore, pressed: Pressed, view: View, *at_page: Any) -> Updates:
        """Turn a page, or correct a label."""
        number = int(sent_number(pressed))
        if pressed.get("do") == "page":
            at_page = (*at_page[:-1], number)
        else:
            run = store.get(pressed.get("run"))
            labels = _labels(run.state())
            if labels:
                corrections.correct_label(run, number, str(pressed.get("label")), labels)
        return self._examples(store, view["opened"], *at_page) | {self.message: ""}

    @handler()
    def on_start(self, store: RunStore, view: View) -> Updates:
        """Put the corrected pairs into the form and show the form."""
        config = corrections.corrections_upload(store, store.get(view["opened"]))
        return form.filled(self.filled, store, config) | {self.message: ""}

    def _evaluation(self, store: RunStore, run_id: str, asked: Abstention | None = None) -> Updates:
        """Draw the Evaluation part; `asked` is what a bound just asked for comes to."""
        try:
            run = store.get(run_id)
            summary = run.state()
            study = report.evaluate_run(run, summary)
        except FinetuneError as error:
            return {self.body: feedback.show_errors(error), self.poller: False}
        orders = EvaluationJob.of(run, "orders").state()
        test = EvaluationJob.of(run, "test").state()
        opened = None
        if summary.opened and summary.opened[-1].step == study.analysis.step:
            opened = report.evaluate_run(run, summary, "test").analysis
        test_set = render("test_set.html", summary=summary, analysis=opened, job=test)
        rule = decision_rule.read_rule(run.best)
        found = asked
        if found is None and summary.task.has_right:
            with suppress(FinetuneError):  # the kept bound is of a test set that cannot be read
                found = abstention.answer_when_sure(run, **abstention.bound_of(rule.sure))
        body = evaluation_view.view(study, summary, rule, orders, test_set, found)
        return {
            self.body: body + macro(_TEXT, "drawing_of")(run.id),
            self.poller: orders.running or test.running,
        }

    def _examples(
        self, store: RunStore, run_id: str, which: str, label: str, search: str, page: int = 0
    ) -> Updates:
        """Draw the Errors part from the `page`-th example on."""
        try:
            run = store.get(run_id)
            summary = run.state()
            study = report.evaluate_run(run, summary)
        except FinetuneError as error:
            texts = {self.table: feedback.show_errors(error), self.counts: "", self.corrected: ""}
            return texts | {self.start: gr.update(visible=False), self.page: 0}
        search = str(search or "")[:200]
        rows = select_examples(study, which, label, search=search)
        first = page if 0 <= page < max(1, len(rows)) else 0
        corrected = corrections.read_corrections(run)
        table = evaluation_view.examples(study, rows, first, corrected, summary.columns)
        label_column = summary.columns.label
        threshold, has_texts = study.analysis.threshold, study.table is not None
        doubts = macro(_TEXT, "doubts")(len(study.suspected_labels), has_texts, threshold)
        return {
            self.table: table + macro(_TEXT, "drawing_of")(run.id),
            self.counts: doubts,
            self.corrected: (
                macro(_TEXT, "corrected")(len(corrected), run.id, label_column)
                if _labels(summary)
                else ""
            ),
            self.start: gr.update(visible=bool(corrected)),
            self.page: first,
        }


def _script(name: str) -> str:
    return asset(name) + feedback.AS_DRAWN


def _labels(summary: RunSummary) -> list[str]:
    target = summary.prepared.target if summary.prepared else None
    return summary.task.choices(target) if target else []
