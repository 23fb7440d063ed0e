"""The Train tab: the form, Train and Stop, and the live view of a run.

The page drives nothing: it reads the run folder twice a second (`live`), so a reload, a second
browser or a restarted app shows the same.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from finetune import config
from finetune.config import DATA_FIELDS, RunConfig, is_upload
from finetune.data import catalog
from finetune.environment import hub_connection
from finetune.errors import ConfigError, DataError, FinetuneError, NoSuchRun
from finetune.jobs import cost, service
from finetune.jobs.cost import Estimate
from finetune.runs import grids
from finetune.runs.store import Run, RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.ui import auth, cost_view, feedback, form, live_updates, upload_limits
from finetune.ui.i18n import gettext


@dataclass
class TrainTab:
    """The tab's controls and what its events do.

    Args:
        store: where runs are.
    """

    store: RunStore

    def draw(self, drawn: dict[str, gr.components.Component]) -> None:
        """Lay out the tab inside the current `gr.Tab` and wire its events.

        Args:
            drawn: the form's controls that another tab has drawn.
        """
        # In the visitor's browser, unread by the server but to fill the form again.
        self.kept = gr.BrowserState(None, storage_key="finetune-form", secret="hyperparameters")
        gr.HTML(
            feedback.note(
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
                self._draw_several()
                self.hub = gr.HTML(elem_id="hub-status")
            with gr.Column(scale=3, min_width=320):
                self._draw_buttons()
                self._draw_view()
        self._wire()

    def _draw_several(self) -> None:
        with gr.Accordion("Several runs: seeds and a grid", open=False, elem_id="several"):
            gr.HTML(
                feedback.note(
                    "They wait in the queue and run one after the other. Runs that differ by the "
                    "seed alone are one group, with mean and standard deviation, under Runs."
                )
            )
            self.seeds = gr.Number(
                1, step=1, label="seeds", elem_id="seeds", min_width=165,
                info="The same run so many times, with seed, seed + 1 and so on.",
            )  # fmt: skip
            self.grid = [
                gr.Textbox(
                    label=f"{name} values", info="With commas between; empty for the form's own.",
                    max_lines=1, elem_id=f"grid-{name}", min_width=165,
                )
                for name in grids.GRID
            ]  # fmt: skip
            self.planned = gr.HTML(elem_id="planned")
        self.load = gr.UploadButton(
            "Load a configuration (JSON)", elem_id="load-config", size="sm", variant="secondary",
            file_types=[".json"],
        )  # fmt: skip

    def _draw_buttons(self) -> None:
        with gr.Row():
            self.start = gr.Button("Train", variant="primary", elem_id="train")
            self.stop = gr.Button("Stop", variant="stop", elem_id="stop", interactive=False)
            self.resume = gr.Button("Resume", elem_id="resume", visible=False)
        self.message = gr.HTML(elem_id="train-message", elem_classes="ft-if-said")
        # Their place is kept, so that nothing moves when the answer comes, in whatever language.
        pairs = Estimate(steps=cost.count_steps(RunConfig(), catalog.DATASETS[0].pairs))
        self.costs = gr.HTML(
            cost_view.cost_placeholder(pairs, RunConfig()),
            elem_id="costs",
            js_on_load=cost_view.SCRIPT,
        )

    def _draw_view(self) -> None:
        self.runs = gr.Dropdown(
            [],
            label="Run",
            elem_id="run",
            interactive=True,
            visible=False,
            allow_custom_value=True,
        )
        self.live = live_updates.view(empty=True)

    def _wire(self) -> None:
        # What shows which run it is, and what can be done with it.
        shown = [self.runs, self.live, self.stop, self.resume]
        quick = feedback.QUICK
        preset = [self.form[name] for name in config.preset(config.DEFAULT_PRESET)]
        # One that is chosen again, too; not when its chooser is merely left, as `input` would.
        again = [self.preset.change, self.preset.select]
        gr.on(again, None, self.preset, preset, js=form.choosing_preset(), **quick)
        several: list[Any] = [self.seeds, *self.grid]
        self.start.click(
            self.on_start,
            [*several, *self.form.values()],
            [self.message, self.kept, *shown],
            **quick,
        )
        for control in several:
            control.change(
                self.on_several, [*several, *self.form.values()], self.planned,
                **feedback.LATEST,
            )  # fmt: skip
        self.stop.click(self.on_stop, self.runs, [self.message, *shown], **quick)
        self.resume.click(self.on_resume, self.runs, [self.message, *shown], **quick)
        # Another run was chosen, or the one that is watched has turned.
        self.runs.input(self.on_watch, self.runs, shown, **feedback.LATEST)
        self.live.submit(self.on_turn, self.runs, shown, **feedback.LATEST)
        asked: list[Any] = [*several, *self.form.values()]
        self.costing: dict[str, Any] = {
            "fn": self.on_costs, "inputs": asked, "outputs": self.costs, **feedback.LATEST
        }  # fmt: skip
        judged = [name for name, knob in config.knobs().items() if knob.usual]
        read = [name for name in dict.fromkeys((*cost.READ, *judged)) if name in self.form]
        others = [control.change for control in several]
        # With other pairs or another checkpoint the lengths are others: measured after the answer.
        sources = {*DATA_FIELDS, "checkpoint"}
        measured = [self.form[name].change for name in read if name in sources]  # type: ignore[attr-defined]
        told = [self.form[name].change for name in read if name not in sources]  # type: ignore[attr-defined]
        gr.on([*told, *others, self.live.submit], **self.costing)
        self.measured(gr.on(measured, **self.costing))
        self.opening = {"fn": self.on_open, "inputs": None, "outputs": shown, **quick}

    def on_start(
        self, request: gr.Request, seeds: Any, rates: str, batches: str, epochs: str, *values: Any
    ) -> tuple[Any, ...]:
        """Train was pressed: runs start or wait in the queue, or the form's problems are named."""
        try:
            store = auth.visitor_store(self.store, request)
            chosen = form.read(values)
            planned = self._plan(chosen, seeds, rates, batches, epochs)
            made = service.start_runs(
                store, [one.config for one in planned], [one.group for one in planned]
            )
        except Exception as error:
            return feedback.show_errors(error), *([gr.skip()] * 5)
        waiting = sum(service.queue_place(store, run)[0] > 0 for run in made)
        said = ""
        if waiting:
            text = gettext("{n} runs wait in the queue; see Runs.", n=waiting)
            said = feedback.note(
                gettext("1 run waits in the queue; see Runs.") if waiting == 1 else text
            )
        return said, chosen.to_dict(), *self._shown(store, made[0])

    def _plan(
        self, chosen: RunConfig, seeds: Any, rates: str, batches: str, epochs: str
    ) -> list[grids.PlannedRun]:
        count = int(seeds) if isinstance(seeds, float) and seeds.is_integer() else seeds
        grid = dict(zip(grids.GRID, (rates, batches, epochs), strict=True))
        return grids.plan_runs(chosen, 1 if count is None else count, grid)

    def on_several(self, seeds: Any, rates: str, batches: str, epochs: str, *values: Any) -> str:
        """Seeds or values were changed: how many runs that makes."""
        try:
            planned = self._plan(form.read(values), seeds, rates, batches, epochs)
        except Exception as error:
            return feedback.show_errors(error)
        if len(planned) == 1:
            return ""
        told = {"n": len(planned), "groups": len({one.group for one in planned} - {""})}
        if told["groups"] > 1:
            return feedback.note(gettext("Train queues {n} runs in {groups} groups.", **told))
        return feedback.note(gettext("Train queues {n} runs.", **told))

    def on_costs(
        self, request: gr.Request, seeds: Any, rates: str, batches: str, epochs: str, *values: Any
    ) -> str:
        """The form was changed: what a click on Train will take."""
        try:
            chosen = form.read(values)
            planned = self._plan(chosen, seeds, rates, batches, epochs)
            store = auth.visitor_store(self.store, request)
            found = [cost.estimate_cost(store, one.config) for one in planned]
        except ConfigError as error:
            wrong = "; ".join(f"{name} {text}" for name, text in error.problems.items())
            return feedback.note(
                gettext(
                    "What Train will take is told once the form is right: {wrong}.", wrong=wrong
                )
            )
        except Exception as error:
            return feedback.show_errors(error)
        together = None
        if len(found) > 1:
            times = [one.time.seconds for one in found if one.time is not None]
            together = cost_view.GridCost(
                len(found), sum(times) if len(times) == len(found) else None
            )
        files: dict[str, str] = {}
        if is_upload(chosen.dataset):
            with contextlib.suppress(DataError):  # gone: Train says so
                files = store.uploads.file_names(chosen.dataset)
                if store.visitor.alone:  # else the place is nobody's business
                    kept = store.uploads.files(chosen.dataset)
                    files = {split: str(path.resolve()) for split, path in kept.items()}
        root = store.root.resolve()
        own = store.visitor.alone and root != _RUNS
        return cost_view.costs(
            found[0], planned[0].config, together, files, str(root) if own else ""
        )

    def measured(self, told: Any) -> None:
        """After the costs of other pairs were told: measure them, and tell again what is then in
        the form, which may be another by now."""
        told.then(**{**self.costing, "fn": self.on_measure, "outputs": None}).then(**self.costing)

    def on_measure(self, request: gr.Request, *asked: Any) -> None:
        """Other pairs or another checkpoint were chosen: what a part of the pairs tells of their
        lengths, where that is quick and nobody has measured it."""
        with contextlib.suppress(Exception):  # said by `on_costs`
            chosen = self._plan(form.read(asked[_SEVERAL:]), *asked[:_SEVERAL])[0].config
            cost.measure_token_lengths(auth.visitor_store(self.store, request), chosen)

    def on_load(self, request: gr.Request, path: str | None) -> list[Any]:
        """A configuration was brought as JSON: it fills the form, or what is wrong is said."""
        try:
            if not path:
                return [gr.skip()] * (len(form.NAMES) + 2)
            store = auth.visitor_store(self.store, request)
            text = _text(upload_limits.path(store.visitor, path))
            upload_limits.drop(path)
            return [
                *form.filled(store, RunConfig.from_json(text)),
                feedback.note(
                    gettext("The configuration is in the form. Press Train to start it.")
                ),
            ]
        except Exception as error:
            return [gr.skip()] * (len(form.NAMES) + 1) + [feedback.show_errors(error)]

    def on_restore(self, request: gr.Request, kept: object) -> list[Any]:
        """The form as it was when Train was last pressed in this browser, and Data's chooser; both
        choosers of pairs offer what this visitor has brought."""
        try:
            if isinstance(kept, dict) and kept:
                return form.filled(
                    auth.visitor_store(self.store, request), RunConfig.from_dict(kept)
                )
        except FinetuneError:
            pass  # of another version, or gone: the defaults serve better than half a form
        return form.offered(auth.visitor_store(self.store, request))

    def on_stop(self, request: gr.Request, run_id: str | None) -> tuple[Any, ...]:
        """Stop was pressed: the worker saves and ends at its next step."""
        store = auth.visitor_store(self.store, request)
        try:
            run = store.get(run_id)
            service.stop_run(store, run)
        except Exception as error:
            return feedback.show_errors(error), *([gr.skip()] * 4)
        return feedback.note(_stopping(service.run_summary(store, run))), *self._shown(store, run)

    def on_resume(self, request: gr.Request, run_id: str | None) -> tuple[Any, ...]:
        """Resume was pressed: the run goes on from its last checkpoint, in its turn."""
        store = auth.visitor_store(self.store, request)
        try:
            run = store.get(run_id)
            service.resume_run(store, run)
        except Exception as error:
            return feedback.show_errors(error), *([gr.skip()] * 4)
        return "", *self._shown(store, run)

    def on_open(self, request: gr.Request) -> tuple[Any, ...]:
        """The page was opened: show the run that is training, else the newest."""
        return self.on_turn(request, None)

    def on_watch(self, request: gr.Request, run_id: str | None) -> tuple[Any, ...]:
        """Another run was chosen. The chooser itself is left alone: by now it may say a third."""
        chooser, run, *rest = self.on_turn(request, run_id)
        return gr.skip() if run == run_id else chooser, run, *rest

    def on_turn(self, request: gr.Request, run_id: str | None) -> tuple[Any, ...]:
        """The page was opened, or the run's state has turned: what can be done with it."""
        store = auth.visitor_store(self.store, request)
        try:
            run: Run | None = store.get(run_id)
        except NoSuchRun:
            run = service.active_run(store) or next(iter(store.runs()), None)
        return (
            self._shown(store, run) if run else (gr.update(visible=False), "", *([gr.skip()] * 2))
        )

    def _shown(self, store: RunStore, run: Run) -> tuple[Any, ...]:
        """The run chooser, the run to watch, Stop and Resume."""
        summary = service.run_summary(store, run)
        # One that waits to go on has still the file that stopped it before.
        asked = run.stop_requested() and summary.status != "waiting"
        stoppable = summary.status not in ENDED and not asked
        return (
            self._choices(store, run.id),
            run.id,
            gr.update(interactive=stoppable),
            gr.update(visible=summary.status in service.RESUMABLE),
        )

    def on_hub(self) -> str:
        """Ask the Hub, after the page is there, and say what can be used."""
        if hub_connection.hub_is_reachable():
            text = gettext("The Hub answers: its datasets and checkpoints can be used.")
            return f"<div {_ANSWERS}>{feedback.note(text)}</div>"
        text = gettext(
            "The Hugging Face Hub does not answer, so only what comes with the app or lies on "
            "this disk can be used: the bundled pairs and checkpoint need no network."
        )
        return feedback.note(text)

    def choosing_default(self) -> str:
        """What the browser does once `on_hub` has answered: from the Hub's line, the form kept and
        the choices of pairs and checkpoint to those two, and Data's chooser."""
        blank = RunConfig()
        known = [(blank.dataset, blank.checkpoint), catalog.default_choice(True)]
        return _DEFAULT % (json.dumps(known), _ANSWERS)

    def _choices(self, store: RunStore, chosen: str) -> Any:
        """The run chooser, newest first."""
        choices = []
        for run in store.runs()[:_OFFERED]:
            summary = service.run_summary(store, run)
            when = f"{run.id[:4]}-{run.id[4:6]}-{run.id[6:8]} {run.id[9:11]}:{run.id[11:13]}"
            score = f", F1 {summary.best.metrics.get('f1', 0):.3f}" if summary.best else ""
            choices.append(
                (
                    f"{run.title()} \u00b7 {when} \u00b7 {gettext(summary.status)}{score}",
                    run.id,
                )
            )
        return gr.update(choices=choices, value=chosen, visible=True)


