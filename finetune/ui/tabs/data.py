"""The Data tab: choose pairs from anywhere, see what was read and what is wrong with it.

The examination is a process of its own; a pulse shows how far it is. What is chosen here are
fields of the same form that Train sends.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
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
from finetune.data import preview
from finetune.data.check_report import CheckReport
from finetune.errors import DataError, StoreError
from finetune.jobs import check_jobs
from finetune.jobs.check_jobs import CheckState
from finetune.runs.store import RunStore
from finetune.ui import auth, checks_view, feedback, form, polling, routes, tab_links, upload_limits
from finetune.ui.i18n import gettext

LOOKED_AT = (*DATA_FIELDS, "checkpoint", "max_length")
# What belongs to one source and means nothing to another.
OF_SOURCE = (*SOURCE_FIELDS[1:], "positive_label")
WAYS = [("first", "first"), ("random", "random"), ("one class", "class"), ("search", "search")]


_NOTHING_ASKED = (gr.skip(), gr.skip(), gr.skip())


@dataclass
class DataTab:
    """The tab's controls and what its events do.

    Args:
        store: where runs, uploads and examinations are.
    """

    store: RunStore

    def listen(self) -> None:
        """What asks how far an examination is; outside the tabs, for Train tells its end too."""
        self.pulse = polling.polling_element(1)

    def draw(self) -> dict[str, gr.components.Component]:
        """Lay out the tab inside the current `gr.Tab`, after `listen`; the form's controls drawn
        here."""
        self.look = gr.State("")
        self.seen = gr.State("")
        gr.HTML(feedback.note("Bring sentence pairs, and see what is in them before you train."))
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=320):
                controls = self._draw_choice()
            with gr.Column(scale=3, min_width=320):
                self._draw_view()
        return controls

    def _draw_choice(self) -> dict[str, gr.components.Component]:
        self.dataset = gr.Dropdown(
            form.datasets(), value=BUNDLED_DATASET, label="Pairs", elem_id="pairs",
            info="One offered here, or a Hub dataset as owner/name.", allow_custom_value=True,
        )  # fmt: skip
        with gr.Accordion("Your own files", open=False, elem_id="own-files"):
            gr.HTML(
                feedback.note(
                    "CSV, TSV, JSONL, JSON or Parquet, also as .gz. Without a validation file a "
                    "part of the training file is cut off for it."
                )
            )
            self.files = {
                split: gr.File(
                    label=f"{split} file" + (" (optional)" if split != "train" else ""),
                    height=92, elem_id=f"{split}-file", elem_classes="ft-file",
                    file_types=[*uploads.ENDINGS, ".gz"],
                )
                for split in uploads.SPLITS
            }  # fmt: skip
        controls = form.draw_data()
        self.examine = gr.Button("Examine", variant="primary", elem_id="examine")
        self.message = gr.HTML(elem_id="data-message", elem_classes="ft-if-said")
        return controls

    def _draw_view(self) -> None:
        self.progress = gr.HTML(elem_id="look-progress", elem_classes="ft-if-filled")
        self.overview = gr.HTML(
            checks_view.empty(), elem_id="overview", js_on_load=tab_links.SCRIPT
        )
        with gr.Column(visible=False) as self.more:
            gr.HTML('<h2 class="ft-h">Findings</h2>')
            self.findings = gr.HTML(elem_id="findings")
            self.sheet = gr.HTML(elem_id="findings-csv")
            gr.HTML('<h2 class="ft-h">Rows</h2>')
            with gr.Row(equal_height=True):
                self.split = gr.Dropdown([], label="split", elem_id="rows-split", min_width=110)
                self.way = gr.Dropdown(
                    WAYS, value="first", label="which", elem_id="rows-way", min_width=110
                )
                self.klass = gr.Dropdown(
                    [], label="class", elem_id="rows-class", min_width=110, visible=False
                )
                self.word = gr.Textbox(
                    label="with the words", elem_id="rows-search", min_width=140, max_lines=1,
                    visible=False,
                )  # fmt: skip
                self.again = gr.Button("Others", elem_id="rows-again", min_width=90, visible=False)
            self.rows = gr.HTML(elem_id="rows")

    def wire(self, controls: dict[str, Any]) -> None:
        """Connect the events.

        Args:
            controls: the whole form, by field name; `dataset` is drawn twice and kept the same.
        """
        quick = feedback.QUICK
        asked = [self.look, self.message, self.pulse]
        of_source = [controls[name] for name in OF_SOURCE]
        view = [self.seen, self.progress, self.overview, self.more, self.findings, self.sheet]
        view += [self.split, self.klass, *(controls[name] for name in _CHOSEN), self.rows]
        view += [self.pulse]
        inputs = [self.look, *(controls[name] for name in LOOKED_AT)]
        self.asking: dict[str, Any] = {"fn": self.on_examine, "inputs": inputs, "outputs": asked}
        for here, there in (
            (self.dataset, controls["dataset"]),
            (controls["dataset"], self.dataset),
        ):
            chosen = here.input(
                None, [here, there], [there, *of_source], js=_other_pairs(), **quick
            )
            chosen.then(**self.asking, **feedback.LATEST)
        files = list(self.files.values())
        kept = [self.message, controls["dataset"], self.dataset, *of_source]
        for file in files:
            brought = file.upload(self.on_upload, files, kept, **feedback.LATEST)
            brought.then(**self.asking, **feedback.LATEST)
        # One event for all: answers to several may come in another order than they were asked in.
        changed = [_changed(controls[name]) for name in DATA_FIELDS[1:]]
        gr.on(changed, **self.asking, **feedback.LATEST)
        self.examine.click(self.on_examine_again, inputs, asked, **quick)
        asks = [self.look, self.seen, self.way, self.word]
        self.pulse.submit(self.on_tick, asks, view, **quick)
        which = [self.look, self.split, self.way, self.klass, self.word]
        self.way.input(
            self.on_way, self.way, [self.klass, self.word, self.again], **feedback.LATEST
        )
        gr.on(
            [
                self.split.input,
                self.way.input,
                self.klass.input,
                self.word.submit,
                self.again.click,
            ],
            self.on_rows,
            which,
            self.rows,
            trigger_mode="always_last",
            concurrency_limit=4,
            show_progress="hidden",
            api_visibility="private",
        )

    def on_upload(self, request: gr.Request, *paths: str | None) -> list[Any]:
        """Files came: they are kept, and become the chosen pairs."""
        given = {split: path for split, path in zip(uploads.SPLITS, paths, strict=True) if path}
        blank = RunConfig()
        try:
            if "train" not in given:
                raise DataError("The training file is missing.", "Choose it too.")
            store = auth.visitor_store(self.store, request)
            name = _keep(store, given)
        except Exception as error:
            return [feedback.show_errors(error), *([gr.skip()] * (2 + len(OF_SOURCE)))]
        offered = form.datasets(store, name)
        # Two updates: Gradio empties the one it has used.
        updates = [gr.update(choices=offered, value=name) for _ in range(2)]
        return ["", *updates, *(getattr(blank, name) for name in OF_SOURCE)]

    def on_examine(self, request: gr.Request, former: str, *values: Any) -> tuple[Any, Any, Any]:
        """Look at the chosen pairs, or show what was found before."""
        return self._examine(request, former, values, again=False)

    def on_follow(self, request: gr.Request, former: str, *values: Any) -> tuple[Any, Any, Any]:
        """The form changed by itself: look again where somebody has looked."""
        return self._examine(request, former, values, again=False) if former else _NOTHING_ASKED

    def on_examine_again(
        self, request: gr.Request, former: str, *values: Any
    ) -> tuple[Any, Any, Any]:
        """Examine was pressed: look anew."""
        return self._examine(request, former, values, again=True)

    def _examine(
        self, request: gr.Request, former: str, values: tuple[Any, ...], again: bool
    ) -> tuple[Any, Any, Any]:
        try:
            store = auth.visitor_store(self.store, request)
            chosen = RunConfig.from_dict(dict(zip(LOOKED_AT, values, strict=True)))
            wanted = check_jobs.check_folder(store, chosen)
            if former not in ("", wanted.id):
                _let_go(store, former)
            return check_jobs.start_check(store, chosen, again).id, "", polling.start_polling()
        except Exception as error:
            return gr.skip(), feedback.show_errors(error), gr.skip()

    def on_tick(
        self,
        request: gr.Request,
        look_id: str,
        seen: str,
        way: str,
        word: str,
        event: gr.EventData,
    ) -> list[Any]:
        """How far the examination is, and once what it found; its rows as others were chosen."""
        nothing = [gr.skip()] * (9 + len(_CHOSEN))
        enough = polling.stop_polling(event)
        if not look_id:
            return [*nothing, enough]
        try:
            folder = check_jobs.get_check(auth.visitor_store(self.store, request), look_id)
        except DataError:
            return [*nothing, enough]
        now = f"{look_id} {_written(folder.folder / 'report.json')}"
        if now == seen:
            return [*nothing, enough]
        look = check_jobs.check_state(folder)
        if look.report is None:
            now = f"{look_id} {_PARTLY * (look.partial is not None)}{look.error}"
            if look.error and now == seen:
                return [*nothing, enough]
            beat = enough if look.error else gr.skip()
            if look.partial is None or _same_rows(seen, look_id):
                # Seen is what was drawn: the choosers still offer what the former pairs have.
                changes = [
                    now if look.error else gr.skip(), checks_view.progress(look), *nothing[2:]
                ]  # fmt: skip
                if look.error and look.partial is None:
                    changes[2:4] = ["", gr.update(visible=False)]
                return [*changes, beat]
            beat = (
                enough if look.error else polling.start_polling()
            )  # Train hears that pairs are counted
        else:
            beat = enough
        former = self._report(request, _drawn(seen))
        drawn = self._show(request, look_id, look, former, way, word)
        if _same_rows(seen, look_id):  # drawn already, and somebody may have chosen others
            drawn[5:] = nothing[6:]
        return [now, *drawn, beat]

    def _report(self, request: gr.Request, look_id: str) -> CheckReport | None:
        try:
            return check_jobs.check_state(
                check_jobs.get_check(auth.visitor_store(self.store, request), look_id)
            ).found
        except DataError:
            return None

    def _show(
        self,
        request: gr.Request,
        look_id: str,
        look: CheckState,
        former: CheckReport | None,
        way: str,
        word: str,
    ) -> list[Any]:
        assert look.found is not None
        report = look.found
        splits = list(report.read)
        first, label = (next(iter(names), None) for names in (splits, report.labels))
        rows = ""
        if report.corpus:
            rows = self.on_rows(request, look_id, first or "", way, label, word)
        return [
            checks_view.progress(look),
            checks_view.overview(report, look.glance),
            gr.update(visible=bool(report.corpus)),
            checks_view.findings(report),
            routes.findings_link(look_id) if report.findings and look.report else "",
            gr.update(choices=splits, value=first),
            gr.update(choices=report.labels, value=label),
            *_choices(report, former),
            rows,
        ]

    def on_way(self, way: str) -> tuple[Any, Any, Any]:
        """Another way of choosing rows: the control it needs."""
        return tuple(gr.update(visible=way == name) for name in ("class", "search", "random"))  # type: ignore[return-value]

    def on_rows(
        self,
        request: gr.Request,
        look_id: str,
        split: str,
        way: str,
        klass: str | None,
        word: str,
    ) -> str:
        """Rows of a split as a table."""
        try:
            report = check_jobs.check_state(
                check_jobs.get_check(auth.visitor_store(self.store, request), look_id)
            ).found
            if report is None or not report.corpus:
                return ""
            what = klass if way == "class" else word
            seed = _draws()
            folder = self.store.root / "data" / report.corpus
            found = preview.preview_rows(folder, split, way, what or "", seed=seed)
        except Exception as error:
            return feedback.show_errors(error)
        return checks_view.table(
            found, bool(report.columns.get("sentence2")), gettext("Rows of {split}", split=split)
        )


def _keep(store: RunStore, given: Mapping[str, str]) -> str:
    """The name of uploaded files that the store keeps from now on.

    Args:
        given: split -> path, as the browser was told it.

    Raises:
        DataError: as `incoming.path` and `Uploads.add`.
    """
    visitor = store.visitor
    files = {split: upload_limits.path(visitor, path) for split, path in given.items()}
    try:
        name = store.uploads.add(files, {split: Path(path).name for split, path in given.items()})
    except DataError:
        for path in given.values():
            upload_limits.drop(path)
        raise
    for split, where in store.uploads.files(name).items():
        upload_limits.kept(given[split], where)
    return name


_CHOSEN = ("sentence1_column", "sentence2_column", "label_column", "positive_label")


_PARTLY = "partly "  # what is seen of an examination that still measures lengths


def _let_go(store: RunStore, former: str) -> None:
    """End the examination that was looked at before, where nobody else can wait for it: of an
    upload only its owner asks, of other pairs every visitor."""
    with contextlib.suppress(DataError, StoreError):  # it is gone, or was never theirs
        folder = check_jobs.get_check(store, former)
        if is_upload(folder.config().dataset):
            check_jobs.abandon_check(folder)


def _drawn(seen: str) -> str:
    """The examination that the choosers on the page are of; empty where one failed before that."""
    look_id, _, state = seen.partition(" ")
    return look_id if state.startswith(_PARTLY) or state.isdigit() else ""


def _same_rows(seen: str, look_id: str) -> bool:
    """Whether the rows and the choosers on the page are of this examination."""
    return seen.startswith(f"{look_id} {_PARTLY}")


def _other_pairs() -> str:
    """What the browser does when other pairs were chosen: the same in both choosers, nothing left
    of the former source. Gradio tells of a choice also when a chooser is merely left: then the
    other chooser says the same already, and what was typed stays."""
    blank = json.dumps([getattr(RunConfig(), name) for name in OF_SOURCE])
    stay = ", ".join([feedback.KEEP] * (1 + len(OF_SOURCE)))
    return f"(here, there) => here === there ? [{stay}] : [here, ...{blank}]"


def _changed(control: Any) -> Any:
    """The event of a control that means a choice, not a letter typed."""
    chosen = isinstance(control, (gr.Dropdown, gr.Checkbox))
    return control.input if chosen else control.submit


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _choices(report: CheckReport, former: CheckReport | None = None) -> list[Any]:
    """What the column and class choosers offer once the source is known; the value stays.

    A chooser that offers the same as after the `former` examination is left alone: a person may
    be typing into it, and an update would take that away.
    """
    before = _offered(former) if former else [None] * len(_CHOSEN)
    return [
        gr.skip() if now == then else gr.update(choices=now)
        for now, then in zip(_offered(report), before, strict=True)
    ]


def _offered(report: CheckReport) -> list[list[tuple[str, str]]]:
    usable = [name for name, reason in report.choices.items() if not reason]
    offered = []
    for what in ("sentence1", "sentence2", "label"):
        guessed = report.columns.get(what) or gettext("none found")
        none = [(NO_COLUMN, NO_COLUMN)] if what == "sentence2" else []
        names = [(name, name) for name in usable]
        offered.append([(gettext("guessed: {name}", name=guessed), ""), *none, *names])
    last = gettext("default: {name}", name=report.positive_label or gettext("the second"))
    if len(report.labels) > 2:
        last = gettext("macro F1 over all classes")
    classes = [(name, name) for name in report.labels] if len(report.labels) == 2 else []
    offered.append([(last, ""), *classes])
    return offered


def _draws() -> int:
    """A new seed each time the person asks for other random rows."""
    return secrets.randbelow(2**31)
