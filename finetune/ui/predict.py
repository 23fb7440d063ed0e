"""The Predict tab: two sentences, what a tuned model says of them, and how sure it is.

torch is imported with the first question, not with the page.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from finetune import jobs
from finetune.errors import FinetuneError
from finetune.store import RunStore
from finetune.ui import edge, models

if TYPE_CHECKING:
    from finetune.predict import Prediction, Shelf

EXAMPLES = [
    ["The library opens an hour later on Sundays.", "On Sundays the library opens one hour later."],
    ["The nurse thanked the driver.", "The driver thanked the nurse."],
    ["Your refund will arrive within five days.", "Your refund will arrive within fifteen days."],
    ["Nobody was hurt when the roof came down.", "The roof collapsed without injuring anyone."],
]


@dataclass
class PredictTab:
    """The tab's controls and what its events do.

    Args:
        store: where runs are.
    """

    store: RunStore
    _shelf: Shelf | None = None

    def draw(self) -> None:
        """Lay out the tab inside the current `gr.Tab` and wire its events."""
        gr.HTML(edge.note("Ask a tuned model whether two sentences mean the same."))
        self.empty = gr.HTML(models.EMPTY, elem_id="predict-empty")
        self.run = gr.Dropdown([], label="Model", elem_id="predict-run", interactive=True)
        with gr.Row(equal_height=False):
            with gr.Column(min_width=320):
                self.first = gr.Textbox(
                    label="sentence1", max_lines=6, elem_id="sentence1", submit_btn=False
                )
                self.second = gr.Textbox(label="sentence2", max_lines=6, elem_id="sentence2")
                self.ask = gr.Button("Compare", variant="primary", elem_id="compare")
            with gr.Column(min_width=320):
                self.answer = gr.HTML(
                    edge.note("The answer appears here, with the probability of each class."),
                    elem_id="answer",
                )
        inputs = [self.run, self.first, self.second]
        self.run.change(
            self.on_run, self.run, [self.second, self.ask], queue=False, show_progress="hidden",
            api_visibility="private",
        )  # fmt: skip
        gr.Examples(EXAMPLES, [self.first, self.second], label="Try one of these")
        gr.on(
            [self.ask.click, self.first.submit, self.second.submit],
            self.on_ask,
            inputs,
            self.answer,
            concurrency_limit=4,
            show_progress="hidden",
            api_visibility="private",
        )

    def on_open(self, chosen: str | None) -> tuple[Any, Any, Any]:
        """The tab was opened: the models there are, and the newest chosen and loaded."""
        update, has_models = models.choices(self.store, chosen)
        return update, gr.update(visible=not has_models), gr.update(interactive=has_models)

    def on_run(self, run_id: str | None) -> tuple[Any, Any]:
        """Another model was chosen: one of single sentences needs no second box."""
        try:
            paired = jobs.summary(self.store, self.store.get(run_id)).paired
        except FinetuneError:
            paired = True
        return gr.update(visible=paired), gr.update(value="Compare" if paired else "Ask")

    def on_warm(self, run_id: str | None) -> None:
        """Load the chosen model before it is asked for; a problem is said when it is."""
        try:
            self._predictor(run_id).pair("warm", "up")  # the first pass is the slow one
        except FinetuneError:
            return

    def on_ask(self, run_id: str | None, sentence1: str, sentence2: str) -> str:
        """The answer to one pair as HTML."""
        try:
            return answer_html(self._predictor(run_id).pair(sentence1, sentence2))
        except Exception as error:
            return edge.said(error)

    def _predictor(self, run_id: str | None) -> Any:
        run = self.store.get(run_id)
        if self._shelf is None:
            from finetune.predict import Shelf

            self._shelf = Shelf()
        paired = jobs.summary(self.store, run).paired
        return self._shelf.get(run.best, run.config().max_length, paired)


def answer_html(prediction: Prediction) -> str:
    """Label, and a bar for each class's probability."""
    rows = []
    for name, value in prediction.probabilities.items():
        rows.append(
            f"<span>{html.escape(name)}</span>"
            f'<div class="ft-bar" role="img" aria-label="{html.escape(name)}: {value:.1%}">'
            f'<i style="width:{100 * value:.1f}%"></i></div><span>{value:.1%}</span>'
        )
    cut = f", {prediction.cut} more were cut by max_length" if prediction.cut else ""
    facts = f"{prediction.tokens} tokens{cut} \u00b7 {1000 * prediction.seconds:.0f} ms"
    return (
        f'<div role="status"><p class="ft-answer" id="label">{html.escape(prediction.label)}</p>'
        f'<div class="ft-prob">{"".join(rows)}</div><p class="ft-facts">{facts}</p></div>'
    )
