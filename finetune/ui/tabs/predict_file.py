"""The part of the Predict tab for whole files: their columns, progress, answers and rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from finetune.config import RunConfig
from finetune.data.table import ReadOptions
from finetune.errors import DataError, FinetuneError, NoSuchRun
from finetune.evaluation import corrections, file_shift
from finetune.inference import file_request
from finetune.inference.file_request import COLUMNS, NONE, PredictionRequest
from finetune.inference.result_files import PREDICTION, SUFFIXES, ShownRow
from finetune.jobs import predict
from finetune.jobs.predict import PredictionJob, PredictionState
from finetune.runs.store import RunStore
from finetune.ui import choosers, elements, feedback, form, upload_limits
from finetune.ui.elements import button, dropdown, sent_number
from finetune.ui.html import asset, macro
from finetune.ui.i18n import gettext
from finetune.ui.panel import Panel, Pressed, Updates, handler

PAGE = 25  # rows at a time
ALL, UNSURE_ONLY, CORRECTED, TO_LABEL = "all", "unsure", "corrected", "label"
_ANSWER = "answer:"  # begins the choice of an answer
_DIFFERS = "differs:"  # begins that of rows in which a column differs from the answer
_TEMPLATE = "prediction_file.html"
Order = dict[str, Any]  # by: a column, empty for the file's order; descending; first: row of a page


def blank() -> Order:
    """The file's own order, from its first row."""
    return {"by": "", "descending": False, "first": 0}


