"""The release check below a comparison of runs: may a new model replace an old one?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import gradio as gr
from markupsafe import Markup

from finetune.errors import DataError
from finetune.evaluation import gate_report, release
from finetune.evaluation.gate import Judgement, Limits
from finetune.jobs import compare
from finetune.jobs.compare import ComparisonJob
from finetune.runs.events import Phase
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState
from finetune.ui import elements, feedback, upload_limits
from finetune.ui.elements import button
from finetune.ui.feedback import Updates, handler
from finetune.ui.html import render
from finetune.ui.i18n import gettext

_LISTED = 20  # changed answers of each kind


@dataclass
class ReleaseCheck:
    """Its controls and event handlers."""

    store: RunStore

    def draw(self) -> None:
        """Lay out the part, hidden, and wire its events."""
        with gr.Column(visible=False, elem_id="release-check") as self.box:
            elements.heading(gettext("Release check"))
            text = gettext(
                "The new model fails if it loses more right answers than it may, or if its gain is "
                "surely below the least. Both answer a golden file, whose labelled rows no model "
                "is trained on, or else the validation pairs."
            )
            elements.note(text)
            with gr.Row(equal_height=True):
                self.new = gr.Dropdown([], label=gettext("New model"), elem_id="check-new")
                self.old = gr.Dropdown([], label=gettext("Old model"), elem_id="check-old")
                self.max_lost = elements.number_box(
                    0, label=gettext("Answers that may be lost"), elem_id="check-lost",
                    min_width=150,
                )  # fmt: skip
                self.min_gain = elements.number_box(
                    -0.01, label=gettext("Least gain"), elem_id="check-gain", min_width=110
                )
            self.golden = elements.pairs_file(
                gettext("Golden file, if there is one"), "check-golden"
            )
            with gr.Row():
                self.start = button(
                    gettext("Check"), "check-start", 140, variant="primary", scale=0
                )
            self.message = elements.notice("check-message")
            self.result = gr.HTML(elem_id="check-result")
        self.poller = elements.polling_element(1)
        inputs = [self.new, self.old, self.max_lost, self.min_gain, self.golden]
        everything = elements.components(self)
        self.start.click(self.on_start, inputs, everything, **feedback.QUICK)
        chosen = [self.new.change, self.old.change]  # the result is of other models
        gr.on(chosen, lambda: "", None, self.result, **feedback.QUICK)
        self.poller.submit(self.on_tick, self.new, everything, **feedback.QUICK)

    def shown(self, store: RunStore, run_ids: Sequence[str]) -> Updates:
        """Return the updates for the runs that are compared; the newest is the new one."""
        if len(run_ids) < 2:
            return {self.box: gr.update(visible=False)}
        newest = sorted(run_ids, reverse=True)
        choices = [(store.get(run_id).title(), run_id) for run_id in newest]
        return {
            self.box: gr.update(visible=True),
            self.new: gr.update(choices=choices, value=newest[0]),
            self.old: gr.update(choices=choices, value=newest[1]),
        }

    @handler
    def on_start(
        self, store: RunStore, new: str, old: str, max_lost: str, min_gain: str, golden: str | None
    ) -> Updates:
        """Judge by the saved answers at once; a golden file is answered by a job."""
        lost, gain = elements.number(max_lost, whole=True), elements.number(min_gain)
        limits, runs = Limits(lost, gain), (store.get(new), store.get(old))
        if not golden:
            judged = release.check_release(*runs, limits)
            return {self.message: "", self.result: result(judged)}
        path = upload_limits.path(store.visitor, golden)
        job = compare.start_check(store, *runs, limits, path, Path(golden).name)
        return {self.message: "", self.result: progress(job.state())} | self._polled(job)

    @handler
    def on_tick(self, store: RunStore, new: str, event: gr.EventData) -> Updates:
        """Show the job's progress, then its judgement."""
        job = ComparisonJob.of(store.get(new), "release")
        compare.tidy_golden(store, job)
        return self._polled(job, event)

    def _polled(self, job: ComparisonJob, event: gr.EventData | None = None) -> Updates:
        state, judged = job.state(), job.judgement
        drawn = progress(state) if judged is None or state.running else result(judged)
        return {self.result: drawn, self.poller: elements.polling_value(state.running, event)}


def progress(state: JobState) -> Markup:
    """Draw a job that has no judgement yet."""
    if state.status == "waiting":
        return feedback.note(gettext(Phase.WAIT.text))
    if state.running:
        return feedback.note(gettext("Both models answer the golden file …"))
    return feedback.show_errors(
        DataError(state.error or gettext("The check ended early."), state.remedy)
    )


def result(judged: Judgement) -> Markup:
    """Draw a judgement."""
    markdown = gate_report.as_markdown(judged)
    return render(
        "release_check.html",
        judged=judged,
        changed=(
            (judged.lost_rows[:_LISTED], judged.lost),
            (judged.gained_rows[:_LISTED], judged.gained),
        ),
        slices=[part for part in judged.slices if part.lost or part.gained],
        markdown="data:text/markdown;charset=utf-8," + quote(markdown, safe=""),
    )
