"""The part of Data for a file without answers: questions to a person, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from finetune.config import is_upload
from finetune.errors import DataError
from finetune.jobs import label, label_answers
from finetune.jobs.label import LabelJob
from finetune.runs.store import RunStore
from finetune.ui import choosers, elements, form, upload_limits
from finetune.ui.elements import button, dropdown, text_box
from finetune.ui.html import asset, macro
from finetune.ui.i18n import gettext
from finetune.ui.panel import Panel, Pressed, Updates, handler

_TEMPLATE = "label.html"
_MODEL = ("checkpoint", "max_length")


class LabelPanel(Panel):
    """The choice of what to ask, one question at a time, and the groups of a file's texts."""

    def draw(self) -> None:
        self.job_id, self.shown = gr.State(""), gr.State("")
        self.poller = elements.polling_element(1)
        title = "No labels yet? Answer some questions"
        with gr.Accordion(title, open=False, elem_id="labelling") as self.box:
            elements.note(
                "Fifty answers can make a model. Name the labels, or let it find pairs of texts "
                "that mean the same. Every third question is random, and tells how good a model "
                "would be."
            )
            with gr.Column(elem_id="label-setup") as self.setup:
                with gr.Row(equal_height=False):
                    self.column = dropdown(
                        [], "Column with the texts", "label-column", 200, value="",
                        allow_custom_value=True, info="Empty to guess it.",
                    )  # fmt: skip
                    self.names = text_box(
                        "Labels", "label-names", 260, placeholder="billing, bug, praise",
                        info="With commas between; add more at any time.",
                    )  # fmt: skip
                    self.who = text_box(
                        "Who answers", "label-who", 160, info="If two of you label one file."
                    )
                self.several = gr.Checkbox(
                    label="A text may have several labels", elem_id="label-several"
                )
                with gr.Row():
                    self.texts = button("Label texts", "label-texts", 200, variant="primary")
                    self.pairs = button("Find pairs that mean the same", "label-pairs", 200)
                with gr.Row(equal_height=False):
                    text = "A second file to match (optional)"
                    self.other = elements.pairs_file(text, "label-other")
                    text = "Go on with"
                    self.former = dropdown([], text, "label-former", 240, value=None, visible=False)
            self.message = elements.notice("label-message")
            self.card = gr.HTML(elem_id="label-card", js_on_load=asset("label.js"))
            self.estimate = gr.HTML(elem_id="label-estimate")
            with gr.Row(visible=False, elem_id="label-next") as self.row:
                self.start = button("Train on these answers", "label-train", 200, variant="primary")
                self.again = button("Other texts or labels", "label-again", 200)
                self.remove = button("Delete", "label-remove", scale=0)
                self.confirm = button("", "label-sure", 200, variant="stop", visible=False)
                self.model = dropdown([], "Model", "label-model", 220, value=None)
                self.answer = button("Let it answer all rows", "label-answer", 200)
            self.progress = gr.HTML(elem_id="label-progress", elem_classes="ft-if-filled")
            self.result = gr.HTML(elem_id="label-result")

    def wire(self, controls: Mapping[str, Any]) -> None:
        """Connect the events; the form's controls give the file and the checkpoint."""
        self.values = [controls[name] for name in _MODEL]
        self.fields = [self.column, controls["dataset"], *self.values]
        self.connect()["on_card"].then(  # the next question first
            self.on_facts, [self.job_id], [self.estimate], queue=False, show_progress="hidden",
            api_visibility="private", trigger_mode="multiple",
        )  # fmt: skip

    @handler("box.expand")
    def on_expand(self, store: RunStore) -> Updates:
        return self.offered(store)

    def offered(self, store: RunStore) -> Updates:
        """Return the visitor's labellings, to go on with."""
        choices = [(_described(job), job.id) for job in LabelJob.newest(store)[:50]]
        return {self.former: gr.update(choices=choices, visible=bool(choices))}

    def closed(self) -> Updates:
        """Show no labelling, but what another one needs."""
        shown = (self.job_id, self.shown, self.progress, self.card, self.estimate, self.result)
        hidden = dict.fromkeys((self.row, self.confirm), gr.update(visible=False))
        return dict.fromkeys(shown, "") | hidden | {self.setup: gr.update(visible=True)}

    @handler("texts.click")
    def on_texts(self, store: RunStore, names: Any, several: Any, *fields: Any) -> Updates:
        labels = str(names or "").split(",")
        return self._begun(store, fields, labels=labels, several=bool(several))

    @handler("pairs.click")
    def on_pairs(self, store: RunStore, other: Any, *fields: Any) -> Updates:
        return self._begun(store, fields, other, pairs=True)

    def _begun(self, store: RunStore, fields: Any, other: Any = None, **options: Any) -> Updates:
        column, dataset, *values = fields
        if not is_upload(str(dataset)):
            raise DataError("These rows have answers already.", "Drop a file of your own first.")
        files = [store.uploads.files(dataset)["train"]]
        names = [store.uploads.file_names(dataset)["train"]]
        if other:
            files.append(upload_limits.path(store.visitor, other))
            names.append(Path(other).name)
        options |= {"columns": [str(column or "")], "config": form.read(values, _MODEL)}
        return self._opened(store, label.start_labelling(store, files, names, **options))

    @handler("former.input")
    def on_former(self, store: RunStore, former: Any, who: str) -> Updates:
        """Go on with an earlier labelling."""
        return self._opened(store, LabelJob.find(store, former), who)

    def _opened(self, store: RunStore, job: LabelJob, who: str = "") -> Updates:
        updates = self.closed() | {self.setup: gr.update(visible=False)}
        updates |= {self.job_id: job.id, self.message: "", self.poller: True}
        return updates | (self._drawn(store, job, who) if job.labelling.ready else {})

    @handler("again.click")
    def on_again(self, store: RunStore) -> Updates:
        """Show what can be chosen again."""
        return {self.setup: gr.update(visible=True)} | self.offered(store)

    @handler("poller.submit")
    def on_tick(self, store: RunStore, job_id: str, shown: str, who: str) -> Updates:
        """Show how far a labelling's jobs are, and its first question once it can be asked."""
        if not job_id:  # closed while it asked
            return {self.poller: False}
        job = LabelJob.find(store, job_id)
        answers = label_answers.AnswersJob(job.folder / "answers")
        state, found = job.state(), answers.state()
        shows = found if found.running or found.error else state
        report = {} if found.running else answers.report
        updates: Updates = {
            self.progress: macro(_TEMPLATE, "progress")(shows, job.title),
            self.result: macro(_TEMPLATE, "result")(job.id, report, len(job.request["files"])),
        }
        if shown != job.id and job.labelling.ready:
            updates |= self._drawn(store, job, who)
        if not state.running and not found.running:
            updates[self.poller] = False
        return updates

    def _drawn(self, store: RunStore, job: LabelJob, who: str) -> Updates:
        updates = self._card(store, job, who) | self._facts(job) | self._models(store, job)
        return updates | {self.shown: job.id, self.row: gr.update(visible=True)}

    # Two keys pressed one after the other both count.
    @handler("card.select", trigger_mode="multiple")
    def on_card(self, store: RunStore, pressed: Pressed, job_id: str, who: str) -> Updates:
        """Take an answer, or take one back; then show the next question."""
        job = LabelJob.find(store, job_id)
        labelling, person, given = job.labelling, _person(store, who), None
        match pressed.get("do"):
            case "undo":
                labelling.undo(person)
            case "add":
                labelling.add_name(str(pressed.get("label")), person)
            case "answer":
                given = labelling.answer(pressed.get("item"), pressed.get("labels"), person)
            case "skip":
                labelling.answer(pressed.get("item"), None, person)
        return self._card(store, job, who, given) | {self.message: ""}

    def _card(self, store: RunStore, job: LabelJob, who: str, given: Any = None) -> Updates:
        labelling, person = job.labelling, _person(store, who)
        shown = labelling.next(person), labelling, given, labelling.agreement(person)
        return {self.card: macro(_TEMPLATE, "card")(*shown)}

    def _models(self, store: RunStore, job: LabelJob, chosen: Any = "") -> Updates:
        """Offer the models that answer with a labelling's labels, the small one first."""
        names, found = set(job.labelling.used), []
        for name, run in choosers.models(store):
            prepared = run.state().prepared
            if prepared is not None and names <= set(prepared.target.names):
                found.append((name, run.id))
        own = gettext("The small model"), ""
        value = chosen if chosen in [run_id for _, run_id in found] else ""
        return {self.model: gr.update(choices=[own, *found], value=value)}

    @handler()
    def on_turn(self, store: RunStore, job_id: str, model: Any) -> Updates:
        """Offer what was trained since."""
        return self._models(store, LabelJob.find(store, job_id), model) if job_id else {}

    @handler(errors_in="estimate")
    def on_facts(self, store: RunStore, job_id: str) -> Updates:
        return self._facts(LabelJob.find(store, job_id))

    def _facts(self, job: LabelJob) -> Updates:
        """Say how good a model would be, from the random part, and how far people agree."""
        labelling = job.labelling
        told = labelling.estimate(), labelling.people(), labelling.disputed()
        return {self.estimate: macro(_TEMPLATE, "facts")(job.id, labelling, *told)}

    @handler()
    def on_start(self, store: RunStore, job_id: str, *values: Any) -> Updates:
        """Put the answers into the form, and show it."""
        config = form.read(values, _MODEL)
        config = label.training_config(store, LabelJob.find(store, job_id), config)
        return form.filled(self.filled, store, config) | {self.message: ""}

    @handler("answer.click")
    def on_answer(self, store: RunStore, job_id: str, model: Any) -> Updates:
        """Let a model answer all that can be asked."""
        run = store.get(model) if model else None
        label_answers.start_answers(store, LabelJob.find(store, job_id), run)
        return {self.poller: True, self.message: ""}

    @handler("remove.click")
    def on_remove(self, store: RunStore, job_id: str) -> Updates:
        """Ask to confirm deleting the labelling."""
        asks = gettext("Delete for good: {name}", name=_described(LabelJob.find(store, job_id)))
        return {self.confirm: gr.update(value=asks, visible=True)}

    @handler("confirm.click")
    def on_confirm(self, store: RunStore, job_id: str) -> Updates:
        label_answers.delete_labelling(LabelJob.find(store, job_id))
        return self.closed() | self.offered(store)


def _described(job: LabelJob) -> str:
    found = job.labelling
    file = job.title if found.pairs else f"{job.title} ({', '.join(found.names)})"
    return gettext("{file}: {n} answers", file=file, n=len(found.settled()))


def _person(store: RunStore, who: object) -> str:
    return " ".join(str(who or "").split())[:60] or store.visitor.name or "me"
