"""The Train tab: the form, what a run will cost, and the live view of a run in its place.

Training does not depend on the page: `live_updates` reads the run folder, so a reload, a second
browser or a restarted app shows the same.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from typing import Any

import gradio as gr
from markupsafe import Markup

from finetune import config as run_config
from finetune import owners
from finetune.config import RunConfig, retired_in
from finetune.data import catalog
from finetune.engines import registry
from finetune.engines.base import EngineSpec, read_spec
from finetune.environment import hub_connection
from finetune.errors import ConfigError, FinetuneError, NoSuchRun
from finetune.evaluation import advice, report
from finetune.hub.client import HubClient
from finetune.jobs import cost, evaluate, service
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED
from finetune.studies import driver
from finetune.ui import auth, elements, feedback, form, live_updates, train_plan, upload_limits
from finetune.ui.choosers import CheckpointList, HubSearch, ProbeForm
from finetune.ui.engine_form import Choice, EngineForm
from finetune.ui.html import asset, macro
from finetune.ui.i18n import gettext
from finetune.ui.panel import Panel, Pressed, Updates, handler

_MAX_JSON = 2**20  # bytes of a configuration
_SHOWN = gr.update(elem_classes=[])
_OPEN_SEARCH = asset("open_search.js")
_ANSWERS = "data-answers"  # marks what `on_hub` shows if the Hub answers


class TrainTab(Panel):
    def __post_init__(self) -> None:
        self.engine = EngineForm(self.store)

    def draw(self, drawn: form.Controls, dataset: gr.Dropdown) -> None:
        """Lay out the tab inside the current `gr.Tab`, without the form's controls that Data has
        `drawn`, and wire its events. Filling the form fills Data's `dataset` chooser too."""
        # In the visitor's browser; the server reads it only to fill the form again.
        self.stored = gr.BrowserState(None, storage_key="finetune-form", secret="hyperparameters")
        with gr.Row(elem_id="shown-run"):
            self.title = gr.HTML()
            self.queue = gr.HTML(js_on_load=elements.TAB_LINKS + asset("queue.js"))
            self.new = elements.button("New run", "new-run", 110, size="md", scale=0)
            self.again = elements.button("Back to this run", "show-run", 110, size="md", scale=0)
        with gr.Row(equal_height=False, elem_id="setup") as self.setup:
            with gr.Column(scale=3, min_width=320):
                self._draw_form(drawn)
            with gr.Column(scale=2, min_width=320, elem_id="beside-form"):
                with gr.Column(elem_id="train-bar"):  # stays in sight
                    links = elements.TAB_LINKS
                    self.message = elements.notice("train-message", js_on_load=links)
                    self.costs = gr.HTML(elem_id="costs", js_on_load=asset("costs.js"))
                    self.planned = elements.notice("planned", js_on_load=elements.CHOICES)
                    self.how = train_plan.draw_choice()
                    self.start = gr.Button("Train", variant="primary", elem_id="train")
                    self.begin = gr.Button(
                        "Search", variant="primary", elem_id="begin-search",
                        elem_classes=train_plan.HIDDEN,
                    )  # fmt: skip
                self.several = train_plan.draw(self.how)
                self.search = train_plan.draw_search()
                title = "Train on another machine"
                with gr.Accordion(title, open=False, elem_id="elsewhere") as self.elsewhere:
                    self.engine.draw()
                card = train_plan.bundled_card(self.store)
                self.pairs = gr.HTML(card, elem_id="pairs-card", js_on_load=links)
        self.moved = elements.browser_value()  # id of a run to resume elsewhere
        self.cost_asked = elements.browser_value()  # changes whenever the costs may change
        self.unmeasured = elements.browser_value()  # changes when lengths are to be measured
        self.address = elements.address("train")
        self.notice = elements.notice("run-message", js_on_load=links)
        self.live = live_updates.view()
        self.filled = [*self.form.values(), dataset]
        self._wire()

    def _draw_form(self, drawn: form.Controls) -> None:
        self.drop = elements.pairs_file("Drop your own file", "own-file")
        common = form.draw_common()
        self.catalogue, self.probe = CheckpointList(self.store), ProbeForm(self.store)
        with self.catalogue.draw():
            if owners.policy().any_checkpoint:
                search = HubSearch(self.store, "model")
                search.draw()
                search.wire([common["checkpoint"]], {})
            self.probe.draw()
        self.catalogue.wire(common["checkpoint"])
        self.hub = gr.HTML(elem_id="hub-status")
        with gr.Accordion("Advanced", open=False, elem_id="advanced"):
            form.draw_search()
            self.preset = gr.Dropdown(
                list(run_config.PRESETS), value=run_config.DEFAULT_PRESET, elem_id="preset",
                label="Preset",
                info="Changes the settings below; the data and the model stay.",
            )  # fmt: skip
            self.form = form.draw_advanced(drawn | common)
            self.load = gr.UploadButton(
                "Load a configuration (JSON)", elem_id="load-config", size="sm",
                variant="secondary", file_types=[".json"],
            )  # fmt: skip

    def _wire(self) -> None:
        quick = feedback.QUICK
        self.probe.wire(self.form)
        preset = [self.form[name] for name in run_config.preset(run_config.DEFAULT_PRESET)]
        # Also if the same one is chosen again; not, as `input`, if the chooser is merely left.
        choices = [self.preset.change, self.preset.select]
        gr.on(choices, None, self.preset, preset, js=form.choosing_preset(), **quick)
        values = [*self.several, *self.form.values(), *self.engine.inputs]
        self.values, self.searched = values, [*self.search.inputs, *values]
        self.connect()["on_search"].then(None, None, self.message, js=_OPEN_SEARCH, **quick)
        fields: list[Any] = [self.form[name] for name in train_plan.FIELDS if name in self.form]
        asked: list[Any] = [self.how, *self.search.inputs, *fields, self.form["folds"]]
        changes = [*self.engine.changes, *(control.change for control in asked)]
        self.listen(self.on_search_time, *changes)
        search, plain = (train_plan.SEARCH,), train_plan.KINDS[:3]
        for part, kinds in ((self.search.part, search), (self.begin, search), (self.start, plain)):
            self.how.change(None, self.how, part, js=train_plan.shown_for(kinds), **quick)
        unfold = f"() => {json.dumps([_SHOWN, '', '', ''])}"
        shown = [self.setup, self.moved, self.message, self.notice]
        self.new.click(None, None, shown, js=unfold, **quick)
        fold = f"() => ({json.dumps(gr.update(elem_classes=train_plan.HIDDEN))})"
        self.again.click(None, None, self.setup, js=fold, **quick)
        # Costs are asked for by one event, so that the answer to the last question comes last.
        another = "() => String(Math.random())"
        self.costing: dict[str, Any] = {
            "fn": None, "inputs": None, "outputs": self.cost_asked, "js": another, **quick,
        }  # fmt: skip
        judged = {name for name, field in run_config.hyperparameters().items() if field.usual_range}
        names = judged | {"metrics", *cost.INPUT_FIELDS}
        estimated: list[Any] = [control.change for control in self.several]
        priced = [*estimated, self.search.trials.change]
        gr.on(priced, None, None, self.engine.agreed, js="() => false", **quick)
        controls: list[Any] = [self.form[name] for name in sorted(names & {*self.form})]
        chosen: Any = self.form["dataset"]
        chosen.input(None, None, self.message, js="() => ''", **quick)
        estimated += [control.change for control in controls]
        gr.on([*estimated, *self.engine.changes, self.live.submit], **self.costing)

    @handler("start.click")
    def on_start(
        self, store: RunStore, oauth: gr.OAuthToken | None, moved: str, *values: Any
    ) -> Updates:
        """Start or queue the runs of the form, or resume the run `moved` on the form's engine."""
        choice, others = self._chosen(values)
        run = store.get(moved) if moved else None
        spec = self.engine.checked(choice, read_spec(run) if run else None)
        engine = registry.find_engine(spec.engine)
        asks = engine.needs_token or (run is not None and registry.engine_of(run).needs_token)
        asks = asks and engine.is_remote
        token = auth.hub_token(store, choice.typed, oauth, asks)
        if run:
            service.resume_run(store, run, spec, token)
            shown = {self.message: "", self.moved: "", self.engine.agreed: False}
            return self._folded(store, run) | shown
        planned = train_plan.plan(others)
        runs = service.start_runs(store, planned, spec, token)
        return self._folded(store, runs[0]) | {
            self.message: "",
            self.notice: "",
            self.stored: form.read(others[train_plan.COUNT :]).to_dict(),
            self.engine.agreed: False,
        }

    @handler("begin.click")
    def on_search(self, store: RunStore, oauth: gr.OAuthToken | None, *searched: Any) -> Updates:
        """Begin a search whose first trial is the form."""
        choice, others = self._chosen(searched[train_plan.SEARCH_COUNT :])
        spec = self.engine.checked(choice)
        config = form.read(others[train_plan.COUNT :])
        space, budget, options = train_plan.read_search(searched, spec)
        asks = registry.find_engine(spec.engine).needs_token
        token = auth.hub_token(store, choice.typed, oauth, asks)
        if asks:
            HubClient(token or None).account()  # a trial would be the first to be refused
        with train_plan.problems_at_its_boxes():
            study = driver.begin_search(
                store, config, space, budget, spec=spec, token=token, **options
            )
        link = macro("feedback.html", "begun_search")(study.title, study.id)
        return {self.message: link, self.engine.agreed: False}

    @handler(errors_in="planned", latest=True)
    def on_search_time(self, store: RunStore, *searched: Any) -> Updates:
        """Show how long the search takes, and which of the form's values lie outside of it."""
        choice, others = self._chosen(searched[train_plan.SEARCH_COUNT :])
        if others[0] != train_plan.SEARCH:
            return {}
        config = form.read(others[train_plan.COUNT :])
        return {self.planned: train_plan.expected(store, config, searched, choice.spec())}

    def _chosen(self, values: Sequence[Any]) -> tuple[Choice, Sequence[Any]]:
        """Return the engine choice and the values of the other controls."""
        count = train_plan.COUNT + len(form.NAMES)
        return self.engine.read(values[count:]), values[:count]

    @handler("cost_asked.change", errors_in="costs", latest=True)
    def on_costs(self, store: RunStore, *values: Any) -> Updates:
        """Show the cost of a click on Train and the number of its runs."""
        choice, others = self._chosen(values)
        try:
            planned, place = train_plan.plan(others), choice.spec().place
            estimates = [cost.estimate_cost(store, run.config, place) for run in planned]
        except ConfigError as error:
            return {self.costs: macro("feedback.html", "unready")(error.problems), self.planned: ""}
        total, text, count = None, "", len(planned)
        config, checked = planned[-1 if planned[-1].config.folds else 0].config, estimates[0].report
        if checked and not config.folds and (few := checked.few_held_out):
            text = macro("feedback.html", "offer_folds")(few.title, few.remedies[0])
        if count > 1:
            seconds = [estimate.time.seconds for estimate in estimates if estimate.time]
            total = sum(seconds) if len(seconds) == count else None
            text = feedback.note(gettext("A click queues {n} runs.", n=count))
            if config.trains_on_all:
                text = macro("feedback.html", "planned_folds")(count, config.folds)
        shown = {} if others[0] == train_plan.SEARCH else {self.planned: text}
        shown |= {
            self.costs: train_plan.costs(store, estimates[0], config, count, total),
            self.pairs: train_plan.pairs_card(checked, store, config),
        }
        download = estimates[0].download
        if estimates[0].measurable or (download and download.unasked):
            shown[self.unmeasured] = str(time.time())
        return shown | self.engine.priced(store, choice, estimates[0], count)

    @handler()
    def on_folds(self, store: RunStore, pressed: Pressed) -> Updates:
        """Choose a cross-validation, or a validation split."""
        return {self.form["folds"]: str(pressed.get("value") or "")[:9], self.message: ""}

    @handler("unmeasured.change", errors_in="costs", latest=True)
    def on_measure(self, store: RunStore, *values: Any) -> Updates:
        """Measure the token lengths of a part of the chosen pairs, ask the Hub for the size of the
        checkpoint, and ask for the costs again."""
        with contextlib.suppress(FinetuneError):  # shown by `on_costs`
            config = train_plan.plan(self._chosen(values)[1])[0].config
            if cost.measure(store, config):
                return {self.cost_asked: str(time.time())}
        return {}

    @handler()
    def on_load(self, store: RunStore, path: str | None) -> Updates:
        """Fill the form from an uploaded configuration."""
        if not path:
            return {}
        received = upload_limits.path(store.visitor, path)
        if received.stat().st_size > _MAX_JSON:
            raise ConfigError({"config.json": "has more than 1 MB; choose a run's own"})
        text = received.read_text(encoding="utf-8-sig", errors="replace")
        upload_limits.drop(path)
        filled = self._refilled(store, RunConfig.from_json(text))
        if retired := retired_in(text):
            filled[self.message] = feedback.note(gettext(retired))
        return filled

    @handler()
    def on_restore(self, store: RunStore, stored: object) -> Updates:
        """Fill the form as it was when Train was last pressed in this browser, and offer uploads.
        If it is of another version, or its upload is gone, the defaults stay."""
        if isinstance(stored, dict) and stored:
            with contextlib.suppress(FinetuneError):
                return form.filled(self.filled, store, RunConfig(**stored))
        choices = form.datasets(store)
        choosers = (self.form["dataset"], self.filled[-1])
        return {chooser: gr.update(choices=choices) for chooser in choosers}

    @handler("live.select", errors_in="notice", trigger_mode="multiple")
    def on_press(
        self, store: RunStore, pressed: Pressed, live: str, oauth: gr.OAuthToken | None = None
    ) -> Updates:
        """Handle a pressed button of the live view, also while another one is at work."""
        run = store.get(live)
        summary = run.state()
        match pressed.get("do"):
            case "stop":
                service.stop_run(store, run)
                text = gettext("Stopping: training has not begun, so there is no model to keep.")
                if summary.best is not None:
                    text = gettext("Stopping: the best model is kept.")
                elif summary.validation:
                    text = gettext("Stopping: the model is kept as it is.")
                elif summary.step or summary.phase == "train":
                    text = gettext(
                        "Stopping: nothing was evaluated yet, so the model is kept as it is, its "
                        "scores unknown."
                    )
                return self._shown(store, run) | {self.notice: feedback.note(text)}
            case "resume" if service.resume_price(run):  # to be agreed to
                return self._choosing_engine(run)
            case "move" if not registry.is_remote(run):
                return self._choosing_engine(run)
            case "resume" | "move" as do:  # "move": here; a job that may be at work is ended first
                asks = registry.engine_of(run).needs_token
                asks = asks and (do == "resume" or read_spec(run).is_unheard)
                token = auth.hub_token(store, "", oauth, asks)
                service.resume_run(store, run, EngineSpec() if do == "move" else None, token)
                return self._shown(store, run) | {self.notice: ""}
            case "threshold":
                evaluate.save_decision(run, summary, threshold=elements.sent_number(pressed))
            case "advice":
                config = run.config()
                advised = advice.advise(summary, config, report.run_verdict(run, summary))
                filled = self._refilled(store, config.changed(name="", fold=0, **advised.changes))
                how = train_plan.SEEDS if advised.seeds > 1 else train_plan.ONCE
                return filled | {self.how: how, self.several[1]: str(advised.seeds)}
        return {}

    @handler(opens="train")
    def on_arrival(self, store: RunStore, address: str) -> Updates:
        """Show a run in the form's place, if there is one, when the page is opened."""
        run_id = elements.asked(address).get("run", "")
        run = store.get(run_id) if run_id else _find_run(store, "")
        return self._folded(store, run) if run else self._shown(store, run)

    @handler("live.submit", latest=True)
    def on_turn(self, store: RunStore, live: str) -> Updates:
        """Show the run after a change of state, or another if it is gone; if none was shown, the
        active one. Once it has ended, show the next one of its bundle, or link to the visitor's
        active run."""
        run = _find_run(store, live) if live else service.active_run(store)
        if run and run.state().status in ENDED:
            mates = reversed(store.bundle_of(run))
            run = next((each for each in mates if each.state().status not in ENDED), run)
        # Another run may be shown by now: only what changes is sent.
        same = (run.id if run else "") == live
        updates = self._queued(store) if same else self._shown(store, run) | {self.notice: ""}
        if run and run.state().status in ENDED:
            other = service.active_run(store)
            updates[self.notice] = macro("feedback.html", "other_run")(other) if other else ""
        return updates

    @handler(latest=True)
    def on_deletion(self, store: RunStore, live: str) -> Updates:
        """Show the form in place of a run that was deleted."""
        with contextlib.suppress(NoSuchRun):
            store.get(live)
            return {}
        return self._shown(store, None) | {self.setup: _SHOWN}

    def _shown(self, store: RunStore, run: Run | None) -> Updates:
        """Show a run, and label Train with what a click does meanwhile."""
        return self._queued(store) | {
            self.live: run.id if run else "",
            self.title: Markup("<b>{}</b>").format(run.title()) if run else "",
            self.address: elements.query(run=run.id if run else ""),
        }

    def _queued(self, store: RunStore) -> Updates:
        """Show the queue, and what a click on Train does meanwhile."""
        active, waiting = service.active_run(store), len(service.waiting_runs(store))
        return {
            self.start: gettext("Add to queue") if active else gettext("Train"),
            self.queue: macro("feedback.html", "queue")(active is not None, waiting),
        }

    @handler("queue.submit", latest=True)
    def on_queue(self, store: RunStore, moved: str) -> Updates:
        """Show the queue after another window has changed it."""
        updates = self._queued(store)
        if moved:  # Train continues that run
            updates.pop(self.start)
        return updates

    def _folded(self, store: RunStore, run: Run) -> Updates:
        return self._shown(store, run) | {self.setup: gr.update(elem_classes=train_plan.HIDDEN)}

    def _choosing_engine(self, run: Run) -> Updates:
        """Show the form, to choose the engine that resumes a run and agree to its price."""
        engine = registry.engine_of(run)
        text = gettext(
            "Choose the machine on which {title} goes on, then press Continue. Its own "
            "hyperparameters stay.", title=run.title(),
        )  # fmt: skip
        return {
            self.setup: _SHOWN,
            self.moved: run.id,
            self.start: gettext("Continue"),
            self.message: feedback.note(text),
            self.elsewhere: gr.update(open=True),
            self.engine.engine: engine.name if engine.is_remote else self.engine.elsewhere,
            self.engine.agreed: False,
        }

    def _refilled(self, store: RunStore, config: RunConfig) -> Updates:
        """Put a configuration into the form and unfold it."""
        note = gettext("The configuration is in the form. Press Train to start it.")
        shown = {self.setup: _SHOWN, self.message: feedback.note(note)}
        return form.filled(self.filled, store, config) | shown

    def on_hub(self) -> Updates:
        """Say if the Hub answers and what can be used. Called once the page is there."""
        self.catalogue.offline = not hub_connection.hub_is_reachable()
        if not self.catalogue.offline:
            text = gettext("The Hub answers: its datasets and checkpoints can be used.")
            return {self.hub: Markup(f"<div {_ANSWERS}>{{}}</div>").format(feedback.note(text))}
        text = gettext(
            "No connection to the Hugging Face Hub. You can use the bundled data and model, and "
            "what is on this machine."
        )
        choosers = self.form["checkpoint"], self.probe.names
        choices = self.catalogue.choices()
        marked = {chooser: gr.update(choices=choices) for chooser in choosers}
        return {self.hub: feedback.note(text), **marked}

    def choosing_default(self) -> str:
        """JavaScript that runs once `on_hub` has answered. It maps the Hub's line, the stored form
        and the choices of pairs and checkpoint to both choices and Data's chooser."""
        blank = RunConfig()
        defaults = [(blank.dataset, blank.checkpoint), catalog.COURSE_CHOICE]
        script = asset("choose_default.js").replace("DEFAULTS", json.dumps(defaults))
        return script.replace("ANSWERS", _ANSWERS)


def _find_run(store: RunStore, run_id: str) -> Run | None:
    """The run of that id; if there is none, the one in training, or else the newest."""
    try:
        return store.get(run_id)
    except NoSuchRun:
        return service.active_run(store) or next(iter(store.runs()), None)
