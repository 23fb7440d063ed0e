"""One run's evaluation and its errors: two parts of the Runs tab, drawn when they are looked at.

What the figures mean is `analysis`' business, how they look `verdict`'s.
"""

from __future__ import annotations

import html
import time
from dataclasses import dataclass
from typing import Any

import gradio as gr

from finetune.errors import FinetuneError, JobError
from finetune.evaluation import corrections, examples, report
from finetune.evaluation.report import RunEvaluation
from finetune.inference import decision_rule
from finetune.jobs import evaluation_jobs, service
from finetune.jobs.evaluation_jobs import EvaluationKind
from finetune.runs.store import Run, RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.ui import auth, evaluation_view, feedback, form, polling, routes
from finetune.ui.i18n import say, translate_term

View = dict[str, Any]
PARTS = ("Progress", "Evaluation", "Errors")
_ANY_CLASS = ("any class", "")
_ANY_HISTORY = ("any course", "")

# The slider moves the scores in the browser: all of them are there already.
_OF_RUN = """
const ofRun = () => element.querySelector('[data-run]')?.dataset.run ?? '';
"""
_SCRIPT = (
    _OF_RUN
    + """
const panel = () => element.querySelector('.ft-threshold');
function put(root, value, scores, exact) {
  root.dataset.now = exact;
  root.querySelector('output').textContent = value.toFixed(exact === String(value) ? 3 : 2);
  for (const [name, score] of Object.entries(scores)) {
    root.querySelector(`[data-score="${name}"]`).textContent = score.toFixed(3);
  }
  const cursor = root.querySelector('.ft-cursor');
  if (cursor) cursor.style.left = `${100 * value}%`;
}
let moved = null; // where the slider stands, not saved yet: {run, to}
function move(to) {
  const root = panel(), known = JSON.parse(root.dataset.sweep), best = known.best, scores = {};
  moved = {run: ofRun(), to};
  element.querySelector('#threshold-slider').value =
    to === 'best' ? Math.round(100 * best.threshold) : to;
  if (to === 'best') {
    put(root, best.threshold, best.values, String(best.threshold));
    return;
  }
  for (const [name, list] of Object.entries(known.values)) scores[name] = list[to];
  put(root, known.thresholds[to], scores, known.thresholds[to].toFixed(2));
}
element.addEventListener('input', (event) => {
  if (event.target.id === 'threshold-slider') move(Number(event.target.value));
});
element.addEventListener('click', (event) => {
  const part = event.target.closest('[data-do], [data-to]');
  if (!part) return;
  const root = panel();
  if (part.dataset.to === 'best') {
    move('best');
    return;
  }
  if (['save', 'forget'].includes(part.dataset.do)) moved = null;
  const now = root ? root.dataset.now || String(JSON.parse(root.dataset.sweep).now) : '';
  trigger('click', {do: part.dataset.do, run: ofRun(),
    what: part.dataset.do === 'save' ? now : part.dataset.what || ''});
});
"""
    + feedback.AS_DRAWN
    + """
watch('value', () => {
  if (moved?.run === ofRun() && panel()) move(moved.to); else moved = null;
});
"""
)
# An older answer that comes last would take a correction from the screen: then it is asked again.
_TABLE_SCRIPT = (
    _OF_RUN
    + """
element.addEventListener('click', (event) => {
  const part = event.target.closest('[data-do]');
  if (part) trigger('click', {do: part.dataset.do, what: part.dataset.what, run: ofRun()});
});
element.addEventListener('change', (event) => {
  const row = event.target.dataset.row;
  if (row === undefined) return;
  trigger('click', {do: 'label', what: row, label: event.target.value, run: ofRun()});
});
"""
    + feedback.AS_DRAWN
    + """
let latest = 0;
watch('value', () => {
  const at = Number(element.querySelector('[data-at]')?.dataset.at ?? 0);
  if (at < latest) trigger('submit', {});
  latest = at < latest ? 0 : at;
});
"""
)


