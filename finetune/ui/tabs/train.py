"""The Train tab: the form, what a run will cost, Train and Stop, and the live view of a run.

Training does not depend on the page: `live_updates` reads the run folder, so a reload, a second
browser or a restarted app shows the same.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from finetune import config as run_config
from finetune.config import DATA_FIELDS, RunConfig, is_upload
from finetune.data import catalog
from finetune.environment import hub_connection
from finetune.errors import ConfigError, DataError, FinetuneError, NoSuchRun
from finetune.jobs import cost, service
from finetune.runs import grids
from finetune.runs.grids import PlannedRun
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED
from finetune.ui import cost_view, elements, feedback, form, live_updates, theme, upload_limits
from finetune.ui.feedback import Updates, handler, reports_errors_in
from finetune.ui.i18n import gettext

_SEVERAL = 1 + len(grids.GRID)  # controls of several runs, which come before the form's
_MAX_JSON = 2**20  # bytes of a configuration
_DEFAULT_RUNS = Path(__file__).resolve().parent.parent.parent.parent / "runs"  # of the terminal
_ANSWERS = "data-answers"  # marks what `on_hub` shows where the Hub answers


@dataclass
class TrainTab:
    """The tab's controls and event handlers."""

    store: RunStore

    def __post_init__(self) -> None:
        self.filled: list[Any] = []  # the form and Data's chooser of pairs

    def draw(self, drawn: form.Controls) -> None:
        """Lay out the tab inside the current `gr.Tab`, but for what Data has `drawn` of the form,
        and wire its events."""
        # In the visitor's browser; the server reads it only to fill the form again.
        self.stored = gr.BrowserState(None, storage_key="finetune-form", secret="hyperparameters")
        text = gettext(
            "Choose pairs and a pretrained checkpoint, press Train, and watch it learn whether two "
            "sentences mean the same."
        )
        elements.note(text)
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=320):
                text = gettext("Sets the hyperparameters below; the pairs and the checkpoint stay.")
                self.preset = gr.Dropdown(
                    list(run_config.PRESETS), value=run_config.DEFAULT_PRESET, info=text,
                    label=gettext("Preset"), elem_id="preset",
                )  # fmt: skip
                self.form = form.draw(drawn)
                self._draw_several()
                self.hub = gr.HTML(elem_id="hub-status")
            with gr.Column(scale=3, min_width=320):
                self._draw_run()
        self._wire()

    def _draw_several(self) -> None:
        title = gettext("Several runs: seeds and a grid")
        with gr.Accordion(title, open=False, elem_id="several"):
            text = gettext(
                "They wait in the queue and run one after the other. Runs that differ by the seed "
                "alone are one group, with mean and standard deviation, under Runs."
            )
            elements.note(text)
            seeds = gr.Number(
                1, step=1, label="seeds", elem_id="seeds", min_width=165,
                info=gettext("The same run so many times, with seed, seed + 1 and so on."),
            )  # fmt: skip
            grid = [
                gr.Textbox(
                    label=f"{name} values", elem_id=f"grid-{name}", max_lines=1, min_width=165,
                    info=gettext("With commas between; empty for the form's own."),
                )
                for name in grids.GRID
            ]  # fmt: skip
            self.several: list[Any] = [seeds, *grid]
            self.planned = gr.HTML(elem_id="planned")
        self.load = gr.UploadButton(
            gettext("Load a configuration (JSON)"), elem_id="load-config", size="sm",
            variant="secondary", file_types=[".json"],
        )  # fmt: skip

    def _draw_run(self) -> None:
        with gr.Row():
            self.start = gr.Button(gettext("Train"), variant="primary", elem_id="train")
            self.stop = elements.button(gettext("Stop"), "stop", variant="stop", interactive=False)
            self.resume = gr.Button(gettext("Resume"), elem_id="resume", visible=False)
        self.message = elements.notice("train-message")
        self.costs = gr.HTML(elem_id="costs", js_on_load=cost_view.SCRIPT)
        self.live = live_updates.view(empty=True)
        self.address = elements.address("train")

    def _wire(self) -> None:
        quick, latest = feedback.QUICK, feedback.LATEST
        everything = elements.components(self)
        preset = [self.form[name] for name in run_config.preset(run_config.DEFAULT_PRESET)]
        # One that is chosen again, too; not when its chooser is merely left, as `input` would.
        choices = [self.preset.change, self.preset.select]
        gr.on(choices, None, self.preset, preset, js=form.choosing_preset(), **quick)
        values = [*self.several, *self.form.values()]
        self.start.click(self.on_start, values, everything, **quick)
        self.stop.click(self.on_stop, self.live, everything, **quick)
        self.resume.click(self.on_resume, self.live, everything, **quick)
        self.live.submit(self.on_turn, self.live, everything, **latest)  # its state has changed
        asking = elements.opening("train", self.address)
        self.opening = {"fn": self.on_open, "outputs": everything, **asking, **quick}
        self.costing = {"fn": self.on_costs, "inputs": values, "outputs": everything, **latest}
        # With other pairs or another checkpoint the lengths are others: measured after the answer.
        sources = {*DATA_FIELDS, "checkpoint"}
        judged = {name for name, knob in run_config.knobs().items() if knob.usual}
        names = judged | {*cost.INPUT_FIELDS}
        estimated: list[Any] = [control.change for control in self.several]
        measured: list[Any] = []
        for name in sorted(names & {*self.form}):
            control: Any = self.form[name]
            (measured if name in sources else estimated).append(control.change)
        gr.on([*estimated, self.live.submit], **self.costing)
        self.measured(gr.on(measured, **self.costing))

    def measured(self, event: Any) -> None:
        """After an event that estimated the costs of other pairs: measure, and estimate again what
        is then in the form, which may be another by now."""
        event.then(**{**self.costing, "fn": self.on_measure}).then(**self.costing)

    @handler
    def on_start(self, store: RunStore, *values: Any) -> Updates:
        """Start the runs of the form, or queue them."""
        planned = _plan(values)
        groups = [run.group for run in planned]
        runs = service.start_runs(store, [run.config for run in planned], groups)
        waiting = sum(service.queue_place(store, run)[0] > 0 for run in runs)
        text = gettext("1 run waits in the queue; see Runs.")
        if waiting > 1:
            text = gettext("{n} runs wait in the queue; see Runs.", n=waiting)
        return self._shown(store, runs[0]) | {
            self.message: feedback.note(text) if waiting else "",
            self.stored: form.read(values[_SEVERAL:]).to_dict(),
        }

    @reports_errors_in("costs")
    def on_costs(self, store: RunStore, *values: Any) -> Updates:
        """Show what a click on Train will take, and how many runs it makes."""
        try:
            planned = _plan(values)
            estimates = [cost.estimate_cost(store, run.config) for run in planned]
        except ConfigError as error:
            wrong = "; ".join(f"{name} {gettext(text)}" for name, text in error.problems.items())
            text = gettext(
                "What Train will take is told once the form is right: {wrong}.", wrong=wrong
            )
            return {self.costs: feedback.note(text), self.planned: ""}
        total, text, count = None, "", len(planned)
        if count > 1:
            seconds = [estimate.time.seconds for estimate in estimates if estimate.time]
            total = sum(seconds) if len(seconds) == count else None
            text = feedback.note(gettext("Train queues {n} runs.", n=count))
        config, root, files = planned[0].config, store.root.resolve(), {}
        with contextlib.suppress(DataError):  # an upload that is gone: Train says so
            if is_upload(config.dataset):
                files = store.uploads.file_names(config.dataset)
            if files and store.visitor.alone:  # with their folder only on one's own machine
                paths = store.uploads.files(config.dataset)
                files = {split: str(path.resolve()) for split, path in paths.items()}
        folder = str(root) if store.visitor.alone and root != _DEFAULT_RUNS else ""
        costs = cost_view.costs(estimates[0], config, count, total, files, folder)
        return {self.costs: costs, self.planned: text}

    @reports_errors_in("costs")
    def on_measure(self, store: RunStore, *values: Any) -> Updates:
        """Measure the token lengths of a part of the chosen pairs, where that is quick."""
        with contextlib.suppress(FinetuneError):  # shown by `on_costs`
            cost.measure_token_lengths(store, _plan(values)[0].config)
        return {}

    @handler
    def on_load(self, store: RunStore, path: str | None) -> Updates:
        """Fill the form from an uploaded configuration."""
        if not path:
            return {}
        received = upload_limits.path(store.visitor, path)
        if received.stat().st_size > _MAX_JSON:
            raise ConfigError({"config.json": "has more than 1 MB; choose a run's own"})
        text = received.read_text(encoding="utf-8-sig", errors="replace")
        upload_limits.drop(path)
        updates = form.filled(store, RunConfig.from_json(text))
        note = gettext("The configuration is in the form. Press Train to start it.")
        return dict(zip(self.filled, updates, strict=True)) | {self.message: feedback.note(note)}

    @handler
    def on_restore(self, store: RunStore, stored: object) -> Updates:
        """Fill the form as it was when Train was last pressed in this browser, and offer uploads.

        Where it is of another version, or its upload is gone, the defaults stay.
        """
        if isinstance(stored, dict) and stored:
            with contextlib.suppress(FinetuneError):
                updates = form.filled(store, RunConfig(**stored))
                return dict(zip(self.filled, updates, strict=True))
        choices = form.datasets(store)
        choosers = (self.form["dataset"], self.filled[-1])
        return {chooser: gr.update(choices=choices) for chooser in choosers}

    @handler
    def on_stop(self, store: RunStore, run_id: str | None) -> Updates:
        """Ask the run to save and end at its next step."""
        run = store.get(run_id)
        service.stop_run(store, run)
        summary = service.run_summary(store, run)
        if summary.best is not None:
            text = gettext("Stopping: the best model is kept.")
        elif summary.step or summary.phase == "train":
            text = gettext(
                "Stopping: nothing was evaluated yet, so the model is kept as it is, its scores "
                "unknown."
            )
        else:
            text = gettext("Stopping: training has not begun, so there is no model to keep.")
        return self._shown(store, run) | {self.message: feedback.note(text)}

    @handler
    def on_resume(self, store: RunStore, run_id: str | None) -> Updates:
        """The run goes on from its last checkpoint, in its turn."""
        run = store.get(run_id)
        service.resume_run(store, run)
        return self._shown(store, run) | {self.message: ""}

    @handler
    def on_open(self, store: RunStore, address: str) -> Updates:
        """Show the run of an address, or else the one that is training or the newest."""
        run_id = elements.asked(address).get("run", "")
        return self._shown(store, store.get(run_id)) if run_id else self._turned(store, "")

    @handler
    def on_turn(self, store: RunStore, run_id: str) -> Updates:
        """Show the run, whose state is another now."""
        return self._turned(store, run_id)

    def _turned(self, store: RunStore, run_id: str) -> Updates:
        """Show the run; where there is none the one that is training, or else the newest."""
        try:
            run: Run | None = store.get(run_id)
        except NoSuchRun:
            run = service.active_run(store) or next(iter(store.runs()), None)
        return self._shown(store, run) if run else {self.live: ""}

    def _shown(self, store: RunStore, run: Run) -> Updates:
        """The run to watch, Stop and Resume."""
        summary = service.run_summary(store, run)
        # One that waits to go on has still the file that stopped it before.
        stopping = run.stop_requested() and summary.status != "waiting"
        return {
            self.live: run.id,
            self.address: elements.query(run=run.id),
            self.stop: gr.update(interactive=summary.status not in ENDED and not stopping),
            self.resume: gr.update(visible=summary.status in service.RESUMABLE),
        }

    def on_hub(self) -> Markup:
        """Whether the Hub answers, and what can be used then; asked once the page is there."""
        if hub_connection.hub_is_reachable():
            text = gettext("The Hub answers: its datasets and checkpoints can be used.")
            return Markup(f"<div {_ANSWERS}>{{}}</div>").format(feedback.note(text))
        text = gettext(
            "The Hugging Face Hub does not answer, so only what comes with the app or lies on "
            "this disk can be used: the bundled pairs and checkpoint need no network."
        )
        return feedback.note(text)

    def choosing_default(self) -> str:
        """JavaScript that runs once `on_hub` has answered: from the Hub's line, the form kept and
        the choices of pairs and checkpoint to those two, and Data's chooser."""
        blank = RunConfig()
        defaults = [(blank.dataset, blank.checkpoint), catalog.COURSE_CHOICE]
        script = theme.asset("choose_default.js").replace("DEFAULTS", json.dumps(defaults))
        return script.replace("ANSWERS", _ANSWERS)


def _plan(values: Sequence[Any]) -> list[PlannedRun]:
    """The runs of a click on Train, or a `ConfigError`."""
    seeds, *grid = values[:_SEVERAL]
    seeds = int(seeds) if isinstance(seeds, float) and seeds.is_integer() else seeds
    config = form.read(values[_SEVERAL:])
    by_name = dict(zip(grids.GRID, grid, strict=True))
    return grids.plan_runs(config, 1 if seeds is None else seeds, by_name)
