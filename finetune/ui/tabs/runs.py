"""The Runs tab: the table of all runs, or in its place one in full, or several compared.

While the tab is open it polls the run folders; only what has changed is sent.
"""

from __future__ import annotations

import contextlib
from typing import Any

import gradio as gr

from finetune.engines import registry
from finetune.errors import NoSuchRun, PublishError
from finetune.jobs import evaluate, run_table, service
from finetune.jobs.run_table import BundleRow, RunRow
from finetune.runs.run import Run, parse_tags
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED
from finetune.studies import driver, results
from finetune.studies.study import Study, find_study, studies
from finetune.ui import auth, compare_view, elements, feedback, form, live_updates, run_view
from finetune.ui.compare_view import ReleaseCheck
from finetune.ui.elements import button, text_box
from finetune.ui.html import asset, macro
from finetune.ui.i18n import gettext
from finetune.ui.panel import Panel, Pressed, Updates, handler
from finetune.ui.run_view import View, blank
from finetune.ui.tabs.evaluate import ERRORS, EVALUATION, PROGRESS, Evaluation

_TABLE: View = {"opened": "", "compared": [], "search": ""}  # nothing in the table's place
_NAMED = 5  # rows that the question names
# The question stands above the buttons that ask it, which may be at the upper edge of the screen.
_IN_SIGHT = """const see = () => element.scrollIntoView({block: 'nearest'});
watch('value', see);
see();"""
Sent = dict[int, int]  # id of a component -> hash of the update it was sent last