class PredictedRows(Panel):
    """What is below a file's result."""

    def draw(self, job_id: gr.State) -> None:
        """Lay out the rows of the job `job_id` and wire their events, but those of `start`."""
        self.order = gr.State(blank())
        self.monitoring = gr.HTML(elem_id="batch-monitoring")
        with gr.Row(visible=False, equal_height=True) as self.controls:
            choices = [("all rows", ALL)]
            self.which = elements.dropdown(choices, "Rows", "batch-which", value=ALL)
            self.words = elements.text_box("With the words", "batch-words")
        script = asset("examples.js") + feedback.AS_DRAWN
        self.table = gr.HTML(elem_id="batch-rows", js_on_load=script)
        self.corrected = gr.HTML(elem_id="batch-corrected")
        text = "Train on the corrected rows too"
        self.start = button(text, "batch-train", visible=False, size="sm")
        self.message = elements.notice("batch-rows-message")
        self.job_id, self.filters = job_id, [self.which, self.words]
        self.connect()

    @handler("filters.change", latest=True)
    def on_filter(self, store: RunStore, job_id: str, order: Order, *filters: Any) -> Updates:
        """List the rows that the filters choose."""
        job = predict.PredictionJob.find(store, job_id)
        return self._rows(job, job.state(), order | {"first": 0}, *filters)

    @handler("table.click", trigger_mode="multiple")
    def on_table(
        self, store: RunStore, pressed: Pressed, job_id: str, order: Order, *filters: Any
    ) -> Updates:
        """Turn a page, sort by a column, or correct an answer."""
        job = predict.PredictionJob.find(store, pressed.get("run"))
        state = job.state()
        match pressed.get("do"):
            case "page":
                order = order | {"first": int(sent_number(pressed))}
            case "sort":
                by = str(pressed.get("what"))
                again = order["by"] == by
                order = {"by": by, "descending": again and not order["descending"], "first": 0}
            case "label" if filters[0] == TO_LABEL:
                predict.label_row(job, int(sent_number(pressed)), str(pressed.get("label")))
            case "label":
                predict.correct_answer(job, int(sent_number(pressed)), str(pressed.get("label")))
        return self._rows(job, state, order, *filters)

    @handler()
    def on_start(self, store: RunStore, job_id: str) -> Updates:
        """Put the run's pairs and the corrected ones into the form and show the form."""
        config = predict.corrected_run(store, predict.PredictionJob.find(store, job_id))
        return form.filled(self.filled, store, config) | {self.message: ""}

    def shown(self, job: PredictionJob, state: PredictionState) -> Updates:
        """Draw the rows of a file in its order; they can be chosen once all are predicted."""
        report, answers = state.report, state.report.get("answers", {})
        choices = [(gettext("all rows"), ALL)]
        if report.get("unsure"):
            name = gettext("nearly undecided ({n:,})", n=report["unsure"])
            if report.get("sure"):
                name = gettext("unsure ({n:,})", n=report["unsure"])
            choices.append((name, UNSURE_ONLY))
        choices += [(f"{name} ({count:,})", _ANSWER + name) for name, count in answers.items()]
        for other in report.get("others", []):
            text = gettext("differs from {column}", column=other["column"])
            choices.append((text, _DIFFERS + other["column"]))
        choices.append((gettext("corrected"), CORRECTED))
        if state.to_label and "scores" not in report:
            choices.append((gettext("to label ({n:,} random)", n=len(state.to_label)), TO_LABEL))
        updates: Updates = {
            self.controls: gr.update(visible=bool(report and state.rows)),
            self.which: gr.update(choices=choices, value=ALL),
            self.words: "",
        }
        return updates | self._rows(job, state, blank(), ALL, "")

    def cleared(self) -> Updates:
        """Draw nothing."""
        hidden = dict.fromkeys((self.controls, self.start), gr.update(visible=False))
        shown = (self.table, self.monitoring, self.corrected, self.message)
        return hidden | dict.fromkeys(shown, "")

    def _rows(
        self, job: PredictionJob, state: PredictionState, order: Order, which: str, words: str
    ) -> Updates:
        corrected = corrections.read_corrections(job)
        answer, all_rows, labels = state.answer_column, state.rows, corrected
        given = corrections.read_corrections(job, corrections.LABELS)
        if which == TO_LABEL:  # a person who sees the answer would lean towards it
            answer, labels = PREDICTION, given
            blank_rows = [{**row["cells"], PREDICTION: ""} for row in state.to_label]
            all_rows = [
                ShownRow(row=row["row"], margin=None, unsure=False, cells=cells)
                for row, cells in zip(state.to_label, blank_rows, strict=True)
            ]
        for other in state.report.get("others", []):
            if which == _DIFFERS + other["column"]:
                all_rows = [row for row in all_rows if row["row"] in other["differ"]]
                which = ALL
        rows = [row for row in all_rows if _chosen(row, which, words, corrected, answer)]
        if which == UNSURE_ONLY and not order["by"]:
            rows.sort(key=lambda row: (row["margin"] or 0.0, row["row"]))
        if by := order["by"]:
            rows.sort(key=lambda row: _sort_key(row["cells"].get(by)), reverse=order["descending"])
        first = order["first"] if 0 <= order["first"] < max(1, len(rows)) else 0
        table = macro(_TEMPLATE, "rows")(
            job.id, state, rows[first : first + PAGE], first, len(rows), PAGE, answer, order,
            labels, which == TO_LABEL,
        )  # fmt: skip
        monitoring = macro("monitoring.html", "others")(state.report)
        if "scores" not in state.report:  # the file's own labels tell more than an estimate
            judged = predict.monitored(job)
            refusal = judged if isinstance(judged, DataError) else None
            monitoring += macro("monitoring.html", "view")(
                None if refusal else judged, refusal, file_shift, len(given), len(state.to_label)
            )
        return {
            self.table: table,
            self.monitoring: monitoring,
            self.order: order | {"first": first},
            self.corrected: macro(_TEMPLATE, "corrected")(job.id, len(corrected)),
            self.start: gr.update(visible=bool(corrected)),
            self.message: "",
        }


def _chosen(row: ShownRow, which: str, words: str, corrected: dict[int, str], answer: str) -> bool:
    cells = row["cells"]
    found = {
        ALL: True,
        UNSURE_ONLY: row.get("unsure", False),
        TO_LABEL: True,
        CORRECTED: row["row"] in corrected,
    }.get(which, str(cells.get(answer)) == which.removeprefix(_ANSWER))
    wanted = str(words or "")[:200].casefold().split()
    text = " ".join(map(str, cells.values())).casefold() if wanted else ""
    return found and all(word in text for word in wanted)