@dataclass
class Evaluation:
    """The controls of both parts and what their events do.

    Args:
        store: where runs are.
    """

    store: RunStore

    def draw_choice(self) -> None:
        """The choice among the parts; no `gr.Tabs`, whose tabs come twice when drawn hidden."""
        self.part = gr.Radio(
            list(PARTS), value=PARTS[0], show_label=False, label="Part", elem_id="run-parts",
            container=False,
        )  # fmt: skip

    def draw(self, progress: gr.Column) -> None:
        """Lay out both parts.

        Args:
            progress: the part that the Runs tab draws itself.
        """
        self.page = gr.State(0)
        with gr.Column(visible=False, elem_id="part-evaluation") as evaluation:
            gr.HTML(feedback.note("Is it really better, how sure is that, and where does it fail?"))
            self.message = gr.HTML(elem_id="evaluation-message", elem_classes="ft-if-said")
            self.body = gr.HTML(elem_id="evaluation-body", js_on_load=_SCRIPT)
            self.orders = gr.Button(
                "Measure both orders", elem_id="measure-orders", visible=False, size="sm"
            )
            gr.HTML('<h2 class="ft-h">Test set</h2>')
            self.test = gr.HTML(elem_id="test-set")
            self.open = gr.Button(
                "Open the test set", elem_id="open-test", visible=False, size="sm"
            )
            with gr.Row(visible=False, elem_id="open-asked") as self.asked:
                gr.HTML(
                    feedback.note(
                        "It is scored once with the kept model, and that is written down."
                    )
                )
                self.sure = gr.Button("Open it", variant="primary", elem_id="open-sure", size="sm")
                self.rather = gr.Button("Keep it sealed", elem_id="open-not", size="sm")
        with gr.Column(visible=False, elem_id="part-errors") as errors:
            self._draw_errors()
        self.columns = [progress, evaluation, errors]
        self.pulse = polling.polling_element(1)

    def _draw_errors(self) -> None:
        gr.HTML(feedback.note("Read what it got wrong: the fastest way to know what to do next."))
        with gr.Row(equal_height=True):
            self.which = gr.Dropdown(
                [(name, name) for name in examples.SELECTIONS], value="wrong", label="examples",
                elem_id="errors-which", min_width=150,
            )  # fmt: skip
            self.label = gr.Dropdown(
                [_ANY_CLASS], value="", label="true class", elem_id="errors-label", min_width=130
            )
            self.history = gr.Dropdown(
                [_ANY_HISTORY, *((name, name) for name in report.HISTORIES)], value="",
                label="over the evaluations", elem_id="errors-history", min_width=150,
            )  # fmt: skip
            self.by = gr.Dropdown(
                [("confidence", "confidence"), ("length", "words"), ("word overlap", "overlap"),
                 ("place in the data", "row")],
                value="confidence", label="sorted by", elem_id="errors-by", min_width=130,
            )  # fmt: skip
            self.search = gr.Textbox(
                label="with the words", elem_id="errors-search", max_lines=1, min_width=150
            )
        self.counts = gr.HTML(elem_id="errors-counts")
        self.errors = gr.HTML(elem_id="errors-table", js_on_load=_TABLE_SCRIPT)
        self.corrected = gr.HTML(elem_id="corrections")
        self.start = gr.Button(
            "Put the corrected pairs into the form", elem_id="corrected-start", visible=False,
            size="sm",
        )  # fmt: skip

    def wire(self, view: gr.State, opened: Any) -> None:
        """Connect the events.

        Args:
            view: what the Runs tab looks at; its `opened` is the run.
            opened: the event after which another run may be looked at.
        """
        slow: dict[str, Any] = {**feedback.LATEST, "show_progress": "minimal"}
        self.shown = [self.body, self.orders, self.test, self.open, self.asked, self.pulse]
        self.asks = [self.which, self.label, self.history, self.by, self.search, self.page]
        self.listed = [self.errors, self.counts, self.corrected, self.start, self.page]
        everything = [*self.columns, self.message, *self.shown, *self.listed, self.label]
        here = [view, *self.asks]
        self.part.input(self.on_part, [view, self.part, *self.asks], everything, **slow)
        opened.then(self.on_part, [view, self.part, *self.asks], everything, **slow)
        self.body.click(self.on_choice, view, [self.message, *self.shown], **feedback.QUICK)
        self.orders.click(self.on_orders, view, [self.message, *self.shown], **feedback.QUICK)
        self.open.click(lambda: gr.update(visible=True), None, self.asked, **feedback.QUICK)
        self.rather.click(lambda: gr.update(visible=False), None, self.asked, **feedback.QUICK)
        self.sure.click(self.on_test, view, [self.message, *self.shown], **feedback.QUICK)
        self.pulse.submit(self.on_tick, view, self.shown, **feedback.QUICK)
        gr.on(
            [self.which.change, self.label.change, self.history.change, self.by.change,
             self.search.change],
            self.on_filter, [view, *self.asks[:-1]], self.listed,
            **feedback.LATEST,
        )  # fmt: skip
        self.errors.submit(self.on_again, here, self.listed, **feedback.LATEST)
        self.errors.click(
            self.on_table, here, [*self.listed, self.message],
            trigger_mode="multiple", **feedback.QUICK,
        )  # fmt: skip

    def on_part(self, request: gr.Request, view: View, part: str, *asks: Any) -> list[Any]:
        """A part was chosen, or another run may be looked at: the part in sight is drawn anew."""
        shown, listed, label = [gr.skip()] * 6, [gr.skip()] * 5, gr.skip()
        if view.get("opened") and part == PARTS[1]:
            shown = self._shown(request, view)
        elif view.get("opened") and part == PARTS[2]:
            listed, label = self._errors(request, view, asks)
        seen = [gr.update(visible=name == part) for name in PARTS]
        return [*seen, "", *shown, *listed, label]

    def _run(
        self, request: gr.Request, view: View, told: dict[str, Any] | None = None
    ) -> tuple[RunStore, Run, RunSummary]:
        """The run that is looked at, or the one whose drawing told something."""
        store = auth.visitor_store(self.store, request)
        run = store.get(view.get("opened") if told is None else told.get("run"))
        return store, run, service.run_summary(store, run)

    def _shown(
        self, request: gr.Request, view: View, event: gr.EventData | None = None
    ) -> list[Any]:
        """Body, both orders, test set, whether it can be opened, no question, the pulse."""
        hidden = gr.update(visible=False)
        try:
            _, run, summary = self._run(request, view)
            study = report.evaluate_run(run, summary)
        except Exception as error:
            return [
                feedback.show_errors(error),
                hidden,
                "",
                hidden,
                hidden,
                polling.polling_value(False, event),
            ]
        ended = summary.status in ENDED
        orders, test = (evaluation_jobs.evaluation_state(run, what) for what in ("orders", "test"))  # type: ignore[arg-type]
        unmeasured = study.analysis.order is None and summary.paired and ended
        body = evaluation_view.view(study, summary, decision_rule.read_rule(run.best)) + _mark(run)
        if orders.running:
            body += feedback.note(
                say("Measuring both orders: {doing} \u2026", doing=translate_term(orders.doing))
            )
        elif orders.error:
            body += feedback.show_errors(JobError(orders.error, orders.remedy))
        has_test = "test" in (summary.prepared.data.get("rows", {}) if summary.prepared else {})
        return [
            body,
            gr.update(visible=unmeasured and not orders.running),
            evaluation_view.test_set(summary, self._test(run, summary), test, has_test),
            gr.update(
                visible=has_test and ended and not test.running,
                value=say("Open it again") if summary.opened else say("Open the test set"),
            ),
            hidden,
            polling.polling_value(orders.running or test.running, event),
        ]

    def _test(self, run: Run, summary: RunSummary) -> RunEvaluation | None:
        try:
            return report.evaluate_run(run, summary, "test") if summary.opened else None
        except FinetuneError:
            return None

    def on_tick(self, request: gr.Request, view: View, event: gr.EventData) -> list[Any]:
        """Something is being measured: what is known by now."""
        return self._shown(request, view, event)

    def on_choice(self, request: gr.Request, view: View, event: gr.EventData) -> list[Any]:
        """A threshold or a temperature was saved with the model, or forgotten."""
        told = event._data if isinstance(event._data, dict) else {}
        try:
            _, run, summary = self._run(request, view, told)
            if summary.status not in ENDED:
                raise JobError("This run is still training.", "Save it when the run has ended.")
            said = _choose(run, summary, str(told.get("do")), told.get("what"))
        except Exception as error:
            return [feedback.show_errors(error), *([gr.skip()] * 6)]
        return [feedback.good(said), *self._shown(request, view)]

    def on_orders(self, request: gr.Request, view: View) -> list[Any]:
        """Both orders shall be measured."""
        return self._measure(request, view, "orders")

    def on_test(self, request: gr.Request, view: View) -> list[Any]:
        """The test set shall be opened."""
        return self._measure(request, view, "test")

    def _measure(self, request: gr.Request, view: View, what: EvaluationKind) -> list[Any]:
        try:
            store, run, _ = self._run(request, view)
            evaluation_jobs.start_evaluation(store, run, what)
        except Exception as error:
            return [feedback.show_errors(error), *([gr.skip()] * 6)]
        return ["", *self._shown(request, view)]

    def on_again(self, request: gr.Request, view: View, *asks: Any) -> list[Any]:
        """The answers came in another order than they were asked in: the same, as it is now."""
        return self._errors(request, view, asks)[0]

    def on_filter(self, request: gr.Request, view: View, *asks: Any) -> list[Any]:
        """Other examples are wanted: from the first."""
        return self._errors(request, view, (*asks, 0))[0]

    def _errors(
        self, request: gr.Request, view: View, asks: tuple[Any, ...]
    ) -> tuple[list[Any], Any]:
        """Table, counts, corrections, the button, the page; and the classes to choose from."""
        which, label, history, by, search, page = asks
        hidden, at = gr.update(visible=False), time.time_ns() // 1000
        try:
            _, run, summary = self._run(request, view)
            study = report.evaluate_run(run, summary)
            rows = examples.select_examples(
                study, str(which), str(label or ""), str(history or ""), str(search or "")[:200],
                str(by),
            )  # fmt: skip
            if near := which == "suspected labels" and not len(rows):
                rows = examples.most_doubted_errors(study, str(label or ""), str(history or ""),
                                        str(search or "")[:200])  # fmt: skip
            known = corrections.read_corrections(run)
        except Exception as error:
            return [feedback.show_errors(error), "", "", hidden, 0], gr.skip()
        first = int(page) if 0 <= int(page or 0) < max(1, len(rows)) else 0
        labels = study.analysis.labels
        table = evaluation_view.examples(
            examples.example_rows(study, rows[first : first + evaluation_view.PAGE].tolist()),
            len(rows), first, labels, known, study.table is not None, near,
        ) + _mark(run, at)  # fmt: skip
        offered = [(say("any class"), ""), *((name, name) for name in labels)]
        chosen = label if label in labels else ""
        listed = [table, _counts(study), _corrected(run, known), gr.update(visible=bool(known))]
        return [*listed, first], gr.update(choices=offered, value=chosen)

    def on_table(
        self,
        request: gr.Request,
        view: View,
        which: str,
        label: str,
        history: str,
        by: str,
        search: str,
        page: int,
        event: gr.EventData,
    ) -> list[Any]:
        """A page was turned, or an example got another class."""
        told = event._data if isinstance(event._data, dict) else {}
        message = ""
        try:
            if told.get("do") == "page":
                page = int(told.get("what") or 0)
            elif told.get("do") == "label":
                _, run, summary = self._run(request, view, told)
                names = summary.prepared.labels if summary.prepared else []
                row = int(told.get("what") or 0)
                corrections.correct_label(run, row, str(told.get("label")), names)
        except ValueError:
            page = 0
        except Exception as error:
            message = feedback.show_errors(error)
        asks = (which, label, history, by, search, page)
        return [*self._errors(request, view, asks)[0], message]

    def on_start(self, request: gr.Request, view: View) -> list[Any]:
        """The corrected pairs go into the form; then the tab to show and a message."""
        try:
            store, run, _ = self._run(request, view)
            chosen = corrections.corrections_upload(store, run)
            return [*form.filled(store, chosen), gr.Tabs(selected="train"), ""]
        except Exception as error:
            return [gr.skip()] * (len(form.NAMES) + 2) + [feedback.show_errors(error)]