class RunsTab(Panel):
    def __post_init__(self) -> None:
        self.evaluation = Evaluation(self.store)
        self.check = ReleaseCheck(self.store)

    def draw(self) -> None:
        self.view = gr.State(blank())
        self.ticked = elements.browser_value()  # ids of the ticked runs, from assets/run_table.js
        self.address = elements.address("runs")
        self.sent = gr.State({})  # by component: a hash of what it shows
        self.pulse = elements.polling_element(1.5, elements.ALWAYS)
        self.message = elements.notice("runs-message")
        self.asked = gr.State("")  # ids of the runs and searches that may be deleted
        with gr.Row(visible=False, elem_id="delete-asked") as self.deletion:
            self.question = gr.HTML(elem_id="delete-question", js_on_load=_IN_SIGHT)
            medium: dict[str, Any] = {"size": "md"}
            self.confirm = button("Delete for good", "delete-sure", 130, variant="stop", **medium)
            self.keep = button("Keep it", "delete-keep", **medium)
        with gr.Column(elem_id="all-runs"):
            with gr.Row(equal_height=True):
                text = "words of name, status, data, model, tags"
                self.words = text_box("Find", "runs-filter", 220, placeholder=text, scale=4)
                self.everybody = gr.Checkbox(
                    False, label="Everybody's runs", visible=False,
                    elem_id="runs-everybody", scale=1, min_width=150,
                )  # fmt: skip
                for_ticked: dict[str, Any] = {"interactive": False, "scale": 1}
                self.compare = button("Compare", "compare-runs", 130, **for_ticked)
                self.delete_ticked = button("Delete", "delete-runs", 110, **for_ticked)
            self.table = gr.HTML(
                feedback.note("Reading the runs."), elem_id="runs-table",
                js_on_load=asset("run_table.js") + elements.TAB_LINKS,
                most=run_view.MAX_COMPARED,
            )  # fmt: skip
        with gr.Row(visible=False, elem_id="run-head") as self.head:
            self.back = button("← All runs", "all-runs-again", 110, size="md")
            self.title = gr.HTML(elem_id="run-title")
            self.evaluation.draw_choice(self.view)
            self.part = self.evaluation.part
            self.resume = button("Resume", "run-resume", 110, variant="primary", **medium)
            self.stop = button("Stop, keep best", "run-stop", 130, **medium)
            self.discard = button("Stop, discard", "run-discard", 130, **medium)
            self.cancel = button("Take out of the queue", "run-cancel", 160, **medium)
            self.clone = button("Copy into the form", "run-clone", 150, **medium)
            self.delete = button("Delete", "run-delete", **medium)
        with gr.Row(visible=False, elem_id="resume-asked") as self.payment:
            self.price = gr.HTML(elem_id="resume-price")
            self.pay = button("Resume and pay", "resume-sure", 130, variant="primary", **medium)
            self.leave = button("Cancel", "resume-leave", **medium)
        self.comparison = gr.HTML(  # or a search
            elem_id="comparison", visible=False,
            js_on_load=asset("run_table.js") + elements.TAB_LINKS,
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
                self.name = text_box("Name", "run-name")
                text = "With commas between."
                self.tags = text_box("Tags", "run-tags", info=text)
                self.note = gr.Textbox(label="Note", lines=2, max_lines=8, elem_id="run-note")
                # The id of the run that these three were filled in for.
                self.described = elements.browser_value()
                self.description = [self.name, self.tags, self.note, self.described]
                self.save = gr.Button("Save name, tags and note", elem_id="run-save", size="sm")
                with gr.Accordion("Configuration", open=False, elem_id="run-config-fold"):
                    self.config = gr.HTML(elem_id="run-config")

    def _wire(self) -> None:
        quick = feedback.QUICK
        self.confirmed = self.connect()["on_confirm"]  # the event of a deletion
        picked = [self.ticked, self.compare, self.delete_ticked]
        each = quick | {"trigger_mode": "multiple"}
        self.table.select(None, None, picked, js="() => finetune.ticked", **each)
        for pressed, action in (
            (self.resume, "resume"), (self.stop, "stop"), (self.cancel, "stop"),
            (self.discard, "discard"), (self.pay, "pay"),
        ):  # fmt: skip
            inputs = [self.view, self.words, gr.State(action)]
            pressed.click(self.on_action, inputs, self.outputs(), **quick)
        for no, row in ((self.keep, self.deletion), (self.leave, self.payment)):
            no.click(lambda: gr.update(visible=False), None, row, **quick)

    @handler(opens="runs")
    def on_open(self, store: RunStore, view: View, sent: Sent, words: str, address: str) -> Updates:
        """Open the run, comparison or search in the page's address, or the table."""
        asked = elements.asked(address)
        if run_ids := asked.get("compare"):
            compared = [store.get(run_id).id for run_id in run_ids.split(",")]
            return self._change_view(store, view | _TABLE | {"compared": compared}, words)
        if study_id := asked.get("search"):
            return self._change_view(store, view | _TABLE | {"search": study_id}, words)
        if run_id := asked.get("run"):
            part = ERRORS if asked.get("part") == "errors" else ""
            return self._open(store, view, run_id, words, part)
        return self._refresh(store, view, sent, words)

    @handler("pulse.submit", "words.change", latest=True)
    def on_tick(self, store: RunStore, view: View, sent: Sent, words: str) -> Updates:
        """Send what has changed since the last time."""
        return self._refresh(store, view, sent, words)

    @handler("everybody.input")
    def on_everybody(self, store: RunStore, view: View, words: str, everybody: bool) -> Updates:
        """Show an admin everybody's runs, or their own again."""
        return self._change_view(store, view | {"everybody": bool(everybody)}, words)

    @handler("compare.click")
    def on_compare(self, store: RunStore, view: View, words: str, ticked: str) -> Updates:
        """Show the ticked runs beside each other, in place of the table."""
        compared = {"compared": str(ticked or "").split(), "ticks": view["ticks"] + 1}
        return self._change_view(store, view | compared, words)

    @handler("back.click")
    def on_back(self, store: RunStore, view: View, words: str) -> Updates:
        return self._change_view(store, view | _TABLE, words)

    # Gradio's other modes drop some clicks.
    @handler("table.click", "comparison.click", trigger_mode="multiple")
    def on_table(
        self, store: RunStore, pressed: Pressed, oauth: gr.OAuthToken | None, view: View, words: str
    ) -> Updates:
        """Handle a click on a column's title, a run or a page of the table."""
        action, target = pressed.get("do"), str(pressed.get("what", ""))
        view, at = blank() | view, pressed.get("at")
        if not isinstance(at, int | float) or at <= view.get("at", -1.0):
            return {}  # a later click was answered before: requests may arrive in any order
        view["at"] = at
        if action == "open":
            return self._open(store, view, target, words)
        if action == "measure":
            evaluate.start_measuring(store, store.get(target))
        if action == "search":
            view["search"] = target
        elif action == "stop-search":
            find_study(store, target).stop()
        elif action in ("repeat", "continue-search"):
            study = find_study(store, target)
            asks = registry.find_engine(study.settings.spec.engine).needs_token
            token = auth.hub_token(store, "", oauth, asks)
            if action == "repeat":
                results.repeat_best(store, study, token=token)
            else:
                driver.go_on(store, study, token)
        if action == "sort" and target in run_view.all_columns():
            again, first = view["by"] == target, run_table.COLUMNS.get(target, False)
            view |= {"by": target, "descending": not view["descending"] if again else first}
        elif action == "page" and target.isdecimal():
            view["page"] = int(target[:6])
        elif action == "unfold":
            unfolded = {*view["unfolded"]} ^ {target[:200]}
            view["unfolded"] = sorted(unfolded)[:100]
        elif action == "compare":
            view["compared"] = target.split()
        elif action == "columns":
            view["columns"] = [name for name in target.split() if name in run_view.all_columns()]
        return self._change_view(store, view, words)

    def _open(
        self, store: RunStore, view: View, run_id: str, words: str, part: str = ""
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
        view = view | _TABLE | {"opened": run.id}
        shown = {self.part: gr.update(value=part, visible=True)}
        return description | self._change_view(store, view, words) | shown

    @handler()
    def on_action(
        self, store: RunStore, oauth: gr.OAuthToken | None, view: View, words: str, action: str
    ) -> Updates:
        """Handle a pressed button above the run."""
        visible = _visible(store, view)
        if action in ("resume", "pay"):  # only its owner may ask for that
            run = store.get(view["opened"])
            if action == "resume" and (price := service.resume_price(run)):
                label = registry.engine_of(run).label
                question = macro("engine.html", "resume_question")(label, price)
                return {self.payment: gr.update(visible=True), self.price: question}
            service.resume_run(store, run, token=_token(store, [run], oauth), agreed=True)
        else:
            run = visible.get(view["opened"])
            service.stop_run(visible, run, discard=action == "discard")
        answered = {self.message: "", self.payment: gr.update(visible=False)}
        return answered | self._refresh(store, view, {}, words)

    @handler("save.click")
    def on_save(self, store: RunStore, view: View, words: str, *description: str) -> Updates:
        """Save name, tags and note of the run they were typed for; another may be open now."""
        name, tags, note, described = description
        store.describe(
            store.get(described),
            name=str(name or "").strip(),
            tags=parse_tags(str(tags or "")),
            note=str(note or ""),
        )
        return {self.message: ""} | self._refresh(store, view, {}, words)

    @handler("delete.click")
    def on_delete(self, store: RunStore, view: View) -> Updates:
        """Ask to confirm deleting the opened run, or the search with its runs."""
        return self._ask(_visible(store, view), view["opened"] or view["search"])

    @handler("delete_ticked.click")
    def on_delete_ticked(self, store: RunStore, view: View, ticked: str) -> Updates:
        """Ask to confirm deleting the ticked runs, with a search of which all are ticked: it would
        begin others."""
        shown, names = _visible(store, view), str(ticked or "").split()
        updates = self._ask(shown, " ".join(names))
        for name in {shown.get(run_id).about().study for run_id in names}:
            if study := _search(shown, name):
                runs = {run.id for run in results.all_runs(shown, study)}
                if runs <= {*names}:
                    names = [study.id, *(run_id for run_id in names if run_id not in runs)]
        return updates | {self.asked: " ".join(names)}

    @handler("confirm.click")
    def on_confirm(
        self, store: RunStore, oauth: gr.OAuthToken | None, view: View, words: str, asked: str
    ) -> Updates:
        """Delete the runs and searches in question, whatever is open by now."""
        shown = _visible(store, view)
        for one in [_search(shown, name) or shown.get(name) for name in asked.split() or [asked]]:
            if isinstance(one, Study):
                token = _token(shown, results.all_runs(shown, one), oauth)
                results.delete_search(shown, one, token)
            else:
                service.delete_run(shown, one, _token(shown, [one], oauth))
        left = {name: "" for name in ("opened", "search") if view[name] in asked.split()}
        left["ticks"] = view["ticks"] + 1
        return self._change_view(store, view | left, words)

    def _ask(self, store: RunStore, asked: str) -> Updates:
        """Ask to confirm deleting a search, or runs with spaces between their ids."""
        name = ""
        if study := _search(store, asked):
            runs = results.all_runs(store, study)
        else:
            runs = [store.get(run_id) for run_id in asked.split() or [asked]]
            lines = run_table.chosen_lines(run_view.rows(store), {run.id for run in runs})
            name = ", ".join(map(_line_name, lines[:_NAMED]))
            if (more := len(lines) - _NAMED) > 0:
                name += " " + gettext("and {n:,} more", n=more)
        kept = [engine.removal_note for run in runs for engine in registry.that_keep(run)]
        notes = dict.fromkeys(filter(None, kept))
        question = macro("run_details.html", "question")(name, len(runs), notes)
        return {self.deletion: gr.update(visible=True), self.question: question, self.asked: asked}

    @handler()
    def on_clone(self, store: RunStore, view: View) -> Updates:
        """Copy the opened run's configuration into the form and show the form."""
        config = store.get(view["opened"]).config().changed(name="")
        return form.filled(self.filled, store, config) | {self.message: ""}

    def _change_view(self, store: RunStore, view: View, words: str) -> Updates:
        """Return all updates for a new view: a tick that was answered late may have put back an
        older record of what was sent."""
        hidden = gr.update(visible=False)
        updates = {self.view: view, self.deletion: hidden, self.payment: hidden, self.message: ""}
        return updates | self._refresh(store, view, {}, words)

    def _refresh(self, store: RunStore, view: View, sent: Sent, words: str) -> Updates:
        """The updates that were not sent to this browser yet."""
        visible, admin = _visible(store, view), store.visitor.admin
        rows = run_view.rows(visible)
        listed = {row.id for row in rows}
        compared = [run_id for run_id in view["compared"] if run_id in listed]
        compared = compared[: run_view.MAX_COMPARED] if len(compared) > 1 else []
        comparing, search = bool(compared), view["search"]
        opened = view["opened"] if view["opened"] in listed and not comparing else ""
        instead = "" if not comparing else compare_view.comparison(visible, compared)
        if search and not opened:
            comparing, instead = True, compare_view.search(visible, search)
        updates: Updates = {
            self.head: gr.update(visible=bool(opened or comparing)),
            self.comparison: gr.update(value=instead, visible=comparing),
            self.run_column: gr.update(visible=bool(opened)),
            self.part: gr.update(visible=bool(opened)),
            self.everybody: gr.update(visible=admin),
            self.address: elements.query(compare=",".join(compared), run=opened, search=search),
        }
        updates |= self.check.shown(visible, [] if search and not opened else compared)
        if opened:
            with contextlib.suppress(NoSuchRun):  # deleted in this moment: the next tick sees it
                updates |= self._run_updates(visible, visible.get(opened))
        else:
            table = run_view.table(visible, rows, view, str(words or ""))
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


def _line_name(line: RunRow | BundleRow) -> str:
    if isinstance(line, RunRow) or len(line.members) == 1:
        return line.name
    return gettext("{name} ({n} runs)", name=line.name, n=len(line.members))


def _search(store: RunStore, asked: str) -> Study | None:
    return next((study for study in studies(store) if study.id == asked), None)


def _token(store: RunStore, runs: list[Run], oauth: gr.OAuthToken | None) -> str:
    """The visitor's Hub token for what runs have on the Hub. Empty if there is none: a token typed
    before may do."""
    with contextlib.suppress(PublishError):
        there = any(registry.is_remote(run) or registry.that_keep(run) for run in runs)
        return auth.hub_token(store, "", oauth, there)
    return ""