def _stopping(summary: RunSummary) -> str:
    """What the end that was asked for will leave."""
    if summary.best is not None:
        return gettext("Stopping: the best model is kept.")
    if summary.step or summary.phase == "train":
        return gettext(
            "Stopping: nothing was evaluated yet, so the model is kept as it is, its scores "
            "unknown."
        )
    return gettext("Stopping: training has not begun, so there is no model to keep.")


_RUNS = Path(__file__).resolve().parent.parent.parent.parent / "runs"  # where a terminal puts them
_ANSWERS = "data-answers"  # marks what `on_hub` says where the Hub answers
# Chooses what can run, once the Hub has answered; who has chosen meanwhile, or trained before,
# keeps it. In the browser: an answer of the server's would come after what is chosen meanwhile.
_DEFAULT = """(said, kept, dataset, checkpoint) => {
  const [blank, better] = %s;
  const free = !kept && dataset === blank[0] && checkpoint === blank[1];
  const [pairs, base] = free && said.includes('%s') ? better : [dataset, checkpoint];
  return [pairs, base, pairs];
}"""


def _text(path: Path) -> str:
    """A configuration as text.

    Raises:
        ConfigError: when it is too long to be one.
    """
    if path.stat().st_size > _MOST_JSON:
        raise ConfigError({"config.json": "has more than 1 MB; choose a run's own"})
    return path.read_text(encoding="utf-8-sig", errors="replace")


_OFFERED = 50  # runs in the chooser; all are under Runs
_MOST_JSON = 2**20
_SEVERAL = 1 + len(grids.GRID)  # controls of several runs, which come before the form's
