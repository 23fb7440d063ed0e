"""The Data tab: choose pairs from anywhere, see what was read and what is wrong with it.

A process of its own checks the pairs, and the page asks how far it is. What is chosen here are
fields of the form that Train sends.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import gradio as gr

from finetune import uploads
from finetune.config import (
    BUNDLED_DATASET,
    DATA_FIELDS,
    NO_COLUMN,
    SOURCE_FIELDS,
    RunConfig,
    is_upload,
)
from finetune.data.check_report import CheckReport
from finetune.errors import DataError, FinetuneError, StoreError
from finetune.jobs import check
from finetune.runs.store import RunStore
from finetune.ui import checks_view, feedback, form, polling, tab_links, upload_limits
from finetune.ui.handlers import Updates, handler
from finetune.ui.i18n import gettext

CHECKED_FIELDS = (*DATA_FIELDS, "checkpoint", "max_length")
# What belongs to one source and means nothing to another.
CLEARED_FIELDS = (*SOURCE_FIELDS[1:], "positive_label")
CHOSEN_COLUMNS = ("sentence1_column", "sentence2_column", "label_column", "positive_label")

Choices = list[tuple[str, str]]  # label, value


@dataclass(frozen=True)
class Drawn:
    """What of a check is on the page.

    Args:
        check_id: whose rows and findings are shown.
        end: tells one end of this check from another; empty while it goes on.
        partial: whether the rows are those of a check that still measured lengths.
        choices: what the choosers of columns and the positive class offer.
    """

    check_id: str = ""
    end: str = ""
    partial: bool = False
    choices: tuple[Choices, ...] = ()


@dataclass
class DataTab:
    """The tab's controls and what its events do.

    Args:
        store: where runs, uploads and checks are.
    """

    store: RunStore

    def draw_poller(self) -> None:
        """What asks how far a check is; outside the tabs, for Train listens to it too."""
        self.poller = polling.polling_element(1)

    def draw(self) -> dict[str, gr.components.Component]:
        """Lay out the tab inside the current `gr.Tab`, after `draw_poller`; the form's controls
        drawn here."""
        self.check_id, self.drawn = gr.State(""), gr.State(Drawn())
        gr.HTML(
            feedback.note(
                gettext("Bring sentence pairs, and see what is in them before you train.")
            )
        )
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=320):
                controls = self._draw_choice()
            with gr.Column(scale=3, min_width=320):
                self._draw_report()
        return controls

    def _draw_choice(self) -> dict[str, gr.components.Component]:
        self.dataset = gr.Dropdown(
            form.datasets(), value=BUNDLED_DATASET, label=gettext("Pairs"), elem_id="pairs",
            info=gettext("One offered here, or a Hub dataset as owner/name."),
            allow_custom_value=True,
        )  # fmt: skip
        labels = {
            "train": gettext("train file"),
            "validation": gettext("validation file (optional)"),
            "test": gettext("test file (optional)"),
        }
        with gr.Accordion(gettext("Your own files"), open=False, elem_id="own-files"):
            gr.HTML(
                feedback.note(
                    gettext(
                        "CSV, TSV, JSONL, JSON or Parquet, also as .gz. Without a validation file "
                        "a part of the training file is cut off for it."
                    )
                )
            )
            self.files = [
                gr.File(
                    label=labels[split], height=92, elem_id=f"{split}-file",
                    elem_classes="ft-file", file_types=[*uploads.ENDINGS, ".gz"],
                )
                for split in uploads.SPLITS
            ]  # fmt: skip
        controls = form.draw_data()
        self.examine = gr.Button(gettext("Examine"), variant="primary", elem_id="examine")
        self.message = gr.HTML(elem_id="data-message", elem_classes="ft-if-said")
        return controls

    def _draw_report(self) -> None:
        self.progress = gr.HTML(elem_id="look-progress", elem_classes="ft-if-filled")
        self.overview = gr.HTML(
            checks_view.empty(), elem_id="overview", js_on_load=tab_links.SCRIPT
        )
        with gr.Column(visible=False) as self.more:
            gr.HTML(feedback.heading(gettext("Findings")))
            self.findings = gr.HTML(elem_id="findings")
            self.findings_csv = gr.HTML(elem_id="findings-csv")
            gr.HTML(feedback.heading(gettext("Rows")))
            with gr.Row(equal_height=True):
                self._draw_row_choice()
            self.rows = gr.HTML(elem_id="rows")

    def _draw_row_choice(self) -> None:
        orders = [
            (gettext("first"), "first"), (gettext("random"), "random"),
            (gettext("one class"), "class"), (gettext("search"), "search"),
        ]  # fmt: skip
        self.split = gr.Dropdown([], label=gettext("split"), elem_id="rows-split", min_width=110)
        self.order = gr.Dropdown(
            orders, value="first", label=gettext("which"), elem_id="rows-way", min_width=110
        )
        self.label = gr.Dropdown(
            [], label=gettext("class"), elem_id="rows-class", min_width=110, visible=False
        )
        self.words = gr.Textbox(
            label=gettext("with the words"), elem_id="rows-search", min_width=140, max_lines=1,
            visible=False,
        )  # fmt: skip
        self.again = gr.Button(gettext("Others"), elem_id="rows-again", min_width=90, visible=False)

    def wire(self, controls: dict[str, Any]) -> None:
        """Connect the events.

        Args:
            controls: the whole form, by field name; `dataset` is drawn twice and kept the same.
        """
        quick, latest = feedback.QUICK, feedback.LATEST
        self.datasets = [controls["dataset"], self.dataset]
        self.cleared = {controls[name]: getattr(RunConfig(), name) for name in CLEARED_FIELDS}
        self.columns = [controls[name] for name in CHOSEN_COLUMNS]
        self.examining: dict[str, Any] = {
            "fn": self.on_examine,
            "inputs": [self.check_id, *(controls[name] for name in CHECKED_FIELDS)],
            "outputs": [self.check_id, self.message, self.poller],
        }
        blank = json.dumps(list(self.cleared.values()))
        for chooser, other in (self.datasets, self.datasets[::-1]):
            chooser.input(
                None, [chooser, other], [other, *self.cleared],
                js=f"(pairs, other) => finetune.otherPairs(pairs, other, {blank})", **quick,
            ).then(**self.examining, **latest)  # fmt: skip
        for file in self.files:
            uploaded = [self.message, *self.datasets, *self.cleared]
            file.upload(self.on_upload, self.files, uploaded, **latest).then(
                **self.examining, **latest
            )
        # One event for all: answers to several may come in another order than they were asked in.
        changes = [_chosen_event(controls[name]) for name in DATA_FIELDS[1:]]
        gr.on(changes, **self.examining, **latest)
        self.examine.click(**{**self.examining, "fn": self.on_examine_again}, **quick)
        self.poller.submit(
            self.on_tick,
            [self.check_id, self.drawn, self.order, self.words],
            [self.message, self.poller, self.drawn, self.progress, self.overview, self.more,
             self.findings, self.findings_csv, self.split, self.label, self.rows, *self.columns],
            **quick,
        )  # fmt: skip
        self.order.input(self.on_order, self.order, [self.label, self.words, self.again], **latest)
        gr.on(
            [self.split.input, self.order.input, self.label.input, self.words.submit,
             self.again.click],
            self.on_rows,
            [self.check_id, self.split, self.order, self.label, self.words],
            [self.rows, self.message],
            trigger_mode="always_last", concurrency_limit=4, show_progress="hidden",
            api_visibility="private",
        )  # fmt: skip

    @handler
    def on_upload(self, store: RunStore, *paths: str | None) -> Updates:
        """Files came: they are kept, and become the chosen pairs."""
        files = {split: path for split, path in zip(uploads.SPLITS, paths, strict=True) if path}
        if "train" not in files:
            raise DataError("The training file is missing.", "Choose it too.")
        name = _keep(store, files)
        choices = form.datasets(store, name)
        # An update for each: Gradio empties the one it has used.
        chosen = {chooser: gr.update(choices=choices, value=name) for chooser in self.datasets}
        return {self.message: "", **chosen, **self.cleared}

    @handler
    def on_examine(self, store: RunStore, former_id: str, *values: Any) -> Updates:
        """Check the chosen pairs, or show what a former check of them found."""
        return self._examine(store, former_id, values)

    @handler
    def on_form_restored(self, store: RunStore, former_id: str, *values: Any) -> Updates:
        """The form changed by itself: check again where pairs were checked."""
        return self._examine(store, former_id, values) if former_id else {}

    @handler
    def on_examine_again(self, store: RunStore, former_id: str, *values: Any) -> Updates:
        """Examine was pressed: check anew."""
        return self._examine(store, former_id, values, again=True)

    def _examine(
        self, store: RunStore, former_id: str, values: tuple[Any, ...], again: bool = False
    ) -> Updates:
        config = RunConfig.from_dict(dict(zip(CHECKED_FIELDS, values, strict=True)))
        if former_id not in ("", check.check_folder(store, config).id):
            _abandon(store, former_id)
        job = check.start_check(store, config, again)
        return {
            self.check_id: job.id,
            self.message: "",
            self.poller: polling.start_polling(),
        }

    @handler
    def on_tick(
        self, store: RunStore, check_id: str, drawn: Drawn, order: str, words: str,
        event: gr.EventData,
    ) -> Updates:  # fmt: skip
        """How far the check is, and what it found, drawn once."""
        stop = {self.poller: polling.stop_polling(event)}
        try:
            job = check.get_check(store, check_id)
        except DataError:
            return stop
        state = check.check_state(job)
        end = _report_time(job.folder) if state.report else state.error
        if drawn.check_id != check_id or (drawn.end and not end):  # other pairs, or checked anew
            drawn = Drawn(check_id, choices=drawn.choices)
        if end and drawn.end == end:
            return stop
        updates: Updates = {self.progress: checks_view.progress(state), **(stop if end else {})}
        if state.report or (state.partial and not drawn.partial):
            if not end:
                updates[self.poller] = polling.start_polling()  # Train hears that pairs are counted
            return updates | self._report(store, state, replace(drawn, end=end), order, words)
        if end and not state.partial:
            updates |= {self.overview: "", self.more: gr.update(visible=False)}
        return updates | {self.drawn: replace(drawn, end=end)}

    def _report(
        self, store: RunStore, state: check.CheckState, drawn: Drawn, order: str, words: str
    ) -> Updates:
        """What is known of the pairs. Rows and choosers that were drawn of the same check, while it
        still measured lengths, are left alone: somebody may have chosen others since."""
        report = state.latest
        assert report is not None
        link = checks_view.findings_link(report, drawn.check_id) if state.report else ""
        updates: Updates = {
            self.overview: checks_view.overview(report, state.first_rows),
            self.more: gr.update(visible=bool(report.corpus)),
            self.findings: checks_view.findings(report),
            self.findings_csv: link,
        }
        if drawn.partial:
            return updates | {self.drawn: replace(drawn, partial=False)}
        split, label = next(iter(report.read), None), next(iter(report.labels), None)
        choices = _column_choices(report)
        updates |= {
            self.drawn: replace(drawn, partial=not state.report, choices=choices),
            self.split: gr.update(choices=list(report.read), value=split),
            self.label: gr.update(choices=report.labels, value=label),
            self.rows: self._rows(store, report, split or "", order, label, words),
        }
        # A chooser that offers the same as before may be being typed into: an update would take
        # that away.
        for chooser, now, before in zip_longest(self.columns, choices, drawn.choices):
            if now != before:
                updates[chooser] = gr.update(choices=now)
        return updates

    def on_order(self, order: str) -> Updates:
        """Rows are to be chosen in another way: the control it needs."""
        needed = {self.label: "class", self.words: "search", self.again: "random"}
        return {control: gr.update(visible=order == name) for control, name in needed.items()}

    @handler
    def on_rows(
        self, store: RunStore, check_id: str, split: str, order: str, label: str | None, words: str
    ) -> Updates:
        """Other rows were chosen."""
        report = check.check_state(check.get_check(store, check_id)).latest
        if report is None:
            return {self.rows: ""}
        return {self.rows: self._rows(store, report, split, order, label, words)}

    def _rows(
        self, store: RunStore, report: CheckReport, split: str, order: str, label: str | None,
        words: str,
    ) -> str:  # fmt: skip
        if not report.corpus:
            return ""
        from finetune.data import preview

        sought = label if order == "class" else words
        try:
            folder = store.root / "data" / report.corpus
            seed = secrets.randbelow(2**31)
            rows = preview.preview_rows(folder, split, order, sought or "", seed=seed)
        except FinetuneError as error:
            return feedback.show_errors(error)
        paired = bool(report.columns.get("sentence2"))
        return checks_view.rows(rows, paired, gettext("Rows of {split}", split=split))


def _keep(store: RunStore, files: Mapping[str, str]) -> str:
    """The name of uploaded files that the store keeps from now on.

    Args:
        files: split -> path, as Gradio gave it to the browser.

    Raises:
        DataError: as `upload_limits.path` and `Uploads.add`.
    """
    received = {split: upload_limits.path(store.visitor, path) for split, path in files.items()}
    try:
        name = store.uploads.add(received, {split: Path(p).name for split, p in files.items()})
    except DataError:
        for path in files.values():
            upload_limits.drop(path)
        raise
    for split, kept in store.uploads.files(name).items():
        upload_limits.kept(files[split], kept)
    return name


def _abandon(store: RunStore, check_id: str) -> None:
    """End a former check where nobody else can wait for it: of an upload only its owner asks, of
    other pairs every visitor."""
    with contextlib.suppress(DataError, StoreError):  # it is gone, or was never theirs
        job = check.get_check(store, check_id)
        if is_upload(job.config().dataset):
            check.abandon_check(job)


def _chosen_event(control: Any) -> Any:
    """The event of a control that means a choice, not a letter typed."""
    chosen = isinstance(control, (gr.Dropdown, gr.Checkbox))
    return control.input if chosen else control.submit


def _report_time(folder: Path) -> str:
    with contextlib.suppress(OSError):
        return str((folder / "report.json").stat().st_mtime_ns)
    return ""


def _column_choices(report: CheckReport) -> tuple[Choices, ...]:
    """What the choosers of columns and the positive class offer once the source is known."""
    usable = [(name, name) for name, reason in report.choices.items() if not reason]
    choices: list[Choices] = []
    for role in ("sentence1", "sentence2", "label"):
        guess = report.columns.get(role) or gettext("none found")
        none = [(NO_COLUMN, NO_COLUMN)] if role == "sentence2" else []
        choices.append([(gettext("guessed: {name}", name=guess), ""), *none, *usable])
    binary = len(report.labels) == 2
    default = gettext("default: {name}", name=report.positive_label or gettext("the second"))
    if len(report.labels) > 2:
        default = gettext("macro F1 over all classes")
    classes = [(name, name) for name in report.labels] if binary else []
    return (*choices, [(default, ""), *classes])
