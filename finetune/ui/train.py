"""The Train tab: the form, Train and Stop, and the live view of a run.

The page drives nothing: a timer reads the run folder, so a reload, a second browser or a
restarted app shows the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from finetune import catalog, config, jobs
from finetune.config import RunConfig
from finetune.errors import FinetuneError, NoSuchRun
from finetune.store import Run, RunStore
from finetune.summary import ENDED, Summary
from finetune.ui import charts, edge, form, status

Seen = dict[str, Any]  # what this browser shows: run id and how far; decides what must be sent


@dataclass
class TrainTab:
    """The tab's controls and what its events do.

    Args:
        store: where runs are.
        spare: keep a worker waiting that has imported already, half a gigabyte, while nothing
            trains; for an app that people look at.
    """

    store: RunStore
    spare: bool = False

    def draw(self, drawn: dict[str, gr.components.Component]) -> None:
        """Lay out the tab inside the current `gr.Tab` and wire its events.

        Args:
            drawn: the form's controls that another tab has drawn.
        """
        self.seen = gr.State({})
        self.answers = gr.State(False)
        # In the visitor's browser, unread by the server but to fill the form again.
        self.kept = gr.BrowserState(None, storage_key="finetune-form", secret="hyperparameters")
        gr.HTML(
            edge.note(
                "Choose pairs and a pretrained checkpoint, press Train, and watch it learn whether "
                "two sentences mean the same."
            )
        )
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=320):
                self.preset = gr.Dropdown(
                    list(config.PRESETS),
                    value=config.DEFAULT_PRESET,
                    label="Preset",
                    info="Sets the hyperparameters below; the pairs and the checkpoint stay.",
                    elem_id="preset",
                )
                self.form = form.draw(drawn)
                self.hub = gr.HTML(elem_id="hub-status")
            with gr.Column(scale=3, min_width=320):
                self._draw_buttons()
                self._draw_view()
        self._wire()

    def _draw_buttons(self) -> None:
        with gr.Row():
            self.start = gr.Button("Train", variant="primary", elem_id="train")
            self.stop = gr.Button("Stop", variant="stop", elem_id="stop", interactive=False)
            self.resume = gr.Button("Resume", elem_id="resume", visible=False)
        self.message = gr.HTML(elem_id="train-message", elem_classes="ft-if-said")

    def _draw_view(self) -> None:
        self.runs = gr.Dropdown(
            [], label="Run", elem_id="run", interactive=True, visible=False, filterable=False
        )
        self.status = gr.HTML(status.EMPTY, elem_id="status")
        self.announced = gr.HTML(elem_id="live", elem_classes="sr-only")
        self.loss = gr.HTML(charts.loss_chart(Summary()), elem_id="loss-plot")
        self.scores = gr.HTML(charts.score_chart(Summary()), elem_id="score-plot")
        with gr.Accordion("Log", open=False, elem_id="log-fold"):
            self.log = gr.Textbox(
                show_label=False, lines=12, max_lines=12, elem_classes="ft-log", interactive=False
            )

    def _wire(self) -> None:
        view = [self.seen, self.runs, self.status, self.announced, self.loss, self.scores]
        view += [self.log, self.start, self.stop, self.resume]
        shown = [self.runs, self.seen]
        started = [self.message, self.runs, self.start, self.stop, self.kept]
        quick: dict[str, Any] = {
            "queue": False,
            "show_progress": "hidden",
            "api_visibility": "private",
        }
        preset = [self.form[name] for name in config.preset(config.DEFAULT_PRESET)]
        self.preset.input(self.on_preset, self.preset, preset, **quick)
        self.start.click(self.on_start, list(self.form.values()), started, **quick).then(
            self.on_tick, shown, view, **quick
        )
        self.stop.click(self.on_stop, self.runs, [self.message, self.stop], **quick)
        self.resume.click(self.on_resume, self.runs, [self.message, self.resume], **quick).then(
            self.on_tick, shown, view, **quick
        )
        self.runs.input(self.on_tick, shown, view, **quick)
        gr.Timer(1).tick(self.on_tick, shown, view, **quick)

    def on_start(self, *values: Any) -> tuple[Any, ...]:
        """Train was pressed: a worker process starts, or the form's problems are named."""
        try:
            chosen = form.read(values)
            run = jobs.start(self.store, chosen)
        except Exception as error:
            return edge.said(error), *([gr.skip()] * 4)
        busy, stoppable = gr.update(interactive=False), gr.update(interactive=True)
        return "", self._choices(run.id), busy, stoppable, chosen.to_dict()

    def on_preset(self, name: str) -> list[Any]:
        """A preset was chosen: its values, in the order of the form."""
        return list(config.preset(name).values()) if name in config.PRESETS else []

    def on_restore(self, kept: object) -> list[Any]:
        """The form as it was when Train was last pressed in this browser, and Data's chooser."""
        try:
            if isinstance(kept, dict) and kept:
                chosen = RunConfig.from_dict(kept)
                values = dict(zip(form.NAMES, form.values(chosen), strict=True))
                offered = form.datasets(self.store, chosen.dataset)
                values["dataset"] = gr.update(choices=offered, value=chosen.dataset)
                return [*values.values(), dict(values["dataset"])]
        except FinetuneError:
            pass  # of another version, or gone: the defaults serve better than half a form
        return [gr.skip()] * (len(form.NAMES) + 1)

    def on_stop(self, run_id: str | None) -> tuple[Any, Any]:
        """Stop was pressed: the worker saves and ends at its next step."""
        try:
            jobs.stop(self.store.get(run_id))
        except Exception as error:
            return edge.said(error), gr.skip()
        return edge.note("Stopping: the best model is kept."), gr.update(interactive=False)

    def on_resume(self, run_id: str | None) -> tuple[Any, Any]:
        """Resume was pressed: the run goes on from its last checkpoint."""
        try:
            jobs.resume(self.store, self.store.get(run_id))
        except Exception as error:
            return edge.said(error), gr.skip()
        return "", gr.update(visible=False)

    def on_open(self) -> tuple[Any, Any]:
        """The page was opened: show the run that is training, else the newest."""
        self._prepare()
        run = jobs.active(self.store) or next(iter(self.store.runs()), None)
        return (self._choices(run.id), {}) if run else (gr.skip(), {})

    def _prepare(self) -> None:
        if self.spare:
            jobs.prepare(self.store)

    def on_hub(self) -> tuple[str, bool]:
        """Ask the Hub, after the page is there, and say what can be used."""
        if catalog.hub_answers():
            return edge.note("The Hub answers: its datasets and checkpoints can be used."), True
        text = (
            "The Hugging Face Hub does not answer, so only what comes with the app or lies on "
            "this disk can be used: the bundled pairs and checkpoint need no network."
        )
        return edge.note(text), False

    def on_default(self, answers: bool, dataset: str, checkpoint: str) -> tuple[Any, Any, Any]:
        """Choose what can run; who has chosen meanwhile keeps it.

        Apart from `on_hub`, whose answer takes seconds: this sees the form as it is then.
        """
        blank = RunConfig()
        if not answers or (dataset, checkpoint) != (blank.dataset, blank.checkpoint):
            return gr.skip(), gr.skip(), gr.skip()
        chosen, base = catalog.default(answers)
        return chosen, base, chosen

    def on_tick(self, run_id: str | None, seen: Seen | None) -> tuple[Any, ...]:
        """What has changed since this browser was last told; nothing is sent twice."""
        nothing = [gr.skip()] * 10
        seen = seen or {}
        current = jobs.active(self.store)
        try:
            run = self.store.get(run_id) if run_id else current
        except NoSuchRun:
            run = current
        if run is None:
            return tuple(nothing)
        summary = jobs.summary(self.store, run)
        answer = {
            "run": run.id,
            "status": summary.status,
            "busy": current.id if current else "",
            "count": summary.count,
            "train": len(summary.train),
            "scores": len(summary.validation),
            "log": run.log_size(),
        }
        if answer == seen and summary.status in ENDED:
            return tuple(nothing)
        return self._changes(run, summary, seen, answer)

    def _changes(self, run: Run, summary: Summary, seen: Seen, answer: Seen) -> tuple[Any, ...]:
        another = seen.get("run") != run.id
        fresh = {name for name in answer if another or answer[name] != seen.get(name)}
        running = summary.status not in ENDED
        stoppable = running and not run.stop_requested()
        loss = scores = runs = gr.skip()
        if "train" in fresh:
            loss = charts.loss_chart(summary)
        if "scores" in fresh:
            scores = charts.score_chart(summary)
        if fresh & {"run", "status", "busy"}:
            runs = self._choices(run.id)
            if not answer["busy"]:
                self._prepare()
        return (
            answer,
            runs,
            status.status_html(run, summary),
            status.announcement(summary) if fresh - {"log", "train"} else gr.skip(),
            loss,
            scores,
            run.log_tail() if "log" in fresh else gr.skip(),
            gr.update(interactive=not answer["busy"]),
            gr.update(interactive=stoppable),
            gr.update(visible=summary.status in jobs.RESUMABLE, interactive=not answer["busy"]),
        )

    def _choices(self, chosen: str) -> Any:
        """The run chooser, newest first."""
        choices = []
        for run in self.store.runs()[:200]:
            summary = jobs.summary(self.store, run)
            when = f"{run.id[:4]}-{run.id[4:6]}-{run.id[6:8]} {run.id[9:11]}:{run.id[11:13]}"
            score = f", F1 {summary.best.metrics.get('f1', 0):.3f}" if summary.best else ""
            choices.append((f"{run.title()} \u00b7 {when} \u00b7 {summary.status}{score}", run.id))
        return gr.update(choices=choices, value=chosen, visible=True)
