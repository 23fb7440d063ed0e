"""The rows of a predicted file: sorted, filtered, read and corrected. A part of the Predict tab."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from markupsafe import Markup

from finetune.errors import DataError
from finetune.evaluation import corrections, file_shift
from finetune.inference.result_files import PREDICTION
from finetune.inference.shown_rows import ShownRow
from finetune.jobs import predict
from finetune.jobs.predict import PredictionJob, PredictionState
from finetune.runs.store import RunStore
from finetune.ui import elements, feedback, form, theme
from finetune.ui.elements import button, event_data, sent_number
from finetune.ui.feedback import Updates, handler
from finetune.ui.html import macro
from finetune.ui.i18n import gettext

PAGE = 25  # rows at a time
ALL, UNSURE_ONLY, CORRECTED, TO_LABEL = "all", "unsure", "corrected", "label"
_ANSWER = "answer:"  # begins the choice of an answer
_DIFFERS = "differs:"  # begins that of rows in which a column differs from the answer
_TEMPLATE = "prediction_file.html"
Order = dict[str, Any]  # by: a column, empty for the file's order; descending; first: row of a page


def blank() -> Order:
    """The file's own order, from its first row."""
    return {"by": "", "descending": False, "first": 0}


@dataclass
class PredictedRows:
    """The controls below a file's result and their event handlers."""

    store: RunStore
    filled: list[Any] = field(default_factory=list)  # the form, Data's chooser of pairs, the tabs

    def draw(self, job_id: gr.State) -> None:
        """Lay out the rows of the job `job_id` and wire their events, but those of `start`."""
        self.order = gr.State(blank())
        self.monitoring = gr.HTML(elem_id="batch-monitoring")
        with gr.Row(visible=False, equal_height=True) as self.controls:
            self.which = gr.Dropdown(
                [(gettext("all rows"), ALL)], value=ALL, label=gettext("Rows"), min_width=160,
                elem_id="batch-which",
            )  # fmt: skip
            self.words = gr.Textbox(
                label=gettext("With the words"), max_lines=1, min_width=160, elem_id="batch-words"
            )
        script = theme.asset("examples.js") + feedback.AS_DRAWN
        self.table = gr.HTML(elem_id="batch-rows", js_on_load=script)
        self.corrected = gr.HTML(elem_id="batch-corrected")
        text = gettext("Train on the corrected rows too")
        self.start = button(text, "batch-train", visible=False, size="sm")
        self.message = elements.notice("batch-rows-message")
        everything, quick = elements.components(self), feedback.QUICK
        shown = [job_id, self.order, self.which, self.words]
        gr.on([self.which.change, self.words.change], self.on_filter, shown, everything,
              **feedback.LATEST)  # fmt: skip
        self.table.click(self.on_table, shown, everything, trigger_mode="multiple", **quick)

    @handler
    def on_filter(self, store: RunStore, job_id: str, order: Order, *filters: Any) -> Updates:
        """List the rows that the filters choose."""
        job = predict.get_prediction(store, job_id)
        return self._rows(job, job.state(), order | {"first": 0}, *filters)

    @handler
    def on_table(
        self, store: RunStore, event: gr.EventData, job_id: str, order: Order, *filters: Any
    ) -> Updates:
        """Turn a page, sort by a column, or correct an answer."""
        clicked = event_data(event)
        job = predict.get_prediction(store, clicked.get("run"))
        state = job.state()
        match clicked.get("do"):
            case "page":
                order = order | {"first": int(sent_number(event))}
            case "sort":
                by = str(clicked.get("what"))
                again = order["by"] == by
                order = {"by": by, "descending": again and not order["descending"], "first": 0}
            case "label" if filters[0] == TO_LABEL:
                predict.label_row(job, int(sent_number(event)), str(clicked.get("label")))
            case "label":
                predict.correct_answer(job, int(sent_number(event)), str(clicked.get("label")))
        return self._rows(job, state, order, *filters)

    @handler
    def on_start(self, store: RunStore, job_id: str) -> Updates:
        """Put the run's pairs and the corrected ones into the form and show the form."""
        config = predict.corrected_run(store, predict.get_prediction(store, job_id))
        updates = [*form.filled(store, config), gr.Tabs(selected="train")]
        return dict(zip(self.filled, updates, strict=True)) | {self.message: ""}

    def shown(self, job: PredictionJob, state: PredictionState) -> Updates:
        """Draw the rows of a file in its order; they can be chosen once all are predicted."""
        report, answers = state.report, state.report.get("answers", {})
        choices = [(gettext("all rows"), ALL)]
        if report.get("unsure"):
            choices.append((gettext("unsure ({n:,})", n=report["unsure"]), UNSURE_ONLY))
        choices += [(f"{name} ({count:,})", _ANSWER + name) for name, count in answers.items()]
        for other in report.get("others", []):
            text = gettext("differs from {column}", column=other["column"])
            choices.append((text, _DIFFERS + other["column"]))
        choices.append((gettext("corrected"), CORRECTED))
        if state.to_label:
            choices.append((gettext("to label ({n:,} random)", n=len(state.to_label)), TO_LABEL))
        updates: Updates = {
            self.controls: gr.update(visible=bool(report and state.rows)),
            self.which: gr.update(choices=choices, value=ALL),
            self.words: "",
        }
        return updates | self._rows(job, state, blank(), ALL, "")

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
        return {
            self.table: table,
            self.monitoring: monitoring_view(job, state, len(given)),
            self.order: order | {"first": first},
            self.corrected: macro(_TEMPLATE, "corrected")(len(corrected)),
            self.start: gr.update(visible=bool(corrected)),
            self.message: "",
        }


def monitoring_view(job: PredictionJob, state: PredictionState, given: int) -> Markup:
    """HTML for whether the model still holds, and for the answers of others. `given` is the number
    of labels of random rows."""
    judged = predict.monitored(job)
    others = macro("monitoring.html", "others")(state.report)
    told = (judged.fact, judged.remedy) if isinstance(judged, DataError) else ("", "")
    judged = None if isinstance(judged, DataError) else judged
    sentence = file_shift.sentence(judged) if judged else ""
    return others + macro("monitoring.html", "view")(
        judged,
        file_shift.WHAT,
        sentence,
        *told,
        given,
        len(state.to_label),
        file_shift.FEWEST_LABELS,
    )


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
