"""The Data tab: choose pairs from anywhere, see what was read and what is wrong with it.

A job checks the pairs while the page asks for its state. The choices here are fields of the form
that Train sends.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import gradio as gr

from finetune import uploads
from finetune.config import DATA_FIELDS, NO_COLUMN, SOURCE_FIELDS, RunConfig, is_upload
from finetune.data.check_report import CheckReport
from finetune.errors import DataError, FinetuneError, StoreError
from finetune.jobs import check
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED
from finetune.tasks import classes
from finetune.ui import elements, feedback, form, upload_limits
from finetune.ui.choosers import HubSearch
from finetune.ui.html import macro
from finetune.ui.i18n import gettext
from finetune.ui.label_panel import LabelPanel
from finetune.ui.panel import Panel, Pressed, Updates, handler

CHECKED_FIELDS = (*DATA_FIELDS, "checkpoint", "max_length")
# Settings for the rows of one source; like its columns, they do not apply to another.
ANSWERS = (
    "positive_label", "label_map", "decimal_mark", "label_separator", "rare_classes", "lost_rows",
    "drop_leaked", "drop_duplicates", "folds",
)  # fmt: skip
CLEARED_FIELDS = (*SOURCE_FIELDS[1:], *ANSWERS)
CHOSEN_COLUMNS = (
    "sentence1_column", "sentence2_column", "label_column", "positive_label", "sheet",
    "status_column",
)  # fmt: skip
REMEDIES = (*DATA_FIELDS[1:], "checkpoint")  # fields a finding can set
_TEMPLATE = "checks.html"

Choices = list[tuple[str, str]]  # label, value


@dataclass(frozen=True)
class Drawn:
    """The parts of a check on the page."""

    check_id: str = ""
    end: str = ""  # identifies one end of this check; empty while it runs
    has_rows: bool = False  # rows and choosers are drawn
    choices: tuple[Choices, ...] = ()  # of the choosers of columns and the positive class


class DataTab(Panel):
    def __post_init__(self) -> None:
        self.label = LabelPanel(self.store)

    def draw_poller(self) -> None:
        """Draw the elements that begin and poll a check; outside the tabs, as Train uses both."""
        self.cause = elements.browser_value()
        self.poller = elements.polling_element(1)

    def draw(self) -> dict[str, gr.components.Component]:
        """Lay out the tab inside the current `gr.Tab`, after `draw_poller`. Returns the form
        controls drawn here."""
        self.check_id, self.drawn = gr.State(""), gr.State(Drawn())
        with gr.Row(equal_height=False, elem_id="data-parts"):
            with gr.Column(min_width=320, elem_id="data-choice"):
                self._draw_choice()
            with gr.Column(min_width=320, elem_id="data-report"):
                self._draw_report()
            with gr.Column(min_width=320, elem_id="data-form"):
                controls, self.reading = form.draw_data()
                self.examine = gr.Button("Examine again", elem_id="examine")
        return controls

    def _draw_choice(self) -> None:
        self.files = [elements.pairs_file("Drop a CSV, Excel or Parquet file", "train-file", 150)]
        elements.note(
            "Also TSV, JSON, JSONL and ODS; text as .gz too. A header, then an example in each row."
        )
        with gr.Accordion("Validation and test files of your own", open=False, elem_id="own-files"):
            elements.note("Without them a part of the dropped file is cut off for validation.")
            labels = "Validation file (optional)", "Test file (optional)"
            for split, label in zip(uploads.SPLITS[1:], labels, strict=True):
                self.files.append(elements.pairs_file(label, f"{split}-file"))
        self.message = elements.notice("data-message")
        self.dataset = gr.Dropdown(
            form.datasets(), value=RunConfig().dataset, elem_id="pairs", allow_custom_value=True,
            label="Or choose other data",
            info="Or an earlier file, or a Hub dataset as owner/name.",
        )  # fmt: skip
        self.search = HubSearch(self.store, "dataset")
        self.search.draw()

    def _draw_report(self) -> None:
        self.progress = gr.HTML(elem_id="look-progress", elem_classes="ft-if-filled")
        script = elements.TAB_LINKS + elements.CHOICES
        self.overview = gr.HTML(macro(_TEMPLATE, "empty")(), elem_id="overview", js_on_load=script)
        self.label.draw()
        with gr.Column(visible=False) as self.more:
            elements.heading("Findings")
            self.findings = gr.HTML(elem_id="findings", js_on_load=script)
            elements.heading("Rows")
            with gr.Row(equal_height=True):
                self.split = elements.dropdown([], "Split", "rows-split", 110)
                self.again = elements.button("Show other rows", "rows-again", 140)
            self.rows = gr.HTML(elem_id="rows")

    def wire(self, controls: dict[str, Any]) -> None:
        """Connect the events. The form's `dataset` is drawn twice and kept the same."""
        quick, latest = feedback.QUICK, feedback.LATEST
        self.label.wire(controls)
        self.datasets = [controls["dataset"], self.dataset]
        self.cleared = {controls[name]: getattr(RunConfig(), name) for name in CLEARED_FIELDS}
        self.columns = [controls[name] for name in CHOSEN_COLUMNS]
        self.fields = [controls[name] for name in CHECKED_FIELDS]
        self.remedies = {name: controls[name] for name in REMEDIES}
        self.label_map = self.remedies["label_map"]
        blank = json.dumps(list(self.cleared.values()))
        for chooser, other in (self.datasets, self.datasets[::-1]):
            chooser.input(
                None, [chooser, other], [other, self.progress, *self.cleared],
                js=f"(pairs, other) => finetune.otherPairs(pairs, other, {blank})", **quick,
            ).then(**self.examining(), **latest)  # fmt: skip
        for file in self.files:
            file.upload(None, None, self.progress, js="() => finetune.pending", **quick)
        events = self.connect()
        events["on_upload"].then(**self.examining(), **latest)
        events["on_remedy"].then(**self.examining(), **quick)
        boxes = [controls[name] for name in DATA_FIELDS[1:]]
        choosers = (gr.Dropdown, gr.Checkbox)
        changes = [box.input if isinstance(box, choosers) else box.submit for box in boxes]
        gr.on(changes, **self.examining(), **latest)
        self.examine.click(**self.examining("pressed"), **quick)
        self.search.wire(self.datasets, self.cleared).then(**self.examining(), **quick)

        bounded = latest | {"queue": True, "concurrency_limit": 4}
        for event, order in ((self.split.input, "first"), (self.again.click, "random")):
            row_inputs = [self.check_id, self.split, gr.State(order)]
            event(self.on_rows, row_inputs, self.outputs(), **bounded)

    def examining(self, cause: str = "chosen") -> dict[str, Any]:
        """Options of an event that calls `on_examine`: pairs `chosen`, or Examine `pressed`."""
        script = f"() => '{cause} ' + Math.random()"
        return {"fn": None, "inputs": None, "outputs": self.cause, "js": script}

    @handler("files.upload", latest=True)
    def on_upload(self, store: RunStore, *files: str | None) -> Updates:
        """Store the uploaded files and choose them as the pairs."""
        paths = {split: path for split, path in zip(uploads.SPLITS, files, strict=True) if path}
        if "train" not in paths:
            raise DataError("The training file is missing.", "Choose it too.")
        received = {split: upload_limits.path(store.visitor, path) for split, path in paths.items()}
        names = {split: Path(path).name for split, path in paths.items()}
        try:
            dataset = store.uploads.add(received, names)
        except DataError:
            for path in paths.values():
                upload_limits.drop(path)
            raise
        for split, copy in store.uploads.files(dataset).items():
            upload_limits.kept(paths[split], copy)
        choices = form.datasets(store, dataset)
        # An update for each: Gradio empties the one it has used.
        selected = {box: gr.update(choices=choices, value=dataset) for box in self.datasets}
        return {self.message: "", **selected, **self.cleared, **self.label.closed()}

    # Two buttons pressed one after the other both count.
    @handler("overview.select", "findings.select", trigger_mode="multiple")
    def on_remedy(self, store: RunStore, pressed: Pressed, label_map: str = "") -> Updates:
        """Set the field of the form that a button on a finding names, or add a mended label to the
        form's `label_map`."""
        if mend := pressed.get("mend"):
            changed = RunConfig(label_map=str(label_map or "")).changed_labels
            value = classes.mended(changed, str(mend), str(pressed.get("label") or ""))
            return {self.label_map: value, self.message: ""}
        name = str(pressed.get("field"))
        return {self.remedies[name]: pressed.get("value")} if name in self.remedies else {}

    # One event for all causes: answers to several may come in another order.
    @handler("cause.change", latest=True)
    def on_examine(self, store: RunStore, cause: str, check_id: str, *fields: Any) -> Updates:
        """Check the chosen pairs anew, or show the findings of an earlier check of them."""
        config = form.read(fields, CHECKED_FIELDS)
        if check_id not in ("", check.check_folder(store, config).id):
            # Any visitor may wait for a check, but only the owner for one of an upload.
            with contextlib.suppress(DataError, StoreError):  # it is gone, or was never theirs
                former = check.get_check(store, check_id)
                if is_upload(former.config().dataset):
                    check.abandon_check(former)
        job = check.start_check(store, config, again=cause.startswith("pressed"))
        return {
            self.check_id: job.id,
            self.message: "",
            self.progress: macro(_TEMPLATE, "progress")(job.state()),
            self.poller: True,
        }

    @handler("poller.submit")
    def on_tick(self, store: RunStore, check_id: str, drawn: Drawn) -> Updates:
        """Show the check's progress; draw its findings once."""
        try:
            state = check.get_check(store, check_id).state()
        except DataError:
            return {self.poller: False, self.progress: ""}
        end = f"{state.status} {state.ended}" if state.status in ENDED else ""
        if drawn.check_id != check_id or (drawn.end and not end):  # other pairs, or checked anew
            drawn = Drawn(check_id, choices=drawn.choices)
        if end and drawn.end == end:
            return {self.poller: False}
        drawn = replace(drawn, end=end)
        updates: Updates = {self.progress: macro(_TEMPLATE, "progress")(state), self.drawn: drawn}
        if state.latest and (end or not drawn.has_rows):
            updates[self.poller] = True  # Train hears that pairs are counted
            updates |= self._report(store, state, drawn)
        elif end and not state.latest:
            updates |= {self.overview: "", self.more: gr.update(visible=False)}
        return updates | ({self.poller: False} if end else {})

    def _report(self, store: RunStore, state: check.CheckState, drawn: Drawn) -> Updates:
        report = state.latest
        assert report is not None
        updates: Updates = {
            self.overview: macro(_TEMPLATE, "overview")(report, state.running),
            self.more: gr.update(visible=bool(report.corpus)),
            self.findings: macro(_TEMPLATE, "findings")(report),
        }
        if any(found.kind == "unlabelled" for found in report.findings):
            updates |= self.label.offered(store) | {self.label.box: gr.update(open=True)}
            texts = report.usable("sentence1")
            first = report.columns.get("sentence1") or ""
            updates[self.label.column] = gr.update(choices=texts, value=first)
            if not drawn.has_rows:  # another file than the one that is being labelled
                updates |= self.label.closed()
        if any(remedy.field in form.READING for f in report.findings for remedy in f.remedies):
            updates[self.reading] = gr.update(open=True)  # how the file is read is in doubt
        if drawn.has_rows:  # other rows may be chosen by now
            return updates
        split = next(iter(report.read), "")
        choices = column_choices(report)
        updates |= {
            self.drawn: replace(drawn, has_rows=True, choices=choices),
            self.split: gr.update(choices=list(report.read), value=split or None),
            self.rows: _rows(store, drawn.check_id, split, "first"),
        }
        # A chooser with the same choices as before is not updated: somebody may be typing into it.
        for chooser, now, before in zip_longest(self.columns, choices, drawn.choices):
            if now != before:
                updates[chooser] = gr.update(choices=now, visible=bool(now))
        return updates

    @handler()
    def on_rows(self, store: RunStore, check_id: str, split: str, order: str) -> Updates:
        """Show the `first` rows of a split, or some at `random`."""
        return {self.rows: _rows(store, check_id, split, order)}


