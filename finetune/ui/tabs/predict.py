"""The Predict tab: two sentences, what a model says of them and why; and whole files.

torch is imported with the first question, not with the page.
"""

from __future__ import annotations

import html
import json
import random
import secrets
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gradio as gr

from finetune import text_hashes
from finetune.data import catalog
from finetune.errors import DataError, FinetuneError, NoSuchRun
from finetune.evaluation import examples, report
from finetune.inference.decision_rule import PredictOptions
from finetune.jobs import service
from finetune.runs.store import RunStore
from finetune.ui import answer_view, auth, feedback, model_chooser, tab_links
from finetune.ui.i18n import gettext
from finetune.ui.model_chooser import Models
from finetune.ui.tabs.predict_file import BatchPart

if TYPE_CHECKING:
    from finetune.inference.predictor import Predictor

EXAMPLES = [
    ["The library opens an hour later on Sundays.", "On Sundays the library opens one hour later."],
    ["The nurse thanked the driver.", "The driver thanked the nurse."],
    ["Your refund will arrive within five days.", "Your refund will arrive within fifteen days."],
    ["Nobody was hurt when the roof came down.", "The roof collapsed without injuring anyone."],
]
_WAIT = "The answer appears here, with the probability of each class."
_HISTORY_SCRIPT = """
element.addEventListener('change', (event) => {
  const place = event.target.dataset.place;
  if (place === undefined) return;
  (window.ftVerdicts ??= {})[place] = event.target.value;
  element.querySelector('a[download]').removeAttribute('href'); // the one to come has this verdict
  trigger('click', {});
});
element.addEventListener('click', (event) => {
  if (event.target.closest('[data-do="clear"]')) trigger('submit', {});
});
"""
# A new question moves the others down: who is in one's box stays in it, and a verdict that was
# given meanwhile is shown.
_KEEP_PLACE = (
    feedback.AS_DRAWN
    + """
let held;
element.addEventListener('focusin', (event) => { held = event.target.dataset.place; });
element.addEventListener('focusout', () => { held = undefined; });
watch('value', () => {
  const said = window.ftVerdicts ?? {};
  for (const box of element.querySelectorAll('select'))
    box.value = said[box.dataset.place] ?? box.value;
  if (held === undefined) return;
  element.querySelector(`[data-place="${held}"]`)?.focus({preventScroll: true});
});
"""
)
# The browser alone writes what it remembers, so neither a question that is being answered nor a
# verdict that is being drawn loses another one. `n` is a question's for good, for the oldest go;
# the same question again, as by a double click, is none.
_REMEMBER = """(asked, kept) => {
  const said = window.ftVerdicts ?? {};
  const known = (Array.isArray(kept) ? kept : []).map((one, place) => {
    const n = one.n ?? place;
    return {...one, n, label: said[n] ?? one.label};
  });
  const question = ({when, label, n, ...rest}) => JSON.stringify(rest);
  const last = known.at(-1);
  if (asked && !(last && question(last) === question(JSON.parse(asked)))) {
    known.push({...JSON.parse(asked), n: (last?.n ?? -1) + 1});
  }
  return [known.slice(-MOST), ''];
}""".replace("MOST", str(answer_view.MOST))
# Of another model nothing was asked yet. Gradio tells of a choice also when it is merely left.
_OTHER_MODEL = (
    "(run, question) => !question || JSON.parse(question).run === run"
    f" ? [{feedback.KEEP}, {feedback.KEEP}, {feedback.KEEP}]"
    f" : [{json.dumps(feedback.note(_WAIT))}, {{__type__: 'update', visible: false}}, '']"
)
# Why something else was answered is not said of what was answered since.
_BECAUSE = """(said, question) => {
  const of = /data-of="(\\w+)"/.exec(said)?.[1];
  return [of && JSON.parse(question || '{}').id !== of ? '' : said];
}"""
_FORGET = "() => { window.ftVerdicts = {}; return [[]]; }"
# In the background, for everybody: a slow question holds up no tick of a page.
_SLOW: dict[str, Any] = {"show_progress": "minimal", "api_visibility": "private"}


