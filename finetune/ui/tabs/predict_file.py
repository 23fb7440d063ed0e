"""A whole file of pairs under Predict: its columns, its progress, its first rows, its scores.

The work is a process of its own (`batches`); a pulse shows how far it is. What is kept of earlier
ones is listed, and shown again where it is asked for: a reload loses nothing.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from finetune import uploads
from finetune.errors import DataError, FinetuneError, JobError, NoSuchRun
from finetune.inference import file_request
from finetune.inference.file_request import COLUMNS, NONE, PredictionRequest
from finetune.jobs import prediction_jobs
from finetune.jobs.prediction_jobs import PredictionJob, PredictionState
from finetune.runs.store import RunStore
from finetune.ui import auth, feedback, polling, routes, upload_limits
from finetune.ui.i18n import gettext
from finetune.ui.run_table_view import NONE as DASH
from finetune.ui.run_table_view import when
from finetune.ui.run_view import duration

_SCRIPT = """
element.addEventListener('click', (event) => {
  const part = event.target.closest('button[data-what]');
  if (part) trigger('click', {what: part.dataset.what});
});
"""


@dataclass
class BatchPart:
    """The controls and what their events do.

    Args:
        store: where runs and batches are.
    """

    store: RunStore

    def draw(self, run: gr.Dropdown, options: Sequence[gr.Checkbox], fold: gr.Accordion) -> None:
        """Lay out the part inside the current layout and wire its events.

        Args:
            run: the chosen model.
            options: both orders, threshold, calibrated.
            fold: what it is drawn in.
        """
        self.batch = gr.State("")
        self.pulse = polling.polling_element(1)
        gr.HTML(
            feedback.note(
                "CSV, TSV, JSONL, JSON or Parquet, also as .gz. The same file comes back with the "
                "prediction, the probability of each class and whether the model was trained on "
                "the row; with a label column its scores too. "
                f"The last {prediction_jobs.KEPT} are kept."
            )
        )
        with gr.Row(equal_height=False):
            with gr.Column(min_width=320):
                self.file = gr.File(
                    label="File", height=92, elem_id="batch-file", elem_classes="ft-file",
                    file_types=[*uploads.ENDINGS, ".gz"],
                )  # fmt: skip
            with gr.Column(min_width=320), gr.Row():
                self.columns = [
                    gr.Dropdown(
                        [("guessed", "")], value="", label=f"{name} column", min_width=130,
                        elem_id=f"batch-{name}", allow_custom_value=True,
                    )
                    for name in COLUMNS
                ]  # fmt: skip
        with gr.Row():
            self.start = gr.Button(
                "Predict the file", variant="primary", elem_id="batch-start", min_width=140
            )
            self.cancel = gr.Button(
                "Cancel", elem_id="batch-cancel", interactive=False, min_width=100
            )
        self.message = gr.HTML(elem_id="batch-message", elem_classes="ft-if-said")
        self.kept = gr.HTML(elem_id="batch-kept", elem_classes="ft-if-listed", js_on_load=_SCRIPT)
        self.view = gr.HTML(elem_id="batch-view")
        quick = feedback.QUICK
        self.file.upload(self.on_file, self.file, [*self.columns, self.message], **quick)
        shown = [self.batch, self.message, self.view, self.cancel, self.pulse]
        start = [run, self.file, *self.columns, *options]
        self.start.click(self.on_start, start, [*shown, self.kept], **quick)
        self.cancel.click(self.on_cancel, self.batch, self.message, **quick)
        ticked = [self.view, self.cancel, self.pulse, self.kept]
        self.pulse.submit(self.on_tick, self.batch, ticked, **quick)
        self.kept.click(self.on_kept, None, shown, **quick)
        # What Predict's tab does when it is opened.
        self.opening: dict[str, Any] = {
            "fn": self.on_open, "inputs": self.batch, "outputs": [*shown, self.kept, fold]
        }  # fmt: skip

    def on_open(self, request: gr.Request, batch_id: str) -> list[Any]:
        """The tab was opened: what is kept; after a reload a batch that goes on is shown again."""
        store = auth.visitor_store(self.store, request)
        nothing = [gr.skip()] * 5
        going = (
            None
            if batch_id
            else next(filter(_goes_on, prediction_jobs.newest_predictions(store)), None)
        )
        if going is None:
            return [*nothing, kept(store), gr.skip()]
        return [*self._shown(store, going.id), kept(store), gr.Accordion(open=True)]

    def on_kept(self, request: gr.Request, event: gr.EventData) -> list[Any]:
        """One of those kept was chosen: it is shown as it was."""
        told = event._data if isinstance(event._data, dict) else {}
        return self._shown(auth.visitor_store(self.store, request), told.get("what"))

    def _shown(self, store: RunStore, batch_id: object) -> list[Any]:
        """A batch as `on_start` shows it: its id, no message, its view, Cancel, the pulse."""
        try:
            batch = prediction_jobs.get_prediction(store, batch_id)
            found = prediction_jobs.prediction_state(batch)
            drawn = view(batch.id, found, title(store, batch))
        except Exception as error:
            return [gr.skip(), feedback.show_errors(error), gr.skip(), gr.skip(), gr.skip()]
        running = found.status == "running"
        return [batch.id, "", drawn, gr.update(interactive=running), polling.polling_value(running)]

    def on_file(self, request: gr.Request, path: str | None) -> list[Any]:
        """A file came: what its columns are, and which of them seem meant."""
        try:
            if not path:
                return [*([gr.skip()] * 3), ""]
            where = upload_limits.path(auth.visitor_store(self.store, request).visitor, path)
            known, guessed = file_request.file_columns(where, Path(path).name)
        except Exception as error:
            return [*([gr.skip()] * 3), feedback.show_errors(error)]
        updates = []
        for name, guess in zip(COLUMNS, guessed, strict=True):
            none = [] if name == "sentence1" else [(NONE, NONE)]
            first = gettext("guessed: {name}", name=guess or gettext("none"))
            choices = [(first, ""), *none, *((one, one) for one in known)]
            updates.append(gr.update(choices=choices, value=""))
        return [*updates, ""]

    def on_start(
        self,
        request: gr.Request,
        run_id: str | None,
        path: str | None,
        sentence1: str,
        sentence2: str,
        label: str,
        both: bool,
        threshold: bool,
        calibrated: bool,
    ) -> list[Any]:
        """The file shall be judged."""  # fmt: skip
        try:
            if not path:
                raise DataError("There is no file.", "Choose one.")
            store = auth.visitor_store(self.store, request)
            run = store.get(run_id)
            asked = PredictionRequest(
                run.id, Path(path).name, sentence1 or "", sentence2 or "", label or "",
                bool(both), bool(threshold), bool(calibrated),
            )  # fmt: skip
            batch = prediction_jobs.start_prediction(
                store, asked, upload_limits.path(store.visitor, path)
            )
            upload_limits.kept(path, batch.input)
            drawn = view(batch.id, PredictionState("running"), title(store, batch))
        except Exception as error:
            return [gr.skip(), feedback.show_errors(error), *([gr.skip()] * 4)]
        going = [gr.update(interactive=True), polling.start_polling()]
        return [batch.id, "", drawn, *going, kept(store)]

    def on_cancel(self, request: gr.Request, batch_id: str) -> str:
        """It shall end; what is judged by then is kept."""
        try:
            prediction_jobs.cancel_prediction(
                prediction_jobs.get_prediction(auth.visitor_store(self.store, request), batch_id)
            )
        except Exception as error:
            return feedback.show_errors(error)
        return feedback.note(gettext("Cancelling: what is judged by then is kept."))

    def on_tick(self, request: gr.Request, batch_id: str, event: gr.EventData) -> list[Any]:
        """How far it is, and once what it came to."""
        store = auth.visitor_store(self.store, request)
        ended = [gr.update(interactive=False), polling.stop_polling(event)]
        try:
            batch = prediction_jobs.get_prediction(store, batch_id)
            found = prediction_jobs.prediction_state(batch)
            drawn = view(batch.id, found, title(store, batch))
        except Exception as error:
            return [feedback.show_errors(error), *ended, gr.skip()]
        if found.status == "running":
            return [drawn, gr.update(interactive=True), gr.skip(), gr.skip()]
        return [drawn, *ended, kept(store)]


def view(batch_id: str, found: PredictionState, named: str = "") -> str:
    """Which file it is, progress, what it came to, and the first rows.

    Args:
        named: as `title` gives it.
    """
    return named + _progress(found) + _report(batch_id, found) + _rows(found.head)


def title(store: RunStore, batch: PredictionJob) -> str:
    """The file, the model and the time of a batch, as HTML.

    Raises:
        DataError: when the batch is gone.
    """
    asked = batch.asked()
    rest = html.escape(f" \u00b7 {_model(store, asked)} \u00b7 {when(batch.when)}")
    return f'<p class="ft-facts" dir="auto"><b>{html.escape(asked.file)}</b>{rest}</p>'


def _model(store: RunStore, asked: PredictionRequest) -> str:
    try:
        return store.get(asked.run).title()
    except NoSuchRun:
        return gettext("a deleted run")


def _goes_on(batch: PredictionJob) -> bool:
    return prediction_jobs.prediction_state(batch).status == "running"


def kept(store: RunStore) -> str:
    """The visitor's batches as a table, the newest first; empty where there are none."""
    lines = []
    for batch in prediction_jobs.newest_predictions(store)[: prediction_jobs.KEPT]:
        try:
            lines.append(_kept(store, batch))
        except FinetuneError:  # it has just made room, or is damaged
            continue
    if not lines:
        return ""
    names = (gettext("File"), gettext("Model"), gettext("Rows"), gettext("When"), gettext("Status"))
    heads = "".join(
        f'<th scope="col"{" class=ft-num" * (place == 2)}>{html.escape(name)}</th>'
        for place, name in enumerate(names)
    )
    caption = html.escape(gettext("What is kept; open one by its file\u2019s name"))
    return (
        f'<div class="ft-rows ft-kept" role="region" aria-label="{caption}" tabindex="0"><table>'
        f"<caption>{caption}</caption><thead><tr>{heads}<th></th></tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _kept(store: RunStore, batch: PredictionJob) -> str:
    asked, found = batch.asked(), prediction_jobs.prediction_state(batch)
    rows = 0 if found.status == "running" else int(found.report.get("rows", found.done))
    status = gettext("cancelled") if found.status == "stopped" else gettext(found.status)
    name, link = f"kept-{batch.id}", ""
    if rows and batch.result is not None:
        link = routes.batch_link(batch.id, gettext("Download"), name)
    return (
        f'<tr><th scope="row" dir="auto"><button type="button" class="ft-open" id="{name}"'
        f' data-what="{batch.id}">{html.escape(asked.file)}</button></th>'
        f'<td dir="auto">{html.escape(_model(store, asked))}</td>'
        f'<td class="ft-num">{f"{rows:,}" if rows else DASH}</td><td>{when(batch.when)}</td>'
        f"<td>{html.escape(status)}</td><td>{link}</td></tr>"
    )


def _progress(found: PredictionState) -> str:
    if found.status == "failed":
        return feedback.show_errors(JobError(found.error, found.remedy))
    if found.status == "running":
        share = min(1.0, found.done / found.total) if found.total else 0.0
        kind = "" if found.total else " class=ft-unknown"
        said = gettext("{n:,} rows", n=found.done)
        if found.total:
            said = gettext("{done:,} of about {total:,} rows", done=found.done, total=found.total)
        if not found.done:
            said = gettext("Loading the model")
        return (
            f'<div class="ft-bar" role="progressbar" aria-label="{html.escape(gettext("rows judged"))}"'
            f' aria-valuemin="0" aria-valuemax="100" aria-valuenow="{100 * share:.0f}">'
            f'<i{kind} style="width:{100 * share:.1f}%"></i></div>'
            f'<p class="ft-facts">{html.escape(said)}</p>' + _seen(found.report)
        )
    return ""


def _seen(report: dict[str, Any]) -> str:
    """What of the file is not new to the model, as far as it is judged."""
    said, rows = [], int(report.get("rows", 0))
    if trained := int(report.get("trained_on", 0)):
        said.append(
            gettext(
                "{n:,} of {rows:,} rows were trained on: their scores say nothing of new pairs.",
                n=trained,
                rows=rows,
            )
        )
        apart = report.get("not_trained_on", {})
        if apart and "scores" not in apart:
            said.append(
                gettext(
                    "{n:,} labelled rows were not trained on: too few to be scored apart.",
                    n=apart["labelled"],
                )
            )
    if validated := int(report.get("validated_on", 0)):
        said.append(
            gettext(
                "{n:,} of {rows:,} rows are validation pairs of the run, by which its model was "
                "chosen: their scores flatter it a little.",
                n=validated,
                rows=rows,
            )
        )
    return feedback.warning(html.escape(" ".join(said))) if said else ""


def _report(batch_id: str, found: PredictionState) -> str:
    if found.status not in ("finished", "stopped"):
        return ""
    report = found.report
    rows, errors = int(report.get("rows", found.done)), int(report.get("errors", 0))
    took = report.get("seconds")
    parts = [gettext("{n:,} rows", n=rows)]
    if took:
        parts = [gettext("{n:,} rows in {time}", n=rows, time=duration(took))]
        rate = rows / max(0.001, took)
        parts.append(gettext("{rate:,.0f} rows/s, the model\u2019s loading included", rate=rate))
    if found.status == "stopped":
        parts.insert(0, gettext("cancelled"))
    link = routes.batch_link(batch_id) if rows else ""
    said = feedback.good(html.escape(" \u00b7 ".join(parts)))
    if errors:
        shown = "; ".join(map(str, report.get("examples", [])[:3]))
        said += feedback.note(
            gettext(
                "{n:,} could not be judged; the column error says why ({examples}).",
                n=errors,
                examples=shown,
            )
        )
    return f'{said}{_seen(report)}<div class="ft-links">{link}</div>{_scores(report)}'


def _scores(report: dict[str, Any]) -> str:
    if not report.get("scores"):
        if report.get("unknown_labels"):
            return feedback.note(gettext("No label of the file is a class of the model."))
        return ""
    apart = report.get("not_trained_on", {})
    found = [report["scores"], apart["scores"]] if "scores" in apart else [report["scores"]]
    rows = "".join(
        f'<tr><th scope="row">{html.escape(_measure(name))}</th>'
        + "".join(_interval(*scores[name]) for scores in found)
        + "</tr>"
        for name in report["scores"]
    )
    unknown = int(report.get("unknown_labels", 0))
    caption = gettext("On {n:,} labelled rows", n=report["labelled"])
    if unknown:
        caption += "; " + gettext("{n:,} labels are no class of the model", n=unknown)
    over = [gettext("score")]
    if len(found) > 1:
        caption += "; " + gettext("{n:,} of them were not trained on", n=apart["labelled"])
        over = [gettext("all rows"), gettext("not trained on")]
    columns = "".join(
        f'<th scope="col" class="ft-num">{html.escape(one)}</th>'
        f'<th scope="col">{html.escape(gettext("95% interval"))}</th>'
        for one in over
    )
    labels = [str(name) for name in report.get("labels", [])]
    heads = "".join(f'<th scope="col">{html.escape(name[:32])}</th>' for name in labels)
    lines = "".join(
        f'<tr><th scope="row">{html.escape(name[:32])}</th>'
        + "".join(f'<td class="ft-num">{count:,}</td>' for count in counts)
        + "</tr>"
        for name, counts in zip(labels, report["confusion"], strict=False)
    )
    matrix = (
        '<div class="ft-rows ft-matrix"><table><caption>'
        f"{html.escape(gettext('Confusion matrix: true class by answer'))}</caption><thead><tr>"
        f"<th></th>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
        if len(labels) <= 12
        else ""
    )
    return (
        '<div class="ft-two" id="batch-scores"><div class="ft-rows ft-matrix" role="region"'
        f' aria-label="{html.escape(caption)}" tabindex="0"><table><caption>'
        f"{html.escape(caption)}</caption><thead><tr><th></th>{columns}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>{matrix}</div>"
    )


def _interval(value: float, low: float, high: float) -> str:
    between = gettext("{low:.3f} to {high:.3f}", low=low, high=high)
    return f'<td class="ft-num"><b>{value:.3f}</b></td><td>{html.escape(between)}</td>'


def _measure(name: str) -> str:
    return {"f1": "F1", "accuracy": "Accuracy"}.get(name, name)


def _rows(head: Sequence[dict[str, Any]]) -> str:
    if not head:
        return ""
    names = list(dict.fromkeys(name for line in head for name in line))[:30]
    heads = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    lines = "".join(
        "<tr>" + "".join(f"<td dir=auto>{_cell(line.get(name))}</td>" for name in names) + "</tr>"
        for line in head[:100]
    )
    title = html.escape(gettext("The first {n} rows", n=len(head)))
    return (
        f'<details class="ft-more" open><summary>{title}</summary>'
        f'<div class="ft-rows ft-batch" role="region" aria-label="{title}" tabindex="0"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div></details>"
    )


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    text = text.lower() if isinstance(value, bool) else text  # as the file has it
    return html.escape(text if len(text) <= 200 else text[:200] + "\u2026")
