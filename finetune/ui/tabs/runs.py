"""The Runs tab: every run there is, one of them in full, or several beside each other.

A pulse reads the run folders while the tab is open; what has not changed is not sent again.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from finetune import config, owners
from finetune.config import RunConfig
from finetune.errors import FinetuneError, JobError, NoSuchRun, StoreError
from finetune.evaluation import report
from finetune.jobs import run_table, service
from finetune.runs import metadata
from finetune.runs.store import Run, RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.ui import (
    auth,
    compare_view,
    evaluation_view,
    feedback,
    form,
    live_updates,
    polling,
    routes,
    run_table_view,
    tab_links,
)
from finetune.ui.compare_view import Compared
from finetune.ui.i18n import gettext
from finetune.ui.tabs.evaluate import Evaluation

# What this browser looks at; kept by the server, so no client can put anything else there.
View = dict[str, Any]
Chosen = dict[str, Any]  # the runs ticked, and which change of the browser's it was
_CHOOSING = threading.Lock()
SHOWN = 300  # rows; a filter finds the rest


def blank() -> View:
    """Nothing opened, the newest first; of everybody's only where an admin asks for them."""
    return {
        "by": "created", "descending": True, "opened": "", "comparing": False, "everybody": False,
    }  # fmt: skip


@dataclass
class RunsTab:
    """The tab's controls and what its events do.

    Args:
        store: where runs are.
    """

    store: RunStore

    def __post_init__(self) -> None:
        self.evaluation = Evaluation(self.store)

    def draw(self) -> None:
        """Lay out the tab inside the current `gr.Tab` and wire its events."""
        self.view = gr.State(blank())
        self.chosen = gr.State({"at": -1.0, "runs": [], "full": False})
        self.seen = gr.State({})
        self.doomed = gr.State("")  # the run that the question is about
        self.pulse = polling.polling_element(1.5, polling.ALWAYS)
        gr.HTML(feedback.note("Every run: the queue, the history, one in full, several compared."))
        with gr.Row(equal_height=True):
            self.filter = gr.Textbox(
                label="Find", placeholder="words of name, status, pairs, checkpoint, tags",
                elem_id="runs-filter", max_lines=1, scale=4, min_width=220,
            )  # fmt: skip
            self.everybody = gr.Checkbox(
                False, label="Everybody's runs", visible=False, elem_id="runs-everybody",
                scale=1, min_width=150,
            )  # fmt: skip
            self.compare = gr.Button(
                "Compare", elem_id="compare-runs", interactive=False, scale=1, min_width=130
            )
        self.table = gr.HTML(
            feedback.note("Reading the runs."),
            elem_id="runs-table",
            js_on_load=run_table_view.script(compare_view.MOST) + _KEEP_PLACE + tab_links.SCRIPT,
        )
        self.message = gr.HTML(elem_id="runs-message", elem_classes="ft-if-said")
        self.compared = gr.HTML(elem_id="comparison", visible=False)
        with gr.Column(visible=False, elem_id="one-run") as self.one:
            self._draw_one()
        self._wire()

    def _draw_one(self) -> None:
        with gr.Row():
            self.resume = gr.Button(
                "Resume", variant="primary", elem_id="run-resume", min_width=110, size="md"
            )
            self.stop = gr.Button("Stop, keep best", elem_id="run-stop", min_width=130, size="md")
            self.discard = gr.Button(
                "Stop, discard", elem_id="run-discard", min_width=130, size="md"
            )
            self.front = gr.Button(
                "Move to the front", elem_id="run-front", min_width=140, size="md"
            )
            self.cancel = gr.Button(
                "Take out of the queue", elem_id="run-cancel", min_width=160, size="md"
            )
            self.clone = gr.Button(
                "Copy into the form", elem_id="run-clone", min_width=150, size="md"
            )
            self.delete = gr.Button("Delete", elem_id="run-delete", min_width=90, size="md")
        with gr.Row(visible=False, elem_id="delete-asked") as self.asked:
            self.question = gr.HTML(elem_id="delete-question")
            self.sure = gr.Button(
                "Delete for good", variant="stop", elem_id="delete-sure", min_width=130
            )
            self.keep = gr.Button("Keep it", elem_id="delete-keep", min_width=90)
        self.evaluation.draw_choice()
        with gr.Column() as progress:
            self._draw_progress()
        self.evaluation.draw(progress)

    def _draw_progress(self) -> None:
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=320):
                self.live = live_updates.view("run-")
            with gr.Column(scale=2, min_width=320):
                self.links = gr.HTML(elem_id="run-links")
                self.name = gr.Textbox(label="Name", max_lines=1, elem_id="run-name")
                self.tags = gr.Textbox(
                    label="Tags", info="With commas between.", max_lines=1, elem_id="run-tags"
                )
                self.note = gr.Textbox(label="Note", lines=2, max_lines=8, elem_id="run-note")
                self.described = gr.HTML("", html_template="", elem_classes="ft-pulse")
                self.save = gr.Button("Save name, tags and note", elem_id="run-save", size="sm")
                with gr.Accordion("Configuration", open=False, elem_id="run-config-fold"):
                    self.config = gr.HTML(elem_id="run-config")
                with gr.Accordion("Checkpoints", open=False, elem_id="run-checkpoints-fold"):
                    self.checkpoints = gr.HTML(elem_id="run-checkpoints")

    def _wire(self) -> None:
        quick = feedback.QUICK
        self.list = [self.view, self.seen, self.table, self.compare, self.compared, self.one]
        self.parts = [self.live, self.config, self.checkpoints, self.links, *self._buttons()]
        self.words = [self.name, self.tags, self.note, self.described]
        all_ = [*self.list, *self.parts, *self.words, self.asked, self.message]
        here = [self.view, self.chosen, self.seen, self.filter]
        # Each is sent, and counted: of two the later one counts.
        opened = self.table.click(self.on_table, here, all_, trigger_mode="multiple", **quick)
        self.evaluation.wire(self.view, opened)
        self.compare.click(self.on_compare, here, all_, **quick)
        self.everybody.input(self.on_everybody, [*here, self.everybody], all_, **quick)
        # None of these writes what is looked at: an answer may be late, after another click.
        ticked = [*self.list[1:], *self.parts]
        # Each is sent: the others of Gradio's modes drop a click, or what was clicked.
        self.table.select(
            self.on_choose, self.chosen, [self.chosen, self.message],
            trigger_mode="multiple", **quick,
        ).then(self.on_tick, here, ticked, trigger_mode="always_last", **quick)  # fmt: skip
        self.pulse.submit(self.on_tick, here, ticked, **quick)
        self.filter.change(self.on_tick, here, ticked, trigger_mode="always_last", **quick)
        for button, act in (
            (self.resume, self.on_resume),
            (self.stop, self.on_stop),
            (self.discard, self.on_discard),
            (self.cancel, self.on_stop),
            (self.front, self.on_front),
        ):
            button.click(act, self.view, self.message, **quick).then(
                self.on_tick, here, ticked, **quick
            )
        self.save.click(self.on_save, [self.view, *self.words], self.message, **quick).then(
            self.on_tick, here, ticked, **quick
        )
        self.delete.click(
            self.on_delete, self.view, [self.asked, self.question, self.doomed], **quick
        )
        self.keep.click(lambda: gr.update(visible=False), None, self.asked, **quick)
        self.sure.click(self.on_sure, [*here, self.doomed], all_, **quick)

    def _buttons(self) -> list[gr.Button]:
        return [self.resume, self.stop, self.discard, self.front, self.cancel]

    def opening(self) -> dict[str, Any]:
        """How the page calls `on_open` when the tab is chosen."""
        here = [self.view, self.chosen, self.seen, self.filter]
        return {
            "fn": self.on_open,
            "inputs": here,
            "outputs": [*self.list[1:], *self.parts, self.everybody],
        }

    def on_open(
        self, request: gr.Request, view: View, chosen: Chosen, seen: Any, text: str
    ) -> list[Any]:
        """The tab was opened: all is shown at once."""
        admin = auth.request_visitor(self.store, request).admin
        return [*self.on_tick(request, view, chosen, {}, text), gr.update(visible=admin)]

    def on_everybody(
        self, request: gr.Request, view: View, chosen: Chosen, seen: Any, text: str, all_: bool
    ) -> list[Any]:
        """Everybody's runs shall be shown, or one's own again; for who looks after the app."""
        view = {**view, "everybody": bool(all_)}
        store = self._store(request, view)
        return self._all(store, view, chosen, seen, text, self._kept(), "")

    def _store(self, request: gr.Request, view: View) -> RunStore:
        """The runs that are shown: the visitor's, or everybody's where an admin asks for them."""
        store = auth.visitor_store(self.store, request)
        return store.everyone if view.get("everybody") and store.visitor.admin else store

    def on_table(
        self,
        request: gr.Request,
        view: View,
        chosen: Any,
        seen: Any,
        text: str,
        event: gr.EventData,
    ) -> list[Any]:
        """Something in the table was clicked: a head or a run."""
        told = event._data if isinstance(event._data, dict) else {}
        act, what = told.get("do"), str(told.get("what", ""))
        store, view = self._store(request, view), {**blank(), **view}
        message: Any = ""
        if not _later(told, view):
            return [gr.skip()] * (len(self.list) + len(self.parts) + len(self.words) + 2)
        view["at"] = told["at"]
        try:
            if act == "sort" and what in run_table.COLUMNS:
                again = view["by"] == what
                view["descending"] = not view["descending"] if again else run_table.COLUMNS[what]
                view["by"] = what
            elif act == "open":
                view |= {"opened": store.get(what).id, "comparing": False}
                return self._all(store, view, chosen, seen, text, self._said(store, view), "")
        except FinetuneError as error:
            message = feedback.show_errors(error)
        return self._all(store, view, chosen, seen, text, self._kept(), message)

    def on_choose(
        self, request: gr.Request, chosen: Chosen, event: gr.EventData
    ) -> tuple[Chosen, Any]:
        """Boxes were ticked: all the runs that are chosen now, and a message."""
        told = event._data if isinstance(event._data, dict) else {}
        at, named = told.get("at"), told.get("runs")
        if not isinstance(at, int | float) or not isinstance(named, list):
            return chosen, gr.skip()
        store, runs = self._store(request, {"everybody": True}), []
        for name in named[: compare_view.MOST]:
            with contextlib.suppress(NoSuchRun):  # deleted meanwhile, by another page
                runs.append(store.get(str(name)).id)
        with _CHOOSING:
            if at <= chosen["at"]:
                return chosen, gr.skip()
            was_full, full = chosen["full"], bool(told.get("full"))
            # In place: another click that is being answered has this very dict.
            chosen |= {"at": at, "runs": runs, "full": full}
        if full:
            text = gettext("At most {n} runs can be told apart.", n=compare_view.MOST)
            return chosen, feedback.show_errors(JobError(text, gettext("Take one away first.")))
        return chosen, "" if was_full else gr.skip()

    def on_compare(
        self, request: gr.Request, view: View, chosen: Chosen, seen: Any, text: str
    ) -> list[Any]:
        """Compare was pressed: the chosen runs beside each other, in place of the one."""
        view = {**view, "comparing": True}
        store = self._store(request, view)
        return self._all(store, view, chosen, seen, text, self._kept(), "")

    def on_tick(
        self, request: gr.Request, view: View, chosen: Chosen, seen: Any, text: str
    ) -> list[Any]:
        """What has changed since this browser was last told."""
        return self._refresh(self._store(request, view), view, chosen, seen, text)[1:]

    def on_resume(self, request: gr.Request, view: View) -> str:
        """Resume was pressed: the run goes on, or waits for its turn."""
        return self._act(request, _own(view), service.resume_run)

    def on_stop(self, request: gr.Request, view: View) -> str:
        """Stop was pressed, or a waiting run is taken out of the queue."""
        return self._act(request, view, service.stop_run)

    def on_discard(self, request: gr.Request, view: View) -> str:
        """The run ends, and its model is thrown away."""
        return self._act(
            request, view, lambda store, run: service.stop_run(store, run, discard=True)
        )

    def on_front(self, request: gr.Request, view: View) -> str:
        """A waiting run becomes the next."""
        return self._act(request, _own(view), service.move_to_front)

    def on_save(
        self, request: gr.Request, view: View, name: str, tags: str, note: str, run_id: str
    ) -> str:
        """Name, tags and note were written: of the run they were filled in for, though another may
        have been opened meanwhile."""

        def save(store: RunStore, run: Run) -> None:
            words = metadata.parse_tags(str(tags or ""))
            run.describe(name=str(name or "").strip(), tags=words, note=str(note or ""))

        return self._act(request, _own({**view, "opened": run_id}), save)

    def on_delete(self, request: gr.Request, view: View) -> tuple[Any, Any, Any]:
        """Delete was pressed: ask first, and remember about which run."""
        try:
            run = self._store(request, view).get(view["opened"])
        except Exception as error:
            return gr.update(visible=True), feedback.show_errors(error), ""
        text = gettext(
            "Delete <b>{name}</b> with its model, curves and log? It cannot be brought back.",
            name=html.escape(run.title()),
        )
        return gr.update(visible=True), f"<p>{text}</p>", run.id

    def on_sure(
        self, request: gr.Request, view: View, chosen: Chosen, seen: Any, text: str, doomed: str
    ) -> list[Any]:
        """The run that was asked about shall be deleted, whichever is opened by now."""
        store = self._store(request, view)
        message = self._act(request, {**view, "opened": doomed}, service.delete_run)
        if not message and view["opened"] == doomed:
            view = {**view, "opened": ""}
        return self._all(store, view, chosen, seen, text, self._kept(), message)

    def on_clone(self, request: gr.Request, view: View) -> list[Any]:
        """A run's configuration goes into the form; then the form's controls, Data's chooser, the
        tab to show and a message."""
        try:
            store = auth.visitor_store(self.store, request)
            chosen = store.get(view["opened"]).config()
            return [*form.filled(store, chosen.changed(name="")), gr.Tabs(selected="train"), ""]
        except Exception as error:
            return [gr.skip()] * (len(form.NAMES) + 2) + [feedback.show_errors(error)]

    def _act(self, request: gr.Request, view: View, act: Callable[[RunStore, Run], Any]) -> str:
        try:
            store = self._store(request, view)
            act(store, store.get(view["opened"]))
        except Exception as error:
            return feedback.show_errors(error)
        return ""

    def _all(
        self,
        store: RunStore,
        view: View,
        chosen: Any,
        seen: Any,
        text: str,
        words: list[Any],
        message: Any,
    ) -> list[Any]:
        hidden = gr.update(visible=False)
        return [*self._refresh(store, view, chosen, seen, text), *words, hidden, message]

    def _said(self, store: RunStore, view: View) -> list[Any]:
        known = store.get(view["opened"]).about()
        placeholder = store.get(view["opened"]).title()
        named = gr.update(value=known.name, placeholder=placeholder)
        return [named, ", ".join(known.tags), known.note, view["opened"]]

    def _kept(self) -> list[Any]:
        return [gr.skip()] * len(self.words)

    def _refresh(
        self, store: RunStore, view: View, chosen: Chosen, seen: Any, text: str
    ) -> list[Any]:
        seen = dict(seen) if isinstance(seen, dict) else {}
        rows = run_table.run_rows(store)
        if _everybodys(store):
            rows = [replace(one, tags=(*_whose(store, one.id), *one.tags)) for one in rows]
        ids = {one.id for one in rows}
        opened = view["opened"] if view["opened"] in ids else ""
        ticked = [one for one in chosen["runs"] if one in ids]
        comparing = view["comparing"] and len(ticked) > 1
        view = {**view, "opened": opened, "comparing": comparing}
        found = run_table.filter_rows(rows, str(text or ""))
        drawn = self._table(rows, found, view)
        pressed = gr.update(
            value=gettext("Compare {n}", n=len(ticked)) if len(ticked) > 1 else gettext("Compare"),
            interactive=len(ticked) > 1,
        )
        compared, shown = "", gr.update(visible=bool(opened) and not comparing)
        if comparing:
            compared = _comparison(store, ticked)
        of_list = {
            "table": drawn,
            "compare": (pressed, len(ticked)),
            "compared": compared,
            "one": (shown, bool(opened) and not comparing),
        }
        fresh, now = _fresh(of_list, seen)
        parts = [gr.skip()] * len(self.parts)
        if opened and not comparing:
            with contextlib.suppress(NoSuchRun):  # deleted in this moment: the next tick sees it
                parts, now = self._one(store, store.get(opened), now)
        comparison = gr.skip()
        if "compared" in fresh:
            comparison = gr.update(value=compared, visible=comparing)
        return [
            view,
            now,
            drawn if "table" in fresh else gr.skip(),
            pressed if "compare" in fresh else gr.skip(),
            comparison,
            shown if "one" in fresh else gr.skip(),
            *parts,
        ]

    def _table(
        self, rows: list[run_table.RunRow], found: list[run_table.RunRow], view: View
    ) -> str:
        if not rows:
            return run_table_view.empty()
        if not found:
            return run_table_view.nothing_found()
        arranged = run_table.sort_rows(found, view["by"], view["descending"], rows)[:SHOWN]
        shown = sum(len(one.rows) if isinstance(one, run_table.RunGroup) else 1 for one in arranged)
        drawn = run_table_view.table(
            arranged, view["opened"], view["by"], view["descending"], shown >= len(rows)
        )
        count = gettext("1 run") if len(rows) == 1 else gettext("{n} runs", n=len(rows))
        if len(found) < len(rows):
            count = gettext("{found} of {n} runs", found=len(found), n=len(rows))
        more = gettext(", the first {n} shown", n=shown) if shown < len(found) else ""
        return drawn + f'<p class="ft-facts">{html.escape(count + more)}</p>'

    def _one(
        self, store: RunStore, run: Run, seen: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        summary = service.run_summary(store, run)
        place = service.queue_place(store, run)
        values: dict[str, Any] = {
            "run": lambda: run.id,
            "config": lambda: _configuration(run),
            "checkpoints": lambda: _checkpoints(run, summary),
            "links": lambda: _links(run),
        }
        marks = {
            "run": run.id,
            "config": run.id,
            "checkpoints": (run.id, summary.count, summary.status),
            "links": (run.id, run.has_model()),
            "buttons": (
                run.id, summary.status, place, run.stop_requested(), _everybodys(store),
            ),
        }  # fmt: skip
        fresh, now = _fresh(marks, seen)
        parts = [
            (value() if callable(value) else value) if name in fresh else gr.skip()
            for name, value in values.items()
        ]
        buttons = _pressable(store, run, summary, place[0])
        parts += buttons if "buttons" in fresh else [gr.skip()] * len(buttons)
        return parts, now


# Keeps the keyboard's focus and the place scrolled to when the table is drawn anew.
_KEEP_PLACE = """
let held = null, left = 0;
const key = (part) => part && part.dataset && part.dataset.do
  ? `[data-do="${part.dataset.do}"][data-what="${part.dataset.what}"]` : null;
element.addEventListener('focusin', (event) => { held = key(event.target); });
element.addEventListener('focusout', (event) => { if (event.relatedTarget) held = null; });
element.addEventListener('scroll', (event) => { left = event.target.scrollLeft || 0; }, true);
watch('value', () => {
  const box = element.querySelector('.ft-runs');
  if (box) box.scrollLeft = left;
  const now = document.activeElement;
  // Lost, or in the row that came into the place of the one it was in.
  const lost = !now || now === document.body || (element.contains(now) && key(now) !== held);
  const part = held && lost ? element.querySelector(held) : null;
  if (part) part.focus({preventScroll: true});
});
"""


def _own(view: View) -> View:
    """What is looked at, of one's own runs alone."""
    return {**view, "everybody": False}


def _everybodys(store: RunStore) -> bool:
    """Whether an admin looks at everybody's runs, to stop or delete them."""
    return store.visitor.alone and owners.is_shared()


def _whose(store: RunStore, run_id: str) -> list[str]:
    """The user's name, or a browser's in short; nothing of a run that is nobody's."""
    kind, _, name = Run(store.root / run_id).about().owner.partition(":")
    return [name if kind == "user" else f"{kind} {name[:8]}"] if name else []


def _later(told: dict[str, Any], view: View) -> bool:
    """Whether a click comes after those that were answered: requests may arrive in any order."""
    at = told.get("at")
    return isinstance(at, int | float) and at > view.get("at", -1.0)


def _fresh(values: dict[str, Any], seen: dict[str, Any]) -> tuple[set[str], dict[str, Any]]:
    """Which of the values this browser has not been sent, and what it has been sent now."""
    digests = {
        name: hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()
        for name, value in values.items()
    }
    fresh = {name for name, digest in digests.items() if seen.get(name) != digest}
    return fresh, {**seen, **digests}


def _comparison(store: RunStore, chosen: list[str]) -> str:
    try:
        runs = [store.get(run_id) for run_id in chosen]
        differing = run_table.differing_settings(runs)
    except (NoSuchRun, StoreError) as error:
        return feedback.show_errors(error)
    found = [
        Compared(run_table.run_row(store, run), service.run_summary(store, run)) for run in runs
    ]
    return compare_view.view(found, differing) + _versus(runs, found)


def _versus(runs: list[Run], found: list[Compared]) -> str:
    """What the saved logits say of two runs; nothing for more of them."""
    if len(runs) != 2:
        return feedback.note(
            gettext("Choose two runs alone to see whether their difference can be chance.")
        )
    try:
        first, second = (
            report.evaluate_run(run, one.summary) for run, one in zip(runs, found, strict=True)
        )
    except StoreError:
        return ""
    return evaluation_view.versus(first, second, report.compare_runs(first, second))


def _pressable(store: RunStore, run: Run, summary: RunSummary, place: int) -> list[Any]:
    """Resume, stop, discard, front, cancel: those that make sense now."""
    running = summary.status == "running"
    asked = run.stop_requested()
    shown = (
        (summary.status in service.RESUMABLE and not _everybodys(store), True),
        (running, not asked),
        (running, not asked),
        (place > 1 and store.visitor.alone and not _everybodys(store), True),
        (place > 0, True),
    )
    return [gr.update(visible=visible, interactive=active) for visible, active in shown]


def _configuration(run: Run) -> str:
    try:
        chosen = run.config()
    except StoreError as error:
        return feedback.show_errors(error)
    blank_, lines = RunConfig().to_dict(), []
    for name, value in chosen.to_dict().items():
        shown = html.escape(str(value)) if value != "" else gettext("(empty)")
        cell = f"<b>{shown}</b>" if value != blank_[name] else shown
        text = html.escape(config.knobs()[name].help, quote=True)
        lines.append(f'<tr><th scope="row" title="{text}">{name}</th><td>{cell}</td></tr>')
    return (
        feedback.note(gettext("As the run was started; it never changes. Bold: not the default."))
        + f'<div class="ft-rows"><table><tbody>{"".join(lines)}</tbody></table></div>'
    )


def _checkpoints(run: Run, summary: RunSummary) -> str:
    lines = []
    if run.has_model() and summary.saved_step is not None:
        lines.append((gettext("best model"), f"{summary.saved_step:,}", _size(run.best)))
    for path in run.checkpoints():
        step = int(path.name.rpartition("-")[2])
        lines.append((gettext("to resume from"), f"{step:,}", _size(path)))
    if not lines:
        return feedback.note(
            gettext("Nothing is saved: there is neither a model nor a point to resume from.")
        )
    cells = "".join(
        f'<tr><th scope="row">{html.escape(what)}</th>'
        f"<td>{html.escape(gettext('step {n}', n=step))}</td>"
        f'<td class="ft-num">{size}</td></tr>'
        for what, step, size in lines
    )
    over = "" if summary.status not in ENDED or run.checkpoints() else (
        feedback.note(gettext("What was needed to resume is removed when a run has finished."))
    )  # fmt: skip
    return f'<div class="ft-rows"><table><tbody>{cells}</tbody></table></div>{over}'


def _size(folder: Any) -> str:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return f"{total / 2**20:,.1f} MB"


def _links(run: Run) -> str:
    model = (
        routes.download_link(run, "model.zip", html.escape(gettext("Best model (zip)")))
        if run.has_model()
        else ""
    )
    rest = routes.download_link(run, "config.json", html.escape(gettext("Configuration (JSON)")))
    rest += routes.download_link(run, "events.csv", html.escape(gettext("Events (CSV)")))
    return f'<div class="ft-links">{model}{rest}</div>'