@dataclass
class PredictTab:
    """The tab's controls and what its events do.

    Args:
        store: where runs are.
    """

    store: RunStore
    loaded: Models = field(init=False)
    batch: BatchPart = field(init=False)

    def __post_init__(self) -> None:
        self.loaded = Models(self.store)
        self.batch = BatchPart(self.store)

    def remember(self) -> None:
        """What the browser remembers; made outside the tabs, where it is there from the start."""
        self.kept = gr.BrowserState([], storage_key="finetune-tried", secret="finetune")

    def draw(self) -> None:
        """Lay out the tab inside the current `gr.Tab` and wire its events; after `remember`."""
        gr.HTML(feedback.note("Ask a tuned model whether two sentences mean the same, and why."))
        self.empty = gr.HTML(
            model_chooser.empty(),
            elem_id="predict-empty",
            js_on_load=tab_links.SCRIPT,
            visible=False,
        )
        self.run = gr.Dropdown(
            [], label="Model", elem_id="predict-run", interactive=True, allow_custom_value=True,
            info="A run of yours, or a text classifier of the Hub as owner/name.",
        )  # fmt: skip
        with gr.Row(equal_height=False):
            with gr.Column(min_width=320):
                self._draw_question()
            with gr.Column(min_width=320):
                self.answer = gr.HTML(feedback.note(_WAIT), elem_id="answer")
                self.why = gr.Button("Why?", elem_id="ask-why", visible=False, size="sm")
        self.reasons = gr.HTML(elem_id="reasons")
        # Kept by the browser: what it shall remember of an answer, and the question answered.
        self.asked, self.question = (
            gr.HTML("", html_template="", elem_classes="ft-pulse") for _ in range(2)
        )
        gr.Examples(EXAMPLES, [self.first, self.second], label="Try one of these")
        with gr.Accordion("What you tried", open=False, elem_id="tried-fold"):
            self.tried = gr.HTML(
                answer_view.history([]), elem_id="tried", js_on_load=_HISTORY_SCRIPT + _KEEP_PLACE
            )
        with gr.Accordion("A whole file", open=False, elem_id="batch-fold") as fold:
            self.batch.draw(self.run, self.options, fold)
        self._wire()

    def _draw_question(self) -> None:
        self.first = gr.Textbox(
            label="sentence1", max_lines=6, elem_id="sentence1", submit_btn=False
        )
        self.second = gr.Textbox(label="sentence2", max_lines=6, elem_id="sentence2")
        with gr.Row():
            self.ask = gr.Button(
                "Compare", variant="primary", elem_id="compare", min_width=120, scale=1
            )
            self.right = gr.Button(
                "Fill in a pair it got right",
                elem_id="draw-right",
                size="md",
                min_width=180,
                scale=2,
            )
            self.wrong = gr.Button(
                "Fill in a pair it got wrong",
                elem_id="draw-wrong",
                size="md",
                min_width=180,
                scale=2,
            )
        self.drawn = gr.HTML(elem_id="drawn", elem_classes="ft-if-said")
        with gr.Accordion("How the answer is made", open=False, elem_id="ways"):
            both = gr.Checkbox(
                label="average both orders", elem_id="way-both",
                info="The mean of both orders' probabilities; the order then changes nothing.",
            )  # fmt: skip
            threshold = gr.Checkbox(
                label="use the saved threshold", elem_id="way-threshold",
                info="Chosen under Runs, Evaluation; otherwise the most probable class wins.",
            )  # fmt: skip
            calibrated = gr.Checkbox(
                label="calibrated probabilities", elem_id="way-calibrated",
                info="With the temperature saved under Runs, Evaluation.",
            )  # fmt: skip
        self.options = [both, threshold, calibrated]

    def _wire(self) -> None:
        asked = [self.run, self.first, self.second]
        self.run.change(self.on_run, self.run, [self.second, self.ask], **feedback.LATEST)
        questions = [self.ask.click, self.first.submit, self.second.submit]
        shown = [self.answer, self.why, self.reasons, self.asked, self.question]
        answered = gr.on(questions, self.on_ask, [*asked, *self.options], shown, **feedback.LATEST)
        of_answer = [self.answer, self.why, self.reasons]
        self.run.input(
            None, [self.run, self.question], of_answer, js=_OTHER_MODEL, **feedback.QUICK
        )
        self.why.click(self.on_why, self.question, self.reasons, concurrency_limit=2, **_SLOW).then(
            None, [self.reasons, self.question], self.reasons, js=_BECAUSE, **feedback.QUICK
        )
        drawn = [self.first, self.second, self.drawn]
        self.right.click(self.on_right, self.run, drawn, **feedback.QUICK)
        self.wrong.click(self.on_wrong, self.run, drawn, **feedback.QUICK)
        here = [self.asked, self.kept]
        for changed in (
            answered.then(None, here, here[::-1], js=_REMEMBER, **feedback.QUICK),
            self.tried.click(None, here, here[::-1], js=_REMEMBER, **feedback.QUICK),
            self.tried.submit(None, None, self.kept, js=_FORGET, **feedback.QUICK),
        ):
            changed.then(self.on_tried, self.kept, self.tried, **feedback.LATEST)

    def on_open(
        self, request: gr.Request, chosen: str | None, kept: Any
    ) -> tuple[Any, Any, Any, Any]:
        """The tab was opened: the models there are, the newest chosen; and what was tried."""
        update, has_models = model_chooser.choices(auth.visitor_store(self.store, request), chosen)
        if catalog.is_hub_id(chosen):  # typed, and no run of anybody's
            update |= {"value": chosen, "visible": True}
        tried = answer_view.history(_history(kept))
        return update, gr.update(visible=not has_models), gr.update(interactive=True), tried

    def on_run(self, request: gr.Request, run_id: str | None) -> tuple[Any, Any]:
        """Another model was chosen: one of single sentences needs no second box."""
        try:
            store = auth.visitor_store(self.store, request)
            paired = service.run_summary(store, store.get(run_id)).paired
        except FinetuneError:
            paired = True
        return gr.update(visible=paired), gr.update(
            value=gettext("Compare") if paired else gettext("Ask")
        )

    def on_warm(self, request: gr.Request, run_id: str | None) -> None:
        """Load the chosen run's model before it is asked for; a problem is said when it is."""
        try:
            store = auth.visitor_store(self.store, request)
            if run_id and store.get(run_id):
                with self.loaded.using(store, run_id) as predictor:
                    predictor("warm", "up")  # the first pass is the slow one
        except FinetuneError:
            return

    def on_ask(
        self,
        request: gr.Request,
        run_id: str | None,
        sentence1: str,
        sentence2: str,
        both: bool,
        threshold: bool,
        calibrated: bool,
    ) -> tuple[Any, Any, Any, Any, Any]:
        """The answer to one pair as HTML, and as JSON what the browser remembers of it and what
        was asked."""
        try:
            with self._predictor(request, run_id) as predictor:
                found = predictor(sentence1, sentence2, _way(both, threshold, calibrated))
        except Exception as error:
            return feedback.show_errors(error), gr.update(visible=False), "", "", ""
        entry = {
            "when": time.strftime("%Y-%m-%d %H:%M"),
            "model": str(run_id),
            "sentence1": sentence1,
            "sentence2": sentence2 if predictor.paired is not False else "",
            "prediction": found.label,
            "probability": round(found.probabilities[found.label], 4),
            "labels": list(dict.fromkeys([found.label, *predictor.labels]))[:20],
            "label": "",
        }
        question = _json(
            {"id": secrets.token_hex(8), "run": run_id, "sentences": [sentence1, sentence2],
             "ways": [bool(both), bool(threshold), bool(calibrated)]}
        )  # fmt: skip
        return answer_view.answer(found), gr.update(visible=True), "", _json(entry), question

    def on_why(self, request: gr.Request, question: str) -> str:
        """Why the answer to the question is as it is, and what would change it, as HTML."""
        try:
            asked, run_id, (sentence1, sentence2), way = _question(question)
            with self._predictor(request, run_id) as predictor:
                label, explanation = predictor.explain(sentence1, sentence2, way)
                found, tried = predictor.flips(sentence1, sentence2, way)
        except Exception as error:
            return feedback.show_errors(error)
        told = answer_view.why(explanation, label) + answer_view.flips(found, tried, label)
        return f'{told}<i hidden data-of="{html.escape(asked)}"></i>'

    def on_right(self, request: gr.Request, run_id: str | None) -> tuple[Any, Any, Any]:
        """A validation pair that the model gets right."""
        return self._drawn(request, run_id, "right")

    def on_wrong(self, request: gr.Request, run_id: str | None) -> tuple[Any, Any, Any]:
        """A validation pair that the model gets wrong."""
        return self._drawn(request, run_id, "wrong")

    def _drawn(self, request: gr.Request, run_id: str | None, which: str) -> tuple[Any, Any, Any]:
        try:
            store = auth.visitor_store(self.store, request)
            run = store.get(run_id)
            study = report.evaluate_run(run, service.run_summary(store, run))
            rows = examples.select_examples(study, which)
            if study.table is None or not len(rows):
                raise DataError(
                    f"There is no validation pair that it gets {which}."
                    if study.table is not None
                    else "The validation pairs of this run were not kept."
                )
            one = examples.example_rows(study, [int(random.choice(rows))])[0]
        except NoSuchRun:
            return (
                gr.skip(),
                gr.skip(),
                feedback.note(gettext("Only runs of yours have validation pairs here.")),
            )
        except Exception as error:
            return gr.skip(), gr.skip(), feedback.show_errors(error)
        said = gettext(
            "Validation example {n:,}: its label is {label}. {history}.",
            n=one.row + 1,
            label=one.label,
            history=gettext(one.history),
        )
        return one.sentence1, one.sentence2, feedback.note(said)

    def on_tried(self, kept: Any) -> str:
        """A verdict was given, or what was tried was forgotten: it is drawn anew."""
        return answer_view.history(_history(kept))

    def _predictor(
        self, request: gr.Request, run_id: str | None
    ) -> AbstractContextManager[Predictor]:
        return self.loaded.using(auth.visitor_store(self.store, request), run_id)


def _question(text: str) -> tuple[str, Any, list[str], PredictOptions]:
    """Its id, the model, both sentences and the way they were asked; any client can send anything.

    Raises:
        DataError: when it is no question.
    """
    try:
        told = json.loads(text)
        sentences, ways = [str(one or "") for one in told["sentences"]], list(told["ways"])
        if len(sentences) == 2 and len(ways) == 3:
            return str(told["id"]), told["run"], sentences, _way(*ways)
    except (KeyError, TypeError, ValueError):
        pass
    raise DataError("Nothing was asked yet.", "Ask first.")


def _way(both: object, threshold: object, calibrated: object) -> PredictOptions:
    return PredictOptions(bool(both), bool(threshold), bool(calibrated))


def _history(kept: object) -> list[dict[str, Any]]:
    """What this browser remembers, as far as it can be trusted to be that."""
    if not isinstance(kept, list):
        return []
    found = json.loads(_json(kept[-answer_view.MOST :]))
    return [one for one in found if isinstance(one, dict)]


def _json(value: object) -> str:
    """As JSON that can be sent: a lone surrogate, which a person can paste, cannot."""
    return text_hashes.replace_surrogates(json.dumps(value, ensure_ascii=False))