def _sort_key(cell: Any) -> tuple[int, Any]:
    """Numbers before texts, texts that are numbers among the numbers, empty cells last."""
    if cell is None or cell == "":
        return 2, 0
    try:
        return 0, float(cell)
    except (TypeError, ValueError):
        return 1, str(cell).casefold()


FILE = "file"  # the name of this part


class FilePredictions(Panel):
    """A whole file of pairs: its columns, its progress, its answers, its scores."""

    def draw(self, run: gr.Dropdown, options: Sequence[gr.Checkbox], part: gr.Radio) -> None:
        """Lay out the part that `part` shows and wire its events; `run` chooses the model."""
        self.part = part
        self.job_id, self.former = gr.State(""), gr.State(None)  # the model chosen before
        self.poller = elements.polling_element(1)
        elements.note(
            "CSV, Excel, ODS, TSV, JSONL, JSON or Parquet. The same file comes back with the "
            "prediction, the probability of each class and whether the model was trained on "
            "the row; with a label column its scores too."
        )
        with gr.Row(equal_height=False):
            with gr.Column(min_width=320):
                self.file = elements.pairs_file("File", "batch-file")
                own: dict[str, Any] = {"allow_custom_value": True}
                self.sheet = dropdown([], "Sheet", "batch-sheet", visible=False, **own)
            with gr.Column(min_width=320), gr.Row():
                self.columns = [
                    dropdown([], name, f"batch-{name}", 130, value=None, **own) for name in COLUMNS
                ]
                formats = [(ending.removeprefix(".").upper(), ending) for ending in SUFFIXES]
                formats = [("like the file", ""), *formats]
                self.ending = dropdown(formats, "Result as", "batch-ending", 130, value="")
        title = "How the file is read"
        with gr.Accordion(title, open=False, elem_id="batch-reading") as self.reading_box:
            self.reading: list[Any] = [*form.draw_in_pairs(form.READING, "batch-").values()]
        with gr.Row():
            self.start = button("Predict the file", "batch-start", 140, variant="primary")
            self.cancel = button("Cancel", "batch-cancel", interactive=False)
        self.message = elements.notice("batch-message")
        self.view = gr.HTML(elem_id="batch-view")
        self.rows = PredictedRows(self.store)
        self.rows.draw(self.job_id)
        self.run = run
        self.choices = [self.sheet, *self.reading, *self.columns, *options, self.ending]
        self.sentences = self.columns[:2]
        self.connect()

    @handler()
    def on_open(self, store: RunStore, job_id: str) -> Updates:
        """Show the newest file again if the tab is opened after a reload."""
        newest = None if job_id else next(iter(PredictionJob.newest(store)), None)
        if newest is None:
            return {}
        front = {self.part: FILE} if newest.state().running else {}
        return self._opened(store, newest) | front

    @handler("run.change", "file.upload", "sheet.input", "reading.input", latest=True)
    def on_file(
        self, store: RunStore, run: str | None, file: str | None, sheet: str | None, *reading: Any
    ) -> Updates:
        """Match the columns of a new file, or of another sheet, to those of the chosen model. In a
        workbook, use the chosen sheet or the one the model was trained on."""
        trained = choosers.columns(store, run)
        found = file_request.FileColumns([], ("", "", ""), [])
        if file:
            received, name = upload_limits.path(store.visitor, file), Path(file).name
            options = _read_options("", reading)
            found = file_request.file_columns(received, name, trained, options)
            wished, encoding = [str(sheet or "")], ""
            with suppress(FinetuneError):  # the run is gone
                config = store.get(run).config()
                wished.append(config.sheet)
                encoding = config.encoding
            sheet = next((wish for wish in wished if wish in found.sheets), "")
            if sheet or (found.doubt and encoding):
                options = replace(options, sheet=sheet, encoding=options.encoding or encoding)
                found = file_request.file_columns(received, name, trained, options)
        names, matches, sheets = found.usable, found.matches, found.sheets
        choices = [(gettext("the first with data"), ""), *((one, one) for one in sheets)]
        updates: Updates = {
            self.message: feedback.show_errors(DataError(found.doubt)) if found.doubt else "",
            self.sheet: gr.update(choices=choices, value=sheet, visible=len(sheets) > 1),
        }
        if found.doubt:
            updates[self.reading_box] = gr.update(open=True)
        for chooser, own, match in zip(self.columns, trained[:3], matches, strict=True):
            is_label = chooser is self.columns[2]
            none = [(gettext("none"), NONE)] if is_label and names else []
            joined = [match] if match and match not in names else []  # columns of 0 and 1
            updates[chooser] = gr.update(
                label=gettext("Column for {name}", name=own),
                choices=[*none, *((name, name) for name in [*joined, *names])],
                value=match or (NONE if none else None),
                visible=bool(own),
            )
        return updates

    @handler("run.change", latest=True)
    def on_other(
        self, store: RunStore, run: str | None, job_id: str, former: str | None
    ) -> Updates:
        """Clear what another model than the chosen one has answered, however it was chosen; not
        when the first one is, after a reload."""
        kept = former is None
        with suppress(DataError):  # it is gone
            job = predict.PredictionJob.find(store, job_id)
            kept = kept or job.prediction_request().run == run
        return {self.former: run} | ({} if kept else self._cleared(store, job_id))

    @handler("file.upload", latest=True)
    def on_new(self, store: RunStore, job_id: str) -> Updates:
        """Clear the answers to a former file."""
        return self._cleared(store, job_id)

    def _cleared(self, store: RunStore, job_id: str) -> Updates:
        """Draw no answers, unless they are being made."""
        with suppress(DataError):
            if not job_id or predict.PredictionJob.find(store, job_id).state().running:
                return {}
        return {self.view: "", self.job_id: ""} | self.rows.cleared()

    @handler("sentences.input")
    def on_sentence(self, store: RunStore, *columns: str | None) -> Updates:
        """Unset the label column if a sentence now has it."""
        return {self.columns[2]: NONE} if columns[2] in columns[:2] else {}

    @handler("start.click")
    def on_start(
        self, store: RunStore, run: str | None, file: str | None, *choices: Any
    ) -> Updates:
        """Predict the file; `choices` are the values of `self.choices`."""
        if not file:
            raise DataError("There is no file.", "Choose one.")
        count = 1 + len(self.reading)
        reading = vars(_read_options(choices[0], choices[1:count]))
        first, second, label = (str(choice or "") for choice in choices[count : count + 3])
        *options, ending = choices[count + 3 :]
        run_id, name = store.get(run).id, Path(file).name
        request = PredictionRequest(
            run_id, name, first, second, label, *map(bool, options), ending=ending or "", **reading
        )
        job = predict.start_prediction(store, request, upload_limits.path(store.visitor, file))
        upload_limits.kept(file, job.input)
        return self._opened(store, job)

    @handler("cancel.click")
    def on_cancel(self, store: RunStore, job_id: str) -> Updates:
        """Cancel the job and keep the rows already predicted."""
        predict.PredictionJob.find(store, job_id).cancel()
        text = gettext("Cancelling: what is judged by then is kept.")
        return {self.message: feedback.note(text)}

    @handler("poller.submit", errors_in="view")
    def on_tick(self, store: RunStore, job_id: str) -> Updates:
        return self._shown(store, predict.PredictionJob.find(store, job_id))

    def _opened(self, store: RunStore, job: PredictionJob) -> Updates:
        return self._shown(store, job) | {self.job_id: job.id, self.message: ""}

    def _shown(self, store: RunStore, job: PredictionJob) -> Updates:
        state, request = job.state(), job.prediction_request()
        model = gettext("a deleted run")
        with suppress(NoSuchRun):
            model = store.get(request.run).title()
        return self.rows.shown(job, state) | {
            self.view: macro(_TEMPLATE, "view")(job, request.file, model, state),
            self.cancel: gr.update(interactive=state.running),
            self.poller: state.running,
        }


def _read_options(sheet: str | None, reading: Sequence[str | None]) -> ReadOptions:
    """Make the options for reading a file; a ConfigError names wrong ones."""
    values = dict(zip(("sheet", *form.READING), (sheet, *reading), strict=False))
    given = {name: str(value) for name, value in values.items() if value}
    return ReadOptions.of(RunConfig().changed(**given))