def _choose(run: Run, summary: RunSummary, act: str, what: object) -> str:
    """Carry out one choice; what to say of it.

    Raises:
        DataError, StoreError: as `decision.write`.
    """
    names = summary.prepared.labels if summary.prepared else []
    data = summary.prepared.data if summary.prepared else {}
    positive = str(data.get("positive_label") or (names[-1] if names else ""))
    try:
        value = float(str(what)) if act in ("save", "temper") else 0.0
    except ValueError:
        value = -1.0
    if act == "save":
        decision_rule.write_rule(run.best, threshold=value, positive=positive)
        return say("The threshold {n:.3f} is saved with the model. Predict offers it.", n=value)
    if act == "temper":
        decision_rule.write_rule(run.best, temperature=value)
        return say("The temperature {n:.2f} is saved with the model. Predict offers it.", n=value)
    if act == "forget":
        decision_rule.write_rule(run.best, threshold=None, positive="")
        return say("The saved threshold is forgotten.")
    if act == "cool":
        decision_rule.write_rule(run.best, temperature=None)
        return say("The saved temperature is forgotten.")
    raise JobError("There is no such choice.")


def _counts(study: RunEvaluation) -> str:
    counts = study.analysis.histories
    parts = [
        f"<b>{counts[name]:,}</b> {html.escape(translate_term(name))}"  # type: ignore[index]
        for name in report.HISTORIES
    ]
    if suspects := len(study.suspects):
        parts.append(say("suspected label mistakes: <b>{n:,}</b>", n=suspects))
    kept = "" if study.table is not None else " " + say(
        "The texts of these pairs were not kept: Measure both orders reads them again."
    )  # fmt: skip
    text = say("Over the evaluations: {counts}.", counts=" \u00b7 ".join(parts))
    if study.analysis.evaluations < 2:
        text = say("One evaluation so far; the next one shows what is learned and forgotten.")
    return f'<p class="ft-facts" id="histories">{text}{kept}</p>'


def _mark(run: Run, at: int = 0) -> str:
    """Of which run a drawing is, and as of when, in microseconds: what is told from it is told of
    that run, though another may have been opened meanwhile."""
    return f'<i hidden data-run="{run.id}" data-at="{at}"></i>'


def _corrected(run: Run, known: dict[int, str]) -> str:
    if not known:
        return feedback.note(
            say(
                "Where the data is wrong, choose another class in the column label. Under "
                "examples, \u201csuspected labels\u201d lists those that the model never got right "
                "and was sure about."
            )
        )
    text = say("{n:,} labels corrected. A new run can start from them.", n=len(known))
    if len(known) == 1:
        text = say("1 label corrected. A new run can start from it.")
    called = html.escape(say("Corrected validation pairs (CSV)"))
    link = routes.download_link(run, "corrected.csv", called)
    return f'{feedback.note(text)}<div class="ft-links">{link}</div>'