def _rows(store: RunStore, check_id: str, split: str, order: str) -> str:
    """Draw rows of a split with the labels that they are trained with."""
    job = check.get_check(store, check_id)
    report, changes = job.state().latest, job.config().changed_labels
    if not report or not report.corpus:
        return ""
    from finetune.data import dataset_cache

    folder = store.root / "data" / report.corpus
    seed = secrets.randbelow(2**31) if order == "random" else None
    try:
        rows = dataset_cache.preview_rows(folder, split, seed)
    except FinetuneError as error:
        return feedback.show_errors(error)
    nothing = gettext("none") if report.template == "labels" else ""
    rows = [replace(row, label=changes.get(row.label) or row.label or nothing) for row in rows]
    caption = gettext("Rows of {split}", split=split)
    return macro(_TEMPLATE, "rows")(rows, report.columns, caption)


def column_choices(report: CheckReport) -> tuple[Choices, ...]:
    """Choices of the columns, the positive class and the sheet, once the source is known."""
    choices: list[Choices] = []
    for role in ("sentence1", "sentence2", "label", "status"):
        none = [(NO_COLUMN, NO_COLUMN)] if role in ("sentence2", "status") else []
        read = report.columns.get(role)
        guessed = gettext("{name} (guessed)", name=read) if read else gettext("none found")
        usable = ((name, name) for name in report.usable(role))
        choices.append([(guessed, ""), *none, *usable])
    *choices, status = choices
    default = gettext("default: {name}", name=report.positive_label or gettext("the second"))
    if len(report.labels) > 2:
        default = gettext("macro F1 over all classes")
    classes = [(name, name) for name in report.labels] if len(report.labels) == 2 else []
    positive = [(default, ""), *classes] if report.template == "classes" else []
    sheets = [(name, name) for name in report.sheets[:200]] if len(report.sheets) > 1 else []
    first = [(gettext("the first with data"), "")] if sheets else []
    return (*choices, positive, [*first, *sheets], status)
