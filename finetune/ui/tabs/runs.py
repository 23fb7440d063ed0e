"""The Runs tab: the table of all runs, or in its place one in full, or several compared.

While the tab is open it polls the run folders; only what has changed is sent.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import gradio as gr

from finetune.engines import registry
from finetune.errors import NoSuchRun
from finetune.jobs import compare, run_table, service
from finetune.runs.run import Run, parse_tags
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED
from finetune.search import driver, results
from finetune.search.study import find_study
from finetune.ui import (
    auth,
    compare_view,
    elements,
    feedback,
    form,
    live_updates,
    run_view,
    search_view,
    theme,
)
from finetune.ui.deletion import Deletion, hub_token
from finetune.ui.elements import button, event_data
from finetune.ui.feedback import Updates, handler
from finetune.ui.html import macro
from finetune.ui.i18n import gettext
from finetune.ui.release_check import ReleaseCheck
from finetune.ui.tabs.evaluate import ERRORS, EVALUATION, PROGRESS, Evaluation

View = dict[str, Any]  # what this browser looks at; kept by the server, no client can change it


def blank() -> View:
    """The initial view: nothing opened, the newest first, only own runs."""
    return {
        "by": "created", "descending": True, "page": 0, "opened": "", "compared": [],
        "everybody": False, "search": "", "columns": [],
    }  # fmt: skip


@dataclass
class RunsTab:
    """The tab's controls and event handlers."""

    store: RunStore

    def __post_init__(self) -> None:
        self.evaluation = Evaluation(self.store)
        self.deletion = Deletion()
        self.check = ReleaseCheck(self.store)
        self.filled: list[Any] = []  # the form, Data's chooser of pairs, the tabs

    def draw(self) -> None:
        """Lay out the tab inside the current `gr.Tab` and wire its events."""
        self.view = gr.State(blank())
        self.ticked = elements.browser_value()  # ids of the ticked runs, from assets/run_table.js
        self.address = elements.address("runs")
        self.sent = gr.State({})  # by component: a hash of what it shows
        self.pulse = elements.polling_element(1.5, elements.ALWAYS)
        self.message = elements.notice("runs-message")
        with gr.Column(elem_id="all-runs"):
            with gr.Row(equal_height=True):
                self.filter = gr.Textbox(
                    label=gettext("Find"),
                    placeholder=gettext("words of name, status, pairs, checkpoint, tags"),
                    elem_id="runs-filter", max_lines=1, scale=4, min_width=220,
                )  # fmt: skip
                self.everybody = gr.Checkbox(
                    False, label=gettext("Everybody's runs"), visible=False,
                    elem_id="runs-everybody", scale=1, min_width=150,
                )  # fmt: skip
                for_ticked: dict[str, Any] = {"interactive": False, "scale": 1}
                self.compare = button(gettext("Compare"), "compare-runs", 130, **for_ticked)
                self.delete_ticked = button(gettext("Delete"), "delete-runs", 110, **for_ticked)
            self.table = gr.HTML(
                feedback.note(gettext("Reading the runs.")), elem_id="runs-table",
                js_on_load=theme.asset("run_table.js") + elements.TAB_LINKS,
                most=run_view.MAX_COMPARED,
            )  # fmt: skip
        with gr.Row(visible=False, elem_id="run-head") as self.head:
            self.back = button(gettext("← All runs"), "all-runs-again", 110, size="md")
            self.title = gr.HTML(elem_id="run-title")
            self.evaluation.draw_choice()
            self.part = self.evaluation.part
            medium: dict[str, Any] = {"size": "md"}
            self.resume = button(gettext("Resume"), "run-resume", 110, variant="primary", **medium)
            self.stop = button(gettext("Stop, keep best"), "run-stop", 130, **medium)
            self.discard = button(gettext("Stop, discard"), "run-discard", 130, **medium)
            self.cancel = button(gettext("Take out of the queue"), "run-cancel", 160, **medium)
            self.clone = button(gettext("Copy into the form"), "run-clone", 150, **medium)
            self.delete = button(gettext("Delete"), "run-delete", 90, **medium)
        self.deletion.draw()
        with gr.Row(visible=False, elem_id="resume-asked") as self.payment:
            self.price = gr.HTML(elem_id="resume-price")
            self.pay = button(
                gettext("Resume and pay"), "resume-sure", 130, variant="primary", size="md"
            )
            self.leave = button(gettext("Cancel"), "resume-leave", 90, size="md")
        self.comparison = gr.HTML(  # or a search
            elem_id="comparison", visible=False,
            js_on_load=theme.asset("run_table.js") + elements.TAB_LINKS,
        )  # fmt: skip
        self.check.draw()
        with gr.Column(visible=False, elem_id="one-run") as self.run_column:
            self.evaluation.draw(self._draw_progress)
        self._wire()

    def _draw_progress(self) -> None:
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=320):
                self.live = live_updates.view("run-")
            with gr.Column(scale=2, min_width=320):
                self.downloads = gr.HTML(elem_id="run-links")
                self.name = gr.Textbox(label=gettext("Name"), max_lines=1, elem_id="run-name")
                self.tags = gr.Textbox(
                    label=gettext("Tags"), info=gettext("With commas between."), max_lines=1,
                    elem_id="run-tags",
                )  # fmt: skip
                self.note = gr.Textbox(
                    label=gettext("Note"), lines=2, max_lines=8, elem_id="run-note"
                )
                # The id of the run that these three were filled in for.
                self.described = elements.browser_value()
                text = gettext("Save name, tags and note")
                self.save = gr.Button(text, elem_id="run-save", size="sm")
                with gr.Accordion(gettext("Configuration"), open=False, elem_id="run-config-fold"):
                    self.config = gr.HTML(elem_id="run-config")

    def _wire(self) -> None:
        quick = feedback.QUICK
        parts = (self, self.deletion, self.check)
        everything = [each for part in parts for each in elements.components(part)]
        view_inputs = [self.view, self.sent, self.filter]
        each = quick | {"trigger_mode": "multiple"}  # Gradio's other modes drop some clicks
        for html in (self.table, self.comparison):
            html.click(self.on_table, view_inputs, everything, **each)
        asking = elements.opening("runs", self.address, view_inputs)
        self.opening = {"fn": self.on_open, "outputs": everything, **asking}
        tick = {"fn": self.on_tick, "inputs": view_inputs, "outputs": everything, **feedback.LATEST}
        gr.on([self.pulse.submit, self.filter.change], **tick)
        picked = [self.ticked, self.compare, self.delete_ticked]
        self.table.select(None, None, picked, js="() => finetune.ticked", **each)
        self.compare.click(self.on_compare, [*view_inputs, self.ticked], everything, **quick)
        self.back.click(self.on_back, view_inputs, everything, **quick)
        self.everybody.input(self.on_everybody, [*view_inputs, self.everybody], everything, **quick)
        for pressed, action in (
            (self.resume, "resume"), (self.stop, "stop"), (self.cancel, "stop"),
            (self.discard, "discard"), (self.pay, "pay"),
        ):  # fmt: skip
            pressed.click(self.on_action, [*view_inputs, gr.State(action)], everything, **quick)
        description = [self.name, self.tags, self.note, self.described]
        self.save.click(self.on_save, [*view_inputs, *description], everything, **quick)
        self.delete.click(self.on_delete, self.view, everything, **quick)
        ticked = [self.view, self.ticked]
        self.delete_ticked.click(self.on_delete_ticked, ticked, everything, **quick)
        self.leave.click(lambda: gr.update(visible=False), None, self.payment, **quick)
        asked = [*view_inputs, self.deletion.asked]
        self.deletion.confirm.click(self.on_confirm, asked, everything, **quick)

    @handler
    def on_open(self, store: RunStore, view: View, *others: Any) -> Updates:
        """Open the run, comparison or search in the page's address, or the table."""
        asked, others = elements.asked(others[-1]), others[:-1]
        if run_ids := asked.get("compare"):
            compared = [store.get(run_id).id for run_id in run_ids.split(",")]
            return self._change_view(store, view | {"compared": compared}, *others)
        if study_id := asked.get("search"):
            return self._change_view(store, view | {"search": study_id}, *others)
        if run_id := asked.get("run"):
            part = ERRORS if asked.get("part") == "errors" else ""
            return self._open(store, view, run_id, *others, part=part)
        return self._refresh(store, view, *others)

    @handler
    def on_tick(self, store: RunStore, *view_inputs: Any) -> Updates:
        """Send what has changed since the last time."""
        return self._refresh(store, *view_inputs)

    @handler
    def on_everybody(self, store: RunStore, view: View, *others: Any) -> Updates:
        """Show an admin everybody's runs, or their own again."""
        return self._change_view(store, view | {"everybody": bool(others[-1])}, *others[:-1])

    @handler
    def on_compare(self, store: RunStore, view: View, *others: Any) -> Updates:
        """Show the ticked runs beside each other, in place of the table."""
        view = view | {"compared": str(others[-1] or "").split()}
        return self._change_view(store, view, *others[:-1])

    @handler
    def on_back(self, store: RunStore, view: View, *others: Any) -> Updates:
        """Show the table again."""
        return self._change_view(
            store, view | {"opened": "", "compared": [], "search": ""}, *others
        )

    @handler
    def on_table(
        self,
        store: RunStore,
        event: gr.EventData,
        oauth: gr.OAuthToken | None,
        view: View,
        *others: Any,
    ) -> Updates:
        """Handle a click on a column's title, a run or a page of the table."""
        data = event_data(event)
        action, target, at = data.get("do"), str(data.get("what", "")), data.get("at")
        view = blank() | view
        if not isinstance(at, int | float) or at <= view.get("at", -1.0):
            return {}  # a later click was answered before: requests may arrive in any order
        view["at"] = at
        if action == "open":
            return self._open(store, view, target, *others)
        if action == "measure":
            compare.start_measuring(store, store.get(target))
        if action == "search":
            view["search"] = target
        elif action == "stop-search":
            find_study(store, target).stop()
        elif action in ("repeat", "continue-search"):
            study = find_study(store, target)
            asks = registry.find_engine(study.settings.spec.engine).needs_token
            token = (auth.hub_token(store, "", oauth) if asks else "") or ""
            if action == "repeat":
                results.repeat_best(store, study, token=token)
            else:
                driver.go_on(store, study, token)
        if action == "sort" and target in run_view.all_columns():
            again, first = view["by"] == target, run_table.columns().get(target, False)
            view |= {"by": target, "descending": not view["descending"] if again else first}
        elif action == "page" and target.isdecimal():
            view["page"] = int(target[:6])
        elif action == "columns":
            view["columns"] = [name for name in target.split() if name in run_view.all_columns()]
        return self._change_view(store, view, *others)

    def _open(
        self, store: RunStore, view: View, run_id: str, *others: Any, part: str = ""
    ) -> Updates:
        run = _visible(store, view).get(run_id)
        summary, about = run.state(), run.about()
        ended = summary.status in ENDED and summary.best is not None
        description: Updates = {
            self.name: gr.update(value=about.name, placeholder=run.title()),
            self.tags: ", ".join(about.tags),
            self.note: about.note,
            self.described: run.id,
        }
        part = part or (EVALUATION if ended else PROGRESS)
        view = view | {"opened": run.id, "compared": [], "search": ""}
        shown = {self.part: gr.update(value=part, visible=True)}
        return description | self._change_view(store, view, *others) | shown

    @handler
    def on_action(
        self, store: RunStore, oauth: gr.OAuthToken | None, view: View, *others: Any
    ) -> Updates:
        """Handle a pressed button above the run."""
        visible, action = _visible(store, view), others[-1]
        if action in ("resume", "pay"):  # only its owner may ask for that
            run = store.get(view["opened"])
            if action == "resume" and (price := service.resume_price(run)):
                label = registry.engine_of(run).label
                question = macro("engine.html", "resume_question")(label, price)
                return {self.payment: gr.update(visible=True), self.price: question}
            service.resume_run(store, run, token=hub_token(store, [run], oauth), agreed=True)
        else:
            run = visible.get(view["opened"])
            service.stop_run(visible, run, discard=action == "discard")
        answered = {self.message: "", self.payment: gr.update(visible=False)}
        return answered | self._refresh(store, view, *others[:-1])

    @handler
    def on_save(self, store: RunStore, *values: Any) -> Updates:
        """Save name, tags and note of the run they were typed for; another may be open now."""
        *view_inputs, name, tags, note, described = values
        store.describe(
            store.get(described),
            name=str(name or "").strip(),
            tags=parse_tags(str(tags or "")),
            note=str(note or ""),
        )
        return {self.message: ""} | self._refresh(store, *view_inputs)

    @handler
    def on_delete(self, store: RunStore, view: View) -> Updates:
        """Ask to confirm deleting the opened run, or the search with its runs."""
        return self.deletion.ask(_visible(store, view), view["opened"] or view["search"])

    @handler
    def on_delete_ticked(self, store: RunStore, view: View, ticked: str) -> Updates:
        """Ask to confirm deleting the ticked runs."""
        return self.deletion.ask(_visible(store, view), str(ticked or ""))

    @handler
    def on_confirm(
        self, store: RunStore, oauth: gr.OAuthToken | None, view: View, *others: Any
    ) -> Updates:
        """Delete the runs or the search in question, whatever is open by now."""
        asked = others[-1]
        self.deletion.delete(_visible(store, view), asked, oauth)
        left = {name: "" for name in ("opened", "search") if view[name] in asked.split()}
        return self._change_view(store, view | left, *others[:-1])

    @handler
    def on_clone(self, store: RunStore, view: View) -> Updates:
        """Copy the opened run's configuration into the form and show the form."""
        config = store.get(view["opened"]).config().changed(name="")
        updates = [*form.filled(store, config), gr.Tabs(selected="train")]
        return dict(zip(self.filled, updates, strict=True)) | {self.message: ""}

    def _change_view(
        self, store: RunStore, view: View, _sent: dict[int, int], text: str
    ) -> Updates:
        """Return all updates for a new view: a tick that was answered late may have put back an
        older record of what was sent."""
        hidden = gr.update(visible=False)
        updates = {
            self.view: view, self.deletion.row: hidden, self.payment: hidden, self.message: "",
        }  # fmt: skip
        return updates | self._refresh(store, view, {}, text)

    def _refresh(self, store: RunStore, view: View, sent: dict[int, int], text: str) -> Updates:
        """The updates that were not sent to this browser yet."""
        visible, admin = _visible(store, view), store.visitor.admin
        rows = run_view.rows(visible)
        listed = {row.id for row in rows}
        compared = [run_id for run_id in view["compared"] if run_id in listed]
        compared = compared[: run_view.MAX_COMPARED]
        comparing, search = len(compared) > 1, view.get("search", "")
        opened = view["opened"] if view["opened"] in listed and not comparing else ""
        instead = "" if not comparing else compare_view.comparison(visible, compared)
        if search and not opened:
            comparing, instead = True, search_view.page(visible, search)
        updates: Updates = {
            self.head: gr.update(visible=bool(opened or comparing)),
            self.comparison: gr.update(
                value=instead,
                visible=comparing,
            ),
            self.run_column: gr.update(visible=bool(opened)),
            self.part: gr.update(visible=bool(opened)),
            self.everybody: gr.update(visible=admin),
            self.address: elements.query(
                compare=",".join(compared) if len(compared) > 1 else "",
                run=opened,
                search=search,
            ),
        }
        updates |= self.check.shown(visible, [] if search and not opened else compared)
        if opened:
            with contextlib.suppress(NoSuchRun):  # deleted in this moment: the next tick sees it
                updates |= self._run_updates(visible, visible.get(opened))
        else:
            order = view["by"], view["descending"]
            table = search_view.links(visible) + run_view.table(
                rows, *order, str(text or ""), view["page"], view["columns"]
            )
            buttons = (self.resume, self.stop, self.discard, self.cancel, self.clone)
            updates |= dict.fromkeys(buttons, gr.update(visible=False))
            updates[self.delete] = gr.update(visible=bool(search))
            updates[self.title] = ""
            updates[self.table] = table
        hashes = {component._id: hash(str(update)) for component, update in updates.items()}
        changed = {
            component: update
            for component, update in updates.items()
            if sent.get(component._id) != hashes[component._id]
        }
        return changed | {self.sent: sent | hashes}

    def _run_updates(self, store: RunStore, run: Run) -> Updates:
        summary = run.state()
        resumable = summary.status in service.RESUMABLE and not run_view.is_everybodys(store)
        running, waits = summary.status == "running", service.queue_place(store, run)[0] > 0
        can_stop = running and not run.stop_requested()
        downloads = macro("run_details.html", "downloads")
        return {
            self.live: run.id,
            self.config: run_view.configuration(run),
            self.title: macro("macros.html", "heading")(run.title()),
            self.downloads: downloads(run.id, run.has_model()),
            self.resume: gr.update(visible=resumable),
            self.stop: gr.update(visible=running, interactive=can_stop),
            self.discard: gr.update(visible=running, interactive=can_stop),
            self.cancel: gr.update(visible=waits),
            self.clone: gr.update(visible=True),
            self.delete: gr.update(visible=True),
        }


def _visible(store: RunStore, view: View) -> RunStore:
    """The store of the runs shown: the visitor's, or everybody's if an admin asks."""
    return store.everyone if view.get("everybody") and store.visitor.admin else store
